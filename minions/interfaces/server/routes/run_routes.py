"""`/runs`: begin, plan, list, read, mark, export, follow and cancel runs, and read their steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Final

from attrs import evolve
from litestar import Router, get, post
from msgspec.structs import replace

from minions.app.pages.run_page import load_run_page
from minions.contracts.executions import RunStatus
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.run_rows import RunFilter
from minions.data.codec import encode
from minions.data.errors import NotFoundError, UsageError
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue
from minions.engine.history.current_rows import current_rows
from minions.engine.services.event_loop import beside
from minions.engine.sessions.cancellation import cancel_run as cancel_from_outside
from minions.engine.sessions.marking import mark_run
from minions.engine.views.lookup import page_of_runs
from minions.engine.views.run_items import ItemSummary, ItemTotals, items_of_run
from minions.engine.views.run_query import run_filter_of
from minions.engine.views.run_search import hits_in
from minions.engine.views.run_summary import RunSummary
from minions.engine.views.step_details import step_of_run
from minions.interfaces.http.http_answers import (
    EVENT_STREAM,
    NoContent,
    RefusedError,
    json_bytes_in_parts,
)
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.documents.run_documents import (
    CancelView,
    ItemRow,
    Items,
    ItemsPage,
    ItemTotalsView,
    MarkRequest,
    MarkView,
    PlanRequest,
    RunAccepted,
    RunParts,
    RunRequest,
    Runs,
    RunsPage,
    RunStepView,
    RunView,
    SearchHits,
    SearchHitView,
    SearchQuery,
    StepAddress,
)
from minions.interfaces.server.documents.shared_documents import (
    After,
    ValueAddress,
    ValueView,
    cut_at,
    most_counted,
    value_at,
)
from minions.interfaces.server.endpoint_parts import (
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
from minions.interfaces.server.live.server_runs import RequestedRun, StartedRun
from minions.interfaces.server.routes.run_views import (
    RUN_VALUES,
    find_exact,
    links_of,
    position_after,
    prompt_view,
    run_row,
    run_view,
    step_view,
)
from minions.interfaces.server.routes.session_routes import user_in
from minions.planning.plan_json import Sharing
from minions.planning.step_executor import PlanChoices, step_executor_document
from minions.recipe.reading.load import recipe_from_document


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
        token=request.caller.name,
        by=data.by,
        patience=data.patience,
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
    wanted = run_filter_of(asked.q or "", app_state.runtime.services.clock.now(), wanted)
    if request.owner is not None:
        if wanted.user not in (None, request.owner):
            return Runs(
                runs=(), total=0, total_is_minimum=False, limit=asked.limit, offset=asked.offset
            )
        wanted = replace(wanted, user=request.owner)
    most = most_counted(asked.limit, asked.offset)

    found, total = await app_state.journal.read_lists(
        lambda journal: page_of_runs(
            journal, wanted, limit=asked.limit, offset=asked.offset, at_most=most
        )
    )
    return Runs(
        runs=tuple(run_row(request, run) for run in found),
        total=total,
        total_is_minimum=total == most,
        limit=asked.limit,
        offset=asked.offset,
    )


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
    return CancelView(run_id=run_id, status=await cancel_recorded(request, run))


async def cancel_recorded(request: ApiRequest, run: RunSummary) -> str:
    """Cancel a run, whichever process executes it; its state then.

    Raises:
        RefusedError: `run-over`.
    """
    run_id = run.run_id
    if request.app_state.run_manager.cancel(run_id):
        return (await find_exact(request, run_id)).status
    if not run.has_ended or run.status == RunStatus.NEEDS_DECISION:
        services = request.app_state.runtime.services
        cancelled = await cancel_from_outside(
            evolve(services, worker_id=f"cancel@{services.worker_id}"), run_id
        )
        return cancelled.status
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


# --- `/runs/{run_id}/steps` and `/items` ---------------------------------------------------------


_STEP_VALUES: Final = (
    "/step/output",
    "/step/facts",
    "/messages/*/content",
    "/messages/*/tool_calls",
)
"""The places of a `RunStepView` that may hold large values."""


@get("/items", responses=refuses(404, 409), needs=TokenScope.READ)
async def list_run_items(request: ApiRequest, run_id: InPath, asked: Asked[ItemsPage]) -> Items:
    """List the items of a loop, by index; none where the run has no such loop."""
    journal = request.app_state.journal
    threads = request.app_state.threads
    run = await find_exact(request, run_id)
    found = await items_of_run(journal, run, asked.step, threads=threads)

    def page() -> Items:
        wanted = [each for each in found.items if asked.status in (None, each.status)]
        part = wanted[asked.offset : asked.offset + asked.limit]
        return Items(
            items=tuple(_row(asked.step, each) for each in part),
            totals=totals_view(found.totals),
            total=len(wanted),
            limit=asked.limit,
            offset=asked.offset,
        )

    return await beside(threads, len(found.items), page)


@get("/steps", responses=refuses(404, 409), needs=TokenScope.READ)
async def get_run_step(
    request: ApiRequest, run_id: InPath, asked: Asked[StepAddress]
) -> ApiResponse[RunStepView]:
    """One step or one item of a loop: output, messages, sections of its prompts."""
    view = await _step(request, run_id, asked.address)
    if (most := asked.cut) is None:
        return answer(view)
    threads = request.app_state.threads
    return answer(
        await beside(threads, is_large(view), lambda: cut_at(encode(view), _STEP_VALUES, most))
    )


@get("/value", responses=refuses(404, 409), needs=TokenScope.READ)
async def get_run_value(
    request: ApiRequest, run_id: InPath, asked: Asked[ValueAddress]
) -> ValueView:
    """One value of a run or a step in whole, which `?cut=` had cut."""
    if asked.address is None:
        run = await find_exact(request, run_id)
        view: object = await run_view(request, run)
    else:
        view = await _step(request, run_id, asked.address)
    try:
        threads = request.app_state.threads
        value = await beside(threads, is_large(view), lambda: value_at(encode(view), asked.at))
        return ValueView(value=value)
    except LookupError as error:
        raise NotFoundError(
            f"There is no value '{asked.at[:100]}'. `path` of a cut part names one.",
            code="unknown-value",
        ) from error


async def _step(request: ApiRequest, run_id: str, address: str) -> RunStepView:
    journal = request.app_state.journal
    run = await find_exact(request, run_id)
    found = await step_of_run(journal, run, address, threads=request.app_state.threads)
    if found is None:
        raise NotFoundError(
            f"Run '{run_id}' has recorded no step '{address[:100]}'.", code="unknown-step"
        )
    return RunStepView(
        step=step_view(found.summary),
        messages=found.messages,
        prompts=tuple(map(prompt_view, found.prompts)),
    )


def totals_view(totals: ItemTotals) -> ItemTotalsView:
    """The totals of a loop for a response."""
    return ItemTotalsView(
        total=totals.total,
        ended=totals.ended,
        failed=totals.failed,
        usage=totals.usage.to_json(),
    )


def _row(step_id: str, item: ItemSummary) -> ItemRow:
    return ItemRow(
        index=item.index,
        address=f"{step_id}[{item.index}]",
        status=item.status,
        words=item.words,
        error=item.error,
        usage=item.usage.to_json(),
        duration_ms=item.duration_ms,
        model_calls=item.model_calls,
        tool_calls=item.tool_calls,
    )


RUN_STEPS = Router(
    "/runs/{run_id:str}", route_handlers=[list_run_items, get_run_step, get_run_value]
)


# --- `/runs/{run_id}/search`, `/journal`, `/export.html` -----------------------------------------


_LINES: Final = "application/x-ndjson"
_HTML: Final = "text/html"


@get("/search", responses=refuses(404, 409), needs=TokenScope.READ)
async def search_run(request: ApiRequest, run_id: InPath, asked: Asked[SearchQuery]) -> SearchHits:
    """Search a text in the prompts, answers, calls, outputs and errors of a run."""
    journal = request.app_state.journal
    run = await find_exact(request, run_id)
    rows = await journal.entries(run.session_id, run_id=run.run_id)
    found = await request.app_state.threads.run(
        lambda: hits_in(current_rows(rows), asked.text, asked.limit + 1)
    )
    shown = found[: asked.limit]
    return SearchHits(
        hits=tuple(
            SearchHitView(
                address=each.address,
                part=each.part,
                before=each.before,
                match=each.match,
                after=each.after,
            )
            for each in shown
        ),
        has_more=len(found) > len(shown),
    )


@get("/journal", media_type=_LINES, responses=refuses(404, 409), needs=TokenScope.READ)
async def get_run_journal(request: ApiRequest, run_id: InPath) -> ApiResponse[str]:
    """All entries of the run's journal as JSON lines, those of superseded executions, too."""
    journal = request.app_state.journal
    run = await find_exact(request, run_id)
    rows = await journal.entries(run.session_id, run_id=run.run_id)
    lines = await request.app_state.threads.run(lambda: b"".join(_lines(rows)))
    return _file(lines, _LINES, f"{run.run_id}.jsonl")


