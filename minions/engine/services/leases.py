"""Leases of runs as the engine takes them: a holder that is known to be dead is not waited for."""

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
    """Become the writer of that run; taken over from a worker that has died.

    Args:
        next_generation: As of `Journal.acquire`.
    Raises:
        LeaseHeldError: Another worker has the session, and is not known to be dead.
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
    """The lease of `acquire_lease`, given back at the end.

    Raises:
        As `acquire_lease`.
    """
    lease = await acquire_lease(services, session_id, run_id)
    try:
        yield lease
    finally:
        await services.journal.release(lease)
