"""The journal in a PostgreSQL database: shared by the workers of many machines."""

from __future__ import annotations

import asyncio
import hashlib
import json
import zlib
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

from minions.adapters.postgres_link import Attempt, DamageError, PostgresLink
from minions.adapters.postgres_url import without_password
from minions.contracts.errors import FencedError, JournalError, LeaseHeldError, NotFoundError
from minions.contracts.journal import EntryDraft, Journal, JournalEntry, Lease
from minions.contracts.json_values import JsonValue
from minions.contracts.runtime import Clock, Sleep

if TYPE_CHECKING:
    from minions.adapters.postgres_database import Connection

__all__ = ["PostgresJournal"]

_FAST_COMPRESSION: Final = 1
_LARGEST_INTEGER: Final = 2**63 - 1


class PostgresJournal(Journal):
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
        wanted = _Wanted(
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

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        """Committed when this returns, in one statement."""
        entry = _new_entry(lease, draft, self._clock.now())
        body = _stored_body(draft)
        return await self._link.run(lambda attempt: _append(attempt, lease, entry, body))

    async def entries(
        self,
        session_id: str | None = None,
        *,
        run_id: str | None = None,
        after: int = 0,
        kinds: Collection[str] | None = None,
    ) -> Sequence[JournalEntry]:
        """Read in one statement, so in one state, also while another worker writes."""
        query = _entries_query(session_id, run_id, after, kinds)
        return await self._link.run(lambda attempt: _entries(attempt.connection, query))

    async def put_blob(self, data: bytes) -> str:
        """Stored compressed."""
        digest = hashlib.sha256(data).hexdigest()
        packed = zlib.compress(data, _FAST_COMPRESSION)
        await self._link.run(lambda attempt: _put_blob(attempt.connection, digest, packed))
        return digest

    async def get_blob(self, digest: str) -> bytes:
        """Decompressed."""
        data = await self._link.run(lambda attempt: _get_blob(attempt.connection, digest))
        if data is None:
            raise NotFoundError(
                f"{without_password(self.url)} holds no blob {digest!r}.", code="unknown-blob"
            )
        return data

    async def aclose(self) -> None:
        """Close the connection; a later call connects again."""
        await self._link.aclose()

    def _lease_now(self) -> datetime | None:
        return None if self._lease_clock is None else self._lease_clock.now()


# --- leases ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class _Wanted:
    """What a worker asks for."""

    session_id: str
    run_id: str
    worker_id: str
    next_generation: bool
    takes_over: str | None


@frozen
class _Holding:
    """A row of `leases`: who has, or last had, a session."""

    run_id: str
    worker_id: str
    epoch: int
    deadline: datetime | None


async def _holding(db: Connection, session_id: str) -> _Holding | None:
    found = await db.execute(
        "SELECT run_id, worker_id, epoch, deadline FROM minions.leases WHERE session_id = %s",
        [session_id],
    )
    row = await found.fetchone()
    return None if row is None else _Holding(*row)


async def _acquire(db: Connection, wanted: _Wanted, now: datetime | None, ttl_s: float) -> Lease:
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
            raise _busy(await _holding(db, wanted.session_id), wanted)
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


def _busy(held: _Holding | None, wanted: _Wanted) -> LeaseHeldError:
    worker = held.worker_id if held is not None else "unknown"
    until = held.deadline.astimezone(UTC).isoformat() if held and held.deadline else "just now"
    return LeaseHeldError(
        f"Session '{wanted.session_id}' is busy: run '{held.run_id if held else 'unknown'}' is "
        f"active on worker '{worker}' until {until}. "
        f"Run '{wanted.run_id}' can start when that run ends or its lease runs out.",
        worker_id=worker,
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


# --- entries ---------------------------------------------------------------------------------


def _new_entry(lease: Lease, draft: EntryDraft, now: datetime) -> JournalEntry:
    return JournalEntry(
        session_id=lease.session_id,
        position=0,  # the database gives it
        run_id=lease.run_id,
        generation=lease.generation,
        key=draft.key,
        kind=draft.kind,
        state=draft.state,
        body=draft.body,
        epoch=lease.epoch,
        at=now,
    )


def _stored_body(draft: EntryDraft) -> bytes:
    try:
        return _ENCODER.encode(draft.body).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError) as error:
        raise JournalError(
            f"The body of {draft.kind} '{draft.key}' {draft.state} is not JSON: {error}. "
            "Nothing was stored.",
            code="body-not-json",
        ) from error


def _plain(value: object) -> object:
    """Mappings and sequences other than dict and list, which the type of a body allows."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return list(value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is no JSON value")


_ENCODER: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain
)


async def _append(attempt: Attempt, lease: Lease, entry: JournalEntry, body: bytes) -> JournalEntry:
    """The lease is looked at, the next position taken and the row written, or nothing of it."""
    from psycopg.errors import UniqueViolation

    db = attempt.connection
    try:
        done = await db.execute(
            _APPEND,
            [
                entry.session_id, entry.epoch, entry.run_id,
                entry.session_id, entry.run_id, entry.generation, entry.key, entry.kind,
                entry.state, body, entry.epoch, entry.at,
            ],
            binary=True,
        )  # fmt: skip
    except UniqueViolation:
        stored = await _stored(db, entry)
        if attempt.is_again and _is_ours(stored, entry, body):
            return evolve(entry, position=stored.position)
        raise _duplicate(entry, stored.position) from None
    if (row := await done.fetchone()) is not None:
        return evolve(entry, position=row[0])
    if attempt.is_again and (left := await _found(db, entry)) and _is_ours(left, entry, body):
        return evolve(entry, position=left.position)  # stored, and then the lease was lost
    raise await _fenced(db, lease)


_APPEND: Final = """
WITH owned AS (
    UPDATE minions.leases SET last_position = last_position + 1
    WHERE session_id = %s AND epoch = %s AND run_id = %s AND deadline IS NOT NULL
    RETURNING last_position
)
INSERT INTO minions.entries
    (session_id, position, run_id, generation, key, kind, state, body, epoch, at)
SELECT %s, last_position, %s, %s, %s, %s, %s, %s, %s, %s FROM owned
RETURNING position
"""


@frozen
class _Stored:
    """What stands under a name."""

    position: int
    epoch: int
    at: datetime
    body: bytes


async def _found(db: Connection, entry: JournalEntry) -> _Stored | None:
    found = await db.execute(
        "SELECT position, epoch, at, body FROM minions.entries WHERE run_id = %s "
        "AND generation = %s AND key = %s AND kind = %s AND state = %s",
        [entry.run_id, entry.generation, entry.key, entry.kind, entry.state],
        binary=True,
    )
    row = await found.fetchone()
    return None if row is None else _Stored(*row)


async def _stored(db: Connection, entry: JournalEntry) -> _Stored:
    if (found := await _found(db, entry)) is None:
        raise DamageError(f"positions of session {entry.session_id!r} were used twice")
    return found


def _is_ours(stored: _Stored, entry: JournalEntry, body: bytes) -> bool:
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
    session_id: str | None, run_id: str | None, after: int, kinds: Collection[str] | None
) -> _Query:
    conditions, parameters = ["position > %s"], list[object]([min(after, _LARGEST_INTEGER)])
    if session_id is not None:
        conditions.append("session_id = %s")
        parameters.append(session_id)
    if run_id is not None:
        conditions.append("run_id = %s")
        parameters.append(run_id)
    if kinds is not None and set(kinds) == {"run"}:
        conditions.append("kind = 'run'")  # as written in the index
    elif kinds is not None:
        conditions.append("kind = ANY(%s)")
        parameters.append(list(kinds))
    sql = (
        "SELECT session_id, position, run_id, generation, key, kind, state, body, epoch, at "  # noqa: S608  # built of constants; values are bound
        f"FROM minions.entries WHERE {' AND '.join(conditions)} ORDER BY session_id, position"
    )
    return _Query(sql, parameters)


async def _entries(db: Connection, query: _Query) -> Sequence[JournalEntry]:
    found = await db.execute(query.sql.encode(), query.parameters, binary=True)
    return [_entry(row) for row in await found.fetchall()]


_Row = tuple[str, int, str, int, str, str, str, bytes, int, datetime]


def _entry(row: _Row) -> JournalEntry:
    session_id, position, run_id, generation, key, kind, state, body, epoch, at = row
    return JournalEntry(
        session_id=session_id,
        position=position,
        run_id=run_id,
        generation=generation,
        key=key,
        kind=kind,
        state=state,
        body=_body(body),
        epoch=epoch,
        at=at.astimezone(UTC),
    )


def _body(stored: bytes) -> Mapping[str, JsonValue]:
    try:
        body = json.loads(stored.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise DamageError(f"an entry's body is not JSON ({type(error).__name__})") from error
    if not isinstance(body, dict):
        raise DamageError("an entry's body is no JSON object")
    return body


def _no_row(table: str) -> tuple[int, int]:
    raise DamageError(f"a row of {table} that was just written is not there")


# --- blobs -----------------------------------------------------------------------------------


async def _put_blob(db: Connection, digest: str, packed: bytes) -> None:
    await db.execute(
        "INSERT INTO minions.blobs (digest, data) VALUES (%s, %s) ON CONFLICT DO NOTHING",
        [digest, packed],
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
