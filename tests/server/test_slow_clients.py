"""Clients that keep the server waiting, over real sockets: they lose, and nobody else does."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import resource
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from attrs import evolve

from asgi_client import TOKEN
from minions.interfaces.server import process
from minions.interfaces.server.app import App
from minions.interfaces.server.process import TimedProtocol, bound_socket, serve
from patience import HANG_S
from served import MakeApp
from serving import Serving

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


def _own_half_open(port: int, count: int) -> Sequence[socket.socket]:
    """Connections with half a head, all opened before any of them is looked at."""
    found = []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        found.append(sock)
    for sock in found:
        with contextlib.suppress(OSError):
            sock.send(HALF)
    return found


@contextlib.contextmanager
def serving_with(folder: Path, files: int) -> Iterator[Serving]:
    """A server that may have so many files open, and is killed at the end."""
    (folder / "recipes").mkdir()
    command = f"ulimit -n {files}; exec {sys.executable} -m minions serve --port 0 --no-store"
    server = Serving.of(folder, "sh", "-c", command)
    with server:
        yield server


def is_served(server: Serving) -> bool:
    try:
        return bool(server.ask("GET", "/health").get("status") == "ok")
    except (OSError, http.client.HTTPException):
        return False


def test_more_half_open_connections_than_files_lock_nobody_out(tmp_path: Path) -> None:
    """A-152: without a token, all at once, from the address of everybody else."""
    with serving_with(tmp_path, files=200) as server:
        half = _own_half_open(server.port, 600)
        while not is_served(server):  # those that are a quarter of a second old make room
            assert server.process.poll() is None
        assert [is_served(server) for _ in range(20)] == [True] * 20
        assert server.ask("GET", "/system")["version"]
        for sock in half:
            sock.close()
        assert [is_served(server) for _ in range(20)] == [True] * 20
        _, told = server.end()
    assert len(told.splitlines()) < 10
    assert "Traceback" not in told


def test_where_files_run_out_all_the_same_it_refuses_and_serves_again_at_once(
    tmp_path: Path,
) -> None:
    """A-152."""
    with serving_with(tmp_path, files=1_000) as server:
        pid = server.process.pid
        assert is_served(server)
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (files + 5, 1_000))
        half = _own_half_open(server.port, 200)
        refused = 0
        for sock in half:
            sock.setblocking(True)
            sock.settimeout(0.05)
            with contextlib.suppress(TimeoutError, OSError):
                refused += sock.recv(100).startswith(b"HTTP/1.1 503 ")
        assert refused > 100
        for sock in half:
            sock.close()
        while not is_served(server):
            assert server.process.poll() is None
        assert [is_served(server) for _ in range(20)] == [True] * 20
        _, told = server.end()
    assert told.count("connections_not_accepted") == 1
    assert len(told.splitlines()) < 10


async def test_late_heads_are_still_closed_after_one_closing_failed(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-152."""
    original, failures = TimedProtocol.drop, [OSError("no files")] * 3

    def drop(connection: TimedProtocol) -> None:
        if failures:
            raise failures.pop()
        original(connection)

    monkeypatch.setattr(TimedProtocol, "drop", drop)
    async with served(make_app(head_timeout_s=HEAD_S)) as port:
        answers = [await rest(await opened(port, HALF)) for _ in range(2)]
    assert [answer[:13] for answer in answers] == [b"HTTP/1.1 408 "] * 2
    assert not failures


