"""`/runs`: begin, look at, follow, stop."""

from __future__ import annotations

from http import HTTPStatus

from attrs import evolve

from minions.contracts.errors import UsageError
from minions.contracts.executions import RunStatus
from minions.contracts.run_rows import RunFilter
from minions.engine.history.lookup import count_runs, list_runs
from minions.engine.sessions.cancellation import cancel_run as cancel_from_outside
from minions.interfaces.server.documents.common import After
from minions.interfaces.server.documents.runs import (
    CancelView,
    RunAccepted,
    RunRequest,
    Runs,
    RunsPage,
    RunView,
)
from minions.interfaces.server.endpoints import Call, Endpoint, EventData, Nothing
from minions.interfaces.server.http.problems import RefusedError
from minions.interfaces.server.http.responses import Answer, AsgiApp
from minions.interfaces.server.live.run_starter import RequestedRun, StartedRun
from minions.interfaces.server.routes.run_views import find_exact, links_of, run_row, run_view

__all__ = ["LAST_EVENT_ID", "RUN_ENDPOINTS", "accepted", "position_after"]

_KEY = "idempotency-key"
LAST_EVENT_ID = "last-event-id"


async def begin_run(call: Call[Nothing, RunRequest]) -> AsgiApp:
    """A new run, or the one that the key stands for."""
    body = call.body
    wanted = RequestedRun(
        recipe=body.recipe,
        recipe_text=body.recipe_text,
        inputs=body.inputs,
        session=body.session,
        key=call.headers.get(_KEY),
    )
    return await accepted(call, await call.app_state.starter.begin(wanted))


async def accepted(call: Call[Nothing, object], begun: StartedRun) -> AsgiApp:
    """That the run goes on by itself."""
    run = await find_exact(call.app_state.journal, begun.run_id)
    reply = RunAccepted(
        run_id=begun.run_id,
        session_id=begun.session_id,
        status=run.status,
        links=links_of(call, begun.run_id, begun.session_id),
    )
    headers = {"location": call.link(f"/runs/{begun.run_id}")}
    return Answer(HTTPStatus.ACCEPTED, reply, headers=headers)


async def all_runs(call: Call[RunsPage, None]) -> AsgiApp:
    """A part of the list."""
    app_state, query = call.app_state, call.query
    wanted = RunFilter(
        recipe=query.recipe,
        statuses=None if query.status is None else {query.status},
        session_id=query.session,
        text=query.text,
    )
    found = await list_runs(
        app_state.journal, wanted=wanted, limit=query.limit, offset=query.offset
    )
    rows = [
        run_row(run, is_active=app_state.run_manager.find(run.run_id) is not None) for run in found
    ]
    total = await count_runs(app_state.journal, wanted)
    reply = Runs(runs=tuple(rows), total=total, limit=query.limit, offset=query.offset)
    return Answer(HTTPStatus.OK, reply)


async def one_run(call: Call[Nothing, None]) -> AsgiApp:
    """Everything that is known of it."""
    run = await find_exact(call.app_state.journal, call.path["run_id"])
    return Answer(HTTPStatus.OK, await run_view(call, run))


async def cancel_run(call: Call[Nothing, Nothing]) -> AsgiApp:
    """Tell it to stop; what was done is kept."""
    run_id = call.path["run_id"]
    is_told = call.app_state.run_manager.cancel(run_id)
    run = await find_exact(call.app_state.journal, run_id)
    if is_told:
        return Answer(HTTPStatus.ACCEPTED, CancelView(run_id=run_id, status=run.status))
    if not run.has_ended or run.status == RunStatus.NEEDS_DECISION:
        services = call.app_state.runtime.services
        cancelled = await cancel_from_outside(
            evolve(services, worker_id=f"cancel@{services.worker_id}"), run_id
        )
        return Answer(HTTPStatus.ACCEPTED, CancelView(run_id=run_id, status=cancelled.status))
    raise RefusedError(
        HTTPStatus.CONFLICT, "run-over", f"Run '{run_id}' has ended: it is {run.status}."
    )


async def run_events(call: Call[After, None]) -> AsgiApp:
    """What happened, then what happens; until the run ends."""
    run = await find_exact(call.app_state.journal, call.path["run_id"])
    return await call.app_state.stream(
        run.session_id, run_id=run.run_id, after=position_after(call)
    )


def position_after(call: Call[After, None]) -> int:
    """Where the stream begins.

    Raises:
        UsageError: The header is no position.
    """
    text = call.headers.get(LAST_EVENT_ID)
    if text is None or not text.strip():
        return call.query.after or 0
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise UsageError(
            "The header Last-Event-ID is a whole number: the `id:` of the last event.",
            code="bad-last-event-id",
        )
    return int(text)


RUN_ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/runs",
        name="beginRun",
        summary="Begin a run of a stored recipe; it goes on by itself.",
        handler=begin_run,
        body=RunRequest,
        headers={_KEY: "The same key and body is the same run, also after a restart."},
        gives={202: RunAccepted},
        refuses=(404, 409, 429),
    ),
    Endpoint(
        method="GET",
        path="/runs",
        name="listRuns",
        summary="All runs, the newest first.",
        handler=all_runs,
        query=RunsPage,
        gives={200: Runs},
    ),
    Endpoint(
        method="GET",
        path="/runs/{run_id}",
        name="getRun",
        summary="One run: steps, messages, output, what it waits for.",
        handler=one_run,
        gives={200: RunView},
        refuses=(404,),
    ),
    Endpoint(
        method="POST",
        path="/runs/{run_id}/cancel",
        name="cancelRun",
        summary="Stop the run; it can be resumed.",
        handler=cancel_run,
        body=Nothing,
        gives={202: CancelView},
        refuses=(404, 409),
    ),
    Endpoint(
        method="GET",
        path="/runs/{run_id}/events",
        name="followRun",
        summary="The run's events: those that are stored, then the live ones, until it ends.",
        handler=run_events,
        query=After,
        headers={LAST_EVENT_ID: "Go on behind this event."},
        gives={200: EventData},
        refuses=(404,),
    ),
)
