"""Keeps a program that talks over its own streams: ends all its processes when either side ends.

It is started with the pid of its parent and the command. The program inherits the three streams;
the keeper holds none of them. It ends with the program's exit code, kills what the program left
behind, and kills everything when its parent dies, however that dies, or sends SIGTERM.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

from minions.adapters.sandboxes.supervisor.kernel import become_subreaper, prctl
from minions.adapters.sandboxes.supervisor.process_tree import kill_tree

NOT_STARTED = 127
"""Exit code where the program cannot be started, as a shell has it."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_LOOK_S = 0.2
"""How often it looks for its parent where the kernel does not tell."""


def main() -> None:
    """Start the command of `sys.argv` and keep it: `PARENT PROGRAM ARGUMENT…`."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # none is lost before it is waited for
    _tell_of_parent()
    if os.getppid() != parent:
        sys.exit(1)
    try:
        process = subprocess.Popen(command, preexec_fn=_unblock, start_new_session=True)  # noqa: PLW1509, S603  # single-threaded; what the operator named
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)  # noqa: T201
        sys.exit(NOT_STARTED)
    _let_go_of_streams()
    _wait(process, parent)
    kill_tree(process.pid)
    code = process.returncode
    os._exit(code if code is not None and code >= 0 else 128 - (code or -signal.SIGTERM))


def _tell_of_parent() -> None:
    """Linux sends SIGTERM when the parent ends, and gives the keeper what the program leaves."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError, ctypes.ArgumentError):
            prctl(1, signal.SIGTERM)
            become_subreaper()


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _let_go_of_streams() -> None:
    """Whoever reads the program's output sees its end, and the program that of its input."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)


def _wait(process: subprocess.Popen[bytes], parent: int) -> None:
    """Wait until the program ends, the parent dies, or somebody wants the end."""
    while process.poll() is None and os.getppid() == parent:
        if sys.platform == "darwin":
            # There is no `sigtimedwait`.
            if _LOOK_S and signal.sigpending() & set(_SIGNALS[:3]):
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
            continue
        said = signal.sigtimedwait(_SIGNALS, _LOOK_S if sys.platform != "linux" else 5.0)
        if said is not None and said.si_signo != signal.SIGCHLD:
            return
