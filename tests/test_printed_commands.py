"""Commands that are printed are copied: what stands in them is quoted as a shell wants it."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from minions.data.texts import shell_word
from minions.engine.calls.pending_decisions import decision_command
from source_trees import PACKAGE as ROOT
from source_trees import module_paths, nodes_of

BEGIN: Final = re.compile(
    r"\bminions (?:run|answer|approve|reject|resume|retry|sessions|cancel|fork|batch|chat|mcp|"
    r"learn|eval|tune|schedules|queues|rollback|do|plan|validate|models|trust|worker|graph|explain|"
    r"test)"
    r"\b(?:[^`\n](?!\. ))*$"
)
"""A text that ends within a command."""
END: Final = re.compile(r"`|\n|\. ")
QUOTED: Final = frozenset(
    {
        *("again", "code", "database"),  # `flags_again` quotes
        *("about", "decide", "example_of(form)", "file", "rest", "where"),
        "_queue(wanted.place)",
        "RECORD_BY",  # ours
    }
)
"""Expressions that are quoted where they are made."""


def _expressions(path: Path) -> Iterator[tuple[int, str]]:
    """Each expression within a command, with its line."""
    for node in nodes_of(path):
        if not isinstance(node, ast.JoinedStr):
            continue
        is_within = False
        for part in node.values:
            if isinstance(part, ast.Constant):
                text = str(part.value)
                is_within = is_within and END.search(text) is None
                is_within = is_within or BEGIN.search(text) is not None
            elif is_within and isinstance(part, ast.FormattedValue):
                yield node.lineno, ast.unparse(part.value)


def _unquoted(path: Path) -> Iterator[str]:
    source = path.read_text("utf-8")
    for line, expression in _expressions(path):
        made = re.search(rf"\b{re.escape(expression)} = (?:.* else )?shell_word\(", source)
        several = re.search(rf"\b{re.escape(expression)}, .* = shell_word\(", source)
        if not (
            expression.startswith(("shell_word(", "'", "' '.join(map(shell_word"))
            or expression in QUOTED
            or made
            or several
        ):
            yield f"{path.relative_to(ROOT)}:{line}: {expression}"


def test_what_stands_in_a_printed_command_is_quoted() -> None:
    """If this fails: `shell_word(…)`, or enter what quotes it (see the top of this file)."""
    paths = [path for path in module_paths() if "testing" not in path.parts]
    found = [each for path in paths for each in _unquoted(path)]
    assert found == []
    assert sum(len(list(_expressions(p))) for p in paths) > 50


@pytest.mark.parametrize(
    "text", ["run_1; touch PWNED #", "$(touch x)", "`touch x`", "a b", "'", "", "a\nb", "\x1b[2J"]
)
def test_a_word_of_a_command_is_one_word_and_shows_all_its_signs(text: str) -> None:
    (word,) = shlex.split(shell_word(text))
    assert word == text or word.isprintable()
    assert shell_word(text).isprintable()


def test_a_decision_names_a_run_that_a_stranger_named_as_one_word() -> None:
    command = decision_command("run_1; touch PWNED #", "answer", "a; b")
    assert shlex.split(command) == ["minions", "answer", "run_1; touch PWNED #", "a; b", "VALUE"]
