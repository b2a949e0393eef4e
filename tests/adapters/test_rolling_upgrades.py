"""Two versions of this program beside each other on one database: additive migrations."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import aclosing, closing
from pathlib import Path
from typing import Final

import pytest

from minions.adapters.stores import postgres_database, sqlite_database
from minions.adapters.stores.migrations import ADDITIVE, missing_migrations
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.facts import RunStarted
from minions.contracts.journal.journal import EntryDraft, Journal
from minions.contracts.journal.run_rows import RunFilter
from minions.data.errors import JournalError
from minions.testing.journal_suite import holding
from minions.testing.virtual_time import FakeClock

_COMMENT: Final = re.compile(r"--[^\n]*")
_MAKES: Final = re.compile(
    r"CREATE (?:TABLE|UNIQUE INDEX|INDEX)\b|ALTER TABLE \S+(?: ADD COLUMN [^,]+,?)+\Z",
    re.IGNORECASE,
)
_NEEDED: Final = re.compile(r"\bNOT NULL\b(?![^,]*\bDEFAULT\b)", re.IGNORECASE)
_NEWER: Final = "9999_future.additive"
_PLAYED: Final = frozenset({"0017_counted_when_asked.additive"})
"""Those that put a view in the place of a table: what an older build asks of it is played below."""
_SQLITE: Final = (
    "-- What only the next version writes.\n"
    "ALTER TABLE runs ADD COLUMN mood TEXT;\n"
    "ALTER TABLE entries ADD COLUMN weight INTEGER NOT NULL DEFAULT 0;\n"
    "CREATE TABLE moods (name TEXT PRIMARY KEY, value TEXT NOT NULL);\n"
    "CREATE UNIQUE INDEX moods_by_value ON moods (value);\n"
)
_POSTGRES: Final = (
    "ALTER TABLE minions.runs ADD COLUMN mood text, ADD COLUMN rank bigint NOT NULL DEFAULT 0;\n"
    "ALTER TABLE minions.entries ADD COLUMN weight bigint NOT NULL DEFAULT 0;\n"
    "CREATE TABLE minions.moods (name text PRIMARY KEY, value text NOT NULL);\n"
)


def is_additive(script: str) -> bool:
    """Whether each statement of a migration only adds what an older build can leave alone: a table,
    an index that is not unique on an older table, or columns that may be null or have a default.
    """
    text = _COMMENT.sub("", script)
    statements = [" ".join(each.split()) for each in text.split(";") if each.strip()]
    made = {_name_of(each) for each in statements if each.upper().startswith("CREATE TABLE")}
    for each in statements:
        if _MAKES.match(each) is None:
            return False
        is_change = each.upper().startswith("ALTER")
        if is_change and _NEEDED.search(each):
            return False
        if each.upper().startswith("CREATE UNIQUE") and _indexed(each) not in made:
            return False
    return bool(statements)


def _name_of(statement: str) -> str:
    """The table that `CREATE TABLE NAME (…)` makes."""
    return statement.removeprefix("CREATE TABLE ").partition("(")[0].split()[-1]


def _indexed(statement: str) -> str:
    """The table of which `CREATE … INDEX … ON NAME (…)` makes one."""
    return statement.partition(" ON ")[2].partition("(")[0].strip()


async def _write(journal: Journal, session: str, *keys: str) -> None:
    lease = await journal.acquire(session, f"run_{session}", "w", 60)
    for key in keys:
        await journal.append(lease, holding({"text": key}, state="finished", key=key))
    await journal.release(lease)


async def _work_beside_each_other(before: Journal, after: Journal, again: Journal) -> None:
    """Both write; the one before also after the other one has migrated, and started anew."""
    await _write(before, "one", "a")
    await _write(after, "two", "a")
    await _write(before, "two", "b")
    await _write(after, "one", "b")
    await _write(again, "three", "a")
    for journal in (before, after, again):
        for session, keys in (("one", ["a", "b"]), ("two", ["a", "b"]), ("three", ["a"])):
            assert [each.key for each in await journal.entries(session)] == keys
            assert (await journal.verify(session)).fault is None
        assert await journal.runs(RunFilter()) == await before.runs(RunFilter())


async def test_the_sqlite_journal_of_the_build_before_works_beside_a_newer_one(
    tmp_path: Path,
) -> None:
    newer = {**sqlite_database.bundled_migrations(), _NEWER: _SQLITE}
    path = tmp_path / "j.db"
    async with (
        aclosing(SqliteJournal(path, FakeClock())) as before,
        aclosing(SqliteJournal(path, FakeClock(), migrations=newer)) as after,
        aclosing(SqliteJournal(path, FakeClock())) as again,
    ):
        await _work_beside_each_other(before, after, again)


async def test_the_postgres_journal_of_the_build_before_works_beside_a_newer_one(
    empty_postgres_url: str,
) -> None:
    newer = {**postgres_database.bundled_migrations(), _NEWER: _POSTGRES}
    async with (
        aclosing(PostgresJournal(empty_postgres_url, FakeClock())) as before,
        aclosing(PostgresJournal(empty_postgres_url, FakeClock(), migrations=newer)) as after,
        aclosing(PostgresJournal(empty_postgres_url, FakeClock())) as again,
    ):
        await _work_beside_each_other(before, after, again)


def test_what_is_not_additive_keeps_an_older_build_out() -> None:
    known = {"0001_a": "", "0002_b.additive": ""}
    assert missing_migrations(["0001_a"], known, "it") == ["0002_b.additive"]
    applied = ["0001_a", "0002_b.additive", "0003_c.additive"]
    assert missing_migrations(applied, known, "it") == []
    # One that an additive one stands before was not applied here yet: it still is.
    assert missing_migrations(["0001_a", "0003_c.additive"], known, "it") == ["0002_b.additive"]
    with pytest.raises(JournalError) as refused:
        missing_migrations([*applied, "0004_d"], known, "it")
    assert refused.value.error_code == "newer-database"
    assert "0004_d" in refused.value.message


@pytest.mark.parametrize(
    "bundled", [sqlite_database.bundled_migrations(), postgres_database.bundled_migrations()]
)
def test_a_migration_that_says_it_is_additive_is(bundled: Mapping[str, str]) -> None:
    for name, script in {**bundled, _NEWER: _SQLITE, "x.additive": _POSTGRES}.items():
        is_seen_to = not name.endswith(ADDITIVE) or name in _PLAYED
        assert is_seen_to or is_additive(script), name


async def test_a_build_whose_triggers_count_rows_works_with_the_view_in_their_place(
    tmp_path: Path,
) -> None:
    path = tmp_path / "j.db"
    async with aclosing(SqliteJournal(path, FakeClock())) as journal:
        lease = await journal.acquire("one", "run_one", "w", 60)
        await journal.append(
            lease, EntryDraft(key="run", fact=RunStarted(recipe="r", steps={"a": "1"}))
        )
        assert await journal.count_runs() == 1
        with closing(sqlite3.connect(path, isolation_level=None)) as older:
            last, seen = older.execute(
                "SELECT (SELECT ifnull(max(id), 0) FROM entries), ifnull(max(seen), 0) "
                "FROM row_counts"
            ).fetchone()
            assert last == seen == 1
            assert older.execute("SELECT runs, sessions FROM row_counts").fetchone() == (1, 1)
            older.execute("UPDATE row_counts SET seen = ?", (0,))
            older.execute("DELETE FROM runs")
            older.execute("DELETE FROM sessions")
            assert older.execute("SELECT * FROM row_counts").fetchone() == (0, 0, 0)
        # What was marked as not looked at yet is looked at again, and the rows are made.
        assert [row.run_id for row in await journal.runs()] == ["run_one"]
        with closing(sqlite3.connect(path, isolation_level=None)) as older:
            assert older.execute("SELECT * FROM row_counts").fetchone() == (1, 1, 1)
            older.execute("DELETE FROM entries")
            assert older.execute("SELECT seen FROM row_counts").fetchone() == (0,)


@pytest.mark.parametrize(
    "script",
    [
        "",
        "DROP TABLE runs;",
        "ALTER TABLE runs ADD COLUMN x TEXT NOT NULL;",
        "ALTER TABLE runs ADD COLUMN x TEXT, DROP COLUMN y;",
        "ALTER TABLE runs RENAME TO walks;",
        "CREATE UNIQUE INDEX one_each ON runs (recipe);",
        "CREATE TABLE x (a); UPDATE runs SET recipe = '';",
        "CREATE TRIGGER t AFTER INSERT ON runs BEGIN SELECT 1; END;",
    ],
)
def test_what_an_older_build_would_stumble_over_is_not_additive(script: str) -> None:
    assert not is_additive(script)
