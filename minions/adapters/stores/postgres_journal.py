"""The journal in a PostgreSQL database: shared by the workers of many machines."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import frozen
from msgspec.structs import replace

from minions.adapters.stores import postgres_rows
from minions.adapters.stores.pending_rows import PendingRows, folds_later
from minions.adapters.stores.postgres_database import damaged
from minions.adapters.stores.postgres_link import Attempt, DamageError, PostgresLink
from minions.adapters.stores.postgres_listener import PostgresListener
from minions.adapters.stores.postgres_url import without_password
from minions.adapters.stores.row_bodies import body_text, read_fact
from minions.adapters.stores.row_lookups import RowLookups
from minions.adapters.stores.row_queries import Part
from minions.contracts.entry_waiters import EntryWaiters
from minions.contracts.errors import FencedError, JournalError, LeaseHeldError, NotFoundError
from minions.contracts.journal import (
    SPARED_S,
    BlobCollection,
    EntryDraft,
    HeldLease,
    JournalEntry,
    Lease,
)
from minions.contracts.run_rows import LISTED, RunFilter, RunRow, SessionFilter, SessionRow
from minions.contracts.runtime import Clock, Sleep
from minions.contracts.stored_sessions import (
    bad_entries,
    digests_in,
    refuse_damaged,
    session_exists,
)

if TYPE_CHECKING:
    from psycopg import AsyncCursor
    from psycopg.rows import TupleRow

    from minions.adapters.stores.postgres_database import Connection

__all__ = ["PostgresJournal"]

T = TypeVar("T")

_FAST_COMPRESSION: Final = 1
_LARGEST_INTEGER: Final = 2**63 - 1


class PostgresJournal(RowLookups):
    """Entries in the schema `minions` of a database; connected at its first use.

    Deadlines of leases are times of the server, which all workers share. Where the connection is
    lost it is taken up again, once per call, and what became of the call is found out.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        lease_clock: Clock | None = None,
        connect_timeout_s: float = 4.0,
        statement_timeout_s: float = 30.0,
        reconnect_within_s: float = 10.0,
        sleep: Sleep = asyncio.sleep,
        migrations: Mapping[str, str] | None = None,
    ) -> None:
        """No I/O here, and psycopg is not loaded.

        Args:
            url: `postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=…`, as libpq reads it.
            clock: Of the times of entries.
            lease_clock: Of deadlines; None: the server's, which is right unless time is played.
            connect_timeout_s: For a server that does not answer; `connect_timeout` in it wins.
            statement_timeout_s: How long a call may wait for other workers.
            reconnect_within_s: How long a server that went away may take to come back.
            migrations: SQL by name, oldest first; None: those of this package.
        """
        self.url = url
        self._clock = clock
        self._lease_clock = lease_clock
        self._link = PostgresLink(
            url,
            connect_timeout_s=connect_timeout_s,
            statement_timeout_s=statement_timeout_s,
            reconnect_within_s=reconnect_within_s,
            sleep=sleep,
            migrations=migrations,
        )
        self._listener = PostgresListener(self._link, sleep=sleep)
        self._waiting = EntryWaiters(self._watch)
        self._pending_rows = PendingRows()

    async def acquire(
        self,
        session_id: str,
        run_id: str,
        worker_id: str,
        ttl_s: float,
        *,
        next_generation: bool = False,
        takes_over: str | None = None,
    ) -> Lease:
        """As the contract says; the same worker may acquire its own run again."""
        wanted = _LeaseRequest(
            session_id=session_id,
            run_id=run_id,
            worker_id=worker_id,
            next_generation=next_generation,
            takes_over=takes_over,
        )
        # Done twice where the connection was lost: then the epoch grows by two, no more.
        return await self._link.run(
            lambda attempt: _acquire(attempt.connection, wanted, self._lease_now(), ttl_s)
        )

    async def renew(self, lease: Lease, ttl_s: float) -> None:
        """As the contract says; a lease that ran out and that nobody took is kept."""
        await self._link.run(
            lambda attempt: _renew(attempt.connection, lease, self._lease_now(), ttl_s)
        )

    async def release(self, lease: Lease) -> None:
        """Let another run of the session begin."""
        await self._link.run(lambda attempt: _release(attempt.connection, lease))

    async def held_leases(self) -> Sequence[HeldLease]:
        """Found by an index of the leases that were not given back; the server says the time."""
        now = self._lease_now()
        return await self._link.run(lambda attempt: _held(attempt.connection, now))

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        """Committed when this returns, in one statement."""
        entry = _new_entry(lease, draft, self._clock.now())
        body = _stored_body(draft)
        stored = await self._link.run(lambda attempt: _append(attempt, lease, entry, body))
        self._waiting.tell(stored.session_id, stored.position)
        if self._pending_rows.is_due(lease, draft):
            with contextlib.suppress(JournalError):  # the fact is stored; a look-up tells the rest
                await self._link.run(lambda attempt: _mend_some(attempt.connection))
        return stored

    async def entries(
        self,
        session_id: str | None = None,
        *,
        run_id: str | None = None,
        after: int = 0,
        until: int | None = None,
        kinds: Collection[str] | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        with_damaged: bool = False,
    ) -> Sequence[JournalEntry]:
        """Read in one statement, so in one state, also while another worker writes."""
        query = _entries_query(
            session_id, run_id, after, until, kinds, limit, newest_first=newest_first
        )
        found = await self._link.run(lambda attempt: _entries(attempt.connection, query))
        if not with_damaged:
            refuse_damaged(found, without_password(self._link.url))
        return found

    async def _runs_page(
        self, wanted: RunFilter, after: RunRow | None, part: Part
    ) -> Sequence[RunRow]:
        return await self._looked_up(lambda db: postgres_rows.runs_page(db, wanted, after, part))

    async def _count_runs(self, wanted: RunFilter) -> int:
        return await self._looked_up(lambda db: postgres_rows.count_runs(db, wanted))

    async def _sessions_page(
        self, wanted: SessionFilter, after: SessionRow | None, part: Part
    ) -> Sequence[SessionRow]:
        return await self._looked_up(
            lambda db: postgres_rows.sessions_page(db, wanted, after, part)
        )

    async def _count_sessions(self, wanted: SessionFilter) -> int:
        return await self._looked_up(lambda db: postgres_rows.count_sessions(db, wanted))

    async def _looked_up(self, look: Callable[[Connection], Awaitable[T]]) -> T:
        """In rows that are right: those that may not be are made anew first."""
        for _ in range(2):
            while await self._link.run(lambda attempt: _mend_some(attempt.connection)):
                pass
            try:
                return await self._link.run(lambda attempt: look(attempt.connection))
            except postgres_rows.DamagedRowsError:
                await self._link.run(lambda attempt: postgres_rows.doubt_all(attempt.connection))
        raise damaged(self.url, "rows of runs that were just made cannot be read")

    async def wait(self, session_id: str, after: int, timeout_s: float) -> bool:
        """The server tells of facts of other workers, over one more connection of this object.

        While that one is lost, it is looked for them every two seconds.
        """

        async def look() -> int:
            return (await self._last_positions([session_id])).get(session_id, 0)

        return await self._waiting.wait(session_id, after, timeout_s, look)

    async def adopt(self, session_id: str, entries: Sequence[JournalEntry]) -> None:
        """In one transaction."""
        if (why := bad_entries(session_id, entries)) is not None:
            raise why
        bodies = [_stored_body(entry) for entry in entries]
        await self._link.run(
            lambda attempt: _adopt(attempt, session_id, entries, bodies, self._lease_now())
        )
        self._waiting.tell(session_id, len(entries))

    async def remove_session(self, session_id: str) -> bool:
        """In one transaction."""
        return await self._link.run(
            lambda attempt: _remove(attempt.connection, session_id, self._lease_now())
        )

    async def put_blob(self, data: bytes) -> str:
        """Stored compressed."""
        digest = hashlib.sha256(data).hexdigest()
        packed = zlib.compress(data, _FAST_COMPRESSION)
        now = self._lease_now()
        await self._link.run(lambda attempt: _put_blob(attempt.connection, digest, packed, now))
        return digest

    async def get_blob(self, digest: str) -> bytes:
        """Decompressed."""
        data = await self._link.run(lambda attempt: _get_blob(attempt.connection, digest))
        if data is None:
            raise NotFoundError(
                f"{without_password(self.url)} holds no blob {digest!r}.", code="unknown-blob"
            )
        return data

    async def collect(self, *, dry_run: bool = False, spare_s: float = SPARED_S) -> BlobCollection:
        """All bodies are read, by and by; nobody is kept from writing meanwhile."""
        now = self._lease_now()
        return await self._link.run(
            lambda attempt: _collect(attempt.connection, now, spare_s, dry_run=dry_run)
        )

    async def aclose(self) -> None:
        """Close the connections; a later call connects again."""
        await self._waiting.aclose()
        await self._link.aclose()

    async def _watch(self) -> None:
        await self._listener.listen(self._waiting, self._last_positions)

    async def _last_positions(self, sessions: Collection[str]) -> Mapping[str, int]:
        return await self._link.run(lambda attempt: _positions(attempt.connection, sessions))

    def _lease_now(self) -> datetime | None:
        return None if self._lease_clock is None else self._lease_clock.now()


