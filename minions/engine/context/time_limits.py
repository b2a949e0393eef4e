"""Limits of time of runs, recipes and steps, which stand still while a call waits for a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
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


class TimeLimit:
    """Around a block, as the timeout itself; `suspended_time` within it is no part of its seconds.
    A class: a generator that is a context takes four times as many calls.
    """

    __slots__ = ("_timeout", "_token")

    def __init__(self, timeout: asyncio.Timeout) -> None:
        """Take a timeout that nobody has entered."""
        self._timeout = timeout

    async def __aenter__(self) -> asyncio.Timeout:
        """Begin the time."""
        await self._timeout.__aenter__()
        self._token = _LIMITS.set((*_LIMITS.get(), _Limit(self._timeout)))
        return self._timeout

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it.

        Raises:
            TimeoutError: It ended the block.
        """
        _LIMITS.reset(self._token)
        await self._timeout.__aexit__(kind, error, trace)


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
