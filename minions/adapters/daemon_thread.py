"""Blocking work beside the event loop, in a thread that exit does not wait for."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar, TypeVarTuple

from minions.contracts.runtime import BlockingCalls

IMPORTING: Final = "minions-import"
"""How names of threads begin that import modules. To end the interpreter while one of them
initialises a C extension is a segmentation fault: `minions.__main__` waits for them."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def run_in_daemon_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """What `function(*args)` gives or raises; context variables are those of the caller.

    A thread of its own, not asyncio's pool: at exit that pool is waited for, so one hung
    function would keep the process alive. Cancelled, the thread is left to itself and its
    result dropped.

    Raises:
        RuntimeError: The function raised what a future cannot carry: `SystemExit` and the like.
    """
    name = getattr(function, "__name__", type(function).__name__)
    return await _run(f"minions-{name}", function, *args)


async def import_in_daemon_thread(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """Likewise, for a function that imports modules: the process does not end in the middle."""
    return await _run(IMPORTING, function, *args)


class OneThread(BlockingCalls):
    """Calls functions one after the other in a daemon thread, which is there while there are any.

    It may be used by the event loops of several threads.
    """

    def __init__(self, name: str) -> None:
        """Start nothing yet."""
        self._name = name
        self._jobs: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._is_at_work = False

    async def run(self, function: Callable[[], T]) -> T:
        """What `function()` returns or raises; cancelled, its result is dropped."""
        from minions.contracts.blocking_results import settle_with

        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = functools.partial(contextvars.copy_context().run, function)
        with self._lock:
            self._jobs.append(functools.partial(settle_with, call, future))
            if not self._is_at_work:
                self._is_at_work = True
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return await future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._is_at_work = False
                    return
                job = self._jobs.popleft()
            job()


async def _run(name: str, function: Callable[[*Ts], T], *args: *Ts) -> T:
    from minions.contracts.blocking_results import settle_with

    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    call = functools.partial(contextvars.copy_context().run, function, *args)
    work = functools.partial(settle_with, call, future)
    threading.Thread(target=work, name=name, daemon=True).start()
    return await future
