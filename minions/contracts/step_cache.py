"""What unchanged steps gave before: the contract of the one store of outputs by content."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime

from attrs import frozen

from minions.contracts.json_values import JsonValue

__all__ = ["CachedStep", "StepCache"]


@frozen(kw_only=True)
class CachedStep:
    """The output of a step that COMPLETED."""

    output: JsonValue
    run_id: str
    """Of the run that did the work."""
    created_at: datetime
    """UTC."""


class StepCache(ABC):
    """Outputs under a hash of all that they rest on; shared by runs, recipes and processes.

    A cache is no memory: it may forget at any time, and a run goes on without it.
    """

    @abstractmethod
    async def get(self, key: str) -> CachedStep | None:
        """What was put last under that key; None where nothing is.

        Raises:
            JournalError: It cannot be read now; the step is then done.
        """

    @abstractmethod
    async def put(self, key: str, entry: CachedStep) -> None:
        """Keep `entry` in place of what was there.

        Args:
            key: 64 hex digits.
        Raises:
            JournalError: It cannot be written now; nothing was kept.
        """

    async def clear(self) -> int:
        """Forget everything; how many outputs that were.

        Raises:
            JournalError: It cannot be written now; nothing was forgotten.
        """
        return 0

    async def aclose(self) -> None:
        """Give back what is held; a later call takes it again."""
