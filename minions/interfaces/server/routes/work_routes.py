"""`/workers`, `/queues`, `/schedules`: who executes queued runs, what waits, what is due when.
`/deployments`: which versions new runs get. `/batches`: what came of many lines. `/evaluations`:
what variants reached. `/costs`: what runs used over time.

All but costs counts the runs of all users: a token that sees one user's runs alone needs the scope
`all`.
"""

from __future__ import annotations

from typing import Final

from litestar import Router, get, post

from minions.app.runs.batch_records import batch_progress
from minions.contracts.journal.run_rows import RunFilter
from minions.data.errors import JournalError
from minions.engine.batches.lines import line_of
from minions.engine.views.lookup import count_runs, list_runs
from minions.engine.views.run_figures import Grouping, Period, RunFigures, read_figures
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.documents.shared_documents import Page
from minions.interfaces.server.documents.work_documents import (
    Batches,
    BatchItem,
    BatchItems,
    BatchItemsPage,
    BatchRow,
    CostsQuery,
    DeploymentRow,
    Deployments,
    EvaluationCases,
    EvaluationCasesPage,
    EvaluationRow,
    Evaluations,
    QueuedRow,
    QueuedRuns,
    QueueRow,
    Queues,
    ScheduleRow,
    Schedules,
    WorkerRow,
    Workers,
)
from minions.interfaces.server.endpoint_parts import ApiRequest, Asked, InPath, refuses


@get("/workers", needs=TokenScope.READ)
async def list_workers(request: ApiRequest, asked: Asked[Page]) -> Workers:
    """List the workers that are or were alive lately, with their load and version."""
    _check_owner(request, "workers")
    found = await request.app_state.work.workers()
    limit, offset = asked.limit, asked.offset
    part = tuple(map(WorkerRow.of, found[offset : offset + limit]))
    return Workers(workers=part, total=len(found), limit=limit, offset=offset)


@get("/queues", needs=TokenScope.READ)
async def list_queues(request: ApiRequest, asked: Asked[Page]) -> Queues:
    """List the queues, with their limits and the number of their runs."""
    _check_owner(request, "queues")
    state = request.app_state
    found = await state.work.queues(state.runtime.services.clock.now())
    limit, offset = asked.limit, asked.offset
    part = tuple(map(QueueRow.of, found[offset : offset + limit]))
    return Queues(queues=part, total=len(found), limit=limit, offset=offset)


@get("/queues/runs", needs=TokenScope.READ)
async def list_queued_runs(request: ApiRequest, asked: Asked[Page]) -> QueuedRuns:
    """List the runs that wait in queues, those that wait longest first, and why."""
    _check_owner(request, "queues")
    state = request.app_state
    limit, offset = asked.limit, asked.offset
    now = state.runtime.services.clock.now()
    found, total = await state.work.queued(now, limit=limit, offset=offset)
    part = tuple(map(QueuedRow.of, found))
    return QueuedRuns(runs=part, total=total, limit=limit, offset=offset)


@get("/batches", needs=TokenScope.READ)
async def list_batches(request: ApiRequest, asked: Asked[Page]) -> Batches:
    """List the batches, the newest first, with what came of their lines."""
    _check_owner(request, "batches")
    state, limit, offset = request.app_state, asked.limit, asked.offset
    records, total = await state.batches.page(limit, offset)
    part = [BatchRow.of(await batch_progress(state.journal, each)) for each in records]
    return Batches(batches=tuple(part), total=total, limit=limit, offset=offset)


@get("/batches/{batch_id:str}", responses=refuses(404), needs=TokenScope.READ)
async def get_batch(
    request: ApiRequest, batch_id: InPath, asked: Asked[BatchItemsPage]
) -> BatchItems:
    """One batch with a part of its runs, those that started last first."""
    _check_owner(request, "batches")
    state, limit, offset = request.app_state, asked.limit, asked.offset
    record = await state.batches.find(batch_id)
    names = f"run_{record.id}"
    statuses = None if asked.status is None else {asked.status}
    wanted = RunFilter(id_start=names, statuses=statuses)
    runs = await list_runs(state.journal, wanted=wanted, limit=limit, offset=offset)
    items = [
        BatchItem(
            line=line_of(run.run_id),
            run_id=run.run_id,
            status=run.status,
            about=run.input_words,
            started_at=run.started_at,
            finished_at=run.finished_at,
            usage=run.usage,
            problem=run.problem,
        )
        for run in runs
    ]
    return BatchItems(
        batch=BatchRow.of(await batch_progress(state.journal, record)),
        items=tuple(items),
        total=await count_runs(state.journal, wanted),
        limit=limit,
        offset=offset,
    )


