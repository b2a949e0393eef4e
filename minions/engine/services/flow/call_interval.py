"""How far apart a server takes calls that limits calls over time, as a state machine without a
clock of its own.

A limit on calls in flight refuses one more until another has ended. A server that takes one more
although as many are in flight as it refused before limits them over time: then calls begin at equal
intervals, however many are in flight. The interval is measured between two refusals, made a little
shorter after some calls that were taken, and longer again after a refusal.
"""

from __future__ import annotations

import math
from typing import Final

_SHORTER: Final = (0.85, 0.96)
"""What is left of an interval when a shorter one is tried: before one was too short, and after."""
_BOLDER: Final = 1.5
"""By which power that part changes after a shorter interval that was long enough."""
_LONGER: Final = 1.02
"""By what it grows when a call was refused that did not try a shorter one."""
_FIRST_PART: Final = 0.04
"""After which part of an interval a refused call is followed by another one."""
_GROWTH: Final = 1.5
"""By what each further such part grows."""
_MEASURED_AGAIN: Final = 1.3
"""Times an interval after which the first call that is taken again says how long it is."""
_RARELY: Final = 5
"""The most refusals in a row that come from an interval that is a little too short."""
_MOST_LONGER: Final = 4
"""How often the part by which it grows doubles while one is too short after another."""
_MOST_TAKEN: Final = 32
"""The most calls that are taken before a shorter interval is tried."""
_LOST_AFTER: Final = 4.0
"""Intervals without a call that was taken after which no interval is known any more."""


class CallInterval:
    """The interval between calls to one model. The time is handed to each method."""

    def __init__(self, refused_at: float, taken: int, taken_at: float) -> None:
        """It is not measured yet: calls follow one another until one is refused.

        Args:
            refused_at: When the server refused a call last, in seconds of the clock.
            taken: Calls that it took since then, the last of which began at `taken_at`.
        """
        self._seconds: float | None = None
        self._measured_from = refused_at
        self._taken = taken
        self._taken_at = taken_at
        self._tried = 0
        """Calls that may be refused, while the interval is measured."""
        self._tried_most = 1
        """Twice as many each time that all of them were taken."""
        self._newest_at: float | None = None
        """When the newest call began, as long as it may be refused; None: it was."""
        self._newest_after_s = math.inf
        """After which interval it began."""
        self._next_at = taken_at
        self._refused_at = refused_at
        self._refused_in_row = 0
        self._begun = 0
        """Calls that began since one was refused."""
        self._is_said = False
        self._long_enough_s = math.inf
        """The shortest interval after which a call was taken, less what was refused since."""
        self._shorter = _SHORTER[0]
        self._shortened = 0
        """How often it was made shorter since a call was refused."""
        self._lengthened = 0
        """How often it was made longer since a call was taken after it."""
        self._needed = self._left = 1
        """Calls that are taken before a shorter one is tried, and how many of them are left."""

    @property
    def is_late(self) -> bool:
        """Whether calls were refused at times at which the server should have taken one."""
        return self._refused_in_row > _RARELY

    def free_at(self, now: float, sure_s: float) -> float:
        """When the next call may begin.

        Args:
            sure_s: Seconds after which a call that was not refused is taken.
        """
        if self._seconds is None and self._tried >= self._tried_most:
            sure_at = self._taken_at + sure_s
            if now < sure_at:
                return sure_at
            self._taken += self._tried
            self._tried, self._tried_most = 0, 2 * self._tried_most
        return max(now, self._next_at)

    def begin(self, now: float) -> None:
        """A call begins."""
        if self._seconds is None:
            self._tried += 1
            self._taken_at = now
        else:
            self._begun += 1
            after_s = self._seconds
            if self._newest_at is not None:
                self._note_taken(self._newest_at, self._newest_after_s)
            self._newest_after_s = after_s
            self._next_at = now + self._seconds
        self._newest_at = now

    def _note_taken(self, begun_at: float, seconds: float) -> None:
        gap_s, self._taken_at = begun_at - self._taken_at, begun_at
        if self._refused_in_row:
            self._refused_in_row = 0
            if gap_s > seconds * _MEASURED_AGAIN and not self._is_said:
                self._seconds = self._long_enough_s = gap_s
            return
        self._lengthened = 0
        if seconds < self._long_enough_s < math.inf:
            self._shortened += 1
            self._needed = max(1, self._needed // 2)
            if self._shortened > 1:
                self._shorter = max(_SHORTER[0], self._shorter**_BOLDER)
        self._long_enough_s = min(self._long_enough_s, seconds)
        self._left -= 1
        if self._left <= 0:
            self._seconds, self._left = self._long_enough_s * self._shorter, self._needed

    def leave_out(self, begun_at: float) -> None:
        """The call that began then was refused for a reason of its own."""
        if begun_at == self._newest_at:
            self._newest_at = None

    def refused(self, begun_at: float, now: float, *, is_said: bool) -> bool:
        """A call that began then was refused.

        Args:
            is_said: Whether the server said when to ask again.

        Returns:
            Whether the interval still says when the next one may begin.
        """
        if self._seconds is None:
            taken = self._taken + self._tried - 1
            self._seconds = (now - self._measured_from) / max(1, taken)
            self._next_at = max(now, self._taken_at + self._seconds)
        elif begun_at > self._refused_at:  # else it was under way with the one before
            if not self._refused_in_row:
                self._lengthen(self._newest_after_s)
                if is_said:
                    self._needed = self._left = max(self._needed, _MOST_TAKEN)
                apart_s = (now - self._refused_at) / max(1, self._begun)
                if is_said and apart_s > self._seconds * _MEASURED_AGAIN:
                    apart_s = min(apart_s, self._seconds * _LOST_AFTER)
                    self._seconds = self._long_enough_s = math.sqrt(self._seconds * apart_s)
            self._begun = 0
            self._refused_in_row += 1
            self._is_said = is_said
            part = _FIRST_PART * _GROWTH ** min(self._refused_in_row - 1, 20)
            self._next_at = now + self._seconds * part
        self._refused_at, self._newest_at = now, None
        return now <= self._taken_at + _LOST_AFTER * self._seconds

    def _lengthen(self, seconds: float) -> None:
        if seconds < self._long_enough_s < math.inf:
            self._seconds = self._long_enough_s
            self._shorter = _SHORTER[1]
        else:
            self._seconds = self._long_enough_s = seconds * _LONGER**2**self._lengthened
            self._lengthened = min(self._lengthened + 1, _MOST_LONGER)
        self._needed = self._left = min(2 * self._needed, _MOST_TAKEN)
        self._shortened = 0
