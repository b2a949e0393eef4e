"""Writes `reference/acceptance.md`: which statements have a test that names them.

`python docs/generate_acceptance.py` rewrites the page. A test covers a statement when its
docstring holds the number, such as `A-17`.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import yaml

DOCS: Final = Path(__file__).parent
PAGE: Final = DOCS / "reference" / "acceptance.md"
TESTS: Final = DOCS.parent / "tests"
_NUMBER: Final = re.compile(r"\bA-\d{2,3}\b")
_HEAD: Final = """\
# Acceptance statements

Behaviours that a user relies on, in our words, each with the tests whose docstring names it.
Made by `python docs/generate_acceptance.py`; the words are in [acceptance.yaml](acceptance.yaml).
"""

_COLUMNS: Final = "| number | statement | covered by |\n| --- | --- | --- |\n"


def statements() -> Mapping[str, Mapping[str, str]]:
    """Heading to number to wording."""
    groups: dict[str, dict[str, str]] = yaml.safe_load(PAGE.with_suffix(".yaml").read_text("utf-8"))
    return groups


def covered(tests: Path = TESTS) -> dict[str, list[str]]:
    """Number to `file::test`, in file order."""
    found: dict[str, list[str]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        text = path.read_text("utf-8")
        if _NUMBER.search(text) is None:  # most have none, and a syntax tree takes its time
            continue
        for name, docstring in _tests_in(ast.parse(text)):
            for number in dict.fromkeys(_NUMBER.findall(docstring)):
                place = f"{path.relative_to(tests.parent).as_posix()}::{name}"
                found.setdefault(number, []).append(place)
    return found


def _tests_in(tree: ast.Module) -> Iterator[tuple[str, str]]:
    classes = (each.body for each in tree.body if isinstance(each, ast.ClassDef))
    for node in (*tree.body, *itertools.chain.from_iterable(classes)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            yield node.name, ast.get_docstring(node) or ""


def page() -> str:
    """The whole page."""
    tests = covered()
    groups = statements()
    count = sum(number in tests for group in groups.values() for number in group)
    total = sum(map(len, groups.values()))
    parts = [_HEAD, f"\nCovered: {count} of {total}.\n"]
    for heading, wordings in groups.items():
        parts.append(
            f"\n## {heading}\n\n| number | statement | covered by |\n| --- | --- | --- |\n"
        )
        parts += [_row(number, words, tests.get(number, [])) for number, words in wordings.items()]
    return "".join(parts)


def _row(number: str, words: str, tests: list[str]) -> str:
    where = "<br>".join(f"`{test}`" for test in tests) or "not yet"
    return f"| {number} | {words} | {where} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
