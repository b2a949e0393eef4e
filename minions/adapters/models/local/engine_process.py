"""The engine's process as its parent sees it: started, watched, ended.

Everything here blocks and belongs into threads; `engines` is what event loops use.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final, TypeAlias

from attrs import field, frozen

from minions.adapters.models.local.engine_program import EngineOrder

__all__ = ["EngineFailedError", "EngineProcess", "Spawn", "engine_command", "spawn_process"]

_PROGRAM: Final = str(Path(__file__).with_name("engine_program.py"))
_MOST_LOG_LINES: Final = 40
_MOST_QUOTED: Final = 6
_INFORMS: Final = re.compile(r"[0-9.]+ I ")
"""How lines of the engine's log begin that are of no use in an error."""
_MOST_LINE: Final = 500
"""Characters of a line of the log that are kept."""
_GRACE_S: Final = 2.0
"""Seconds that the process has for its own end; then it is killed."""

Spawn: TypeAlias = Callable[[Sequence[str]], "subprocess.Popen[bytes]"]
"""Starts a process with pipes for its three streams."""


def engine_command() -> Sequence[str]:
    """The command of the real engine; it reads no variables and no folder of the user's."""
    return (sys.executable, "-I", _PROGRAM)


def spawn_process(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a process that inherits nothing but its streams."""
    return subprocess.Popen(  # noqa: S603  # our own program
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(),
        start_new_session=True,  # a signal to the terminal's group is not meant for it
    )


def _environment() -> dict[str, str]:
    # Waiting threads that spin take the processor from those that compute: on a busy machine it
    # was 1.5 tokens a second instead of 90.
    own = {"GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0", "PYTHONUTF8": "1"}
    kept = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "TMPDIR")
    return own | {name: os.environ[name] for name in kept if name in os.environ}


class EngineFailedError(Exception):
    """The engine did not start."""


@frozen(kw_only=True, eq=False)
class EngineProcess:
    """One process with one server; it is started once, and ends once."""

    command: Sequence[str]
    order: EngineOrder = field(repr=False)
    spawn: Spawn = spawn_process
    start_within_s: float
    _log: deque[str] = field(factory=lambda: deque(maxlen=_MOST_LOG_LINES), init=False, repr=False)
    _said: queue.SimpleQueue[bytes] = field(factory=queue.SimpleQueue, init=False, repr=False)
    """The line that the process answers with; empty: it ended without one."""
    _ended: threading.Event = field(factory=threading.Event, init=False, repr=False)
    _is_unwanted: threading.Event = field(factory=threading.Event, init=False, repr=False)
    """Whether it was stopped, perhaps before it was there."""
    _started: list[subprocess.Popen[bytes]] = field(factory=list, init=False, repr=False)
    """The process, once it was started."""

    def start(self) -> int:
        """Start the process; the port of its server. Blocks until that takes requests.

        Raises:
            EngineFailedError: It cannot be started, ended at once, or took too long.
        """
        # The thread that starts the process has to live as long as it does: Linux counts the end
        # of that thread as the end of the parent.
        threading.Thread(target=self._keep, name="minions-engine", daemon=True).start()
        try:
            line = self._said.get(timeout=self.start_within_s)
        except queue.Empty:
            self.stop(grace_s=0)
            raise EngineFailedError(
                f"it did not begin to serve within {self.start_within_s:g} s{self.quoted_log()}"
            ) from None
        if not line:
            self._ended.wait(_GRACE_S)
            raise EngineFailedError(f"{self.end_words()}{self.quoted_log()}")
        port: int = json.loads(line)["port"]
        return port

    @property
    def is_alive(self) -> bool:
        """Whether it may still answer."""
        return not self._ended.is_set()

    @property
    def pid(self) -> int | None:
        """The process; None: it was never there."""
        return self._started[0].pid if self._started else None

    def wait_for_end(self, most_s: float) -> bool:
        """Whether the process ends within that time."""
        return self._ended.wait(most_s)

    def stop(self, *, grace_s: float = _GRACE_S) -> None:
        """End the process and wait for its end, also while it starts."""
        self._is_unwanted.set()
        if not self._started:
            return
        process = self._started[0]
        if process.stdin is not None:
            _close(process.stdin)
        if not self._ended.wait(grace_s):
            process.kill()
            self._ended.wait(_GRACE_S)

    def end_words(self) -> str:
        """How the process ended, for messages."""
        code = self._started[0].returncode if self._started else None
        if code is None:
            return "it could not be started" if not self._started else "it gave no answer"
        if code >= 0:
            return f"its process ended with code {code}"
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        hint = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
        return f"its process was ended by {name}{hint}"

    def quoted_log(self) -> str:
        """The end of what the process said, for messages; empty: it said nothing."""
        lines = [line for line in self._log if not _INFORMS.match(line)][-_MOST_QUOTED:]
        return "".join((". It said last:", *(f"\n  {line}" for line in lines))) if lines else ""

    def _keep(self) -> None:
        try:
            process = self.spawn(self.command)
        except OSError as error:
            self._log.append(f"{self.command[0]}: {error.strerror}")
            self._ended.set()
            self._said.put(b"")
            return
        self._started.append(process)
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018, S101
        answers = process.stdout
        threading.Thread(
            target=lambda: self._said.put(answers.readline()), name="minions-engine", daemon=True
        ).start()
        if self._is_unwanted.is_set():
            _close(process.stdin)  # it ends without an order
        with contextlib.suppress(OSError, ValueError):  # it ended already: its log says why
            process.stdin.write(json.dumps(self.order).encode() + b"\n")
            process.stdin.flush()
        self._read_log(process)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                _close(stream)
        self._ended.set()

    def _read_log(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None  # noqa: S101
        while line := process.stderr.readline(65536):
            text = line.decode("utf-8", "replace").replace(self.order["key"], "***").strip()
            if text:
                self._log.append(text[:_MOST_LINE])


def _close(stream: IO[bytes]) -> None:
    with contextlib.suppress(OSError):  # what was not sent is of no use any more
        stream.close()
