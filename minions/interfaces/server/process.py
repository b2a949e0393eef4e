"""Serves one app in a process: its socket, signals and end. Importing this loads uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Final

import uvicorn

from minions.contracts.errors import EnvironmentRefusedError
from minions.interfaces.server.app import App
from minions.interfaces.server.http.connections import ConnectionLimits, Connections
from minions.interfaces.server.http.responses import AsgiApp
from minions.interfaces.server.options import ServerOptions
from minions.interfaces.server.timed_protocol import dropping_late, protocol_of

__all__ = ["bound_socket", "serve", "serve_until_signal"]

_BEYOND_GRACE_S: Final = 4.0
"""Seconds that the end may take beyond the runs' grace; then the process exits."""
_REFUSALS: Final = 500
"""Connections beyond the requests at a time: they are told why, or wait for their next request."""
_OTHER_FILES: Final = 64
"""Descriptors that stay for the database, recipes, tools and models, at the least."""


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
        sock.listen(2_048)
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
    config = uvicorn.Config(
        app,
        http=protocol_of(connections),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing here reads where a proxy says that a request came from
        lifespan="on",
        ws="none",
        timeout_keep_alive=int(connections.limits.request_s),
        timeout_graceful_shutdown=2,
        backlog=2_048,
    )
    server = _Server(config)
    with contextlib.closing(_as_tcp(sock)) as listening, _Stopper(app, server, tell) as stopper:
        async with dropping_late(connections):
            await server.serve(sockets=[listening])
    return 128 + stopper.caught if stopper.caught is not None else 0


async def serve_until_signal(
    app: AsgiApp, sock: socket.socket, options: ServerOptions, stop: asyncio.Event
) -> None:
    """Serve another ASGI app, which has no state of its own, until `stop`; then its requests are
    ended.

    Args:
        sock: As for `serve`.
    """
    connections = Connections(_limits(options))
    config = uvicorn.Config(
        app,
        http=protocol_of(connections),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        timeout_keep_alive=int(connections.limits.request_s),
        timeout_graceful_shutdown=2,
        backlog=2_048,
    )
    server = _Server(config)

    async def end() -> None:
        await stop.wait()
        server.should_exit = True

    ending = asyncio.create_task(end())
    with contextlib.closing(_as_tcp(sock)) as listening:
        async with dropping_late(connections):
            await server.serve(sockets=[listening])
    ending.cancel()


def _limits(options: ServerOptions) -> ConnectionLimits:
    """The limits of connections, fewer where the process may not open so many files."""
    most = options.max_connections + _REFUSALS
    files = _most_files()
    if files is not None:
        most = min(most, max(files - max(_OTHER_FILES, files // 8), 1))
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
    """Leaves signals to `_Stopper`: uvicorn's own handling would wait for open streams forever."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


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
