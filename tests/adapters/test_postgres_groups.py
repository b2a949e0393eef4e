"""Calls of concurrent runs share transactions on PostgreSQL, and none harms another one."""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import aclosing, closing
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.contracts.journal.journal import EntryDraft, JournalEntry, Lease
from minions.data.errors import FencedError, JournalError, LeaseHeldError
from minions.testing.journal_suite import holding
from minions.testing.virtual_time import FakeClock
from patience import HANG_S
from postgres import PostgresServer
from postgres_wire import *  # noqa: F403  # its fixtures
from postgres_wire import Wire

if TYPE_CHECKING:
    import psycopg
    from psycopg.rows import TupleRow

ROOT = Path(__file__).parents[2]
T = TypeVar("T")


@pytest.fixture
async def journal(postgres_url: str) -> AsyncIterator[PostgresJournal]:
    async with aclosing(PostgresJournal(postgres_url, FakeClock())) as made:
        yield made


def draft(key: str = "a", text: str = "") -> EntryDraft:
    return holding({"text": text}, state="finished", key=key)


def start() -> EntryDraft:
    return holding({}, kind="run", state="started", key="run")


async def leases_of(journal: PostgresJournal, many: int) -> list[Lease]:
    """Of as many sessions, in their order."""
    return [
        await journal.acquire(f"ses_{number:03}", f"run_{number:03}", "w", 60)
        for number in range(many)
    ]


async def append_to_each(journal: PostgresJournal, leases: Sequence[Lease]) -> list[JournalEntry]:
    return await asyncio.gather(*(journal.append(lease, draft()) for lease in leases))


async def outcomes(calls: Sequence[Awaitable[T]]) -> list[T | str]:
    """The result of each call, or the code of its error."""
    ended = await asyncio.gather(*calls, return_exceptions=True)
    return [
        each.error_code if isinstance(each, JournalError) else _no_error(each) for each in ended
    ]


def _no_error(outcome: T | BaseException) -> T:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def connection_to(url: str) -> closing[psycopg.Connection[TupleRow]]:
    import psycopg

    return closing(psycopg.connect(url, autocommit=True))


def rows(url: str, sql: str) -> list[TupleRow]:
    with connection_to(url) as db:
        return db.execute(sql.encode()).fetchall()


def transactions(url: str) -> list[int]:
    """How many facts each transaction stored."""
    sql = "SELECT count(*) FROM minions.entries GROUP BY xmin ORDER BY min(ctid)"
    return [many for (many,) in rows(url, sql)]


# --- what is shared --------------------------------------------------------------------------


async def test_facts_that_come_in_one_turn_of_the_loop_share_a_transaction(
    journal: PostgresJournal, postgres_url: str
) -> None:
    """A-145."""
    leases = await leases_of(journal, 8)
    stored = await append_to_each(journal, leases)
    assert transactions(postgres_url) == [8]
    assert [(entry.run_id, entry.position) for entry in stored] == [
        (lease.run_id, 1) for lease in leases
    ]
    assert await journal.entries() == stored


async def test_facts_that_come_while_others_are_committed_are_the_next_transaction(
    journal: PostgresJournal, postgres_url: str
) -> None:
    """A-145."""
    leases = await leases_of(journal, 9)
    first = asyncio.create_task(journal.append(leases[0], draft()))
    for _ in range(3):
        await asyncio.sleep(0)
    await append_to_each(journal, leases[1:])
    await first
    assert transactions(postgres_url) == [1, 8]


async def test_runs_that_go_on_together_stay_together(
    journal: PostgresJournal, postgres_url: str
) -> None:
    leases = await leases_of(journal, 4)

    async def run(lease: Lease, turns_late: int) -> None:
        for _ in range(turns_late):
            await asyncio.sleep(0)
        for number in range(20):
            await journal.append(lease, draft(f"{number}"))

    await asyncio.gather(*(run(lease, number) for number, lease in enumerate(leases)))
    assert len(transactions(postgres_url)) <= 22


async def test_a_group_has_64_facts_at_most_and_a_mebibyte(
    journal: PostgresJournal, postgres_url: str
) -> None:
    (lease,) = await leases_of(journal, 1)
    await asyncio.gather(*(journal.append(lease, draft(f"{n}")) for n in range(150)))
    assert transactions(postgres_url) == [64, 64, 22]
    large = "x" * 300_000
    await asyncio.gather(*(journal.append(lease, draft(f"large/{n}", large)) for n in range(7)))
    assert transactions(postgres_url)[3:] == [3, 3, 1]


