"""The calls that wait for one server, in the order in which they are served."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator
from typing import Final, TypeVar

from minions.contracts.calls import ModelFailure
from minions.contracts.flow import CallAsk, Priority
from minions.engine.services.flow.endpoint_limiter import Ticket

__all__ = ["Waiter", "WaitingLine", "wake"]

T = TypeVar("T")

_HEAD_START_S: Final = {
    Priority.INTERACTIVE: 60.0,
    Priority.NORMAL: 50.0,
    Priority.BACKGROUND: 0.0,
}
"""How much later a call may come and still go before one of the lowest priority. So that one waits
at most that long for calls of others, however many there are."""


class Waiter:
    """A call that waits."""

    __slots__ = ("ask", "asked_at", "is_gone", "outcome", "signal", "timer", "tokens")

    def __init__(self, ask: CallAsk, asked_at: float, tokens: int) -> None:
        self.ask = ask
        self.asked_at = asked_at
        self.tokens = tokens
        self.signal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.outcome: Ticket | ModelFailure | None = None
        """What it gets; None: it still waits."""
        self.is_gone = False
        self.timer: asyncio.Task[None] | None = None
        """Wakes the line when its head may begin; None: that is no matter of time."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that it waits on."""
        return self.signal.get_loop()

    def decide(self, outcome: Ticket | ModelFailure) -> None:
        """Give it that outcome, and wake it."""
        self.outcome = outcome
        wake(self.signal)


def wake(signal: asyncio.Future[None]) -> None:
    """Wake whoever awaits it, on its own event loop. The loop must not be closed."""
    loop = signal.get_loop()
    if loop is asyncio._get_running_loop():  # noqa: SLF001  # public by its documentation; None instead of an error
        _set(signal)
    else:
        loop.call_soon_threadsafe(_set, signal)


def _set(signal: asyncio.Future[None]) -> None:
    if not signal.done():
        signal.set_result(None)


class WaitingLine:
    """By priority, then in the order of asking; who waits long enough goes before all others."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, bool, int, Waiter]] = []
        self._count = 0
        self._added = 0
        self._by_priority = dict.fromkeys(Priority, 0)

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    def __iter__(self) -> Iterator[Waiter]:
        """Those who wait, in no particular order."""
        return (waiter for _, _, _, waiter in self._heap if not waiter.is_gone)

    def up_to(self, priority: Priority) -> int:
        """How many of that priority or a higher one wait."""
        return sum(count for each, count in self._by_priority.items() if each <= priority)

    def add(self, waiter: Waiter) -> None:
        """Join the line."""
        rank = waiter.asked_at - _HEAD_START_S[waiter.ask.priority]
        self._added += 1
        self._count += 1
        self._by_priority[waiter.ask.priority] += 1
        is_new = waiter.ask.asked_at is None  # a retry goes before what asked at the same time
        heapq.heappush(self._heap, (rank, is_new, self._added, waiter))

    def head(self) -> Waiter | None:
        """Who is served next; None: nobody waits."""
        while self._heap and self._heap[0][3].is_gone:
            heapq.heappop(self._heap)
        return self._heap[0][3] if self._heap else None

    def leave(self, waiter: Waiter) -> None:
        """Leave the line, from any place."""
        if waiter.is_gone:
            return
        waiter.is_gone = True
        self._count -= 1
        self._by_priority[waiter.ask.priority] -= 1
        if len(self._heap) > 2 * self._count + 16:  # most of them are gone
            self._heap = [entry for entry in self._heap if not entry[3].is_gone]
            heapq.heapify(self._heap)
