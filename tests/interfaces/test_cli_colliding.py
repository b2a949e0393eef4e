"""Two commands that want to go on with one run."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from builders import draft_of
from command_line import Cli, Write
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.runtime import SystemClock
from minions.data.json_values import JsonValue
from minions.engine.views.lookup import find_run

RECIPE = """
id: ask
steps: [{id: fine, ask: Fine?}]
"""
ROOT = Path(__file__).parents[2]
DB = ("--db", "j.db")


@pytest.fixture(autouse=True)
def _run(cli: Cli, write: Write) -> None:
    write("ask.yaml", RECIPE)
    assert cli("run", "ask.yaml", "--approve", "wait", *DB).code == 3


async def resume_elsewhere(worker: str) -> None:
    """Another process answered, and works on."""
    journal = SqliteJournal("j.db", SystemClock())
    run = await find_run(journal, "run_")
    lease = await journal.acquire(run.session_id, run.run_id, worker, 60, next_generation=True)
    (start,) = await journal.entries(run_id=run.run_id, kinds={"run"}, limit=1)
    said: dict[str, JsonValue] = {
        "decisions": {"fine/1/0/ask": 'answer:"yes"'},
        "retries": False,
        "anew": [],
    }
    body: dict[str, JsonValue] = {**start.body, **said}
    await journal.append(lease, draft_of("run", "resumed", body, key="run"))
    await journal.aclose()


@pytest.mark.parametrize(
    "command",
    [
        ("answer", "run_", "yes"),
        ("resume", "run_"),
        ("resume", "run_", "--decide", "fine/1/0/ask=answer:yes"),
        ("retry", "run_"),
    ],
    ids=" ".join,
)
def test_who_has_the_run_is_told_and_since_when(cli: Cli, command: tuple[str, ...]) -> None:
    asyncio.run(resume_elsewhere("far-away:17:4"))
    told = cli(*command, *DB)
    assert told.code == 4
    assert re.search(
        r"error\[lease-held\]: Nothing was done: run 'run_\w+' is active on worker "
        r"'far-away:17:4', which resumed it at "
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ",
        told.err,
    )
    assert "waited for" not in told.err


def test_a_worker_that_is_known_to_be_dead_has_nothing(cli: Cli) -> None:
    name = "from minions.engine.services.run_services import worker_name; print(worker_name())"
    dead = subprocess.run([sys.executable, "-c", name], cwd=ROOT, stdout=PIPE, check=True)
    asyncio.run(resume_elsewhere(dead.stdout.decode().strip()))
    assert cli("resume", "run_", *DB).code == 0
