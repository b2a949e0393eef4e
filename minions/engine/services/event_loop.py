"""What the engine asks of asyncio's event loop: turns for others during long work, locks, timers.

And which error of a group of tasks counts.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, TypeAlias, TypeVar

from attrs import field, mutable
from msgspec import Struct

from minions.contracts.runtime import BlockingCalls
from minions.data.errors import JournalError, MinionsError
from minions.data.patterns import match_beside_loop

T = TypeVar("T")

FEW: Final = 1_000
"""Items or values with which something is done at once: some milliseconds."""
FEW_ROWS: Final = 150
"""Rows of a run of which a view is made at once; it makes two hundred calls for each."""


async def breathe() -> None:
    """Let others work after a rendering whose meter `is_long`, or after a part of many things.

    Steps that only compute never wait for anything: neither a timeout nor a cancellation would
    reach them.
    """
    await asyncio.sleep(0)


async def beside(
    calls: BlockingCalls | None, size: int | bool, work: Callable[[], T], *, matches: bool = False
) -> T:
    """What `work()` gives: at once where it is about few things, else in a thread.

    Args:
        calls: Have threads; None: there are none, and all is done at once.
        size: How many things it is about, or whether they are many.
        matches: Whether the work matches patterns, which may take a thread for themselves.
    Raises:
        Exception: Whatever `work` raises.
    """
    if calls is None or size is False or (size is not True and size <= FEW):
        return await match_beside_loop(work) if matches else work()
    return await calls.run(work)


def leading_error(error: BaseException) -> BaseException:
    """The error itself; of a group a journal error, else one of Minions' own, else the first."""
    found = list(_leaves(error))
    for kind in (JournalError, MinionsError):
        for leaf in found:
            if isinstance(leaf, kind):
                return leaf
    return found[0]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


Due: TypeAlias = Callable[[], None]
"""Is called at each interval, in the event loop; must return at once."""
_Timer: TypeAlias = tuple[asyncio.AbstractEventLoop, float]
"""An event loop, and seconds between two calls."""


class LoopTimer:
    """Calls what is registered, with one timer per event loop however much is registered there.

    The time is that of the event loop, not of an injected clock. Several threads may use it, each
    with an event loop of its own.
    """

    def __init__(self) -> None:
        """No timer runs as long as nothing is registered."""
        self._due: dict[_Timer, set[Due]] = {}

    def of_running_loop(self, interval_s: float) -> set[Due]:
        """What the timer of the running event loop calls: add to it, discard from it.

        Args:
            interval_s: Seconds between two calls; the first one comes earlier where something else
                is registered with the same interval.
        """
        timer = (asyncio.get_running_loop(), interval_s)
        due = self._due.get(timer)
        if due is None:
            for each in list(self._due):
                if each[0].is_closed():
                    self._due.pop(each, None)
            due = self._due[timer] = set()
            timer[0].call_later(interval_s, self._call, timer)
        return due

    def _call(self, timer: _Timer) -> None:
        due = self._due.get(timer)
        if not due:
            self._due.pop(timer, None)
            return
        loop, interval_s = timer
        loop.call_later(interval_s, self._call, timer)
        for each in tuple(due):
            each()


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


_IDLE_S: Final = 10.0
"""Seconds after which a thread without work ends."""


class _Job(Struct, eq=False):
    """One function to call, and what became of it. Its flags are guarded by the pool's lock."""

    work: Callable[[], None]
    is_over: bool = False
    is_abandoned: bool = False


@mutable(eq=False, repr=False)
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
        from minions.contracts.blocking_results import settle_with

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
