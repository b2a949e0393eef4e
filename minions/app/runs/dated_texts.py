"""Texts beside the journal that are listed by time: which batches and evaluations there are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from minions.adapters.stores.memory_stores import RESERVED, StateStore

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = 10**15
"""Seconds since 1970 that nothing is dated: keys are sorted by what is left until then."""


class DatedTexts:
    """The texts of one kind, the newest first."""

    def __init__(self, state: StateStore, kind: str) -> None:
        """Nothing is read yet.

        Args:
            state: The texts beside the journal.
            kind: What they are about, as keys begin: `batch`.
        """
        self._state = state
        self._start = f"{RESERVED}{kind}:"
        self._places = f"{RESERVED}{kind}-place:"

    async def put(self, name: str, at: datetime, text: str) -> None:
        """Store the text of that name in place of an earlier one, whose time stays.

        Raises:
            JournalError: The database cannot be used.
        """
        left = _LAST - int((at - _EPOCH) / timedelta(seconds=1))
        key = await self._state.get(self._places + name) or f"{self._start}{left:015}:{name}"
        await self._state.put(key, text)
        await self._state.put(self._places + name, key)

    async def page(self, limit: int, offset: int) -> tuple[Sequence[tuple[str, str]], int]:
        """A part of the names with their texts, and how many there are.

        Raises:
            JournalError: The database cannot be used.
        """
        keys = await self._state.keys(self._start)
        found = [(key, await self._state.get(key)) for key in keys[offset : offset + limit]]
        named = [(key.rpartition(":")[2], text) for key, text in found if text is not None]
        return named, len(keys)

    async def find(self, name: str) -> str | None:
        """The text of that name; None: there is none.

        Raises:
            JournalError: The database cannot be used.
        """
        key = await self._state.get(self._places + name)
        return None if key is None else await self._state.get(key)