def _lines(rows: Sequence[JournalEntry]) -> Iterator[bytes]:
    for row in rows:
        line: dict[str, JsonValue] = {
            "position": row.position,
            "generation": row.generation,
            "at": row.at.isoformat(),
            "kind": row.kind,
            "state": row.state,
            "key": row.key,
            "body": row.body,
        }
        yield json_bytes_in_parts(line) + b"\n"


@get("/export.html", media_type=_HTML, responses=refuses(404, 409), needs=TokenScope.READ)
async def export_run(request: ApiRequest, run_id: InPath) -> ApiResponse[str]:
    """The run as one HTML file without scripts, to send to somebody; secrets are masked."""
    app_state = request.app_state
    run = await find_exact(request, run_id)
    runtime = app_state.runtime
    source = runtime.services.secrets
    threads = app_state.threads
    page = await load_run_page(app_state.journal, run, runtime.catalog, source, threads=threads)
    html = await threads.run(lambda: page.html().encode())
    return _file(html, f"{_HTML}; charset=utf-8", f"{run.run_id}.html")


def _file(data: bytes, media_type: str, name: str) -> ApiResponse[str]:
    """A response that browsers store under that name, and never show within the page's origin."""
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return answer(data, media_type=media_type, headers=headers)


RUN_EXPORTS = Router("/runs/{run_id:str}", route_handlers=[search_run, get_run_journal, export_run])


