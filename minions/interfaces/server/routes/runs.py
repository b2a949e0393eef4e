"""`/runs`: begin, list, read, follow and cancel runs."""

from __future__ import annotations

from http import HTTPStatus

from attrs import evolve
from litestar import Router, get, post

from minions.contracts.executions import RunStatus
from minions.contracts.journal.run_rows import RunFilter
from minions.data.codec import encode
from minions.data.json_parts import is_large
from minions.engine.services.breathing import beside
from minions.engine.sessions.cancellation import cancel_run as cancel_from_outside
from minions.engine.views.lookup import count_runs
from minions.engine.views.lookup import list_runs as recorded_runs
from minions.interfaces.http.problems import RefusedError
from minions.interfaces.http.responses import EVENT_STREAM, NoContent
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.documents.common import After
from minions.interfaces.server.documents.cut_values import cut_at
from minions.interfaces.server.documents.runs import (
    CancelView,
    RunAccepted,
    RunParts,
    RunRequest,
    Runs,
    RunsPage,
    RunView,
)
from minions.interfaces.server.endpoints import (
    ApiRequest,
    ApiResponse,
    Asked,
    Body,
    EventStream,
    IdempotencyKey,
    InPath,
    LastEventId,
    answer,
    refuses,
)
from minions.interfaces.server.live.run_starter import RequestedRun, StartedRun
from minions.interfaces.server.routes.run_views import (
    RUN_VALUES,
    find_exact,
    links_of,
    position_after,
    run_row,
    run_view,
)
from minions.interfaces.server.routes.sessions import user_in


@post(status_code=202, responses=refuses(404, 409, 429), needs=TokenScope.RUN)
async def start_run(
    request: ApiRequest, data: Body[RunRequest], idempotency_key: IdempotencyKey = None
) -> ApiResponse[RunAccepted]:
    """Start a run of a stored recipe; it continues in the background."""
    if data.recipe_text is not None:
        # Such a recipe says itself what needs approval: it would replace the scope `decide`.
        request.caller.require(TokenScope.ADMIN, "a recipe in the request")
    wanted = RequestedRun(
        recipe=data.recipe,
        recipe_text=data.recipe_text,
        inputs=data.inputs,
        session=data.session,
        user=await user_in(request, data.session, data.user),
        key=idempotency_key,
        owner=request.owner,
    )
    return await accepted(request, await request.app_state.starter.begin(wanted))


async def accepted(request: ApiRequest, begun: StartedRun) -> ApiResponse[RunAccepted]:
    """The response for a run that continues in the background."""
    run = await find_exact(request, begun.run_id)
    reply = RunAccepted(
        run_id=begun.run_id,
        session_id=begun.session_id,
        status=run.status,
        links=links_of(request, begun.run_id, begun.session_id),
    )
    headers = {"location": request.link(f"/runs/{begun.run_id}")}
    return ApiResponse(reply, headers=headers)


@get(needs=TokenScope.READ)
async def list_runs(request: ApiRequest, asked: Asked[RunsPage]) -> Runs:
    """List all runs, the newest first."""
    app_state = request.app_state
    wanted = RunFilter(
        recipe=asked.recipe,
        statuses=None if asked.status is None else {asked.status},
        session_id=asked.session,
        user=asked.user,
        project=asked.project,
        text=asked.text,
    )
    if request.owner is not None:
        if asked.user not in (None, request.owner):
            return Runs(runs=(), total=0, limit=asked.limit, offset=asked.offset)
        wanted = evolve(wanted, user=request.owner)
    found = await recorded_runs(
        app_state.journal, wanted=wanted, limit=asked.limit, offset=asked.offset
    )
    rows = tuple(run_row(request, run) for run in found)
    total = await count_runs(app_state.journal, wanted)
    return Runs(runs=rows, total=total, limit=asked.limit, offset=asked.offset)


@get("/{run_id:str}", responses=refuses(404, 409), needs=TokenScope.READ)
async def get_run(
    request: ApiRequest, run_id: InPath, asked: Asked[RunParts]
) -> ApiResponse[RunView]:
    """One run: steps, messages, output, pending decisions."""
    run = await find_exact(request, run_id)
    view = await run_view(request, run)
    if asked.parts == "steps":
        view = evolve(view, messages=(), prompts=())
    if (most := asked.cut) is None:
        return answer(view)
    threads = request.app_state.threads
    return answer(
        await beside(threads, is_large(view), lambda: cut_at(encode(view), RUN_VALUES, most))
    )


@post("/{run_id:str}/cancel", status_code=202, responses=refuses(404, 409), needs=TokenScope.RUN)
async def cancel_run(request: ApiRequest, run_id: InPath) -> CancelView:
    """Cancel the run; it can be resumed."""
    run = await find_exact(request, run_id)
    if request.app_state.run_manager.cancel(run_id):
        run = await find_exact(request, run_id)
        return CancelView(run_id=run_id, status=run.status)
    if not run.has_ended or run.status == RunStatus.NEEDS_DECISION:
        services = request.app_state.runtime.services
        cancelled = await cancel_from_outside(
            evolve(services, worker_id=f"cancel@{services.worker_id}"), run_id
        )
        return CancelView(run_id=run_id, status=cancelled.status)
    raise RefusedError(
        HTTPStatus.CONFLICT, "run-over", f"Run '{run_id}' has ended: it is {run.status}."
    )


@get(
    "/{run_id:str}/events",
    media_type=EVENT_STREAM,
    responses=refuses(404, 409),
    needs=TokenScope.READ,
)
async def follow_run(
    request: ApiRequest,
    run_id: InPath,
    asked: Asked[After],
    last_event_id: LastEventId = None,
) -> EventStream:
    """The run's events: first the stored ones, then live ones until it ends or waits."""
    app_state = request.app_state
    after = position_after(asked, last_event_id)
    run = await find_exact(request, run_id)
    if await app_state.has_all(run, after):
        return NoContent()
    return await app_state.stream(
        run.session_id, run_id=run.run_id, after=after, caller=request.caller.name
    )


RUNS = Router("/runs", route_handlers=[start_run, list_runs, get_run, cancel_run, follow_run])
