"""Recorded runs: resume, retry, rollback, and the picture of a run."""

from __future__ import annotations

from http import HTTPStatus

from attrs import field, frozen
from litestar import Router, get, post

from minions.analysis.pictures.picture import picture_of
from minions.data.errors import NotFoundError, UsageError
from minions.engine.run.agent_run import AgentRun
from minions.engine.sessions.rollback import roll_back_run
from minions.interfaces.http.problems import RefusedError
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.documents.common import MAYBE_TEXT, JsonObject
from minions.interfaces.server.documents.runs import (
    RollbackRequest,
    RollbackView,
    RunAccepted,
)
from minions.interfaces.server.endpoints import (
    ApiRequest,
    ApiResponse,
    Asked,
    Body,
    InPath,
    refuses,
)
from minions.interfaces.server.live.run_starter import StartedRun
from minions.interfaces.server.routes.recipes import PICTURE_TYPES, PictureForm, picture_answer
from minions.interfaces.server.routes.run_views import find_exact
from minions.interfaces.server.routes.runs import accepted
from minions.recipe.tool_specs import tool_specs


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
    return await _started(request, await runtime.resumed(recorded, note=note))


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
    return await _started(request, run)


@post("/rollback", status_code=200, responses=refuses(404, 409), needs=TokenScope.ADMIN)
async def roll_back_files(
    request: ApiRequest, run_id: InPath, data: Body[RollbackRequest]
) -> RollbackView:
    """Restore the files that the run changed, as far as its tools recorded it."""
    runtime = request.app_state.runtime
    recorded = await runtime.recorded(await _idle(request, run_id), of_any_folder=True)
    report = await roll_back_run(runtime.services, recorded.run_id, dry_run=data.dry_run)
    return RollbackView.of(report)


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


async def _started(request: ApiRequest, run: AgentRun) -> ApiResponse[RunAccepted]:
    await request.app_state.run_manager.begin(run)
    return await accepted(request, StartedRun(run.run_id, run.session_id))


RESUMPTIONS = Router(
    "/runs/{run_id:str}", route_handlers=[resume_run, retry_run, roll_back_files, draw_run]
)
