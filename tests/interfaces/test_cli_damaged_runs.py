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
    "an infinite number": (
        *("run", '{"recipe": "small", "inputs": {"a": 2e308, "b": 1}}'),
        "its body is not JSON",
    ),
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
    assert "`over` is not a status" in row["problem"]


CHANGES: dict[str, str] = {
    "an endless body": f"UPDATE entries SET body = '{'[' * 20_000}' WHERE kind = 'run' AND",
    "a recipe that is no text": (
        """UPDATE entries SET body = '{"recipe": {}}' WHERE kind = 'run' AND"""
    ),
    "a model that is no text": (
        "UPDATE entries SET body = json_set(body, '$.model', json('{}')) WHERE state='started' AND"
    ),
    "usage that is no object": (
        "UPDATE entries SET body = json_set(body, '$.usage', json('[1]')) "
        "WHERE kind = 'run' AND state = 'finished' AND"
    ),
    "session_id": "UPDATE entries SET session_id = x'ff00' WHERE position = 1 AND",
    "run_id": "UPDATE entries SET run_id = CAST(run_id AS BLOB) WHERE kind = 'run' AND",
    "key": "UPDATE entries SET key = x'ff' WHERE kind = 'run' AND state = 'started' AND",
    "kind": "UPDATE entries SET kind = x'ff' WHERE kind = 'run' AND",
    "state": "UPDATE entries SET state = CAST(state AS BLOB) WHERE kind = 'run' AND",
    "position": "UPDATE entries SET position = 'abc' WHERE position = 1 AND",
    "generation": "UPDATE entries SET generation = 'abc' WHERE kind = 'run' AND",
    "epoch": "UPDATE entries SET epoch = 'abc' WHERE kind = 'run' AND",
    "no UTF-8": "UPDATE entries SET key = CAST(x'61ff' AS TEXT) WHERE position = 1 AND",
    "lease epoch": "UPDATE leases SET epoch = 'abc', deadline = 9000000000000000 WHERE",
    "lease text": (
        "UPDATE leases SET worker_id = CAST(x'ff' AS TEXT), deadline = 9000000000000000 WHERE"
    ),
    "lease worker": "UPDATE leases SET worker_id = x'ff', deadline = 9000000000000000 WHERE",
}
_NOT_NAMED = ("run_id", "kind", "lease epoch", "lease worker", "lease text")


@pytest.mark.parametrize("name", CHANGES)
def test_no_value_of_one_row_ends_the_lists(cli: Cli, runs: tuple[str, str], name: str) -> None:
    """A-123: whatever another program wrote there."""
    bad, good = runs
    with closing(sqlite3.connect("j.db")) as db:
        changed = db.execute(f"{CHANGES[name]} run_id = ?", (bad,))
        assert changed.rowcount > 0
        db.commit()
    listed = cli("sessions", "list", "--json", *DB)
    assert listed.code == 0, listed.err
    states = {each["run_id"]: each["status"] for each in json.loads(listed.out)}
    assert states[good] == "needs_decision"
    if name not in _NOT_NAMED:
        assert states[bad] == "unreadable"
    assert cli("sessions", "list", *DB).code == 0
    assert cli("answer", good, "yes", *DB).code == 0


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
