"""What only the journal on a PostgreSQL server can do, and do wrong."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import aclosing, closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from attrs import field, frozen

from minions.adapters.stores.postgres_database import bundled_migrations
from minions.adapters.stores.postgres_journal import PostgresJournal, PostgresListener
from minions.adapters.stores.postgres_side_tables import PostgresState, PostgresStepCache
from minions.contracts.journal.entry_waiters import EntryWaiters
from minions.contracts.journal.facts import UnreadableFact
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease, body_text
from minions.data.errors import (
    EnvironmentRefusedError,
    FencedError,
    JournalError,
    LeaseHeldError,
    NotFoundError,
)
from minions.testing.journal_suite import holding
from minions.testing.virtual_time import FakeClock
from patience import HANG_S
from postgres import PostgresServer, reason_without_postgres
from postgres_wire import *  # noqa: F403  # its fixtures
from postgres_wire import Wire

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

    from minions.adapters.stores.postgres_link import PostgresLink

ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(postgres_url: str) -> str:
    """Of a database with a journal that holds nothing."""
    return postgres_url


@pytest.fixture
async def journal(url: str) -> AsyncIterator[PostgresJournal]:
    async with aclosing(PostgresJournal(url, FakeClock())) as made:
        yield made


def draft(key: str = "a", state: str = "finished", **body: str) -> EntryDraft:
    return holding(body, state=state, key=key)


async def lease_of(journal: PostgresJournal, worker: str = "w1", ttl_s: float = 60) -> Lease:
    return await journal.acquire("ses_1", "run_1", worker, ttl_s)


def entry_by_hand(url: str) -> Lease:
    """One of an older version, with the lease under which it was written."""
    carry_out(
        url, "INSERT INTO minions.leases VALUES ('ses_1', 'run_1', 'w1', 1, 1, 'infinity', 1)"
    )
    with connection_to(url) as db:
        db.execute(
            "INSERT INTO minions.entries VALUES ('ses_1', 1, 'run_1', 1, 'a', 'step', 'finished', "
            "%s, 1, now())",
            [body_text(draft(text="as it was")).encode()],
        )
    return Lease(session_id="ses_1", run_id="run_1", worker_id="w1", epoch=1)


def connection_to(url: str) -> closing[psycopg.Connection[TupleRow]]:
    import psycopg

    return closing(psycopg.connect(url, autocommit=True))


def carry_out(url: str, sql: str) -> None:
    with connection_to(url) as db:
        db.execute(sql.encode())


async def refusal(journal: PostgresJournal) -> EnvironmentRefusedError:
    async with aclosing(journal):
        with pytest.raises(EnvironmentRefusedError) as caught:
            await journal.entries()
    return caught.value


# --- several workers -------------------------------------------------------------------------

APPENDER = """
import asyncio, sys
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.adapters.stores.postgres_journal import PostgresListener
from minions.data.errors import FencedError, LeaseHeldError
from minions.contracts.journal.facts import StepFinished
from minions.contracts.journal.journal import EntryDraft
from minions.engine.services.run_services import SystemClock

url, worker, turns, ttl = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])

async def main():
    journal = PostgresJournal(url, SystemClock())
    while True:
        try:
            lease = await journal.acquire("ses_1", f"run_{worker}", worker, ttl)
            break
        except LeaseHeldError:
            await asyncio.sleep(0.001)
    try:
        for turn in range(turns):
            fact = StepFinished(step_id="a", status="completed")
            draft = EntryDraft(key=f"{worker}/{turn}", fact=fact)
            entry = await journal.append(lease, draft)
            print(entry.position, flush=True)
    except FencedError:
        print("fenced", flush=True)
    await journal.release(lease)
    await journal.aclose()

