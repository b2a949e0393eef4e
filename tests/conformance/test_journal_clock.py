"""A wall clock that jumps: by a person, a time server, a suspended machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.journal import EntryDraft, Journal, Lease
from minions.contracts.runtime import Clock
from minions.data.errors import FencedError, LeaseHeldError
from minions.engine.services.memory_journal import MemoryJournal
from minions.testing.journal_suite import holding

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


class JumpingClock(Clock):
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.time = START

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return 0.0


@pytest.fixture
def clock() -> JumpingClock:
    return JumpingClock()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def journal(
    request: pytest.FixtureRequest, clock: JumpingClock, tmp_path: Path
) -> AsyncIterator[Journal]:
    made: Journal = MemoryJournal(clock)
    if request.param == "sqlite":
        made = SqliteJournal(tmp_path / "journal.db", clock)
    elif request.param == "postgres":
        made = PostgresJournal(request.getfixturevalue("postgres_url"), clock, lease_clock=clock)
    yield made
    await made.aclose()


def draft(key: str) -> EntryDraft:
    return holding(key=key)


async def lease_of(journal: Journal, worker: str = "w1") -> Lease:
    return await journal.acquire("ses_1", "run_1", worker, ttl_s=60)


@pytest.mark.parametrize("jump", [DAY, -DAY])
async def test_a_jump_between_appends_and_renewals_changes_nothing(
    journal: Journal, clock: JumpingClock, jump: timedelta
) -> None:
    lease = await lease_of(journal)
    stored = [await journal.append(lease, draft("a"))]
    clock.time += jump
    stored.append(await journal.append(lease, draft("b")))
    await journal.renew(lease, 60)
    clock.time -= jump
    stored.append(await journal.append(lease, draft("c")))
    await journal.renew(lease, 60)
    clock.time -= jump
    stored.append(await journal.append(lease, draft("d")))
    assert [entry.position for entry in stored] == [1, 2, 3, 4]
    assert await journal.entries("ses_1") == stored
    assert [entry.at for entry in stored] == [START, START + jump, START, START - jump]
    await journal.release(lease)
    assert (await lease_of(journal, "w2")).epoch == lease.epoch + 1


async def test_after_a_jump_forward_the_lease_may_be_stolen_until_it_is_renewed(
    journal: Journal, clock: JumpingClock
) -> None:
    first = await lease_of(journal)
    clock.time += DAY
    await journal.renew(first, 60)
    with pytest.raises(LeaseHeldError):
        await lease_of(journal, "w2")
    clock.time += DAY
    second = await lease_of(journal, "w2")
    with pytest.raises(FencedError):
        await journal.append(first, draft("a"))
    assert (await journal.append(second, draft("a"))).position == 1


async def test_after_a_jump_back_a_dead_workers_lease_can_be_taken_over(
    journal: Journal, clock: JumpingClock
) -> None:
    """Its deadline is a day ahead; nobody has to wait for that who knows it is dead."""
    await lease_of(journal)
    clock.time -= DAY
    with pytest.raises(LeaseHeldError) as caught:
        await lease_of(journal, "w2")
    assert caught.value.worker_id == "w1"
    lease = await journal.acquire("ses_1", "run_1", "w2", 60, takes_over="w1")
    assert (await journal.append(lease, draft("a"))).position == 1
