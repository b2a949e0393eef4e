"""The sockets that a server listens on: small answers are sent at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from minions.data.errors import EnvironmentRefusedError
from minions.interfaces.server.app import App
from minions.interfaces.server.process import bound_socket, serve
from served import MakeApp

ASK = b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n"
OK = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """The connections that were accepted in this process."""
    found: list[socket.socket] = []
    accept = socket.socket.accept

    def noting(sock: socket.socket) -> tuple[socket.socket, object]:
        connection, address = accept(sock)
        found.append(connection)
        return connection, address

    monkeypatch.setattr(socket.socket, "accept", noting)
    return found


def _sends_at_once(connection: socket.socket) -> bool:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_connection_to_a_bound_socket_sends_small_answers_at_once(
    accepted: list[socket.socket], host: str
) -> None:
    try:
        sock = bound_socket(host, 0)
    except EnvironmentRefusedError:  # a machine without IPv6
        pytest.skip(f"nothing can listen on {host} here")
    async with await asyncio.start_server(_greet, sock=sock):
        reader, writer = await asyncio.open_connection(*sock.getsockname()[:2])
        assert await reader.readline() == b"hello\n"
        assert [_sends_at_once(each) for each in accepted] == [True]
        writer.write_eof()
        await reader.read()
        await _close(writer)


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello\n")
    await reader.read()
    writer.close()


async def test_a_connection_to_a_socket_that_was_handed_over_does_so_too(
    accepted: list[socket.socket], make_app: MakeApp
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:  # it names no protocol
        address = sock.getsockname()
        async with _served(make_app(), sock):
            streams = await asyncio.open_connection(*address)
            assert await _status_line(*streams) == OK
            assert [_sends_at_once(each) for each in accepted] == [True]
            await _end(*streams)


async def test_a_socket_that_is_not_of_tcp_can_be_handed_over(
    make_app: MakeApp, tmp_path: Path
) -> None:
    place = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(place)
        sock.listen()
        async with _served(make_app(), sock):
            streams = await asyncio.open_unix_connection(place)
            assert await _status_line(*streams) == OK
            await _end(*streams)


@asynccontextmanager
async def _served(app: App, sock: socket.socket) -> AsyncIterator[None]:
    """Without a signal at the end, which would end the process of the tests."""
    serving = asyncio.ensure_future(serve(app, sock, print))
    yield
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


async def _status_line(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Of an answer behind which the connection is kept."""
    writer.write(ASK + b"\r\n")
    return await reader.readline()


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Let the server close the connection."""
    writer.write(ASK + b"Connection: close\r\n\r\n")
    await reader.read()
    await _close(writer)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()
