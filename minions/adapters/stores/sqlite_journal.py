"""The journal in one SQLite file: survives `kill -9`, shared by processes of one machine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Final, TypeVar

from attrs import frozen

from minions.adapters.stores import sqlite_rows
from minions.adapters.stores.pending_rows import PendingRows, folds_later
from minions.adapters.stores.row_bodies import body_text, read_fact
from minions.adapters.stores.row_lookups import RowLookups
from minions.adapters.stores.row_queries import Part
from minions.adapters.stores.sqlite_blobs import (
    compact,
    decompressed,
    drop_blobs,
    get_blob,
    put_blob,
    useless_blobs,
)
from minions.adapters.stores.sqlite_database import damaged, readable_rows, transaction
from minions.adapters.stores.sqlite_file import DamageError, SqliteFile
from minions.contracts.entry_waiters import EntryWaiters
from minions.contracts.errors import FencedError, JournalError, LeaseHeldError, NotFoundError
from minions.contracts.facts import Fact, UnreadableFact
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
from minions.contracts.stored_sessions import bad_entries, refuse_damaged, session_exists

__all__ = ["SqliteJournal"]

_LARGEST_INLINE_BODY: Final = 32 * 1024
"""Bytes; a larger body is a blob, so that reading the rows beside it stays quick."""
_LARGEST_INTEGER: Final = 2**63 - 1
_LOOK_EVERY_S: Final = 0.03
"""While somebody waits for facts of other processes; a look costs some 10 µs."""
T = TypeVar("T")

_LANDMARKS: Final = ("run", "step")
"""Kinds of entries before which it is made sure that the file is still there."""


class SqliteJournal(RowLookups):
    """Entries in a WAL-mode file, committed inline (some 50 µs); opened at its first use.

    While another process holds the write lock, calls wait between attempts and the event loop
    goes on. Deadlines of leases are times of `clock`, which all processes must share.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        clock: Clock,
        *,
        busy_timeout_s: float = 30.0,
        sleep: Sleep = asyncio.sleep,
        migrations: Mapping[str, str] | None = None,
    ) -> None:
        """No I/O here.

        Args:
            path: Of the database; created 0600, its missing directories 0700.
            busy_timeout_s: How long a call waits for other processes, in all.
            migrations: SQL by name, oldest first; None: those of this package.
        """
        self.path = Path(path)
        self._clock = clock
        self._file = SqliteFile(
            self.path, busy_timeout_s=busy_timeout_s, sleep=sleep, migrations=migrations
        )
        self._sleep = sleep
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
        return await self._file.run(
            lambda db: _acquire(db, wanted, self._clock.now(), ttl_s), is_landmark=True
        )

    async def renew(self, lease: Lease, ttl_s: float) -> None:
        """As the contract says; a lease that ran out and that nobody took is kept."""
        await self._file.run(
            lambda db: _renew(db, lease, self._clock.now(), ttl_s), is_landmark=True
        )

    async def release(self, lease: Lease) -> None:
        """Let another run of the session begin."""
        await self._file.run(lambda db: _release(db, lease), is_landmark=True)

    async def held_leases(self) -> Sequence[HeldLease]:
        """Found by an index of the leases that were not given back."""
        now = _micros(self._clock.now())
        return await self._file.run(lambda db: _held(db, now))

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        """Committed when this returns; a body over 32 KiB is stored as a blob."""
        body = _stored_body(draft)
        entry = await self._file.run(
            lambda db: _append(db, lease, draft, body, self._clock.now()),
            is_landmark=draft.kind in _LANDMARKS,
        )
        self._waiting.tell(entry.session_id, entry.position)
        if self._pending_rows.is_due(lease, draft):
            with contextlib.suppress(JournalError):  # the fact is stored; a look-up tells the rest
                await self._file.run(_mend_some)
        return entry

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
        """Read in one statement, so in one state, also while another process writes."""
        query = _entries_query(
            session_id, run_id, after, until, kinds, limit, newest_first=newest_first
        )
        found = await self._file.run(lambda db: _entries(db, query))
        if not with_damaged:
            refuse_damaged(found, str(self.path))
        return found

    async def _runs_page(
        self, wanted: RunFilter, after: RunRow | None, part: Part
    ) -> Sequence[RunRow]:
        return await self._looked_up(lambda db: sqlite_rows.runs_page(db, wanted, after, part))

    async def _count_runs(self, wanted: RunFilter) -> int:
        return await self._looked_up(lambda db: sqlite_rows.count_runs(db, wanted))

    async def _sessions_page(
        self, wanted: SessionFilter, after: SessionRow | None, part: Part
    ) -> Sequence[SessionRow]:
        return await self._looked_up(lambda db: sqlite_rows.sessions_page(db, wanted, after, part))

    async def _count_sessions(self, wanted: SessionFilter) -> int:
        return await self._looked_up(lambda db: sqlite_rows.count_sessions(db, wanted))

    async def _looked_up(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """In rows that are right: those that may not be are made anew first."""
        for _ in range(2):
            is_right = False
            while not is_right:
                is_right = not await self._file.run(_mend_some)
                await asyncio.sleep(0)  # there may be many: others have their turn
            try:
                return await self._file.run(look)
            except sqlite_rows.DamagedRowsError:
                await self._file.run(_doubt_all)
        raise damaged(self.path, "rows of runs that were just made cannot be read")

    async def wait(self, session_id: str, after: int, timeout_s: float) -> bool:
        """Told by an append of this object; those of others are seen within some 30 ms."""

        async def look() -> int:
            found = await self._file.run(
                lambda db: _last_positions(db, [session_id]), is_landmark=True
            )
            return found[session_id]

        return await self._waiting.wait(session_id, after, timeout_s, look)

    async def adopt(self, session_id: str, entries: Sequence[JournalEntry]) -> None:
        """In one transaction."""
        if (why := bad_entries(session_id, entries)) is not None:
            raise why
        bodies = [_stored_body(entry) for entry in entries]
        await self._file.run(
            lambda db: _adopt(db, session_id, entries, bodies, self._clock.now()),
            is_landmark=True,
        )
        self._waiting.tell(session_id, len(entries))

    async def remove_session(self, session_id: str) -> bool:
        """In one transaction."""
        return await self._file.run(
            lambda db: _remove(db, session_id, self._clock.now()), is_landmark=True
        )

    async def put_blob(self, data: bytes) -> str:
        """Stored compressed."""
        digest = hashlib.sha256(data).hexdigest()
        await self._file.run(
            lambda db: put_blob(db, digest, data, _micros(self._clock.now())), is_landmark=True
        )
        return digest

    async def get_blob(self, digest: str) -> bytes:
        """Decompressed."""
        data = await self._file.run(lambda db: get_blob(db, digest))
        if data is None:
            raise NotFoundError(f"{self.path} holds no blob {digest!r}.", code="unknown-blob")
        return data

    async def collect(self, *, dry_run: bool = False, spare_s: float = SPARED_S) -> BlobCollection:
        """All bodies are read; nobody is kept from writing meanwhile."""
        latest = _micros(self._clock.now() - timedelta(seconds=spare_s))
        useless = await self._file.run(lambda db: useless_blobs(db, latest), is_landmark=True)
        if not dry_run:
            await self._file.run(lambda db: drop_blobs(db, useless, latest), is_landmark=True)
        return BlobCollection(blobs=len(useless), bytes=sum(useless.values()))

    async def compact(self) -> int:
        """Where nobody else has the file open; otherwise the room is used again, and it is 0."""
        return await self._file.run(lambda db: compact(db, self.path), is_landmark=True)

    async def aclose(self) -> None:
        """Close the file; a later call opens it again."""
        await self._waiting.aclose()
        self._file.close()

    async def _watch(self) -> None:
        """Looks for what others wrote while somebody of this event loop waits."""
        seen = None
        while sessions := self._waiting.sessions():
            version = await self._file.run(_data_version)
            if version != seen:  # always at first: nobody may be missed
                found = await self._file.run(partial(_last_positions, sessions=sessions))
                self._waiting.tell_all(found)
                seen = version
            await self._sleep(_LOOK_EVERY_S)


# --- leases ----------------------------------------------------------------------------------


@frozen
class _LeaseRow:
    """A row of `leases`: who has, or last had, a session."""

    run_id: str
    worker_id: str
    epoch: int
    deadline: int | None


@frozen(kw_only=True)
class _LeaseRequest:
    """What a worker asks for."""

    session_id: str
    run_id: str
    worker_id: str
    next_generation: bool
    takes_over: str | None


def _holding(db: sqlite3.Connection, session_id: str) -> _LeaseRow | None:
    row = db.execute(
        "SELECT run_id, worker_id, epoch, deadline FROM leases WHERE session_id = ?", (session_id,)
    ).fetchone()
    if row is None:
        return None
    run_id, worker_id, epoch, deadline = row
    if not (isinstance(epoch, int) and (deadline is None or isinstance(deadline, int))):
        raise DamageError(f"the lease of session {session_id!r} has no epoch or deadline")
    return _LeaseRow(run_id, worker_id, epoch, deadline)


def _acquire(db: sqlite3.Connection, wanted: _LeaseRequest, now: datetime, ttl_s: float) -> Lease:
    deadline = _micros(now + timedelta(seconds=ttl_s))
    first = None if wanted.next_generation else _acquire_first(db, wanted, deadline)
    return first or _acquire_after_others(db, wanted, now, deadline)


def _acquire_first(db: sqlite3.Connection, wanted: _LeaseRequest, deadline: int) -> Lease | None:
    """The first lease of a session, by one statement that is its own transaction.

    None where the session has, or had, one, or the run has entries.
    """
    row = (wanted.session_id, wanted.run_id, wanted.worker_id, deadline)
    if db.execute(_INSERT_FIRST_LEASE, row).rowcount != 1:
        return None
    return Lease(
        session_id=wanted.session_id, run_id=wanted.run_id, worker_id=wanted.worker_id, epoch=1
    )


_INSERT_FIRST_LEASE: Final = (
    "INSERT OR IGNORE INTO leases (session_id, run_id, worker_id, epoch, generation, deadline) "
    "SELECT ?1, ?2, ?3, 1, 1, ?4 WHERE NOT EXISTS (SELECT 1 FROM entries WHERE run_id = ?2)"
)


def _acquire_after_others(
    db: sqlite3.Connection, wanted: _LeaseRequest, now: datetime, deadline: int
) -> Lease:
    with transaction(db):
        held = _holding(db, wanted.session_id)
        if held is not None and held.worker_id != wanted.takes_over:
            _refuse_if_active(held, wanted.session_id, wanted.run_id, wanted.worker_id, now)
        (written,) = db.execute(
            "SELECT max(generation) FROM entries WHERE run_id = ?", (wanted.run_id,)
        ).fetchone()
        written = _count(written)
        lease = Lease(
            session_id=wanted.session_id,
            run_id=wanted.run_id,
            worker_id=wanted.worker_id,
            epoch=held.epoch + 1 if held else 1,
            generation=written + 1 if wanted.next_generation else max(written, 1),
        )
        db.execute(
            "INSERT OR REPLACE INTO leases "
            "(session_id, run_id, worker_id, epoch, generation, deadline) VALUES (?,?,?,?,?,?)",
            (
                lease.session_id,
                lease.run_id,
                lease.worker_id,
                lease.epoch,
                lease.generation,
                deadline,
            ),
        )
    return lease


def _held(db: sqlite3.Connection, now: int) -> list[HeldLease]:
    sql = (
        "SELECT session_id, run_id, worker_id, epoch, generation, deadline <= ? FROM leases "
        "WHERE deadline IS NOT NULL"
    )
    rows = readable_rows(db, sql, (now,))
    # A lease that nobody can read holds nothing: refusing it would hide all sessions for one row.
    # Whoever acquires the session itself is told of the damage.
    kinds = (str, str, str, int, int)
    return [
        HeldLease(
            lease=Lease(
                session_id=session_id,
                run_id=run_id,
                worker_id=worker_id,
                epoch=epoch,
                generation=generation,
            ),
            has_expired=bool(has_expired),
        )
        for session_id, run_id, worker_id, epoch, generation, has_expired in rows
        if tuple(map(type, (session_id, run_id, worker_id, epoch, generation))) == kinds
    ]


def _refuse_if_active(
    held: _LeaseRow, session_id: str, run_id: str | None, worker_id: str | None, now: datetime
) -> None:
    if held.deadline is None or held.deadline <= _micros(now):
        return
    if (held.run_id, held.worker_id) == (run_id, worker_id):
        return
    who = "It can be changed" if run_id is None else f"Run '{run_id}' can start"
    raise LeaseHeldError(
        f"Session '{session_id}' is busy: run '{held.run_id}' is active on worker "
        f"'{held.worker_id}' until {_time(held.deadline).isoformat()}. "
        f"{who} when that run ends or its lease runs out.",
        worker_id=held.worker_id,
        run_id=held.run_id,
    )


def _check_owner(db: sqlite3.Connection, lease: Lease) -> None:
    held = _holding(db, lease.session_id)
    if held is None:
        state = "nobody holds it"
    elif held.deadline is None:
        state = "its last lease was given back"
    elif held.epoch == lease.epoch and held.run_id == lease.run_id:
        return
    else:
        state = f"worker '{held.worker_id}' has it for run '{held.run_id}' (epoch {held.epoch})"
    raise FencedError(
        f"Worker '{lease.worker_id}' may no longer write run '{lease.run_id}' of session "
        f"'{lease.session_id}' (epoch {lease.epoch}): {state}. Nothing was stored."
    )


def _renew(db: sqlite3.Connection, lease: Lease, now: datetime, ttl_s: float) -> None:
    deadline = _micros(now + timedelta(seconds=ttl_s))
    with transaction(db):
        _check_owner(db, lease)
        db.execute(
            "UPDATE leases SET deadline = ? WHERE session_id = ?", (deadline, lease.session_id)
        )


def _release(db: sqlite3.Connection, lease: Lease) -> None:
    db.execute(
        "UPDATE leases SET deadline = NULL WHERE session_id = ? AND epoch = ?",
        (lease.session_id, lease.epoch),
    )


# --- entries ---------------------------------------------------------------------------------


@frozen
class _StoredBody:
    """A body as its row holds it."""

    text: str | bytes | None
    """Bytes where the text is not valid Unicode; None: too large for the row."""
    digest: str | None = None
    data: bytes = b""
    """What `digest` is of."""


def _stored_body(draft: EntryDraft | JournalEntry) -> _StoredBody:
    text = body_text(draft)
    if len(text) * 4 <= _LARGEST_INLINE_BODY and text.isascii():
        return _StoredBody(text)
    # A lone surrogate has no UTF-8: SQLite takes its bytes, not the text.
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > _LARGEST_INLINE_BODY:
        return _StoredBody(None, hashlib.sha256(data).hexdigest(), data)
    return _StoredBody(text if _is_unicode(text) else data)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _append(
    db: sqlite3.Connection, lease: Lease, draft: EntryDraft, body: _StoredBody, now: datetime
) -> JournalEntry:
    if draft.kind not in LISTED or folds_later(lease):
        position = _append_at_once(db, lease, draft, body, now)
        if position is not None:
            return _entry_of(lease, draft, position, now)
    return _append_step_by_step(db, lease, draft, body, now)


def _entry_of(lease: Lease, draft: EntryDraft, position: int, now: datetime) -> JournalEntry:
    return JournalEntry(
        session_id=lease.session_id,
        position=position,
        run_id=lease.run_id,
        generation=lease.generation,
        key=draft.key,
        fact=draft.fact,
        epoch=lease.epoch,
        at=now,
    )


def _append_at_once(
    db: sqlite3.Connection, lease: Lease, draft: EntryDraft, body: _StoredBody, now: datetime
) -> int | None:
    """The position, by one statement that is its own transaction: a third of the time.

    None where something is in the way; what it is, the statements one by one will tell.
    """
    if body.digest is not None:
        return None
    row = (
        lease.session_id, lease.run_id, lease.generation, draft.key, draft.kind, draft.state,
        body.text, lease.epoch, _micros(now),
    )  # fmt: skip
    try:
        found = db.execute(_INSERT_IF_OWNED, row).fetchall()
    except sqlite3.IntegrityError:
        return None
    return found[0][0] if found else None


_INSERT_IF_OWNED: Final = (
    "INSERT INTO entries (session_id, position, run_id, generation, key, kind, state, body, "
    "body_digest, epoch, at) SELECT ?1, 1 + ifnull((SELECT max(position) FROM entries WHERE "
    "session_id = ?1), 0), ?2, ?3, ?4, ?5, ?6, ?7, NULL, ?8, ?9 WHERE EXISTS (SELECT 1 FROM "
    "leases WHERE session_id = ?1 AND epoch = ?8 AND run_id = ?2 AND deadline IS NOT NULL) "
    "RETURNING position"
)


def _append_step_by_step(
    db: sqlite3.Connection, lease: Lease, draft: EntryDraft, body: _StoredBody, now: datetime
) -> JournalEntry:
    name = (lease.run_id, lease.generation, draft.key, draft.kind, draft.state)
    with transaction(db):
        _check_owner(db, lease)
        known = sqlite_rows.known(db, lease.session_id, lease.run_id)
        position = _count(known.last_position) + 1
        entry = _entry_of(lease, draft, position, now)
        if body.digest is not None:
            put_blob(db, body.digest, body.data, _micros(now))
        if draft.kind in LISTED:
            known.keep(db, entry)
        row = (lease.session_id, position, *name, body.text, body.digest, lease.epoch, _micros(now))
        try:
            db.execute(_INSERT, row)
        except sqlite3.IntegrityError as error:
            raise _duplicate(db, lease, draft) from error
    return entry


_INSERT: Final = (
    "INSERT INTO entries (session_id, position, run_id, generation, key, kind, state, body, "
    "body_digest, epoch, at) VALUES (?,?,?,?,?,?,?,?,?,?,?)"
)


def _duplicate(
    db: sqlite3.Connection, lease: Lease | JournalEntry, draft: EntryDraft | JournalEntry
) -> JournalError:
    row = db.execute(
        "SELECT position FROM entries WHERE run_id = ? AND generation = ? AND key = ? "
        "AND kind = ? AND state = ?",
        (lease.run_id, lease.generation, draft.key, draft.kind, draft.state),
    ).fetchone()
    if row is None:
        raise DamageError(f"an index of the entries of session {lease.session_id!r} is wrong")
    (position,) = row
    return JournalError(
        f"Run '{lease.run_id}' (generation {lease.generation}) already has the entry "
        f"{draft.kind} '{draft.key}' {draft.state}, at position {position}. Nothing was stored.",
        code="duplicate-entry",
    )


@frozen
class _Query:
    sql: str
    parameters: tuple[str | int, ...]


def _kind_condition(
    kinds: Collection[str], parameters: list[str | int], *, is_of_one_run: bool
) -> str:
    parameters.extend(kinds)
    condition = f"e.kind IN ({','.join('?' * len(kinds))})"
    if LISTED.issuperset(kinds) and not is_of_one_run:  # which an index of its own finds
        # As written in the index: bound values alone would not use it.
        condition += " AND e.kind IN ('run', 'session')"
    return condition


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
    conditions, parameters = ["e.position > ?"], list[str | int]([_integer(after)])
    for condition, value in (("e.session_id = ?", session_id), ("e.run_id = ?", run_id)):
        if value is not None:
            conditions.append(condition)
            parameters.append(value)
    if until is not None:
        conditions.append("e.position <= ?")
        parameters.append(_integer(until))
    if kinds is not None:
        is_of_one_run = run_id is not None and session_id is None
        conditions.append(_kind_condition(kinds, parameters, is_of_one_run=is_of_one_run))
    order = "DESC" if newest_first else "ASC"
    if limit is not None:
        parameters.append(_integer(max(limit, 0)))
    sql = (
        f"{_SELECT} WHERE {' AND '.join(conditions)} "
        f"ORDER BY e.session_id {order}, e.position {order}"
        f"{'' if limit is None else ' LIMIT ?'}"
    )
    return _Query(sql, tuple(parameters))


_SELECT: Final = (
    "SELECT e.session_id, e.position, e.run_id, e.generation, e.key, e.kind, e.state, "
    "CAST(e.body AS BLOB), e.body_digest, b.data, e.epoch, e.at "
    "FROM entries e LEFT JOIN blobs b ON b.digest = e.body_digest"
)
_LISTED_OF: Final = (
    f"{_SELECT} WHERE e.session_id IN ({{}}) AND e.kind IN ('run', 'session') "
    "ORDER BY e.session_id, e.position"
)


def _integer(number: int) -> int:
    """The nearest one that SQLite knows."""
    return max(min(number, _LARGEST_INTEGER), -_LARGEST_INTEGER)


_Row = tuple[str, int, str, int, str, str, str, bytes | None, str | None, bytes | None, int, int]


def _entries(db: sqlite3.Connection, query: _Query) -> list[JournalEntry]:
    rows = readable_rows(db, query.sql, query.parameters)
    return [_entry(row) for row in rows]


_COLUMNS: Final = (
    ("session_id", str), ("position", int), ("run_id", str), ("generation", int), ("key", str),
    ("kind", str), ("state", str),
)  # fmt: skip
_KINDS: Final = tuple(kind for _, kind in _COLUMNS)


def _entry(row: _Row) -> JournalEntry:
    if tuple(map(type, row[:7])) != _KINDS or type(row[10]) is not int:
        return _odd_entry(row)
    (
        session_id, position, run_id, generation, key, kind, state,
        body, digest, data, epoch, at,
    ) = row  # fmt: skip
    fact: Fact | UnreadableFact
    try:
        stored = body if digest is None else decompressed(data, digest)
        fact, time = read_fact(kind, state, stored or b""), _time(at)
    except DamageError as error:
        fact, time = UnreadableFact(kind=kind, state=state, problem=str(error)), _EPOCH
    return JournalEntry(
        session_id=session_id,
        position=position,
        run_id=run_id,
        generation=generation,
        key=key,
        fact=fact,
        epoch=epoch,
        at=time,
    )


def _odd_entry(row: Sequence[object]) -> JournalEntry:
    """One with values of another kind in its columns, which SQLite keeps as they are."""
    names = [*_COLUMNS, ("epoch", int)]
    values = [*row[:7], row[10]]
    odd = [
        f"its {name} is {_as_text(value)[:40]!r} ({type(value).__name__})"
        for (name, kind), value in zip(names, values, strict=True)
        if type(value) is not kind
    ]
    session_id, position, run_id, generation, key, kind, state, epoch = values
    return JournalEntry(
        session_id=_as_text(session_id),
        position=_as_number(position),
        run_id=_as_text(run_id),
        generation=_as_number(generation),
        key=_as_text(key),
        fact=UnreadableFact(kind=_as_text(kind), state=_as_text(state), problem=", ".join(odd)),
        epoch=_as_number(epoch),
        at=_EPOCH,
    )


def _as_text(stored: object) -> str:
    return stored.decode(errors="replace") if isinstance(stored, bytes) else str(stored)


def _as_number(stored: object) -> int:
    """0, which no entry has, where it is none."""
    return stored if isinstance(stored, int) else 0


# --- whole sessions --------------------------------------------------------------------------


def _data_version(db: sqlite3.Connection) -> int:
    """Another number after each change by another connection."""
    (version,) = db.execute("PRAGMA data_version").fetchone()
    return _count(version)


def _last_positions(db: sqlite3.Connection, sessions: Collection[str]) -> Mapping[str, int]:
    rows = db.execute(
        "SELECT value, (SELECT max(position) FROM entries WHERE session_id = value) "
        "FROM json_each(?)",
        (json.dumps(list(sessions)),),
    )
    return {session_id: _count(position) for session_id, position in rows}


def _adopt(
    db: sqlite3.Connection,
    session_id: str,
    entries: Sequence[JournalEntry],
    bodies: Sequence[_StoredBody],
    now: datetime,
) -> None:
    with transaction(db):
        if last := _last_positions(db, [session_id])[session_id]:
            raise session_exists(session_id, last)
        held = _holding(db, session_id)
        if held is not None:
            _refuse_if_active(held, session_id, None, None, now)
        for entry, body in zip(entries, bodies, strict=True):
            _insert_as_it_was(db, entry, body, now)
        last_lease = max(entries, key=lambda entry: entry.epoch)
        epoch = max(last_lease.epoch, held.epoch if held else 0)
        db.execute(
            "INSERT OR REPLACE INTO leases "
            "(session_id, run_id, worker_id, epoch, generation, deadline) VALUES (?,?,'',?,?,NULL)",
            (session_id, last_lease.run_id, epoch, last_lease.generation),
        )
        _make_anew(db, [session_id])


def _insert_as_it_was(
    db: sqlite3.Connection, entry: JournalEntry, body: _StoredBody, now: datetime
) -> None:
    if body.digest is not None:
        put_blob(db, body.digest, body.data, _micros(now))
    row = (
        entry.session_id, entry.position, entry.run_id, entry.generation, entry.key, entry.kind,
        entry.state, body.text, body.digest, entry.epoch, _micros(entry.at),
    )  # fmt: skip
    try:
        db.execute(_INSERT, row)
    except sqlite3.IntegrityError as error:
        raise _duplicate(db, entry, entry) from error


def _remove(db: sqlite3.Connection, session_id: str, now: datetime) -> bool:
    with transaction(db):
        held = _holding(db, session_id)
        if held is not None:
            _refuse_if_active(held, session_id, None, None, now)
        removed = db.execute("DELETE FROM entries WHERE session_id = ?", (session_id,)).rowcount
        # The row stays: epochs only grow.
        db.execute("UPDATE leases SET deadline = NULL WHERE session_id = ?", (session_id,))
        _make_anew(db, [session_id])
    return removed > 0


# --- rows of runs and sessions ---------------------------------------------------------------


def _make_anew(db: sqlite3.Connection, session_ids: Collection[str]) -> None:
    """The rows of these sessions, of all their entries."""
    ids = json.dumps(list(session_ids))
    sqlite_rows.remove_rows(db, session_ids)
    query = _Query(_LISTED_OF.format("SELECT value FROM json_each(?)"), (ids,))
    sqlite_rows.make_anew(db, _entries(db, query))
    db.execute(
        "DELETE FROM changed_sessions WHERE session_id IN (SELECT value FROM json_each(?))", (ids,)
    )


def _mend_some(db: sqlite3.Connection) -> bool:
    """Make the rows of some sessions anew that somebody changed; whether there were any.

    All is done in SQL, by the numbers of the sessions: their ids may be damaged, too.
    """
    if sqlite_rows.changed_sessions(db) is None:
        return False
    with transaction(db):
        if (last := sqlite_rows.changed_sessions(db)) is None:
            return False
        some = "SELECT session_id FROM changed_sessions WHERE id <= ?"
        ids = [_as_text(session_id) for (session_id,) in readable_rows(db, some, (last,))]
        sqlite_rows.remove_rows(db, ids)
        sqlite_rows.make_anew(db, _entries(db, _Query(_LISTED_OF.format(some), (last,))))
        sqlite_rows.forget_changed(db, last)
    return True


def _doubt_all(db: sqlite3.Connection) -> None:
    with transaction(db):
        db.execute("DELETE FROM runs")
        db.execute("DELETE FROM sessions")
        sqlite_rows.doubt_all(db)


# --- times and numbers -----------------------------------------------------------------------


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def _micros(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND


def _time(micros: int) -> datetime:
    try:
        return _EPOCH + micros * _MICROSECOND
    except (OverflowError, TypeError) as error:
        raise DamageError(f"its time is out of range ({error})") from error


def _count(stored: object) -> int:
    """The largest number of some rows; 0 where there are none."""
    if stored is not None and not isinstance(stored, int):
        raise DamageError("a number in it is none")
    return stored or 0
