"""Serves one app in a process: its socket, signals and end. Importing this loads uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import FrameType
from typing import Final, Literal, cast

import uvicorn

from minions.contracts.runtime import Log
from minions.data.errors import EnvironmentRefusedError
from minions.interfaces.http.acceptor import Acceptor, Rarely
from minions.interfaces.http.connections import ConnectionLimits, Connections, client_of
from minions.interfaces.http.responses import AsgiApp
from minions.interfaces.server.app import App
from minions.interfaces.server.options import ServerOptions
from minions.interfaces.server.timed_protocol import (
    dropping_late,
    no_room_response,
    protocol_of,
)

_BEYOND_GRACE_S: Final = 4.0
"""Seconds that the end may take beyond the runs' grace; then the process exits."""
_REFUSALS: Final = 500
"""Connections beyond the requests at a time: they are told why, or wait for their next request."""
_OTHER_FILES: Final = 64
"""Descriptors that stay for the database, recipes, tools and models, at the least."""
_STARTUP_FAILED: Final = 3
_SWITCH_S: Final = 0.001
_THRESHOLDS: Final = (10_000, 3, 1_000_000)
"""Of the three generations: the middle one is searched at 30,000 objects, the last one never."""
_SEARCH_EVERY_S: Final = 3_600.0
_MOST_KINDS: Final = 1_000
"""Messages of the log that are told apart."""
_BACKLOG: Final = 2_048
"""Connections that the system holds for us until they are accepted."""


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one.

    Raises:
        EnvironmentRefusedError: The port is in use, or the address does not exist.
    """
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        sock.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise EnvironmentRefusedError(
            f"The server cannot listen on {host}:{port}: {reason}. Take another port with --port, "
            "or 0 for a free one.",
            code="port-taken",
        ) from error
    return sock


async def serve(app: App, sock: socket.socket, tell: Callable[[str], None]) -> int:
    """Serve the app until SIGINT or SIGTERM, and return the exit code.

    The first signal stops runs, which can be resumed, and streams; the second ends the process at
    once.

    Args:
        sock: A listening socket, from `bound_socket` or another one. The server owns it from now
            on: the object is detached from it.
    """
    connections = Connections(_limits(app.app_state.options))
    app.app_state.places.keep_room(connections.limits.most_open)
    server = _Server(app, connections, app.log, lifespan="on")
    with (
        contextlib.closing(_as_tcp(sock)) as listening,
        _Stopper(app, server, tell) as stopper,
        _few_lines(),
    ):
        async with dropping_late(connections, app.log), short_holds():
            await server.serve(sockets=[listening])
    return 128 + stopper.caught if stopper.caught is not None else 0


async def serve_until_signal(
    app: AsgiApp, sock: socket.socket, options: ServerOptions, stop: asyncio.Event, log: Log
) -> None:
    """Serve another ASGI app, which has no state of its own, until `stop`; then its requests are
    ended.

    Args:
        sock: As for `serve`.
    """
    connections = Connections(_limits(options))
    server = _Server(app, connections, log, lifespan="off")

    async def end() -> None:
        await stop.wait()
        server.should_exit = True

    ending = asyncio.create_task(end())
    with contextlib.closing(_as_tcp(sock)) as listening, _few_lines():
        async with dropping_late(connections, log), short_holds():
            await server.serve(sockets=[listening])
    ending.cancel()


def _limits(options: ServerOptions) -> ConnectionLimits:
    """The limits of connections, fewer where the process may not open so many files."""
    most = options.max_connections + _REFUSALS
    files = _most_files()
    if files is not None:
        most = min(most, max(files - max(_OTHER_FILES, files // 4), 1))
    return ConnectionLimits(most_open=most, head_s=options.head_timeout_s)


def _most_files() -> int | None:
    """How many files this process may have open; None: there is no such limit."""
    try:
        import resource
    except ModuleNotFoundError:  # not on POSIX
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if most == resource.RLIM_INFINITY else most


def _as_tcp(sock: socket.socket) -> socket.socket:
    """The same socket with its protocol named; one of another family is returned as it is.

    asyncio sets TCP_NODELAY only on connections whose socket names TCP. Without that option the
    body of a response on a kept connection waits 40 ms for the acknowledgement of its head.
    """
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return sock
    return socket.socket(sock.family, sock.type, socket.IPPROTO_TCP, fileno=sock.detach())


class _Server(uvicorn.Server):
    """Accepts by itself, and leaves signals to `_Stopper`: uvicorn's own handling would wait for
    open streams forever.
    """

    def __init__(
        self,
        app: AsgiApp,
        connections: Connections,
        log: Log,
        *,
        lifespan: Literal["on", "off"],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol_of(connections),
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing here reads where a proxy says a request came from
                lifespan=lifespan,
                ws="none",
                timeout_keep_alive=int(connections.limits.request_s),
                timeout_graceful_shutdown=2,
            )
        )
        self._open = connections
        self._log = log

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the app, and accept connections of these sockets."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(_STARTUP_FAILED)
        acceptors = [self._acceptor(sock) for sock in sockets or ()]
        for acceptor in acceptors:
            acceptor.start()
        self.servers = cast("list[asyncio.Server]", acceptors)  # it closes them, and no more
        self.started = True

    def _acceptor(self, sock: socket.socket) -> Acceptor:
        loop = asyncio.get_running_loop()

        def make_protocol() -> asyncio.Protocol:
            return self.config.http_protocol_class(  # type: ignore[call-arg]  # as uvicorn does
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
                _loop=loop,
            )

        return Acceptor(
            sock,
            make_protocol,
            admits=lambda address, coming: self._open.has_room(
                client_of(address), loop.time(), coming=coming
            ),
            refusal=no_room_response(),
            log=self._log,
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


@contextlib.asynccontextmanager
async def short_holds() -> AsyncIterator[None]:
    """Within the block, no thread and no search for garbage holds the interpreter for long.

    A thread that computes gives way after a millisecond. What was created lately is searched often
    and so in little time; all objects, of which a long run has millions, are searched once an hour.
    """
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(_SWITCH_S)
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    searching = asyncio.ensure_future(_search_now_and_then())
    try:
        yield
    finally:
        searching.cancel()
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        sys.setswitchinterval(interval)


async def _search_now_and_then() -> None:
    while True:
        await asyncio.sleep(_SEARCH_EVERY_S)
        gc.collect()


@contextlib.contextmanager
def _few_lines() -> Iterator[None]:
    """Within the block, what nobody configured a log for is told once a minute: a stranger's bad
    requests are a line each for uvicorn and asyncio.
    """
    handler = logging.lastResort
    if handler is None:
        yield
        return
    rare = _RareLines()
    handler.addFilter(rare)
    try:
        yield
    finally:
        handler.removeFilter(rare)


class _RareLines(logging.Filter):
    """Lets a message through once a minute, with how often it came."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, Rarely] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is told."""
        if record.name.startswith("minions"):  # each of ours says something of its own
            return True
        first = str(record.msg).partition("\n")[0][:200]
        key = f"{record.name} {first}" if len(self._seen) < _MOST_KINDS else ""
        count = self._seen.setdefault(key, Rarely(time.monotonic)).count()
        if count is not None and count > 1:
            record.msg = f"{record.msg} ({count} times since the last such line)"
        return count is not None


