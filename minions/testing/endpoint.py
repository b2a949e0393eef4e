"""A chat-completions server on 127.0.0.1 with scripted answers, correct or faulty.

    async with ChatEndpoint(status(429, headers={"Retry-After": "1"}), answer("hello")) as server:
        model = OpenAIModel("m", base_url=server.base_url)
        ...
    assert server.requests[0].body["model"] == "m"

Each request uses up one behaviour, in the order of the requests; after them `default` answers.
Answers are sent as an event stream if the request says `"stream": true`. All that a behaviour of
your own needs is importable from here; `exchange` is where it is defined.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from types import TracebackType
from typing import Self

from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.testing.exchange import (
    USAGE,
    Behaviour,
    Exchange,
    RecordedRequest,
    call,
    chunk,
    chunks,
    completion,
    error_body,
    event,
    read_request,
)

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
            while (request := await read_request(reader)) is not None:
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


# --- answers that are as they should be -----------------------------------------------------


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