asyncio.run(main())
"""


def appender(url: str, worker: str, turns: int, ttl_s: float = 60) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", APPENDER, url, worker, str(turns), str(ttl_s)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_processes_that_fight_for_a_session_write_one_after_the_other(
    empty_postgres_url: str,
) -> None:
    """They also migrate the empty database at the same moment."""
    processes = [appender(empty_postgres_url, f"w{n}", 30) for n in range(3)]
    said = [(await asyncio.to_thread(each.communicate))[0].split() for each in processes]
    async with aclosing(PostgresJournal(empty_postgres_url, FakeClock())) as journal:
        entries = await journal.entries("ses_1")
    assert [entry.position for entry in entries] == list(range(1, 91))
    workers = [entry.key.partition("/")[0] for entry in entries]
    assert len(list(itertools.groupby(workers))) == 3
    for number, positions in enumerate(said):
        own = [str(each.position) for each in entries if each.key.startswith(f"w{number}/")]
        assert positions == own


async def test_a_worker_that_was_stopped_and_replaced_is_fenced_when_it_goes_on(
    journal: PostgresJournal, url: str
) -> None:
    zombie = appender(url, "zombie", 1_000_000)
    assert zombie.stdout is not None
    assert zombie.stdout.readline() == "1\n"
    zombie.send_signal(signal.SIGSTOP)
    with pytest.raises(LeaseHeldError, match="zombie"):
        await journal.acquire("ses_1", "run_new", "new", 60)
    carry_out(url, "UPDATE minions.leases SET deadline = now()")
    lease = await journal.acquire("ses_1", "run_new", "new", 60)
    taken_over = await journal.append(lease, draft("new"))
    zombie.send_signal(signal.SIGCONT)
    said, _ = await asyncio.to_thread(zombie.communicate)
    acknowledged = ["1", *said.split()]
    assert acknowledged.pop() == "fenced"
    assert acknowledged == [str(n + 1) for n in range(len(acknowledged))]
    assert len(acknowledged) <= taken_over.position - 1 <= len(acknowledged) + 1
    assert (await journal.entries("ses_1"))[-1] == taken_over


async def test_deadlines_are_by_the_servers_clock_whatever_workers_think(url: str) -> None:
    clock = FakeClock()
    async with aclosing(PostgresJournal(url, clock)) as journal:
        lease = await lease_of(journal, "w1")
        clock.advance(365 * 86400)
        with pytest.raises(LeaseHeldError, match="w1"):
            await lease_of(journal, "w2")
        assert (await journal.append(lease, draft())).at == clock.now()
        await journal.renew(lease, 0.01)
        await asyncio.sleep(0.02)
        assert (await lease_of(journal, "w2")).epoch == 2


async def test_a_transaction_left_open_by_a_stopped_worker_does_not_block_the_others(
    journal: PostgresJournal, url: str
) -> None:
    with connection_to(url) as db:
        await journal.entries()
        found = db.execute("SHOW idle_in_transaction_session_timeout").fetchone()
        assert found == ("0",)
        watched = await journal._link.run(
            lambda attempt: attempt.connection.execute("SHOW idle_in_transaction_session_timeout")
        )
        assert await watched.fetchone() == ("5s",)


async def test_a_row_that_another_connection_keeps_locked_is_reported(url: str) -> None:
    async with aclosing(PostgresJournal(url, FakeClock(), statement_timeout_s=1)) as journal:
        lease = await lease_of(journal)
        with connection_to(url) as db, db.transaction():
            db.execute("SELECT * FROM minions.leases FOR UPDATE")
            with pytest.raises(JournalError) as caught:
                await journal.append(lease, draft())
        assert caught.value.error_code == "database-busy"
        assert (await journal.append(lease, draft())).position == 1


# --- connections that are lost ---------------------------------------------------------------


@pytest.mark.parametrize("lost", ["cuts_requests", "cuts_answers"])
async def test_an_append_whose_connection_is_lost_is_stored_once_and_acknowledged(
    wired: PostgresJournal, wire: Wire, lost: str
) -> None:
    lease = await lease_of(wired)
    stored = [await wired.append(lease, draft("a"))]
    for key in ("b", "c"):
        setattr(wire, lost, 1)
        stored.append(await wired.append(lease, draft(key)))
    stored.append(await wired.append(lease, draft("d")))
    assert [entry.position for entry in stored] == [1, 2, 3, 4]
    assert await wired.entries("ses_1") == stored
    assert wire.connections == 3


@pytest.mark.parametrize("lost", ["cuts_requests", "cuts_answers"])
async def test_every_other_call_is_done_again_over_a_new_connection(
    wired: PostgresJournal, wire: Wire, lost: str
) -> None:
    await wired.entries()
    setattr(wire, lost, 1)
    lease = await lease_of(wired)
    setattr(wire, lost, 1)
    await wired.renew(lease, 60)
    setattr(wire, lost, 1)
    digest = await wired.put_blob(b"data")
    setattr(wire, lost, 1)
    assert await wired.get_blob(digest) == b"data"
    entry = await wired.append(lease, draft())
    setattr(wire, lost, 1)
    assert await wired.entries() == [entry]
    setattr(wire, lost, 1)
    await wired.release(lease)
    with pytest.raises(FencedError):
        await wired.append(lease, draft("b"))


@pytest.mark.parametrize("nth", range(1, 7))
async def test_a_lease_is_got_once_whichever_answer_of_it_is_lost(
    wired: PostgresJournal, wire: Wire, nth: int
) -> None:
    """The transaction has several; an epoch more is all that it may cost."""
    lease = await lease_of(wired)
    await wired.append(lease, draft())
    await wired.release(lease)
    answers = 0

    async def cut_the_nth() -> None:
        nonlocal answers
        while answers < nth and not doing.done():
            answers += 1
            await asyncio.sleep(0.0003)
        wire.cuts_answers = 1

    doing = asyncio.ensure_future(wired.acquire("ses_1", "run_1", "w2", 60, next_generation=True))
    await cut_the_nth()
    again = await doing
    wire.cuts_answers = 0
    assert again.generation == 2
    assert again.epoch in (2, 3)
    assert (await wired.append(again, draft())).position == 2


async def test_a_duplicate_is_told_from_an_append_whose_answer_was_lost(
    wired: PostgresJournal, wire: Wire
) -> None:
    lease = await lease_of(wired)
    await wired.append(lease, draft("a", text="first"))
    wire.cuts_answers = 1
    with pytest.raises(JournalError) as caught:
        await wired.append(lease, draft("a", text="second"))
    assert caught.value.error_code == "duplicate-entry"


async def test_an_append_that_was_stored_before_its_lease_was_lost_is_acknowledged(
    wired: PostgresJournal, wire: Wire, journal: PostgresJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await lease_of(wired, "w1")
    first = await wired.append(lease, draft("a"))

    async def meanwhile(seconds: float) -> None:
        await journal.acquire("ses_1", "run_1", "w2", 60, takes_over="w1")

    monkeypatch.setattr(wired._link, "_sleep", meanwhile)
    wire.cuts_answers = 1
    entry = await wired.append(lease, draft("b"))
    assert await journal.entries("ses_1") == [first, entry]
    with pytest.raises(FencedError, match="w2"):
        await wired.append(lease, draft("c"))


@pytest.mark.parametrize("spared", [0, 1])
async def test_a_new_connection_that_breaks_before_it_is_of_use_is_made_anew(
    wired: PostgresJournal, wire: Wire, spared: int
) -> None:
    """While the server lets us in, and while we look what is in the database."""
    lease = await lease_of(wired)
    first = await wired.append(lease, draft("a"))
    wire.cuts_answers, wire.spares_between = 4, spared
    second = await wired.append(lease, draft("b"))
    assert await wired.entries("ses_1") == [first, second]
    assert wire.connections == 5


async def test_a_connection_that_is_lost_twice_in_one_call_ends_it(
    wired: PostgresJournal, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await lease_of(wired)
    await wired.append(lease, draft("a"))
    connect = wired._link.connect

    async def connect_for_a_moment() -> object:
        connection = await connect()
        wire.cuts_answers = 1
        return connection

    monkeypatch.setattr(wired._link, "connect", connect_for_a_moment)
    wire.cuts_answers = 1
    with pytest.raises(JournalError, match="Resume the run") as caught:
        await wired.append(lease, draft("b"))
    assert caught.value.error_code == "database-lost"
    monkeypatch.undo()
    assert len(await wired.entries()) == 2


async def test_a_connection_that_an_administrator_ends_is_taken_up_again(
    journal: PostgresJournal, url: str
) -> None:
    lease = await lease_of(journal)
    for turn in range(3):
        carry_out(
            url,
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        assert (await journal.append(lease, draft(f"{turn}"))).position == turn + 1


async def test_a_server_that_is_killed_and_comes_back_loses_nothing_acknowledged(
    postgres: PostgresServer, journal: PostgresJournal
) -> None:
    lease = await lease_of(journal)
    stored: list[JournalEntry] = []

    async def append() -> None:
        while len(stored) < 400:
            stored.append(await journal.append(lease, draft(f"{len(stored)}")))
            await asyncio.sleep(0)

    appending = asyncio.create_task(append())
    for many in (100, 250):
        while len(stored) < many:  # noqa: ASYNC110  # at any moment after that
            await asyncio.sleep(0.001)
        postgres.kill()
        await asyncio.to_thread(postgres.start)
    await appending
    assert await journal.entries("ses_1") == stored
    assert [entry.position for entry in stored] == list(range(1, 401))


async def test_a_server_that_is_down_is_reported_at_once(
    postgres: PostgresServer, url: str
) -> None:
    clock = FakeClock()
    postgres.kill()
    error = await refusal(PostgresJournal(url, clock, sleep=clock.sleep))
    await asyncio.to_thread(postgres.start)
    assert error.error_code == "database-unreachable"
    assert f"at {postgres.folder}:5432" in error.message
    assert clock.monotonic() == 0  # it was not waited for


async def test_a_server_that_does_not_come_back_is_reported(
    wired: PostgresJournal, wire: Wire
) -> None:
    await wired.entries()
    wire.server, wire.cuts_requests = "/nowhere", 1
    with pytest.raises(JournalError, match="does not come back within 30 s") as caught:
        await wired.entries()
    assert caught.value.error_code == "database-lost"


# --- cancellation and event loops ------------------------------------------------------------


async def test_an_append_that_has_begun_is_carried_through_and_then_cancelled(
    journal: PostgresJournal,
) -> None:
    lease = await lease_of(journal)
    reached = []

    async def work() -> None:
        reached.append(await journal.append(lease, draft()))
        await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await journal.entries("ses_1") == reached
    assert len(reached) == 1


async def test_a_timeout_that_strikes_in_the_last_append_of_its_block_leaves_no_trace(
    journal: PostgresJournal,
) -> None:
    lease = await lease_of(journal)
    async with asyncio.timeout(0):
        entry = await journal.append(lease, draft())
    await asyncio.sleep(0.001)
    task = asyncio.current_task()
    assert task is not None
    assert (entry.position, task.cancelling()) == (1, 0)


async def test_a_timeout_that_strikes_in_an_append_ends_what_comes_after_it(
    journal: PostgresJournal,
) -> None:
    lease = await lease_of(journal)

    async def work() -> None:
        await journal.append(lease, draft())
        await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work(), 0.000_001)
    assert len(await journal.entries("ses_1")) == 1


def test_one_journal_serves_one_event_loop_after_the_other(url: str) -> None:
    journal = PostgresJournal(url, FakeClock())
    lease = asyncio.run(lease_of(journal))
    assert asyncio.run(journal.append(lease, draft())).position == 1

    async def last() -> None:
        async with aclosing(journal):
            assert len(await journal.entries()) == 1

    asyncio.run(last())


async def test_a_closed_journal_connects_again_at_its_next_use(journal: PostgresJournal) -> None:
    lease = await lease_of(journal)
    await journal.aclose()
    assert (await journal.append(lease, draft())).position == 1


# --- waiting ---------------------------------------------------------------------------------


@pytest.fixture
async def other(url: str) -> AsyncIterator[PostgresJournal]:
    """Another worker's."""
    async with aclosing(PostgresJournal(url, FakeClock())) as made:
        yield made


