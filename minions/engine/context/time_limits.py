"""Limits of time of runs, recipes and steps, which stand still while a call waits for a batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Final

from msgspec import Struct


class _Limit(Struct, eq=False):
    timeout: asyncio.Timeout
    suspensions: int = 0
    """How many tasks within it wait for a batch."""
    left_s: float | None = None
    """Seconds that are left when none of them does any more; None: it is over."""


_LIMITS: Final[ContextVar[tuple[_Limit, ...]]] = ContextVar("minions_time_limits", default=())
"""Those around the present task, the outermost first; a new task has those of whoever began it."""


@asynccontextmanager
async def time_limit(seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
    """As `asyncio.timeout`; `suspended_time` within it is no part of the seconds."""
    async with asyncio.timeout(seconds) as timeout:
        with within_limit(timeout):
            yield timeout


@contextmanager
def within_limit(timeout: asyncio.Timeout) -> Iterator[None]:
    """The block is within that limit, which has begun."""
    token = _LIMITS.set((*_LIMITS.get(), _Limit(timeout)))
    try:
        yield
    finally:
        _LIMITS.reset(token)


@contextmanager
def suspended_time() -> Iterator[None]:
    """No limit around the present task comes nearer meanwhile. Where parallel tasks suspend the
    same one, its time continues when the last of them ends.
    """
    limits = _LIMITS.get()
    if not limits:
        yield
        return
    loop = asyncio.get_running_loop()
    for limit in limits:
        limit.suspensions += 1
        end = limit.timeout.when()
        if limit.suspensions == 1 and end is not None and not limit.timeout.expired():
            limit.left_s = end - loop.time()
            limit.timeout.reschedule(None)
    try:
        yield
    finally:
        for limit in limits:
            limit.suspensions -= 1
            if not limit.suspensions and limit.left_s is not None:
                left_s, limit.left_s = limit.left_s, None
                limit.timeout.reschedule(loop.time() + left_s)
