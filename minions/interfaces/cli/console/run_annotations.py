"""A run's failures as annotations of a workflow."""

from __future__ import annotations

from collections.abc import Iterator

from minions.contracts.executions import AgentResult, StepExecution, StepStatus
from minions.data.errors import FailureInfo
from minions.interfaces.cli.console.counted_executions import (
    GOOD_STATUSES,
    counted_executions,
    error_of,
)
from minions.interfaces.cli.console.fault_reports import workflow_command
from minions.recipe.model import AgentRecipe, StepSpec, Where


def run_annotations(result: AgentResult[object], recipe: AgentRecipe) -> Iterator[str]:
    """A line for each failure, at the step's place in its recipe; innermost failures only.

    Failures in spite of which the work continued are warnings.
    """
    is_told = False
    for execution, is_passed_over in counted_executions(result):
        if execution.status is not StepStatus.FAILED or _has_failed_within(execution):
            continue
        is_told |= not is_passed_over
        level = "warning" if is_passed_over else "error"
        yield _annotation(level, recipe, execution.address, error_of(execution))
    if result.status not in GOOD_STATUSES and not is_told and result.error is not None:
        yield _annotation("error", recipe, "", result.error)


def _has_failed_within(execution: StepExecution[object]) -> bool:
    inner = (*execution.iterations, *execution.steps)
    return any(each.status is StepStatus.FAILED for each in inner)


def _annotation(level: str, recipe: AgentRecipe, address: str, error: FailureInfo) -> str:
    place = _place(recipe, address)
    where = {"file": place.file, "line": str(place.line)} if place is not None else {}
    what = f"step '{address}'" if address else "the run"
    return workflow_command(
        level, {**where, "title": error.code}, f"{what} of '{recipe.id}': {error.message}"
    )


def _place(recipe: AgentRecipe, address: str) -> Where | None:
    """Where the step stands, or the outermost step around it whose recipe is known; None: it was
    made by code.
    """
    place: Where | None = None
    within: AgentRecipe | None = recipe
    for name in address.split("/"):
        step = _step(within, name.partition("[")[0]) if within is not None else None
        if step is None:
            break
        place, within = step.where, step.inner
    if place is None and recipe.document is not None:
        first = next((each for each in recipe.steps if isinstance(each, StepSpec)), None)
        place = Where(first.where.file) if first is not None else None
    return place


def _step(recipe: AgentRecipe, step_id: str) -> StepSpec | None:
    found = (each for each in recipe.steps if isinstance(each, StepSpec) and each.id == step_id)
    return next(found, None)
