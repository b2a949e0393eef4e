"""The watchdog names what holds the event loop: A-124."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest

from minions.adapters.telemetry.loop_watchdog import (
    LongCallback,
    LoopWatchdog,
    cpu_clock_of,
    watched_loop,
)


class Work:
    """A clock of CPU time that moves only by working."""

    def __init__(self) -> None:
        self.now = 0.0
        self.found: list[LongCallback] = []
        self.dog = LoopWatchdog(cpu_time=lambda: self.now, report=self.found.append)

    def hard(self, seconds: float) -> None:
        self.now += seconds
        self.dog.look(sys._getframe())  # what the other thread does


def test_a_callback_that_works_too_long_is_named_with_its_stack() -> None:
    work = Work()
    work.dog.run(lambda: work.hard(0.06), lambda: "<Handle culprit>")
    (found,) = work.found
    assert round(found.cpu_s, 3) == 0.06
    assert "in hard" in found.stack
    assert "<Handle culprit> held the event loop for 60 ms" in str(found)


@pytest.mark.parametrize("seconds", [0.0, 0.049])
def test_others_are_not(seconds: float) -> None:
    work = Work()
    for _ in range(10):
        work.dog.run(lambda: work.hard(seconds), lambda: "x")
    assert work.found == []


def test_one_that_raises_is_named_too() -> None:
    work = Work()

    def fail() -> None:
        work.hard(1)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011  # its own
        work.dog.run(fail, lambda: "x")
    assert len(work.found) == 1


def test_between_callbacks_nothing_is_looked_at() -> None:
    work = Work()
    work.hard(1)
    work.dog.run(lambda: None, lambda: "x")
    assert work.found == []


async def _busy(seconds: float) -> None:
    begin = time.thread_time()
    while time.thread_time() - begin < seconds:
        pass


def test_a_loop_is_watched_within_the_block_only() -> None:
    found: list[LongCallback] = []
    with watched_loop(found.append):
        asyncio.run(_busy(0.3))
    asyncio.run(_busy(0.3))
    (culprit,) = [each for each in found if "_busy" in each.callback]
    assert culprit.cpu_s >= 0.3
    assert "_busy" in culprit.stack


def test_what_waits_without_working_is_not_named() -> None:
    found: list[LongCallback] = []

    async def wait() -> None:
        time.sleep(0.2)  # noqa: ASYNC251  # just that

    with watched_loop(found.append, limit_s=0.1):
        asyncio.run(wait())
    assert not [each for each in found if "wait" in each.callback]


def test_the_clock_is_that_of_one_thread() -> None:
    clock = cpu_clock_of(threading.get_ident())
    before = clock()
    other = threading.Thread(target=lambda: asyncio.run(_busy(0.2)))
    other.start()
    other.join()
    assert clock() - before < 0.15
