"""What every step cache does, whatever it is stored in; and what only a file can do wrong."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import pytest

from builders import draft_of
from minions.adapters.stores.memory_stores import (
    MAX_BYTES,
    MAX_ENTRIES,
    MemoryStepCache,
    NoStepCache,
)
from minions.adapters.stores.postgres_database import bundled_migrations as postgres_migrations
from minions.adapters.stores.postgres_side_tables import PostgresState, PostgresStepCache
from minions.adapters.stores.sqlite_database import bundled_migrations
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.adapters.stores.sqlite_side_tables import SqliteStepCache
from minions.contracts.steps import CachedStep, StepCache
from minions.data.errors import JournalError
from minions.data.json_values import JsonValue
from minions.testing.virtual_time import FakeClock

KEY = "0" * 64
HOUR = 3600

MakeCache: TypeAlias = Callable[..., StepCache]
"""A cache of the same database each time, with those bounds."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def make_cache(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> AsyncIterator[MakeCache]:
    made: list[StepCache] = []

    def make(entries: int = MAX_ENTRIES, size: int = MAX_BYTES) -> StepCache:
        if request.param == "memory":
            made.append(MemoryStepCache(max_entries=entries, max_bytes=size))
        elif request.param == "sqlite":
            path = tmp_path / "journal.db"
            made.append(SqliteStepCache(path, now=clock.now, max_entries=entries, max_bytes=size))
        else:
            url = request.getfixturevalue("postgres_url")
            made.append(PostgresStepCache(url, now=clock.now, max_entries=entries, max_bytes=size))
        return made[-1]

    yield make
    for each in made:
        await each.aclose()


@pytest.fixture
def cache(make_cache: MakeCache) -> StepCache:
    return make_cache()


def entry(output: JsonValue = "an answer", run_id: str = "run_1", second: int = 0) -> CachedStep:
    at = datetime(2026, 1, 1, 12, 0, second, 7, tzinfo=UTC)
    return CachedStep(output=output, run_id=run_id, created_at=at)


VALUES: list[JsonValue] = [
    None,
    False,
    0,
    0.5,
    "",
    "grün \U0001f331",
    "half a character: \ud800",
    [],
    {"a": [1, {"b": None}], "": "x"},
]


async def test_all_can_be_forgotten_at_once(cache: StepCache) -> None:
    assert await cache.clear() == 0
    await cache.put(KEY, entry())
    await cache.put("1" * 64, entry())
    assert await cache.clear() == 2
    assert await cache.get(KEY) is None


@pytest.mark.parametrize("value", VALUES, ids=repr)
async def test_an_output_comes_back_as_it_was_put(cache: StepCache, value: JsonValue) -> None:
    await cache.put(KEY, entry(value))
    assert await cache.get(KEY) == entry(value)
    kept = await cache.get(KEY)
    assert kept is not None
    assert type(kept.output) is type(value)


async def test_nothing_is_known_of_other_keys(cache: StepCache) -> None:
    await cache.put(KEY, entry())
    assert await cache.get("1" * 64) is None


async def test_what_was_put_last_counts(cache: StepCache) -> None:
    await cache.put(KEY, entry("one", "run_1", 1))
    await cache.put(KEY, entry("two", "run_2", 2))
    assert await cache.get(KEY) == entry("two", "run_2", 2)


async def test_puts_and_gets_at_the_same_time_see_whole_entries(cache: StepCache) -> None:
    entries = [entry([number] * 100, f"run_{number}") for number in range(20)]
    await asyncio.gather(*(cache.put(KEY, each) for each in entries))
    assert await cache.get(KEY) in entries


async def test_it_can_be_used_after_it_was_closed(cache: StepCache) -> None:
    await cache.aclose()
    await cache.put(KEY, entry())
    await cache.aclose()
    if isinstance(cache, SqliteStepCache | PostgresStepCache):
        assert await cache.get(KEY) == entry()


# --- bounds ---------------------------------------------------------------------------------------


async def _keys_in(cache: StepCache, keys: str) -> str:
    """Those of these keys that are still known."""
    return "".join([key for key in keys if await cache.get(key) is not None])


async def test_of_too_many_entries_the_least_recently_used_are_evicted(
    make_cache: MakeCache, clock: FakeClock
) -> None:
    cache = make_cache(entries=3)
    for key in "abc":
        await cache.put(key, entry(key))
        clock.advance(2 * HOUR)
    assert await cache.get("a") == entry("a")
    clock.advance(2 * HOUR)
    await cache.put("d", entry("d"))
    assert await _keys_in(cache, "abcd") == "acd"


