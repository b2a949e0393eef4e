"""Names of workers, such that another process can tell whether the one behind it has died."""

from __future__ import annotations

import os
import socket
from pathlib import Path

__all__ = ["is_worker_gone", "worker_name"]


def worker_name(part: str = "") -> str:
    """`host:pid:birth`, so that a person sees who holds a run, and a process id used again differs.

    `birth` tells the process apart from later ones of that id; empty where the system has no /proc.

    Args:
        part: Of this process, where it has several workers; stands behind a `+`.
    """
    name = f"{socket.gethostname()}:{os.getpid()}:{_birth(os.getpid())}"
    return f"{name}+{part}" if part else name


def is_worker_gone(name: str) -> bool:
    """Whether that worker ran on this machine and its process has ended.

    A name of another machine, or of another form, is never known to be dead.
    """
    host, _, rest = name.rpartition(":")[0].rpartition(":")
    birth = name.rpartition(":")[2].partition("+")[0]
    if host != socket.gethostname() or not rest.isdecimal():
        return False
    here = _birth(os.getpid())
    if birth.partition(".")[0] != here.partition(".")[0]:
        return False  # process ids of another namespace mean nothing here
    try:
        os.kill(int(rest), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # alive, and somebody else's
    return _birth(int(rest)) != birth


def _birth(pid: int) -> str:
    """`namespace.ticks` since the machine's start; no ticks for a process that has ended."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return f"{namespace}." if state in "ZX" else f"{namespace}.{fields[18]}"
