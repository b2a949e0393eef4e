"""The stream of pieces of answers that a worker offers: who gets it, and what is in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from attrs import field, frozen

from command_line import Cli
from minions.contracts.runtime import SystemClock
from minions.data.errors import UsageError
from minions.interfaces.http.proxy_access import ProxyAccess
from minions.interfaces.http.token_file import FileTokens
from minions.interfaces.http.tokens import CallerToken
from minions.interfaces.worker.delta_streams import DeltaFollower, DeltaStreams
from minions.interfaces.worker.health import DeltaAccess
from minions.testing.virtual_time import FakeClock
from patience import HANG_S
from typed_answers import TOKEN, TypedAnswers


@pytest.fixture
def answers(tmp_path: Path) -> TypedAnswers:
    return TypedAnswers(tmp_path)


@frozen(kw_only=True)
class Read:
    """A response whose body is read as it comes."""

    status: int
    head: str
    reader: asyncio.StreamReader = field(repr=False)
    writer: asyncio.StreamWriter = field(repr=False)

    async def frame(self) -> dict[str, str]:
        """The fields of the next frame that is no heartbeat; empty at the end."""
        while True:
            with contextlib.suppress(asyncio.IncompleteReadError):
                data = await asyncio.wait_for(self.reader.readuntil(b"\n\n"), HANG_S)
                if data.startswith(b":"):
                    continue
                lines = data.decode().strip().splitlines()
                return dict(line.split(": ", 1) for line in lines)
            return {}


@asynccontextmanager
async def asking(
    answers: TypedAnswers, path: str, *headers: str, method: str = "GET"
) -> AsyncIterator[Read]:
    reader, writer = await asyncio.open_connection("127.0.0.1", answers.port)
    try:
        lines = [f"{method} {path} HTTP/1.1", "host: localhost", *headers, "", ""]
        writer.write("\r\n".join(lines).encode())
        head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HANG_S)).decode()
        yield Read(status=int(head.split()[1]), head=head, reader=reader, writer=writer)
    finally:
        writer.close()


def following(
    answers: TypedAnswers, run_id: str, token: str = TOKEN
) -> contextlib.AbstractAsyncContextManager[Read]:
    return asking(answers, f"/runs/{run_id}/deltas", f"authorization: Bearer {token}")


async def test_pieces_of_an_answer_are_streamed_while_the_model_says_them(
    answers: TypedAnswers,
) -> None:
    session_id, run_id = await answers.queued()
    async with answers.working():
        await answers.asked()
        async with following(answers, run_id) as read:
            assert (read.status, "text/event-stream" in read.head) == (200, True)
            await answers.followers(1)
            answers.model.say("Good", " day")
            frames = [await read.frame(), await read.frame()]
            answers.model.say(None)
            assert await read.frame() == {}
        await answers.followers(0)
    documents = [json.loads(frame["data"]) for frame in frames]
    assert [each["delta"] for each in documents] == [{"content": "Good"}, {"content": " day"}]
    assert {frame["event"] for frame in frames} == {"step_delta"}
    assert {(each["run_id"], each["session_id"]) for each in documents} == {(run_id, session_id)}
    entries = await answers.journal.entries(session_id, run_id=run_id)
    places = {int(frame["id"]) for frame in frames}
    [before] = [entry for entry in entries if entry.position in places]
    assert (before.kind, before.state) == ("step", "started")


async def test_metrics_are_for_who_has_the_token(answers: TypedAnswers) -> None:
    await answers.queued()
    async with answers.working():
        await answers.asked()
        async with asking(answers, "/metrics") as read:
            assert read.status == 401
        async with asking(answers, "/metrics", f"authorization: Bearer {TOKEN}") as read:
            assert (read.status, "text/plain; version=0.0.4" in read.head) == (200, True)
            page = await asyncio.wait_for(read.reader.read(), HANG_S)
            assert b"\nminions_runs_active " in page


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("authorization: Bearer wrong-token-of-the-tests",),
        (f"authorization: Basic {TOKEN}",),
        (f"authorization: Bearer {TOKEN}", f"authorization: Bearer {TOKEN}"),
        ("authorization: Bearer ",),
    ],
)
async def test_without_the_token_there_is_no_stream_of_any_run(
    answers: TypedAnswers, headers: tuple[str, ...]
) -> None:
    _, run_id = await answers.queued()
    async with answers.working():
        await answers.asked()
        for name in (run_id, "run_none"):
            async with asking(answers, f"/runs/{name}/deltas", *headers) as read:
                assert read.status == 401
        assert answers.streams.count == 0


async def test_a_token_without_the_scope_read_gets_no_stream(answers: TypedAnswers) -> None:
    runs, reads = "a-token-that-runs", "a-token-that-reads"
    answers.tokens = FileTokens(
        tokens=(
            CallerToken.of("ci", runs, ["run"]),
            CallerToken.of("page", reads, ["read"]),
        )
    )
    _, run_id = await answers.queued()
    async with answers.working():
        await answers.asked()
        async with following(answers, run_id, runs) as read:
            assert read.status == 403
        async with following(answers, run_id, reads) as read:
            assert read.status == 200


async def test_a_token_that_has_expired_gets_no_stream(answers: TypedAnswers) -> None:
    token, answers.clock = "a-token-that-expires", FakeClock()
    expires = answers.clock.now() + timedelta(hours=1)
    answers.tokens = FileTokens(tokens=(CallerToken.of("ci", token, ["read"], expires=expires),))
    _, run_id = await answers.queued()
    async with answers.working():
        await answers.asked()
        async with following(answers, run_id, token) as read:
            assert read.status == 200
        answers.clock.advance(3_600)
        async with following(answers, run_id, token) as read:
            assert read.status == 401


def test_a_file_with_a_proxy_and_no_token_is_refused_for_a_worker() -> None:
    proxy = ProxyAccess(user_header="X-User", peers=["127.0.0.1"])
    with pytest.raises(UsageError, match=r"callers of a worker send a token"):
        DeltaAccess(DeltaStreams(), FileTokens(proxy=proxy), SystemClock().now)


async def test_only_runs_that_are_executed_now_have_a_stream(answers: TypedAnswers) -> None:
    _, run_id = await answers.queued()
    async with answers.working():
        await answers.asked()
        for path in ("/runs/run_none/deltas", f"/runs/{run_id}/deltas/", f"/runs/{run_id}"):
            async with asking(answers, path, f"authorization: Bearer {TOKEN}") as read:
                assert read.status == 404
        path = f"/runs/{run_id}/deltas"
        async with asking(answers, path, f"authorization: Bearer {TOKEN}", method="HEAD") as read:
            assert read.status == 404


async def test_a_worker_without_a_token_offers_nothing_and_asks_for_no_pieces(
    answers: TypedAnswers,
) -> None:
    _, run_id = await answers.queued()
    async with answers.working(is_open=False):
        await answers.asked()
        assert not answers.model.is_streamed
        async with following(answers, run_id) as read:
            assert read.status == 404


async def test_followers_are_bounded(answers: TypedAnswers) -> None:
    answers.streams = DeltaStreams(most_followers=1)
    _, run_id = await answers.queued()
    async with answers.working():
        await answers.asked()
        async with following(answers, run_id) as first:
            assert first.status == 200
            async with following(answers, run_id) as second:
                assert second.status == 503
        await answers.followers(0)
        async with following(answers, run_id) as third:
            assert third.status == 200


async def test_a_slow_follower_is_dropped_and_the_run_goes_on(answers: TypedAnswers) -> None:
    answers.streams = DeltaStreams(most_bytes=100_000)
    session_id, run_id = await answers.queued()
    async with answers.working():
        await answers.asked()
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            slow.connect(("127.0.0.1", answers.port))
            head = f"GET /runs/{run_id}/deltas HTTP/1.1\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
            slow.sendall(head.encode())
            await answers.followers(1)
            async with following(answers, run_id) as quick:
                await answers.followers(2)
                while answers.streams.count == 2:
                    answers.model.say("word " * 2_000)
                    assert (await quick.frame())["event"] == "step_delta"
                answers.model.say("end", None)
                frame = await quick.frame()
                assert json.loads(frame["data"])["delta"] == {"content": "end"}
                assert await quick.frame() == {}
        await answers.followers(0)
    newest = await answers.journal.entries(session_id, limit=1, newest_first=True)
    assert newest[0].state == "finished"


async def test_a_worker_that_stops_ends_its_streams(answers: TypedAnswers) -> None:
    _, run_id = await answers.queued()
    async with contextlib.AsyncExitStack() as stack:
        async with answers.working():
            await answers.asked()
            read = await stack.enter_async_context(following(answers, run_id))
            await answers.followers(1)
        assert await read.frame() == {}
    assert answers.streams.count == 0


async def test_a_worker_that_ends_waits_for_no_reader(answers: TypedAnswers) -> None:
    answers.streams = DeltaStreams(most_bytes=100_000_000)
    _, run_id = await answers.queued()
    with socket.socket() as slow:
        async with answers.working():
            await answers.asked()
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            slow.connect(("127.0.0.1", answers.port))
            head = f"GET /runs/{run_id}/deltas HTTP/1.1\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
            slow.sendall(head.encode())
            await answers.followers(1)
            answers.model.say(*["word " * 100_000] * 40)
            while answers.model.words.qsize():  # noqa: ASYNC110  # a count, not one event
                await asyncio.sleep(0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert answers.streams.count == 0


async def test_what_waits_for_a_follower_is_bounded_in_bytes() -> None:
    cut: list[bool] = []
    follower = DeltaFollower(lambda: cut.append(True), 10)
    follower.push(b"12345")
    follower.push(b"67890")
    assert await follower.batch() == b"1234567890"
    follower.push(b"12345678901")
    assert (cut, await follower.batch()) == ([True], b"")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--token-file", "t"), "--token-file needs --health"),
        (("--health", "0", "--stream-url", "http://a"), "--stream-url needs --token-file"),
        (("--health", "0.0.0.0:0", "--token-file", "t"), "say with --stream-url"),
        (
            ("--health", "0", "--token-file", "t", "--stream-url", "ftp://a"),
            "which is not a base URL",
        ),
    ],
)
def test_options_that_offer_no_stream_are_refused(
    cli: Cli, words: tuple[str, ...], expected: str
) -> None:
    refused = cli("worker", "--once", *words)
    assert (refused.code, expected in refused.err) == (2, True), refused.err


def test_a_token_that_can_be_guessed_is_refused(cli: Cli, here: Path) -> None:
    (here / "t").write_text("short")
    (here / "t").chmod(0o600)
    refused = cli("worker", "--once", "--health", "0", "--token-file", "t")
    assert (refused.code, "16 printable" in refused.err) == (2, True), refused.err


async def test_half_open_connections_lock_nobody_out_of_a_worker(answers: TypedAnswers) -> None:
    """A-152."""
    async with answers.working():
        half = []
        for _ in range(300):
            reader, writer = await asyncio.open_connection("127.0.0.1", answers.port)
            writer.write(b"GET /health HT")
            half.append((reader, writer))
        status = 0
        async with asyncio.timeout(HANG_S):
            while status != 200:  # those that are a quarter of a second old make room
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    async with asking(answers, "/health") as read:
                        status = read.status
        for _, writer in half:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