async def test_a_client_that_takes_nothing_of_its_answers_is_closed(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = process._limits
    monkeypatch.setattr(process, "_limits", lambda given: evolve(limits(given), reader_s=HEAD_S))
    request = (
        b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n"
        b"Authorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    )
    async with served(make_app(head_timeout_s=HANG_S)) as port:
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            sent = 0
            async with asyncio.timeout(HANG_S):
                while sent < 1_000:  # until the server reads no more, and then closes
                    await loop.sock_sendall(sock, request)
                    sent += 1
                    await asyncio.sleep(0)
                while True:
                    await loop.sock_sendall(sock, b"x")
                    await asyncio.sleep(0.01)
        except ConnectionError:
            pass
        finally:
            sock.close()
        assert b'"status":"ok"' in await health(port)


async def test_a_client_that_takes_its_answer_slowly_gets_all_of_it(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    original = TimedProtocol.look

    def look(connection: TimedProtocol) -> None:
        original(connection)
        looks.append(connection.since)

    monkeypatch.setattr(TimedProtocol, "look", look)
    limits = process._limits
    monkeypatch.setattr(process, "_limits", lambda given: evolve(limits(given), reader_s=1.0))
    count = 60
    head = (
        f"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    ).encode()
    async with served(make_app(head_timeout_s=HEAD_S)) as port:
        reader, writer = await opened(port, (head + b"\r\n") * (count - 1))
        writer.write(head + b"Connection: close\r\n\r\n")
        received = bytearray()
        while piece := await asyncio.wait_for(reader.read(300_000), HANG_S):
            received += piece
            await asyncio.sleep(0.03)  # it takes a part between two looks, and never all
        await close((reader, writer))
    assert received.count(b"HTTP/1.1 200 OK") == count
    assert received.endswith(b"}")
    assert len(set(looks)) > 1, "it was never waited for"


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


# --- what is refused before its request is known -------------------------------------------------

BOARD = b"http://board.example:3000"
CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
ORIGIN = b"Origin: " + BOARD + b"\r\n"


async def raw_answers(make_app: MakeApp, *sent: bytes) -> Sequence[tuple[bytes, bytes]]:
    """The head and the body of each answer, where the page of one other origin may ask."""
    app = make_app(head_timeout_s=HEAD_S, origins={BOARD.decode()})
    async with served(app) as port:
        answers = [await rest(await opened(port, each)) for each in sent]
    return [(head, body) for head, _, body in (each.partition(b"\r\n\r\n") for each in answers)]


async def test_a_refusal_amid_a_head_may_be_read_by_a_listed_page_if_its_origin_has_come(
    make_app: MakeApp,
) -> None:
    late, broken, later = await raw_answers(
        make_app,
        HEALTH + ORIGIN + b"X-Half: a",
        HEALTH + ORIGIN + b"Accept: */*\r\nno header\r\n\r\n",
        CHAT + ORIGIN + b"X-Half: a",
    )
    for (head, _), status in ((late, 408), (broken, 400), (later, 408)):
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert b"\r\naccess-control-allow-origin: " + BOARD + b"\r\n" in head
        assert b"\r\nvary: origin\r\n" in head


async def test_a_refusal_amid_a_head_is_shared_with_no_other_page(make_app: MakeApp) -> None:
    answers = await raw_answers(
        make_app,
        HEALTH + b"X-Half: a",
        HEALTH + b"Origin: http://eve.example\r\nX-Half: a",
        HEALTH + ORIGIN + b"Origin: http://eve.example\r\nX-Half: a",
        HEALTH + ORIGIN[:-4],  # it has not come whole
        b"Origin: " + BOARD + b"\r\n\r\n",
    )
    for head, _ in answers:
        assert head.startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 400 "))
        assert b"access-control-" not in head


async def test_a_request_that_is_none_is_refused_in_the_form_of_its_api(make_app: MakeApp) -> None:
    answers = await raw_answers(
        make_app,
        b"no request\r\n\r\n",
        HEALTH + b"no header\r\n\r\n",
        CHAT + b"Content-Length: many\r\n\r\n",
        b"POST /a2a HTTP/1.1\r\nHost: localhost\r\nno header\r\n\r\n",
    )
    kinds = [head.split(b"content-type: ")[1].split(b"\r\n")[0] for head, _ in answers]
    assert kinds == [b"application/problem+json"] * 2 + [b"application/json"] * 2
    plain, health, openai, a2a = [json.loads(body) for _, body in answers]
    assert (plain["code"], plain["status"]) == (health["code"], health["status"])
    assert (plain["code"], plain["status"]) == ("bad-request", 400)
    assert (openai["error"]["type"], openai["error"]["code"]) == (
        "invalid_request_error",
        "bad-request",
    )
    assert a2a["error"]["data"]


async def test_what_is_no_request_behind_one_that_is_answered_is_not_told_into_its_answer(
    make_app: MakeApp,
) -> None:
    head = f"GET /api/v1/changes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    async with served(make_app()) as port:
        streams = await opened(port, head.encode() + b"\r\n")
        begun = await streams[0].readuntil(b"\r\n\r\n")
        streams[1].write(b"no request\r\n\r\n")
        assert begun.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 " not in await rest(streams)


async def test_a_connection_too_many_is_closed_before_its_origin_is_read(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_most_files", lambda: 66)  # two connections
    async with served(make_app(head_timeout_s=HANG_S, origins={BOARD.decode()})) as port:
        young = [await opened(port, HALF) for _ in range(2)]
        answer = await rest(await opened(port, HEALTH + ORIGIN + b"\r\n"))
        await close(*young)
    assert answer.startswith(b"HTTP/1.1 503 ") or answer == b""  # a reset may overtake it
    assert b"access-control-" not in answer
