"""Step caches without a file: one in memory, and one that keeps nothing."""

from __future__ import annotations

from attrs import frozen

from minions.adapters.stores.step_cache_bounds import MAX_BYTES, CacheBounds, as_json
from minions.contracts.step_cache import CachedStep, StepCache


@frozen
class _SizedEntry:
    entry: CachedStep
    size: int


class MemoryStepCache(StepCache):
    """Gone with the process. Evicts the least recently used entries, exactly and at once."""

    def __init__(self, *, max_entries: int = 10_000, max_bytes: int = MAX_BYTES) -> None:
        """Start empty.

        Args:
            max_entries: The most entries that are kept.
            max_bytes: The most bytes that their outputs have, as JSON.
        """
        self._bounds = CacheBounds(max_entries, max_bytes)
        self._entries: dict[str, _SizedEntry] = {}
        self._bytes = 0

    async def get(self, key: str) -> CachedStep | None:
        """As the contract says; the entry counts as used."""
        found = self._entries.pop(key, None)
        if found is None:
            return None
        self._entries[key] = found
        return found.entry

    async def put(self, key: str, entry: CachedStep) -> None:
        """As the contract says."""
        self._forget(key)
        size = len(as_json(entry.output))
        if not self._bounds.has_room_for(size):
            return
        self._entries[key] = _SizedEntry(entry, size)
        self._bytes += size
        while not self._bounds.hold(len(self._entries), self._bytes):
            self._forget(next(iter(self._entries)))

    async def clear(self) -> int:
        """As the contract says."""
        count = len(self._entries)
        self._entries.clear()
        self._bytes = 0
        return count

    def _forget(self, key: str) -> None:
        if (found := self._entries.pop(key, None)) is not None:
            self._bytes -= found.size


class NoStepCache(StepCache):
    """For who wants every step done."""

    async def get(self, key: str) -> CachedStep | None:
        """Nothing."""

    async def put(self, key: str, entry: CachedStep) -> None:
        """Nothing."""
