"""`minions capture` and `minions drift`: what they write, ask, refuse and recommend."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Cli, Outcome, Write

EXTENSION = '''
import re

from minions import ScriptedModel, tool
from minions.testing import tool_request


@tool(effect="pure", reads="trusted")
def get_order(order_id: str) -> dict[str, object]:
    """An order."""
    number = int(order_id[2:])
    due = number * 1.25
    return {"status": "paid" if number % 2 else "lost", "total": due, "due": due}


@tool(effect="once")
def pay(order_id: str, amount: float) -> dict[str, object]:
    """Pay money back."""
    return {"receipt": "R-" + order_id}


def agent(prompt):
    """Pays an order back, or says why not."""
    text = " ".join(each.content or "" for each in prompt.messages)
    own = re.search(r"[A-Z]-[0-9]+", text).group()
    results = [each.content for each in prompt.messages if each.role == "tool"]
    if "not one of" in text or "give the answer" in text:
        return "Nothing was paid back."
    if not results:
        return tool_request("get_order", {"order_id": own})
    if len(results) == 1:
        return tool_request("pay", {"order_id": own, "amount": int(own[2:]) * 1.25})
    return f"Paid {own}."


model = ScriptedModel(agent, name="scripted/agent")
'''
AGENT = """
id: refunds
inputs: {task: string}
model: scripted/agent
permissions: {allow_write: true, untrusted: allow}
steps:
  - id: work
    goal: "{{ inputs.task }}"
    tools: [get_order, pay]