async def test_the_server_wakes_who_waits(
    journal: PostgresJournal, other: PostgresJournal, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else would: it is not looked again."""
    monkeypatch.setattr("minions.adapters.stores.postgres_journal._LOOK_EVERY_S", 3600.0)
    lease = await lease_of(other)
    assert await journal.wait("ses_1", 0, 0) is False
    assert connections_to(url) == 2
    waiting = asyncio.create_task(journal.wait("ses_1", 0, 3600))
    await until(lambda: connections_to(url) == 3)
    await other.append(lease, draft("a"))
    assert await asyncio.wait_for(waiting, HANG_S)
    waiting = asyncio.create_task(journal.wait("ses_1", 1, 3600))
    await journal.entries()  # comes after its look
    await other.append(lease, draft("b"))
    assert await asyncio.wait_for(waiting, HANG_S)
    assert await journal.wait("ses_1", 2, 0.05) is False
    assert connections_to(url) == 3
    await journal.aclose()
    await until(lambda: connections_to(url) == 1)  # the server takes a moment to notice


@pytest.mark.parametrize("is_beside", [False, True])
async def test_a_worker_does_not_continue_in_a_database_of_an_earlier_time(
    url: str, journal: PostgresJournal, *, is_beside: bool
) -> None:
    """It has the lease there, too; but facts would be missing before its next one."""
    lease = await lease_of(journal)
    other = await journal.acquire("ses_2", "run_2", "w1", 60)
    for key in "ab":
        await journal.append(lease, draft(key))
    carry_out(url, "DELETE FROM minions.entries WHERE session_id = 'ses_1' AND position > 1")
    carry_out(
        url,
        "UPDATE minions.leases l SET last_position = 1, chain = e.chain FROM minions.entries e "
        "WHERE l.session_id = 'ses_1' AND e.session_id = 'ses_1'",
    )
    for key in "cd":  # also not at its next try
        beside = [journal.append(other, draft(key))] if is_beside else []
        refused, *_ = await asyncio.gather(
            journal.append(lease, draft(key)), *beside, return_exceptions=True
        )
        assert isinstance(refused, FencedError)
        assert "it stored 2 facts, and the database has 1 of them" in refused.message
    again = await journal.acquire("ses_1", "run_1", "w2", 60, takes_over="w1")
    assert (await journal.append(again, draft("b"))).position == 2
    assert len(await journal.entries("ses_2")) == 2 * is_beside


async def until_somebody_waits(db: psycopg.Connection[TupleRow]) -> None:
    """For a lock that another connection holds."""
    while not db.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall():  # noqa: ASYNC110  # the server says nothing
        await asyncio.sleep(0.001)


async def test_facts_are_stored_while_blobs_are_collected(
    url: str, journal: PostgresJournal
) -> None:
    """Of a large journal that takes minutes."""
    lease = await lease_of(journal)
    with connection_to(url) as locking, connection_to(url) as watching:
        locking.execute("BEGIN; LOCK TABLE minions.blobs IN ACCESS EXCLUSIVE MODE")
        collecting = asyncio.ensure_future(journal.collect())
        await until_somebody_waits(watching)
        assert (await journal.append(lease, draft())).position == 1
        locking.execute("COMMIT")
        assert (await collecting).blobs == 0


async def test_a_blob_that_is_put_again_during_a_collection_stays(
    url: str, journal: PostgresJournal
) -> None:
    """Its name is in a fact that comes after those that were read; however long that takes."""
    digests = [await journal.put_blob(data) for data in (b"put again", b"left over")]
    await journal.append(await lease_of(journal), draft())
    with connection_to(url) as locking, connection_to(url) as watching:
        locking.execute("BEGIN; LOCK TABLE minions.entries IN ACCESS EXCLUSIVE MODE")
        collecting = asyncio.ensure_future(journal.collect(spare_s=0))
        await until_somebody_waits(watching)
        assert await journal.put_blob(b"put again") == digests[0]
        locking.execute("COMMIT")
        assert (await collecting).blobs == 2  # found; one of them was left
    assert await journal.get_blob(digests[0]) == b"put again"
    with pytest.raises(NotFoundError, match=digests[1]):
        await journal.get_blob(digests[1])


async def notified_until_now(listening: psycopg.AsyncConnection[TupleRow]) -> list[str]:
    """What the server told, in the order of commits."""
    told = list[str]()
    await listening.execute("NOTIFY minions_facts, 'now'")
    async for each in listening.notifies(timeout=HANG_S):
        if each.payload == "now":
            break
        told.append(each.payload)
    return told


async def test_the_server_tells_of_facts_of_sessions_that_somebody_waits_for(
    url: str, journal: PostgresJournal
) -> None:
    """Transactions that notify are committed one after the other: others do not."""
    import psycopg

    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as listening:
        await listening.execute("LISTEN minions_facts")
        lease = await lease_of(journal)
        other = await journal.acquire("ses_2", "run_2", "w1", 60)
        await journal.append(lease, draft("a"))
        async with asyncio.TaskGroup() as group:  # stored together
            group.create_task(journal.append(lease, draft("b")))
            group.create_task(journal.append(other, draft("b")))
        assert await notified_until_now(listening) == []
        async with aclosing(PostgresJournal(url, FakeClock())) as follower:
            assert not await follower.wait("ses_1", 2, 0)
            await journal.append(lease, draft("c"))
            async with asyncio.TaskGroup() as group:
                group.create_task(journal.append(lease, draft("d")))
                group.create_task(journal.append(other, draft("d")))
            assert await notified_until_now(listening) == ["3 ses_1", "4 ses_1"]
        carry_out(url, "UPDATE minions.leases SET listened_until = now()")
        await journal.append(lease, draft("e"))
        assert await notified_until_now(listening) == []


async def test_who_begins_to_wait_sees_the_fact_that_is_being_stored(
    url: str, journal: PostgresJournal
) -> None:
    """Its writer did not know yet that somebody waits, so it tells nobody."""
    await journal.append(await lease_of(journal), draft("a"))
    with connection_to(url) as writer, connection_to(url) as watcher:
        writer.execute("BEGIN")
        writer.execute("UPDATE minions.leases SET last_position = 2")
        waiting = asyncio.ensure_future(journal.wait("ses_1", 1, 0))
        await until_somebody_waits(watcher)
        writer.execute("COMMIT")
        assert await waiting


async def test_who_waits_learns_of_facts_though_the_listener_is_cut_off(
    wired: PostgresJournal, wire: Wire, other: PostgresJournal
) -> None:
    lease = await lease_of(other)
    waiting = asyncio.create_task(wired.wait("ses_1", 0, 3600))
    await until(lambda: wire.connections == 2)
    wire.cuts_answers = 4
    await other.append(lease, draft("a"))
    assert await asyncio.wait_for(waiting, HANG_S)
    wire.cuts_answers = 0
    waiting = asyncio.create_task(wired.wait("ses_1", 1, 3600))
    await other.append(lease, draft("b"))
    assert await asyncio.wait_for(waiting, HANG_S)


@frozen
class Deaf:
    """A link and its one connection, which cannot be told to listen."""

    error: BaseException | None
    """None: it never answers."""
    asked: asyncio.Event = field(factory=asyncio.Event)
    closed: asyncio.Event = field(factory=asyncio.Event)

    async def connect(self) -> Deaf:
        return self

    async def execute(self, _: str) -> None:
        self.asked.set()
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()

    async def close(self) -> None:
        self.closed.set()


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "failed"])
async def test_a_connection_that_does_not_come_to_listening_is_closed(is_cancelled: bool) -> None:
    if (reason := reason_without_postgres()) is not None:
        pytest.skip(reason)
    import psycopg

    link = Deaf(None if is_cancelled else psycopg.OperationalError("no"))
    listener = PostgresListener(cast("PostgresLink", link), sleep=lambda _: asyncio.sleep(3600))

    async def look(_: Collection[str]) -> Mapping[str, int]:
        return {}

    listening = asyncio.create_task(listener.listen(EntryWaiters(), look))
    await link.asked.wait()
    if not is_cancelled:
        await asyncio.wait_for(link.closed.wait(), HANG_S)
    listening.cancel()
    await asyncio.wait((listening,))
    assert link.closed.is_set()


async def test_a_server_that_stays_away_ends_the_waiting(
    postgres: PostgresServer, journal: PostgresJournal, url: str
) -> None:
    clock = FakeClock()
    async with aclosing(PostgresJournal(url, clock, sleep=clock.sleep)) as waiter:
        waiting = asyncio.create_task(waiter.wait("ses_1", 0, 3600))
        await until(lambda: connections_to(url) == 2)
        postgres.kill()
        try:
            with pytest.raises(JournalError):
                await asyncio.wait_for(waiting, HANG_S)
        finally:
            postgres.start()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  # the server tells nobody
        await asyncio.sleep(0.01)


def connections_to(url: str) -> int:
    """How many there are, besides the one that asks."""
    with connection_to(url) as db:
        found = db.execute(
            b"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            b"AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchone()
    assert found is not None
    return int(found[0])


# --- databases that cannot be used -----------------------------------------------------------


async def test_a_newer_database_is_refused_and_left_as_it_is(empty_postgres_url: str) -> None:
    newer = {**bundled_migrations(), "9999_future": "CREATE TABLE minions.future (a int)"}
    async with aclosing(
        PostgresJournal(empty_postgres_url, FakeClock(), migrations=newer)
    ) as journal:
        await journal.entries()
    error = await refusal(PostgresJournal(empty_postgres_url, FakeClock()))
    assert error.error_code == "newer-database"
    assert "9999_future" in error.message


async def test_an_older_database_is_migrated(empty_postgres_url: str) -> None:
    first = {name: sql for name, sql in bundled_migrations().items() if name < "0002"}
    async with aclosing(
        PostgresJournal(empty_postgres_url, FakeClock(), migrations=first)
    ) as journal:
        await journal.entries()
    lease = entry_by_hand(empty_postgres_url)
    async with (
        aclosing(PostgresState(empty_postgres_url)) as state,
        aclosing(PostgresStepCache(empty_postgres_url)) as cache,
    ):
        await state.put("k", "1")
        assert await cache.get("0" * 64) is None
    async with aclosing(PostgresJournal(empty_postgres_url, FakeClock())) as journal:
        (entry,) = await journal.entries()
        assert (entry.position, entry.body["output"]) == (1, {"text": "as it was"})
        assert (await journal.append(lease, draft("b"))).position == 2
        report = await journal.verify("ses_1")
        assert (report.entries, report.uncovered, report.fault) == (2, 1, None)


async def test_a_migration_that_fails_changes_nothing(journal: PostgresJournal, url: str) -> None:
    lease = await lease_of(journal)
    broken = {**bundled_migrations(), "9999_broken": "DROP TABLE minions.blobs; SELECT oops"}
    await refusal(PostgresJournal(url, FakeClock(), migrations=broken))
    await journal.put_blob(b"still there")
    await journal.append(lease, draft())


async def test_an_older_database_is_as_it_was_after_a_migration_that_failed(
    empty_postgres_url: str,
) -> None:
    """All that was missing is one transaction: what went well before the fault is taken back."""
    first = {name: sql for name, sql in bundled_migrations().items() if name < "0002"}
    async with aclosing(
        PostgresJournal(empty_postgres_url, FakeClock(), migrations=first)
    ) as journal:
        await journal.entries()
    entry_by_hand(empty_postgres_url)
    broken = {**bundled_migrations(), "9999_broken": "DELETE FROM minions.entries; SELECT 1 / 0"}
    error = await refusal(PostgresJournal(empty_postgres_url, FakeClock(), migrations=broken))
    assert "division by zero" in error.message
    with connection_to(empty_postgres_url) as db:
        applied = db.execute(b"SELECT name FROM minions.applied_migrations").fetchall()
    assert applied == [(name,) for name in first]
    async with aclosing(
        PostgresJournal(empty_postgres_url, FakeClock(), migrations=first)
    ) as journal:
        (entry,) = await journal.entries()
    assert (entry.position, entry.body["output"]) == (1, {"text": "as it was"})


async def test_a_schema_of_another_program_is_refused_untouched(empty_postgres_url: str) -> None:
    carry_out(empty_postgres_url, "CREATE SCHEMA minions; CREATE TABLE minions.cookies (a int)")
    error = await refusal(PostgresJournal(empty_postgres_url, FakeClock()))
    assert error.error_code == "not-a-journal"
    assert "cookies" in error.message


async def test_an_empty_schema_made_by_an_administrator_is_enough(empty_postgres_url: str) -> None:
    carry_out(
        empty_postgres_url,
        "CREATE SCHEMA minions; CREATE ROLE guest LOGIN",
    )
    guest = PostgresJournal(empty_postgres_url.replace("minions@", "guest@"), FakeClock())
    error = await refusal(guest)
    assert error.error_code == "not-permitted"
    carry_out(empty_postgres_url, "ALTER SCHEMA minions OWNER TO guest")
    async with aclosing(guest):
        assert await guest.entries() == []


async def test_a_database_without_utf8_is_refused(postgres: PostgresServer) -> None:
    name = postgres.new_database("ENCODING 'LATIN1' TEMPLATE template0")
    error = await refusal(PostgresJournal(postgres.url(name), FakeClock()))
    assert error.error_code == "bad-encoding"
    assert "createdb --encoding=UTF8" in error.message


async def test_what_is_acknowledged_outlives_the_server_where_its_default_says_otherwise(
    journal: PostgresJournal, url: str
) -> None:
    carry_out(url, "DO $$BEGIN EXECUTE 'ALTER DATABASE ' || current_database() "
                   "|| ' SET synchronous_commit = off'; END$$")  # fmt: skip
    found = await journal._link.run(
        lambda attempt: attempt.connection.execute("SHOW synchronous_commit")
    )
    assert await found.fetchone() == ("on",)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE minions.entries SET body = '{'", "body is not JSON"),
        ("UPDATE minions.entries SET body = '\\xff00'", "body is not JSON"),
        ("UPDATE minions.entries SET body = '7'", "no JSON object"),
    ],
)
async def test_an_entry_that_makes_no_sense_hides_no_other(
    journal: PostgresJournal, url: str, damage: str, words: str
) -> None:
    lease = await lease_of(journal)
    await journal.append(lease, draft())
    carry_out(url, damage)
    sound = await journal.append(lease, draft("sound"))
    with pytest.raises(JournalError, match=words) as caught:
        await journal.entries()
    assert caught.value.error_code == "corrupt-entry"
    first, second = await journal.entries(with_damaged=True)
    assert isinstance(first.fact, UnreadableFact)
    assert words in first.fact.problem
    assert second == sound


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("DROP TABLE minions.entries", "entries"),
        ("DROP SCHEMA minions CASCADE", "minions.entries"),
    ],
)
async def test_damage_is_told_as_that(
    journal: PostgresJournal, url: str, damage: str, words: str
) -> None:
    await journal.append(await lease_of(journal), draft())
    carry_out(url, damage)
    with pytest.raises(JournalError, match=words) as caught:
        await journal.entries()
    assert caught.value.error_code == "corrupt-database"


async def test_a_damaged_blob_is_told_as_that(journal: PostgresJournal, url: str) -> None:
    digest = await journal.put_blob(b"x")
    carry_out(url, "UPDATE minions.blobs SET data = '7'")
    with pytest.raises(JournalError, match=digest) as caught:
        await journal.get_blob(digest)
    assert caught.value.error_code == "corrupt-database"


@pytest.mark.parametrize("key", ["a\0b", "\ud83d alone"])
async def test_a_key_that_postgres_cannot_hold_is_refused(
    journal: PostgresJournal, key: str
) -> None:
    lease = await lease_of(journal)
    with pytest.raises(JournalError) as caught:
        await journal.append(lease, draft(key))
    assert caught.value.error_code == "bad-text"
    assert (await journal.append(lease, draft())).position == 1


async def test_a_key_that_no_index_can_hold_is_refused(journal: PostgresJournal) -> None:
    lease = await lease_of(journal)
    with pytest.raises(JournalError) as caught:
        await journal.append(lease, draft("".join(map(chr, range(0x4E00, 0x6E00)))))
    assert caught.value.error_code == "key-too-long"


async def test_keys_of_state_may_hold_nul(url: str) -> None:
    async with aclosing(PostgresState(url)) as state:
        await state.put("a\0b", "1")
        assert (await state.get("a\0b"), await state.keys()) == ("1", ["a\0b"])
        with pytest.raises(JournalError) as caught:
            await state.put("\ud83d", "1")
    assert caught.value.error_code == "bad-text"


@pytest.mark.parametrize("damage", ["output = '{'", "output = '\\xff'"])
async def test_a_damaged_cache_is_told_as_that(url: str, damage: str) -> None:
    from datetime import UTC, datetime

    from minions.contracts.steps import CachedStep

    entry = CachedStep(output=1, run_id="r", created_at=datetime(2026, 1, 1, tzinfo=UTC))
    async with aclosing(PostgresStepCache(url)) as cache:
        await cache.put("k", entry)
        carry_out(url, f"UPDATE minions.step_cache SET {damage}")
        with pytest.raises(JournalError) as caught:
            await cache.get("k")
    assert caught.value.error_code == "corrupt-database"


# --- servers that cannot be reached ----------------------------------------------------------


async def test_a_server_that_never_answers_is_given_up() -> None:
    if (reason := reason_without_postgres()) is not None:
        pytest.skip(reason)

    server = socket.create_server(("127.0.0.1", 0))  # takes connections and reads nothing
    port = server.getsockname()[1]
    url = f"postgresql://me:s3cret@127.0.0.1:{port}/db"
    error = await refusal(PostgresJournal(url, FakeClock(), connect_timeout_s=0.2))
    assert (error.error_code, error.where) == (
        "database-unreachable",
        f"postgresql://me:***@127.0.0.1:{port}/db",
    )
    assert f"at 127.0.0.1:{port}: no answer in time" in error.message
    server.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@127.0.0.1:1/db",
        "postgres://me@127.0.0.1:1/db?password=s3cret",
        "postgresql://me:s3%63ret@127.0.0.1:1/db",
        "postgresql://me:s3cret/x@127.0.0.1:1/db",
        "postgresql://me:s3cret@x@127.0.0.1:1/db",
        "postgresql://me:s3cret@127.0.0.1:port/db",
    ],
)
async def test_no_message_holds_a_password(url: str) -> None:
    if (reason := reason_without_postgres()) is not None:
        pytest.skip(reason)
    error = await refusal(PostgresJournal(url, FakeClock()))
    assert error.error_code in ("database-unreachable", "unknown-database")
    assert "127.0.0.1" in error.message
    shown = f"{error.message} {error.where} {error.__cause__}"
    assert "s3cret" not in shown.replace("s3%63ret", "s3cret")


async def test_without_psycopg_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    error = await refusal(PostgresJournal("postgresql://me:s3cret@h/db", FakeClock()))
    assert (error.error_code, error.suggestions) == (
        "missing-package",
        ("pip install 'minions-engine[postgres]'",),
    )
    assert "s3cret" not in error.message


def test_making_a_journal_loads_no_driver() -> None:
    script = (
        "import sys\n"
        "from minions.adapters.stores.postgres_journal import PostgresJournal\n"
        "from minions.testing.virtual_time import FakeClock\n"
        "PostgresJournal('postgresql:///x', FakeClock())\n"
        "print(sorted({'psycopg', 'sqlite3', 'cattrs'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
