"""Outcomes as JUnit XML, which continuous integration shows.

`suite_of_tests` makes the cases of a recipe's tests, `run_reports.run_suite` those of a run.

Source: the schema of Jenkins' xunit plugin, `junit-10.xsd`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree

from attrs import field, frozen

from minions.contracts.executions import AgentResult, RunStatus, StepExecution, StepStatus
from minions.data.errors import EnvironmentRefusedError, FailureInfo
from minions.interfaces.cli.console.fault_reports import workflow_command
from minions.interfaces.cli.console.printed_results import check_writable, write_whole
from minions.recipe.model import AgentRecipe, StepSpec, Where

if TYPE_CHECKING:
    from minions.app.evaluating.recipe_tests import TestOutcome

_NOT_XML: Final = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
_CODE: Final = "junit-file"


class ProblemKind(StrEnum):
    """Why a case did not pass."""

    FAILURE = "failure"
    """What it is about failed."""
    ERROR = "error"
    """Something else ended the work: a limit, a cancellation, a pending decision."""
    SKIPPED = "skipped"
    """It was not done, or its failure does not count."""


@frozen(kw_only=True)
class JUnitProblem:
    """Why a case did not pass, in words."""

    kind: ProblemKind
    message: str
    type: str | None = None
    """The category of the failure; None: it is none."""
    text: str | None = None
    """All that is known; None: the message is."""


@frozen(kw_only=True)
class JUnitCase:
    """One case: a test, or a step of a run."""

    name: str
    duration_ms: float = 0.0
    problem: JUnitProblem | None = None
    """None: it passed."""


@frozen(kw_only=True)
class JUnitSuite:
    """The cases of one recipe."""

    name: str
    cases: Sequence[JUnitCase]
    duration_ms: float = 0.0
    properties: Mapping[str, str] = field(factory=dict)
    """What else is known of the whole, by name."""

    def count(self, kind: ProblemKind) -> int:
        """How many cases have a problem of that kind."""
        return sum(each.problem is not None and each.problem.kind is kind for each in self.cases)


def suite_of_tests(recipe: str, outcomes: Sequence[TestOutcome]) -> JUnitSuite:
    """The tests of one recipe."""
    return JUnitSuite(
        name=recipe,
        cases=[_test_case(each) for each in outcomes],
        duration_ms=sum(each.duration_ms for each in outcomes),
    )


def _test_case(outcome: TestOutcome) -> JUnitCase:
    problem = None
    if outcome.faults:
        problem = JUnitProblem(
            kind=ProblemKind.FAILURE,
            message=outcome.faults[0],
            text="\n".join((*outcome.faults, f"--> {outcome.test.where}")),
        )
    return JUnitCase(name=outcome.test.name, duration_ms=outcome.duration_ms, problem=problem)


def check_junit(path: Path) -> None:
    """Refuse a file that could not be written later.

    Raises:
        EnvironmentRefusedError: `junit-file`.
    """
    check_writable(path, "--junit", code=_CODE)


def write_junit(path: Path, suites: Sequence[JUnitSuite]) -> None:
    """Write the suites, the file as a whole.

    Raises:
        EnvironmentRefusedError: The file cannot be written (`junit-file`).
    """
    try:
        write_whole(path, junit_xml(suites))
    except OSError as error:
        raise EnvironmentRefusedError(
            f"--junit {path} cannot be written: {error.strerror}.", code=_CODE
        ) from error


def junit_xml(suites: Sequence[JUnitSuite]) -> bytes:
    """The suites as a document; characters that XML cannot hold become U+FFFD."""
    root = ElementTree.Element("testsuites")
    root.extend(_suite(each) for each in suites)
    content: bytes = ElementTree.tostring(root, "utf-8", xml_declaration=True)
    return content


def _suite(suite: JUnitSuite) -> ElementTree.Element:
    element = ElementTree.Element(
        "testsuite",
        name=_text(suite.name),
        tests=str(len(suite.cases)),
        failures=str(suite.count(ProblemKind.FAILURE)),
        errors=str(suite.count(ProblemKind.ERROR)),
        skipped=str(suite.count(ProblemKind.SKIPPED)),
        time=_seconds(suite.duration_ms),
    )
    if suite.properties:
        known = ElementTree.SubElement(element, "properties")
        for name, value in suite.properties.items():
            ElementTree.SubElement(known, "property", name=_text(name), value=_text(value))
    element.extend(_case(suite.name, each) for each in suite.cases)
    return element


def _case(suite: str, case: JUnitCase) -> ElementTree.Element:
    element = ElementTree.Element(
        "testcase", classname=_text(suite), name=_text(case.name), time=_seconds(case.duration_ms)
    )
    problem = case.problem
    if problem is not None:
        told = ElementTree.SubElement(element, problem.kind.value, message=_text(problem.message))
        if problem.type is not None:
            told.set("type", _text(problem.type))
        if problem.text is not None:
            told.text = _text(problem.text)
    return element


def _seconds(duration_ms: float) -> str:
    return f"{duration_ms / 1e3:.3f}"


def _text(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)


# --- which executions of a run's result count in a report of it ----------------------------------


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


# --- a run's result as JUnit XML -----------------------------------------------------------------


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


# --- a run's failures as annotations of a workflow -----------------------------------------------


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
