"""Turns of a session, each a stream of events: ask, regenerate, go on.

The run belongs to the server: it goes on when the reader leaves, who can follow it again.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from minions.contracts.errors import UsageError
from minions.contracts.events import RunCompleted
from minions.contracts.executions import OPEN_STATES, RunStatus
from minions.contracts.sessions import Session
from minions.engine.run.agent_run import AgentRun
from minions.engine.sessions.runner import StepRunner
from minions.interfaces.server.documents.sessions import MessageRequest, RetryRequest
from minions.interfaces.server.endpoints import Call, Endpoint, EventData, Nothing
from minions.interfaces.server.http.responses import EVENT_STREAM, Answer, AsgiApp
from minions.interfaces.server.live.frames import frame_of
from minions.interfaces.server.routes.sessions import session_of

__all__ = ["TURN_ENDPOINTS"]

_CUT_OFF = (
    *OPEN_STATES,
    RunStatus.CANCELLED,
    RunStatus.LIMIT_REACHED,
    RunStatus.NEEDS_DECISION,
)
"""States of a last run with which resuming the session goes on."""


async def say(call: Call[Nothing, MessageRequest]) -> AsgiApp:
    """One turn."""
    session = await session_of(call)
    runner = await _runner(call, session)
    return await _streamed(call, await runner.prepare_turn(session, call.body.content))


async def retry(call: Call[Nothing, RetryRequest]) -> AsgiApp:
    """The steps from there on, anew."""
    session = await session_of(call)
    runner = await _runner(call, session)
    return await _streamed(call, await runner.prepare_retry(session, call.body.sequence))


async def resume(call: Call[Nothing, Nothing]) -> AsgiApp:
    """Go on where the session stands; an answer that is there is told again."""
    session = await session_of(call)
    runner = await _runner(call, session)
    run = await runner.prepare_resume(session)
    return await (_replayed(call, session) if run is None else _streamed(call, run))


async def _runner(call: Call[Nothing, object], session: Session) -> StepRunner:
    """Of the session's recipe.

    Raises:
        UsageError: The session has none.
        NotFoundError: It is not stored here.
        RefusedError: `secret-refused`.
    """
    app_state = call.app_state
    if session.recipe is None:
        raise UsageError(
            f"Session '{session.id}' has no recipe of its own: begin a run in it with POST "
            "/api/v1/runs.",
            code="no-recipe",
        )
    recipe = await asyncio.to_thread(app_state.recipe_store.get, session.recipe)
    note = app_state.runtime.note()
    if session.last_run_id is not None and session.status in _CUT_OFF:
        note |= (await app_state.runtime.recorded(session.last_run_id)).note
    # A turn takes what the last run was given, too: it may have been one of another recipe.
    own, before = await app_state.repository.inputs_of(session.id)
    executor = app_state.runtime.executor(recipe, {**before, **own}, note=note)
    return StepRunner(recipe, repository=app_state.repository, executor=executor, note=note)


async def _streamed(call: Call[Nothing, object], run: AgentRun) -> AsgiApp:
    """The events from the run's beginning on."""
    app_state = call.app_state
    after = await app_state.last_position(run.session_id)
    stream = await app_state.stream(run.session_id, run_id=run.run_id, after=after)
    try:
        await app_state.run_manager.begin(run)
    except BaseException:
        stream.give_up()
        raise
    return stream


async def _replayed(call: Call[Nothing, object], session: Session) -> AsgiApp:
    app_state = call.app_state
    last = await app_state.repository.get_last_step(session.id)
    event = RunCompleted(
        run_id=last.run_id if last is not None else "",
        session_id=session.id,
        timestamp=app_state.runtime.services.clock.now(),
        status=RunStatus.COMPLETED.value,
        data={"response": last.content if last is not None else None},
    )
    return Answer(HTTPStatus.OK, frame_of(event).data, EVENT_STREAM)


TURN_ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/sessions/{session_id}/messages",
        name="say",
        summary="Say something: one turn of the session, as events.",
        handler=say,
        body=MessageRequest,
        gives={200: EventData},
        refuses=(404, 409, 429),
    ),
    Endpoint(
        method="POST",
        path="/sessions/{session_id}/retry",
        name="retry",
        summary="Regenerate the session from a step on, as events.",
        handler=retry,
        body=RetryRequest,
        gives={200: EventData},
        refuses=(404, 409, 429),
    ),
    Endpoint(
        method="POST",
        path="/sessions/{session_id}/resume",
        name="resume",
        summary="Go on where the session stands, as events.",
        handler=resume,
        body=Nothing,
        gives={200: EventData},
        refuses=(404, 409, 429),
    ),
)
