"""Names of workers that let another process find out whether the worker has died."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def worker_name(part: str = "") -> str:
    """A name `host:pid:birth` for this process.

    A person sees from it who holds a run. `birth` distinguishes a later process with the same id;
    it is empty where the system has no /proc.

    Args:
        part: Names one of several workers of the process; it follows a `+`.
    """
    name = f"{socket.gethostname()}:{os.getpid()}:{_birth(os.getpid())}"
    return f"{name}+{part}" if part else name


def is_worker_gone(name: str) -> bool:
    """Whether that worker ran on this machine and its process has ended.

    A worker of another machine, or a name of another form, is never known to be dead.
    """
    pid = _pid_here(name)
    return pid is not None and not _is_process(pid, _birth_in(name))


def is_worker_alive(name: str) -> bool:
    """Whether that worker is another process of this machine, and it has not ended."""
    pid = _pid_here(name)
    return pid not in (None, os.getpid()) and _is_process(pid, _birth_in(name))


def _pid_here(name: str) -> int | None:
    """The worker's process id; None: it means nothing here."""
    host, _, pid = name.rpartition(":")[0].rpartition(":")
    if host != socket.gethostname() or not (pid.isascii() and pid.isdecimal() and len(pid) < 20):
        return None
    # Process ids of another namespace mean nothing here.
    here = _birth(os.getpid()).partition(".")[0]
    return int(pid) if _birth_in(name).partition(".")[0] == here else None


def _birth_in(name: str) -> str:
    return name.rpartition(":")[2].partition("+")[0]


def _is_process(pid: int, birth: str) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # alive, of another user
    return _birth(pid) == birth


def _birth(pid: int) -> str:
    """`namespace.ticks` since the machine's start; without ticks for a process that has ended."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    state, *fields = stat.rpartition(")")[2].split()
    return f"{namespace}." if state in "ZX" else f"{namespace}.{fields[18]}"