async def test_of_too_large_entries_the_least_recently_used_are_evicted(
    make_cache: MakeCache, clock: FakeClock
) -> None:
    cache = make_cache(size=1_000)
    for key in "abc":
        await cache.put(key, entry("x" * 298))  # 300 bytes as JSON
        clock.advance(2 * HOUR)
    assert await _keys_in(cache, "abc") == "abc"
    clock.advance(2 * HOUR)
    await cache.put("d", entry("ä" * 70))  # 422 bytes: six for each character
    assert await _keys_in(cache, "abcd") == "cd"


async def test_an_entry_that_is_replaced_counts_once(
    make_cache: MakeCache, clock: FakeClock
) -> None:
    cache = make_cache(entries=2, size=100)
    for number in range(10):
        await cache.put("a", entry("x" * 40))
        await cache.put("b", entry(number))
        clock.advance(2 * HOUR)
    assert await cache.get("a") == entry("x" * 40)
    assert await cache.get("b") == entry(9)


async def test_an_entry_larger_than_the_cache_is_not_stored_and_evicts_nothing(
    make_cache: MakeCache, clock: FakeClock
) -> None:
    cache = make_cache(size=100)
    await cache.put("a", entry("a"))
    await cache.put("b", entry("b"))
    clock.advance(2 * HOUR)
    await cache.put("b", entry("x" * 100))
    assert await cache.get("a") == entry("a")
    assert await cache.get("b") is None  # not the one that was to be replaced


@pytest.mark.parametrize("make_cache", ["sqlite", "postgres"], indirect=True)
async def test_a_cache_that_became_too_large_is_made_smaller_by_a_few_puts(
    make_cache: MakeCache, clock: FakeClock
) -> None:
    earlier = make_cache()
    for number in range(60):
        await earlier.put(f"{number:03}", entry(number))
        clock.advance(1)
    later = make_cache(entries=20)
    await later.put("new", entry("new"))
    found = [number for number in range(60) if await later.get(f"{number:03}") is not None]
    assert found == list(range(41, 60))


async def test_a_large_cache_is_exceeded_by_a_sixteenth_at_most(
    make_cache: MakeCache, clock: FakeClock
) -> None:
    cache, seen = make_cache(entries=32), []
    for number in range(44):
        await cache.put(f"{number:03}", entry(number))
        clock.advance(1)
        known = [each for each in range(44) if await cache.get(f"{each:03}") is not None]
        seen.append(len(known))
        assert known[-1] == number
    assert max(seen) <= 32 + 32 // 16
    assert await cache.clear() >= 30


