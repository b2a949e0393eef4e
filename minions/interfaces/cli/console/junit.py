"""Outcomes of recipes' tests as JUnit XML, which continuous integration shows.

Source: the schema of Jenkins' xunit plugin, `junit-10.xsd`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from minions.contracts.errors import EnvironmentRefusedError
from minions.interfaces.recipe_tests import TestOutcome

__all__ = ["write_junit"]

_NOT_XML: Final = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


def write_junit(path: Path, done: Mapping[str, Sequence[TestOutcome]]) -> None:
    """Write one suite for each recipe.

    Raises:
        EnvironmentRefusedError: The file cannot be written.
    """
    root = ElementTree.Element("testsuites")
    for name, outcomes in done.items():
        root.append(_suite(name, outcomes))
    try:
        ElementTree.ElementTree(root).write(path, "utf-8", xml_declaration=True)
    except OSError as error:
        raise EnvironmentRefusedError(
            f"--junit {path} cannot be written: {error.strerror}.", code="junit-file"
        ) from error


def _suite(name: str, outcomes: Sequence[TestOutcome]) -> ElementTree.Element:
    suite = ElementTree.Element(
        "testsuite",
        name=_text(name),
        tests=str(len(outcomes)),
        failures=str(sum(bool(each.faults) for each in outcomes)),
        errors="0",
        skipped="0",
        time=_seconds(sum(each.duration_ms for each in outcomes)),
    )
    suite.extend(_case(name, each) for each in outcomes)
    return suite


def _case(recipe: str, outcome: TestOutcome) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        classname=_text(recipe),
        name=_text(outcome.test.name),
        time=_seconds(outcome.duration_ms),
    )
    if outcome.faults:
        failure = ElementTree.SubElement(case, "failure", message=_text(outcome.faults[0]))
        failure.text = _text("\n".join((*outcome.faults, f"--> {outcome.test.where}")))
    return case


def _seconds(duration_ms: float) -> str:
    return f"{duration_ms / 1e3:.3f}"


def _text(text: str) -> str:
    """The text without characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", text)
