"""A warning where values stand before long texts that are always the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from minions.data.errors import Fault
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import find_faults

RULES = "These are many rules. " * 200


def warnings_of(tmp_path: Path, text: str) -> list[Fault]:
    path = tmp_path / "r.yaml"
    path.write_text(f"id: r\ninputs: {{day: string}}\n{text}")
    return [each for each in find_faults(path, Catalog()) if each.code == "late-constants"]


ON = "{{ inputs.day }}"
EXAMPLES = f"[{{input: x, output: '{RULES}'}}]"
OWN_RULES = f"{{id: a, system_prompt: '{RULES}', goal: Go.}}"
BROKEN = {
    "system": f"system_prompt: 'It is {ON}. {RULES}'\nsteps: [{{id: a, goal: Go.}}]",
    "context": f"context: [{{text: '{ON}'}}, {{text: '{RULES}'}}]\nsteps: [{{id: a, goal: Go.}}]",
    "goal": f"steps:\n- {{id: a, loop: [1, 2], goal: 'No. {{{{ loop.item }}}}: {RULES}'}}",
    "own": f"steps:\n- {{id: a, system_prompt: '{ON}', goal: Go., examples: {EXAMPLES}}}",
    "both": f"system_prompt: '{ON}'\nsteps: [{OWN_RULES}]",
}
WHOLE = {
    "behind": f"system_prompt: '{RULES} {ON}.'\nsteps: [{{id: a, goal: Go.}}]",
    "in the goal": f"system_prompt: '{RULES}'\nsteps: [{{id: a, goal: '{ON}'}}]",
    "goals differ": f"system_prompt: '{ON}'\nsteps: [{{id: a, goal: '{RULES}'}}]",
    "of one": f"system_prompt: '{ON}'\nsteps: [{OWN_RULES}, {{id: b, goal: Go.}}]",
    "goal": f"steps: [{{id: a, goal: '{RULES} {ON}'}}]",
    "short": f"steps: [{{id: a, goal: '{ON}'}}]",
    "no model": f"steps: [{{id: a, set: {{x: '{ON} {RULES}'}}}}]",
}
"""None is a warning: only what all steps have is lost for all."""


@pytest.mark.parametrize(
    ("name", "line", "words"),
    [
        (
            "system",
            3,
            "the system prompt reads a value that differs from run to run, and about 1,1",
        ),
        ("context", 3, "a part of the context reads a value"),
        ("goal", 4, "the goal reads a value that differs from item to item"),
        ("own", 4, "the system prompt reads a value"),
        ("both", 3, "the system prompt reads a value"),
    ],
)
def test_a_value_before_a_long_constant_text_is_a_warning(
    tmp_path: Path, name: str, line: int, words: str
) -> None:
    """A-176"""
    (fault,) = warnings_of(tmp_path, BROKEN[name])
    assert fault.is_warning
    assert fault.line == line
    assert words in fault.message


@pytest.mark.parametrize("name", WHOLE)
def test_values_behind_constants_and_short_texts_are_none(tmp_path: Path, name: str) -> None:
    assert warnings_of(tmp_path, WHOLE[name]) == []


def test_the_content_of_a_file_behind_a_value_counts(tmp_path: Path) -> None:
    (tmp_path / "rules.md").write_text(RULES)
    parts = "[{text: '{{ inputs.day }}'}, {file: rules.md}]"
    (fault,) = warnings_of(tmp_path, f"context: {parts}\nsteps: [{{id: a, goal: Go.}}]")
    assert "a part of the context" in fault.message
    parts = "[{file: rules.md}, {text: '{{ inputs.day }}'}]"
    assert not warnings_of(tmp_path, f"context: {parts}\nsteps: [{{id: a, goal: Go.}}]")