"""
FLAGS = ("--db", "j.sqlite", "--extensions", "own.py")


@pytest.fixture(autouse=True)
def _project(write: Write, here: Path) -> None:
    write("own.py", EXTENSION)
    write("agent.yaml", AGENT)


def ran(cli: Cli, order: str, name: str) -> None:
    done = cli("run", "agent.yaml", "-p", f"task=Pay {order} back", "--session", name, *FLAGS)
    assert done.code == 0, done.err


def capture(cli: Cli, *more: str) -> Outcome:
    return cli("capture", *more, *FLAGS)


def test_a_value_that_stands_in_two_places_is_asked_about_and_nothing_is_written(
    cli: Cli, here: Path
) -> None:
    ran(cli, "A-17", "one")
    done = capture(cli, "one", "-o", "pay.yaml")
    assert done.code == 3
    assert "--answer pay.amount=2  {{ get_order.total }}" in done.err
    assert "--answer pay.amount=1  {{ get_order.due }}" in done.err
    assert not (here / "pay.yaml").exists()


def test_an_answer_decides_and_the_recipe_is_proved_again(cli: Cli, here: Path) -> None:
    ran(cli, "A-17", "one")
    done = capture(cli, "one", "-o", "pay.yaml", "--answer", "pay.amount=1")
    assert done.code == 0, done.err
    text = (here / "pay.yaml").read_text("utf-8")
    assert "amount: '{{ get_order.due }}'" in text
    assert "allow_pay: true" in text
    assert "allow_write" not in text
    proved = capture(cli, "--prove", "pay.yaml")
    assert (proved.code, proved.out.count("✓")) == (0, 1)
    (here / "pay.yaml").write_text(text.replace("get_order.due", "get_order.total"), "utf-8")
    assert capture(cli, "--prove", "pay.yaml").code == 0  # the same value in that run
    (here / "pay.yaml").write_text(text.replace("'{{ get_order.due }}'", "3"), "utf-8")
    unproved = capture(cli, "--prove", "pay.yaml")
    assert unproved.code == 1
    assert """recorded is {"order_id":"A-17","amount":21.25}""" in unproved.err.replace(
        "\n    ", " "
    )


def test_a_test_that_would_not_notice_another_argument_proves_nothing(
    cli: Cli, write: Write, here: Path
) -> None:
    ran(cli, "A-17", "one")
    assert capture(cli, "one", "-o", "pay.yaml", "--accept").code == 0
    head = (here / "pay.yaml").read_text("utf-8").partition("tests:")[0]
    write(
        "loose.yaml",
        head + "tests:\n  - inputs: {order_id: A-17}\n    tools: {pay: {receipt: R-A-17}}\n"
        "    decisions: {pay: approve}\n    expect: {output: Paid A-17.}\n",
    )
    done = capture(cli, "--prove", "loose.yaml")
    assert done.code == 1
    assert "another pay.amount of pay would not be noticed" in done.err.replace("\n    ", " ")


def test_a_draft_is_written_only_where_it_is_asked_for(cli: Cli, here: Path) -> None:
    ran(cli, "A-17", "one")
    assert capture(cli, "one", "-o", "pay.yaml", "--draft").code == 0
    assert (here / "pay.yaml").exists()
    again = capture(cli, "one", "-o", "pay.yaml", "--draft")
    assert again.code == 2
    assert "exists already" in again.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Name at least one run"),
        (("nosuch",), "No run or session starts with 'nosuch'"),
        (("one", "--answer", "pay.amount=9"), "choose the number of one of"),
        (("one", "--answer", "pay.order=1"), "answers no question. Questions: pay.amount"),
        (("--prove", "agent.yaml", "one"), "--prove takes a recipe alone"),
        (("one", "--extend", "agent.yaml"), "only a captured recipe can be extended"),
    ],
)
def test_what_cannot_be_done_is_one_clear_error(
    words: tuple[str, ...], said: str, cli: Cli
) -> None:
    ran(cli, "A-17", "one")
    done = capture(cli, *words)
    assert done.code == 2
    assert said in done.err.replace("\n    ", " ")


def test_a_run_that_did_not_end_well_is_not_captured(cli: Cli, write: Write) -> None:
    write("failing.yaml", "id: f\nsteps:\n  - {id: a, assert: 'false'}\n")
    assert cli("run", "failing.yaml", "--session", "bad", *FLAGS).code == 1
    done = capture(cli, "bad")
    assert done.code == 2
    assert "did not come to its output" in done.err


def test_the_agent_does_what_is_left_and_its_way_is_recommended_and_added(
    cli: Cli, here: Path
) -> None:
    """A-174, A-175."""
    ran(cli, "A-17", "one")
    assert capture(cli, "one", "-o", "pay.yaml", "--accept", "--on-surprise", "agent").code == 0
    assert cli("drift", "pay.yaml", *FLAGS).out.endswith("has not run yet\n")
    fine = cli("run", "pay.yaml", "-p", "order_id=A-19", *FLAGS)
    assert (fine.code, fine.out) == (0, "Paid A-19.\n")
    surprised = cli("run", "pay.yaml", "-p", "order_id=B-20", "--session", "two", *FLAGS)
    assert (surprised.code, surprised.out) == (0, "Nothing was paid back.\n")
    drifted = cli("drift", "pay.yaml", *FLAGS)
    assert drifted.code == 1
    assert "get_order: bad-result in 1 runs, 1 solved" in drifted.out
    assert "extend: 1 surprises were brought to their end in another way" in drifted.out
    extended = capture(cli, "two", "--extend", "pay.yaml", "-o", "pay.yaml")
    assert extended.code == 0, extended.err
    assert "+- id: pay" in extended.out or "+  when: get_order.status == 'paid'" in extended.out
    assert cli("drift", "pay.yaml", *FLAGS).code in (0, 1)
    lost = cli("run", "pay.yaml", "-p", "order_id=B-22", "--json", *FLAGS)
    assert lost.code == 0, lost.err
    assert lost.json["status"] == "completed"


def test_a_trial_asks_the_agent_and_the_recipe_the_same_cases(cli: Cli, write: Write) -> None:
    write("cases.csv", "order_id,expected\nA-17,Paid A-17.\nA-21,Paid A-21.\nA-23,Paid A-23.\n")
    ran(cli, "A-17", "one")
    done = capture(cli, "one", "--accept", "--try", "cases.csv", "-n", "2")
    assert done.code == 0, done.err
    assert "refunds-captured on cases.csv: 2 cases" in done.out
    assert done.out.count("100%") >= 2


def test_a_run_that_was_imported_is_not_captured(cli: Cli) -> None:
    ran(cli, "A-17", "one")
    assert cli("sessions", "export", "one", "-o", "one.json", "--db", "j.sqlite").code == 0
    taken = cli("sessions", "import", "one.json", "--db", "other.sqlite")
    assert taken.code == 0, taken.err
    done = cli("capture", "one", "--db", "other.sqlite", "--extensions", "own.py")
    assert done.code == 2
    assert "imported-run" in done.err
