"""Time that goes forward when every task waits for it: many may sleep side by side."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Collection
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from minions.contracts.runtime import Clock

__all__ = ["VirtualTime"]

T = TypeVar("T")

_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_PASSES: Final = 60
"""Rounds of the event loop after which nothing but a sleeper can be waited for."""


class VirtualTime(Clock):
    """A clock, and a `sleep` whose sleepers wake in the order of their times."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()

    def now(self) -> datetime:
        return _START + timedelta(seconds=self._now)

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        signal = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._numbers), signal))
        await signal

    async def settle(self) -> None:
        """Until nothing happens any more without time."""
        # What waits for its turn is no public name of a loop; without it, sixty passes are enough.
        ready: Collection[object] = getattr(asyncio.get_running_loop(), "_ready", (None,))
        for _ in range(_PASSES):
            await asyncio.sleep(0)
            if not ready:
                return

    async def until_done(self, work: Awaitable[T]) -> T:
        """What the work gives; time goes on as soon as nothing else happens."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await self.settle()
            if not task.done():
                self._wake_next()
        return task.result()

    async def go_on(self, seconds: float) -> None:
        """Let that much time pass."""
        end = self._now + seconds
        await self.settle()
        while (at := self._next()) is not None and at <= end:
            self._wake_next()
            await self.settle()
        self._now = end
        await self.settle()

    def _next(self) -> float | None:
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    def _wake_next(self) -> None:
        assert self._next() is not None, "every task waits, and none of them for time"
        at, _, signal = heapq.heappop(self._sleepers)
        self._now = max(self._now, at)
        signal.set_result(None)