@pytest.mark.parametrize("bounds", [{"entries": 0}, {"size": 0}])
def test_a_cache_without_room_is_refused(make_cache: MakeCache, bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be >= 1"):
        make_cache(**bounds)


@pytest.mark.parametrize("make_cache", ["sqlite", "postgres"], indirect=True)
async def test_two_processes_evict_from_one_database(
    make_cache: MakeCache, clock: FakeClock
) -> None:
    one, other = make_cache(entries=10), make_cache(entries=10)
    for number in range(30):
        await asyncio.gather(
            one.put(f"a{number}", entry(number)), other.put(f"b{number}", entry(number))
        )
        clock.advance(1)
    await one.put("last", entry("last"))
    assert await one.clear() == 10


async def test_who_wants_no_cache_gets_none() -> None:
    cache = NoStepCache()
    await cache.put(KEY, entry())
    assert await cache.get(KEY) is None


# --- what is written ------------------------------------------------------------------------------


async def test_an_entry_that_is_used_often_is_written_once_an_hour(
    tmp_path: Path, clock: FakeClock
) -> None:
    path = tmp_path / "journal.db"
    cache = SqliteStepCache(path, now=clock.now)
    await cache.put(KEY, entry())
    changes = []
    with closing(sqlite3.connect(path)) as other:
        for _ in range(24):  # each ten minutes for four hours
            await cache.get(KEY)
            changes.append(other.execute("PRAGMA data_version").fetchone())
            clock.advance(HOUR / 6)
    assert len(set(changes)) == 1 + 3
    await cache.aclose()


async def test_a_hit_waits_for_nobody_who_writes(tmp_path: Path, clock: FakeClock) -> None:
    path, waited = tmp_path / "journal.db", []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    cache = SqliteStepCache(path, sleep=sleep, now=clock.now)
    await cache.put(KEY, entry())
    clock.advance(2 * HOUR)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert await cache.get(KEY) == entry()
    assert waited == []
    await cache.aclose()


async def test_a_hit_of_postgres_waits_for_nobody_who_writes(
    postgres_url: str, clock: FakeClock
) -> None:
    cache = PostgresStepCache(postgres_url, now=clock.now)
    await cache.put(KEY, entry())
    clock.advance(2 * HOUR)
    import psycopg

    async with await psycopg.AsyncConnection.connect(postgres_url) as writer:
        await writer.execute("SELECT 1 FROM minions.step_cache FOR UPDATE")
        assert await cache.get(KEY) == entry()
        await writer.rollback()
    await cache.aclose()


async def test_entries_of_an_older_database_count_by_their_creation(
    tmp_path: Path, clock: FakeClock
) -> None:
    path = tmp_path / "journal.db"
    older = {name: sql for name, sql in bundled_migrations().items() if name < "0009"}
    journal = SqliteJournal(path, FakeClock(), migrations=older)
    await journal.entries()
    await journal.aclose()
    with closing(sqlite3.connect(path)) as db, db:
        for number, key in enumerate("cab"):
            db.execute(
                "INSERT INTO step_cache (key, output, run_id, created_at) VALUES (?, ?, 'r', ?)",
                (key, '"x"', number),
            )
    cache = SqliteStepCache(path, max_entries=3, now=clock.now)
    await cache.put("d", entry())
    assert await _keys_in(cache, "abcd") == "abd"
    await cache.aclose()


async def test_entries_of_an_older_postgres_database_count_by_their_creation(
    empty_postgres_url: str, clock: FakeClock
) -> None:
    older = {name: sql for name, sql in postgres_migrations().items() if name < "0007"}
    state = PostgresState(empty_postgres_url, migrations=older)
    await state.keys()
    await state.aclose()
    import psycopg

    async with await psycopg.AsyncConnection.connect(empty_postgres_url) as db:
        for number, key in enumerate("cab"):
            await db.execute(
                "INSERT INTO minions.step_cache (key, output, run_id, created_at) "
                "VALUES (%s, '\"x\"', 'r', to_timestamp(%s))",
                (key, number),
            )
    cache = PostgresStepCache(empty_postgres_url, max_entries=3, now=clock.now)
    await cache.put("d", entry())
    assert await _keys_in(cache, "abcd") == "abd"
    await cache.aclose()


# --- SQLite ---------------------------------------------------------------------------------------


async def test_it_lives_beside_a_journal_and_another_connection_sees_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal, one, other = SqliteJournal(path, FakeClock()), SqliteStepCache(path), None
    lease = await journal.acquire("ses_1", "run_1", "w", 60)
    await journal.append(lease, draft_of("step", "started", key="a"))
    await one.put(KEY, entry())
    other = SqliteStepCache(path)
    assert await other.get(KEY) == entry()
    assert len(await journal.entries()) == 1
    for each in (journal, one, other):
        await each.aclose()


async def test_nothing_is_opened_before_it_is_used(tmp_path: Path) -> None:
    cache = SqliteStepCache(tmp_path / "journal.db")
    await cache.aclose()
    assert not (tmp_path / "journal.db").exists()


async def test_an_older_database_gets_the_table(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    older = {name: sql for name, sql in bundled_migrations().items() if name < "0004"}
    journal = SqliteJournal(path, FakeClock(), migrations=older)
    await journal.entries()
    await journal.aclose()
    cache = SqliteStepCache(path)
    assert await cache.get(KEY) is None
    await cache.aclose()
    assert path.with_name("journal.db.bak-0003").exists()


async def test_a_busy_database_is_given_up_soon(tmp_path: Path) -> None:
    path, waited = tmp_path / "journal.db", []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    cache = SqliteStepCache(path, sleep=sleep)
    await cache.put(KEY, entry())
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError) as caught:
            await cache.put(KEY, entry("another"))
        assert await cache.get(KEY) == entry()  # readers are not in each other's way
    assert caught.value.error_code == "database-busy"
    assert sum(waited) < 1.1
    await cache.aclose()


@pytest.mark.parametrize(
    "damage", ["output = x'37'", "output = '{'", "run_id = x'00ff'", "created_at = 'yesterday'"]
)
async def test_damage_is_told_as_that(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "journal.db"
    cache = SqliteStepCache(path)
    await cache.put(KEY, entry())
    with closing(sqlite3.connect(path)) as other, other:
        other.execute(f"UPDATE step_cache SET {damage}")
    with pytest.raises(JournalError) as caught:
        await cache.get(KEY)
    assert caught.value.error_code == "corrupt-database"
    await cache.aclose()
