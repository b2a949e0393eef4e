"""Who waits for the next fact of which session: what all journals share of `Journal.wait`.

How a journal learns of facts that others wrote is its own: it hands in a look and a watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import TypeAlias

from attrs import frozen

__all__ = ["EntryWaiters", "Watch"]

Watch: TypeAlias = Callable[[], Awaitable[None]]
"""Tells the room of new facts while somebody waits; it may end when nobody does."""


@frozen(eq=False)
class _Waiter:
    after: int
    future: asyncio.Future[bool]


class EntryWaiters:
    """Waiters of any number of event loops, each loop with at most one watch.

    The lock is of the lists alone, held for microseconds: facts may be told by any thread.
    """

    def __init__(self, watch: Watch | None = None) -> None:
        """No watch: every fact is told by who appends it."""
        self._watch = watch
        self._waiting: dict[str, set[_Waiter]] = {}
        self._watches: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        self._guard = threading.Lock()

    async def wait(
        self, session_id: str, after: int, timeout_s: float, look: Callable[[], Awaitable[int]]
    ) -> bool:
        """As `Journal.wait`.

        Args:
            look: Gives the last position of the session; asked once, when nothing can be missed.
        """
        with self._waiter(session_id, after) as future:
            if await look() > after:
                return True
            if timeout_s > 0 and not future.done():
                self._begin_watch()
                await asyncio.wait((future,), timeout=timeout_s)
            return future.done() and future.result()

    def tell(self, session_id: str, position: int) -> None:
        """That fact is stored. Nearly nothing when nobody waits."""
        if not self._waiting:
            return
        with self._guard:
            woken = [
                each.future for each in self._waiting.get(session_id, ()) if each.after < position
            ]
        for future in woken:
            _soon(future.get_loop(), _resolve, future, True)

    def tell_all(self, positions: Mapping[str, int]) -> None:
        """The last positions of some sessions."""
        for session_id, position in positions.items():
            self.tell(session_id, position)

    def fail(self, error: Exception) -> None:
        """Nobody of this event loop can learn anything any more."""
        for future in self._futures(asyncio.get_running_loop()):
            if not future.done():
                future.set_exception(error)

    def sessions(self) -> Collection[str]:
        """Those for which somebody of this event loop waits."""
        loop = asyncio.get_running_loop()
        with self._guard:
            return [
                session_id
                for session_id, waiters in self._waiting.items()
                if any(each.future.get_loop() is loop for each in waiters)
            ]

    async def aclose(self) -> None:
        """Send everybody away and end the watches; it can be used again."""
        mine = asyncio.get_running_loop()
        with self._guard:
            watches, self._watches = self._watches, {}
            futures = [each.future for waiters in self._waiting.values() for each in waiters]
        for future in futures:
            if future.get_loop() is mine:  # at once, before it can begin another watch
                _resolve(future, False)
            else:
                _soon(future.get_loop(), _resolve, future, False)
        for loop, watch in watches.items():
            _soon(loop, watch.cancel)
        if mine in watches:
            await asyncio.wait((watches[mine],))

    @contextlib.contextmanager
    def _waiter(self, session_id: str, after: int) -> Iterator[asyncio.Future[bool]]:
        waiter = _Waiter(after, asyncio.get_running_loop().create_future())
        with self._guard:
            self._waiting.setdefault(session_id, set()).add(waiter)
        try:
            yield waiter.future
        finally:
            with self._guard:
                left = self._waiting[session_id]
                left.discard(waiter)
                if not left:
                    del self._waiting[session_id]
            waiter.future.cancel()

    def _futures(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Future[bool]]:
        with self._guard:
            return [
                each.future
                for waiters in self._waiting.values()
                for each in waiters
                if each.future.get_loop() is loop
            ]

    def _begin_watch(self) -> None:
        if self._watch is None:
            return
        loop = asyncio.get_running_loop()
        with self._guard:
            for other in [each for each in self._watches if each.is_closed()]:
                del self._watches[other]
            known = self._watches.get(loop)
            if known is None or known.done():
                self._watches[loop] = loop.create_task(self._watched(self._watch))

    async def _watched(self, watch: Watch) -> None:
        """Until nobody waits; whatever ends it otherwise ends the waiting."""
        try:
            await watch()
        except Exception as error:  # noqa: BLE001  # the waiters raise it
            self.fail(error)


def _resolve(future: asyncio.Future[bool], is_there: bool) -> None:  # a callback
    if not future.done():
        future.set_result(is_there)


def _soon(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: object
) -> None:
    """In that loop; nothing where it has ended, and those who waited in it with it."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)
