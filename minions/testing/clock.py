"""A clock that moves only when it is told to."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from minions.contracts.runtime import Clock

__all__ = ["FakeClock"]

_START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock(Clock):
    """Starts at 2026-01-01T00:00Z; `sleep` serves wherever a `Sleep` is wanted."""

    def __init__(self) -> None:
        self._elapsed = timedelta()

    def now(self) -> datetime:
        """The start and all that was advanced since."""
        return _START + self._elapsed

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._elapsed.total_seconds()

    def advance(self, seconds: float) -> None:
        """Let that much time pass at once.

        Raises:
            ValueError: Time that goes back.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds} seconds")
        self._elapsed += timedelta(seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        """Advance the clock instead of waiting, and let the other tasks run once."""
        self.advance(seconds)
        await asyncio.sleep(0)
