"""Acquires leases for runs; the lease of a worker that is known to be dead is taken over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from minions.contracts.journal.journal import HeldLease, Lease
from minions.data.errors import LeaseHeldError, UsageError
from minions.engine.services.services import Services


async def acquire_lease(
    services: Services, session_id: str, run_id: str, *, next_generation: bool = False
) -> Lease:
    """Acquire the lease of a run; one of a worker that has died is taken over.

    Args:
        next_generation: See `Journal.acquire`.
    Raises:
        LeaseHeldError: Another worker holds the session, and is not known to be dead.
        JournalError: The store refuses.
        UsageError: `bad-id`; an id is too long.
    """
    for each in (session_id, run_id):
        if len(each) > _LONGEST_ID:
            raise UsageError(
                f"The id '{each[:40]}…' has {len(each):,} characters; ids of sessions and runs "
                f"have at most {_LONGEST_ID}.",
                code="bad-id",
            )
    if next_generation:
        await refuse_if_renewed(services, session_id)
    takes_over = None
    while True:
        try:
            return await services.journal.acquire(
                session_id,
                run_id,
                services.worker_id,
                services.lease_ttl_s,
                next_generation=next_generation,
                takes_over=takes_over,
            )
        except LeaseHeldError as error:
            if takes_over is not None or not services.is_worker_gone(error.worker_id):
                raise
            takes_over = error.worker_id


@asynccontextmanager
async def held_lease(services: Services, session_id: str, run_id: str) -> AsyncIterator[Lease]:
    """The lease of `acquire_lease`, released at the end of the block."""
    lease = await acquire_lease(services, session_id, run_id)
    try:
        yield lease
    finally:
        await services.journal.release(lease)


_LONGEST_ID: Final = 200
"""Characters of the id of a session or run: it stands in every row, link and list."""


_LOOK_EVERY_S: Final = 1.0


async def refuse_if_renewed(services: Services, session_id: str) -> None:
    """Refuse to take a lease that has expired by the clock here, but that its worker renews.

    The clock is ahead then, or was set forward since the last renewal. Only a worker that is known
    to live is observed, for the time between two renewals; one that is stopped renews nothing.

    Raises:
        LeaseHeldError: The worker renewed its lease meanwhile.
    """
    begin = await _expired_of_living(services, session_id)
    if begin is None:
        return
    observed_s = 0.0
    while observed_s < services.lease_ttl_s / 3 + _LOOK_EVERY_S:
        await services.sleep(_LOOK_EVERY_S)
        observed_s += _LOOK_EVERY_S
        held = await _held(services, session_id)
        if held is None or held.lease != begin.lease:
            return
        if held.expires_at != begin.expires_at:
            raise _ahead(held)


async def _expired_of_living(services: Services, session_id: str) -> HeldLease | None:
    held = await _held(services, session_id)
    if held is None or not held.has_expired or held.expires_at is None:
        return None
    worker = held.lease.worker_id
    is_other = worker != services.worker_id and not services.is_worker_gone(worker)
    return held if is_other and services.is_worker_alive(worker) else None


async def _held(services: Services, session_id: str) -> HeldLease | None:
    held = await services.journal.held_leases()
    return next((each for each in held if each.lease.session_id == session_id), None)


def _ahead(held: HeldLease) -> LeaseHeldError:
    lease = held.lease
    return LeaseHeldError(
        f"Nothing was done: run '{lease.run_id}' is active on worker '{lease.worker_id}', which "
        "renews its lease, but by the clock of this process that lease has expired. This clock is "
        "ahead of the worker's. Set it right, or wait for the run's end.",
        worker_id=lease.worker_id,
        run_id=lease.run_id,
    )
