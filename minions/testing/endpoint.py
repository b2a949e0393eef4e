"""A chat-completions server on 127.0.0.1 with scripted answers, correct or faulty.

    async with ChatEndpoint(status(429, headers={"Retry-After": "1"}), answer("hello")) as server:
        model = OpenAIModel("m", base_url=server.base_url)
        ...
    assert server.requests[0].body["model"] == "m"

Each request uses up one behaviour, in the order of the requests; after them `default` answers.
Answers are sent as an event stream if the request says `"stream": true`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

from attrs import frozen

from minions.contracts.errors import UsageError
from minions.contracts.json_values import JsonValue

__all__ = [
    "USAGE",
    "Behaviour",
    "ChatEndpoint",
    "Exchange",
    "RecordedRequest",
    "answer",
    "body",
    "call",
    "chunk",
    "chunks",
    "completion",
    "cut",
    "document",
    "drop",
    "error_body",
    "event",
    "faults",
    "hang",
    "huge",
    "silent_after",
    "slow",
    "status",
    "stream",
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


class ChatEndpoint:
    """A server for `async with`. It listens on this machine only."""

    def __init__(
        self, *behaviours: Behaviour, default: Behaviour | None = None, port: int = 0
    ) -> None:
        self.requests: list[RecordedRequest] = []
        self.left = asyncio.Event()
        """Set when a client has closed its connection in the middle of an answer."""
        self.waiting = asyncio.Event()
        """Set when an answer has stopped sending without ending."""
        self.connections = 0
        self._port = port
        self._behaviours = list(behaviours)
        self._default = default or status(500, error_body("the script has no more answers"))
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def host(self) -> str:
        """`127.0.0.1:port`."""
        if self._server is None:
            raise UsageError("Use `async with ChatEndpoint(…)`: it listens only there.")
        port: int = self._server.sockets[0].getsockname()[1]
        return f"127.0.0.1:{port}"

    @property
    def base_url(self) -> str:
        """The `base_url` of a model that calls this server."""
        return f"http://{self.host}/v1"

    @property
    def tasks(self) -> Set[asyncio.Task[None]]:
        """The tasks that serve open connections."""
        return frozenset(self._tasks)

    def then(self, *behaviours: Behaviour) -> None:
        """Append behaviours to the script."""
        self._behaviours += behaviours

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            while (request := await _read_request(reader)) is not None:
                if not await self._answer(request, reader, writer):
                    break
        except (asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            pass  # the end of the test, or of the client
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _answer(
        self,
        request: RecordedRequest,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        self.requests.append(request)
        behaviour = self._behaviours.pop(0) if self._behaviours else self._default
        exchange = Exchange(request, reader, writer, self.waiting)
        try:
            await behaviour(exchange)
        except ConnectionError:
            self.left.set()
            raise
        return exchange.keeps_open


async def _read_request(reader: asyncio.StreamReader) -> RecordedRequest | None:
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


# --- answers that are as they should be -----------------------------------------------------


def call(
    name: str, arguments: Mapping[str, JsonValue] | str = "{}", *, call_id: str = "c1"
) -> dict[str, JsonValue]:
    """A tool call in the provider's form."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


USAGE: Mapping[str, JsonValue] = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}


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
    choices = cast("list[dict[str, Any]]", document["choices"])  # Any: as `completion` made it
    message = choices[0]["message"]
    deltas: list[JsonValue] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in _words(message.get("content") or "")]
    deltas += [{"refusal": piece} for piece in _words(message.get("refusal") or "")]
    for index, item in enumerate(message.get("tool_calls", ())):
        deltas += [{"tool_calls": [fragment]} for fragment in _fragments(index, item)]
    pieces: list[JsonValue] = [chunk(delta, model=document["model"]) for delta in deltas]
    pieces.append(chunk({}, finish_reason=choices[0]["finish_reason"], model=document["model"]))
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
    function = cast("dict[str, str]", item["function"])
    text = function["arguments"]
    half = len(text) // 2
    first = {**item, "index": index, "function": {**function, "arguments": text[:half]}}
    return [first, {"index": index, "function": {"arguments": text[half:]}}]


