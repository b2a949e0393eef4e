"""State and step caches in memory; what they hold at most, caches in files do, too."""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from attrs import field, frozen, mutable
from attrs.validators import ge
from msgspec import Struct

from minions.contracts.budgets import BudgetStore
from minions.contracts.steps import CachedStep, StepCache
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue

RESERVED: Final = "minions:"
"""The first part of the keys of Minions itself; tools neither see nor set them."""
SIGNED_HEADS: Final = f"{RESERVED}head:"
"""The first part of the keys of signed heads of sessions, which are not encrypted."""


def head_key(session_id: str) -> str:
    """The key of the signed head of a session; it says nothing of the session's name."""
    digest = hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{SIGNED_HEADS}{digest}"


def behind(start: str) -> str:
    """The first text behind all that begin with `start`, which is not empty."""
    return start[:-1] + chr(ord(start[-1]) + 1)


class StateStore(BudgetStore):
    """Texts by key, shared by every recipe of one store."""

    @abstractmethod
    async def put(self, key: str, text: str) -> None:
        """Keep `text` in place of what was there; kept when this returns."""

    @abstractmethod
    async def get(self, key: str) -> str | None:
        """What was put last, by any process; None where nothing was."""

    @abstractmethod
    async def keys(self, start: str = "") -> Sequence[str]:
        """Those that begin so, sorted; costs as much as there are of them."""

    async def replace(self, key: str, known: str | None, text: str) -> bool:
        """As the contract says, as long as one process alone uses the store: this one looks, and
        then puts. A store of several processes overrides it.
        """
        if await self.get(key) != known:
            return False
        await self.put(key, text)
        return True

    @abstractmethod
    async def remove(self, key: str) -> None:
        """Forget what was put; does nothing where nothing was."""

    @abstractmethod
    async def aclose(self) -> None:
        """Give back what is held; a later call takes it again."""


class MemoryState(StateStore):
    """Gone with the process."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    async def put(self, key: str, text: str) -> None:
        """As the contract says."""
        self._texts[key] = text

    async def get(self, key: str) -> str | None:
        """As the contract says."""
        return self._texts.get(key)

    async def keys(self, start: str = "") -> Sequence[str]:
        """As the contract says."""
        return sorted(key for key in self._texts if key.startswith(start))

    async def remove(self, key: str) -> None:
        """As the contract says."""
        self._texts.pop(key, None)

    def clear(self) -> None:
        """Forget all of it."""
        self._texts.clear()

    async def aclose(self) -> None:
        """Nothing is held."""


MAX_ENTRIES: Final = 100_000
MAX_BYTES: Final = 256 * 2**20

TOUCHED_AFTER: Final = timedelta(hours=1)
"""A hit is noted in a database if the last noted one is older: most hits write nothing."""

EVICTED_AT_ONCE: Final = 1_000
"""More than a schedule lets in between two evictions: a cache that was too large gets smaller,
and no single put takes long."""

Now: TypeAlias = Callable[[], datetime]
"""The time of day in UTC."""

_PUTS_BETWEEN: Final = 256


def utc_now() -> datetime:
    """The system's time of day."""
    return datetime.now(UTC)


def as_json(output: JsonValue) -> str:
    """An output as it is stored: JSON in ASCII, so that its length is its size in bytes."""
    return json.dumps(output)


@frozen
class CacheBounds(FieldsRepr):
    """The most that a cache holds."""

    max_entries: int = field(default=MAX_ENTRIES, validator=ge(1))
    max_bytes: int = field(default=MAX_BYTES, validator=ge(1))
    """Of the outputs, as JSON."""

    def hold(self, entries: int, size: int) -> bool:
        """Whether so many entries of so many bytes in all are within both."""
        return entries <= self.max_entries and size <= self.max_bytes

    def has_room_for(self, size: int) -> bool:
        """Whether an output of so many bytes fits at all; one that does not would evict all."""
        return size <= self.max_bytes


@mutable(eq=False, repr=False)
class EvictionSchedule:
    """When a process looks whether its database holds too much: with its first put, and then often
    enough to exceed a bound by a sixteenth at most.
    """

    bounds: CacheBounds
    _puts: int | None = field(default=None, init=False)
    _bytes: int = field(default=0, init=False)

    def is_due(self, size: int) -> bool:
        """Count a put of so many bytes; whether to evict after it."""
        is_first = self._puts is None
        self._puts, self._bytes = (self._puts or 0) + 1, self._bytes + size
        most = min(_PUTS_BETWEEN, self.bounds.max_entries // 16)
        if not is_first and self._puts < most and self._bytes < self.bounds.max_bytes // 16:
            return False
        self._puts = self._bytes = 0
        return True


class _SizedEntry(Struct, frozen=True):
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

    async def forget_runs(self, run_ids: Collection[str]) -> int:
        """As the contract says. Looks at all of them."""
        found = [key for key, each in self._entries.items() if each.entry.run_id in run_ids]
        for key in found:
            self._forget(key)
        return len(found)

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