async def test_leases_and_blobs_of_concurrent_runs_are_had_and_given_back_together(
    journal: PostgresJournal, postgres_url: str
) -> None:
    sessions = [f"ses_{number}" for number in range(8)]
    leases = await asyncio.gather(
        *(journal.acquire(session, f"run_of_{session}", "w", 60) for session in sessions)
    )
    assert [lease.session_id for lease in leases] == sessions
    assert rows(postgres_url, "SELECT count(DISTINCT xmin::text) FROM minions.leases") == [(1,)]
    blobs = [b"same", b"same", *(bytes([number]) for number in range(6))]
    digests = await asyncio.gather(*map(journal.put_blob, blobs))
    assert digests == [hashlib.sha256(data).hexdigest() for data in blobs]
    assert rows(postgres_url, "SELECT count(DISTINCT xmin::text) FROM minions.blobs") == [(1,)]
    await asyncio.gather(*map(journal.release, leases))
    assert await journal.held_leases() == []
    assert rows(postgres_url, "SELECT count(DISTINCT xmin::text) FROM minions.leases") == [(1,)]


async def test_a_generation_is_found_also_where_leases_are_acquired_together(
    journal: PostgresJournal,
) -> None:
    for lease in await leases_of(journal, 3):
        await journal.append(lease, draft())
    again = await asyncio.gather(
        journal.acquire("ses_000", "run_000", "w", 60, next_generation=True),
        journal.acquire("ses_001", "run_001", "w", 60),
        journal.acquire("ses_002", "run_002", "v", 60, takes_over="w", next_generation=True),
        journal.acquire("ses_000a", "run_new", "w", 60),
    )
    assert [(lease.epoch, lease.generation) for lease in again] == [(2, 2), (2, 1), (2, 2), (1, 1)]
    assert [lease.run_id for lease in again] == ["run_000", "run_001", "run_002", "run_new"]


# --- one that is refused ---------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a\0b", "\ud83d alone", "".join(map(chr, range(0x4E00, 0x6E00)))])
async def test_a_key_that_cannot_be_stored_is_refused_alone(
    journal: PostgresJournal, key: str
) -> None:
    first, second, third = await leases_of(journal, 3)
    codes = await outcomes(
        [
            journal.append(first, draft()),
            journal.append(second, draft(key)),
            journal.append(second, draft()),
            journal.append(third, draft()),
        ]
    )
    assert codes[1] in ("bad-text", "key-too-long")
    stored = [each for each in codes if isinstance(each, JournalEntry)]
    assert [entry.position for entry in stored] == [1, 1, 1]
    assert await journal.entries() == stored


async def test_a_duplicate_is_refused_alone_whoever_stored_it(journal: PostgresJournal) -> None:
    first, second, third = await leases_of(journal, 3)
    await journal.append(second, draft("a", "before"))
    codes = await outcomes(
        [
            journal.append(first, draft()),
            journal.append(second, draft("a", "again")),
            journal.append(second, draft("b", "once")),
            journal.append(second, draft("b", "twice")),
            journal.append(second, draft("c")),
            journal.append(third, draft()),
        ]
    )
    assert [each for each in codes if isinstance(each, str)] == ["duplicate-entry"] * 2
    entries = await journal.entries("ses_001")
    assert [(entry.position, entry.key) for entry in entries] == [(1, "a"), (2, "b"), (3, "c")]
    assert [entry.body["output"] for entry in entries] == [
        {"text": "before"}, {"text": "once"}, {"text": ""},
    ]  # fmt: skip


async def test_a_writer_that_lost_its_lease_is_refused_alone(
    journal: PostgresJournal, postgres_url: str
) -> None:
    leases = await leases_of(journal, 8)
    await journal.release(leases[2])
    await journal.acquire("ses_005", "run_005", "v", 60, takes_over="w")
    ended = await asyncio.gather(
        *(journal.append(lease, draft()) for lease in leases), return_exceptions=True
    )
    fenced = [number for number, each in enumerate(ended) if isinstance(each, FencedError)]
    assert fenced == [2, 5]
    assert transactions(postgres_url) == [6]
    assert "'v' has it" in str(ended[5])


