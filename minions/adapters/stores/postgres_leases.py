"""Leases of the PostgreSQL journal: a row per session, with the epoch that fences late writers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from attrs import frozen

from minions.adapters.stores.postgres_link import DamageError
from minions.contracts.errors import FencedError, LeaseHeldError
from minions.contracts.journal import HeldLease, Lease

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection

__all__ = [
    "LeaseRequest",
    "acquire_lease",
    "busy_error",
    "fenced_error",
    "find_lease",
    "list_held_leases",
    "release_lease",
    "renew_lease",
]


@frozen(kw_only=True)
class LeaseRequest:
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


async def find_lease(db: Connection, session_id: str) -> _LeaseRow | None:
    """The row of that session's lease; None: it was never taken."""
    found = await db.execute(
        "SELECT run_id, worker_id, epoch, deadline FROM minions.leases WHERE session_id = %s",
        [session_id],
    )
    row = await found.fetchone()
    return None if row is None else _LeaseRow(*row)


async def acquire_lease(
    db: Connection, wanted: LeaseRequest, now: datetime | None, ttl_s: float
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
            held = await find_lease(db, wanted.session_id)
            raise busy_error(held, wanted.session_id, wanted.run_id)
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
        epoch, generation = await found.fetchone() or _missing_row("leases")
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


def busy_error(held: _LeaseRow | None, session_id: str, run_id: str | None) -> LeaseHeldError:
    """The error that says which run holds the session."""
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


async def fenced_error(db: Connection, lease: Lease) -> FencedError:
    """The error of a writer whose lease is no longer its own."""
    held = await find_lease(db, lease.session_id)
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


async def renew_lease(db: Connection, lease: Lease, now: datetime | None, ttl_s: float) -> None:
    """Move the end of a lease that its owner still has."""
    done = await db.execute(
        "UPDATE minions.leases SET deadline = "
        "coalesce(%s::timestamptz, clock_timestamp()) + make_interval(secs => %s) "
        "WHERE session_id = %s AND epoch = %s AND run_id = %s AND deadline IS NOT NULL",
        [now, ttl_s, lease.session_id, lease.epoch, lease.run_id],
    )
    if done.rowcount == 0:
        raise await fenced_error(db, lease)


async def release_lease(db: Connection, lease: Lease) -> None:
    """Give a lease back; one that another worker has taken since is left alone."""
    await db.execute(
        "UPDATE minions.leases SET deadline = NULL WHERE session_id = %s AND epoch = %s",
        [lease.session_id, lease.epoch],
    )


async def list_held_leases(db: Connection, now: datetime | None) -> list[HeldLease]:
    """All leases that are held at that time."""
    found = await db.execute(
        "SELECT session_id, run_id, worker_id, epoch, generation, "
        "deadline <= coalesce(%s::timestamptz, clock_timestamp()), deadline "
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
            expires_at=expires_at,
        )
        for session_id, run_id, worker_id, epoch, generation, has_expired, expires_at in (
            await found.fetchall()
        )
    ]


def _missing_row(table: str) -> tuple[int, int]:
    """Raise for a row that was written and cannot be read back."""
    raise DamageError(f"a row of {table} that was just written is not there")
