"""Acquires leases for runs; the lease of a worker that is known to be dead is taken over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from minions.contracts.errors import LeaseHeldError
from minions.contracts.journal import Lease
from minions.engine.services.services import Services

__all__ = ["acquire_lease", "held_lease"]


async def acquire_lease(
    services: Services, session_id: str, run_id: str, *, next_generation: bool = False
) -> Lease:
    """Acquire the lease of a run; one of a worker that has died is taken over.

    Args:
        next_generation: See `Journal.acquire`.
    Raises:
        LeaseHeldError: Another worker holds the session, and is not known to be dead.
        JournalError: The store refuses.
    """

    async def acquire(takes_over: str | None) -> Lease:
        return await services.journal.acquire(
            session_id,
            run_id,
            services.worker_id,
            services.lease_ttl_s,
            next_generation=next_generation,
            takes_over=takes_over,
        )

    try:
        return await acquire(None)
    except LeaseHeldError as error:
        if not services.is_worker_gone(error.worker_id):
            raise
        return await acquire(error.worker_id)


@asynccontextmanager
async def held_lease(services: Services, session_id: str, run_id: str) -> AsyncIterator[Lease]:
    """The lease of `acquire_lease`, released at the end of the block."""
    lease = await acquire_lease(services, session_id, run_id)
    try:
        yield lease
    finally:
        await services.journal.release(lease)
