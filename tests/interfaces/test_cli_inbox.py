"""`minions inbox`: what waits is listed with its age and cost, and decided one after another."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from attrs import evolve

from command_line import Cli, Write
from minions.contracts.decision_types import Answer, Approve, Decision, Reject
from minions.contracts.journal.facts import DecisionWaiting, RecordedProposal
from minions.engine.calls.inbox import InboxItem, ItemKind
from minions.engine.calls.pending_decisions import PendingDecision
from minions.engine.views.run_summary import RunSummary
from minions.interfaces.cli.commands.inbox_command import decide_each

TOOLS = """
from minions import tool

@tool(effect="once")
def send(to: str) -> str:
    '''Sends.'''
    return f"sent to {to}"
"""
MAIL = """
id: mail
permissions: {allow_write: true, approval_timeout_s: 7200, requires_approval: [send]}
steps: [{id: mail, tool: send, params: {to: Ada}}]
output: "{{ mail }}"
"""
ASK = "id: question\nsteps: [{id: who, ask: To whom?}]\n"
STORE = ("--db", "j.db", "--extensions", "own.py")
NOW = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _files(write: Write) -> None:
    write("own.py", TOOLS)
    write("mail.yaml", MAIL)
    write("question.yaml", ASK)


def test_everything_that_waits_is_listed_with_the_command_that_decides_it(
    cli: Cli, here: Path
) -> None:
    assert "Nothing waits" in cli("inbox", *STORE).err
    cli("run", "mail.yaml", "--approve", "wait", *STORE)
    cli("run", "question.yaml", "--approve", "wait", *STORE)
    listed = cli("inbox", *STORE)
    assert listed.code == 0
    first, second = listed.out.split("question: question", 1)
    assert "approval: mail, run_" in first
    assert "step 'mail', asked " in first
    assert ", expires in " in first
    assert "minions approve run_" in first
    assert "minions answer run_" in second
    approval, question = json.loads(cli("inbox", "--json", *STORE).out)["items"]
    assert (approval["kind"], approval["tool"], approval["recipe"]) == ("approval", "send", "mail")
    assert (question["kind"], question["question"]) == ("question", "To whom?")
    assert approval["expires_at"] is not None
    assert question["expires_at"] is None
    cli("approve", approval["run_id"], *STORE)
    cli("answer", question["run_id"], "Ada", *STORE)
    assert json.loads(cli("inbox", "--json", *STORE).out) == {"items": []}


def test_what_waits_in_other_projects_is_only_counted(cli: Cli, write: Write, here: Path) -> None:
    write("other/minions.toml", "")
    write("other/question.yaml", ASK)
    with contextlib.chdir(here / "other"):
        cli("run", "question.yaml", "--approve", "wait", "--db", "../j.db")
    own = cli("inbox", *STORE)
    assert own.out == ""
    assert "1 more in other projects: minions inbox --all" in own.err
    assert json.loads(cli("inbox", "--json", *STORE).out) == {"items": []}
    [question] = json.loads(cli("inbox", "--json", "--all", *STORE).out)["items"]
    assert question["project"] == str(here / "other")


def test_keys_of_a_pipe_decide_where_that_is_asked_for(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("run", "mail.yaml", "--approve", "wait", *STORE)
    cli("run", "question.yaml", "--approve", "wait", *STORE)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\ns\n"))
    decided = cli("inbox", "--decide", *STORE)
    assert decided.code == 0
    assert "sent to Ada" in decided.out
    [left] = json.loads(cli("inbox", "--json", *STORE).out)["items"]
    assert left["kind"] == "question"
    assert cli("inbox", "--decide", "--json", *STORE).code == 2


def test_an_editor_is_not_opened_at_a_pipe_unless_one_is_named(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    cli("run", "mail.yaml", "--approve", "wait", *STORE)
    monkeypatch.setattr("sys.stdin", io.StringIO("e\ns\n"))
    refused = cli("inbox", "--decide", *STORE)
    assert "Standard input is no terminal" in refused.err
    assert "minions approve RUN --arguments JSON" in refused.err
    (here / "editor.sh").write_text("#!/bin/sh\nsed -i s/Ada/Bob/ $1\n", "utf-8")
    (here / "editor.sh").chmod(0o755)
    monkeypatch.setenv("EDITOR", str(here / "editor.sh"))
    monkeypatch.setattr("sys.stdin", io.StringIO("e\n"))
    assert "sent to Bob" in cli("inbox", "--decide", *STORE).out


def test_ctrl_c_leaves_what_is_not_decided_as_it_was(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("run", "question.yaml", "--approve", "wait", *STORE)
    before = cli("inbox", "--json", *STORE).out

    def interrupt() -> str:
        raise KeyboardInterrupt

    typing = SimpleNamespace(readline=interrupt, isatty=lambda: True)
    monkeypatch.setattr("sys.stdin", typing)
    assert cli("inbox", "--decide", *STORE).code == 130
    assert cli("inbox", "--json", *STORE).out == before


def test_a_narrow_terminal_gets_narrow_lines_and_no_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    decided([item("run_1", CALL)], ["s"])
    lines = capsys.readouterr().err.splitlines()
    words = [line for line in lines if not line.lstrip().startswith(("approval: ", "minions "))]
    assert max(map(len, words)) <= 30
    assert "\x1b" not in "".join(lines)


def item(run: str, what: DecisionWaiting) -> InboxItem:
    summary = RunSummary(run_id=run, session_id=f"ses_{run}", recipe="mail", started_at=NOW)
    pending = PendingDecision(key=f"{what.step_id}/1/0", fact=what, asked_at=NOW)
    return InboxItem(run=summary, pending=pending)


CALL = DecisionWaiting(what="approval", step_id="pay", tool="send", arguments='{"to":"Ada"}')
QUESTION = DecisionWaiting(what="answer", step_id="who", question="To whom?")
PLAN = DecisionWaiting(
    what="answer", step_id="plan", question="This plan?", plan=RecordedProposal(text="steps: []\n")
)


def decided(
    items: list[InboxItem], lines: list[str], edited: str = ""
) -> list[tuple[str, Decision]]:
    """What the person at the terminal decides, by run."""
    typed: Iterator[str] = iter(f"{line}\n" for line in lines)
    made: list[tuple[str, Decision]] = []
    decide_each(
        items,
        lambda one, decision: made.append((one.run.run_id, decision)),
        lambda: next(typed, ""),
        now=NOW,
        edit=lambda text: edited or text,
    )
    return made


def test_one_after_another_is_decided_by_a_key() -> None:
    items = [item("run_1", CALL), item("run_2", CALL), item("run_3", QUESTION), item("run_4", PLAN)]
    assert decided(items, ["y", "n", "too late", "y", "Ada", "y"]) == [
        ("run_1", Approve()),
        ("run_2", Reject(reason="too late")),
        ("run_3", Answer("Ada")),
        ("run_4", Answer("yes")),
    ]


@pytest.mark.parametrize("word", ["yellow", "nobody", "yes please", "yy"])
def test_a_word_that_only_begins_as_a_key_does_decides_nothing(word: str) -> None:
    made = decided([item("run_1", CALL)], [word, "NO", "late"])
    assert made == [("run_1", Reject(reason="late"))]


def test_what_is_skipped_waits_and_quitting_leaves_the_rest() -> None:
    items = [item("run_1", CALL), item("run_2", CALL), item("run_3", CALL)]
    assert decided(items, ["s", "x", "y", "q"]) == [("run_2", Approve())]
    assert decided(items, []) == []


def test_arguments_and_plans_are_edited() -> None:
    edited = decided([item("run_1", CALL)], ["e"], '{"to":"Bob"}\n')
    assert edited == [("run_1", Approve(arguments='{"to":"Bob"}'))]
    assert decided([item("run_2", PLAN)], ["e"], "steps: [a]\n") == [
        ("run_2", Answer("steps: [a]\n"))
    ]


def test_a_plan_is_of_another_kind_than_a_question() -> None:
    assert [each.kind for each in (item("a", CALL), item("b", QUESTION), item("c", PLAN))] == [
        ItemKind.APPROVAL,
        ItemKind.QUESTION,
        ItemKind.PLAN,
    ]


def test_the_result_of_a_caller_s_tool_is_given_by_hand_or_declined() -> None:
    call = DecisionWaiting(
        what="answer", step_id="a", tool="weather", arguments="{}", question="What?"
    )
    one = item("run_1", call)
    assert one.kind is ItemKind.CALL
    assert decided([one], ["y", "sunny"]) == [("run_1", Answer("sunny"))]
    assert decided([one], ["e"], "rain\n") == [("run_1", Answer("rain\n"))]
    asked = evolve(
        one, pending=PendingDecision(key="a/1/0/tool/1/0/question/1-01234567", fact=call)
    )
    assert decided([asked], ["n", "not now"]) == [("run_1", Reject(reason="not now"))]


def test_what_cannot_be_declined_is_asked_again() -> None:
    assert decided([item("run_1", QUESTION)], ["n", "y", "Ada"]) == [("run_1", Answer("Ada"))]
