"""`minions sessions diff`, and `list` for programs."""

from __future__ import annotations

import json
import re

import pytest

from command_line import Cli, Write

RECIPE = """
id: greet
inputs: {name: {type: string}, loud: {type: boolean, default: false}}
steps:
  - {id: say, set: {text: "Hello {{ inputs.name }}"}}
  - {id: shout, set: {text: "{{ say.text | upper }}"}, when: inputs.loud}
  - id: long
    set:
      text: >-
        Once upon a time there was somebody who had no name, but then came {{ inputs.name }} and
        said that this is a very long sentence, of which nobody needs to see all, and so on.
output: "{{ say.text }}"
"""
DB = ("--db", "j.db")


@pytest.fixture(autouse=True)
def _runs(cli: Cli, write: Write) -> None:
    write("greet.yaml", RECIPE)
    for arguments in (["-p", "name=Ada"], ["-p", "name=Bob", "-p", "loud=true"]):
        assert cli("run", "greet.yaml", *arguments, *DB).code == 0


def ids(cli: Cli) -> list[str]:
    """The oldest first."""
    runs = json.loads(cli("sessions", "list", "--json", *DB).out)
    return [run["run_id"] for run in runs][::-1]


def test_two_runs_are_compared_step_by_step(cli: Cli) -> None:
    first, second = ids(cli)
    told = cli("sessions", "diff", first, second, *DB)
    assert told.code == 0
    lines = [re.sub(r"[\d.]+ m?s", "T", line) for line in told.out.splitlines()]
    assert [line[: len("A  run_")] for line in lines[:2]] == ["A  run_", "B  run_"]
    shown = "\n".join(lines[2:])
    assert shown.startswith("They differ first in the inputs.\ninputs:\n")
    assert '  name:\n    A "Ada"\n    B "Bob"\n  loud:\n    A false\n    B true\n' in shown
    outputs = ['A {"text": "Hello Ada"}', 'B {"text": "Hello Bob"}']
    lines = ["  ~ say: completed", "      output:", *(f"        {each}" for each in outputs)]
    assert "\n".join(lines) in shown
    assert "  ~ shout: skipped (its condition `when` is false) → completed\n" in shown
    assert "A … " in shown
    assert 'result:\n  output:\n    A "Hello Ada"\n    B "Hello Bob"' in shown


def test_a_run_is_the_same_as_itself(cli: Cli) -> None:
    first, _ = ids(cli)
    told = cli("sessions", "diff", first, first[:-2], *DB)
    assert "The same inputs, steps and result." in told.out
    assert "  = say: completed" in told.out


def test_programs_get_all_of_it(cli: Cli) -> None:
    first, second = ids(cli)
    found = cli("sessions", "diff", first, second, "--json", *DB).json
    assert set(found) == {"a", "b", "inputs", "steps", "result", "first"}
    assert found["first"] == "inputs"
    assert found["inputs"] == [
        {"name": "name", "a": "Ada", "b": "Bob"},
        {"name": "loud", "a": False, "b": True},
    ]


def test_an_unknown_run_is_told_with_the_journal(cli: Cli) -> None:
    told = cli("sessions", "diff", ids(cli)[0], "run_nope", *DB)
    assert told.code == 2
    assert "error[unknown-session]: No run or session starts with 'run_nope'" in told.err
    assert "j.db" in told.err


def test_a_list_can_be_shorter(cli: Cli) -> None:
    second = ids(cli)[1]
    shortest = json.loads(cli("sessions", "list", "--limit", "1", "--json", *DB).out)
    assert [run["run_id"] for run in shortest] == [second]
    assert cli("sessions", "list", "--limit", "1", *DB).out.splitlines()[1].startswith(second)
    assert cli("sessions", "list", "--limit", "0", *DB).code == 2
