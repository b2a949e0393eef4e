"""A run's result for continuous integration: JUnit XML, and annotations of a workflow.

`RunReports` needs nothing but an `AgentResult`: whatever command ran it can report it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO

from attrs import frozen

from minions.contracts.errors import FailureInfo, Fault
from minions.contracts.executions import AgentResult, RunStatus, StepExecution, StepStatus
from minions.interfaces.cli.console.console import say
from minions.interfaces.cli.console.fault_reports import annotation, workflow_command
from minions.interfaces.cli.console.junit import (
    JUnitCase,
    JUnitProblem,
    JUnitSuite,
    ProblemKind,
    check_junit,
    write_junit,
)
from minions.recipe.model import AgentRecipe, StepSpec, Where

__all__ = ["RunReports", "annotations_wanted", "run_annotations", "run_suite"]

_GOOD: Final = (RunStatus.COMPLETED, RunStatus.PARTIAL)


@frozen(kw_only=True)
class RunReports:
    """Where the end of a run is reported beside the console."""

    junit: Path | None = None
    """The file for JUnit XML; None: none is written."""
    annotations: TextIO | None = None
    """The stream for annotations of a workflow; None: none are printed."""

    def check(self) -> None:
        """Refuse a file that could not be written at the end of the run.

        Raises:
            EnvironmentRefusedError: `junit-file`.
        """
        if self.junit is not None:
            check_junit(self.junit)

    def tell_faults(self, faults: Sequence[Fault]) -> None:
        """Annotate the faults of a recipe that was refused."""
        if self.annotations is not None:
            for fault in faults:
                say(annotation(fault), self.annotations)

    def annotate(self, result: AgentResult[object], recipe: AgentRecipe) -> None:
        """Print an annotation for each failure of the run."""
        if self.annotations is not None:
            for line in run_annotations(result, recipe):
                say(line, self.annotations)

    def write(self, result: AgentResult[object]) -> None:
        """Write the file, however the run ended.

        Raises:
            EnvironmentRefusedError: It cannot be written (`junit-file`).
        """
        if self.junit is not None:
            write_junit(self.junit, [run_suite(result)])

    def write_break(self, recipe_id: str, error: FailureInfo) -> None:
        """Write the file of a run that has no result, since its journal failed.

        Raises:
            EnvironmentRefusedError: It cannot be written (`junit-file`).
        """
        if self.junit is not None:
            case = JUnitCase(name=recipe_id, problem=_problem(ProblemKind.ERROR, error))
            write_junit(self.junit, [JUnitSuite(name=recipe_id, cases=[case])])


def annotations_wanted(environ: Mapping[str, str], *, asked: bool | None) -> bool:
    """Whether annotations are printed: as asked, else within a workflow of GitHub."""
    return environ.get("GITHUB_ACTIONS") == "true" if asked is None else asked


# --- JUnit ----------------------------------------------------------------------------------------


def run_suite(result: AgentResult[object]) -> JUnitSuite:
    """One case for each step, each item of a loop and each step of a recipe within, by address.

    There is a failure or an error among them exactly if the run did not end `completed` or
    `partial`: a failure in spite of which the work around it completed is a skipped case.
    """
    cases = [_step_case(each, is_passed_over=over) for each, over in _executions(result)]
    is_told = any(_counts(each.problem) for each in cases)
    if result.status not in _GOOD and not is_told:
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


def _executions(result: AgentResult[object]) -> Iterator[tuple[StepExecution[object], bool]]:
    """Every execution that counts, the outer before the inner, and whether its failure does not."""
    latest = [result.executions[at] for at in sorted(result.step_ids.values())]
    yield from _within(latest, is_passed_over=result.status in _GOOD)


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
        error = _error_of(execution)
        if not is_passed_over:
            return _problem(ProblemKind.FAILURE, error)
        return _problem(ProblemKind.SKIPPED, error, "It failed, and the work continued: ")
    if status is StepStatus.SKIPPED:
        return JUnitProblem(kind=ProblemKind.SKIPPED, message=reason or "It was skipped.")
    return JUnitProblem(kind=ProblemKind.SKIPPED, message=reason or "It has not ended.")


def _error_of(execution: StepExecution[object]) -> FailureInfo:
    return execution.error or FailureInfo(
        code="step-failed", message=execution.reason or "It failed.", where=execution.address
    )


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


# --- annotations ----------------------------------------------------------------------------------


def run_annotations(result: AgentResult[object], recipe: AgentRecipe) -> Iterator[str]:
    """A line for each failure, at the step's place in its recipe; innermost failures only.

    Failures in spite of which the work continued are warnings.
    """
    is_told = False
    for execution, is_passed_over in _executions(result):
        if execution.status is not StepStatus.FAILED or _has_failed_within(execution):
            continue
        is_told |= not is_passed_over
        level = "warning" if is_passed_over else "error"
        yield _annotation(level, recipe, execution.address, _error_of(execution))
    if result.status not in _GOOD and not is_told and result.error is not None:
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
