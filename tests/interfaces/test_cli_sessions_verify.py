"""`minions sessions verify`: an honest journal, and rows that somebody changed in the database."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from command_line import Cli, Write
from older_archives import without_chain

RECIPE = """
id: greet
inputs: {name: {type: string}}
steps:
  - {id: say, set: {text: "Hello {{ inputs.name }}"}}
  - {id: fine, ask: "Fine?", form: {type: string}}
output: "{{ say.text }}: {{ fine }}"
"""
DB = ("--db", "j.db")


@pytest.fixture(autouse=True)
def _runs(cli: Cli, write: Write) -> None:
    write("greet.yaml", RECIPE)
    for name in ("ada", "bob"):
        run = ("run", "greet.yaml", "-p", f"name={name}", "--session", name)
        assert cli(*run, "--approve", "wait", *DB).code == 3


def change(here: Path, sql: str) -> None:
    with closing(sqlite3.connect(here / "j.db")) as db, db:
        db.execute(sql)


def test_honest_sessions_are_told_with_their_heads(cli: Cli) -> None:
    """A-171: after a run, its resume, a retry, a fork and an import."""
    assert cli("answer", "ada", "fine", "yes", *DB).code == 0
    assert cli("retry", "ada", *DB).code in (0, 2, 3)
    told = cli("sessions", "verify", *DB)
    lines = told.out.splitlines()
    assert (told.code, told.err) == (0, "")
    assert [line.split(": ")[0] for line in lines] == ["ada", "bob"]
    assert all(": ok · " in line for line in lines)
    found = json.loads(cli("sessions", "verify", "bob", "--json", *DB).out)
    (report,) = found["sessions"]
    assert (found["ok"], report["fault"], report["uncovered"]) == (True, None, 0)
    assert lines[1] == f"bob: ok · {report['entries']} rows · {report['head']}"
    cli("sessions", "export", "ada", "-o", "s.jsonl", *DB)
    assert cli("sessions", "import", "s.jsonl", "--db", "elsewhere.db").code == 0
    assert cli("sessions", "verify", "--db", "elsewhere.db").code == 0


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("UPDATE entries SET at = at + 1 WHERE position = 2 AND session_id = 'bob'", "changed"),
        ("DELETE FROM entries WHERE position = 2 AND session_id = 'bob'", "removed"),
        ("UPDATE entries SET body = '{' WHERE position = 2 AND session_id = 'bob'", "damaged"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(cli: Cli, here: Path, sql: str, what: str) -> None:
    """A-171."""
    change(here, sql)
    told = cli("sessions", "verify", *DB)
    assert told.code == 1
    good, bad = told.out.splitlines()
    assert good.startswith("ada: ok · ")
    assert bad.startswith(f"bob: {what} · row 2: ")
    assert cli("sessions", "verify", "ada", *DB).code == 0
    fault = json.loads(cli("sessions", "verify", "bob", "--json", *DB).out)["sessions"][0]["fault"]
    assert (fault["position"], fault["what"]) == (2, what)
    assert cli("sessions", "export", "bob", *DB).code != 0


def test_a_session_of_which_all_rows_are_gone_is_missed(cli: Cli, here: Path) -> None:
    """A-171."""
    change(here, "DELETE FROM entries WHERE session_id = 'bob'")
    told = cli("sessions", "verify", *DB)
    assert (told.code, told.out.splitlines()[1].split(" row")[0]) == (1, "bob: cut ·")
    assert cli("sessions", "rm", "ada", "--yes", *DB).code == 0
    assert cli("sessions", "verify", *DB).out.splitlines()[0].startswith("bob: cut")


def test_a_head_that_was_noted_is_asked_for(cli: Cli, here: Path) -> None:
    """A-171: whoever writes the rest of the journal again does not have it."""
    head = json.loads(cli("sessions", "verify", "bob", "--json", *DB).out)["sessions"][0]["head"]
    assert cli("answer", "bob", "fine", "yes", *DB).code == 0
    assert cli("sessions", "verify", "bob", "--head", head, *DB).code == 0
    other = cli("sessions", "verify", "bob", "--head", "0" * 64, *DB)
    assert (other.code, "no entry has the head" in other.out) == (1, True)
    for wrong in (("bob", "--head", "00"), ("--head", head), ("ada", "bob", "--head", head)):
        assert "--head goes with one ID" in cli("sessions", "verify", *wrong, *DB).err


def test_a_file_without_chains_is_imported_with_a_note(cli: Cli, write: Write) -> None:
    lines = cli("sessions", "export", "bob", *DB).out.splitlines()
    write("old.jsonl", b"".join(without_chain(lines)).decode())
    told = cli("sessions", "import", "old.jsonl", "--db", "elsewhere.db")
    assert told.code == 0
    assert f"{len([line for line in lines if 'row' in json.loads(line)])} rows of" in told.err
    assert "have no chain value" in told.err


def test_without_sessions_nothing_is_wrong(cli: Cli) -> None:
    told = cli("sessions", "verify", "--db", "none.db")
    assert (told.code, told.out, "no sessions" in told.err) == (0, "", True)
