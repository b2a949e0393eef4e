"""A run's result as JUnit XML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minions.contracts.executions import AgentResult, StepExecution, StepStatus
from minions.data.errors import FailureInfo
from minions.interfaces.cli.console.counted_executions import (
    GOOD_STATUSES,
    counted_executions,
    error_of,
)
from minions.interfaces.cli.console.junit import (
    JUnitCase,
    JUnitProblem,
    JUnitSuite,
    ProblemKind,
    write_junit,
)


def write_run(path: Path, result: AgentResult[object]) -> None:
    """Write the file of a run, however it ended.

    Raises:
        EnvironmentRefusedError: It cannot be written (`junit-file`).
    """
    write_junit(path, [run_suite(result)])


def write_break(path: Path, recipe_id: str, error: FailureInfo) -> None:
    """Write the file of a run that has no result, since its journal failed.

    Raises:
        EnvironmentRefusedError: It cannot be written (`junit-file`).
    """
    case = JUnitCase(name=recipe_id, problem=_problem(ProblemKind.ERROR, error))
    write_junit(path, [JUnitSuite(name=recipe_id, cases=[case])])


def run_suite(result: AgentResult[object]) -> JUnitSuite:
    """One case for each step, each item of a loop and each step of a recipe within, by address.

    There is a failure or an error among them exactly if the run did not end `completed` or
    `partial`: a failure in spite of which the work around it completed is a skipped case.
    """
    cases = [_step_case(each, is_passed_over=over) for each, over in counted_executions(result)]
    is_told = any(_counts(each.problem) for each in cases)
    if result.status not in GOOD_STATUSES and not is_told:
        cases.append(JUnitCase(name=result.recipe_id, problem=_end_of(result)))
    return JUnitSuite(
        name=result.recipe_id,
        cases=cases,
        duration_ms=_wall_ms(result.executions),
        properties={
            "run_id": result.run_id,
            "session_id": result.session_id,
            "status": result.status.value,
        },
    )


def _counts(problem: JUnitProblem | None) -> bool:
    return problem is not None and problem.kind is not ProblemKind.SKIPPED


def _step_case(execution: StepExecution[object], *, is_passed_over: bool) -> JUnitCase:
    return JUnitCase(
        name=execution.address,
        duration_ms=execution.duration_ms,
        problem=_step_problem(execution, is_passed_over=is_passed_over),
    )


def _step_problem(execution: StepExecution[object], *, is_passed_over: bool) -> JUnitProblem | None:
    status, reason = execution.status, execution.reason
    if status is StepStatus.COMPLETED:
        return None
    if status is StepStatus.FAILED:
        error = error_of(execution)
        if not is_passed_over:
            return _problem(ProblemKind.FAILURE, error)
        return _problem(ProblemKind.SKIPPED, error, "It failed, and the work continued: ")
    if status is StepStatus.SKIPPED:
        return JUnitProblem(kind=ProblemKind.SKIPPED, message=reason or "It was skipped.")
    return JUnitProblem(kind=ProblemKind.SKIPPED, message=reason or "It has not ended.")


def _problem(kind: ProblemKind, error: FailureInfo, before: str = "") -> JUnitProblem:
    where = f"\n--> {error.where}" if error.where else ""
    return JUnitProblem(
        kind=kind,
        message=f"{before}{error.message}",
        type=None if kind is ProblemKind.SKIPPED else error.category.value,
        text=f"error[{error.code}]: {error.message}{where}",
    )


def _end_of(result: AgentResult[object]) -> JUnitProblem:
    """Why a run ended early in which no step failed."""
    status = result.status.value
    error = result.error or FailureInfo(code=status.replace("_", "-"), message=f"It is {status}.")
    return _problem(ProblemKind.ERROR, error)


def _wall_ms(executions: Sequence[StepExecution[object]]) -> float:
    """From the first start to the last end: steps may run at the same time."""
    begun = [each.started_at for each in executions if each.started_at is not None]
    ended = [each.completed_at for each in executions if each.completed_at is not None]
    if not begun or not ended:
        return 0.0
    return max(0.0, (max(ended) - min(begun)).total_seconds() * 1e3)
