"""`minions sessions rm` and `gc`."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from builders import draft_of
from command_line import Cli, Write
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.runtime import SystemClock
from minions.data.json_values import JsonValue

RECIPE = """
id: greet
inputs: {name: {type: string}}
steps: [{id: say, set: {text: "Hello {{ inputs.name }}"}}]
"""
DB = ("--db", "j.db")
MONTHS_S = 100 * 86_400


@pytest.fixture(autouse=True)
def _runs(cli: Cli, write: Write) -> None:
    write("greet.yaml", RECIPE)
    for name in ("Ada", "Bob"):
        assert cli("run", "greet.yaml", "-p", f"name={name}", *DB).code == 0


def ids(cli: Cli) -> list[str]:
    """Of the sessions, the oldest first."""
    runs = json.loads(cli("sessions", "list", "--json", *DB).out)
    return [run["session_id"] for run in runs][::-1]


def age(here: Path, session_id: str) -> None:
    """As if all of it had been months ago; the blobs of all sessions, too."""
    with closing(sqlite3.connect(here / "j.db")) as db, db:
        db.execute(
            "UPDATE entries SET at = at - ? WHERE session_id = ?", (MONTHS_S * 10**6, session_id)
        )
        db.execute("UPDATE blobs SET put_at = put_at - ?", (MONTHS_S * 10**6,))


async def fork_of(parent: str) -> None:
    journal = SqliteJournal("j.db", SystemClock())
    lease = await journal.acquire("ses_fork", "edit_1", "w", 60)
    body: dict[str, JsonValue] = {"parent": parent, "sequence": 1, "position": 1}
    draft = draft_of("session", "forked", body, key="session")
    await journal.append(lease, draft)
    await journal.release(lease)
    await journal.aclose()


class Terminal(io.StringIO):
    """A person types `text`."""

    def isatty(self) -> bool:
        return True


# --- rm --------------------------------------------------------------------------------------


def test_sessions_are_removed(cli: Cli) -> None:
    first, second = ids(cli)
    told = cli("sessions", "rm", first, "--yes", *DB)
    assert (told.code, told.out) == (0, f"removed {first}\n")
    assert ids(cli) == [second]
    told = cli("sessions", "rm", second, "--yes", "--json", *DB)
    assert told.json == {"removed": [second]}
    assert ids(cli) == []


def test_nobody_is_there_to_be_asked(cli: Cli) -> None:
    first, second = ids(cli)
    told = cli("sessions", "rm", first, *DB)
    assert told.code == 2
    assert f"error[not-agreed]: Removing {first} cannot be undone" in told.err
    assert ids(cli) == [first, second]


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 1), ("n\n", 130, 2)])
def test_a_person_is_asked(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, left: int
) -> None:
    first, _ = ids(cli)
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    monkeypatch.setattr(
        "minions.interfaces.cli.commands.session_archives._is_terminal", lambda: True
    )
    told = cli("sessions", "rm", first, *DB)
    assert f"Remove {first}, for good? [y/N]" in told.out + told.err
    assert (told.code, len(ids(cli))) == (code, left)


def test_a_session_with_forks_goes_with_them_alone(cli: Cli) -> None:
    first, _ = ids(cli)
    asyncio.run(fork_of(first))
    told = cli("sessions", "rm", first, "--yes", *DB)
    assert told.code == 2
    assert "error[has-forks]" in told.err
    assert f"minions sessions rm {first} ses_fork" in told.err
    told = cli("sessions", "rm", first, "ses_fork", "--yes", *DB)
    assert told.out == f"removed ses_fork\nremoved {first}\n"


def test_a_session_in_which_something_runs_stays(cli: Cli) -> None:
    first, second = ids(cli)

    async def hold() -> None:
        journal = SqliteJournal("j.db", SystemClock())
        await journal.acquire(first, "run_now", "another-host:1:1", 60)
        await journal.aclose()

    asyncio.run(hold())
    told = cli("sessions", "rm", second, first, "--yes", *DB)
    assert told.code == 4
    assert "error[lease-held]" in told.err
    assert "'run_now' is active on worker 'another-host:1:1'" in told.err
    assert ids(cli) == [first, second]


# --- gc --------------------------------------------------------------------------------------


def test_old_sessions_and_their_blobs_go_and_the_file_shrinks(cli: Cli, here: Path) -> None:
    first, second = ids(cli)
    with closing(sqlite3.connect(here / "j.db")) as db, db:
        db.execute("INSERT INTO blobs (digest, data) VALUES (?, ?)", ("0" * 64, b"x" * 300_000))
    age(here, first)
    told = cli("sessions", "gc", "--older-than", "30d", "--dry-run", *DB)
    assert told.out == f"would remove {first}\nwould free 1 session, 1 blob (293.0 KiB)\n"
    assert ids(cli) == [first, second]
    told = cli("sessions", "gc", "--older-than", "30d", *DB)
    lines = told.out.splitlines()
    assert lines[:2] == [f"removed {first}", "freed 1 session, 1 blob (293.0 KiB)"]
    assert re.fullmatch(r"the file is \d+\.\d KiB smaller", lines[2])
    assert ids(cli) == [second]
    assert cli("run", "greet.yaml", "-p", "name=Cleo", *DB).code == 0
    with closing(sqlite3.connect(here / "j.db")) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_file_that_others_have_open_is_left_at_its_size(cli: Cli, here: Path) -> None:
    with closing(sqlite3.connect(here / "j.db")) as db:
        db.execute("INSERT INTO blobs (digest, data) VALUES (?, ?)", ("0" * 64, b"x" * 300_000))
        db.commit()
        db.execute("SELECT count(*) FROM entries").fetchone()
        assert cli("sessions", "gc", *DB).out == "freed 0 sessions, 1 blob (293.0 KiB)\n"
    assert "smaller" in cli("sessions", "gc", *DB).out


def test_without_an_age_no_session_goes(cli: Cli, here: Path) -> None:
    before = ids(cli)
    age(here, before[0])
    assert cli("sessions", "gc", *DB).out.startswith("freed 0 sessions, 0 blobs (0 bytes)\n")
    assert ids(cli) == before


def test_the_newest_are_kept_and_programs_are_told(cli: Cli) -> None:
    first, second = ids(cli)
    told = cli("sessions", "gc", "--keep", "1", "--json", *DB).json
    assert told["sessions"] == [first]
    assert told["kept"] == {"unfinished": [], "forked": []}
    assert ids(cli) == [second]


def test_the_cache_is_forgotten_when_it_is_said(cli: Cli, here: Path) -> None:
    with closing(sqlite3.connect(here / "j.db")) as db, db:
        db.execute(
            "INSERT INTO step_cache (key, output, run_id, created_at) VALUES ('k', '1', 'run_1', 0)"
        )
    cli("sessions", "gc", *DB)
    told = cli("sessions", "gc", "--cache", *DB)
    assert "removed 1 cached output" in told.out
    assert "cached" not in cli("sessions", "gc", "--cache", *DB).out


def test_an_age_is_a_time(cli: Cli) -> None:
    told = cli("sessions", "gc", "--older-than", "soon", *DB)
    assert told.code == 2
    assert "'soon' is not a duration" in told.err
