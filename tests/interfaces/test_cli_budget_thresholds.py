"""Budgets that ask at a threshold, over processes of which one is killed while it waits."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Final

from command_line import Write
from forked_commands import PROGRAM, run_forked
from patience import HANG_S

MODEL: Final = """
import asyncio, os, signal, sqlite3
from pathlib import Path
from minions import Message, ModelCallResponse, ScriptedModel
from minions.guide import TokenUsage

calls = Path("calls.txt")


def is_waiting():
    with sqlite3.connect("j.sqlite") as db:
        return db.execute("SELECT count(*) FROM entries WHERE kind = 'decision'").fetchone()[0]


async def reply(prompt):
    with calls.open("a") as file:
        file.write("call\\n")
    while len(calls.read_text().splitlines()) < 2:
        await asyncio.sleep(0.01)
    if "number 1" in prompt.messages[-1].content and not Path("killed").exists():
        while not is_waiting():
            await asyncio.sleep(0.01)
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    usage = TokenUsage(input_tokens=49_000, output_tokens=1_000)
    return ModelCallResponse(message=Message(role="assistant", content="done"), usage=usage)

killed = ScriptedModel(reply, name="scripted/killed")
"""
RECIPE: Final = """
id: numbers
steps:
  - id: each
    goal: "Look at number {{ loop.item }}."
    loop: [0, 1, 2]
    max_parallel: 2
"""
CONFIG: Final = """
[budgets]
tokens_per_day = 100_000
threshold = 0.5
on_threshold = "ask"
raise_to = 10
"""
FLAGS: Final = ("--extensions", "own.py", "--db", "j.sqlite")


def ran(here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_forked(
        [*PROGRAM, *arguments, *FLAGS, "--trust"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )


def calls(here: Path) -> int:
    return len((here / "calls.txt").read_text().splitlines())


def test_a_run_killed_while_it_waits_for_a_budget_asks_once_and_spends_nothing_meanwhile(
    here: Path, write: Write
) -> None:
    """A-170: the decision is there after SIGKILL, other processes wait for it, too, and make no
    call; one approval is enough for all."""
    write("own.py", MODEL)
    write("numbers.yaml", RECIPE)
    write("minions.toml", CONFIG)
    killed = ran(here, "run", "numbers.yaml", "-m", "scripted/killed", "--json")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    with closing(sqlite3.connect(here / "j.sqlite")) as db:
        ((run_id,),) = db.execute("SELECT DISTINCT run_id FROM entries WHERE kind = 'run'")
    assert calls(here) == 2
    other = ran(here, "run", "numbers.yaml", "-m", "scripted/killed", "--json")
    assert json.loads(other.stdout)["status"] == "needs_decision", other.stderr
    assert "the budget per_day is at its threshold: 50000 of 100000 tokens are used" in other.stderr
    assert calls(here) == 2
    approved = ran(here, "approve", run_id, "--arguments", '{"limit_tokens": 500000}', "--json")
    assert json.loads(approved.stdout)["status"] == "completed", approved.stderr
    assert calls(here) == 4
    again = ran(here, "resume", json.loads(other.stdout)["run_id"], "--json")
    assert json.loads(again.stdout)["status"] == "completed", again.stderr
    third = ran(here, "run", "numbers.yaml", "-m", "scripted/killed", "--json")
    assert json.loads(third.stdout)["status"] == "completed", third.stderr
    assert calls(here) == 10
    stopped = ran(here, "run", "numbers.yaml", "-m", "scripted/killed", "--json")
    assert json.loads(stopped.stdout)["status"] == "limit_reached"
    assert "tokens_per_day=500000 is reached" in stopped.stderr
