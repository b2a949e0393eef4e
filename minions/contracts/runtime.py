"""Everything nondeterministic, as values that are handed in: a seed then replays a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Protocol, TypeAlias

__all__ = ["Clock", "Ids", "IsWorkerGone", "Log", "Random", "Sleep"]


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


class Log(Protocol):
    """What the engine needs of a structured logger (structlog's bound loggers fit)."""

    def info(self, event: str, /, **facts: object) -> None:
        """A stable snake_case name and facts."""

    def warning(self, event: str, /, **facts: object) -> None:
        """The same, for what someone should look at."""
