"""Which executions of a run's result count in a report of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from minions.contracts.executions import AgentResult, RunStatus, StepExecution
from minions.data.errors import FailureInfo

GOOD_STATUSES: Final = (RunStatus.COMPLETED, RunStatus.PARTIAL)
"""How a run ended that did what it should."""


def counted_executions(result: AgentResult[object]) -> Iterator[tuple[StepExecution[object], bool]]:
    """Every execution that counts, the outer before the inner, and whether its failure does not."""
    latest = [result.executions[at] for at in sorted(result.step_ids.values())]
    yield from _within(latest, is_passed_over=result.status in GOOD_STATUSES)


def _within(
    executions: Sequence[StepExecution[object]], *, is_passed_over: bool
) -> Iterator[tuple[StepExecution[object], bool]]:
    newest = {_apart_from_visits(each): each for each in executions}
    for each in newest.values():
        over = is_passed_over or each.optional
        yield each, over
        inner = (*each.iterations, *each.steps)
        yield from _within(inner, is_passed_over=over or each.is_complete)


def _apart_from_visits(execution: StepExecution[object]) -> str:
    """The key of the execution without its visit: after a back edge the newest one counts.

    Not its address, which steps of several recipes that one step ran may share.
    """
    step, slash, rest = execution.id.partition("/")[2].rpartition("~")[2].partition("/")
    around = execution.id.removesuffix(f"{step}{slash}{rest}")
    return f"{around}{step}/{rest.partition('/')[2]}"


def error_of(execution: StepExecution[object]) -> FailureInfo:
    """Why a failed execution failed."""
    return execution.error or FailureInfo(
        code="step-failed", message=execution.reason or "It failed.", where=execution.address
    )
