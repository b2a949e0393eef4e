"""The calls that wait for one server, in the order in which they are served."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Collection, Iterator
from typing import Final, TypeVar

from minions.contracts.calls import ModelFailure
from minions.contracts.flow import CallAsk, Priority
from minions.engine.services.flow.endpoint_limiter import Ticket
from minions.engine.services.flow.model_pace import ModelPace

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

    __slots__ = (
        "ask",
        "down_since",
        "is_gone",
        "is_new",
        "joined_at",
        "outcome",
        "pace",
        "signal",
        "timer",
        "timer_at",
        "tokens",
        "told_until",
    )  # fmt: skip

    def __init__(
        self, ask: CallAsk, pace: ModelPace, joined_at: float, tokens: int, *, is_new: bool
    ) -> None:
        self.ask = ask
        self.pace = pace
        self.joined_at = joined_at
        self.is_new = is_new
        """Whether no attempt at the call was made yet."""
        self.tokens = tokens
        self.told_until = 0.0
        """Until when it was told that it waits at least."""
        self.down_since: float | None = None
        """Since when it waits because the circuit is open; None: it does not."""
        self.signal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.outcome: Ticket | ModelFailure | None = None
        """What it gets; None: it still waits."""
        self.is_gone = False
        self.timer_at = 0.0
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


def _by_refusals(entry: tuple[float, bool, int, Waiter]) -> tuple[bool, int, float, int]:
    """Where a server refuses calls, not always the same ones find out whether it still does: the
    reason may be their own.
    """
    rank, _, number, waiter = entry
    return waiter.is_gone, waiter.pace.refused_in_row(waiter.ask.history), rank, number


class WaitingLine:
    """By priority, then in the order of asking; who waits long enough goes before all others.

    Calls of each model have an order of their own: where one model's wait, those of others begin.
    """

    def __init__(self) -> None:
        self._heaps: dict[ModelPace, list[tuple[float, bool, int, Waiter]]] = {}
        self._count = 0
        self._added = 0
        self._by_priority = dict.fromkeys(Priority, 0)

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    def __iter__(self) -> Iterator[Waiter]:
        """Those who wait, in no particular order."""
        for heap in self._heaps.values():
            for _, _, _, waiter in heap:
                if not waiter.is_gone:
                    yield waiter

    def up_to(self, priority: Priority) -> int:
        """How many of that priority or a higher one wait."""
        return sum(count for each, count in self._by_priority.items() if each <= priority)

    def add(self, waiter: Waiter) -> None:
        """Join the line."""
        asked_at = waiter.ask.history.asked_at
        rank = (waiter.joined_at if asked_at is None else asked_at) - _HEAD_START_S[
            waiter.ask.priority
        ]
        self._added += 1
        self._count += 1
        self._by_priority[waiter.ask.priority] += 1
        # A retry goes before what asked at the same time.
        entry = (rank, waiter.is_new, self._added, waiter)
        heapq.heappush(self._heaps.setdefault(waiter.pace, []), entry)

    def head(self, without: Collection[ModelPace] = ()) -> Waiter | None:
        """Who is served next, of other models than these; None: nobody waits."""
        first: tuple[float, bool, int, Waiter] | None = None
        for pace in tuple(self._heaps):
            heap = self._heaps[pace]
            while heap and heap[0][3].is_gone:
                heapq.heappop(heap)
            if not heap:
                del self._heaps[pace]
            elif pace not in without and (first is None or heap[0] < first):
                first = heap[0] if not pace.is_refusing else min(heap, key=_by_refusals)
        return None if first is None else first[3]

    def leave(self, waiter: Waiter) -> None:
        """Leave the line, from any place."""
        if waiter.is_gone:
            return
        waiter.is_gone = True
        self._count -= 1
        self._by_priority[waiter.ask.priority] -= 1
        heap = self._heaps[waiter.pace]
        if len(heap) > 2 * self._count + 16:  # most of them are gone
            heap[:] = [entry for entry in heap if not entry[3].is_gone]
            heapq.heapify(heap)