# --- leases ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class _LeaseRequest:
    """What a worker asks for."""

    session_id: str
    run_id: str
    worker_id: str
    next_generation: bool
    takes_over: str | None


@frozen
class _LeaseRow:
    """A row of `leases`: who has, or last had, a session."""

    run_id: str
    worker_id: str
    epoch: int
    deadline: datetime | None


async def _holding(db: Connection, session_id: str) -> _LeaseRow | None:
    found = await db.execute(
        "SELECT run_id, worker_id, epoch, deadline FROM minions.leases WHERE session_id = %s",
        [session_id],
    )
    row = await found.fetchone()
    return None if row is None else _LeaseRow(*row)


async def _acquire(
    db: Connection, wanted: _LeaseRequest, now: datetime | None, ttl_s: float
) -> Lease:
    """The row first, then what was written: both in a state that nobody else changes any more."""
    row = {
        "session": wanted.session_id,
        "run": wanted.run_id,
        "worker": wanted.worker_id,
        "victim": wanted.takes_over,
        "now": now,
        "ttl": ttl_s,
    }
    async with db.transaction():
        taken = await (await db.execute(_TAKE, row)).fetchone()
        if taken is None:
            held = await _holding(db, wanted.session_id)
            raise _busy(held, wanted.session_id, wanted.run_id)
        found = await db.execute(
            "UPDATE minions.leases SET generation = (SELECT CASE WHEN %(next)s "
            "THEN coalesce(max(generation), 0) + 1 ELSE coalesce(max(generation), 1) END "
            "FROM minions.entries WHERE run_id = %(run)s) "
            "WHERE session_id = %(session)s RETURNING epoch, generation",
            {
                "next": wanted.next_generation,
                "run": wanted.run_id,
                "session": wanted.session_id,
            },
        )
        epoch, generation = await found.fetchone() or _no_row("leases")
    return Lease(
        session_id=wanted.session_id,
        run_id=wanted.run_id,
        worker_id=wanted.worker_id,
        epoch=epoch,
        generation=generation,
    )