# --- `/runs/{run_id}/marks` ----------------------------------------------------------------------


@post("/marks", status_code=201, responses=refuses(404, 409), needs=TokenScope.DECIDE)
async def mark_output(request: ApiRequest, run_id: InPath, data: Body[MarkRequest]) -> MarkView:
    """Mark the outputs of the run, or of one of its steps, as good or bad; the last mark counts."""
    app_state = request.app_state
    run = await find_exact(request, run_id)
    if app_state.run_manager.find(run.run_id) is not None:
        raise RefusedError(
            HTTPStatus.CONFLICT, "run-active", f"Run '{run.run_id}' is being executed."
        )
    by = request.caller.decides_as(data.by)
    try:
        entry = await mark_run(
            app_state.runtime.services,
            run.run_id,
            data.verdict,
            address=data.address,
            note=data.note,
            by=by,
        )
    except NotFoundError as error:  # of the body, not of the path
        raise UsageError(
            error.message, code=error.error_code, suggestions=error.suggestions
        ) from error
    return MarkView(
        run_id=run.run_id,
        verdict=data.verdict,
        address=data.address,
        note=data.note,
        by=by,
        at=entry.at,
        position=entry.position,
    )


MARKS = Router("/runs/{run_id:str}", route_handlers=[mark_output])


# --- `/plans` ------------------------------------------------------------------------------------


@post(status_code=202, responses=refuses(403, 404, 409, 429), needs=TokenScope.RUN)
async def start_plan(
    request: ApiRequest, data: Body[PlanRequest], idempotency_key: IdempotencyKey = None
) -> ApiResponse[RunAccepted]:
    """Plan a task and carry the plan out, as a run that continues in the background.

    It waits for the answer to its plan under `/approvals`, unless `approval` is `none`.
    """
    state = request.app_state
    if data.approval == "none" and data.execute:
        request.caller.require(TokenScope.DECIDE, "a plan that is carried out without approval")
    workspace = _workspace(data.workspace, state.options.plan_workspaces)
    choices = PlanChoices(
        needs_approval=data.approval == "required",
        is_run=data.execute,
        share=Sharing(data.share),
        form=data.form,
        opens_named=False,  # what configures tools is the operator's
    )
    recipe = recipe_from_document(step_executor_document(choices), state.runtime.catalog)
    wanted = RequestedRun(
        recipe=recipe.id,
        made=state.runtime.bounded(recipe),
        inputs={
            "requirements": data.requirements,
            "workspace": workspace,
            "context": data.context or "",
        },
        session=data.session,
        user=await user_in(request, data.session, data.user),
        key=idempotency_key,
        owner=request.owner,
        token=request.caller.name,
    )
    return await accepted(request, await state.starter.begin(wanted))


def _workspace(asked: str | None, offered: Sequence[str]) -> str:
    """The folder without links: one that is offered, or below one.

    Raises:
        RefusedError: `plans-refused`: no folder is offered; `workspace-refused`: not this one.
    """
    if not offered:
        raise RefusedError(
            HTTPStatus.FORBIDDEN,
            "plans-refused",
            "This server makes no plans. `minions serve --plan-workspace DIR` offers a folder.",
        )
    folders = [os.path.realpath(each) for each in offered]
    if asked is None:
        return folders[0]
    if "\0" not in asked:
        found = os.path.realpath(os.path.join(folders[0], asked))  # noqa: PTH118
        if any(os.path.commonpath([found, each]) == each for each in folders):
            return found
    raise RefusedError(
        HTTPStatus.FORBIDDEN,
        "workspace-refused",
        "The workspace is not below a folder that this server offers for plans.",
    )


PLANS = Router("/plans", route_handlers=[start_plan], tags=["plans"])
"""Everything under `/plans`."""
