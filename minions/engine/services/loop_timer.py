"""One timer for everything that is due again and again in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias

Due: TypeAlias = Callable[[], None]
"""Is called at each interval, in the event loop; must return at once."""
_Timer: TypeAlias = tuple[asyncio.AbstractEventLoop, float]
"""An event loop, and seconds between two calls."""


class LoopTimer:
    """Calls what is registered, with one timer per event loop however much is registered there.

    The time is that of the event loop, not of an injected clock. Several threads may use it, each
    with an event loop of its own.
    """

    def __init__(self) -> None:
        """No timer runs as long as nothing is registered."""
        self._due: dict[_Timer, set[Due]] = {}

    def of_running_loop(self, interval_s: float) -> set[Due]:
        """What the timer of the running event loop calls: add to it, discard from it.

        Args:
            interval_s: Seconds between two calls; the first one comes earlier where something else
                is registered with the same interval.
        """
        timer = (asyncio.get_running_loop(), interval_s)
        due = self._due.get(timer)
        if due is None:
            for each in list(self._due):
                if each[0].is_closed():
                    self._due.pop(each, None)
            due = self._due[timer] = set()
            timer[0].call_later(interval_s, self._call, timer)
        return due

    def _call(self, timer: _Timer) -> None:
        due = self._due.get(timer)
        if not due:
            self._due.pop(timer, None)
            return
        loop, interval_s = timer
        loop.call_later(interval_s, self._call, timer)
        for each in tuple(due):
            each()
