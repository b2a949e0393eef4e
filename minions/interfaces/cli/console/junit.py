"""Outcomes as JUnit XML, which continuous integration shows.

`suite_of_tests` makes the cases of a recipe's tests, `run_reports.run_suite` those of a run.

Source: the schema of Jenkins' xunit plugin, `junit-10.xsd`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree

from attrs import field, frozen

from minions.data.errors import EnvironmentRefusedError
from minions.interfaces.cli.console.whole_file import check_writable, write_whole

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
