"""A database that cannot be used ends a command with code 4 and a way out, not a traceback."""

from __future__ import annotations

import functools
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from command_line import Cli, Write
from minions.adapters.stores import sqlite_journal
from read_only import contents_of, open_folder, without_rights

SET = "id: bind\nsteps:\n  - {id: a, set: {n: 1}}\n"
LOSE = """
from pathlib import Path
from minions import tool

@tool
def lose() -> int:
    '''Loses the database.'''
    for path in Path().glob("j.sqlite*"):
        path.unlink()
    return 1
"""
RUN = ("run", "bind.yaml", "--db", "j.sqlite")
LIST = ("sessions", "list", "--db", "j.sqlite")
SHOW = ("sessions", "show", "run_", "--db", "j.sqlite")


@pytest.fixture
def database(here: Path, write: Write, cli: Cli) -> Path:
    """One that holds a run."""
    write("bind.yaml", SET)
    assert cli(*RUN).code == 0
    return here / "j.sqlite"


def _garbage(path: Path) -> None:
    path.write_bytes(b"my diary " * 1000)


def _damaged(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xa5" * (len(data) - 4096))


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:6000])


def _newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO applied_migrations (name) VALUES ('9999_future')")
        db.commit()


def _other(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE cookies (a)")


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("command", [RUN, LIST, SHOW], ids=lambda command: command[0])
@pytest.mark.parametrize(
    ("spoil", "code", "remedy"),
    [
        (_garbage, "not-a-database", "Give the journal a file of its own"),
        (_damaged, "corrupt-database", "Restore a backup"),
        (_truncated, "corrupt-database", "Restore a backup"),
        (_newer, "newer-database", "Upgrade this program"),
        (_other, "not-a-journal", "Give the journal a file of its own"),
        (_folder, "cannot-open", "the path is a file"),
    ],
)
def test_a_bad_database_ends_a_command_with_code_4(
    cli: Cli,
    database: Path,
    spoil: Callable[[Path], None],
    code: str,
    remedy: str,
    command: tuple[str, ...],
) -> None:
    spoil(database)
    outcome = cli(*command)
    assert (outcome.code, outcome.out) == (4, "")
    assert f"error[{code}]" in outcome.err
    assert remedy in outcome.err
    assert "Traceback" not in outcome.err


def test_a_locked_database_ends_a_run_with_code_4_and_can_still_be_listed(
    cli: Cli, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient = functools.partial(sqlite_journal.SqliteJournal, busy_timeout_s=0.05)
    monkeypatch.setattr(sqlite_journal, "SqliteJournal", impatient)
    with closing(sqlite3.connect(database, isolation_level=None)) as blocker:
        blocker.execute("BEGIN IMMEDIATE")
        outcome = cli(*RUN)
        assert outcome.code == 4
        assert "error[database-busy]" in outcome.err
        assert "Another process keeps it locked" in outcome.err
        assert cli(*LIST).out.count("run_") == 1


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_database_that_is_deleted_during_a_run_fails_the_run(
    cli: Cli, here: Path, write: Write, flags: tuple[str, ...]
) -> None:
    write("own.py", LOSE)
    write("lose.yaml", "steps:\n  - {id: a, tool: lose}\n  - {id: b, set: {n: 1}}\n")
    outcome = cli("run", "lose.yaml", "--extensions", "own.py", "--db", "j.sqlite", *flags)
    assert outcome.code == 1
    assert "database-gone" in outcome.err
    assert "deleted, moved or replaced while it was in use" in outcome.err
    assert not list(here.glob("j.sqlite*"))


@pytest.fixture
def closed_database(database: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One with two runs, in a folder where nobody may write. Each command was executed before, so
    that what it imports is there: nobody may not read a folder of root's.
    """
    assert cli(*RUN).code == 0
    listed = json.loads(cli(*LIST, "--all", "--json").out)
    first, second = (run["run_id"] for run in listed)
    for command in (("show", first), ("diff", first, second), ("export", first), ("rm", "none")):
        cli("sessions", *command, "--db", "j.sqlite")
    with open_folder() as folder:
        for file in (database, *database.parent.glob("*.yaml")):
            Path(shutil.copy(file, folder)).chmod(0o444)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))  # the folder of tests is closed
        folder.chmod(0o555)
        before = contents_of(folder)
        yield folder / database.name
        assert contents_of(folder) == before


def test_runs_of_a_database_that_cannot_be_written_are_listed_shown_compared_and_exported(
    cli: Cli, closed_database: Path
) -> None:
    with without_rights():
        listed = json.loads(cli(*LIST, "--all", "--json").out)
        first, second = (run["run_id"] for run in listed)
        for command in (("show", first), ("diff", first, second), ("export", first)):
            outcome = cli("sessions", *command, "--db", "j.sqlite")
            assert (outcome.code, "error" in outcome.err) == (0, False)
            assert outcome.out


def test_a_command_that_writes_to_such_a_database_says_what_to_do(
    cli: Cli, closed_database: Path
) -> None:
    with without_rights():
        run_id = json.loads(cli(*LIST, "--all", "--json").out)[0]["run_id"]
        for command in (RUN, ("sessions", "rm", run_id, "--yes", "--db", "j.sqlite")):
            outcome = cli(*command)
            assert (outcome.code, outcome.out) == (4, "")
            assert "error[read-only]" in outcome.err
            assert "Make all writable. Until then its runs can be listed, shown" in outcome.err
            assert "name another database with --db" in outcome.err


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("sessions", "show", "run_x"), 2),
        (("sessions", "export", "run_x"), 2),
        (("sessions", "follow", "run_x"), 2),
        (("sessions", "diff", "run_x", "run_y"), 2),
        (("sessions", "rm", "ses_x", "--yes"), 2),
        (("resume", "run_x"), 2),
        (("retry", "run_x"), 2),
        (("approve", "run_x"), 2),
        (("cancel", "run_x"), 2),
        (("fork", "ses_x"), 2),
        (("rollback", "run_x"), 2),
        (("sessions", "gc", "--keep", "3"), 0),
        (("schedules", "list"), 0),
        (("schedules", "remove", "x"), 2),
    ],
)
def test_a_command_about_what_is_stored_makes_no_database(
    cli: Cli, here: Path, command: tuple[str, ...], code: int
) -> None:
    ended = cli(*command, "--db", "mistyped.sqlite")
    assert ended.code == code, ended.err
    if "unknown-session" in ended.err:
        assert "mistyped.sqlite, which does not exist." in " ".join(ended.err.split())
    assert [each.name for each in here.iterdir()] == [".git"]


def test_a_place_that_nobody_can_look_at_is_not_said_to_be_missing(cli: Cli, here: Path) -> None:
    ended = cli("sessions", "list", "--db", f"{'a' * 300}.sqlite")
    assert ended.code == 4, ended.err
    assert "does not exist" not in ended.err
    assert "Traceback" not in ended.err


def test_a_list_of_runs_names_the_database_that_is_missing(cli: Cli, here: Path) -> None:
    ended = cli("sessions", "list", "--db", "mistyped.sqlite")
    assert (ended.code, list(here.glob("*sqlite*"))) == (0, [])
    assert f"No runs yet: {here / 'mistyped.sqlite'} does not exist." in ended.err