_TAKE: Final = """
INSERT INTO minions.leases AS held
    (session_id, run_id, worker_id, epoch, generation, deadline, last_position)
VALUES (%(session)s, %(run)s, %(worker)s, 1, 1,
    coalesce(%(now)s::timestamptz, clock_timestamp()) + make_interval(secs => %(ttl)s), 0)
ON CONFLICT (session_id) DO UPDATE SET
    run_id = excluded.run_id, worker_id = excluded.worker_id, epoch = held.epoch + 1,
    deadline = excluded.deadline
WHERE held.deadline IS NULL
    OR held.deadline <= coalesce(%(now)s::timestamptz, clock_timestamp())
    OR held.worker_id = %(victim)s
    OR (held.run_id = excluded.run_id AND held.worker_id = excluded.worker_id)
RETURNING 1
"""


def _busy(held: _LeaseRow | None, session_id: str, run_id: str | None) -> LeaseHeldError:
    worker = held.worker_id if held is not None else "unknown"
    until = held.deadline.astimezone(UTC).isoformat() if held and held.deadline else "just now"
    who = "It can be changed" if run_id is None else f"Run '{run_id}' can start"
    return LeaseHeldError(
        f"Session '{session_id}' is busy: run '{held.run_id if held else 'unknown'}' is "
        f"active on worker '{worker}' until {until}. "
        f"{who} when that run ends or its lease runs out.",
        worker_id=worker,
        run_id=held.run_id if held else "",
    )