async def test_a_lease_that_another_run_holds_is_refused_alone(journal: PostgresJournal) -> None:
    await leases_of(journal, 1)
    ended = await asyncio.gather(
        journal.acquire("ses_000", "other", "v", 60),
        journal.acquire("ses_001", "run_001", "v", 60),
        journal.acquire("ses_002", "run_002", "v", 60),
        return_exceptions=True,
    )
    assert [type(each) for each in ended] == [LeaseHeldError, Lease, Lease]
    assert len(await journal.held_leases()) == 3


async def test_a_lease_that_was_taken_over_is_not_released_with_the_others(
    journal: PostgresJournal,
) -> None:
    leases = await leases_of(journal, 4)
    taken = await journal.acquire("ses_002", "run_002", "v", 60, takes_over="w")
    await asyncio.gather(*map(journal.release, leases))
    assert [each.lease for each in await journal.held_leases()] == [taken]


async def test_a_locked_session_holds_up_no_other_run(
    journal: PostgresJournal, postgres_url: str
) -> None:
    leases = await leases_of(journal, 4)
    with connection_to(postgres_url) as db, db.transaction():
        db.execute("SELECT 1 FROM minions.leases WHERE session_id = 'ses_001' FOR UPDATE")
        appends = [asyncio.create_task(journal.append(lease, draft())) for lease in leases]
        others = [appends[0], *appends[2:]]
        await asyncio.wait_for(asyncio.gather(*others), HANG_S)
        assert not appends[1].done()
    assert (await appends[1]).position == 1
    assert transactions(postgres_url) == [3, 1]


async def test_a_session_that_goes_on_keeps_its_rows_beside_others(
    journal: PostgresJournal, postgres_url: str
) -> None:
    """A `run` entry of a session with an earlier run is stored with its rows, so alone."""
    first, second, third = await leases_of(journal, 3)
    await journal.append(second, start())
    await journal.release(second)
    second = await journal.acquire("ses_001", "run_later", "w", 60)
    stored = await asyncio.gather(
        journal.append(first, draft()),
        journal.append(second, start()),
        journal.append(second, draft()),
        journal.append(third, draft()),
    )
    assert [entry.position for entry in stored] == [1, 2, 3, 1]
    assert transactions(postgres_url) == [1, 2, 1, 1]
    assert {run.run_id for run in await journal.runs()} == {"run_001", "run_later"}


async def sessions_that_go_on(journal: PostgresJournal, many: int) -> list[Lease]:
    """The leases of their second runs."""
    firsts = await leases_of(journal, many)
    await asyncio.gather(*(journal.append(lease, start()) for lease in firsts))
    await asyncio.gather(*map(journal.release, firsts))
    return await asyncio.gather(
        *(journal.acquire(lease.session_id, f"{lease.run_id}b", "w", 60) for lease in firsts)
    )


async def test_sessions_that_go_on_together_store_their_rows_in_one_transaction(
    journal: PostgresJournal, postgres_url: str
) -> None:
    leases = await sessions_that_go_on(journal, 6)
    await journal.runs()
    stored = await asyncio.gather(*(journal.append(lease, start()) for lease in leases))
    assert [entry.position for entry in stored] == [2] * 6
    assert transactions(postgres_url) == [6, 6]
    assert rows(postgres_url, "SELECT count(*) FROM minions.changed_sessions") == [(0,)]
    assert {run.run_id for run in await journal.runs()} == {
        f"run_{number:03}{end}" for number in range(6) for end in ("", "b")
    }


async def test_of_sessions_that_go_on_together_one_that_is_refused_harms_no_other(
    journal: PostgresJournal, postgres_url: str
) -> None:
    leases = await sessions_that_go_on(journal, 5)
    await journal.append(leases[1], start())
    await journal.release(leases[2])
    codes = await outcomes([journal.append(lease, start()) for lease in leases])
    assert [each if isinstance(each, str) else each.position for each in codes] == [
        2, "duplicate-entry", "fenced", 2, 2,
    ]  # fmt: skip
    with connection_to(postgres_url) as db, db.transaction():
        db.execute("SELECT 1 FROM minions.leases WHERE session_id = 'ses_003' FOR UPDATE")
        ends = [holding({}, kind="run", state="finished", key="run") for _ in leases]
        appends = [asyncio.create_task(journal.append(leases[n], ends[n])) for n in (0, 3, 4)]
        await asyncio.wait_for(asyncio.gather(appends[0], appends[2]), HANG_S)
        assert not appends[1].done()
    assert (await appends[1]).position == 3


