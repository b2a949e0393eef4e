"""Everything nondeterministic, as values that are handed in: a seed then replays a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from minions.contracts.messages import TokenUsage

__all__ = ["Clock", "Ids", "IsWorkerGone", "Log", "PriceBook", "Random", "Sleep"]


class Clock(ABC):
    """Time of day and elapsed time."""

    @abstractmethod
    def now(self) -> datetime:
        """Time of day in UTC, with its zone."""

    @abstractmethod
    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""


Sleep: TypeAlias = Callable[[float], Awaitable[None]]
"""Waits that many seconds; cancellation passes through at once."""

Random: TypeAlias = Callable[[], float]
"""The next number in [0, 1)."""

Ids: TypeAlias = Callable[[str], str]
"""A new id with that prefix: `ids("run")` gives `run_…`."""

IsWorkerGone: TypeAlias = Callable[[str], bool]
"""Whether the worker of that name is known to be dead. What cannot be known is False."""


class PriceBook(ABC):
    """What model calls cost. It asks nobody: a price is known here or it is not."""

    @abstractmethod
    def cost_usd(
        self, model: str, usage: TokenUsage, *, at: datetime, base_url: str | None = None
    ) -> float | None:
        """US dollars for these tokens; None where the price is not known, never 0 for that.

        Microseconds for a model that was asked about before.

        Args:
            model: `provider/name`, as it was configured.
            at: When the call was made, with its zone: prices change.
            base_url: Of the server that answers; None: the provider's own.
        """

    def context_tokens(self, model: str, *, base_url: str | None = None) -> int | None:
        """The longest prompt that the model takes, in tokens; None: not known."""
        return None

    def expect(self, model: str, *, base_url: str | None = None) -> None:
        """That model is about to be asked: load meanwhile what its price needs. Returns at once."""


class Log(Protocol):
    """What the engine needs of a structured logger (structlog's bound loggers fit)."""

    def info(self, event: str, /, **facts: object) -> None:
        """A stable snake_case name and facts."""

    def warning(self, event: str, /, **facts: object) -> None:
        """The same, for what someone should look at."""
