"""The HTTP server of a worker: `/health`, `/ready`; for who has a token metrics, and pieces of
answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Final

from attrs import frozen

from minions import __version__
from minions.adapters.telemetry.prometheus import CONTENT_TYPE
from minions.contracts.runtime import Log
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.json_values import JsonValue, dumps
from minions.interfaces.http.connections import (
    Acceptor,
    ConnectionLimits,
    Connections,
    ConnectionWait,
    client_of,
)
from minions.interfaces.http.http_answers import EVENT_STREAM
from minions.interfaces.http.token_file import FileTokens
from minions.interfaces.http.tokens import Caller, TokenScope, caller_of, check_token, digest_of
from minions.interfaces.worker.delta_streams import DeltaFollower, DeltaStreams
from minions.interfaces.worker.worker import Worker

METRICS: Final = "/metrics"
_LONGEST_LINE: Final = 4_096
_REQUEST_S: Final = 5.0
_MOST_LINES: Final = 100
_MOST_CONNECTIONS: Final = 200
_SEND_S: Final = 20.0
"""Seconds that a follower may take for what is sent at once; then it is dropped."""


@frozen(kw_only=True)
class _Request:
    method: str
    path: str
    authorization: Sequence[str]
    """The values of that header; of two, none can be trusted."""

    @property
    def followed_run(self) -> str | None:
        """The id of the run whose pieces are asked for; None: something else is."""
        match self.path.split("/"):
            case ["", "runs", run_id, "deltas"] if self.method == "GET":
                return run_id
        return None


class DeltaAccess:
    """Who may read metrics and the pieces of answers, and where these are."""

    def __init__(
        self, streams: DeltaStreams, tokens: FileTokens, now: Callable[[], datetime]
    ) -> None:
        """Take the tokens of a file.

        Args:
            now: The time of day, by which tokens expire.
        Raises:
            UsageError: `bad-token`; the only token is too short to be one, or there is none.
        """
        if tokens.proxy is not None and not tokens.tokens:
            raise UsageError(
                "--token-file has no [[tokens]]: callers of a worker send a token, its [proxy] "
                "counts for `minions serve` alone.",
                code="bad-token",
            )
        self.streams = streams
        self._now = now
        self._tokens = tokens.tokens
        self._sha256 = None if tokens.tokens else digest_of(check_token(tokens.token))

    def refusal(self, request: _Request, run_id: str | None) -> bytes | None:
        """The response to a caller that gets no stream, or no metrics; None: it gets them.

        Args:
            run_id: The run whose pieces are asked for; None: metrics are.
        """
        caller = self._caller(request)
        if caller is None:
            return _refusal(HTTPStatus.UNAUTHORIZED, "send Authorization: Bearer TOKEN")
        if caller.expired(self._now()) is not None:
            return _refusal(HTTPStatus.UNAUTHORIZED, "the token has expired")
        if TokenScope.READ not in caller.scopes:
            return _refusal(HTTPStatus.FORBIDDEN, "the token lacks the scope 'read'")
        if run_id is None:
            if caller.owner is None or TokenScope.ALL in caller.scopes:
                return None
            return _refusal(HTTPStatus.FORBIDDEN, "metrics count the runs of all users")
        if not self.streams.has_run(run_id):
            return _refusal(HTTPStatus.NOT_FOUND, "this worker does not execute that run")
        if not self.streams.has_room:
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, "there are too many followers")
        return None

    def _caller(self, request: _Request) -> Caller | None:
        """Whose token the request has; None: it has none, or a wrong one."""
        given = request.authorization[0] if len(request.authorization) == 1 else ""
        scheme, _, token = given.partition(" ")
        caller = caller_of(token.strip(), self._sha256, self._tokens)
        return caller if scheme.lower() == "bearer" else None


@asynccontextmanager
async def serving_health(
    worker: Worker, host: str, port: int, log: Log, *, deltas: DeltaAccess | None = None
) -> AsyncIterator[int]:
    """Answer within the block; gives the port, which is a free one for 0.

    Args:
        log: Is told, once a minute, of connections that cannot be accepted.
        deltas: Who may read metrics and pieces of answers; None: nobody.
    Raises:
        EnvironmentRefusedError: `port-taken`; nothing can listen there.
    """
    loop = asyncio.get_running_loop()
    connections = Connections(ConnectionLimits(most_open=_MOST_CONNECTIONS))
    answering: set[asyncio.Task[object]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asker = _Asker(writer, loop.time())
        connections.add(asker)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a server's connections are tasks
        answering.add(task)
        try:
            with contextlib.suppress(
                TimeoutError, OSError, ValueError, asyncio.IncompleteReadError
            ):
                await _answer_request(worker, deltas, asker, reader)
        finally:
            writer.close()
            connections.remove(asker)
            answering.discard(task)

    def make_protocol() -> asyncio.Protocol:
        reader = asyncio.StreamReader(limit=_LONGEST_LINE)
        return asyncio.StreamReaderProtocol(reader, answer)

    sockets = await _listening(host, port)
    found: int = sockets[0].getsockname()[1]
    acceptors = [
        Acceptor(
            sock,
            make_protocol,
            admits=lambda address, coming: connections.has_room(
                client_of(address), loop.time(), coming=coming
            ),
            refusal=_refusal(HTTPStatus.SERVICE_UNAVAILABLE, "there are too many connections"),
            log=log,
        )
        for sock in sockets
    ]
    for acceptor in acceptors:
        acceptor.start()
    try:
        yield found
    finally:
        for acceptor in acceptors:
            acceptor.close()
        if deltas is not None:
            deltas.streams.cut()
        for task in answering:
            task.cancel()
        if answering:
            await asyncio.wait(answering)


async def _listening(host: str, port: int) -> Sequence[socket.socket]:
    """Sockets that listen there: a name may have several addresses.

    Raises:
        EnvironmentRefusedError: `port-taken`.
    """
    try:
        server = await asyncio.start_server(_ignore, host, port, start_serving=False)
    except (OSError, OverflowError) as error:
        raise EnvironmentRefusedError(
            f"The worker cannot listen on {host}:{port}: {error}. Give another port with --health.",
            code="port-taken",
        ) from error
    sockets = [sock.dup() for sock in server.sockets]
    server.close()
    for sock in sockets:
        sock.listen()
    return sockets


async def _ignore(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Never called: asyncio only finds the addresses, and binds them."""


