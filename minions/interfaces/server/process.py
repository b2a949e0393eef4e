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
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from http import HTTPStatus
from types import FrameType
from typing import ClassVar, Final, Literal, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from minions.contracts.runtime import Log
from minions.data.errors import EnvironmentRefusedError, words_of
from minions.data.json_values import JsonValue
from minions.engine.services.event_loop import breathe
from minions.interfaces.http.connections import (
    Acceptor,
    ConnectionLimits,
    Connections,
    ConnectionWait,
    Rarely,
    client_of,
)
from minions.interfaces.http.http_answers import (
    A2A_ROOT,
    OPENAI_ROOT,
    AsgiApp,
    RefusedError,
    is_of_a2a,
    json_bytes,
    refusal,
)
from minions.interfaces.server.access import sharing_headers
from minions.interfaces.server.app import App
from minions.interfaces.server.projects import ProjectServer
from minions.interfaces.server.server_options import ServerOptions

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


async def serve(app: App | ProjectServer, sock: socket.socket, tell: Callable[[str], None]) -> int:
    """Serve the app until SIGINT or SIGTERM, and return the exit code.

    The first signal stops runs, which can be resumed, and streams; the second ends the process at
    once.

    Args:
        sock: A listening socket, from `bound_socket` or another one. The server owns it from now
            on: the object is detached from it.
    """
    connections = Connections(_limits(app.options))
    app.keep_room(connections.limits.most_open)
    server = _Server(app, connections, app.log, origins=app.options.origins, lifespan="on")
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
    server = _Server(app, connections, log, origins=options.origins, lifespan="off")

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
        origins: Set[str],
        lifespan: Literal["on", "off"],
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol_of(connections, origins),
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

    def __init__(
        self, app: App | ProjectServer, server: uvicorn.Server, tell: Callable[[str], None]
    ) -> None:
        self._patience_s = app.options.grace_s + _BEYOND_GRACE_S
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
        self._watchdog = threading.Timer(self._patience_s, os._exit, [128 + number])
        self._watchdog.daemon = True
        self._watchdog.start()
        self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._stopping = asyncio.ensure_future(self._app.stop())
        self._stopping.add_done_callback(self._end)

    def _end(self, _task: asyncio.Task[None]) -> None:
        """Let the server exit: streams had their last event, and no connection stays open."""
        self._server.should_exit = True


# --- HTTP/1.1 connections whose clients have a time limit ----------------------------------------


_MOST_HEAD_BYTES: Final = 65_536
"""Bytes of a head that is not complete; a complete one has a lower limit."""
_NO_ROOM: Final = RefusedError(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "too-many-connections",
    "Too many connections are open; no more at a time.",
    headers={"retry-after": "1"},
)
_TOO_SLOW: Final = RefusedError(
    HTTPStatus.REQUEST_TIMEOUT,
    "slow-head",
    "The head of the request was not complete in time.",
)
_TOO_LARGE: Final = RefusedError(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    "headers-too-large",
    f"The head has more than {_MOST_HEAD_BYTES:,} bytes.",
)
_NO_REQUEST: Final = RefusedError(
    HTTPStatus.BAD_REQUEST,
    "bad-request",
    "What was sent is no request of HTTP/1.1.",
)


class _RawRefusal:
    """The response to a head that is refused before it is complete, in the form of each API.

    Its bytes are made beforehand: where files run out, no module can be loaded for them.
    """

    def __init__(self, error: RefusedError) -> None:
        self._problem = _response_of(error, "/")
        self._of_openai = _response_of(error, OPENAI_ROOT)
        self._of_a2a = _response_of(error, A2A_ROOT)

    def to(self, url: bytes, headers: Sequence[tuple[bytes, bytes]], origins: Set[str]) -> bytes:
        """The response for a request of which as much has come."""
        path = url.decode("latin-1").partition("?")[0]
        found = self._of_a2a if is_of_a2a(path) else self._problem
        head, rest = self._of_openai if path.startswith(OPENAI_ROOT) else found
        shared = [b"%s: %s\r\n" % each for each in sharing_headers(headers, origins)]
        return b"".join((head, *shared, rest))