async def _fenced(db: Connection, lease: Lease) -> FencedError:
    held = await _holding(db, lease.session_id)
    if held is None:
        state = "nobody holds it"
    elif held.deadline is None:
        state = "its last lease was given back"
    else:
        state = f"worker '{held.worker_id}' has it for run '{held.run_id}' (epoch {held.epoch})"
    return FencedError(
        f"Worker '{lease.worker_id}' may no longer write run '{lease.run_id}' of session "
        f"'{lease.session_id}' (epoch {lease.epoch}): {state}. Nothing was stored."
    )


async def _renew(db: Connection, lease: Lease, now: datetime | None, ttl_s: float) -> None:
    done = await db.execute(
        "UPDATE minions.leases SET deadline = "
        "coalesce(%s::timestamptz, clock_timestamp()) + make_interval(secs => %s) "
        "WHERE session_id = %s AND epoch = %s AND run_id = %s AND deadline IS NOT NULL",
        [now, ttl_s, lease.session_id, lease.epoch, lease.run_id],
    )
    if done.rowcount == 0:
        raise await _fenced(db, lease)


async def _release(db: Connection, lease: Lease) -> None:
    await db.execute(
        "UPDATE minions.leases SET deadline = NULL WHERE session_id = %s AND epoch = %s",
        [lease.session_id, lease.epoch],
    )


async def _held(db: Connection, now: datetime | None) -> list[HeldLease]:
    found = await db.execute(
        "SELECT session_id, run_id, worker_id, epoch, generation, "
        "deadline <= coalesce(%s::timestamptz, clock_timestamp()) "
        "FROM minions.leases WHERE deadline IS NOT NULL",
        [now],
        binary=True,
    )
    return [
        HeldLease(
            lease=Lease(
                session_id=session_id,
                run_id=run_id,
                worker_id=worker_id,
                epoch=epoch,
                generation=generation,
            ),
            has_expired=has_expired,
        )
        for session_id, run_id, worker_id, epoch, generation, has_expired in await found.fetchall()
    ]


# --- entries ---------------------------------------------------------------------------------


def _new_entry(lease: Lease, draft: EntryDraft, now: datetime) -> JournalEntry:
    return JournalEntry(
        session_id=lease.session_id,
        position=0,  # the database gives it
        run_id=lease.run_id,
        generation=lease.generation,
        key=draft.key,
        fact=draft.fact,
        epoch=lease.epoch,
        at=now,
    )


def _stored_body(draft: EntryDraft | JournalEntry) -> bytes:
    return body_text(draft).encode("utf-8", "surrogatepass")


async def _append(attempt: Attempt, lease: Lease, entry: JournalEntry, body: bytes) -> JournalEntry:
    """The lease is looked at, the next position taken and the row written, or nothing of it."""
    from psycopg.errors import UniqueViolation

    db = attempt.connection
    try:
        if entry.kind in LISTED and not folds_later(lease):
            done = await _append_listed(db, lease, entry, body)
        else:
            done = await _append_alone(db, entry, body)
    except UniqueViolation:
        stored = await _stored(db, entry)
        if attempt.is_again and _is_ours(stored, entry, body):
            return replace(entry, position=stored.position)
        raise _duplicate(entry, stored.position) from None
    if done is not None and (row := await done.fetchone()) is not None:
        return replace(entry, position=row[0])
    if attempt.is_again and (left := await _found(db, entry)) and _is_ours(left, entry, body):
        return replace(entry, position=left.position)  # stored, and then the lease was lost
    raise await _fenced(db, lease)


async def _append_alone(db: Connection, entry: JournalEntry, body: bytes) -> AsyncCursor[TupleRow]:
    values = [
        entry.session_id, entry.epoch, entry.run_id,
        entry.session_id, entry.run_id, entry.generation, entry.key, entry.kind,
        entry.state, body, entry.epoch, entry.at,
    ]  # fmt: skip
    return await db.execute(_APPEND, values, binary=True)


