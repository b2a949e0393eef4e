"""The cache of step outputs: looked up by a hash of everything that the output depends on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime

from attrs import frozen

from minions.data.json_values import JsonValue


@frozen(kw_only=True)
class CachedStep:
    """The cached output of a step that COMPLETED."""

    output: JsonValue
    run_id: str
    """The run that executed the step."""
    created_at: datetime
    """When the output was stored, in UTC."""


class StepCache(ABC):
    """Step outputs by a hash of everything they depend on; shared by runs, recipes and
    processes.

    A cache may forget any entry at any time, and a run works without it.
    """

    @abstractmethod
    async def get(self, key: str) -> CachedStep | None:
        """The entry last stored under that key; None: there is none.

        Raises:
            JournalError: The cache cannot be read now; the step is then executed.
        """

    @abstractmethod
    async def put(self, key: str, entry: CachedStep) -> None:
        """Store `entry`, replacing an earlier one.

        Args:
            key: 64 hex digits.
        Raises:
            JournalError: The cache cannot be written now; nothing was stored.
        """

    async def clear(self) -> int:
        """Delete all entries; returns their number.

        Raises:
            JournalError: The cache cannot be written now; nothing was deleted.
        """
        return 0

    async def aclose(self) -> None:
        """Close files and connections; a later call opens them again."""
