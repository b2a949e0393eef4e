"""`/sessions`: made, read, forked, cut and forgotten. Turns are in `turn_endpoints`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

from attrs import evolve

from minions.contracts.errors import NotFoundError, UsageError, did_you_mean, near_names
from minions.contracts.json_values import JsonValue
from minions.contracts.sessions import Session
from minions.engine.sessions.context import build_context_from_steps, get_context_summary
from minions.engine.sessions.deletion import remove_sessions
from minions.interfaces.server.documents.common import After
from minions.interfaces.server.documents.sessions import (
    ContextView,
    CutView,
    ForkRequest,
    ForkView,
    NewSession,
    Sessions,
    SessionsPage,
    SessionView,
    StepRange,
    Steps,
    StepsFrom,
    StepView,
)
from minions.interfaces.server.endpoints import Call, Endpoint, EventData, Nothing
from minions.interfaces.server.http.responses import Answer, AsgiApp
from minions.interfaces.server.routes.runs import LAST_EVENT_ID, position_after
from minions.interfaces.server.routes.text_filter import has_words
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe

__all__ = ["SESSION_ENDPOINTS", "session_of"]


async def session_of(call: Call[object, object]) -> Session:
    """The session that the path names.

    Raises:
        NotFoundError: There is none.
    """
    return await call.app_state.repository.get_session(call.path["session_id"])


# --- the sessions themselves ----------------------------------------------------------------------


async def all_sessions(call: Call[SessionsPage, None]) -> AsgiApp:
    """A part of the list."""
    limit, offset, text = call.query.limit, call.query.offset, call.query.text
    tree, repository = call.query.tree, call.app_state.repository
    if tree:
        every = await repository.list_fork_tree(tree)
        found = [each for each in every if has_words(text, each.name, each.recipe, each.id)]
        part, total = found[offset : offset + limit], len(found)
    else:
        part = list(await repository.list_sessions(limit=limit, offset=offset, text=text))
        total = await repository.count_sessions(text=text)
    shown = [_view(call, session) for session in part]
    reply: dict[str, JsonValue] = {
        "sessions": shown,
        "total": total,
        "limit": limit,
        "offset": offset,
    }
    return Answer(HTTPStatus.OK, reply)


async def new_session(call: Call[Nothing, NewSession]) -> AsgiApp:
    """An empty one; nothing runs yet."""
    body, app_state = call.body, call.app_state
    recipe = await asyncio.to_thread(app_state.recipe_store.get, body.recipe)
    _check_inputs(recipe, body.inputs)
    app_state.runtime.check_secrets(recipe, body.inputs)
    session = await app_state.repository.create_session(
        body.recipe, name=body.name, inputs=body.inputs
    )
    headers = {"location": call.link(f"/sessions/{session.id}")}
    return Answer(HTTPStatus.CREATED, _view(call, session), headers=headers)


def _check_inputs(recipe: AgentRecipe, given: Mapping[str, JsonValue]) -> None:
    """Those that are given; others may come with the turns. Above all no secret is stored.

    Raises:
        UsageError: There is no such input, or it does not fit.
    """
    problems = [
        f"There is no input '{name[:100]}'.{did_you_mean(name, recipe.inputs)} Inputs are: "
        f"{', '.join(recipe.inputs) or 'none'}."
        for name in given
        if name not in recipe.inputs
    ]
    if problems:
        near = [each for name in given for each in near_names(name, recipe.inputs, limit=1)]
        raise UsageError("\n".join(problems), code="bad-input", suggestions=near)
    declared = {name: spec for name, spec in recipe.inputs.items() if name in given}
    resolve_inputs(evolve(recipe, inputs=declared), given, base=Path.cwd())


async def one_session(call: Call[Nothing, None]) -> AsgiApp:
    """With the number of its steps."""
    session = await session_of(call)
    position = await call.app_state.last_position(session.id)  # first: what comes later is followed
    count = await call.app_state.repository.get_step_count(session.id)
    more: dict[str, JsonValue] = {"step_count": count, "position": position}
    return Answer(HTTPStatus.OK, {**_view(call, session), **more})


def _view(call: Call[object, object], session: Session) -> dict[str, JsonValue]:
    run_id = session.last_run_id
    is_active = run_id is not None and call.app_state.run_manager.find(run_id) is not None
    return {**session.to_json(), "is_active": is_active}


async def forget_session(call: Call[Nothing, None]) -> AsgiApp:
    """All of it, for good."""
    session = await session_of(call)
    await remove_sessions(call.app_state.runtime.services, [session.id])
    call.app_state.channels.close_session(session.id)
    return Answer(HTTPStatus.NO_CONTENT)


async def session_events(call: Call[After, None]) -> AsgiApp:
    """What happened in all its runs, then what happens."""
    session = await session_of(call)
    return await call.app_state.stream(session.id, after=position_after(call))


# --- steps ----------------------------------------------------------------------------------------


async def steps_of(call: Call[StepRange, None]) -> AsgiApp:
    """A part of the conversation."""
    session, query = await session_of(call), call.query
    repository = call.app_state.repository
    steps = await repository.get_steps(session.id, query.start_seq, query.end_seq, query.limit)
    reply: dict[str, JsonValue] = {
        "steps": [step.to_json() for step in steps],
        "total": await repository.get_step_count(session.id),
        "session_id": session.id,
    }
    return Answer(HTTPStatus.OK, reply)


async def one_step(call: Call[Nothing, None]) -> AsgiApp:
    """One message."""
    session, text = await session_of(call), call.path["sequence"]
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise NotFoundError("Steps are numbered: 1, 2, 3 …", code="unknown-step")
    step = await call.app_state.repository.get_step(session.id, int(text))
    return Answer(HTTPStatus.OK, step.to_json())


async def cut_steps(call: Call[StepsFrom, None]) -> AsgiApp:
    """Out of the conversation; the journal keeps its rows."""
    session, start = await session_of(call), call.query.start_seq
    count = await call.app_state.repository.delete_steps(session.id, start)
    return Answer(
        HTTPStatus.OK, CutView(deleted_count=count, session_id=session.id, start_seq=start)
    )


async def context_of(call: Call[Nothing, None]) -> AsgiApp:
    """As a model reads it."""
    session, repository = await session_of(call), call.app_state.repository
    messages = await build_context_from_steps(session.id, repository)
    summary = await get_context_summary(session.id, repository)
    reply = ContextView(session_id=session.id, messages=tuple(messages), summary=summary)
    return Answer(HTTPStatus.OK, reply)


async def fork(call: Call[Nothing, ForkRequest]) -> AsgiApp:
    """A new session with the steps so far."""
    session, body = await session_of(call), call.body
    made = await call.app_state.repository.fork(session.id, body.sequence, name=body.name)
    reply = ForkView(
        new_session_id=made.id,
        original_session_id=session.id,
        forked_at_sequence=body.sequence,
        copied_steps=body.sequence,
    )
    headers = {"location": call.link(f"/sessions/{made.id}")}
    return Answer(HTTPStatus.CREATED, reply, headers=headers)


SESSION_ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/sessions",
        name="listSessions",
        summary="All sessions, the newest first.",
        handler=all_sessions,
        query=SessionsPage,
        gives={200: Sessions},
        refuses=(404,),
    ),
    Endpoint(
        method="POST",
        path="/sessions",
        name="createSession",
        summary="A new session of a recipe.",
        handler=new_session,
        body=NewSession,
        gives={201: SessionView},
        refuses=(404, 409),
    ),
    Endpoint(
        method="GET",
        path="/sessions/{session_id}",
        name="getSession",
        summary="One session.",
        handler=one_session,
        gives={200: SessionView},
        refuses=(404,),
    ),
    Endpoint(
        method="DELETE",
        path="/sessions/{session_id}",
        name="forgetSession",
        summary="Forget the session and all its runs.",
        handler=forget_session,
        gives={204: None},
        refuses=(404, 409),
    ),
    Endpoint(
        method="GET",
        path="/sessions/{session_id}/events",
        name="followSession",
        summary="The events of all its runs: those that are stored, then the live ones.",
        handler=session_events,
        query=After,
        headers={LAST_EVENT_ID: "Go on behind this event."},
        gives={200: EventData},
        refuses=(404,),
    ),
    Endpoint(
        method="GET",
        path="/sessions/{session_id}/steps",
        name="listSteps",
        summary="Messages of the session, in order.",
        handler=steps_of,
        query=StepRange,
        gives={200: Steps},
        refuses=(404,),
    ),
    Endpoint(
        method="DELETE",
        path="/sessions/{session_id}/steps",
        name="deleteSteps",
        summary="Take a step and all after it out of the conversation.",
        handler=cut_steps,
        query=StepsFrom,
        gives={200: CutView},
        refuses=(404, 409),
    ),
    Endpoint(
        method="GET",
        path="/sessions/{session_id}/steps/{sequence}",
        name="getStep",
        summary="One message of the session.",
        handler=one_step,
        gives={200: StepView},
        refuses=(404,),
    ),
    Endpoint(
        method="GET",
        path="/sessions/{session_id}/context",
        name="getContext",
        summary="The conversation in the provider's form, and a summary.",
        handler=context_of,
        gives={200: ContextView},
        refuses=(404,),
    ),
    Endpoint(
        method="POST",
        path="/sessions/{session_id}/fork",
        name="forkSession",
        summary="A new session that begins with the steps up to a sequence.",
        handler=fork,
        body=ForkRequest,
        gives={201: ForkView},
        refuses=(404, 409),
    ),
)
