"""Everything nondeterministic (clock, random, ids, prices), as values that are handed in.

A test with a fixed seed then repeats a run exactly. `WorkSlices` is of a clock, too: it says when
work has taken long enough for others to have a turn.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from minions.contracts.messages import TokenUsage


class Clock(ABC):
    """Time of day and elapsed time."""

    @abstractmethod
    def now(self) -> datetime:
        """Time of day in UTC, with its zone."""

    @abstractmethod
    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never decreases."""


class SystemClock(Clock):
    """The machine's clock: `datetime.now(UTC)` and `time.monotonic()`, with nothing in between."""

    now = staticmethod(partial(datetime.now, UTC))
    monotonic = staticmethod(time.monotonic)


Sleep: TypeAlias = Callable[[float], Awaitable[None]]
"""Waits that many seconds; cancellation passes through at once."""

Random: TypeAlias = Callable[[], float]
"""The next number in [0, 1)."""

Ids: TypeAlias = Callable[[str], str]
"""A new id with that prefix: `ids("run")` gives `run_…`."""

IsWorkerGone: TypeAlias = Callable[[str], bool]
"""Whether the worker of that name is known to be dead; False where it cannot be known."""

IsWorkerAlive: TypeAlias = Callable[[str], bool]
"""Whether the worker of that name is another process that is known to live; False where it cannot
be known."""


T = TypeVar("T")


class BlockingCalls(ABC):
    """Calls functions that block beside the event loop."""

    @abstractmethod
    async def run(self, function: Callable[[], T]) -> T:
        """What `function()` returns or raises; context variables are those of the caller.

        Cancelled, it leaves the function to itself: a thread cannot be stopped.
        """

    @property
    def running(self) -> int:
        """Functions that run now, in threads."""
        return 0

    @property
    def waiting(self) -> int:
        """Functions that wait for a thread."""
        return 0


class PriceBook(ABC):
    """Prices of model calls. Look-ups only: no request is made,
    and an unknown price stays unknown.
    """

    @abstractmethod
    def cost_usd(
        self, model: str, usage: TokenUsage, *, at: datetime, base_url: str | None = None
    ) -> float | None:
        """The price of these tokens in US dollars; None where it is not known, never 0 for
        that.

        Takes microseconds for a model that was looked up before.

        Args:
            model: `provider/name`, as it was configured.
            at: When the call was made, with its zone: prices change.
            base_url: Base URL of the server that answers; None: the provider's own.
        """

    def batch_cost_usd(
        self, model: str, usage: TokenUsage, *, at: datetime, base_url: str | None = None
    ) -> float | None:
        """The price of these tokens where they were used in a batch of the provider; where no price
        of batches is known, that of other calls, so that a sum is never too low.
        """
        return self.cost_usd(model, usage, at=at, base_url=base_url)

    def context_tokens(self, model: str, *, base_url: str | None = None) -> int | None:
        """The longest prompt that the model takes, in tokens; None: not known."""
        return None

    def expect(self, model: str, *, base_url: str | None = None) -> None:
        """Load in the background what the price of a model needs, before
        it is called. Returns at once.
        """


class Log(Protocol):
    """What the engine needs of a structured logger (structlog's bound loggers fit)."""

    def info(self, event: str, /, **facts: object) -> None:
        """Log an event under a stable snake_case name."""

    def warning(self, event: str, /, **facts: object) -> None:
        """Log an event that someone should look at."""


class WorkSlices:
    """Counts work, and says when a slice of it is full."""

    __slots__ = ("_left", "_most")

    def __init__(self, most: int) -> None:
        """Begin a slice.

        Args:
            most: Units of work in a slice.
        """
        self._most = self._left = most

    def is_over(self, units: int = 1) -> bool:
        """Count work that is about to be done; whether others should work before that."""
        self._left -= units
        if self._left >= 0:
            return False
        self._left = self._most - units
        return True
