"""Step caches without a file: one in memory, and one that keeps nothing."""

from __future__ import annotations

from minions.contracts.step_cache import CachedStep, StepCache

__all__ = ["MemoryStepCache", "NoStepCache"]


class MemoryStepCache(StepCache):
    """Gone with the process."""

    def __init__(self) -> None:
        self._entries: dict[str, CachedStep] = {}

    async def get(self, key: str) -> CachedStep | None:
        """As the contract says."""
        return self._entries.get(key)

    async def put(self, key: str, entry: CachedStep) -> None:
        """As the contract says."""
        self._entries[key] = entry

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
