"""`/approvals`: what runs wait for, and what somebody says of it. `/health`, `/system`."""

from __future__ import annotations

from http import HTTPStatus

from minions import __version__
from minions.contracts.decision_words import word_of
from minions.contracts.errors import NotFoundError
from minions.interfaces.server.documents.common import Health, Page, SystemView
from minions.interfaces.server.documents.runs import Approvals, DecisionRequest, RunAccepted
from minions.interfaces.server.endpoints import Call, Endpoint, Nothing
from minions.interfaces.server.http.problems import RefusedError
from minions.interfaces.server.http.responses import Answer, AsgiApp
from minions.interfaces.server.live.run_starter import StartedRun
from minions.interfaces.server.pending_decisions import (
    all_waiting,
    decision_of,
    find_waiting,
    run_of,
)
from minions.interfaces.server.routes.runs import accepted

__all__ = ["DECISION_ENDPOINTS", "HEALTH_ENDPOINT", "SYSTEM_ENDPOINT"]


async def all_approvals(call: Call[Page, None]) -> AsgiApp:
    """Of all runs."""
    waiting = await all_waiting(call.app_state.journal)
    limit, offset = call.query.limit, call.query.offset
    part = tuple(waiting[offset : offset + limit])
    reply = Approvals(approvals=part, total=len(waiting), limit=limit, offset=offset)
    return Answer(HTTPStatus.OK, reply)


async def decide(call: Call[Nothing, DecisionRequest]) -> AsgiApp:
    """Take the decision; the run goes on with it."""
    app_state, approval_id = call.app_state, call.path["approval_id"]
    run_id = run_of(approval_id)
    if app_state.run_manager.find(run_id) is not None:
        raise RefusedError(
            HTTPStatus.CONFLICT, "run-active", f"Run '{run_id}' goes on just now; look again soon."
        )
    view = await find_waiting(app_state.journal, approval_id)
    decision = decision_of(view, call.body)
    recorded = await app_state.runtime.recorded(run_id)
    if recorded.run_id != run_id:
        raise NotFoundError(f"There is no run '{run_id}'.", code="unknown-run")
    recipe = app_state.runtime.own_recipe(recorded)
    executor = app_state.runtime.executor(recipe, recorded.inputs, note=recorded.note)
    run = executor.prepare_resume(recorded, recipe=recipe, decisions={view.key: word_of(decision)})
    await app_state.run_manager.begin(run)
    return await accepted(call, StartedRun(run.run_id, run.session_id))


async def health(call: Call[Nothing, None]) -> AsgiApp:
    """That it answers."""
    is_stopping = call.app_state.run_manager.is_closing
    reply = Health(status="stopping" if is_stopping else "ok", version=__version__)
    return Answer(HTTPStatus.OK, reply)


async def system(call: Call[Nothing, None]) -> AsgiApp:
    """For the page that people look at."""
    app_state = call.app_state
    reply = SystemView(
        version=__version__,
        journal=app_state.place,
        started_at=app_state.started_at,
        active_runs=app_state.run_manager.count,
        max_runs=app_state.options.max_runs,
        followers=app_state.channels.count,
    )
    return Answer(HTTPStatus.OK, reply)


DECISION_ENDPOINTS = (
    Endpoint(
        method="GET",
        path="/approvals",
        name="listApprovals",
        summary="Every decision that a run waits for: calls that need consent, and questions.",
        handler=all_approvals,
        query=Page,
        gives={200: Approvals},
    ),
    Endpoint(
        method="POST",
        path="/approvals/{approval_id}",
        name="decide",
        summary="Approve, reject or answer; the run goes on.",
        handler=decide,
        body=DecisionRequest,
        gives={202: RunAccepted},
        refuses=(404, 409, 429),
    ),
)

SYSTEM_ENDPOINT = Endpoint(
    method="GET",
    path="/system",
    name="system",
    summary="What the server is and does just now.",
    handler=system,
    gives={200: SystemView},
)

HEALTH_ENDPOINT = Endpoint(
    method="GET",
    path="/health",
    name="health",
    summary="Whether the server answers; needs no token.",
    handler=health,
    gives={200: Health},
    is_public=True,
)
