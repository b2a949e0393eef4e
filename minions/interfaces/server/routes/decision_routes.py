"""`/approvals`: pending decisions, and how they are made. Runs resumed, retried and rolled back.
`/health`, `/system`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

from attrs import field, frozen
from litestar import Router, get, post

from minions import __version__
from minions.analysis.pictures.picture import picture_of
from minions.contracts.decision_types import word_of
from minions.contracts.executions import RunState
from minions.contracts.journal.run_rows import RunFilter
from minions.data.errors import MinionsError, NotFoundError, UsageError
from minions.data.patterns import match_beside_loop
from minions.engine.run.agent_run import AgentRun
from minions.engine.sessions.rollback import roll_back_run
from minions.engine.views.lookup import count_runs, list_runs
from minions.interfaces.http.http_answers import EVENT_STREAM, RefusedError
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.decision_views import (
    all_waiting,
    decision_of,
    find_waiting,
    made_already,
    named_by,
    unknown_approval,
    waiting_at,
)
from minions.interfaces.server.documents.run_documents import (
    Approvals,
    ApprovalsPage,
    ApprovalView,
    CaptureRequest,
    CaptureView,
    DecisionRequest,
    RollbackRequest,
    RollbackView,
    RunAccepted,
    RunDecisionRequest,
    id_of,
    run_of,
)
from minions.interfaces.server.documents.shared_documents import (
    MAYBE_TEXT,
    CallerView,
    Health,
    JsonObject,
    Ready,
    SystemView,
)
from minions.interfaces.server.endpoint_parts import (
    ApiRequest,
    ApiResponse,
    Asked,
    Body,
    EventStream,
    InPath,
    refuses,
)
from minions.interfaces.server.live.server_runs import StartedRun
from minions.interfaces.server.routes.recipe_routes import (
    PICTURE_TYPES,
    PictureForm,
    picture_answer,
)
from minions.interfaces.server.routes.run_routes import accepted
from minions.interfaces.server.routes.run_views import find_exact
from minions.recipe.permissions import tool_specs

_READY_S: Final = 5.0
"""Seconds in which the database has to answer a question about readiness."""


@get(needs=TokenScope.READ)
async def list_approvals(request: ApiRequest, asked: Asked[ApprovalsPage]) -> Approvals:
    """List the decisions that runs wait for: approvals, questions, plans, budgets that ask, and
    calls in doubt.
    """
    state = request.app_state
    waiting = await all_waiting(
        state.journal,
        state.runtime.calls_in_doubt,
        user=request.owner,
        project=asked.project,
    )
    waiting = [
        each
        for each in waiting
        if asked.recipe in (None, each.recipe) and asked.kind in (None, each.kind)
    ]
    limit, offset = asked.limit, asked.offset
    part = tuple(waiting[offset : offset + limit])
    return Approvals(approvals=part, total=len(waiting), limit=limit, offset=offset)


@post(
    "/{approval_id:str}", status_code=202, responses=refuses(404, 409, 429), needs=TokenScope.DECIDE
)
async def decide(
    request: ApiRequest, approval_id: InPath, data: Body[DecisionRequest]
) -> ApiResponse[RunAccepted]:
    """Make a decision and resume the run; the first one counts."""
    app_state = request.app_state
    if request.owner is not None:
        wanted = RunFilter(user=request.owner)
        if not await list_runs(app_state.journal, run_id=run_of(approval_id), wanted=wanted):
            raise unknown_approval()
    run_id = run_of(approval_id)
    async with deciding(request, run_id, lambda key: id_of(run_id, key) == approval_id):
        in_doubt = app_state.runtime.calls_in_doubt
        view = await find_waiting(app_state.journal, approval_id, in_doubt)
        return await _decide(request, view, data)


@post(
    "/runs/{run_id:str}/decisions",
    status_code=202,
    responses=refuses(404, 409, 429),
    needs=TokenScope.DECIDE,
)
async def decide_run(
    request: ApiRequest, run_id: InPath, data: Body[RunDecisionRequest]
) -> ApiResponse[RunAccepted]:
    """Make a decision that the run waits for, named by its address, and resume the run."""
    app_state = request.app_state
    run = await find_exact(request, run_id)
    async with deciding(request, run.run_id, named_by(data.address)):
        in_doubt = app_state.runtime.calls_in_doubt
        run = await find_exact(request, run_id)  # as the decision before left it
        view = await waiting_at(app_state.journal, run, data.address, in_doubt)
        return await _decide(request, view, data)


@asynccontextmanager
async def deciding(
    request: ApiRequest, run_id: str, is_meant: Callable[[str], bool]
) -> AsyncIterator[None]:
    """Keep others from deciding about the run within the block, which resumes it.

    Args:
        is_meant: Whether the decision with that key is meant.
    Raises:
        RefusedError: `run-active`; `already-decided`, where the block finds nothing to decide.
    """
    state = request.app_state
    async with state.deciding.of(run_id):
        try:
            execution = state.run_manager.find(run_id)
            if execution is not None and execution.run.has_recorded_end:
                # Whoever follows it may know that it waits before its task is over.
                await asyncio.wait((execution.task,), timeout=_ENDING_S)
            if state.run_manager.find(run_id) is not None:
                raise RefusedError(
                    HTTPStatus.CONFLICT,
                    "run-active",
                    f"Run '{run_id}' is being executed; try again soon.",
                )
            yield
        except MinionsError as error:
            if error.error_code not in _TOO_LATE:
                raise
            raise await made_already(state.journal, run_id, is_meant) or error from error


_ENDING_S: Final = 5.0
"""Seconds in which an execution whose end is recorded has to be over."""
_TOO_LATE: Final = frozenset({"lease-held", "run-active", "run-went-on", "unknown-approval"})
"""Codes of errors that may mean that somebody else has decided."""


async def _decide(
    request: ApiRequest, view: ApprovalView, data: DecisionRequest
) -> ApiResponse[RunAccepted]:
    decision = await match_beside_loop(lambda: decision_of(view, data))
    run = await decided_run(request, view.run_id, {view.key: word_of(decision)}, data.by)
    await request.app_state.run_manager.begin(run)
    return await accepted(request, StartedRun(run.run_id, run.session_id))


async def decided_run(
    request: ApiRequest, run_id: str, decisions: Mapping[str, str], by: str | None = None
) -> AgentRun:
    """The run, prepared to be resumed with decisions.

    Args:
        decisions: The word of each, by the key of what waits.
        by: Who decides, as the request says it.
    Raises:
        MinionsError: It cannot be resumed here, or the caller may not decide.
    """
    app_state = request.app_state
    maker = request.caller.decision_maker(by)
    recorded = await app_state.runtime.recorded(run_id, of_any_folder=True)
    if recorded.run_id != run_id:
        raise NotFoundError(f"There is no run '{run_id}'.", code="unknown-run")
    try:
        return await app_state.runtime.resumed(
            recorded,
            decisions=decisions,
            decided_by=maker,
            note=app_state.runtime.note_of(recorded),
        )
    except UsageError as error:
        if (status := _NOT_TAKEN.get(error.error_code)) is None:
            raise
        raise RefusedError(status, error.error_code, error.message) from error


_NOT_TAKEN: Final = {
    "not-a-decider": HTTPStatus.FORBIDDEN,
    "approval-expired": HTTPStatus.CONFLICT,
}
"""Answers to decisions of somebody who may not decide, or not any more."""


@get("/health", security=[{}], needs=None)
async def get_health(request: ApiRequest) -> Health:
    """Whether the server answers; needs no token."""
    is_stopping = request.app_state.run_manager.is_closing
    return Health(status="stopping" if is_stopping else "ok", version=__version__)


@get("/ready", security=[{}], needs=None)
async def get_ready(request: ApiRequest) -> Ready:
    """Whether the server takes runs: its database answers; needs no token."""
    app_state = request.app_state
    if app_state.run_manager.is_closing:
        raise _not_ready("stopping", "The server is stopping.")
    try:
        async with asyncio.timeout(_READY_S):
            await app_state.journal.held_leases()
    except TimeoutError as error:
        message = f"The database has not answered within {_READY_S:g} s."
        raise _not_ready("database-slow", message) from error
    except MinionsError as error:  # its message may name the place of the database
        app_state.log.warning("not_ready", reason=error.message)
        raise _not_ready(error.error_code, "The database does not answer; see the log.") from error
    return Ready(status="ready")


def _not_ready(code: str, message: str) -> RefusedError:
    headers = {"retry-after": "5"}
    return RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, code, message, headers=headers)


@get("/system", needs=TokenScope.READ)
async def get_system(request: ApiRequest) -> SystemView:
    """The server's version, journal and load."""
    app_state = request.app_state
    return SystemView(
        version=__version__,
        journal=app_state.place,
        project=app_state.runtime.services.project if request.owner is None else None,
        project_name=app_state.options.project,
        started_at=app_state.started_at,
        active_runs=await _active_runs(request),
        max_runs=app_state.options.max_runs,
        followers=app_state.channels.count if request.owner is None else None,
        models=app_state.runtime.settings.caller_models,
        caller=CallerView(
            name=request.caller.name,
            is_user=request.caller.is_user,
            role=request.caller.role,
            scopes=tuple(sorted(request.caller.scopes)),
            user=request.caller.user,
            expires=request.caller.expires,
        ),
    )


