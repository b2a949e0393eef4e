"""What every journal does with whole sessions: read parts, wait, take in, forget, clean up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from builders import body_cipher
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.facts import StepFinished
from minions.contracts.journal.journal import (
    BlobCollection,
    EntryDraft,
    Journal,
    JournalEntry,
    Lease,
)
from minions.data.errors import FencedError, JournalError, LeaseHeldError, NotFoundError
from minions.data.json_values import JsonValue
from minions.engine.services.memory_journal import MemoryJournal
from minions.testing.journal_suite import holding
from minions.testing.virtual_time import FakeClock
from patience import HANG_S, counted_work

Open = Callable[[], Journal]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite", "postgres", "sealed sqlite", "sealed postgres"])
async def opening(
    request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path
) -> AsyncIterator[Open]:
    """Each call opens the same store, as another process would; memory is one object."""
    cipher = body_cipher() if request.param.startswith("sealed") else None
    made: list[Journal] = []

    def make() -> Journal:
        if (kind := request.param.removeprefix("sealed ")) == "memory":
            made.append(made[0] if made else MemoryJournal(clock))
        elif kind == "sqlite":
            made.append(SqliteJournal(tmp_path / "journal.db", clock, cipher=cipher))
        else:
            url = request.getfixturevalue("postgres_url")
            made.append(PostgresJournal(url, clock, lease_clock=clock, cipher=cipher))
        return made[-1]

    yield make
    for journal in made:
        await journal.aclose()


@pytest.fixture
def journal(opening: Open) -> Journal:
    return opening()


def draft(key: str, kind: str = "step", **body: JsonValue) -> EntryDraft:
    return holding(body, kind=kind, key=key)


async def lease_of(journal: Journal, session: str = "ses_1", run: str = "run_1") -> Lease:
    return await journal.acquire(session, run, "w1", ttl_s=60)


async def stored(
    journal: Journal, *kinds: str, session: str = "ses_1", run: str = "run_1"
) -> list[JournalEntry]:
    """One entry of each kind; the lease is given back."""
    lease = await lease_of(journal, session, run)
    entries = [await journal.append(lease, draft(str(n), kind)) for n, kind in enumerate(kinds)]
    await journal.release(lease)
    return entries


# --- reading a part --------------------------------------------------------------------------


async def test_a_part_of_a_session_is_read_from_either_end(journal: Journal) -> None:
    entries = await stored(journal, *["step"] * 6)
    assert await journal.entries("ses_1", until=2) == entries[:2]
    assert await journal.entries("ses_1", after=1, until=3) == entries[1:3]
    assert await journal.entries("ses_1", limit=2) == entries[:2]
    assert await journal.entries("ses_1", limit=2, newest_first=True) == entries[:-3:-1]
    assert await journal.entries("ses_1", until=4, limit=1, newest_first=True) == [entries[3]]
    assert await journal.entries("ses_1", after=4, newest_first=True) == entries[:3:-1]
    for nothing in (
        await journal.entries("ses_1", limit=0),
        await journal.entries("ses_1", limit=-1),
        await journal.entries("ses_1", until=0),
        await journal.entries("ses_1", until=-(2**70)),
        await journal.entries("ses_1", after=3, until=3),
    ):
        assert nothing == []
    assert await journal.entries("ses_1", until=2**70, limit=2**70) == entries


async def test_a_limit_counts_what_was_chosen_by_kind(journal: Journal) -> None:
    entries = await stored(journal, "run", "message", "step", "message", "step", "session")
    newest = await journal.entries("ses_1", kinds=("message",), limit=1, newest_first=True)
    assert newest == [entries[3]]
    assert await journal.entries("ses_1", kinds=("step", "run"), limit=2) == [
        entries[0],
        entries[2],
    ]


async def test_sessions_are_listed_forwards_and_backwards(journal: Journal) -> None:
    second = await stored(journal, "session", "step", "run", session="ses_2", run="run_2")
    first = await stored(journal, "session", "run")
    listed = [first[0], first[1], second[0], second[2]]
    assert await journal.entries(kinds=("run", "session")) == listed
    assert await journal.entries(kinds=("session", "run"), newest_first=True) == listed[::-1]
    assert await journal.entries(kinds=("session",), limit=1) == [first[0]]


# --- waiting ---------------------------------------------------------------------------------


async def test_what_is_there_already_is_not_waited_for(journal: Journal) -> None:
    await stored(journal, "step", "step")
    assert await journal.wait("ses_1", 1, 60) is True
    assert await journal.wait("ses_1", 1, 0) is True


async def test_a_wait_ends_with_its_time(journal: Journal) -> None:
    await stored(journal, "step")
    assert await journal.wait("ses_1", 1, 0.05) is False
    assert await journal.wait("ses_unknown", 0, 0) is False


async def test_a_wait_ends_with_the_next_fact(journal: Journal) -> None:
    lease = await lease_of(journal)
    waiting = asyncio.create_task(journal.wait("ses_1", 0, 60))
    later = asyncio.create_task(journal.wait("ses_1", 1, 60))
    other = asyncio.create_task(journal.wait("ses_2", 0, 60))
    await journal.append(lease, draft("a"))
    assert await waiting is True
    assert (later.done(), other.done()) == (False, False)
    await journal.append(lease, draft("b"))
    assert await later is True
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other


async def test_facts_of_other_processes_end_a_wait(opening: Open) -> None:
    here, there = opening(), opening()
    assert await here.wait("ses_1", 0, 0) is False
    waiting = asyncio.create_task(here.wait("ses_1", 0, 3600))
    await asyncio.sleep(0.1)
    lease = await lease_of(there)
    for n in range(3):
        await there.append(lease, draft(str(n)))
        assert await asyncio.wait_for(waiting, HANG_S) is True
        waiting = asyncio.create_task(here.wait("ses_1", n + 1, 3600))
        await asyncio.sleep(0.02)
    waiting.cancel()


async def test_no_fact_is_missed_by_who_waits_for_one_after_the_other(opening: Open) -> None:
    here, there = opening(), opening()

    async def follow() -> list[int]:
        seen: list[int] = []
        while len(seen) < 40:
            assert await here.wait("ses_1", len(seen), HANG_S)
            seen += [e.position for e in await here.entries("ses_1", after=len(seen))]
        return seen

    following = asyncio.create_task(follow())
    lease = await lease_of(there)
    for n in range(40):
        await there.append(lease, draft(str(n)))
        await asyncio.sleep(0.001 * (n % 5))
    assert await following == list(range(1, 41))


async def test_a_thousand_may_wait(journal: Journal) -> None:
    lease = await lease_of(journal)
    waiting = [asyncio.create_task(journal.wait("ses_1", 0, 3600)) for _ in range(900)]
    waiting += [asyncio.create_task(journal.wait(f"ses_{n}", 0, 3600)) for n in range(2, 102)]
    await asyncio.sleep(0)
    await journal.entries("ses_1")  # comes after the first look of each of them
    work = []
    for _ in range(3):  # the first time somebody may still be about to wait
        with counted_work() as counted:
            await asyncio.sleep(0.1)
        work.append(counted.calls)
    assert min(work) < 10_000  # if each of them looked, it would be far more
    await journal.append(lease, draft("a"))
    assert all(await asyncio.gather(*waiting[:900]))
    for each in waiting:
        each.cancel()
    assert {type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)} == {
        bool,
        asyncio.CancelledError,
    }


async def test_closing_sends_away_who_waits(journal: Journal) -> None:
    await stored(journal, "step", session="ses_0", run="run_0")
    waiting = asyncio.create_task(journal.wait("ses_1", 0, 60))
    await asyncio.sleep(0.05)
    await journal.aclose()
    assert await asyncio.wait_for(waiting, HANG_S) is False
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert left == set()
    assert await journal.wait("ses_1", 0, 0) is False


# --- taking in -------------------------------------------------------------------------------


def session_of(count: int = 3, **changes: object) -> list[JournalEntry]:
    clock = FakeClock()
    clock.advance(0.000_001)
    entry = JournalEntry(
        session_id="ses_1",
        position=1,
        run_id="run_1",
        generation=2,
        key="a",
        fact=holding({"text": "\ud83d🦜", "n": 2**70}).fact,
        epoch=4,
        at=clock.now(),
    )
    entries = [replace(entry, position=n, key=f"{n}") for n in range(1, count + 1)]
    return [replace(each, **changes) for each in entries]


async def test_a_session_is_taken_in_as_it_was(journal: Journal) -> None:
    entries = session_of()
    entries[1] = replace(entries[1], fact=holding("x" * 40_000).fact, run_id="run_0", epoch=7)
    await journal.adopt("ses_1", entries)
    assert await journal.entries() == entries
    lease = await lease_of(journal)
    assert (lease.epoch, lease.generation) == (8, 2)
    assert (await journal.append(lease, draft("next"))).position == 4


async def test_a_session_that_is_there_is_not_taken_in(journal: Journal) -> None:
    entries = await stored(journal, "step")
    with pytest.raises(JournalError) as caught:
        await journal.adopt("ses_1", session_of(run_id="run_9"))
    assert caught.value.error_code == "session-exists"
    assert await journal.entries() == entries


async def test_a_run_that_is_in_another_session_is_not_taken_in(journal: Journal) -> None:
    entries = await stored(journal, "step", session="ses_0")
    with pytest.raises(JournalError) as caught:
        await journal.adopt("ses_1", session_of(generation=1, key="0")[:1])
    assert caught.value.error_code == "duplicate-entry"
    mixed = session_of()
    mixed[2] = replace(mixed[2], generation=1, key="0")
    with pytest.raises(JournalError) as caught:
        await journal.adopt("ses_1", mixed)
    assert caught.value.error_code == "duplicate-entry"
    assert await journal.entries() == entries


async def test_a_run_that_was_taken_in_is_not_taken_in_again(journal: Journal) -> None:
    await journal.adopt("ses_1", session_of())
    with pytest.raises(JournalError) as caught:
        await journal.adopt("ses_2", session_of(session_id="ses_2"))
    assert caught.value.error_code == "duplicate-entry"
    assert await journal.entries("ses_2") == []


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([], "there are none"),
        (session_of()[1:], "not 1, 2, 3"),
        (session_of(session_id="ses_2"), "some of session 'ses_2'"),
        (session_of(key="a"), "there twice"),
    ],
)
async def test_what_is_no_session_is_not_taken_in(
    journal: Journal, entries: list[JournalEntry], words: str
) -> None:
    with pytest.raises(JournalError, match=words) as caught:
        await journal.adopt("ses_1", entries)
    assert caught.value.error_code == "bad-entries"
    assert await journal.entries() == []


async def test_nothing_is_taken_in_where_a_run_is_about_to_begin(journal: Journal) -> None:
    lease = await lease_of(journal)
    with pytest.raises(LeaseHeldError, match="run_1"):
        await journal.adopt("ses_1", session_of())
    assert (await journal.append(lease, draft("a"))).position == 1


async def test_who_waits_learns_of_a_session_that_is_taken_in(opening: Open) -> None:
    here, there = opening(), opening()
    waiting = [asyncio.create_task(each.wait("ses_1", 2, 60)) for each in (here, there)]
    await asyncio.sleep(0.05)
    await here.adopt("ses_1", session_of())
    assert await asyncio.gather(*waiting) == [True, True]


# --- forgetting ------------------------------------------------------------------------------


async def test_a_session_is_forgotten_wholly_and_alone(journal: Journal) -> None:
    kept = await stored(journal, "run", session="ses_0", run="run_0")
    await stored(journal, "run", "step")
    assert await journal.remove_session("ses_1") is True
    assert await journal.entries() == kept
    assert await journal.remove_session("ses_1") is False
    again = await stored(journal, "run")
    assert [(each.position, each.generation, each.epoch) for each in again] == [(1, 1, 2)]


async def test_a_session_that_was_forgotten_can_be_taken_in_and_begins_anew(
    journal: Journal,
) -> None:
    entries = session_of()
    await journal.adopt("ses_1", entries)
    await journal.remove_session("ses_1")
    lease = await lease_of(journal)
    assert (lease.epoch, lease.generation) == (5, 1)
    await journal.release(lease)
    await journal.adopt("ses_1", entries)
    assert await journal.entries() == entries


async def test_a_session_in_which_a_run_is_active_is_not_forgotten(
    journal: Journal, clock: FakeClock
) -> None:
    lease = await lease_of(journal)
    entry = await journal.append(lease, draft("a"))
    with pytest.raises(LeaseHeldError, match="'run_1' is active on worker 'w1'") as caught:
        await journal.remove_session("ses_1")
    assert caught.value.worker_id == "w1"
    assert await journal.entries() == [entry]
    clock.advance(61)
    assert await journal.remove_session("ses_1") is True
    with pytest.raises(FencedError):
        await journal.append(lease, draft("b"))
    assert await journal.entries() == []


# --- cleaning up -----------------------------------------------------------------------------


async def test_blobs_that_no_fact_names_are_collected(journal: Journal, clock: FakeClock) -> None:
    useless = await journal.put_blob(b"x" * 1000)
    named = await journal.put_blob(b"named")
    inner = await journal.put_blob(b"named by a blob")
    outer = await journal.put_blob(f'{{"document": "{inner}"}}'.encode())
    lease = await lease_of(journal)
    await journal.append(lease, draft("a", document=named))
    await journal.append(lease, draft("b", text="x" * 40_000, deep={"blobs": [outer]}))
    assert await journal.collect() == BlobCollection(blobs=0, bytes=0)
    clock.advance(3_601)
    young = await journal.put_blob(b"young")
    planned = await journal.collect(dry_run=True)
    assert (planned.blobs, planned.bytes > 0) == (1, True)
    assert await journal.get_blob(useless) == b"x" * 1000
    assert await journal.collect() == planned
    with pytest.raises(NotFoundError):
        await journal.get_blob(useless)
    for digest in (named, inner, outer, young):
        await journal.get_blob(digest)
    fact = (await journal.entries("ses_1"))[1].fact
    assert isinstance(fact, StepFinished)
    assert fact.output == {"text": "x" * 40_000, "deep": {"blobs": [outer]}}
    assert await journal.collect(spare_s=0) == BlobCollection(
        blobs=1, bytes=await size(journal, b"young")
    )


async def size(journal: Journal, data: bytes) -> int:
    """As that journal stores it."""
    await journal.put_blob(data)
    return (await journal.collect(spare_s=0)).bytes


async def test_a_blob_that_is_put_again_is_young_again(journal: Journal, clock: FakeClock) -> None:
    digest = await journal.put_blob(b"again")
    clock.advance(3_601)
    await journal.put_blob(b"again")
    assert (await journal.collect()).blobs == 0
    assert await journal.get_blob(digest) == b"again"


async def test_the_blobs_of_a_forgotten_session_are_collected(
    journal: Journal, clock: FakeClock
) -> None:
    digest = await journal.put_blob(b"document")
    lease = await lease_of(journal)
    await journal.append(lease, draft("a", document=digest))
    await journal.release(lease)
    clock.advance(3_601)
    assert (await journal.collect()).blobs == 0
    await journal.remove_session("ses_1")
    assert (await journal.collect()).blobs == 1
    assert await journal.compact() >= 0
    assert await journal.entries() == []
