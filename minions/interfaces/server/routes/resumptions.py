"""Runs that go on, or are looked at, after they ended: resume, retry, their own picture."""

from __future__ import annotations

from http import HTTPStatus

from attrs import field, frozen

from minions.analysis.pictures.picture import picture_of
from minions.analysis.tool_specs import tool_specs
from minions.engine.run.agent_run import AgentRun
from minions.interfaces.server.documents.common import MAYBE_TEXT
from minions.interfaces.server.documents.runs import RunAccepted
from minions.interfaces.server.endpoints import Call, Endpoint, Nothing
from minions.interfaces.server.http.problems import RefusedError
from minions.interfaces.server.http.responses import AsgiApp
from minions.interfaces.server.live.run_starter import StartedRun
from minions.interfaces.server.routes.recipes import PICTURE_TYPES, PictureForm, picture_answer
from minions.interfaces.server.routes.run_views import find_exact
from minions.interfaces.server.routes.runs import accepted

__all__ = ["RESUMPTION_ENDPOINTS"]


@frozen(kw_only=True)
class AgainRequest:
    """Which steps run again."""

    from_step: str | None = field(default=None, metadata=MAYBE_TEXT)
    """This one and those after it, too; None: those that failed."""


async def resume_run(call: Call[Nothing, Nothing]) -> AsgiApp:
    """Go on with what was killed, cancelled or stopped by a limit; nothing is done twice."""
    runtime = call.app_state.runtime
    recorded = await runtime.recorded(await _idle(call))
    recipe = runtime.own_recipe(recorded)
    executor = runtime.executor(recipe, recorded.inputs, note=recorded.note)
    return await _begun(call, executor.prepare_resume(recorded, recipe=recipe))


async def retry_run(call: Call[Nothing, AgainRequest]) -> AsgiApp:
    """Run failed steps again, and what reads them."""
    runtime = call.app_state.runtime
    recorded = await runtime.recorded(await _idle(call))
    recipe = runtime.own_recipe(recorded)
    executor = runtime.executor(recipe, recorded.inputs, note=recorded.note)
    run = executor.prepare_retry(
        recorded, recipe=recipe, is_edited=False, from_step=call.body.from_step
    )
    return await _begun(call, run)


async def run_graph(call: Call[PictureForm, None]) -> AsgiApp:
    """The steps of the recipe that travels with the run, whatever became of its file."""
    runtime = call.app_state.runtime
    run = await find_exact(call.app_state.journal, call.path["run_id"])
    recorded = await runtime.recorded(run.run_id)
    recipe = runtime.own_recipe(recorded)
    picture = picture_of(recipe, tool_specs(recipe, runtime.extensions.catalog()))
    return picture_answer(picture, call.query)


async def _idle(call: Call[object, object]) -> str:
    """The id of a run that does not go on here.

    Raises:
        NotFoundError: There is none.
        RefusedError: It does.
    """
    run = await find_exact(call.app_state.journal, call.path["run_id"])
    if call.app_state.run_manager.find(run.run_id) is not None:
        raise RefusedError(
            HTTPStatus.CONFLICT, "run-active", f"Run '{run.run_id}' goes on just now."
        )
    return run.run_id


async def _begun(call: Call[Nothing, object], run: AgentRun) -> AsgiApp:
    await call.app_state.run_manager.begin(run)
    return await accepted(call, StartedRun(run.run_id, run.session_id))


RESUMPTION_ENDPOINTS = (
    Endpoint(
        method="POST",
        path="/runs/{run_id}/resume",
        name="resumeRun",
        summary="Go on with a run that was killed, cancelled or stopped.",
        handler=resume_run,
        body=Nothing,
        gives={202: RunAccepted},
        refuses=(404, 409, 429),
    ),
    Endpoint(
        method="POST",
        path="/runs/{run_id}/retry",
        name="retryRun",
        summary="Run again what failed, or from a step on.",
        handler=retry_run,
        body=AgainRequest,
        gives={202: RunAccepted},
        refuses=(404, 409, 429),
    ),
    Endpoint(
        method="GET",
        path="/runs/{run_id}/graph",
        name="drawRun",
        summary="The steps of the run's own recipe and what waits for what.",
        handler=run_graph,
        query=PictureForm,
        gives={200: dict[str, object]},
        media_types=PICTURE_TYPES,
        refuses=(404,),
    ),
)