@get("/evaluations", needs=TokenScope.READ)
async def list_evaluations(request: ApiRequest, asked: Asked[Page]) -> Evaluations:
    """List the evaluations, the newest first: what each variant reached."""
    _check_owner(request, "evaluations")
    limit, offset = asked.limit, asked.offset
    records, total = await request.app_state.evaluations.page(limit, offset)
    rows = tuple(map(EvaluationRow.of, records))
    return Evaluations(evaluations=rows, total=total, limit=limit, offset=offset)


@get("/evaluations/{evaluation_id:str}", responses=refuses(404), needs=TokenScope.READ)
async def get_evaluation(
    request: ApiRequest, evaluation_id: InPath, asked: Asked[EvaluationCasesPage]
) -> EvaluationCases:
    """One evaluation with a part of its cases, in their order."""
    _check_owner(request, "evaluations")
    limit, offset = asked.limit, asked.offset
    state = request.app_state
    record = await state.evaluations.find(evaluation_id)
    cases = await state.evaluations.cases(record.id, state.threads)
    found = [each for each in cases if asked.shows(each)]
    return EvaluationCases(
        evaluation=EvaluationRow.of(record),
        cases=tuple(found[offset : offset + limit]),
        total=len(found),
        limit=limit,
        offset=offset,
    )


@get("/costs", needs=TokenScope.READ)
async def get_costs(request: ApiRequest, asked: Asked[CostsQuery]) -> RunFigures:
    """Costs, tokens, failures and times of runs over time, by recipe, model, user or project."""
    state = request.app_state
    wanted = RunFilter(recipe=asked.recipe, project=asked.project, user=request.owner)
    period, by, now = Period(asked.period), Grouping(asked.by), state.runtime.services.clock.now()
    return await state.journal.read_lists(
        lambda journal: read_figures(journal, period, by, now, wanted, state.threads)
    )


@get("/schedules", needs=TokenScope.READ)
async def list_schedules(request: ApiRequest, asked: Asked[Page]) -> Schedules:
    """List the schedules: when each is due next, what became of its last run, what was left out."""
    _check_owner(request, "schedules")
    state, limit, offset = request.app_state, asked.limit, asked.offset
    now = state.runtime.services.clock.now()
    names = await state.schedules.names()
    part = [
        ScheduleRow.of(await state.schedules.listed(state.journal, name), now)
        for name in names[offset : offset + limit]
    ]
    return Schedules(schedules=tuple(part), total=len(names), limit=limit, offset=offset)


@get("/deployments", needs=TokenScope.READ)
async def list_deployments(request: ApiRequest, asked: Asked[Page]) -> Deployments:
    """List the deployments: which version new runs get, the canary, and what was decided last."""
    _check_owner(request, "deployments")
    store, limit, offset = request.app_state.deployments, asked.limit, asked.offset
    names = await store.names()
    part = list[DeploymentRow]()
    for name in names[offset : offset + limit]:
        try:
            found = await store.find(name)
        except JournalError as error:
            part.append(DeploymentRow.damaged(name, error.message))
        else:  # None: it was removed meanwhile
            part += [] if found is None else [DeploymentRow.of(found)]
    return Deployments(deployments=tuple(part), total=len(names), limit=limit, offset=offset)


@post(
    "/schedules/{schedule:str}/pause",
    status_code=200,
    responses=refuses(404, 409),
    needs=TokenScope.ADMIN,
)
async def pause_schedule(request: ApiRequest, schedule: InPath) -> ScheduleRow:
    """Start no more runs of the schedule until it is resumed; times meanwhile are left out."""
    return await _set_paused(request, schedule, is_paused=True)


@post(
    "/schedules/{schedule:str}/resume",
    status_code=200,
    responses=refuses(404, 409),
    needs=TokenScope.ADMIN,
)
async def resume_schedule(request: ApiRequest, schedule: InPath) -> ScheduleRow:
    """Start runs of the schedule again, from its next due time on."""
    return await _set_paused(request, schedule, is_paused=False)


async def _set_paused(request: ApiRequest, name: str, *, is_paused: bool) -> ScheduleRow:
    _check_owner(request, "schedules")
    state = request.app_state
    now = state.runtime.services.clock.now()
    await state.schedules.set_paused(name, is_paused=is_paused, now=now)
    return ScheduleRow.of(await state.schedules.listed(state.journal, name), now)


def _check_owner(request: ApiRequest, what: str) -> None:
    """Refuse a caller who sees one user's runs alone.

    Raises:
        RefusedError: `missing-scope`.
    """
    if request.owner is not None:
        request.caller.require(TokenScope.ALL, what)


WORK: Final = Router(
    "/",
    route_handlers=[
        list_workers,
        list_queues,
        list_queued_runs,
        list_batches,
        get_batch,
        list_evaluations,
        get_evaluation,
        get_costs,
        list_deployments,
        list_schedules,
        pause_schedule,
        resume_schedule,
    ],
)