# --- cancellation and lost connections -------------------------------------------------------


async def test_a_cancelled_caller_loses_and_doubles_nothing(journal: PostgresJournal) -> None:
    leases = await leases_of(journal, 4)
    appends = [asyncio.create_task(journal.append(lease, draft())) for lease in leases]
    await asyncio.sleep(0)
    appends[1].cancel()
    await asyncio.sleep(0)
    appends[2].cancel()
    done = [await append for append in appends]  # each came to its end
    assert [entry.position for entry in done] == [1, 1, 1, 1]
    assert await journal.entries() == done


@pytest.mark.parametrize("lost", ["cuts_requests", "cuts_answers"])
async def test_a_group_whose_connection_is_lost_is_stored_once_and_acknowledged(
    wired: PostgresJournal, wire: Wire, lost: str
) -> None:
    leases = await leases_of(wired, 8)
    await append_to_each(wired, leases)  # the statement is prepared: the next message has the facts
    setattr(wire, lost, 1)
    stored = await asyncio.gather(*(wired.append(lease, draft("b")) for lease in leases))
    assert [entry.position for entry in stored] == [2] * 8
    assert [entry for entry in await wired.entries() if entry.position == 2] == stored
    assert wire.connections == 2


@pytest.mark.parametrize("lost", ["cuts_requests", "cuts_answers"])
async def test_other_calls_whose_connection_is_lost_are_done_again(
    wired: PostgresJournal, wire: Wire, lost: str
) -> None:
    async def acquire(*numbers: int) -> list[Lease]:
        return await asyncio.gather(
            *(wired.acquire(f"ses_{each}", f"run_{each}", "w", 60) for each in numbers)
        )

    async def put(*texts: bytes) -> list[str]:
        return await asyncio.gather(*map(wired.put_blob, texts))

    await put(b"a", b"b")
    first = await acquire(1, 2)
    setattr(wire, lost, 1)
    leases = await acquire(3, 4, 5)
    assert {lease.epoch for lease in leases} == {1 if lost == "cuts_requests" else 2}
    setattr(wire, lost, 1)
    assert [await wired.get_blob(each) for each in await put(b"c", b"d")] == [b"c", b"d"]
    await append_to_each(wired, leases)
    await asyncio.gather(*map(wired.release, first))
    setattr(wire, lost, 1)
    await asyncio.gather(*map(wired.release, leases))
    assert await wired.held_leases() == []


async def test_a_server_that_does_not_come_back_is_told_to_each_once(
    wired: PostgresJournal, wire: Wire
) -> None:
    leases = await leases_of(wired, 5)
    wire.server, wire.cuts_requests = "/nowhere", 1
    ended = await asyncio.gather(
        *(wired.append(lease, draft()) for lease in leases), return_exceptions=True
    )
    assert [type(each) for each in ended] == [JournalError] * 5
    assert {each.error_code for each in ended if isinstance(each, JournalError)} == {
        "database-lost"
    }
    assert len({id(each) for each in ended}) == 5


