"""One request to an endpoint, the connection that a behaviour answers on, and what it sends."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from attrs import frozen

from minions.data.json_values import JsonValue, as_object, as_objects, as_text

__all__ = [
    "USAGE",
    "Behaviour",
    "Exchange",
    "RecordedRequest",
    "call",
    "chunk",
    "chunks",
    "completion",
    "error_body",
    "event",
    "read_request",
]


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
        return dict(as_object(json.loads(self.raw)))

    @property
    def messages(self) -> list[dict[str, JsonValue]]:
        """The messages of the body."""
        return [dict(each) for each in as_objects(self.body["messages"])]

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
        self._transport = writer.transport

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
        self._transport.abort()

    @property
    def client_has_left(self) -> bool:
        """Whether the client has closed the connection."""
        return self._reader.at_eof() or self._transport.is_closing()

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


# --- what a chat-completions server sends --------------------------------------------------------


def call(
    name: str, arguments: Mapping[str, JsonValue] | str = "{}", *, call_id: str = "c1"
) -> dict[str, JsonValue]:
    """A tool call in the provider's form."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


USAGE: Mapping[str, JsonValue] = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
"""The tokens that an answer says it used where it is given no others."""


def completion(
    text: str | None = None,
    *,
    tool_calls: Sequence[Mapping[str, JsonValue]] = (),
    finish_reason: str | None = None,
    usage: Mapping[str, JsonValue] | None = USAGE,
    model: str = "fake-1",
    **message: JsonValue,
) -> dict[str, JsonValue]:
    """The document of a plain answer.

    Args:
        message: Further keys of the message.
    """
    said: dict[str, JsonValue] = {"role": "assistant", "content": text, **message}
    if tool_calls:
        said["tool_calls"] = list(tool_calls)
    reason = finish_reason or ("tool_calls" if tool_calls else "stop")
    choice: dict[str, JsonValue] = {"index": 0, "message": said, "finish_reason": reason}
    document: dict[str, JsonValue] = {"id": "x", "object": "chat.completion", "model": model}
    document["choices"] = [choice]
    if usage is not None:
        document["usage"] = usage
    return document


def chunks(document: Mapping[str, JsonValue]) -> list[JsonValue]:
    """The same answer as documents of a stream: text word by word, arguments in two halves."""
    (choice,) = as_objects(document["choices"])
    message = as_object(choice["message"])
    deltas: list[JsonValue] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in _words(as_text(message.get("content") or ""))]
    deltas += [{"refusal": piece} for piece in _words(as_text(message.get("refusal") or ""))]
    for index, item in enumerate(as_objects(message.get("tool_calls", ()))):
        deltas += [{"tool_calls": [fragment]} for fragment in _fragments(index, item)]
    pieces: list[JsonValue] = [chunk(delta, model=document["model"]) for delta in deltas]
    pieces.append(chunk({}, finish_reason=choice["finish_reason"], model=document["model"]))
    if "usage" in document:
        pieces.append({"model": document["model"], "choices": [], "usage": document["usage"]})
    return pieces


def chunk(
    delta: JsonValue, *, finish_reason: JsonValue = None, model: JsonValue = "fake-1"
) -> dict[str, JsonValue]:
    """One document of a stream."""
    choice: dict[str, JsonValue] = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"object": "chat.completion.chunk", "model": model, "choices": [choice]}


def _words(text: str) -> list[str]:
    return [word for part in text.split(" ") for word in (part, " ")][:-1] if text else []


def _fragments(index: int, item: Mapping[str, JsonValue]) -> list[JsonValue]:
    function = as_object(item["function"])
    text = as_text(function["arguments"])
    half = len(text) // 2
    first = {**item, "index": index, "function": {**function, "arguments": text[:half]}}
    return [first, {"index": index, "function": {"arguments": text[half:]}}]


def event(data: JsonValue | str) -> bytes:
    """One server-sent event; text is sent as it is."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n".encode()


def error_body(message: str, **more: JsonValue) -> bytes:
    """An error body in OpenAI's form."""
    return json.dumps({"error": {"message": message, **more}}).encode()
