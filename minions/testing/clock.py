"""A clock that only moves when it is advanced."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from minions.contracts.runtime import Clock

__all__ = ["FakeClock"]

_START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock(Clock):
    """Starts at 2026-01-01T00:00Z; `sleep` can be passed wherever a `Sleep` is expected."""

    def __init__(self) -> None:
        self._elapsed = timedelta()

    def now(self) -> datetime:
        """The start plus the time that was advanced."""
        return _START + self._elapsed

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._elapsed.total_seconds()

    def advance(self, seconds: float) -> None:
        """Advance the clock.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds} seconds")
        self._elapsed += timedelta(seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        """Advance the clock instead of waiting, and let other tasks run once."""
        self.advance(seconds)
        await asyncio.sleep(0)
