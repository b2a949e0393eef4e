"""The descendants of the supervisor: what they use together, and their end."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """What the tree uses now; CPU time: has used since its beginning."""

    memory_bytes: int
    cpu_s: float
    tasks: int


class _Process(NamedTuple):
    pid: int
    cpu_s: float
    tasks: int
    memory_bytes: int


def descendants(pid: int) -> Iterator[int]:
    """Every living descendant, parents before children."""
    waiting = [pid]
    seen = {pid}
    while waiting:
        for child in _children(waiting.pop()):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
                yield child


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():  # each thread has children of its own
            with contextlib.suppress(OSError):
                yield from map(int, (task / "children").read_text().split())


def _process(pid: int) -> _Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            # The name before the last ')' may hold anything.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None  # it has ended
    used = sum(map(int, fields[11:15])) / _TICKS
    return _Process(pid, used, int(fields[17]), int(fields[21]) * _PAGE)


def tree_usage(most_bytes: int) -> Usage:
    """What all descendants of this process use together.

    Args:
        most_bytes: Only beyond that are pages that processes share counted once, which costs more.
    """
    found = [each for pid in descendants(os.getpid()) if (each := _process(pid)) is not None]
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = ended.ru_utime + ended.ru_stime + sum(each.cpu_s for each in found)
    memory = sum(each.memory_bytes for each in found)
    if memory > most_bytes:
        memory = sum(_shared_fairly(each) for each in found)
    return Usage(memory, cpu_s, sum(each.tasks for each in found))


def _shared_fairly(process: _Process) -> int:
    """Its memory, with shared pages divided by the number of processes that share them."""
    try:
        with open(f"/proc/{process.pid}/smaps_rollup", "rb") as file:  # noqa: PTH123
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return process.memory_bytes


def kill_tree(leader: int | None) -> None:
    """Kill every descendant, and wait until none is left; orphans are this process's children.

    Args:
        leader: A process group to kill first; where there is no `/proc`, it is all that is known.
    """
    while True:
        if leader and sys.platform != "linux":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(leader, signal.SIGKILL)
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not _reap():
            return
        time.sleep(0.001)


def _reap() -> bool:
    """Collect ended children; whether there are others."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return True
        except ChildProcessError:
            return False
