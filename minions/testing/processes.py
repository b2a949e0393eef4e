"""The processes that a test left behind."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

__all__ = ["descendants", "gone", "with_argument"]


def descendants() -> frozenset[int]:
    """The processes that this one started, and theirs; Linux only."""
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        tasks = Path(f"/proc/{waiting.pop()}/task")
        with contextlib.suppress(OSError):
            for task in tasks.iterdir():
                with contextlib.suppress(OSError):
                    children = set(map(int, (task / "children").read_text().split()))
                    waiting += children - found
                    found |= children
    return frozenset(found)


def with_argument(argument: str) -> frozenset[int]:
    """The living processes of the machine with that text in their command line; Linux only."""
    found = set()
    for place in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if place.name.isdigit() and argument.encode() in (place / "cmdline").read_bytes():
                found.add(int(place.name))
    return frozenset(found - {os.getpid()})


def gone(pids: frozenset[int], tries: int = 1_000) -> bool:
    """Whether all of these processes end; looks that often, every hundredth of a second."""
    for _ in range(tries):
        if not any(_is_alive(pid) for pid in pids):
            return True
        time.sleep(0.01)
    return False


def _is_alive(pid: int) -> bool:
    try:
        state = (
            Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
        )
    except OSError:
        return False
    return state not in "ZX"
