"""Time that passes only while nobody works: time limits and waits of hours take no real time.

Servers and clients of one event loop may use real sockets. The loop's time stands still while
callbacks run or bytes arrive; as soon as nothing has happened for `QUIET_S` real seconds, it jumps
to the next timer. Where nothing can happen, because no thread runs and each connection has both its
ends in the loop and no byte between them, it jumps at once.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import selectors
import socket
import sys
import termios
import threading
from collections import Counter
from collections.abc import Collection, Coroutine
from datetime import UTC, datetime, timedelta
from time import monotonic as real_time
from typing import TYPE_CHECKING, Final, Never, TypeVar

from minions.adapters.daemon_thread import IMPORTING
from minions.contracts.runtime import Clock, Ids

__all__ = ["QUIET_S", "FakeClock", "HangError", "VirtualTime", "counting_ids"]

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

T = TypeVar("T")

QUIET_S: Final = 0.002
"""Real seconds without a byte after which virtual time passes."""


class HangError(AssertionError):
    """The work does not come to an end; the message says how it was seen."""


class VirtualTime(Clock):
    """A clock, and the event loops whose time it is: `time.run(coroutine)`.

    `sleep` can be passed wherever a `Sleep` is expected. Work in threads does not hold the time up,
    except for the imports of Minions.
    """

    def __init__(
        self,
        *,
        quiet_s: float = QUIET_S,
        hang_s: float = 30.0,
        most_s: float = 7 * 86_400.0,
        most_polls: int = 500_000,
    ) -> None:
        """Start at the same point in time as `FakeClock`.

        Args:
            quiet_s: Real seconds without a byte after which time passes.
            hang_s: Real seconds without a byte after which work without a timer counts as hanging.
            most_s: Virtual seconds after which the work of one `run` counts as hanging.
            most_polls: Polls of the event loop after which it does.
        """
        self.quiet_s = quiet_s
        self.hang_s = hang_s
        self.most_s = most_s
        self.most_polls = most_polls
        self._elapsed = 0.0
        self._start = FakeClock().now()

    def now(self) -> datetime:
        """The start plus the time that has passed."""
        return self._start + timedelta(seconds=self._elapsed)

    def monotonic(self) -> float:
        """Virtual seconds since the start."""
        return self._elapsed

    def advance(self, seconds: float) -> None:
        """Let time pass at once.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds} seconds")
        self._elapsed += seconds

    async def sleep(self, seconds: float) -> None:
        """Wait within an event loop of this time."""
        await asyncio.sleep(seconds)

    def run(self, work: Coroutine[object, Never, T]) -> T:
        """Run the work in a new event loop with this time.

        Raises:
            HangError: It waits for nothing, or comes to no end.
        """
        with asyncio.Runner(loop_factory=lambda: _VirtualLoop(self)) as runner:
            return runner.run(work)


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time."""

    def __init__(self, time: VirtualTime) -> None:
        self._virtual = time
        super().__init__(_JumpingSelector(time))

    def time(self) -> float:
        return self._virtual.monotonic()


_IMPORT_S: Final = 0.01
"""Real seconds between two looks at whether an import has ended."""


_LATE_S: Final = 0.005
"""Real seconds by which an idle machine wakes up too late at most."""
_MOST_LATE: Final = 20
"""Quiet times in a row that may be late; then time passes nevertheless."""


def _is_importing() -> bool:
    """Whether Minions imports a library in a thread: that takes no virtual time."""
    return any(thread.name.startswith(IMPORTING) for thread in threading.enumerate())


def _runs_threads() -> bool:
    """Whether this process has threads beside this one, which may have an answer soon."""
    if threading.active_count() == 1:
        return False
    others = set(threading.enumerate()) - {threading.current_thread()}
    return any(not thread.name.startswith(_UNKNOWN_THREADS) for thread in others)


_UNKNOWN_THREADS: Final = "Dummy-"
"""How the names begin that `threading` gives to threads which it did not start."""


def _are_pairs(files: Collection[int]) -> bool:
    """Whether these are connections with both ends among them, and sockets that listen."""
    ends = set[tuple[object, object]]()
    for each in files:
        try:
            with socket.socket(fileno=os.dup(each)) as end:
                if not end.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    ends.add((end.getsockname(), end.getpeername()))
        except OSError:  # no socket, or one that connects just now
            return False
    # Ends of a socket pair have no name.
    return all(peer and (peer, own) in ends for own, peer in ends)


def _count_unsent(file: int) -> int:
    """Bytes that were written to a socket and have not reached the other end."""
    count = bytearray(4)
    try:
        fcntl.ioctl(file, termios.TIOCOUTQ, count)
    except OSError:  # it listens
        return 0
    return int.from_bytes(count, sys.byteorder)


class _JumpingSelector(selectors.DefaultSelector):
    """Lets virtual time pass instead of waiting."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__()
        self._time = time
        self._most_s = time.monotonic() + time.most_s
        self._polls = 0
        self._waker: int | None = None
        """The first file that the loop registers: what wakes it up from threads."""
        self._pairs: bool | None = None
        """Whether each connection has both its ends here; None: to be looked up."""

    def register(
        self, fileobj: FileDescriptorLike, events: int, data: object = None
    ) -> selectors.SelectorKey:
        """Of a file that is waited for from now on."""
        self._pairs = None
        key = super().register(fileobj, events, data)
        if self._waker is None:
            self._waker = key.fd
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        """Of a file that is waited for no longer."""
        self._pairs = None
        return super().unregister(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The files that are ready; none: the next timer is due."""
        self._check()
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            return self._without_timer()
        if not _runs_threads() and self._has_all_ends():
            ready = super().select(0)
        else:
            ready = self._after_quiet(min(timeout, self._time.quiet_s))
        while not ready and _is_importing():
            ready = super().select(_IMPORT_S)
            if not ready and not _is_importing():
                ready = super().select(0)  # its last byte may have come between the two looks
        if not ready:
            self._time.advance(max(timeout, 0.0))
        return ready

    def _after_quiet(self, seconds: float) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready after a quiet time. One that took far longer does not count: the machine
        was busy elsewhere, also with the bytes that are waited for.
        """
        for _ in range(_MOST_LATE):
            begin = real_time()
            ready = super().select(seconds)
            if ready or real_time() - begin < seconds + _LATE_S:
                return ready
        return []

    def _has_all_ends(self) -> bool:
        """Whether each connection has both its ends here, and no byte is between them."""
        files = [key.fd for key in self.get_map().values() if key.fd != self._waker]
        if self._pairs is None:
            self._pairs = _are_pairs(files)
        return self._pairs and not any(map(_count_unsent, files))

    def _without_timer(self) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(self._time.hang_s)
        if not ready:
            raise HangError(
                f"Nothing is scheduled, and no byte came for {self._time.hang_s:g} real seconds."
            )
        return ready

    def _check(self) -> None:
        self._polls += 1
        if self._polls > self._time.most_polls:
            self._polls = 0  # what is cancelled now may still clean up
            raise HangError(f"The work took more than {self._time.most_polls} polls of its loop.")
        if self._time.monotonic() > self._most_s:
            self._most_s += self._time.most_s
            raise HangError(f"The work took more than {self._time.most_s:g} virtual seconds.")


# --- a clock that only moves when it is advanced -------------------------------------------------


_START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock(Clock):
    """Starts at 2026-01-01T00:00Z; `sleep` can be passed wherever a `Sleep` is expected."""

    def __init__(self) -> None:
        self._elapsed = timedelta()

    def now(self) -> datetime:
        """The start plus the time that was advanced."""
        return _START + self._elapsed

    def monotonic(self) -> float:
        """Seconds advanced so far."""
        return self._elapsed.total_seconds()

    def advance(self, seconds: float) -> None:
        """Advance the clock.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back: {seconds} seconds")
        self._elapsed += timedelta(seconds=seconds)

    async def sleep(self, seconds: float) -> None:
        """Advance the clock instead of waiting, and let other tasks run once."""
        self.advance(seconds)
        await asyncio.sleep(0)


# --- ids that count up instead of being random ---------------------------------------------------


def counting_ids() -> Ids:
    """`run_1`, `run_2`, `exe_1` …: for `Services(ids=counting_ids())`."""
    counts: Counter[str] = Counter()

    def next_id(prefix: str) -> str:
        counts[prefix] += 1
        return f"{prefix}_{counts[prefix]}"

    return next_id
