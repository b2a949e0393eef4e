"""Approvals of some persons at the command line, over processes that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Final

import pytest

from command_line import Cli, Write
from forked_commands import PROGRAM, run_forked
from patience import HANG_S

TOOLS: Final = """
import os, signal
from pathlib import Path
from minions import tool
from minions.adapters.stores.sqlite_journal import SqliteJournal

append, append_all = SqliteJournal.append, SqliteJournal.append_all
open_run, close_run = SqliteJournal.open_run, SqliteJournal.close_run


def die_at(entry):
    if os.environ.get("DIES_AT") == f"{entry.kind}.{entry.state}":
        os.kill(os.getpid(), signal.SIGKILL)


async def dying_append(self, lease, draft):
    entry = await append(self, lease, draft)
    die_at(entry)
    return entry


async def dying_append_all(self, lease, drafts):
    entries = await append_all(self, lease, drafts)
    for entry in entries:
        die_at(entry)
    return entries


async def dying_open_run(self, *place, **how):
    opened = await open_run(self, *place, **how)
    for entry in opened.entries:
        die_at(entry)
    return opened


async def dying_close_run(self, lease, drafts):
    entries = await close_run(self, lease, drafts)
    for entry in entries:
        die_at(entry)
    return entries


SqliteJournal.append, SqliteJournal.append_all = dying_append, dying_append_all
SqliteJournal.open_run, SqliteJournal.close_run = dying_open_run, dying_close_run


@tool(effect="once")
def pay(amount: int) -> str:
    '''Pays.'''
    with Path("paid.txt").open("a") as file:
        file.write(f"{amount}\\n")
    return f"paid {amount}"
"""
RECIPE: Final = """
id: pays
permissions:
  allow_write: true
  requires_approval:
    - tool: pay
      when: args.amount > 3
      deciders: [ann, bob, "role:finance"]
      quorum: 2
      not_by_starter: true
      expires: 2h
      then: {ask: [boss], expires: 1d}
steps: [{id: pay, tool: pay, params: {amount: 5}}]
output: "{{ pay }}"
"""
STORE: Final = ("--db", "j.db", "--extensions", "own.py")


@pytest.fixture(autouse=True)
def _files(write: Write) -> None:
    write("own.py", TOOLS)
    write("pays.yaml", RECIPE)


def ran(
    here: Path, *arguments: str, dies_at: str = "", with_code: bool = True
) -> subprocess.CompletedProcess[str]:
    return run_forked(
        [*PROGRAM, *arguments, *(STORE if with_code else STORE[:2])],
        cwd=here,
        env={**os.environ, "DIES_AT": dies_at, "LOGNAME": "starter"},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )


def test_votes_survive_the_death_of_each_process(here: Path) -> None:
    """A-169: `kill -9` when the question, a vote, and the decision were recorded."""
    killed = ran(here, "run", "pays.yaml", "--approve", "wait", dies_at="decision.waiting")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (item,) = json.loads(ran(here, "inbox", "--json").stdout)["items"]
    assert (item["kind"], item["deciders"]) == ("approval", ["ann", "bob", "role:finance"])
    run = item["run_id"]
    first = ran(here, "approve", run, "--as", "ann", dies_at="run.resumed")
    assert first.returncode == -signal.SIGKILL, first.stderr
    (item,) = json.loads(ran(here, "inbox", "--json").stdout)["items"]
    assert "1 of 2 approvals (ann)" in item["words"]
    again = ran(here, "approve", run, "--as", "ann")
    assert again.returncode == 3, again.stderr
    second = ran(
        here, "approve", run, "--as", "cfo", "--role", "finance", dies_at="decision.recorded"
    )
    assert second.returncode == -signal.SIGKILL, second.stderr
    assert not (here / "paid.txt").exists()
    assert json.loads(ran(here, "inbox", "--json").stdout) == {"items": []}
    done = ran(here, "resume", run)
    assert (done.returncode, done.stdout) == (0, "paid 5\n"), done.stderr
    assert (here / "paid.txt").read_text() == "5\n"


def test_who_is_not_asked_decides_nothing_here(
    cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-169: neither somebody else, nor whoever started the run, by any command."""
    monkeypatch.setenv("LOGNAME", "ann")
    first = cli("run", "pays.yaml", "--approve", "all", *STORE)
    assert first.code == 3
    assert "0 of 2 approvals, of ann or bob or role:finance but not ann" in first.err
    for arguments in (
        ("approve", "run_"),
        ("approve", "run_", "--as", "eve"),
        ("reject", "run_", "--as", "eve"),
        ("resume", "run_", "--decide", "pay=approve", "--as", "eve"),
    ):
        refused = cli(*arguments, *STORE)
        assert (refused.code, "error[not-a-decider]" in refused.err) == (2, True), refused.err
    assert cli("approve", "run_", "--as", "bob", *STORE).code == 3
    assert cli("reject", "run_", "--as", "bob", "--reason", "no", *STORE).code == 1
    assert not (here / "paid.txt").exists()