_APPEND: Final = """
WITH owned AS (
    UPDATE minions.leases SET last_position = last_position + 1
    WHERE session_id = %s AND epoch = %s AND run_id = %s AND deadline IS NOT NULL
    RETURNING last_position
), added AS (
    INSERT INTO minions.entries
        (session_id, position, run_id, generation, key, kind, state, body, epoch, at)
    SELECT %s, last_position, %s, %s, %s, %s, %s, %s, %s, %s FROM owned
    RETURNING session_id, position
)
SELECT position, pg_notify('minions_facts', position || ' ' || session_id) FROM added
"""


async def _append_listed(
    db: Connection, lease: Lease, entry: JournalEntry, body: bytes
) -> AsyncCursor[TupleRow] | None:
    """With the rows of its run and session; None: the lease is not ours any more.

    They are made of what is read first, which only the holder of the lease changes: where the
    lease or its position is another one meanwhile, nothing is stored.
    """
    while (known := await postgres_rows.known_rows(db, lease)) is not None:
        placed = replace(entry, position=known.position + 1)
        values = [
            known.position, entry.session_id, entry.epoch, entry.run_id,
            entry.session_id, entry.run_id, entry.generation, entry.key, entry.kind,
            entry.state, body, entry.epoch, entry.at, *known.after(placed),
        ]  # fmt: skip
        done = await db.execute(_APPEND_LISTED, values, binary=True)
        if done.rowcount:
            return done
    return None


_APPEND_LISTED: Final = (
    _APPEND.replace("WHERE session_id", "WHERE last_position = %s AND session_id", 1)
    .replace("\n)\nSELECT", f"\n), {postgres_rows.KEEP_ROWS}\nSELECT", 1)
    .encode()
)


@frozen
class _EntryRow:
    """What stands under a name."""

    position: int
    epoch: int
    at: datetime
    body: bytes


async def _found(db: Connection, entry: JournalEntry) -> _EntryRow | None:
    found = await db.execute(
        "SELECT position, epoch, at, body FROM minions.entries WHERE run_id = %s "
        "AND generation = %s AND key = %s AND kind = %s AND state = %s",
        [entry.run_id, entry.generation, entry.key, entry.kind, entry.state],
        binary=True,
    )
    row = await found.fetchone()
    return None if row is None else _EntryRow(*row)


async def _stored(db: Connection, entry: JournalEntry) -> _EntryRow:
    if (found := await _found(db, entry)) is None:
        raise DamageError(f"positions of session {entry.session_id!r} were used twice")
    return found


def _is_ours(stored: _EntryRow, entry: JournalEntry, body: bytes) -> bool:
    """Whether it is what an attempt before this one stored, whose answer was lost."""
    return (stored.epoch, stored.at, stored.body) == (entry.epoch, entry.at, body)


def _duplicate(entry: JournalEntry, position: int) -> JournalError:
    return JournalError(
        f"Run '{entry.run_id}' (generation {entry.generation}) already has the entry "
        f"{entry.kind} '{entry.key}' {entry.state}, at position {position}. Nothing was stored.",
        code="duplicate-entry",
    )


@frozen
class _Query:
    sql: str
    parameters: Sequence[object]


def _entries_query(
    session_id: str | None,
    run_id: str | None,
    after: int,
    until: int | None = None,
    kinds: Collection[str] | None = None,
    limit: int | None = None,
    *,
    newest_first: bool = False,
) -> _Query:
    conditions, parameters = ["position > %s"], list[object]([_integer(after)])
    for condition, value in (("session_id = %s", session_id), ("run_id = %s", run_id)):
        if value is not None:
            conditions.append(condition)
            parameters.append(value)
    if until is not None:
        conditions.append("position <= %s")
        parameters.append(_integer(until))
    if kinds is not None:
        conditions.append("kind = ANY(%s)")
        parameters.append(list(kinds))
        if LISTED.issuperset(kinds) and (run_id is None or session_id is not None):
            conditions.append("kind IN ('run', 'session')")  # as written in the index
    order = "DESC" if newest_first else "ASC"
    if limit is not None:
        parameters.append(_integer(max(limit, 0)))
    sql = (
        f"{_SELECT} WHERE {' AND '.join(conditions)} "
        f"ORDER BY session_id {order}, position {order}{'' if limit is None else ' LIMIT %s'}"
    )
    return _Query(sql, parameters)


