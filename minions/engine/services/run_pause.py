"""A run that ends its execution to wait for a time, or for the answers of a batch, where waiting
would occupy a worker.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

LONGEST_WAIT_S: Final = 30.0
"""Seconds that a worker's run waits for a server in its place."""
LONGEST_PAUSE_S: Final = 86_400.0
"""Seconds for which a run pauses at most: a server that asks for more has refused."""
LOOK_AT_WAVES_S: Final = 300.0
"""Seconds between two looks at whether a run that waits for a batch can continue, if nobody wakes
it."""
_MARGIN: Final = 1.1
"""A closed gate opens up to a tenth later than the server asked for."""


class RunPause:
    """Until when one execution of a run pauses. Its worker reads that when the execution ended."""

    def __init__(self, longest_wait_s: float = LONGEST_WAIT_S, *, parks: bool = False) -> None:
        """Nothing pauses yet.

        Args:
            longest_wait_s: Seconds; a model call that has to wait longer pauses the run.
            parks: Whether calls that wait for batches of providers pause the run, too.
        """
        self.longest_wait_s = longest_wait_s
        self.parks = parks
        self.until: datetime | None = None
        """The first time at which a step can continue; None: no step waits for a time."""
        self.waves: list[str] = []
        """The waves of model calls whose answers steps wait for."""
        self._looks_at: datetime | None = None

    @property
    def again_at(self) -> datetime | None:
        """When the run is looked at again; None: it does not pause."""
        times = [each for each in (self.until, self._looks_at) if each is not None]
        return min(times, default=None)

    def is_needed(self, delay_s: float | None) -> bool:
        """Whether a call that can be made after `delay_s` seconds pauses the run."""
        return delay_s is not None and self.longest_wait_s < delay_s <= LONGEST_PAUSE_S

    def add(self, now: datetime, delay_s: float) -> datetime:
        """Note that a step can continue after `delay_s` seconds; returns the time."""
        at = now + timedelta(seconds=delay_s * _MARGIN)
        self.until = at if self.until is None else min(self.until, at)
        return at

    def add_wave(self, wave: str, now: datetime) -> None:
        """Note that a step can continue when the answers of that wave are there."""
        if wave not in self.waves:
            self.waves.append(wave)
        self._looks_at = now + timedelta(seconds=LOOK_AT_WAVES_S)
