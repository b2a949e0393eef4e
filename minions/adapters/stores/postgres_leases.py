"""Leases of the PostgreSQL journal: a row per session, with the epoch that fences late writers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import field, frozen

from minions.adapters.stores.call_groups import GroupTerms
from minions.adapters.stores.postgres_groups import CallKind
from minions.contracts.journal.chain import GENESIS, ChainHead
from minions.contracts.journal.journal import HeldLease, Lease
from minions.data.errors import FencedError, LeaseHeldError

if TYPE_CHECKING:
    from minions.adapters.stores.postgres_database import Connection
    from minions.adapters.stores.postgres_link import Attempt


Heads: TypeAlias = dict[str, ChainHead]
"""The ends of the chains to which one journal object appends, by session."""


@frozen(kw_only=True)
class LeaseRequest:
    """What a worker asks for."""

    session_id: str
    run_id: str
    worker_id: str
    next_generation: bool
    takes_over: str | None
    ttl_s: float
    """Seconds until the lease expires."""
    now: datetime | None
    """None: by the server's clock."""
    heads: Heads = field(eq=False, repr=False)
    """Where the end of the session's chain is kept for its appends."""


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


async def _acquire_alone(attempt: Attempt, request: LeaseRequest) -> Lease:
    leases = await _acquire_together(attempt.connection, [request])
    if not leases:
        held = await find_lease(attempt.connection, request.session_id)
        raise busy_error(held, request.session_id, request.run_id)
    return leases[0]


async def _acquire_together(
    db: Connection, requests: Sequence[LeaseRequest]
) -> Mapping[int, Lease]:
    """Those that are free. The rows are locked in the order of their sessions, as by everybody."""
    numbered = sorted(enumerate(requests), key=lambda each: each[1].session_id)
    columns = zip(*(_values(request) for _, request in numbered), strict=True)
    found = await db.execute(_ACQUIRE, [list(column) for column in columns], binary=True)
    leases = {}
    for number, epoch, generation, position, value in await found.fetchall():
        index, request = numbered[number - 1]
        request.heads[request.session_id] = ChainHead(epoch, position, value or GENESIS)
        leases[index] = Lease(
            session_id=request.session_id,
            run_id=request.run_id,
            worker_id=request.worker_id,
            epoch=epoch,
            generation=generation,
        )
    return leases


_ACQUIRE: Final = (
    b"SELECT number, epoch, generation, last_position, chain FROM minions.acquire_leases("
    b"%s::text[], %s::text[], %s::text[], %s::text[], %s::boolean[], %s::timestamptz[], "
    b"%s::float8[])"
)


def _values(request: LeaseRequest) -> tuple[object, ...]:
    return (
        request.session_id, request.run_id, request.worker_id, request.takes_over,
        request.next_generation, request.now, request.ttl_s,
    )  # fmt: skip


ACQUISITIONS: Final = CallKind(
    alone=_acquire_alone,
    together=_acquire_together,
    terms=lambda request: GroupTerms(request.session_id, None),
)


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


async def _release_alone(attempt: Attempt, lease: Lease) -> None:
    await attempt.connection.execute(
        "UPDATE minions.leases SET deadline = NULL WHERE session_id = %s AND epoch = %s",
        [lease.session_id, lease.epoch],
    )


async def _release_together(db: Connection, leases: Sequence[Lease]) -> Mapping[int, None]:
    """Those that are held and that no other connection has locked."""
    sessions, epochs = [each.session_id for each in leases], [each.epoch for each in leases]
    found = await db.execute(_RELEASE_TOGETHER, [sessions, epochs], binary=True)
    return {number - 1: None for (number,) in await found.fetchall()}


_RELEASE_TOGETHER: Final = b"""
WITH held AS (
    SELECT l.session_id, r.number
    FROM unnest(%s::text[], %s::bigint[]) WITH ORDINALITY AS r (session_id, epoch, number)
    CROSS JOIN LATERAL (
        SELECT session_id FROM minions.leases
        WHERE session_id = r.session_id AND epoch = r.epoch FOR UPDATE SKIP LOCKED
    ) l
)
UPDATE minions.leases l SET deadline = NULL FROM held
WHERE l.session_id = held.session_id RETURNING held.number
"""

RELEASES: Final = CallKind(
    alone=_release_alone,
    together=_release_together,
    terms=lambda lease: GroupTerms(lease.session_id, (lease.session_id, lease.epoch)),
)
"""One that another worker has taken since is left alone."""


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
