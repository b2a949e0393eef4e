"""The cache of results of agent steps: bounded, of successes only."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from typing import TypeVar

from minions.data.codec import encode

K = TypeVar("K")
V = TypeVar("V")


class LRUCache(MutableMapping[K, V]):
    """A mapping that forgets the entry which was not used for the longest time."""

    def __init__(self, maxsize: int = 100) -> None:
        """Keep at most `maxsize` entries."""
        self.maxsize = maxsize
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __getitem__(self, key: K) -> V:
        value = self._entries[key]
        self._entries.move_to_end(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self.maxsize:
            self._entries.popitem(last=False)

    def __delitem__(self, key: K) -> None:
        del self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def cache_key(*parts: object) -> str | None:
    """64 hex digits made of the parts; None: one of them is not JSON, so that equality of two
    values cannot be told.
    """
    try:
        text = json.dumps(encode(list(parts)), sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()
