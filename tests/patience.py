"""Time in tests: none is measured, for a machine may be busy. What is done is counted instead."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from attrs import mutable

__all__ = ["HANG_S", "Work", "counted_work", "leap", "work_of"]

HANG_S: Final = 60.0
"""For what is certain to come: whatever takes longer hangs."""


def leap(seconds: float) -> None:
    """Let the clock of this event loop go forward: timeouts until then go off at once."""
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]  # of this one loop


@mutable
class Work:
    """How much was done."""

    calls: int = 0
    """Of functions and methods: the same on every machine."""


@contextmanager
def counted_work() -> Iterator[Work]:
    """Counts while the block runs, in this thread."""
    work = Work()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            work.calls += 1

    gc.disable()  # what it finalizes belongs to somebody else
    sys.setprofile(count)
    try:
        yield work
    finally:
        sys.setprofile(None)
        gc.enable()


def work_of(action: Callable[[], object]) -> int:
    """How many calls it makes, once what it loads at first is there."""
    action()
    with counted_work() as work:
        action()
    return work.calls
