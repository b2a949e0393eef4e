"""`minions sessions` names the state of a run as the HTTP API does."""

from __future__ import annotations

import json

import pytest

from command_line import Cli, Write


@pytest.fixture(autouse=True)
def _project(write: Write) -> None:
    """A step that lists the runs while its own run goes on."""
    write("own.py", OWN)
    write("looks.yaml", "id: looks\nsteps: [{id: look, tool: look}]\noutput: '{{ look }}'\n")


OWN = """
import asyncio
from pathlib import Path
from minions import SqliteJournal, tool
from minions.engine.services.run_services import SystemClock
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_detail import show_run

@tool(effect="pure")
async def look() -> list[str]:
    '''What the journal tells of the run.'''
    journal = SqliteJournal(Path("j.sqlite"), SystemClock())
    (run,) = await list_runs(journal)
    detail = await show_run(journal, run)
    await journal.aclose()
    return [run.status, *(step.status for step in detail.steps)]
"""


def test_a_run_is_running_while_it_goes_on_and_completed_afterwards(cli: Cli) -> None:
    """A-128: its step that has no end yet is named like the run."""
    done = cli("run", "looks.yaml", "--db", "j.sqlite", "--extensions", "own.py", "--json")
    assert json.loads(done.out)["output"] == ["running", "running"]
    (listed,) = json.loads(cli("sessions", "list", "--db", "j.sqlite", "--json").out)
    assert listed["status"] == "completed"
