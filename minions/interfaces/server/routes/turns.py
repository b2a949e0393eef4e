"""Turns of a session, each a stream of events: send a message, retry, resume.

The run belongs to the server: it continues when the reader leaves, who can follow it again.
"""

from __future__ import annotations

from http import HTTPStatus

from litestar import Router, post

from minions.contracts.events import RunCompleted
from minions.contracts.executions import OPEN_STATES, RunStatus
from minions.contracts.sessions import Session
from minions.data.errors import UsageError
from minions.engine.run.agent_run import AgentRun
from minions.engine.sessions.runner import StepRunner
from minions.interfaces.http.responses import EVENT_STREAM, Answer
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.documents.sessions import MessageRequest, RetryRequest
from minions.interfaces.server.endpoints import ApiRequest, Body, EventStream, InPath, refuses
from minions.interfaces.server.live.frames import bytes_of, frame_of
from minions.interfaces.server.routes.sessions import session_of, user_in

_CUT_OFF = (
    *OPEN_STATES,
    RunStatus.CANCELLED,
    RunStatus.LIMIT_REACHED,
    RunStatus.NEEDS_DECISION,
)
"""States of a last run that a resume of the session continues."""


@post(
    "/messages",
    status_code=200,
    media_type=EVENT_STREAM,
    responses=refuses(404, 409, 429),
    needs=TokenScope.RUN,
)
async def send_message(
    request: ApiRequest, session_id: InPath, data: Body[MessageRequest]
) -> EventStream:
    """Send a message: one turn of the session, as events."""
    session = await session_of(request, session_id)
    runner = await _runner(
        request, session, model=data.model, user=await user_in(request, session, data.user)
    )
    return await _streamed(request, await runner.prepare_turn(session, data.content))


@post(
    "/retry",
    status_code=200,
    media_type=EVENT_STREAM,
    responses=refuses(404, 409, 429),
    needs=TokenScope.RUN,
)
async def retry_session(
    request: ApiRequest, session_id: InPath, data: Body[RetryRequest]
) -> EventStream:
    """Regenerate the session from a step on, as events."""
    session = await session_of(request, session_id)
    runner = await _runner(request, session, user=await user_in(request, session, data.user))
    return await _streamed(request, await runner.prepare_retry(session, data.sequence))


@post(
    "/resume",
    status_code=200,
    media_type=EVENT_STREAM,
    responses=refuses(404, 409, 429),
    needs=TokenScope.RUN,
)
async def resume_session(request: ApiRequest, session_id: InPath) -> EventStream:
    """Resume the session, as events."""
    session = await session_of(request, session_id)
    runner = await _runner(request, session, user=await user_in(request, session, None))
    run = await runner.prepare_resume(session)
    return await (_replayed(request, session) if run is None else _streamed(request, run))


async def _runner(
    request: ApiRequest, session: Session, *, model: str | None = None, user: str | None = None
) -> StepRunner:
    """The runner of the session's recipe.

    Args:
        model: The model that the caller chose for the turn; None: none was chosen.
        user: The label of the user for whom it runs; None: none was given.
    Raises:
        UsageError: `no-recipe`; the session names none.
        NotFoundError: The recipe is not stored here.
        RefusedError: `secret-refused`, `model-refused`.
    """
    app_state = request.app_state
    if session.recipe is None:
        raise UsageError(
            f"Session '{session.id}' has no recipe of its own: start a run in it with POST "
            "/api/v1/runs.",
            code="no-recipe",
        )
    name = session.recipe
    recipe = await app_state.threads.run(lambda: app_state.recipe_store.get(name))
    note = app_state.runtime.note()
    if session.last_run_id is not None and session.status in _CUT_OFF:
        note |= (await app_state.runtime.recorded(session.last_run_id)).note
    if model is not None:
        note |= app_state.runtime.chosen_model(model)
    # A turn has the inputs of the last run, too, which may be a run of another recipe.
    own, before = await app_state.repository.inputs_of(session.id)
    executor = app_state.runtime.executor(recipe, {**before, **own}, note=note)
    return StepRunner(
        recipe, repository=app_state.repository, executor=executor, note=note, user=user
    )


async def _streamed(request: ApiRequest, run: AgentRun) -> EventStream:
    """The events of a run that begins now."""
    app_state = request.app_state
    after = await app_state.last_position(run.session_id)
    stream = await app_state.stream(
        run.session_id, run_id=run.run_id, after=after, caller=request.caller.name
    )
    try:
        await app_state.run_manager.begin(run)
    except BaseException:
        stream.give_up()
        raise
    return stream


async def _replayed(request: ApiRequest, session: Session) -> EventStream:
    app_state = request.app_state
    last = await app_state.repository.get_last_step(session.id)
    event = RunCompleted(
        run_id=last.run_id if last is not None else "",
        session_id=session.id,
        timestamp=app_state.runtime.services.clock.now(),
        status=RunStatus.COMPLETED.value,
        data={"response": last.content if last is not None else None},
    )
    data = await bytes_of([frame_of(event)], app_state.threads)
    return Answer(HTTPStatus.OK, data, EVENT_STREAM)


TURNS = Router(
    "/sessions/{session_id:str}", route_handlers=[send_message, retry_session, resume_session]
)