_SELECT: Final = (
    "SELECT session_id, position, run_id, generation, key, kind, state, body, epoch, at "
    "FROM minions.entries"
)
_LISTED_OF: Final = (
    f"{_SELECT} WHERE session_id = ANY(%s) AND kind IN ('run', 'session') "
    "ORDER BY session_id, position"
)


def _integer(number: int) -> int:
    """The nearest one that the database knows."""
    return max(min(number, _LARGEST_INTEGER), -_LARGEST_INTEGER)


async def _entries(db: Connection, query: _Query) -> Sequence[JournalEntry]:
    found = await db.execute(query.sql.encode(), query.parameters, binary=True)
    rows = await found.fetchall()
    return [_entry(row) for row in rows]


_Row = tuple[str, int, str, int, str, str, str, bytes, int, datetime]


def _entry(row: _Row) -> JournalEntry:
    session_id, position, run_id, generation, key, kind, state, body, epoch, at = row
    return JournalEntry(
        session_id=session_id,
        position=position,
        run_id=run_id,
        generation=generation,
        key=key,
        fact=read_fact(kind, state, body),
        epoch=epoch,
        at=at.astimezone(UTC),
    )


def _no_row(table: str) -> tuple[int, int]:
    raise DamageError(f"a row of {table} that was just written is not there")


# --- whole sessions --------------------------------------------------------------------------


async def _positions(db: Connection, sessions: Collection[str]) -> Mapping[str, int]:
    found = await db.execute(
        "SELECT session_id, last_position FROM minions.leases WHERE session_id = ANY(%s)",
        [list(sessions)],
        binary=True,
    )
    return dict(await found.fetchall())


async def _adopt(
    attempt: Attempt,
    session_id: str,
    entries: Sequence[JournalEntry],
    bodies: Sequence[bytes],
    now: datetime | None,
) -> None:
    db = attempt.connection
    async with db.transaction():
        await _lock_lease(db, session_id, now)
        if stored := (await _positions(db, [session_id])).get(session_id, 0):
            if attempt.is_again and await _is_same(db, session_id, entries, bodies):
                return  # stored, and then the connection was lost
            raise session_exists(session_id, stored)
        await _insert_as_they_were(db, entries, bodies)
        last = max(entries, key=lambda entry: entry.epoch)
        await db.execute(
            "INSERT INTO minions.leases AS held (session_id, run_id, worker_id, epoch, "
            "generation, deadline, last_position) VALUES (%s, %s, '', %s, %s, NULL, %s) "
            "ON CONFLICT (session_id) DO UPDATE SET deadline = NULL, "
            "epoch = greatest(held.epoch, excluded.epoch), last_position = excluded.last_position",
            [session_id, last.run_id, last.epoch, last.generation, len(entries)],
        )
        await postgres_rows.make_anew(db, [session_id], entries)
        await db.execute(
            "SELECT pg_notify('minions_facts', %s || ' ' || %s)", [str(len(entries)), session_id]
        )


async def _insert_as_they_were(
    db: Connection, entries: Sequence[JournalEntry], bodies: Sequence[bytes]
) -> None:
    from psycopg.errors import UniqueViolation

    rows = [
        (
            entry.session_id, entry.position, entry.run_id, entry.generation, entry.key,
            entry.kind, entry.state, body, entry.epoch, entry.at,
        )
        for entry, body in zip(entries, bodies, strict=True)
    ]  # fmt: skip
    try:
        async with db.transaction(), db.cursor() as cursor:
            await cursor.executemany(_INSERT, rows)
    except UniqueViolation:
        for entry in entries:
            if (found := await _found(db, entry)) is not None:
                raise _duplicate(entry, found.position) from None
        raise


