"""Leases of the SQLite journal: one row per session, with the epoch that fences late writers."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from msgspec import Struct

from minions.adapters.stores.sqlite_database import readable_rows, transaction
from minions.adapters.stores.sqlite_file import DamageError
from minions.adapters.stores.sqlite_rows import as_count, as_time
from minions.contracts.journal.chain import GENESIS, ChainHead
from minions.contracts.journal.journal import HeldLease, Lease
from minions.contracts.journal.run_rows import micros
from minions.data.errors import FencedError, LeaseHeldError


class _LeaseRow(Struct, frozen=True):
    """A row of `leases`: who has, or last had, a session."""

    run_id: str
    worker_id: str
    epoch: int
    deadline: int | None
    head: ChainHead | None
    """The end of the chain when a lease was last given back."""


class LeaseRequest(Struct, frozen=True, kw_only=True):
    """What a worker asks for."""

    session_id: str
    run_id: str
    worker_id: str
    next_generation: bool
    takes_over: str | None


def find_lease(db: sqlite3.Connection, session_id: str) -> _LeaseRow | None:
    """The row of that session's lease; None: it was never taken."""
    row = db.execute(
        "SELECT run_id, worker_id, epoch, deadline, last_position, chain FROM leases "
        "WHERE session_id = ?",
        (session_id,),
    ).fetchone()
    if row is None:
        return None
    run_id, worker_id, epoch, deadline, position, value = row
    if not (isinstance(epoch, int) and (deadline is None or isinstance(deadline, int))):
        raise DamageError(f"the lease of session {session_id!r} has no epoch or deadline")
    head = None
    if isinstance(position, int) and isinstance(value, bytes):
        head = ChainHead(epoch, position, value)
    return _LeaseRow(run_id, worker_id, epoch, deadline, head)


Heads: TypeAlias = dict[str, ChainHead]
"""The ends of the chains to which one journal object appends, by session."""


def read_head(
    db: sqlite3.Connection,
    session_id: str,
    epoch: int,
    stored: ChainHead | None,
    own: ChainHead | None,
) -> ChainHead:
    """The end of a session's chain, for who writes under a lease of that epoch.

    Where the last entries or their values are gone, the value stays that of the last one that is
    known: the next entry then says that they were there.

    Args:
        stored: The end that stands beside the lease.
        own: The end that this journal object knows.
    """
    row = db.execute(
        "SELECT position, chain FROM entries WHERE session_id = ? ORDER BY position DESC LIMIT 1",
        (session_id,),
    ).fetchone()
    last = as_count(row[0]) if row is not None else 0
    value = row[1] if row is not None and type(row[1]) is bytes else GENESIS
    furthest = last
    for known in (stored, own if own and own.epoch == epoch else None):
        if known is not None and known.position >= furthest:
            furthest, value = known.position, known.value
    return ChainHead(epoch, last, value)


def acquire_lease(
    db: sqlite3.Connection, wanted: LeaseRequest, now: datetime, ttl_s: float, heads: Heads
) -> Lease:
    """Take the lease of a session, as `Journal.acquire` says."""
    deadline = micros(now + timedelta(seconds=ttl_s))
    lease = Lease(
        session_id=wanted.session_id, run_id=wanted.run_id, worker_id=wanted.worker_id, epoch=1
    )
    if not wanted.next_generation and insert_first_lease(db, lease, now, ttl_s):
        heads[wanted.session_id] = ChainHead(1, 0, GENESIS)
        return lease
    return _acquire_after_others(db, wanted, now, deadline, heads)


def insert_first_lease(db: sqlite3.Connection, lease: Lease, now: datetime, ttl_s: float) -> bool:
    """Take the first lease of a session, by one statement that may be its own transaction.

    False where the session has, or had, one, or the run has entries.
    """
    deadline = micros(now + timedelta(seconds=ttl_s))
    row = (lease.session_id, lease.run_id, lease.worker_id, deadline)
    return db.execute(_INSERT_FIRST_LEASE, row).rowcount == 1


_INSERT_FIRST_LEASE: Final = (
    "INSERT OR IGNORE INTO leases (session_id, run_id, worker_id, epoch, generation, deadline) "
    "SELECT ?1, ?2, ?3, 1, 1, ?4 WHERE NOT EXISTS (SELECT 1 FROM entries WHERE run_id = ?2)"
)


def _acquire_after_others(
    db: sqlite3.Connection, wanted: LeaseRequest, now: datetime, deadline: int, heads: Heads
) -> Lease:
    with transaction(db):
        held = find_lease(db, wanted.session_id)
        if held is not None and held.worker_id != wanted.takes_over:
            refuse_if_active(held, wanted.session_id, wanted.run_id, wanted.worker_id, now)
        (written,) = db.execute(
            "SELECT max(generation) FROM entries WHERE run_id = ?", (wanted.run_id,)
        ).fetchone()
        written = as_count(written)
        lease = Lease(
            session_id=wanted.session_id,
            run_id=wanted.run_id,
            worker_id=wanted.worker_id,
            epoch=held.epoch + 1 if held else 1,
            generation=written + 1 if wanted.next_generation else max(written, 1),
        )
        db.execute(
            "INSERT INTO leases (session_id, run_id, worker_id, epoch, generation, deadline) "
            "VALUES (?,?,?,?,?,?) ON CONFLICT (session_id) DO UPDATE SET run_id = excluded.run_id, "
            "worker_id = excluded.worker_id, epoch = excluded.epoch, "
            "generation = excluded.generation, deadline = excluded.deadline",
            (
                lease.session_id,
                lease.run_id,
                lease.worker_id,
                lease.epoch,
                lease.generation,
                deadline,
            ),
        )
        stored = held.head if held else None
        head = read_head(db, wanted.session_id, lease.epoch, stored, None)
    heads[wanted.session_id] = head
    return lease


