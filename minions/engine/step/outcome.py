"""How a step that did not complete ended: by itself, cut off from outside, or waiting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Required, TypedDict, Unpack

from attrs import evolve
from msgspec import UnsetType

from minions.contracts.executions import StepExecution, StepStatus
from minions.contracts.journal.child_runs import WAITS_FOR_RUNS
from minions.contracts.journal.facts import StepFailed, StepFinished, StepInterrupted, StepSkipped
from minions.contracts.steps import Step
from minions.contracts.verdicts import CompletionMode
from minions.data.errors import LIMIT_REACHED, NEEDS_DECISION, FailureInfo
from minions.data.failure_categories import RESOURCE_LIMIT
from minions.data.json_values import JsonValue
from minions.engine.context.agent_context import AgentContext

CUT_OFF: Final = frozenset({"cancelled", LIMIT_REACHED, NEEDS_DECISION, WAITS_FOR_RUNS})
"""Codes of ends that came from outside: a resumed run continues such a step."""


class StepCourse(TypedDict, total=False):
    """Fields of `StepFinished` that say how the step ran."""

    step_id: Required[str]
    duration_ms: Required[float]
    index: int | None
    total: int | None
    usage: Mapping[str, JsonValue] | None
    model_calls: int | None
    tool_calls: int | None
    attempts: int | None
    output: JsonValue | UnsetType
    decided_by: str | None | UnsetType
    next_step_id: str | None
    sandbox: str | None


def step_over(
    error: FailureInfo | None, **course: Unpack[StepCourse]
) -> StepFinished | StepFailed | StepInterrupted:
    """The fact of the end of a step that had begun."""
    if error is None:
        return StepFinished(status=StepStatus.COMPLETED._value_, **course)
    status = end_status(error)._value_
    kind = StepInterrupted if error.code in CUT_OFF else StepFailed
    return kind(status=status, error=error.to_json(), reason=error.message, **course)


_COMPLETED: Final = StepStatus.COMPLETED


async def record_unexecuted(
    context: AgentContext,
    step: Step[object],
    key: str,
    fact: StepFinished | StepFailed | StepSkipped,
    *,
    output: JsonValue = None,
    error: FailureInfo | None = None,
    mode: CompletionMode = CompletionMode.SIGNAL,
) -> StepExecution[object]:
    """Record the end of a step that needs no executor: it is bound, pinned, skipped or refused.

    Args:
        key: Of the execution.
        fact: Its end.
    Raises:
        JournalError: The fact could not be stored.
    """
    at = await context.scope.recorder.record_later(key, fact)
    execution: StepExecution[object] = StepExecution(
        id=f"{context.run_id}/{key}",
        step_id=step.id,
        status=_COMPLETED if isinstance(fact, StepFinished) else StepStatus(fact.status),
        reason=fact.reason,
        output=output,
        error=error,
        optional=step.is_optional,
        started_at=at,
        completed_at=at,
        completion_mode=mode,
        pinned_from=fact.pinned_from if isinstance(fact, StepFinished) else None,
    )
    context.step_manager.record(execution)
    return execution


def end_status(error: FailureInfo | None) -> StepStatus:
    """The status of the step; one that waits for a person or for child runs is IN_PROGRESS."""
    if error is None:
        return StepStatus.COMPLETED
    is_waiting = error.code in (NEEDS_DECISION, WAITS_FOR_RUNS)
    return StepStatus.IN_PROGRESS if is_waiting else StepStatus.FAILED


def all_waiting(errors: Iterable[FailureInfo]) -> FailureInfo:
    """The pending decisions of several steps as one failure: a line and a command each.

    Only where nobody has to decide anything, the failure is that of child runs.
    """
    found = list(errors)
    each = [error for error in found if error.code == NEEDS_DECISION]
    if found and not each:
        return evolve(found[0], message="\n".join(error.message for error in found))
    return FailureInfo(
        code=NEEDS_DECISION,
        message="\n".join(error.message for error in each),
        suggestions=tuple(command for error in each for command in error.suggestions),
    )


def cut_off(step_id: str, context: AgentContext) -> FailureInfo:
    """A step that was stopped from outside: by the run's own time, or by a person."""
    if context.progress.is_out_of_time:
        context.progress.budget.run_out_of_time()
        return context.progress.budget.failure()
    return FailureInfo(code="cancelled", message=f"Step '{step_id}' was cancelled.")


def lacks_memory(execution: StepExecution[object]) -> bool:
    """Whether a model call was refused for want of memory: so would each further one be."""
    failures = [call.failure for call in execution.model_calls[-1:]]
    return any(each is not None and each.code == RESOURCE_LIMIT for each in failures)
