"""What lists and sums of 10,000 runs read, counted in statements and rows, in both databases."""

from __future__ import annotations

import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import psycopg
import pytest

from minions.adapters.stores import postgres_rows, sqlite_rows, stored_rows
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.row_queries import RowLookups
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.run_rows import RunFilter, RunRow, SessionFilter, UsageBound
from minions.contracts.runtime import Clock
from minions.engine.views.lookup import page_of_runs
from minions.engine.views.run_figures import Grouping, Period, read_figures
from minions.testing.virtual_time import FakeClock

RUNS = 10_000
START = datetime(2026, 1, 20, tzinfo=UTC)
NOW = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)
REST = (
    """["model",null,[5,5,0,10,0.5],null,null,null,null,null,"""
    r""""where: Z\u00fcrich \u00b7 what: thing """
)
"""With the dot that stands between inputs, and another letter."""


class Reads:
    """What a journal was asked for since it was last looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
        self.statements = self.rows = self.made = 0
        read, make = module._rows, module.run_of

        def count(found: Sequence[object]) -> None:
            self.statements += 1
            self.rows += len(found)

        async def counted_later(db: object, question: object) -> object:
            count(found := await read(db, question))
            return found

        def counted(db: object, question: object) -> object:
            count(found := read(db, question))
            return found

        def counted_row(*columns: object) -> RunRow:
            self.made += 1
            row: RunRow = make(*columns)
            return row

        is_later = inspect.iscoroutinefunction(read)
        monkeypatch.setattr(module, "_rows", counted_later if is_later else counted)
        monkeypatch.setattr(module, "run_of", counted_row)

    def take(self) -> tuple[int, int, int]:
        """Statements, the rows that they gave, and the rows of runs that were made of these."""
        found = (self.statements, self.rows, self.made)
        self.statements = self.rows = self.made = 0
        return found


@pytest.fixture(params=["sqlite", "postgres"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return sqlite_rows if request.param == "sqlite" else postgres_rows


@pytest.fixture
async def journal(
    module: ModuleType,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[RowLookups]:
    clock: Clock = FakeClock()
    made: RowLookups
    if module is sqlite_rows:
        # A look that takes more than a moment is taken again beside the event loop: here none.
        monkeypatch.setattr("minions.adapters.stores.sqlite_file._OPERATIONS", 10**9)
        made = SqliteJournal(path := tmp_path / "journal.db", clock)
        await made.count_runs()
        start = int(START.timestamp() * 1_000_000)
        with closing(sqlite3.connect(path)) as db:
            for table in ("runs", "sessions"):
                db.execute(_filling(table, f"{start} + i * 1000000", "'r' || i", ""))
            db.commit()
    else:
        made = PostgresJournal(url := request.getfixturevalue("postgres_url"), clock)
        with psycopg.connect(url) as db:
            at = f"'{START.isoformat()}'::timestamptz + i * interval '1 s'"
            for table in ("runs", "sessions"):
                db.execute(_filling(table, at, "'r' || i", "minions.").encode())
    yield made
    await made.aclose()


def _filling(table: str, at: str, name: str, schema: str) -> str:
    """Rows as the fold makes them, in one statement."""
    numbers = (
        f"WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {RUNS - 1}) "
    )
    if table == "runs":
        columns = "run_id, session_id, position, recipe, status, started_at, rest"
        rest = f"'{REST}' || i || '\"]'"
        values = f"{name}, 's' || i, 1, 'recipe' || (i % 3), 'completed', {at}, {rest}"
    else:
        columns = "session_id, updated_at, last_position, rest"
        values = f"'s' || i, {at}, 1, '[0,0,\"completed\",\"r' || i || '\",\"talk\"]'"
    return f"INSERT INTO {schema}{table} ({columns}) {numbers} SELECT {values} FROM n"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> Reads:
    return Reads(monkeypatch, module)


async def test_a_text_that_no_run_has_is_looked_for_once_and_no_row_is_made(
    journal: RowLookups, reads: Reads
) -> None:
    for wanted in (
        RunFilter(text="no such words"),
        RunFilter(phrases=["there is none"]),
        RunFilter(text="bärnwil"),
    ):
        assert await page_of_runs(journal, wanted, limit=50, offset=0, at_most=1_050) == ((), 0)
        # The edges of 500 and of 10,000 more, which is not there, and what is up to these.
        assert reads.take() == (4, 1, 0)


async def test_a_text_that_few_runs_have_makes_their_rows(
    journal: RowLookups, reads: Reads
) -> None:
    wanted = RunFilter(text="THING 777 recipe0")
    found, total = await page_of_runs(journal, wanted, limit=50, offset=0, at_most=1_050)
    expected = [9777, 7779, 7776, 7773, 7770, 6777, 3777, 777]
    assert ([run.run_id for run in found], total) == ([f"r{each}" for each in expected], 8)
    assert reads.take() == (4, 9, 8)


async def test_a_text_that_no_session_has_is_looked_for_without_a_row(
    journal: RowLookups, reads: Reads
) -> None:
    assert await journal.sessions(SessionFilter(text="nobody"), limit=50) == []
    assert reads.take() == (4, 1, 0)


async def test_a_bound_that_no_run_keeps_makes_the_row_of_each_part_alone(
    journal: RowLookups, reads: Reads
) -> None:
    bound = UsageBound(name="cost_usd", sign=">", value=1)
    assert await journal.runs(RunFilter(bounds=[bound]), limit=50) == []
    statements, _, made = reads.take()
    assert (statements, made) == (10, 3)


async def test_costs_of_many_runs_make_no_row(journal: RowLookups, reads: Reads) -> None:
    found = await read_figures(journal, Period.MONTH, Grouping.RECIPE, NOW, RunFilter())
    assert (found.counted, found.counted_since) == (RUNS, None)
    assert (found.all.total.tokens, found.all.total.cost_usd) == (10 * RUNS, RUNS / 2)
    assert reads.take() == (5, RUNS, 0)


async def test_costs_of_many_runs_make_a_time_for_each_page_and_decode_what_they_need(
    journal: RowLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def counted(name: str, of: Callable[..., object]) -> Callable[..., object]:
        def count(*given: object) -> object:
            made.append(name)
            return of(*given)

        return count

    for name in ("time_at", "_lengthened"):
        place = f"minions.adapters.stores.stored_rows.{name}"
        monkeypatch.setattr(place, counted(name, getattr(stored_rows, name)))
    found = await read_figures(journal, Period.MONTH, Grouping.MODEL, NOW, RunFilter())
    assert [(each.name, each.total.runs) for each in found.groups] == [("model", RUNS)]
    assert made in (["time_at"] * 4, [])  # PostgreSQL gives times


async def test_a_search_in_parts_finds_what_one_look_finds(
    journal: RowLookups, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = RunFilter(text="thing 77 recipe1")
    whole = await journal.runs(wanted)
    monkeypatch.setattr("minions.adapters.stores.row_queries._SEARCHED", 999)
    monkeypatch.setattr(module, "FOUND", 7)
    assert await journal.runs(wanted) == whole
    assert len(whole) == 93
    assert await journal.runs(wanted, limit=5, offset=20) == whole[20:25]
    assert await journal.runs(wanted, limit=5, after=whole[7]) == whole[8:13]
    sessions = await journal.sessions(SessionFilter(text="s77 talk"))
    monkeypatch.setattr(module, "FOUND", 500)
    assert await journal.sessions(SessionFilter(text="s77 talk")) == sessions
    assert len(sessions) == 111
