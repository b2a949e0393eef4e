"""The engines of a process: one for each model, started at the first call, shared by all."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from attrs import field, frozen

from minions.adapters.daemon_thread import run_in_daemon_thread
from minions.adapters.models.local.engine_process import (
    EngineFailedError,
    EngineProcess,
    Spawn,
    engine_command,
    spawn_process,
)
from minions.contracts.calls import ModelFailure
from minions.data.failure_categories import RESOURCE_LIMIT

__all__ = [
    "ENGINE_CRASHED",
    "ENGINE_FAILED",
    "EngineParts",
    "EngineSpec",
    "LocalEngine",
    "LocalEngines",
    "Server",
]

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
            if self._server is not None and self._server.process.is_alive:
                return self._server
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
