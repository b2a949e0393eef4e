"""How connections are accepted: a few at a time, and refused with words where files run out."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from minions.interfaces.http import connections as acceptors
from minions.interfaces.http.connections import Acceptor, Rarely
from minions.interfaces.server.process import _few_lines
from patience import HANG_S, leap


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object, object]] = []

    def info(self, event: str, /, **facts: object) -> None:
        raise AssertionError(event)

    def warning(self, event: str, /, **facts: object) -> None:
        self.told.append((event, facts["reason"], facts["count"]))


class FakeListener:
    """A listening socket whose connections, and failures, are given."""

    def __init__(self, coming: Iterable[object]) -> None:
        self.coming = list(coming)
        self.real, self.other = socket.socketpair()

    def fileno(self) -> int:
        return self.real.fileno()

    def setblocking(self, _flag: bool) -> None:
        """Nothing here blocks."""

    def close(self) -> None:
        self.real.close()
        self.other.close()

    def accept(self) -> tuple[object, tuple[str, int]]:
        if not self.coming:
            raise BlockingIOError
        found = self.coming.pop(0)
        if isinstance(found, OSError):
            raise found
        return found, ("192.0.2.1", 1)


class FakeConnection:
    """A connection that is refused."""

    def __init__(self, fails: bool = False) -> None:
        self.sent = b""
        self.is_closed = False
        self.is_blocking = True
        self.fails = fails

    def setblocking(self, flag: bool) -> None:
        self.is_blocking = flag

    def send(self, data: bytes) -> None:
        assert not self.is_blocking, "a client that reads nothing would hold up everybody"
        if self.fails:
            raise ConnectionResetError
        self.sent += data

    def close(self) -> None:
        self.is_closed = True


NO_FILES = errno.EMFILE


def open_files() -> list[str]:
    return sorted(each.name for each in Path("/proc/self/fd").iterdir())


def is_read(listener: FakeListener) -> bool:
    """Whether the event loop looks at it; from now on it does not."""
    return asyncio.get_running_loop().remove_reader(listener.fileno())


class Closing(asyncio.Protocol):
    """Closes its connection at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


@contextmanager
def accepting(
    listener: FakeListener, log: Lines, admits: Callable[[object, int], bool]
) -> Iterator[Acceptor]:
    acceptor = Acceptor(
        cast("socket.socket", listener),
        Closing,
        admits=admits,
        refusal=b"full",
        log=log,
    )
    acceptor.start()
    try:
        yield acceptor
    finally:
        acceptor.close()


async def test_a_round_takes_a_few_connections_and_leaves_the_rest_for_the_next_one() -> None:
    listener = FakeListener(FakeConnection() for _ in range(1_000))
    with accepting(listener, Lines(), lambda *_: False) as acceptor:
        acceptor._accept_some()
        assert 1_000 - len(listener.coming) == 32


async def test_connections_that_are_under_way_count() -> None:
    pairs = [socket.socketpair() for _ in range(5)]
    seen: list[int] = []

    def admits(_address: object, coming: int) -> bool:
        seen.append(coming)
        return True

    listener = FakeListener(ours for ours, _ in pairs)
    with accepting(listener, Lines(), admits) as acceptor:
        acceptor._accept_some()
        await asyncio.wait_for(acceptor.wait_closed(), HANG_S)
        assert seen == [0, 1, 2, 3, 4]
        assert not acceptor._coming
        await asyncio.sleep(0)
    for _, theirs in pairs:
        theirs.close()


async def test_one_that_is_refused_is_told_so_and_closed_also_where_it_is_gone() -> None:
    connections = [FakeConnection(), FakeConnection(fails=True), FakeConnection()]
    with accepting(FakeListener(connections), Lines(), lambda *_: False) as acceptor:
        acceptor._accept_some()
    assert [(each.sent, each.is_closed) for each in connections] == [
        (b"full", True),
        (b"", True),
        (b"full", True),
    ]


