"""A fast OpenAI-compatible server in a process of its own, so that only the worker is measured.

The first part of the path says how it behaves: `/plain`, `/delay-50` (ms before the answer),
`/loop-200` (a tool call until that many answers of tools are there), `/structured`,
`/stream-2000` (that many deltas). `GET /peak` gives the most requests that were in flight at
once since it was last asked.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from attrs import define

SETTLEMENT = {
    "number": "R-17",
    "customer": {"name": "Ada", "city": "Turin"},
    "lines": [{"item": "rope", "count": 2, "price": 4.5}, {"item": "axe", "count": 1, "price": 9}],
    "total": 18.0,
    "is_paid": True,
    "notes": ["fragile", "by boat"],
}
"""The structured answer: six fields, two of them nested."""


class Endpoint:
    """Starts the server and stops it: `with Endpoint() as endpoint:`."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._origin = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()  # its standard input ends, and so does it

    def base_url(self, behaviour: str) -> str:
        """For a client, such as `base_url("loop-50")`."""
        return f"{self._origin}/{behaviour}/v1"

    def peak(self) -> int:
        """Most requests in flight at once since this was last asked."""
        with urllib.request.urlopen(f"{self._origin}/peak") as answer:
            return int(answer.read())


# --- the server -----------------------------------------------------------------------------------


@define
class Load:
    """Requests that wait for their answer."""

    now: int = 0
    peak: int = 0

    def begin(self) -> None:
        self.now += 1
        self.peak = max(self.peak, self.now)

    def end(self) -> None:
        self.now -= 1

    def take_peak(self) -> int:
        peak, self.peak = self.peak, self.now
        return peak


class Connection(asyncio.Protocol):
    """One client; answers in the order of its requests."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._buffer = b""
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end]
            size = end + 4 + _content_length(head)
            if len(self._buffer) < size:
                return
            body, self._buffer = self._buffer[end + 4 : size], self._buffer[size:]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        behaviour = head.split(b" ", 2)[1].split(b"/", 2)[1].decode()
        if behaviour == "peak":
            return self._transport.write(_http(str(self._load.take_peak()).encode()))
        name, _, number = behaviour.partition("-")
        self._load.begin()
        answer = _ANSWERS[name](body, int(number or 0))
        if name == "delay":
            self._loop.call_later(int(number) / 1000, self._send, answer)
            return None
        return self._send(answer)

    def _send(self, answer: bytes) -> None:
        self._load.end()
        if not self._transport.is_closing():
            self._transport.write(answer)


def _content_length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.split(b"\r\n", 1)[0]) if found else 0


def _http(content: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def _completion(message: Mapping[str, object], reason: str = "stop") -> bytes:
    document = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": None, **message},
                "logprobs": None,
                "finish_reason": reason,
            }
        ],
        "usage": {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25},
    }
    return _http(json.dumps(document).encode())


_PLAIN = _completion({"content": "All is well."})
_STRUCTURED = _completion({"content": json.dumps(SETTLEMENT)})


def _plain(_body: bytes, _number: int) -> bytes:
    return _PLAIN


def _structured(_body: bytes, _number: int) -> bytes:
    return _STRUCTURED


def _loop(body: bytes, turns: int) -> bytes:
    done = body.count(b'"role":"tool"') + body.count(b'"role": "tool"')
    if done >= turns:
        return _PLAIN
    call = {
        "id": f"call_{done}",
        "type": "function",
        "function": {"name": "echo", "arguments": json.dumps({"n": done})},
    }
    return _completion({"tool_calls": [call]}, "tool_calls")


def _stream(_body: bytes, deltas: int) -> bytes:
    if deltas not in _STREAMS:
        _STREAMS[deltas] = _event_stream(deltas)
    return _STREAMS[deltas]


_STREAMS: dict[int, bytes] = {}


def _event_stream(deltas: int) -> bytes:
    """Each delta in an HTTP chunk of its own, as servers send them."""
    events = [_delta({"role": "assistant", "content": ""}, None)]
    events += [_delta({"content": f" word{at}"}, None) for at in range(deltas)]
    events += [_delta({}, "stop"), b"data: [DONE]\n\n"]
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    chunks = (b"%x\r\n%s\r\n" % (len(event), event) for event in events)
    return head + b"".join(chunks) + b"0\r\n\r\n"


def _delta(delta: Mapping[str, str], reason: str | None) -> bytes:
    document = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "fake",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}],
    }
    return f"data: {json.dumps(document)}\n\n".encode()


_ANSWERS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "plain": _plain,
    "delay": _plain,
    "loop": _loop,
    "structured": _structured,
    "stream": _stream,
}


async def serve() -> None:
    """Until standard input ends; the port goes to standard output."""
    load = Load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(load), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(serve())
