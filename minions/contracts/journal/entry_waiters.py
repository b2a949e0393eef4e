"""Waiting for the next entry of a session: what all implementations of `Journal.wait` share.

How a journal learns of entries that other processes wrote is its own task: it hands in a function
that looks up the last position, and a watch that reports new entries.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct

Watch: TypeAlias = Callable[[], Awaitable[None]]
"""Reports new entries by `EntryWaiters.tell` while somebody
waits; it may return when nobody does.
"""


class _Waiter(Struct, frozen=True, eq=False):
    after: int
    future: asyncio.Future[bool]


class EntryWaiters:
    """The waiters of any number of event loops, each loop with at most one watch.

    The lock guards the lists alone and is held for microseconds: any thread may report entries.
    """

    def __init__(self, watch: Watch | None = None) -> None:
        """Without a watch, whoever appends an entry has to report it by `tell`."""
        self._watch = watch
        self.waiting: dict[str, set[_Waiter]] = {}
        """Who waits, by session; empty: nobody does."""
        self._watches: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}
        self._guard = threading.Lock()

    async def wait(
        self, session_id: str, after: int, timeout_s: float, look: Callable[[], Awaitable[int]]
    ) -> bool:
        """Wait for an entry after that position, as specified by `Journal.wait`.

        Args:
            look: Looks up the last position of the session. Called once, after the waiter is
                registered, so that no entry is missed.
        """
        with self._waiter(session_id, after) as future:
            if await look() > after:
                return True
            if timeout_s > 0 and not future.done():
                self._begin_watch()
                await asyncio.wait((future,), timeout=timeout_s)
            return future.done() and future.result()

    def tell(self, session_id: str, position: int) -> None:
        """Wake those who wait for that entry, which is stored."""
        if not self.waiting:
            return
        with self._guard:
            woken = [
                each.future for each in self.waiting.get(session_id, ()) if each.after < position
            ]
        for future in woken:
            _soon(future.get_loop(), _resolve, future, True)

    def tell_all(self, positions: Mapping[str, int]) -> None:
        """Wake those who wait for entries up to these positions, by session id."""
        for session_id, position in positions.items():
            self.tell(session_id, position)

    def fail(self, error: Exception) -> None:
        """Let every waiter of the running event loop raise `error`."""
        for future in self._futures(asyncio.get_running_loop()):
            if not future.done():
                future.set_exception(error)

    def sessions(self) -> Collection[str]:
        """Ids of the sessions for which somebody in the running event loop waits."""
        loop = asyncio.get_running_loop()
        with self._guard:
            return [
                session_id
                for session_id, waiters in self.waiting.items()
                if any(each.future.get_loop() is loop for each in waiters)
            ]

    async def aclose(self) -> None:
        """End all waiting with False and stop the watches. The object can be used again."""
        mine = asyncio.get_running_loop()
        with self._guard:
            watches, self._watches = self._watches, {}
            futures = [each.future for waiters in self.waiting.values() for each in waiters]
        for future in futures:
            if future.get_loop() is mine:  # at once, before a waiter can start another watch
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
            self.waiting.setdefault(session_id, set()).add(waiter)
        try:
            yield waiter.future
        finally:
            with self._guard:
                left = self.waiting[session_id]
                left.discard(waiter)
                if not left:
                    del self.waiting[session_id]
            waiter.future.cancel()

    def _futures(self, loop: asyncio.AbstractEventLoop) -> list[asyncio.Future[bool]]:
        with self._guard:
            return [
                each.future
                for waiters in self.waiting.values()
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
                self._watches[loop] = loop.create_task(self._run_watch(self._watch))

    async def _run_watch(self, watch: Watch) -> None:
        """Run the watch until it returns; its error becomes that of every waiter."""
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
    """Call `callback` in that loop. Does nothing if the loop is
    closed: its waiters ended with it.
    """
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)
