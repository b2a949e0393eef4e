"""A typo in a recipe pays nobody: what a model may make of a call is listed, and told."""

from __future__ import annotations

import pytest

from command_line import Cli, Write

TOOLS = '''
import minions


@minions.tool(effect="pure")
def find() -> dict[str, object]:
    """Find an invoice."""
    return {"amount": 12.5}


@minions.tool(effect="once")
def pay(amount: float) -> str:
    """Pay somebody."""
    return f"paid {amount}"
'''
PAYS = """
permissions: {allow_write: true%s}
steps:
  - {id: found, tool: find}
  - {id: pay, tool: pay, %s}
"""
ANSWER = "answers:\n  - json: {params: {amount: 99999.0}}\n"


@pytest.fixture(autouse=True)
def _files(write: Write) -> None:
    write("tools.py", TOOLS)
    write("answers.yaml", ANSWER)
    write("typo.yaml", PAYS % ("", 'params: {amount: "{{ found.amout }}"}'))
    write("left_out.yaml", PAYS % ("", "params: {}"))
    write("fills.yaml", PAYS % (", requires_approval: [pay]", "fill: [amount]"))


OWN = ("--extensions", "tools.py", "-m", "scripted/answers.yaml")


def test_a_typo_fails_the_step_and_names_the_value_that_is_there(cli: Cli) -> None:
    """A-155."""
    done = cli("run", "typo.yaml", *OWN)
    assert done.code == 1
    assert "found.amout" in done.err
    assert "Did you mean 'amount'?" in done.err
    assert "99999" not in done.out + done.err


def test_an_argument_that_nobody_gives_is_refused_before_the_run(cli: Cli) -> None:
    """A-155."""
    done = cli("run", "left_out.yaml", *OWN)
    assert done.code == 2
    assert "fill: [amount]" in done.err


def test_the_approval_says_what_a_model_made(cli: Cli) -> None:
    """A-155."""
    done = cli("run", "fills.yaml", *OWN, "--approve", "wait")
    assert "recipe fills · model scripted/answers" in done.err
    assert "a model made: amount" in done.err
    shown = cli("explain", "fills.yaml", *OWN[:2])
    assert "fills in amount of pay" in shown.out