async def _active_runs(request: ApiRequest) -> int:
    if request.owner is None:
        return request.app_state.run_manager.count
    wanted = RunFilter(user=request.owner, statuses={RunState.RUNNING})
    return await count_runs(request.app_state.journal, wanted)


@get("/changes", media_type=EVENT_STREAM, include_in_schema=False, needs=TokenScope.READ)
async def follow_changes(request: ApiRequest) -> EventStream:
    """Say that runs or pending decisions have changed; for lists that stay up to date."""
    return request.app_state.changes.follow(request.caller.name, request.owner)


APPROVALS = Router("/approvals", route_handlers=[list_approvals, decide])


# --- recorded runs -------------------------------------------------------------------------------


@frozen(kw_only=True)
class AgainRequest:
    """Which steps to run again."""

    from_step: str | None = field(default=None, metadata=MAYBE_TEXT)
    """This step and those after it, besides failed steps; None: failed steps only."""
    inputs: JsonObject = field(factory=dict)
    """Inputs that replace those of the run: steps that read them run again."""


@post("/resume", status_code=202, responses=refuses(404, 409, 429), needs=TokenScope.RUN)
async def resume_run(request: ApiRequest, run_id: InPath) -> ApiResponse[RunAccepted]:
    """Resume a run that was killed, cancelled or stopped."""
    runtime = request.app_state.runtime
    recorded = await runtime.recorded(await _idle(request, run_id), of_any_folder=True)
    note = runtime.note_of(recorded)
    return await _start(request, await runtime.resumed(recorded, note=note))


