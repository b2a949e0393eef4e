"""The engines of a process: one for each model, started at the first call, shared by all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final, TypeAlias

from attrs import field, frozen

from minions.adapters.daemon_thread import run_in_daemon_thread
from minions.adapters.models.local.engine_program import EngineOrder
from minions.contracts.calls import ModelFailure
from minions.data.failure_categories import RESOURCE_LIMIT

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


ENGINE_FAILED: Final = "engine-failed"
"""Code of a call whose engine cannot be started."""
ENGINE_CRASHED: Final = "engine-crashed"
"""Code of a call during which the engine's process ended."""

_START_S: Final = 120.0
"""Seconds for loading weights; gigabytes from a slow disk take a minute."""
_MOST_FAILURES: Final = 3
"""Failed starts and crashes in a row; then nothing is started for `_REST_S`."""
_REST_S: Final = 60.0
_END_S: Final = 3.0
"""Seconds in which a process whose connection broke off shows that it has ended."""
_CACHE_MIB: Final = 256
_MOST_ANSWER: Final = 2048
"""Tokens of an answer to a call without `max_output_tokens`: small models repeat without end."""


@frozen(kw_only=True)
class EngineSpec:
    """One model as an engine serves it; equal ones share a process."""

    name: str
    """The model's name behind `local/`."""
    weights: Path
    packages: str
    """The folder that holds the engine's package."""
    context_tokens: int
    """Tokens of a prompt and its answer together."""
    slots: int
    """Calls that are answered at a time; each has a context of its own."""
    threads: int
    context_bytes: int = field(default=0, eq=False)
    """Memory of one token of a context; 0: unknown."""

    @property
    def digest(self) -> str:
        """Tells this model apart from others of the same name."""
        return hashlib.sha256(repr(self).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@frozen(eq=False)
class Server:
    """A started engine, as far as it concerns callers."""

    base_url: str
    key: str = field(repr=False)
    process: EngineProcess = field(repr=False)

    async def has_ended(self) -> bool:
        """Whether its process is gone, or ends just now."""
        return await run_in_daemon_thread(self.process.wait_for_end, _END_S)


def _available_memory() -> int | None:
    """Bytes that new work may take; None: the machine does not say it."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((int(each) * 1024 for each in found), None)


def _new_key() -> str:
    return secrets.token_urlsafe(32)


@frozen(kw_only=True)
class EngineParts:
    """How engines are started; tests have others."""

    command: Callable[[], Sequence[str]] = engine_command
    spawn: Spawn = spawn_process
    new_key: Callable[[], str] = _new_key
    clock: Callable[[], float] = time.monotonic
    available_memory: Callable[[], int | None] = _available_memory
    start_within_s: float = _START_S


class LocalEngine:
    """The engine of one model: at most one process at a time, a new one after a crash."""

    def __init__(self, spec: EngineSpec, parts: EngineParts) -> None:
        """Nothing is started yet."""
        self.spec = spec
        self._parts = parts
        self._lock = threading.Lock()
        """Held while a process is started or ended; event loops never wait for it."""
        self._server: Server | None = None
        self._starting: EngineProcess | None = None
        self._failures = 0
        """Failed starts and crashes since the last answer."""
        self._failed: tuple[float, ModelFailure] | None = None
        """When the last start failed or crash was seen, and its failure."""

    async def server(self) -> Server | ModelFailure:
        """The started engine; started now if it is not there."""
        server = self._server
        if server is not None and server.process.is_alive:
            return server
        return await run_in_daemon_thread(self._start)

    def answered(self) -> None:
        """A call had its answer: the engine works."""
        self._failures, self._failed = 0, None

    def crashed(self, server: Server) -> ModelFailure:
        """The failure of a call whose engine has ended; it is counted once for each process."""
        failure = ModelFailure(
            code=ENGINE_CRASHED,
            message=f"The engine of 'local/{self.spec.name}' ended in mid-call: "
            f"{server.process.end_words()}{server.process.quoted_log()}",
            is_retryable=True,
        )
        if self._server is server:
            self._server = None
            self._count(failure)
        return failure

    def stop(self) -> None:
        """End the process, also while it starts; blocks for a moment. A later call starts a new
        one.
        """
        starting = self._starting
        if starting is not None:
            starting.stop(grace_s=0)  # who waits for it has the lock
        with self._lock:
            server, self._server = self._server, None
            if server is not None:
                server.process.stop()

    def _start(self) -> Server | ModelFailure:
        with self._lock:
            server = self._server
            if server is not None and server.process.is_alive:
                return server
            refusal = self._resting() or self._without_memory()
            if refusal is not None:
                return refusal
            key = self._parts.new_key()
            self._starting = process = self._process(key)
            try:
                port = process.start()
            except EngineFailedError as error:
                return self._count(self._not_started(str(error)))
            finally:
                self._starting = None
            self._server = Server(f"http://127.0.0.1:{port}/v1", key, process)
            return self._server

    def _process(self, key: str) -> EngineProcess:
        spec = self.spec
        return EngineProcess(
            command=self._parts.command(),
            spawn=self._parts.spawn,
            start_within_s=self._parts.start_within_s,
            order={
                "weights": str(spec.weights),
                "name": spec.name,
                "key": key,
                "context_tokens": spec.context_tokens,
                "slots": spec.slots,
                "threads": spec.threads,
                "most_tokens": min(spec.context_tokens // 2, _MOST_ANSWER),
                "cache_mib": _CACHE_MIB,
                "packages": spec.packages,
            },
        )

    def _count(self, failure: ModelFailure) -> ModelFailure:
        self._failures += 1
        self._failed = self._parts.clock(), failure
        return failure

    def _resting(self) -> ModelFailure | None:
        """The last failure, if there were too many of them in a row."""
        if self._failed is None or self._failures < _MOST_FAILURES:
            return None
        at, failure = self._failed
        if self._parts.clock() - at >= _REST_S:
            return None
        return self._not_started(
            f"{self._failures} processes in a row failed, the last one: {failure.message}"
        )

    def _without_memory(self) -> ModelFailure | None:
        available = self._parts.available_memory()
        spec = self.spec
        try:
            size = spec.weights.stat().st_size
        except OSError as error:
            return self._not_started(f"{spec.weights}: {error.strerror}")
        context = spec.context_bytes * spec.context_tokens * spec.slots
        if available is None or size + context <= available:
            return None
        return ModelFailure(
            code=RESOURCE_LIMIT,
            message=f"The model 'local/{spec.name}' needs {_mib(size)} MiB for its weights and "
            f"{_mib(context)} MiB for {spec.slots} contexts of {spec.context_tokens} tokens; "
            f"{_mib(available)} MiB are free here. Set a smaller context_tokens or "
            "max_concurrency in [local], or take a smaller model.",
        )

    def _not_started(self, what: str) -> ModelFailure:
        return ModelFailure(
            code=ENGINE_FAILED,
            message=f"The engine of 'local/{self.spec.name}' ({self.spec.weights}) could not be "
            f"started: {what}",
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f}"


class LocalEngines:
    """The engines of a process by what they serve; ends them all."""

    def __init__(self, parts: EngineParts | None = None) -> None:
        """Nothing is started yet."""
        self._parts = parts or EngineParts()
        self._engines: dict[EngineSpec, LocalEngine] = {}

    def engine(self, spec: EngineSpec) -> LocalEngine:
        """The engine of that model, the same one for every caller."""
        engine = self._engines.get(spec)
        if engine is None:
            engine = self._engines[spec] = LocalEngine(spec, self._parts)
        return engine

    async def aclose(self) -> None:
        """End all processes; later calls start new ones."""
        for engine in self._engines.values():
            await run_in_daemon_thread(engine.stop)
