"""Saved values and cached outputs of an encrypted journal, over the stores of its database."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final

from attrs import evolve

from minions.adapters.stores.body_cipher import BodyCipher, is_sealed
from minions.adapters.stores.memory_stores import RESERVED, SIGNED_HEADS, StateStore, as_json
from minions.contracts.steps import CachedStep, StepCache

_FIGURES: Final = (f"{RESERVED}budget:", SIGNED_HEADS)
"""Values under keys that begin so are amounts, which are not encrypted."""


class SealedState(StateStore):
    """Encrypts values; keys stay readable, and so do the amounts of budgets and signed heads."""

    def __init__(self, inner: StateStore, cipher: BodyCipher) -> None:
        """No I/O here.

        Args:
            inner: Stores what is encrypted; this object closes it.
        """
        self._inner = inner
        self._cipher = cipher

    async def put(self, key: str, text: str) -> None:
        """As the contract says."""
        await self._inner.put(key, self._sealed(key, text))

    async def get(self, key: str) -> str | None:
        """As the contract says; a value from before the journal was encrypted is read, too.

        Raises:
            JournalError: `journal-key-missing`, `journal-key-wrong`.
        """
        return self._opened(key, await self._inner.get(key))

    async def keys(self, start: str = "") -> Sequence[str]:
        """As the contract says."""
        return await self._inner.keys(start)

    async def replace(self, key: str, known: str | None, text: str) -> bool:
        """As the contract says: what is compared is the value that was read."""
        stored = await self._inner.get(key)
        if self._opened(key, stored) != known:
            return False
        return await self._inner.replace(key, stored, self._sealed(key, text))

    async def remove(self, key: str) -> None:
        """As the contract says."""
        await self._inner.remove(key)

    async def aclose(self) -> None:
        """Close the inner store."""
        await self._inner.aclose()

    async def rewrite(self) -> int:
        """Encrypt all values under the first key; how many were not."""
        count = 0
        for key in await self._inner.keys():
            stored = await self._inner.get(key)
            text = self._opened(key, stored)
            if text is None or stored is None or key.startswith(_FIGURES):
                continue
            if not self._cipher.is_current(stored.encode("utf-8", "surrogatepass")):
                count += await self._inner.replace(key, stored, self._sealed(key, text))
        return count

    def _sealed(self, key: str, text: str) -> str:
        return text if key.startswith(_FIGURES) else self._cipher.seal(text, "state", key)

    def _opened(self, key: str, stored: str | None) -> str | None:
        if stored is None or not is_sealed(stored):
            return stored
        text = self._cipher.open(stored.encode(), "state", key)
        return text.decode("utf-8", "surrogatepass")


class SealedStepCache(StepCache):
    """Encrypts outputs, and hides keys: equal work has another key in another journal.

    What was cached under an earlier key, or before the journal was encrypted, is not found.
    """

    def __init__(self, inner: StepCache, cipher: BodyCipher) -> None:
        """No I/O here.

        Args:
            inner: Stores what is encrypted; this object closes it.
        """
        self._inner = inner
        self._cipher = cipher

    async def get(self, key: str) -> CachedStep | None:
        """As the contract says.

        Raises:
            JournalError: `journal-key-wrong`.
        """
        name = self._cipher.name_of(key)
        found = await self._inner.get(name)
        if found is None or not isinstance(found.output, str):
            return None
        text = self._cipher.open(found.output.encode(), "cache", name)
        try:
            return evolve(found, output=json.loads(text))
        except (ValueError, RecursionError):
            return None

    async def put(self, key: str, entry: CachedStep) -> None:
        """As the contract says."""
        name = self._cipher.name_of(key)
        sealed = self._cipher.seal(as_json(entry.output), "cache", name)
        await self._inner.put(name, evolve(entry, output=sealed))

    async def forget_runs(self, run_ids: Collection[str]) -> int:
        """As the contract says."""
        return await self._inner.forget_runs(run_ids)

    async def clear(self) -> int:
        """As the contract says."""
        return await self._inner.clear()

    async def aclose(self) -> None:
        """Close the inner store."""
        await self._inner.aclose()