@pytest.mark.parametrize("number", [NO_FILES, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_where_files_run_out_connections_are_refused_with_the_one_in_reserve(
    number: int,
) -> None:
    """A-152."""
    log, refused = Lines(), [FakeConnection() for _ in range(3)]
    coming = [each for one in refused for each in (OSError(number, ""), one)]
    listener, before = FakeListener(coming), open_files()
    with accepting(listener, log, lambda *_: True) as acceptor:
        acceptor._accept_some()
        assert acceptor._reserve is not None
        assert len(open_files()) == len(before) + 1
    assert all(each.sent == b"full" and each.is_closed for each in refused)
    assert log.told == [("connections_not_accepted", os.strerror(number), 1)]
    assert len(open_files()) == len(before) - 2  # those of the listener


@pytest.mark.parametrize("error", [OSError(errno.EPERM, ""), OSError("no number")])
async def test_after_a_failure_that_a_file_does_not_help_accepting_rests_a_tenth_of_a_second(
    error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    listener, log = FakeListener([error, FakeConnection()]), Lines()
    with accepting(listener, log, lambda *_: False) as acceptor:
        reserve = acceptor._reserve
        with monkeypatch.context() as patch:
            patch.setattr(loop, "time", lambda: 5.0)
            acceptor._accept_some()
        assert len(listener.coming) == 1
        assert not is_read(listener)
        assert acceptor._resting is not None
        assert acceptor._resting.when() == 5.1
        acceptor._resting.cancel()
        before = open_files()
        acceptor._go_on()
        assert (acceptor._reserve, open_files()) == (reserve, before)
        assert is_read(listener)
    assert log.told == [("connections_not_accepted", os.strerror(error.errno or 0), 1)]


async def test_without_a_file_in_reserve_accepting_rests_until_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = FakeConnection()
    listener = FakeListener([OSError(NO_FILES, ""), connection])
    with monkeypatch.context() as patch:
        patch.setattr(acceptors, "_descriptor", lambda: None)
        made = accepting(listener, Lines(), lambda *_: False)
        acceptor = made.__enter__()
        acceptor._accept_some()
    assert not connection.is_closed
    acceptor._go_on()
    assert acceptor._reserve is not None
    made.__exit__(None, None, None)


async def test_what_is_closed_while_it_rests_accepts_nothing_more_and_closes_once() -> None:
    listener = FakeListener([OSError(errno.EPERM, "")])
    before = open_files()
    with accepting(listener, Lines(), lambda *_: False) as acceptor:
        acceptor._accept_some()
        acceptor.close()
        assert acceptor._resting is not None
        assert acceptor._resting.cancelled()
        others = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]  # of the same numbers
    assert all(os.fstat(each) for each in others)
    for each in others:
        os.close(each)
    assert len(open_files()) == len(before) - 2


async def test_a_listener_that_is_closed_is_not_looked_at() -> None:
    loop = asyncio.get_running_loop()
    listener = FakeListener([])
    with accepting(listener, Lines(), lambda *_: True):
        number = listener.fileno()
    assert not loop.remove_reader(number)


async def test_a_connection_that_is_taken_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    async def take(_make: object, connection: FakeConnection) -> None:
        seen.append(connection.is_blocking)

    monkeypatch.setattr(asyncio.get_running_loop(), "connect_accepted_socket", take)
    with accepting(FakeListener([FakeConnection()]), Lines(), lambda *_: True) as acceptor:
        acceptor._accept_some()
        await asyncio.wait_for(acceptor.wait_closed(), HANG_S)
    assert seen == [False]


async def test_where_not_even_that_helps_accepting_rests_a_moment_and_goes_on() -> None:
    last = FakeConnection()
    failures = [OSError(NO_FILES, ""), OSError(errno.ENFILE, ""), last]
    with accepting(FakeListener(failures), Lines(), lambda *_: False) as acceptor:
        acceptor._accept_some()
        assert not last.is_closed
        assert acceptor._resting is not None
        leap(1.0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert acceptor._reserve is not None
        acceptor._accept_some()
    assert last.is_closed


async def test_failures_are_logged_once_a_minute_with_their_number() -> None:
    """A-152."""
    log, now = Lines(), 0.0
    with accepting(FakeListener([]), log, lambda *_: True) as acceptor:
        acceptor._failures = Rarely(lambda: now)
        for now in (0.0, 1.0, 59.9, 60.0, 61.0, 120.0):  # noqa: B007  # the clock reads it
            acceptor._note("why")
    assert [count for _, _, count in log.told] == [1, 3, 2]


async def test_one_connection_that_fails_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Lines()

    async def fails(*_: object) -> None:
        raise OSError(NO_FILES, "no files")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "connect_accepted_socket", fails)
    connections = [FakeConnection(), FakeConnection()]
    with accepting(FakeListener(connections), log, lambda *_: True) as acceptor:
        acceptor._accept_some()
        await asyncio.wait_for(acceptor.wait_closed(), HANG_S)
    assert all(each.is_closed for each in connections)
    assert len(log.told) == 1


def test_the_same_line_of_a_library_is_told_once_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-152: bad requests of strangers make lines a minute."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    uvicorn, own = logging.getLogger("uvicorn.error"), logging.getLogger("minions.server")
    with _few_lines():
        for number in range(1_000):
            uvicorn.warning("Invalid HTTP request received.")
            own.warning("unexpected_error id=%d", number)
        uvicorn.error("Something else.")
    lines = capsys.readouterr().err.splitlines()
    assert lines.count("Invalid HTTP request received.") == 1
    assert lines.count("Something else.") == 1
    assert len(lines) == 1_002