def event(data: JsonValue | str) -> bytes:
    """One server-sent event; text is sent as it is."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n".encode()


def answer(
    text: str | None = None,
    *,
    tool_calls: Sequence[Mapping[str, JsonValue]] = (),
    finish_reason: str | None = None,
    usage: Mapping[str, JsonValue] | None = USAGE,
    model: str = "fake-1",
    **message: JsonValue,
) -> Behaviour:
    """A correct answer, plain or streamed as the request asks."""
    document = completion(
        text,
        tool_calls=tool_calls,
        finish_reason=finish_reason,
        usage=usage,
        model=model,
        **message,
    )

    async def behave(exchange: Exchange) -> None:
        if exchange.request.wants_stream:
            await stream([*chunks(document), "[DONE]"])(exchange)
        else:
            await exchange.send(json.dumps(document).encode())

    return behave


# --- answers that are not ------------------------------------------------------------------------


def document(value: JsonValue) -> Behaviour:
    """A 200 with any JSON body."""
    return body(json.dumps(value).encode())


def body(raw: bytes, *, content_type: str = "application/json") -> Behaviour:
    """A 200 with any bytes as its body."""
    return status(200, raw, headers={"Content-Type": content_type})


def status(code: int, raw: bytes = b"", *, headers: Mapping[str, str] | None = None) -> Behaviour:
    """Any status with any body."""

    async def behave(exchange: Exchange) -> None:
        await exchange.send(raw, status=code, headers=headers)

    return behave


def error_body(message: str, **more: JsonValue) -> bytes:
    """An error body in OpenAI's form."""
    return json.dumps({"error": {"message": message, **more}}).encode()


def stream(
    events: Iterable[JsonValue | str | bytes], *, ends: str = "in order", pause_s: float = 0
) -> Behaviour:
    """An event stream.

    Args:
        events: JSON and text become events; bytes are sent raw.
        ends: `in order`, `cut` (connection dropped), `silent` (nothing more is sent), `open` (the
            caller continues it).
        pause_s: Seconds to wait before each event.
    """

    async def behave(exchange: Exchange) -> None:
        await exchange.begin_stream()
        for item in events:
            await asyncio.sleep(pause_s)
            await exchange.send_piece(item if isinstance(item, bytes) else event(item))
        if ends == "silent":
            await exchange.until_client_leaves()
        elif ends == "cut":
            exchange.drop()
        elif ends == "in order":
            await exchange.end_stream()

    return behave


def cut(raw: bytes) -> Behaviour:
    """A plain answer whose content length is larger than its body, then a dropped connection."""

    async def behave(exchange: Exchange) -> None:
        await exchange.send(raw, headers={"Content-Length": str(len(raw) + 100)})
        exchange.drop()

    return behave


def hang() -> Behaviour:
    """Accepts the request and sends nothing."""

    async def behave(exchange: Exchange) -> None:
        await exchange.until_client_leaves()

    return behave


def drop() -> Behaviour:
    """Closes the connection without sending a byte."""

    async def behave(exchange: Exchange) -> None:
        exchange.drop()

    return behave


def slow(seconds: float, behaviour: Behaviour) -> Behaviour:
    """Waits, then follows the behaviour."""

    async def behave(exchange: Exchange) -> None:
        await asyncio.sleep(seconds)
        await behaviour(exchange)

    return behave


def silent_after(raw: bytes) -> Behaviour:
    """The first bytes of a plain answer, then silence."""

    async def behave(exchange: Exchange) -> None:
        await exchange.send(raw, headers={"Content-Length": str(len(raw) + 100)})
        await exchange.until_client_leaves()

    return behave


def huge(total_bytes: int, *, code: int = 200) -> Behaviour:
    """A body of that many bytes."""

    async def behave(exchange: Exchange) -> None:
        kind = {"Content-Type": "application/json", "Content-Length": str(total_bytes)}
        await exchange.send_head(code, kind)
        for _ in range(total_bytes // 65_536):
            await exchange.write(b"x" * 65_536)

    return behave


def faults() -> Mapping[str, Behaviour]:
    """One behaviour for each way in which servers fail, by name, for parametrized tests."""
    begun = json.dumps(completion("half an"))[:40].encode()
    return {
        "refuses the key": status(401, error_body("no such key")),
        "has no such model": status(404, error_body("no such model")),
        "is asked too often": status(429, error_body("slow down"), headers={"Retry-After": "0"}),
        "fails": status(500, error_body("something broke")),
        "is overloaded": status(503),
        "answers with HTML": body(b"<html>Welcome</html>", content_type="text/html"),
        "answers with no JSON": body(b"{"),
        "answers with another document": document({"hello": "world"}),
        "answers with nothing": document({"choices": []}),
        "drops the connection": drop(),
        "breaks off": cut(begun),
        "breaks a stream off": stream([chunk({"content": "half an"})], ends="cut"),
        "falls silent": silent_after(begun),
        "says nothing": hang(),
        "sends too much": huge(32 * 1_048_576),
    }