_INSERT: Final = """
INSERT INTO minions.entries
    (session_id, position, run_id, generation, key, kind, state, body, epoch, at)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""


async def _is_same(
    db: Connection, session_id: str, entries: Sequence[JournalEntry], bodies: Sequence[bytes]
) -> bool:
    found = await db.execute(
        "SELECT run_id, key, kind, state, body FROM minions.entries WHERE session_id = %s "
        "ORDER BY position",
        [session_id],
        binary=True,
    )
    wanted = [
        (entry.run_id, entry.key, entry.kind, entry.state, body)
        for entry, body in zip(entries, bodies, strict=True)
    ]
    return await found.fetchall() == wanted


async def _remove(db: Connection, session_id: str, now: datetime | None) -> bool:
    async with db.transaction():
        await _lock_lease(db, session_id, now)
        removed = await db.execute(
            "DELETE FROM minions.entries WHERE session_id = %s", [session_id]
        )
        await db.execute(  # the row stays: epochs only grow
            "UPDATE minions.leases SET deadline = NULL, last_position = 0 WHERE session_id = %s",
            [session_id],
        )
        await postgres_rows.make_anew(db, [session_id], ())
    return removed.rowcount > 0


async def _mend_some(db: Connection) -> bool:
    """Make the rows of some sessions anew that somebody changed; whether there were any."""
    if not await postgres_rows.changed_sessions(db):
        return False
    async with db.transaction():
        ids = await postgres_rows.changed_sessions(db)
        await db.execute(  # nobody appends to them meanwhile
            "SELECT 1 FROM minions.leases WHERE session_id = ANY(%s) ORDER BY session_id "
            "FOR UPDATE",
            [ids],
        )
        await postgres_rows.make_anew(db, ids, await _entries(db, _Query(_LISTED_OF, [ids])))
    return True


async def _lock_lease(db: Connection, session_id: str, now: datetime | None) -> None:
    """Nobody begins, and nobody is at work there."""
    found = await db.execute(
        "SELECT coalesce(deadline > coalesce(%s::timestamptz, clock_timestamp()), false) "
        "FROM minions.leases WHERE session_id = %s FOR UPDATE",
        [now, session_id],
    )
    row = await found.fetchone()
    if row is not None and row[0]:
        raise _busy(await _holding(db, session_id), session_id, None)


# --- blobs -----------------------------------------------------------------------------------


async def _put_blob(db: Connection, digest: str, packed: bytes, now: datetime | None) -> None:
    """Whoever puts it again is about to name it: it is young again."""
    await db.execute(
        "INSERT INTO minions.blobs (digest, data, put_at) "
        "VALUES (%s, %s, coalesce(%s::timestamptz, clock_timestamp())) "
        "ON CONFLICT (digest) DO UPDATE SET put_at = excluded.put_at",
        [digest, packed, now],
    )


async def _get_blob(db: Connection, digest: str) -> bytes | None:
    found = await db.execute(
        "SELECT data FROM minions.blobs WHERE digest = %s", [digest], binary=True
    )
    row = await found.fetchone()
    if row is None:
        return None
    try:
        return zlib.decompress(row[0])
    except zlib.error as error:
        raise DamageError(f"the blob {digest} cannot be unpacked ({error})") from error


async def _collect(
    db: Connection, now: datetime | None, spare_s: float, *, dry_run: bool
) -> BlobCollection:
    """The young ones are left out twice: one may be put again while the bodies are read."""
    old = "put_at <= coalesce(%s::timestamptz, clock_timestamp()) - make_interval(secs => %s)"
    found = await db.execute(
        f"SELECT digest, octet_length(data) FROM minions.blobs WHERE {old}".encode(),  # noqa: S608  # a constant
        [now, spare_s],
    )
    sizes: dict[str, int] = dict(await found.fetchall())
    named = await _named(db) if sizes else set()
    useless = {digest: size for digest, size in sizes.items() if digest not in named}
    if useless and not dry_run:
        await db.execute(
            f"DELETE FROM minions.blobs WHERE {old} AND digest = ANY(%s)".encode(),  # noqa: S608  # a constant
            [now, spare_s, list(useless)],
        )
    return BlobCollection(blobs=len(useless), bytes=sum(useless.values()))


async def _named(db: Connection) -> set[str]:
    named: set[str] = set()
    rest: set[str] = set()
    async with db.transaction(), db.cursor("bodies", binary=True) as cursor:
        await cursor.execute("SELECT body FROM minions.entries")
        async for (body,) in cursor:
            rest |= digests_in(body)
    while rest:
        named |= rest
        found = [await _get_blob(db, digest) for digest in rest]
        rest = digests_in(*(data for data in found if data is not None)) - named
    return named