class TimedProtocol(HttpToolsProtocol):
    """One connection, which tells what it waits for."""

    # In slots: with them in its dict an instance had more names than instances can share, 1 KiB.
    __slots__ = (
        "_head_bytes",
        "_is_in_body",
        "_is_in_head",
        "_is_unread",
        "_left",
        "awaited",
        "owner",
        "since",
    )

    open_connections: ClassVar[Connections]
    origins: ClassVar[Set[str]]
    """Whose pages may read refusals."""
    too_slow: ClassVar[_RawRefusal]
    too_large: ClassVar[_RawRefusal]
    no_request: ClassVar[_RawRefusal]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Count the connection, for which there is room."""
        super().connection_made(transport)
        self._is_in_head = True
        self._is_in_body = False
        self._head_bytes = self._left = 0
        self._is_unread = False
        self.owner = client_of(transport.get_extra_info("peername"))
        self.awaited: ConnectionWait | None = ConnectionWait.HEAD
        self.since = self.loop.time()
        self.open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.open_connections.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        if self.transport.is_closing():
            return
        before = self.awaited
        super().data_received(data)
        self._note()
        if self.awaited is ConnectionWait.HEAD and before in (
            ConnectionWait.HEAD,
            ConnectionWait.REQUEST,
        ):
            self._head_bytes += len(data)
            if self._head_bytes > _MOST_HEAD_BYTES:
                self._refuse(self.too_large)

    def send_400_response(self, msg: str) -> None:
        """What came is no request; said where no answer is in the middle of being sent."""
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's type leaves None out
        self._refuse(self.no_request if cycle is None or cycle.response_complete else None)

    def on_message_begin(self) -> None:
        """The first byte of a request has come."""
        self._is_in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head has come."""
        self._is_in_head, self._is_in_body, self._head_bytes = False, True, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The whole request has come."""
        self._is_in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The response was sent."""
        super().on_response_complete()
        self._note()

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        super().pause_writing()
        self._is_unread, self._left = True, self.transport.get_write_buffer_size()
        self._note()

    def resume_writing(self) -> None:
        """The client has taken most of it."""
        super().resume_writing()
        self._is_unread = False
        self._note()

    def look(self) -> None:
        """Note whether the client has taken something since the last look."""
        if (left := self.transport.get_write_buffer_size()) < self._left:
            self.since = self.loop.time()
        self._left = left

    def drop(self) -> None:
        """Close the connection; one in the middle of its head is told why."""
        is_told = self._is_in_head and self._head_bytes and not self._is_unread
        self._refuse(self.too_slow if is_told else None)

    def _refuse(self, refusal: _RawRefusal | None) -> None:
        """Send the response, as far as it can be sent at once, and close the connection."""
        transport = self.transport
        if transport.is_closing() and not transport.get_write_buffer_size():
            return
        try:
            if refusal is not None and not transport.is_closing():
                is_known = self.headers is not None  # uvicorn has None before the first request
                url, headers = (self.url, self.headers) if is_known else (b"/", ())
                transport.write(refusal.to(url, headers, self.origins))
        finally:
            if transport.get_write_buffer_size():
                transport.abort()  # to close it would wait for a client that does not read
            else:
                transport.close()

    def _note(self) -> None:
        """Note what the connection waits for now, and since when."""
        awaited = self._what_is_awaited()
        if awaited is not self.awaited:
            self.awaited, self.since = awaited, self.loop.time()

    def _what_is_awaited(self) -> ConnectionWait | None:
        if self._is_unread:
            return ConnectionWait.READER
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's type leaves None out
        is_answered = cycle is None or cycle.response_complete
        if self._is_in_body:
            return ConnectionWait.REST if is_answered else ConnectionWait.BODY
        if not is_answered or self.pipeline:
            return None
        return ConnectionWait.HEAD if self._is_in_head else ConnectionWait.REQUEST


def _response_of(error: RefusedError, path: str) -> tuple[bytes, bytes]:
    """The head of a response to what is no whole request, and its end, between which there may be
    further headers.
    """
    answer = refusal(error, path)
    body = json_bytes(cast("JsonValue", answer.body))
    headers = {
        "content-type": answer.media_type,
        "content-length": str(len(body)),
        "connection": "close",
        **answer.headers,
    }
    lines = [f"HTTP/1.1 {error.status.value} {error.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "")).encode("latin-1"), b"\r\n" + body


def no_room_response() -> bytes:
    """The response for a connection for which there is no room."""
    return b"".join(_response_of(_NO_ROOM, "/"))


def protocol_of(connections: Connections, origins: Set[str]) -> type[TimedProtocol]:
    """The protocol whose connections are counted there; pages of `origins` may read refusals."""
    own = {
        "open_connections": connections,
        "origins": origins,
        "too_slow": _RawRefusal(_TOO_SLOW),
        "too_large": _RawRefusal(_TOO_LARGE),
        "no_request": _RawRefusal(_NO_REQUEST),
    }
    return type("CountedProtocol", (TimedProtocol,), own)


@contextlib.asynccontextmanager
async def dropping_late(connections: Connections, log: Log) -> AsyncIterator[None]:
    """Close connections that wait too long, as long as the block runs."""
    dropping = asyncio.ensure_future(_drop_late(connections, log))
    try:
        yield
    finally:
        dropping.cancel()


async def _drop_late(connections: Connections, log: Log) -> None:
    loop = asyncio.get_running_loop()
    failures = Rarely(loop.time)
    while True:
        await asyncio.sleep(min(1.0, connections.limits.head_s / 4))
        while connections.drop_late(loop.time()):
            await breathe()
        if (failure := connections.failure) is None:
            continue
        connections.failure = None
        if (count := failures.count()) is not None:
            log.warning("connections_not_closed", reason=words_of(failure), count=count)
