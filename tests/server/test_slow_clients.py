"""Clients that keep the server waiting, over real sockets: they lose, and nobody else does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from asgi_client import TOKEN
from minions.interfaces.server import process
from minions.interfaces.server.app import App
from minions.interfaces.server.process import bound_socket, serve
from patience import HANG_S
from served import MakeApp

HEALTH = b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n"
HALF = b"GET /api/v1/health HTTP/1.1\r\nHost: local"
HEAD_S = 0.3

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def served(app: App) -> AsyncIterator[int]:
    """The port that the app listens on."""
    sock = bound_socket("127.0.0.1", 0)
    port = int(sock.getsockname()[1])
    serving = asyncio.ensure_future(serve(app, sock, print))
    try:
        yield port
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def opened(port: int, data: bytes = b"") -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    return reader, writer


async def rest(streams: Streams) -> bytes:
    """All that the server says until it closes the connection."""
    try:
        return await asyncio.wait_for(streams[0].read(), HANG_S)
    except ConnectionError:
        return b""
    finally:
        await close(streams)


async def close(*all_streams: Streams) -> None:
    for _, writer in all_streams:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def health(port: int) -> bytes:
    return await rest(await opened(port, HEALTH + b"Connection: close\r\n\r\n"))


@pytest.mark.parametrize("sent", [b"", b"G", HALF], ids=["nothing", "a byte", "half a head"])
async def test_a_head_that_does_not_come_in_time_ends_its_connection(
    make_app: MakeApp, sent: bytes
) -> None:
    async with served(make_app(head_timeout_s=HEAD_S)) as port:
        answer = await rest(await opened(port, sent))
    assert answer.startswith(b"HTTP/1.1 408 " if sent else b"")
    assert (b"slow-head" in answer) is bool(sent)


async def test_a_head_that_comes_byte_by_byte_gets_no_more_time(make_app: MakeApp) -> None:
    async with served(make_app(head_timeout_s=HEAD_S)) as port:
        streams = await opened(port, HEALTH)
        dripping = asyncio.ensure_future(_drip(streams[1], b"X-Long: " + b"x" * 100_000))
        answer = await rest(streams)
        dripping.cancel()
    assert answer.startswith(b"HTTP/1.1 408 ") or answer == b""  # a reset may overtake it


async def _drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    for each in data:
        writer.write(bytes([each]))
        await asyncio.sleep(0.01)


async def test_the_next_head_of_a_kept_connection_has_the_same_limit(make_app: MakeApp) -> None:
    async with served(make_app(head_timeout_s=HEAD_S)) as port:
        streams = await opened(port, HEALTH + b"\r\n")
        assert await streams[0].readline() == b"HTTP/1.1 200 OK\r\n"
        streams[1].write(HALF)
        assert b"HTTP/1.1 408 " in await rest(streams)


async def test_a_kept_connection_may_wait_longer_for_its_next_request(make_app: MakeApp) -> None:
    async with served(make_app(head_timeout_s=HEAD_S)) as port:
        streams = await opened(port, HEALTH + b"\r\n")
        await streams[0].readuntil(b"}")
        assert (await rest(await opened(port, HALF))).startswith(b"HTTP/1.1 408 ")  # so late it is
        streams[1].write(HEALTH + b"Connection: close\r\n\r\n")
        assert (await rest(streams)).startswith(b"HTTP/1.1 200 ")


async def test_a_request_that_takes_longer_than_its_head_may_is_answered(
    make_app: MakeApp,
) -> None:
    async with served(make_app(head_timeout_s=HEAD_S)) as port:
        body = b'{"recipe": "adds", "inputs": {"a": 1}}'
        head = (
            f"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        ).encode()
        streams = await opened(port, head + body[:10])
        assert (await rest(await opened(port, HALF))).startswith(b"HTTP/1.1 408 ")  # so late it is
        streams[1].write(body[10:])
        assert (await rest(streams)).startswith(b"HTTP/1.1 202 ")


async def test_a_head_without_end_is_refused_before_it_is_complete(make_app: MakeApp) -> None:
    async with served(make_app(head_timeout_s=HANG_S)) as port:
        streams = await opened(port, HEALTH + b"X-Long: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                streams[1].write(b"x" * 10_000)
                await streams[1].drain()
        answer = await rest(streams)
    assert answer.startswith(b"HTTP/1.1 431 ") or answer == b""  # a reset may overtake it


async def test_many_half_open_connections_lock_nobody_out(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_most_files", lambda: 256)
    async with served(make_app(head_timeout_s=HANG_S)) as port:
        half = await _half_open(port, 260)
        answers = [await health(port) for _ in range(3)]
        await close(*half)
    assert [b'"status":"ok"' in answer for answer in answers] == [True] * 3


async def _half_open(port: int, count: int) -> Sequence[Streams]:
    """Connections of another client of this machine."""
    half: list[Streams] = []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind(("127.0.0.2", 0))
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock)
        writer.write(HALF)
        half.append((reader, writer))
    return half


async def test_a_connection_too_many_is_told_so_at_once(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_most_files", lambda: 66)  # two connections
    async with served(make_app(head_timeout_s=HANG_S)) as port:
        young = [await opened(port, HALF) for _ in range(2)]
        answer = await rest(await opened(port))
        await close(*young)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: 1" in head
    assert json.loads(body)["code"] == "too-many-connections"
