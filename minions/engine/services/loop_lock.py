"""Waiting for each other over event loops: those of several threads may share one object.

asyncio's own locks and events belong to one event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from types import TracebackType


class Waiter:
    """A task that waits until any thread wakes it."""

    def __init__(self) -> None:
        """For the running task."""
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()

    async def wait(self) -> None:
        """Until it is woken; at once if it was."""
        await self._future

    def wake(self) -> bool:
        """Let the task continue; False: its event loop is closed, so that it never will."""
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            return False
        return True

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


class LoopLock:
    """As `asyncio.Lock`, in the order of arrival, for tasks of any event loop."""

    def __init__(self) -> None:
        """Nobody holds it."""
        self._guard = threading.Lock()
        self._is_held = False
        self._waiting: deque[Waiter] = deque()

    async def __aenter__(self) -> None:
        """Wait for one's turn."""
        with self._guard:
            if not self._is_held:
                self._is_held = True
                return
            waiter = Waiter()
            self._waiting.append(waiter)
        try:
            await waiter.wait()
        except asyncio.CancelledError:
            with self._guard:
                if waiter in self._waiting:
                    self._waiting.remove(waiter)
                else:  # it was given the lock meanwhile
                    self._hand_over()
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Whoever came next has it."""
        with self._guard:
            self._hand_over()

    def _hand_over(self) -> None:
        while self._waiting:
            if self._waiting.popleft().wake():
                return
        self._is_held = False