async def test_a_server_that_goes_away_again_is_waited_for_once_and_not_for_each(
    wired: PostgresJournal, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = await leases_of(wired, 5)
    await append_to_each(wired, leases)
    connect = wired._link.connect

    async def connect_for_a_moment() -> object:
        connection = await connect()
        wire.cuts_answers = 1
        return connection

    monkeypatch.setattr(wired._link, "connect", connect_for_a_moment)
    wire.cuts_answers = 1
    codes = await outcomes([wired.append(lease, draft("b")) for lease in leases])
    assert codes == ["database-lost"] * 5
    assert wire.connections == 3


async def test_a_server_that_was_never_there_is_told_to_each(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    journal = PostgresJournal(f"postgresql://me@/db?host={tmp_path}", FakeClock())
    codes = await outcomes([journal.put_blob(b"a"), journal.put_blob(b"b")])
    assert codes == ["database-unreachable"] * 2


def test_an_event_loop_that_ends_in_the_middle_leaves_nothing_that_waits(
    postgres_url: str,
) -> None:
    journal = PostgresJournal(postgres_url, FakeClock())

    async def begin() -> list[asyncio.Task[JournalEntry]]:
        leases = await leases_of(journal, 3)
        tasks = [asyncio.create_task(journal.append(lease, draft())) for lease in leases]
        await asyncio.sleep(0)
        return tasks

    assert all(task.done() for task in asyncio.run(begin()))

    async def look() -> None:
        async with aclosing(journal):
            (lease,) = [each.lease for each in await journal.held_leases()][:1]
            assert (await journal.append(lease, draft("later"))).position in (1, 2)

    asyncio.run(look())


# --- processes that are killed ---------------------------------------------------------------

RUNS = """
import asyncio, os, sys
from minions.adapters.stores.postgres_journal import PostgresJournal
from minions.contracts.journal.facts import StepFinished
from minions.contracts.journal.journal import EntryDraft
from minions.engine.services.run_services import SystemClock

async def run(journal, number):
    lease = await journal.acquire(f"ses_{number}", f"run_{number}", "w", 60)
    for turn in range(100_000):
        digest = await journal.put_blob(b"%d" % turn) if turn % 7 == number else ""
        fact = StepFinished(step_id="a", status="completed", output=digest)
        entry = await journal.append(lease, EntryDraft(key=f"{turn}", fact=fact))
        os.write(1, f"{number} {entry.position}\\n".encode())

async def main():
    journal = PostgresJournal(sys.argv[1], SystemClock())
    await asyncio.gather(*(run(journal, number) for number in range(8)))

asyncio.run(main())
"""


def lines_of_a_killed_process(url: str, lines: int) -> list[bytes]:
    """What it said until it was killed, which was after so many lines."""
    with subprocess.Popen(
        [sys.executable, "-c", RUNS, url], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        return said + process.stdout.readlines()


@pytest.mark.parametrize("lines", [40, 700])
async def test_what_was_acknowledged_to_any_run_is_there_after_kill_9_and_has_no_gap(
    journal: PostgresJournal, postgres_url: str, lines: int
) -> None:
    """A-145."""
    said = await asyncio.to_thread(lines_of_a_killed_process, postgres_url, lines)
    acknowledged = {tuple(map(int, line.split())) for line in said if line.endswith(b"\n")}
    entries = await journal.entries()
    for number in range(8):
        own = [each.position for each in entries if each.session_id == f"ses_{number}"]
        told = [position for run, position in acknowledged if run == number]
        assert own == list(range(1, len(own) + 1))
        assert set(told) <= set(own)
        assert len(own) <= len(told) + 1  # one was under way
    assert len(transactions(postgres_url)) < len(entries) / 2 + 8


@pytest.mark.long
async def test_a_server_that_is_killed_in_the_middle_of_groups_loses_nothing_acknowledged(
    postgres: PostgresServer, journal: PostgresJournal
) -> None:
    leases = await leases_of(journal, 6)
    stored: list[JournalEntry] = []

    async def run(lease: Lease) -> None:
        for number in range(60):
            entry = await journal.append(lease, draft(f"{number}"))
            stored.append(entry)

    runs = [asyncio.create_task(run(lease)) for lease in leases]
    for many in (60, 200):
        while len(stored) < many:  # noqa: ASYNC110  # at any moment after that
            await asyncio.sleep(0.001)
        postgres.kill()
        await asyncio.to_thread(postgres.start)
    await asyncio.gather(*runs)
    key = lambda entry: (entry.session_id, entry.position)  # noqa: E731
    assert await journal.entries() == sorted(stored, key=key)
    assert [entry.position for entry in await journal.entries("ses_003")] == list(range(1, 61))


async def test_whole_sessions_come_and_go_while_others_are_written(
    journal: PostgresJournal,
) -> None:
    leases = await leases_of(journal, 3)
    source = [await journal.append(leases[2], draft(f"{number}")) for number in range(5)]
    await journal.release(leases[2])

    async def come_and_go() -> None:
        for _ in range(20):
            assert await journal.remove_session("ses_002")
            await journal.adopt("ses_002", source)

    async def run(lease: Lease) -> None:
        for number in range(60):
            digest = await journal.put_blob(f"{lease.run_id} {number % 9}".encode())
            await journal.append(lease, draft(f"{number}", digest))

    async def collect() -> None:
        for _ in range(10):
            await journal.collect()

    await asyncio.gather(come_and_go(), run(leases[0]), run(leases[1]), collect())
    for session, many in (("ses_000", 60), ("ses_001", 60), ("ses_002", 5)):
        entries = await journal.entries(session)
        assert [entry.position for entry in entries] == list(range(1, many + 1))