@post("/retry", status_code=202, responses=refuses(404, 409, 429), needs=TokenScope.RUN)
async def retry_run(
    request: ApiRequest, run_id: InPath, data: Body[AgainRequest]
) -> ApiResponse[RunAccepted]:
    """Retry failed steps, a step and all after it, or what reads other inputs."""
    runtime = request.app_state.runtime
    recorded = await runtime.recorded(await _idle(request, run_id), of_any_folder=True)

    def prepare() -> AgentRun:
        recipe = runtime.resumable_recipe(recorded)
        inputs = {**recorded.inputs, **data.inputs}
        executor = runtime.executor(recipe, inputs, note=recorded.note)
        return executor.prepare_retry(
            recorded,
            recipe=recipe,
            is_edited=False,
            from_step=data.from_step,
            inputs=data.inputs,
            note=runtime.note_of(recorded),
        )

    try:
        run = await runtime.prepared(recorded, prepare)
    except NotFoundError as error:  # of the body, not of the path
        raise UsageError(
            error.message, code=error.error_code, suggestions=error.suggestions
        ) from error
    return await _start(request, run)


@post("/rollback", status_code=200, responses=refuses(404, 409), needs=TokenScope.ADMIN)
async def roll_back_files(
    request: ApiRequest, run_id: InPath, data: Body[RollbackRequest]
) -> RollbackView:
    """Restore the files that the run changed, as far as its tools recorded it."""
    runtime = request.app_state.runtime
    recorded = await runtime.recorded(await _idle(request, run_id), of_any_folder=True)
    report = await roll_back_run(runtime.services, recorded.run_id, dry_run=data.dry_run)
    return RollbackView.of(report)


@post("/capture", status_code=200, responses=refuses(404, 409), needs=TokenScope.READ)
async def capture_run(
    request: ApiRequest, run_id: InPath, data: Body[CaptureRequest]
) -> CaptureView:
    """The recipe that does again what the run did, with its proof; nothing is stored."""
    from minions.analysis.pictures.svg import svg
    from minions.app.capturing.captures import capture_runs
    from minions.capture.recipe_writing import Surprise

    names = [await _idle(request, each) for each in dict.fromkeys((run_id, *data.runs))]
    found = await capture_runs(
        names,
        request.app_state.runtime.shared,
        recipe_id=data.recipe_id,
        answers=data.answers,
        accepts=data.accept,
        on_surprise=Surprise(data.on_surprise),
    )
    recipe, catalog = found.recipe, request.app_state.runtime.catalog
    if recipe is None:
        return CaptureView.of(found, None)
    picture = picture_of(recipe, tool_specs(recipe, catalog))
    return CaptureView.of(found, await request.app_state.threads.run(lambda: svg(picture)))


@get("/graph", responses=refuses(404, 409), texts=PICTURE_TYPES, needs=TokenScope.READ)
async def draw_run(
    request: ApiRequest, run_id: InPath, asked: Asked[PictureForm]
) -> ApiResponse[dict[str, object]]:
    """The graph of the run's own recipe."""
    runtime = request.app_state.runtime
    run = await find_exact(request, run_id)
    recorded = await runtime.recorded(run.run_id, of_any_folder=True)

    def draw() -> ApiResponse[dict[str, object]]:
        recipe = runtime.own_recipe(recorded)
        return picture_answer(picture_of(recipe, tool_specs(recipe, runtime.catalog)), asked)

    return await request.app_state.threads.run(draw)


async def _idle(request: ApiRequest, run_id: str) -> str:
    """The id of a run that this process does not execute now.

    Raises:
        NotFoundError: There is no such run.
        RefusedError: `run-active`.
    """
    run = await find_exact(request, run_id)
    if request.app_state.run_manager.find(run.run_id) is not None:
        raise RefusedError(
            HTTPStatus.CONFLICT, "run-active", f"Run '{run.run_id}' is being executed."
        )
    return run.run_id


async def _start(request: ApiRequest, run: AgentRun) -> ApiResponse[RunAccepted]:
    await request.app_state.run_manager.begin(run)
    return await accepted(request, StartedRun(run.run_id, run.session_id))


RESUMPTIONS = Router(
    "/runs/{run_id:str}",
    route_handlers=[resume_run, retry_run, roll_back_files, capture_run, draw_run],
)
