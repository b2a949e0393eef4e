"""Step caches without a file: one in memory, and one that keeps nothing."""

from __future__ import annotations

from minions.contracts.step_cache import CachedStep, StepCache

__all__ = ["MemoryStepCache", "NoStepCache"]


class MemoryStepCache(StepCache):
    """Gone with the process. Of too many entries it forgets the least recently used."""

    def __init__(self, *, most: int = 10_000) -> None:
        """Start empty.

        Args:
            most: The most entries that are kept.
        """
        self._entries: dict[str, CachedStep] = {}
        self._most = most

    async def get(self, key: str) -> CachedStep | None:
        """As the contract says; the entry counts as used."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._entries[key] = entry
        return entry

    async def put(self, key: str, entry: CachedStep) -> None:
        """As the contract says."""
        self._entries.pop(key, None)
        self._entries[key] = entry
        if len(self._entries) > self._most:
            del self._entries[next(iter(self._entries))]

    async def clear(self) -> int:
        """As the contract says."""
        count = len(self._entries)
        self._entries.clear()
        return count


class NoStepCache(StepCache):
    """For who wants every step done."""

    async def get(self, key: str) -> CachedStep | None:
        """Nothing."""

    async def put(self, key: str, entry: CachedStep) -> None:
        """Nothing."""
