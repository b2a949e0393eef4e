"""Every list of the command line begins with a head line, and has nothing where nothing is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

import click
import pytest

from command_line import Cli, Write
from minions.interfaces.cli.console.console import table_lines
from minions.interfaces.cli.main import command as root

DB: Final = ("--db", "j.sqlite")
HEADS: Final = {
    "sessions list": "RUN SESSION STARTED STATUS TIME TOKENS COST RECIPE INPUTS",
    "schedules list": "SCHEDULE RECIPE TIMES NEXT LAST RUN NOTES",
    "deployments list": "DEPLOYMENT RECIPE LIVE CANARY",
    "budgets": "BUDGET OF PERIOD SPENT NOTES",
    "agents list": "AGENT ABOUT",
    "mcp list": "SERVER STATE FROM",
    "worker queues list": "QUEUE WAITING DELAYED EXECUTED LIMITS",
    "worker list": "WORKER STATE RUNS QUEUES SEEN",
    "models list": "MODEL SIZE LICENCE",
}
_ELSEWHERE: Final = ("models list", "worker list")
"""Those that need weights or a live worker: `test_local_models.py`, `test_unlike_workers.py`."""


def lists(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if not path and name in ("queues", "workers"):  # older names of commands of `worker`
                continue
            if (inner := command.get_command(context, name)) is not None:
                yield from lists(inner, (*path, name))
    elif path[-1] in ("list", "budgets"):
        yield " ".join(path)


def test_the_head_line_of_every_list_is_known() -> None:
    assert {*lists(root)} == HEADS.keys()


@pytest.mark.parametrize("command", [each for each in HEADS if each not in _ELSEWHERE])
def test_a_list_begins_with_its_head_line(
    cli: Cli, write: Write, postgres_url: str, command: str
) -> None:
    write("r.yaml", 'id: r\nschedule: "@daily"\nsteps:\n  - {id: a, set: {n: 1}}\n')
    write(
        "minions.toml",
        "[budgets]\nusd_per_day = 5\n[mcp.fake]\ncommand = " + f'["{sys.executable}"]\n',
    )
    is_shared = command == "worker queues list"
    db = ("--db", postgres_url) if is_shared else DB
    assert cli("run", "r.yaml", *db).code == 0
    if is_shared:
        assert cli("run", "r.yaml", "--detach", *db).code == 0
    else:
        assert cli("schedules", "add", "r.yaml", *db).code == 0
        assert cli("deploy", "r.yaml", "--as", "r", *db).code == 0
    more = () if command in ("agents list", "mcp list") else db
    done = cli(*command.split(), *more)
    assert done.code == 0, done.err
    head, *rows = done.out.splitlines()
    assert head.split() == HEADS[command].split()
    assert rows


def test_cells_stand_below_their_heads_and_numbers_end_there() -> None:
    assert table_lines(("NAME", "RUNS", "ABOUT"), [("a", "100000", "")], numbers=["RUNS"]) == [
        "NAME    RUNS  ABOUT",
        "a     100000",
    ]