def list_held_leases(db: sqlite3.Connection, now: int) -> list[HeldLease]:
    """All leases that are held at that time."""
    sql = (
        "SELECT session_id, run_id, worker_id, epoch, generation, deadline FROM leases "
        "WHERE deadline IS NOT NULL"
    )
    rows = readable_rows(db, sql, ())
    # A lease that nobody can read holds nothing: refusing it would hide all sessions for one row.
    # Whoever acquires the session itself is told of the damage.
    kinds = (str, str, str, int, int, int)
    return [
        HeldLease(
            lease=Lease(
                session_id=session_id,
                run_id=run_id,
                worker_id=worker_id,
                epoch=epoch,
                generation=generation,
            ),
            has_expired=deadline <= now,
            expires_at=as_time(deadline),
        )
        for session_id, run_id, worker_id, epoch, generation, deadline in rows
        if tuple(map(type, (session_id, run_id, worker_id, epoch, generation, deadline))) == kinds
        and deadline <= _LATEST
    ]


_LATEST: Final = micros(datetime.max.replace(tzinfo=UTC))


def refuse_if_active(
    held: _LeaseRow, session_id: str, run_id: str | None, worker_id: str | None, now: datetime
) -> None:
    """Refuse to change a session while a run of it is active."""
    if held.deadline is None or held.deadline <= micros(now):
        return
    if (held.run_id, held.worker_id) == (run_id, worker_id):
        return
    who = "It can be changed" if run_id is None else f"Run '{run_id}' can start"
    raise LeaseHeldError(
        f"Session '{session_id}' is busy: run '{held.run_id}' is active on worker "
        f"'{held.worker_id}' until {as_time(held.deadline).isoformat()}. "
        f"{who} when that run ends or its lease runs out.",
        worker_id=held.worker_id,
        run_id=held.run_id,
    )


def check_owner(db: sqlite3.Connection, lease: Lease) -> _LeaseRow:
    """Refuse a lease that another worker has taken since; its row."""
    held = find_lease(db, lease.session_id)
    if held is None:
        state = "nobody holds it"
    elif held.deadline is None:
        state = "its last lease was given back"
    elif held.epoch == lease.epoch and held.run_id == lease.run_id:
        return held
    else:
        state = f"worker '{held.worker_id}' has it for run '{held.run_id}' (epoch {held.epoch})"
    raise FencedError(
        f"Worker '{lease.worker_id}' may no longer write run '{lease.run_id}' of session "
        f"'{lease.session_id}' (epoch {lease.epoch}): {state}. Nothing was stored."
    )


def renew_lease(db: sqlite3.Connection, lease: Lease, now: datetime, ttl_s: float) -> None:
    """Move the end of a lease that its owner still has."""
    deadline = micros(now + timedelta(seconds=ttl_s))
    with transaction(db):
        check_owner(db, lease)
        db.execute(
            "UPDATE leases SET deadline = ? WHERE session_id = ?", (deadline, lease.session_id)
        )


def release_lease(db: sqlite3.Connection, lease: Lease, head: ChainHead | None) -> None:
    """Give a lease back; one that another worker has taken since is left alone.

    Args:
        head: The end of the session's chain; None: it is not known.
    """
    session_id = lease.session_id
    if head is None:
        db.execute(
            "UPDATE leases SET deadline = NULL WHERE session_id = ? AND epoch = ?",
            (session_id, lease.epoch),
        )
    else:
        db.execute(_RELEASE, (head.position, head.value, session_id, lease.epoch))


def release_if_owned(
    db: sqlite3.Connection, lease: Lease, before: ChainHead, after: ChainHead
) -> bool:
    """Give a lease back, before the last entries are stored in the same transaction.

    Args:
        before: The end of the session's chain, as it is known.
        after: Its end behind those entries.
    Returns:
        False: another worker has taken it, or the chain ends elsewhere; nothing was changed.
    """
    values = (
        after.position, after.value, lease.session_id, lease.epoch, lease.run_id, before.position,
    )  # fmt: skip
    return db.execute(_RELEASE_IF_OWNED, values).rowcount == 1


# An end that is further than this one stays: what was there is gone.
_RELEASE: Final = (
    "UPDATE leases SET deadline = NULL, last_position = max(ifnull(last_position, 0), ?1), "
    "chain = CASE WHEN ifnull(last_position, 0) > ?1 THEN chain ELSE ?2 END "
    "WHERE session_id = ?3 AND epoch = ?4"
)
_RELEASE_IF_OWNED: Final = (
    f"{_RELEASE} AND run_id = ?5 AND deadline IS NOT NULL AND "  # noqa: S608  # a constant
    "ifnull((SELECT max(position) FROM entries WHERE session_id = ?3), 0) = ?6"
)