class _Asker:
    """One connection, until its request has come: a new one may take its place."""

    def __init__(self, writer: asyncio.StreamWriter, now: float) -> None:
        self.writer = writer
        self._transport = writer.transport
        self.owner = client_of(writer.get_extra_info("peername"))
        self.awaited: ConnectionWait | None = ConnectionWait.HEAD
        self.since = now

    def look(self) -> None:
        """Nothing is noted: what is sent has a limit of its own."""

    def drop(self) -> None:
        """Close the connection at once."""
        self._transport.abort()


async def _answer_request(
    worker: Worker, deltas: DeltaAccess | None, asker: _Asker, reader: asyncio.StreamReader
) -> None:
    """Read one request, and answer it.

    Raises:
        OSError, TimeoutError, ValueError: The caller left, was too slow, or sent something else.
    """
    writer = asker.writer
    async with asyncio.timeout(_REQUEST_S):
        request = await _request(reader)
        asker.awaited = None
        run_id = request.followed_run
        if deltas is None or (run_id is None and request.path != METRICS):
            response: bytes | None = await _answer(worker, request.path)
        elif run_id is None:
            response = deltas.refusal(request, None) or await _metrics(worker)
        else:
            response = deltas.refusal(request, run_id)
        if response is not None:
            writer.write(response)
            await writer.drain()
    if response is None and deltas is not None and run_id is not None:
        writer.transport.set_write_buffer_limits(high=0)  # what waits, waits in the follower
        # Nothing was awaited since it was not refused: the run is still executed.
        with deltas.streams.following(run_id, writer.transport.abort) as follower:
            await _stream(follower, reader, writer)


async def _stream(
    follower: DeltaFollower, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send what comes until the run is no longer executed here, or the reader leaves.

    Raises:
        OSError, TimeoutError: The reader left, or is too slow.
    """
    leaving = asyncio.ensure_future(reader.read(1))
    leaving.add_done_callback(lambda _: follower.close())
    try:
        data = _STREAM_HEAD
        while data:
            writer.write(data)
            async with asyncio.timeout(_SEND_S):
                await writer.drain()
            data = await follower.batch()
    except TimeoutError:
        writer.transport.abort()
        raise
    finally:
        leaving.cancel()


_STREAM_HEAD: Final = (
    f"HTTP/1.1 200 OK\r\ncontent-type: {EVENT_STREAM}\r\ncache-control: no-store\r\n"
    "connection: close\r\n\r\n"
).encode()
"""No length: the stream ends with its connection."""


async def _request(reader: asyncio.StreamReader) -> _Request:
    """One request; of its headers, only the token is looked at.

    Raises:
        ValueError: It is no GET or HEAD, or too long.
    """
    method, target, _ = (await reader.readline()).decode("latin-1").split(" ", 2)
    authorization: list[str] = []
    for _number in range(_MOST_LINES):
        line = (await reader.readline()).decode("latin-1").strip()
        if not line:
            break
        name, _, value = line.partition(":")
        if name.lower() == "authorization":
            authorization.append(value.strip())
    else:
        raise ValueError("too many headers")
    if method not in ("GET", "HEAD"):
        raise ValueError(method)
    return _Request(method=method, path=target.partition("?")[0], authorization=authorization)


async def _answer(worker: Worker, path: str) -> bytes:
    if path == "/health":
        status = "stopping" if worker.is_stopping else "ok"
        return _response(HTTPStatus.OK, {"status": status, "version": __version__})
    if path == "/ready":
        problem = await worker.problem()
        if problem is None:
            return _response(HTTPStatus.OK, {"status": "ready", "worker": worker.plan.name})
        return _response(HTTPStatus.SERVICE_UNAVAILABLE, {"status": problem})
    return _refusal(
        HTTPStatus.NOT_FOUND, "there is /health and /ready, and with --token-file /metrics"
    )


async def _metrics(worker: Worker) -> bytes:
    try:
        page = await worker.metrics_page()
    except EnvironmentRefusedError as error:
        return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, error.message)
    return _bytes_of(HTTPStatus.OK, page, CONTENT_TYPE)


def _refusal(status: HTTPStatus, words: str) -> bytes:
    return _response(status, {"status": words})


def _response(status: HTTPStatus, document: JsonValue) -> bytes:
    return _bytes_of(status, dumps(document).encode(), "application/json")


def _bytes_of(status: HTTPStatus, body: bytes, media_type: str) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {media_type}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
