"""One lock for each run: who decides about a run sees what was decided just before."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class RunLocks:
    """Locks by the id of their run, which exist as long as somebody uses them."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, run_id: str) -> asyncio.Lock:
        """The lock of that run."""
        return self._locks.setdefault(run_id, asyncio.Lock())