def test_a_role_that_nobody_has_is_a_warning(cli: Cli, write: Write, here: Path) -> None:
    """Where the configuration lists the roles."""
    write("minions.toml", 'approval_roles = ["finances", "cfo"]\n')
    done = cli("validate", "pays.yaml", "--extensions", "own.py", "--trust")
    assert done.code == 0
    assert "warning[unknown-role]: nobody has the role 'finance'" in done.err + done.out
    assert "did you mean 'finances'?" in done.err + done.out


def test_it_is_explained_who_decides_and_until_when(cli: Cli, here: Path) -> None:
    shown = cli("explain", "pays.yaml", "--extensions", "own.py")
    assert "decided by: pay when args.amount > 3: 2 of ann or bob or role:finance within" in (
        " ".join(shown.out.split())
    )
    assert "then 1 of boss within" in " ".join(shown.out.split())


MAILS: Final = """
id: mails
permissions: {allow_write: true, requires_approval: [pay]}
steps:
  - {id: pay, tool: pay, loop: [5, 6, 7], params: {amount: "{{ loop.item }}"}}
output: "{{ pay | length }}"
"""


def test_all_like_this_are_approved_once_also_after_a_kill(here: Path, write: Write) -> None:
    """A-169: what the approval covers is shown first, and survives `kill -9`."""
    write("mails.yaml", MAILS)
    ran(here, "run", "mails.yaml", "--approve", "wait")
    run = json.loads(ran(here, "inbox", "--json").stdout)["items"][0]["run_id"]
    refused = ran(here, "approve", run, "pay[0]", "--all-like", "args.amont")
    assert refused.returncode == 2
    assert "the call has no argument 'amont'; it has: amount" in refused.stderr
    killed = ran(
        here, "approve", run, "pay[0]", "--like-when", "args.amount < 7", dies_at="run.resumed"
    )
    assert killed.returncode == -signal.SIGKILL
    assert "and all calls of pay in step 'pay' with args.amount < 7" in killed.stderr
    rest = ran(here, "resume", run, "--approve", "wait")
    assert rest.returncode == 3, rest.stderr
    assert sorted((here / "paid.txt").read_text().split()) == ["5", "6"]
    assert ran(here, "approve", run).returncode == 0
    assert sorted((here / "paid.txt").read_text().split()) == ["5", "6", "7"]


REVIEWER: Final = """
id: limits
inputs: {arguments: {type: object, untrusted: true}}
steps:
  - id: look
    set:
      verdict: "{{ 'reject' if inputs.arguments.amount > 6 else 'pass' }}"
      reason: "{{ inputs.arguments.amount }} was asked for"
output: "{{ look }}"
"""
REVIEWED: Final = """
id: reviewed
permissions: {allow_write: true, requires_approval: [{tool: pay, reviewer: limits.yaml}]}
steps: [{id: pay, tool: pay, params: {amount: AMOUNT}}]
output: "{{ pay }}"
"""


@pytest.mark.parametrize("dies_at", ["step.started", "step.finished", "decision.waiting"])
def test_a_review_survives_a_kill(here: Path, write: Write, dies_at: str) -> None:
    """A-169: `kill -9` before, after and within the review; a person is asked in the end."""
    write("limits.yaml", REVIEWER)
    write("reviewed.yaml", REVIEWED.replace("AMOUNT", "5"))
    killed = ran(here, "run", "reviewed.yaml", "--approve", "wait", dies_at=dies_at)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    listed = ran(here, "sessions", "list", "--json", with_code=False)
    runs = json.loads(listed.stdout)
    waits = ran(here, "resume", runs[0]["run_id"], "--approve", "wait")
    assert waits.returncode == 3, waits.stderr
    assert "the reviewer 'limits' lets it pass: 5 was asked for" in waits.stderr
    assert ran(here, "approve", runs[0]["run_id"]).returncode == 0
    assert (here / "paid.txt").read_text() == "5\n"


def test_a_reviewer_rejects_unasked(cli: Cli, write: Write, here: Path) -> None:
    write("limits.yaml", REVIEWER)
    write("reviewed.yaml", REVIEWED.replace("AMOUNT", "7"))
    done = cli("run", "reviewed.yaml", "--approve", "all", *STORE)
    assert done.code == 1
    assert "rejected: the reviewer 'limits' says: 7 was asked for" in done.err
    shown = cli("explain", "reviewed.yaml", "--extensions", "own.py")
    assert "decided by: pay: reviewed by limits, 1 of anybody" in " ".join(shown.out.split())
