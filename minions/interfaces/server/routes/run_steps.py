"""`/runs/{run_id}/steps` and `/items`: one step of a run, and the items of a loop."""

from __future__ import annotations

from litestar import Router, get

from minions.contracts.errors import NotFoundError
from minions.engine.history.run_items import ItemSummary, ItemTotals, items_of_run
from minions.engine.history.run_steps import step_of_run
from minions.interfaces.server.documents.steps import (
    ItemRow,
    Items,
    ItemsPage,
    ItemTotalsView,
    StepAddress,
    StepView,
)
from minions.interfaces.server.endpoints import ApiRequest, Asked, InPath, refuses
from minions.interfaces.server.routes.run_views import find_exact, prompt_view, step_view

__all__ = ["RUN_STEPS", "totals_view"]


@get("/items", responses=refuses(404))
async def list_run_items(request: ApiRequest, run_id: InPath, asked: Asked[ItemsPage]) -> Items:
    """List the items of a loop, by index; none where the run has no such loop."""
    journal = request.app_state.journal
    found = await items_of_run(journal, await find_exact(journal, run_id), asked.step)
    wanted = [each for each in found.items if asked.status in (None, each.status)]
    part = wanted[asked.offset : asked.offset + asked.limit]
    return Items(
        items=tuple(_row(asked.step, each) for each in part),
        totals=totals_view(found.totals),
        total=len(wanted),
        limit=asked.limit,
        offset=asked.offset,
    )


@get("/steps", responses=refuses(404))
async def get_run_step(request: ApiRequest, run_id: InPath, asked: Asked[StepAddress]) -> StepView:
    """One step or one item of a loop: output, messages, sections of its prompts."""
    journal = request.app_state.journal
    found = await step_of_run(journal, await find_exact(journal, run_id), asked.address)
    if found is None:
        raise NotFoundError(
            f"Run '{run_id}' has recorded no step '{asked.address[:100]}'.", code="unknown-step"
        )
    return StepView(
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


RUN_STEPS = Router("/runs/{run_id:str}", route_handlers=[list_run_items, get_run_step])
