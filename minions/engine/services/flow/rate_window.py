"""A limit on how much may happen in any 60 seconds, as a state machine without a clock."""

from __future__ import annotations

import math
from collections import deque
from typing import Final

_GRAIN: Final = 600
"""Parts of the window in which what happens is added up: it bounds the memory of a window."""


class RateWindow:
    """At most so much in any window of time. The time is handed to each method; it never goes back.

    What happens within a 600th of the window counts as if it had happened at the end of that part:
    the limit holds exactly, and what is allowed comes a tenth of a second later at most.
    """

    def __init__(self, most: int, window_s: float = 60.0) -> None:
        """Start with nothing used.

        Args:
            most: How much in any window, at least 1.
        """
        self._most = most
        self._window_s = window_s
        self._grain_s = window_s / _GRAIN
        self._used: deque[list[float]] = deque()
        """Pairs of the end of a part and what was used in it, oldest first."""
        self._sum = 0.0

    def used(self, now: float) -> float:
        """How much was used in the window that ends now."""
        self._forget(now)
        return self._sum

    def free_at(self, now: float, amount: int) -> float:
        """When that amount may be used: `now`, or a later time.

        An amount above the limit is allowed once nothing else is in the window.
        """
        self._forget(now)
        needed = self._sum + min(amount, self._most) - self._most
        if needed <= 0:
            return now
        for end, used in self._used:
            needed -= used
            if needed <= 0:
                return end + self._window_s
        return now + self._window_s

    def use(self, now: float, amount: int) -> float:
        """Note that it is used; returns the part of the window, for `settle`."""
        end = self._end_of_part(now)
        if not self._used or self._used[-1][0] < end:
            self._used.append([end, 0.0])
        self._used[-1][1] += amount
        self._sum += amount
        return self._used[-1][0]

    def settle(self, part: float, correction: int) -> None:
        """Correct what was used in a part; a part that is forgotten stays so."""
        for each in reversed(self._used):
            if each[0] == part:
                correction = max(correction, -int(each[1]))
                each[1] += correction
                self._sum += correction
                return

    def _end_of_part(self, now: float) -> float:
        return (math.floor(now / self._grain_s) + 1) * self._grain_s

    def _forget(self, now: float) -> None:
        while self._used and self._used[0][0] + self._window_s <= now:
            self._sum -= self._used.popleft()[1]
        if not self._used:
            self._sum = 0.0