class _Stopper:
    """Catches signals while the server runs."""

    def __init__(self, app: App, server: uvicorn.Server, tell: Callable[[str], None]) -> None:
        self._app = app
        self._server = server
        self._tell = tell
        self._stopping: asyncio.Task[None] | None = None
        self._watchdog: threading.Timer | None = None
        self.caught: int | None = None

    def __enter__(self) -> _Stopper:
        """Catch signals from now on."""
        self._loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        # Not the loop's handlers: they wait for a loop that code of a step may block.
        self._before = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def __exit__(self, *_error: object) -> None:
        """Restore the handlers; after a signal they stay, so that a second one ends the process."""
        if self.caught is not None:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.caught is not None:
            os._exit(128 + number)
        self.caught = number
        self._tell(f"\n{signal.Signals(number).name}: stopping; what runs can be resumed.")
        patience = self._app.app_state.options.grace_s + _BEYOND_GRACE_S
        self._watchdog = threading.Timer(patience, os._exit, [128 + number])
        self._watchdog.daemon = True
        self._watchdog.start()
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._stopping = asyncio.ensure_future(self._app.stop())
        self._stopping.add_done_callback(self._end)

    def _end(self, _task: asyncio.Task[None]) -> None:
        """Let the server exit: streams had their last event, and no connection stays open."""
        self._server.should_exit = True
