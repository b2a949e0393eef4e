"""One request to an endpoint, and the connection on which a behaviour answers it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias, cast

from attrs import frozen

from minions.data.json_values import JsonValue

__all__ = ["Behaviour", "Exchange", "RecordedRequest", "read_request"]


@frozen(kw_only=True)
class RecordedRequest:
    """One request that was received."""

    method: str
    path: str
    headers: Mapping[str, str]
    """Headers by name in lower case."""
    raw: bytes

    @property
    def body(self) -> dict[str, JsonValue]:
        """The JSON body."""
        return cast("dict[str, JsonValue]", json.loads(self.raw))

    @property
    def messages(self) -> list[dict[str, JsonValue]]:
        """The messages of the body."""
        return cast("list[dict[str, JsonValue]]", self.body["messages"])

    @property
    def wants_stream(self) -> bool:
        """Whether the body says `stream: true`."""
        return self.body.get("stream") is True


class Exchange:
    """One request with the methods that answer it."""

    def __init__(
        self,
        request: RecordedRequest,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        waiting: asyncio.Event,
    ) -> None:
        self.request = request
        self.keeps_open = True
        self.waiting = waiting
        self._reader = reader
        self._writer = writer

    async def send(
        self, body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a complete answer with its content length."""
        named = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        await self.send_head(status, {**named, **(headers or {})})
        await self.write(body)

    async def send_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status line and headers."""
        lines = [f"HTTP/1.1 {status} Scripted"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        await self.write("\r\n".join([*lines, "", ""]).encode())

    async def begin_stream(self) -> None:
        """Send the head of an event stream."""
        kind = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        await self.send_head(200, kind)

    async def send_piece(self, data: bytes) -> None:
        """Send bytes of a stream at once."""
        await self.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end_stream(self) -> None:
        """End a stream in order."""
        await self.write(b"0\r\n\r\n")

    async def write(self, data: bytes) -> None:
        """Send raw bytes."""
        self._writer.write(data)
        await self._writer.drain()

    def drop(self) -> None:
        """Close the connection after this answer."""
        self.keeps_open = False

    def reset(self) -> None:
        """Reset the connection at once: what was sent and not yet received may be lost."""
        self.keeps_open = False
        plain: socket.socket = self._writer.get_extra_info("socket")
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    @property
    def client_has_left(self) -> bool:
        """Whether the client has closed the connection."""
        return self._reader.at_eof() or self._writer.transport.is_closing()

    async def until_client_leaves(self) -> None:
        """Send nothing until the client closes the connection."""
        self.waiting.set()
        while await self._reader.read(65_536):
            pass
        raise ConnectionResetError("the client left")


Behaviour: TypeAlias = Callable[[Exchange], Awaitable[None]]
"""Answers one request, as it should be or not."""


async def read_request(reader: asyncio.StreamReader) -> RecordedRequest | None:
    """The next request of a connection; None: the client has closed it.

    Raises:
        IncompleteReadError: It was closed within the body.
    """
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return RecordedRequest(method=method, path=path, headers=headers, raw=raw)
