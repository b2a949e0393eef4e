"""Blocking functions beside the event loop, on a bounded number of daemon threads."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TypeVar

from attrs import field, mutable

from minions.contracts.blocking_results import settle_with
from minions.contracts.runtime import BlockingCalls

T = TypeVar("T")

_IDLE_S: Final = 10.0
"""Seconds after which a thread without work ends."""


@mutable(eq=False)
class _Job:
    """One function to call, and what became of it. Its flags are guarded by the pool's lock."""

    work: Callable[[], None]
    is_over: bool = False
    is_abandoned: bool = False


@mutable(eq=False)
class DaemonPool(BlockingCalls):
    """Calls functions on at most `size` daemon threads; further calls wait for a place.

    A call that is cancelled leaves its thread to itself: the function cannot be stopped, its result
    is dropped, and its place is free again. The end of the process waits for no thread.
    """

    size: int = 10
    _jobs: deque[_Job] = field(factory=deque, init=False)
    _changed: threading.Condition = field(factory=threading.Condition, init=False)
    _threads: int = field(default=0, init=False)
    _idle: int = field(default=0, init=False)

    @property
    def running(self) -> int:
        """Functions that run now, without those that were abandoned."""
        return self._threads - self._idle

    @property
    def waiting(self) -> int:
        """Functions that wait for a thread."""
        return len(self._jobs)

    async def run(self, function: Callable[[], T]) -> T:
        """What `function()` returns or raises; context variables are those of the caller.

        Raises:
            RuntimeError: The function raised what a future cannot carry: `SystemExit` and the like.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        call = functools.partial(contextvars.copy_context().run, function)
        job = _Job(functools.partial(settle_with, call, future))
        self._add(job)
        try:
            return await future
        finally:
            if future.cancelled():
                self._abandon(job)

    def _add(self, job: _Job) -> None:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()
            self._start_if_needed()

    def _abandon(self, job: _Job) -> None:
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)
            elif not job.is_over:
                job.is_abandoned = True
                self._threads -= 1
                self._start_if_needed()

    def _start_if_needed(self) -> None:
        if self._threads < self.size and len(self._jobs) > self._idle:
            self._threads += 1
            threading.Thread(target=self._work, name="minions-blocking", daemon=True).start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job.work()
            with self._changed:
                job.is_over = True
                if job.is_abandoned:  # another thread has its place
                    return

    def _next(self) -> _Job | None:
        """The next job; None: there was none for a while, and the thread has given up its place."""
        with self._changed:
            self._idle += 1
            try:
                if self._changed.wait_for(lambda: self._jobs, timeout=_IDLE_S):
                    return self._jobs.popleft()
                self._threads -= 1
                return None
            finally:
                self._idle -= 1
