"""HTTP/1.1 connections whose clients have a time limit. Importing this loads uvicorn.

uvicorn times the pause between two requests only: not a head or a body that comes byte by byte,
nor how large a head may become.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import ClassVar, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from minions.contracts.runtime import Log
from minions.data.errors import words_of
from minions.data.json_values import JsonValue
from minions.engine.services.breathing import breathe
from minions.interfaces.http.acceptor import Rarely
from minions.interfaces.http.connections import Awaited, Connections, client_of
from minions.interfaces.http.problems import RefusedError
from minions.interfaces.http.responses import json_bytes, refusal

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
    too_slow: ClassVar[bytes]
    """Responses are made beforehand: where files run out, no module can be loaded for them."""
    too_large: ClassVar[bytes]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Count the connection, for which there is room."""
        super().connection_made(transport)
        self._is_in_head = True
        self._is_in_body = False
        self._head_bytes = self._left = 0
        self._is_unread = False
        self.owner = client_of(transport.get_extra_info("peername"))
        self.awaited: Awaited | None = Awaited.HEAD
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
        if self.awaited is Awaited.HEAD and before in (Awaited.HEAD, Awaited.REQUEST):
            self._head_bytes += len(data)
            if self._head_bytes > _MOST_HEAD_BYTES:
                self._refuse(self.too_large)

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
        self._refuse(self.too_slow if is_told else b"")

    def _refuse(self, response: bytes) -> None:
        """Send the response, as far as it can be sent at once, and close the connection."""
        transport = self.transport
        if transport.is_closing() and not transport.get_write_buffer_size():
            return
        try:
            if response and not transport.is_closing():
                transport.write(response)
        finally:
            if transport.get_write_buffer_size():
                transport.abort()  # to close it would wait for a client that does not read
            else:
                transport.close()

    def _note(self) -> None:
        """Note what the connection waits for now, and since when."""
        awaited = self._awaited()
        if awaited is not self.awaited:
            self.awaited, self.since = awaited, self.loop.time()

    def _awaited(self) -> Awaited | None:
        if self._is_unread:
            return Awaited.READER
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's type leaves None out
        is_answered = cycle is None or cycle.response_complete
        if self._is_in_body:
            return Awaited.REST if is_answered else Awaited.BODY
        if not is_answered or self.pipeline:
            return None
        return Awaited.HEAD if self._is_in_head else Awaited.REQUEST


def _response_of(error: RefusedError) -> bytes:
    """The whole response for a connection whose request is not known."""
    answer = refusal(error, "/")
    body = json_bytes(cast("JsonValue", answer.body))
    headers = {
        "content-type": answer.media_type,
        "content-length": str(len(body)),
        "connection": "close",
        **answer.headers,
    }
    lines = [f"HTTP/1.1 {error.status.value} {error.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join((*lines, "\r\n")).encode("latin-1") + body


def no_room_response() -> bytes:
    """The response for a connection for which there is no room."""
    return _response_of(_NO_ROOM)


def protocol_of(connections: Connections) -> type[TimedProtocol]:
    """The protocol whose connections are counted there."""
    own = {
        "open_connections": connections,
        "too_slow": _response_of(_TOO_SLOW),
        "too_large": _response_of(_TOO_LARGE),
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
