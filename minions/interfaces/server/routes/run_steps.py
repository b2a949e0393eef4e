"""`/runs/{run_id}/steps` and `/items`: one step of a run, and the items of a loop."""

from __future__ import annotations

from typing import Final

from litestar import Router, get

from minions.data.codec import encode
from minions.data.errors import NotFoundError
from minions.data.json_parts import is_large
from minions.engine.services.breathing import beside
from minions.engine.views.run_items import ItemSummary, ItemTotals, items_of_run
from minions.engine.views.run_steps import step_of_run
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.documents.cut_values import (
    ValueAddress,
    ValueView,
    cut_at,
    value_at,
)
from minions.interfaces.server.documents.steps import (
    ItemRow,
    Items,
    ItemsPage,
    ItemTotalsView,
    StepAddress,
    StepView,
)
from minions.interfaces.server.endpoints import (
    ApiRequest,
    ApiResponse,
    Asked,
    InPath,
    answer,
    refuses,
)
from minions.interfaces.server.routes.run_views import find_exact, prompt_view, run_view, step_view

_STEP_VALUES: Final = (
    "/step/output",
    "/step/facts",
    "/messages/*/content",
    "/messages/*/tool_calls",
)
"""The places of a `StepView` that may hold large values."""


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
) -> ApiResponse[StepView]:
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


async def _step(request: ApiRequest, run_id: str, address: str) -> StepView:
    journal = request.app_state.journal
    run = await find_exact(request, run_id)
    found = await step_of_run(journal, run, address, threads=request.app_state.threads)
    if found is None:
        raise NotFoundError(
            f"Run '{run_id}' has recorded no step '{address[:100]}'.", code="unknown-step"
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


RUN_STEPS = Router(
    "/runs/{run_id:str}", route_handlers=[list_run_items, get_run_step, get_run_value]
)
