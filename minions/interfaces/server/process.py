"""A process that serves one app: its socket, its signals, its end. Importing this loads uvicorn."""

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

__all__ = ["bound_socket", "serve"]

_BEYOND_GRACE_S: Final = 4.0
"""What the rest of the end may take; then the process leaves, and every fact is stored."""
_HEADER_BYTES: Final = 32_768


def bound_socket(host: str, port: int) -> socket.socket:
    """Listening there; port 0 takes a free one.

    Raises:
        EnvironmentRefusedError: The port is taken, or there is no such address.
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
    """Until SIGINT or SIGTERM; the exit code.

    The first signal ends runs such that they can be resumed, and streams; the second leaves at
    once.

    Args:
        sock: It listens: one of `bound_socket`, or any other. It is the server's from now on:
            the object is detached from it.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        h11_max_incomplete_event_size=_HEADER_BYTES,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
        backlog=2_048,
    )
    server = _Server(config)
    with contextlib.closing(_as_tcp(sock)) as listening, _Stopper(app, server, tell) as stopper:
        await server.serve(sockets=[listening])
    return 128 + stopper.caught if stopper.caught is not None else 0


def _as_tcp(sock: socket.socket) -> socket.socket:
    """The same socket with its protocol named; one of another family stays as it is.

    asyncio sets TCP_NODELAY only on connections whose socket names TCP. Without that option the
    body of an answer on a kept connection waits 40 ms for the acknowledgement of its head.
    """
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return sock
    return socket.socket(sock.family, sock.type, socket.IPPROTO_TCP, fileno=sock.detach())


class _Server(uvicorn.Server):
    """Leaves signals to us: open streams would keep its own way from ever coming to an end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
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
        """Catch from now on."""
        self._loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        # Not the loop's own way: that waits for a loop which somebody's code may be blocking.
        self._before = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def __exit__(self, *_error: object) -> None:
        """As before; once a signal came, whatever is still to be closed has until the end of it."""
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
        """Streams have had their last event: nothing keeps connections open."""
        self._server.should_exit = True
