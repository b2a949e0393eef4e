"""Names what holds the event loop: the stack of a callback that has worked too long.

It counts the CPU time of the loop's thread, not the time on the wall: on a busy machine a callback
may wait long for a processor, which is not its fault. What waits without working (a file, a lock)
is therefore not found. A second thread looks at the stack while the callback still runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

from attrs import define, field, frozen

LIMIT_S: Final = 0.05
"""CPU seconds that one callback of the event loop may take."""
_LOOKS: Final = 5
"""How often within the limit the stack is looked at."""


@frozen(kw_only=True)
class LongCallback:
    """A callback that worked longer than the limit."""

    cpu_s: float
    callback: str
    stack: str
    """Where it was when it was seen last, oldest call first; empty: it was never seen."""

    def __str__(self) -> str:
        return f"{self.callback} held the event loop for {self.cpu_s * 1000:.0f} ms\n{self.stack}"


@define(kw_only=True)
class LoopWatchdog:
    """Measures the callbacks of one thread."""

    cpu_time: Callable[[], float]
    """CPU seconds of the loop's thread, from any thread."""
    report: Callable[[LongCallback], None]
    """Told in the loop's thread, when the callback has ended."""
    limit_s: float = LIMIT_S
    _begin: float | None = field(default=None, init=False)
    _stack: str = field(default="", init=False)

    def run(self, callback: Callable[[], None], name: Callable[[], str]) -> None:
        """Run a callback, and report it if it took too long."""
        self._stack, self._begin = "", (begin := self.cpu_time())
        try:
            callback()
        finally:
            self._begin = None
            cpu_s = self.cpu_time() - begin
            if cpu_s > self.limit_s:
                self.report(LongCallback(cpu_s=cpu_s, callback=name(), stack=self._stack))

    def look(self, frame: FrameType | None) -> None:
        """Note where a callback is that has worked for half of the limit."""
        begin = self._begin
        if begin is None or frame is None or self.cpu_time() - begin < self.limit_s / 2:
            return
        stack = "".join(traceback.format_stack(frame))
        if self._begin == begin:  # else another callback runs by now
            self._stack = stack


def cpu_clock_of(thread: int) -> Callable[[], float]:
    """A clock of the CPU seconds of a thread; of the whole process where the system has no such."""
    clock_of = getattr(time, "pthread_getcpuclockid", None)  # not on macOS
    if clock_of is None:
        return time.process_time
    clock: int = clock_of(thread)
    return lambda: time.clock_gettime(clock)


@contextlib.contextmanager
def watched_loop(
    report: Callable[[LongCallback], None], *, limit_s: float = LIMIT_S
) -> Iterator[None]:
    """Watch all callbacks of event loops in this thread, within the block."""
    thread = threading.get_ident()
    dog = LoopWatchdog(cpu_time=cpu_clock_of(thread), report=report, limit_s=limit_s)
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(limit_s / _LOOKS):
            dog.look(sys._current_frames().get(thread))  # noqa: SLF001  # there is no other way

    original = asyncio.Handle._run  # noqa: SLF001  # asyncio has no hook around a callback

    def run(handle: asyncio.Handle) -> None:
        if threading.get_ident() != thread:
            original(handle)
        else:
            dog.run(lambda: original(handle), lambda: _name_of(handle))

    looking = threading.Thread(target=look, name="loop-watchdog", daemon=True)
    asyncio.Handle._run = run  # type: ignore[method-assign,assignment]  # noqa: SLF001  # see above
    looking.start()
    try:
        yield
    finally:
        asyncio.Handle._run = original  # type: ignore[method-assign]  # noqa: SLF001  # see above
        is_over.set()
        looking.join()


def _name_of(handle: asyncio.Handle) -> str:
    """The callback, or the coroutine of the task whose step it was."""
    callback = handle._callback  # type: ignore[attr-defined]  # noqa: SLF001  # its repr hides tasks
    owner = getattr(callback, "__self__", None)
    return repr(owner.get_coro() if isinstance(owner, asyncio.Task) else handle)
