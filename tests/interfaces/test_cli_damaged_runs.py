"""A damaged run harms only itself: A-123."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from command_line import Cli, Write

RECIPE = "id: small\nsteps: [{id: a, set: {n: 1}}, {id: ask, ask: 'Fine?'}]\n"
DB = ("--db", "j.db")


@pytest.fixture
def runs(cli: Cli, write: Write, here: Path) -> tuple[str, str]:
    """A run that will be damaged, and one that stays whole."""
    write("small.yaml", RECIPE)
    for _ in range(2):
        assert cli("run", "small.yaml", *DB).code == 3
    listed = json.loads(cli("sessions", "list", "--json", *DB).out)
    return str(listed[1]["run_id"]), str(listed[0]["run_id"])


def _damage(run_id: str, kind: str, body: str) -> None:
    with closing(sqlite3.connect("j.db")) as db:
        changed = db.execute(
            "UPDATE entries SET body = ?, body_digest = NULL WHERE run_id = ? AND kind = ?",
            (body, run_id, kind),
        )
        assert changed.rowcount > 0
        db.commit()


DAMAGES: dict[str, tuple[str, str, str]] = {
    "no JSON": ("run", '{"recipe": "small', "its body is not JSON"),
    "no object": ("run", "[]", "its body is no JSON object"),
    "no recipe": ("run", "{}", "Object missing required field `recipe`"),
    "another type": ("run", '{"recipe": 7}', "Expected `str`, got `int` - at `$.recipe`"),
    "a step": ("step", "{}", "Object missing required field `step_id`"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_other_runs_are_listed_and_shown(cli: Cli, runs: tuple[str, str], name: str) -> None:
    """A-123: the damaged one is named with the entry and what was expected there."""
    kind, body, words = DAMAGES[name]
    bad, good = runs
    _damage(bad, kind, body)
    listed = cli("sessions", "list", *DB)
    assert listed.code == 0, listed.err
    assert bad in listed.out
    if kind == "run":
        assert "unreadable" in listed.out
        assert words in " ".join(listed.out.split())
    assert cli("sessions", "show", good, *DB).code == 0
    refused = cli("sessions", "show", bad, *DB)
    assert (refused.code, refused.out) == (4, "")
    assert "error[corrupt-entry]: Entry " in refused.err
    assert words in " ".join(refused.err.split())
    assert f"run '{bad}'" in refused.err


def test_an_end_without_a_known_status_is_unreadable(cli: Cli, runs: tuple[str, str]) -> None:
    """A-123."""
    bad, _ = runs
    with closing(sqlite3.connect("j.db")) as db:
        db.execute(
            'UPDATE entries SET body = \'{"status": "over"}\' '
            "WHERE run_id = ? AND kind = 'run' AND state = 'finished'",
            (bad,),
        )
        db.commit()
    rows = json.loads(cli("sessions", "list", "--json", *DB).out)
    row = next(each for each in rows if each["run_id"] == bad)
    assert row["status"] == "unreadable"
    assert "`over` is no status" in row["problem"]


COMMANDS: dict[str, Callable[[str, str], tuple[str, ...]]] = {
    "run": lambda bad, good: ("run", "small.yaml"),
    "answer": lambda bad, good: ("answer", good, "yes"),
    "list": lambda bad, good: ("sessions", "list", "--json"),
    "doctor": lambda bad, good: ("doctor",),
    "rm": lambda bad, good: ("sessions", "rm", bad, "--yes"),
    "gc": lambda bad, good: ("sessions", "gc", "--older-than", "1d"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_other_commands_work_beside_it(cli: Cli, runs: tuple[str, str], name: str) -> None:
    """A-123."""
    bad, good = runs
    _damage(bad, "run", "{")
    done = cli(*COMMANDS[name](bad, good), *DB)
    assert done.code in (0, 3), done.err
    if name == "list":
        row = next(each for each in json.loads(done.out) if each["run_id"] == bad)
        assert row["status"] == "unreadable"
        assert "its body is not JSON" in row["problem"]


@pytest.mark.parametrize("command", ["resume", "retry", "cancel", "approve"])
def test_what_is_asked_of_the_damaged_run_says_which_entry(
    cli: Cli, runs: tuple[str, str], command: str
) -> None:
    """A-123: nothing ends as an internal error."""
    bad, _ = runs
    _damage(bad, "run", "{}")
    done = cli(command, bad, *DB)
    assert done.code == 4
    assert "error[corrupt-entry]" in done.err
    assert "minions sessions rm" in " ".join(done.err.split())
