"""What every step cache does, whatever it is stored in; and what only a file can do wrong."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from builders import draft_of
from minions.adapters.stores.memory_step_cache import MemoryStepCache, NoStepCache
from minions.adapters.stores.postgres_step_cache import PostgresStepCache
from minions.adapters.stores.sqlite_database import bundled_migrations
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.adapters.stores.sqlite_step_cache import SqliteStepCache
from minions.contracts.errors import JournalError
from minions.contracts.json_values import JsonValue
from minions.contracts.step_cache import CachedStep, StepCache
from minions.testing.clock import FakeClock

KEY = "0" * 64


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def cache(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StepCache]:
    made: StepCache = MemoryStepCache()
    if request.param == "sqlite":
        made = SqliteStepCache(tmp_path / "journal.db")
    elif request.param == "postgres":
        made = PostgresStepCache(request.getfixturevalue("postgres_url"))
    yield made
    await made.aclose()


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


async def test_who_wants_no_cache_gets_none() -> None:
    cache = NoStepCache()
    await cache.put(KEY, entry())
    assert await cache.get(KEY) is None


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
