"""Where recipes keep values from one run to the next: the contract, and the one in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

RESERVED: Final = "minions:"
"""The first part of the keys of Minions itself; tools neither see nor set them."""


def behind(start: str) -> str:
    """The first text behind all that begin with `start`, which is not empty."""
    return start[:-1] + chr(ord(start[-1]) + 1)


class StateStore(ABC):
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
