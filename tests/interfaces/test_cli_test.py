"""`minions test`: a recipe's own tests."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias, cast

import pytest

from command_line import Cli, Write
from minions.contracts.json_values import JsonValue

Told: TypeAlias = dict[str, dict[str, list[dict[str, JsonValue]]]]

TOOLS = """
from minions import tool

@tool(effect="once")
def send(to: str) -> str:
    '''Never called here.'''
    raise SystemExit("called")

@tool(effect="pure")
def look() -> str:
    '''Really called.'''
    return "seen"
"""
RECIPE = """
id: party
permissions: {allow_write: true, requires_approval: [send]}
inputs: {n: 1}
steps:
  - {id: q, goal: "How many are {{ inputs.n }}?", output: {count: integer}}
  - {id: see, tool: look}
  - {id: mail, tool: send, params: {to: "{{ q.count }} people"}}
  - {id: who, ask: "Who?"}
output: {count: "{{ q.count }}", mail: "{{ mail }}", who: "{{ who }}"}
tests:
"""
GOOD = """
  - name: counts
    inputs: {n: 3}
    answers: [{json: {count: 3}}]
    tools: {send: sent}
    decisions: {mail: approve, who: "answer:Ada"}
    expect:
      output: {count: 3, mail: sent, who: Ada}
      holds: ["q.count == inputs.n", "steps.see.output == 'seen'", "output.who != 'Bob'"]
  - name: consent
    answers: [{json: {count: 3}}]
    tools: {send: sent}
    expect: {status: failed, error: approval-denied}
  - name: nobody answers
    answers: [{json: {count: 3}}]
    tools: {send: sent}
    decisions: {mail: approve}
    expect: {status: needs_decision}
"""


@pytest.fixture(autouse=True)
def _tools(write: Write) -> None:
    write("own.py", TOOLS)


def test_tests_run_with_scripted_answers_and_faked_tools(
    cli: Cli, write: Write, here: Path
) -> None:
    write("party.yaml", RECIPE + GOOD)
    done = cli("test", "party.yaml", "--extensions", "own.py")
    assert (done.code, done.out) == (0, "3 of 3 passed\n"), done.err
    assert [line.partition(" (")[0] for line in done.err.splitlines()] == [
        "✓ party.yaml: counts",
        "✓ party.yaml: consent",
        "✓ party.yaml: nobody answers",
    ]
    one = cli("test", "party.yaml", "--extensions", "own.py", "-k", "consent", "--json")
    told = cast("Told", one.json)["recipes"]["party.yaml"][0]
    assert (told["name"], told["passed"], told["faults"]) == ("consent", True, [])


def test_what_is_not_as_expected_is_told(cli: Cli, write: Write, here: Path) -> None:
    wrong = """
  - name: wrong
    answers: [{json: {count: 3}}]
    tools: {send: sent}
    decisions: {mail: approve, who: "answer:Ada"}
    expect: {output: {count: 4}, holds: ["q.count == 4", "q.size == 1"]}
  - name: not faked
    answers: [{json: {count: 3}}]
    decisions: {mail: approve}
  - name: too few answers
    tools: {send: sent}
"""
    write("party.yaml", RECIPE + wrong)
    done = cli("test", "party.yaml", "--extensions", "own.py")
    assert (done.code, done.out) == (1, "0 of 3 passed\n")
    assert 'the output is {"count":3,"mail":"sent","who":"Ada"}, not {"count":4}' in done.err
    assert "'q.count == 4' does not hold" in done.err
    assert "q.size" in done.err
    assert "the run is failed, not completed (not-faked: " in done.err
    assert "--> party.yaml:13:5" in done.err


def test_tests_are_checked_with_the_recipe(cli: Cli, write: Write, here: Path) -> None:
    wrong = """
  - name: wrong
    inputs: {m: 3}
    tools: {sned: sent}
    decisions: {mial: approve}
    expect: {stauts: failed, holds: "q.count =="}
"""
    write("party.yaml", RECIPE + wrong)
    done = cli("validate", "party.yaml", "--extensions", "own.py")
    assert done.code == 2
    for words in (
        "unknown input 'm' in a test",
        "unknown tool 'sned' in a test",
        "unknown step 'mial' in a test",
        "unknown key 'stauts' in expect",
        "error[bad-template]",
    ):
        assert words in done.err


def test_a_recipe_without_tests_is_a_usage_error(cli: Cli, write: Write, here: Path) -> None:
    write("bare.yaml", "steps: [{id: a, set: {x: 1}}]")
    done = cli("test", "bare.yaml")
    assert done.code == 2
    assert "error[no-tests]: No tests in bare.yaml. Write them under `tests:`." in done.err
