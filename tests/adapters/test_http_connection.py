from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minions.adapters.http.http_pool import ExchangeTimeoutError, HttpConnection
from patience import leap


class Wire(asyncio.Transport):
    """A transport to nobody; knows whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self._is_read = True
        self.is_gone = False

    def reads(self) -> bool:
        return self._is_read

    def write(self, data: Any) -> None:  # Any: as in its base
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._is_read = False

    def resume_reading(self) -> None:
        self._is_read = True

    def is_closing(self) -> bool:
        return self.is_gone

    def abort(self) -> None:
        self.is_gone = True


def response_of(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def connected() -> tuple[HttpConnection, Wire]:
    connection, wire = HttpConnection(), Wire()
    connection.connection_made(wire)
    return connection, wire


async def exchange(connection: HttpConnection, *pieces: bytes) -> tuple[bytes, bool]:
    """The body of a response that comes before anybody reads it, and whether it is kept."""
    asked = asyncio.ensure_future(connection.ask(b"", b""))
    await asyncio.sleep(0)
    for piece in pieces:
        connection.data_received(piece)
    head = await asked
    body = b""
    while data := await connection.read():
        body += data
    return body, connection.finish(head)


async def test_a_connection_is_read_again_after_a_body_that_came_faster_than_it_was_read() -> None:
    connection, wire = connected()
    body = b"x" * 400_000
    whole = response_of(body)
    for pieces in ((whole,), (whole[:300_000], whole[300_000:])):
        assert await exchange(connection, *pieces) == (body, True)
        assert wire.reads()


async def test_a_server_has_to_wait_while_much_is_unread() -> None:
    connection, wire = connected()
    asked = asyncio.ensure_future(connection.ask(b"", b""))
    await asyncio.sleep(0)
    connection.data_received(response_of(b"x" * 900_000)[:300_000])
    await asked
    assert not wire.reads()
    await connection.read()
    more = asyncio.ensure_future(connection.read())
    await asyncio.sleep(0)
    assert wire.reads()
    more.cancel()


async def test_what_comes_unasked_ends_the_connection() -> None:
    connection, wire = connected()
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\n")
    assert wire.is_gone


@pytest.mark.parametrize(("first_s", "seconds"), [(100, 1_000), (1_000, 100)])
@pytest.mark.asyncio(loop_factories=["asyncio"])  # its clock leaps
async def test_an_exchange_ends_at_its_own_time_whatever_the_time_of_the_one_before(
    first_s: float, seconds: float
) -> None:
    connection, _ = connected()
    now = asyncio.get_running_loop().time()
    asked = asyncio.ensure_future(connection.ask(b"", b"", until=now + first_s))
    await asyncio.sleep(0)
    connection.data_received(response_of(b"x"))
    head = await asked
    await connection.read()
    assert connection.finish(head)
    asked = asyncio.ensure_future(connection.ask(b"", b"", until=now + seconds))
    await asyncio.sleep(0)
    leap(seconds - 1)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not asked.done()
    leap(1)
    with pytest.raises(ExchangeTimeoutError):
        await asked


@pytest.mark.asyncio(loop_factories=["asyncio"])  # its clock leaps
async def test_a_body_that_does_not_come_in_time_ends_the_exchange() -> None:
    connection, _ = connected()
    until = asyncio.get_running_loop().time() + 10
    asked = asyncio.ensure_future(connection.ask(b"", b"", until=until))
    await asyncio.sleep(0)
    connection.data_received(response_of(b"xy")[:-1])
    await asked
    assert await connection.read() == b"x"
    leap(11)
    with pytest.raises(ExchangeTimeoutError):
        await connection.read()


@pytest.mark.asyncio(loop_factories=["asyncio"])  # its clock leaps
async def test_a_connection_that_nobody_asks_has_no_time() -> None:
    connection, wire = connected()
    until = asyncio.get_running_loop().time() + 10
    asked = asyncio.ensure_future(connection.ask(b"", b"", until=until))
    await asyncio.sleep(0)
    connection.data_received(response_of(b"x"))
    head = await asked
    await connection.read()
    assert connection.finish(head)
    leap(11)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not wire.is_gone
    assert await exchange(connection, response_of(b"y")) == (b"y", True)
