"""One HTTP/1.1 connection: it writes a request and reads its response."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Final, cast

from minions.adapters.http.http_response import (
    BadResponseError,
    BrokenBodyError,
    ResponseHead,
    ResponseReader,
)

_MOST_BUFFERED: Final = 262_144
"""Unread bytes of a body above which reading from the socket is paused."""
_JOINED_BYTES: Final = 65_536
"""Bytes of content up to which it is sent with the head: saves a system call and a packet."""


class DisconnectedError(Exception):
    """The connection ended or broke before a response came."""


class HttpConnection(asyncio.Protocol):
    """Serves one request at a time. Between two requests the server may only close it."""

    def __init__(self) -> None:
        """Made by the event loop, before the connection is open."""
        self.idle_since = 0.0
        """Time of the event loop at which the pool got it back."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport  # from `connection_made` on
        self._reader = ResponseReader()
        self._is_asked = False
        """Whether a request was sent whose response has not ended."""
        self._waiter: asyncio.Future[None] | None = None
        self._error: BadResponseError | None = None
        self._is_lost = False
        self._why_lost: Exception | None = None
        self._is_paused = False

    # --- asyncio ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Enable TCP keep-alive: a model may take minutes to answer."""
        self._transport = cast("asyncio.Transport", transport)  # as create_connection makes them
        plain = transport.get_extra_info("socket")
        if plain is not None:
            with contextlib.suppress(OSError):  # a help, no more
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        """Parse the bytes; a response that cannot be parsed closes the connection."""
        if not self._is_asked:
            self.abort()  # without a request no response is expected
            return
        try:
            self._reader.feed(data)
        except BadResponseError as error:
            self._error = error
            self.abort()
        self._pause_if_full()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the reader, which raises."""
        self._is_lost, self._why_lost = True, exc
        if exc is None:
            self._reader.feed_end()
        self._wake()

    # --- one exchange ----------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether it can still be written to."""
        return not self._transport.is_closing()

    async def ask(self, head: bytes, content: bytes, *, has_body: bool = True) -> ResponseHead:
        """Send a request; returns the head of its response.

        Raises:
            DisconnectedError: The server closed the connection instead.
            BadResponseError: The answer is not HTTP.
        """
        self._reader = reader = ResponseReader(has_body=has_body)
        self._is_asked = True
        if len(content) <= _JOINED_BYTES:
            self._transport.write(head + content)
        else:
            self._transport.write(head)
            self._transport.write(content)
        while reader.head is None:
            if self._error is not None:
                raise self._error
            if self._is_lost:
                why = self._why_lost or "server disconnected"
                raise DisconnectedError(str(why)) from self._why_lost
            await self._news()
        return reader.head

    @property
    def is_at_end(self) -> bool:
        """Whether the whole body was read."""
        return self._reader.is_at_end

    async def read(self) -> bytes:
        """The next bytes of the body, as soon as any arrive; empty at its end.

        Raises:
            BrokenBodyError: The connection ended before the body did, or it cannot be decoded.
        """
        while not (data := self._reader.take()):
            if self._reader.is_complete:
                return b""
            if self._error is not None:
                raise BrokenBodyError(str(self._error))
            if self._is_lost:
                why = f" ({self._why_lost})" if self._why_lost else ""
                raise BrokenBodyError(f"the connection was closed before its end{why}")
            self._resume()
            await self._news()
        return data

    def finish(self, head: ResponseHead) -> bool:
        """End the exchange; returns whether the connection is reusable, else it is closed."""
        self._is_asked = False
        is_reusable = (
            self._reader.is_at_end
            and not self._reader.has_leftover
            and head.keeps_connection
            and self._transport.get_write_buffer_size() == 0
            and self.is_open
        )
        if is_reusable:
            self._resume()
        else:
            self.abort()
        return is_reusable

    def abort(self) -> None:
        """Close at once; pending data is dropped."""
        self._transport.abort()

    async def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        """Start TLS on this connection, within the tunnel of a proxy."""
        self._is_asked = False
        transport = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        self._transport = cast("asyncio.Transport", transport)

    # --- waiting ---------------------------------------------------------------------------------

    async def _news(self) -> None:
        """Wait for bytes, or for the end of the connection."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _pause_if_full(self) -> None:
        is_full = self._reader.buffered > _MOST_BUFFERED and not self._reader.is_complete
        if is_full and not self._is_paused and self.is_open:
            self._transport.pause_reading()
            self._is_paused = True

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if self.is_open:
                self._transport.resume_reading()
