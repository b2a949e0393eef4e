"""Pieces of answers of another process: each in its place, and never at the cost of the rest."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from minions.adapters.dispatch.delta_reader import Piece, StreamLostError, read_pieces
from minions.app.runs.remote_deltas import DeltaOrder, RemoteDeltas, remote_deltas_of
from minions.contracts.journal.journal import Journal
from minions.contracts.run_events import StepDelta, StepDeltaEvent
from minions.engine.services.run_services import NullLog
from minions.interfaces.server.live.channels import frame_of
from patience import HANG_S, leap
from typed_answers import TOKEN, TypedAnswers

EVENT = StepDeltaEvent(
    run_id="run_1",
    session_id="ses_1",
    timestamp=datetime(2026, 1, 1, tzinfo=UTC),
    step_id="talk",
    delta=StepDelta(content="Hello"),
)
FRAME = b"id: 3\n" + frame_of(EVENT).data
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


class RecordingLog(NullLog):
    """Remembers the names of warnings."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def warning(self, event: str, /, **facts: object) -> None:
        self.events.append(event)


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """The base URL of a stranger who answers so."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await answer(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


def sending(data: bytes) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()

    return answer


async def read(url: str) -> list[Piece]:
    pieces = read_pieces(url, TOKEN, session_id="ses_1", run_id="run_1")
    async with asyncio.timeout(HANG_S):
        return [piece async for piece in pieces]


# --- one stream ----------------------------------------------------------------------------------


async def test_pieces_are_read_with_their_places() -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(HEAD + b": still here\n\n" + FRAME[:20])
        await writer.drain()
        writer.write(FRAME[20:] + FRAME)

    async with serving(answer) as url:
        assert await read(url) == [Piece(position=3, event=EVENT)] * 2
    assert asked[0].startswith(b"GET /runs/run_1/deltas HTTP/1.1\r\n")
    assert f"Authorization: Bearer {TOKEN}".encode() in asked[0]


def changed(**fields: object) -> bytes:
    document = {**json.loads(FRAME.split(b"data: ")[1]), **fields}
    return b"id: 3\nevent: step_delta\ndata: " + json.dumps(document).encode() + b"\n\n"


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"garbage", "what came back is not HTTP"),
        (b"", "closed before an answer"),
        (b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n", "HTTP 401"),
        (
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
            "HTTP 302",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "no event stream"),
        (HEAD + b"data: {}\n\n", "no piece"),
        (HEAD + b"\xff\xfe\n\n", "no piece"),
        (HEAD + FRAME.replace(b"id: 3", b"id: -3"), "no piece"),
        (HEAD + FRAME.replace(b"id: 3", b"id: " + b"9" * 5_000), "no piece"),
        (HEAD + FRAME.replace(b"step_delta", b"run_failed"), "no piece"),
        (HEAD + changed(run_id="run_2"), "another run"),
        (HEAD + changed(session_id="ses_2"), "another run"),
        (HEAD + changed(position=4), "no piece"),
        (HEAD + changed(more=1), "no piece"),
        (HEAD + changed(delta="text"), "no piece"),
        (HEAD + b"id: 3\nevent: step_delta\ndata: " + b"[" * 100_000 + b"\n\n", "no piece"),
        (HEAD + b"data: " + b"x" * 1_100_000, "a piece has more than 1,048,576 bytes"),
    ],
)
async def test_what_is_no_stream_of_pieces_ends_the_reading(sent: bytes, reason: str) -> None:
    async with serving(sending(sent)) as url:
        with pytest.raises(StreamLostError) as caught:
            await read(url)
    assert reason in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://a", "file:///etc/passwd", "http://u:p@host", "", "http://"])
async def test_an_address_that_is_no_url_is_not_asked(url: str) -> None:
    with pytest.raises(StreamLostError, match=r"no http\(s\) URL"):
        await read(url)


@pytest.mark.parametrize(("head", "seconds"), [(b"", 5), (HEAD, 35)])
async def test_a_worker_that_hangs_is_left(head: bytes, seconds: float) -> None:
    has_come, may_end = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + (FRAME if head else b""))
        await writer.drain()
        has_come.set()
        await may_end.wait()

    async with serving(answer) as url:
        pieces = read_pieces(url, TOKEN, session_id="ses_1", run_id="run_1")
        if head:
            assert (await anext(pieces)).event == EVENT
        left = asyncio.ensure_future(anext(pieces))
        await has_come.wait()
        for _ in range(20):  # until it waits
            await asyncio.sleep(0)
        leap(seconds + 1)
        with pytest.raises(StreamLostError):
            await asyncio.wait_for(left, HANG_S)
        may_end.set()


# --- the place of a piece ------------------------------------------------------------------------


def piece(position: int, text: str, address: str = "talk") -> Piece:
    event = evolve(EVENT, delta=StepDelta(content=text), address=address)
    return Piece(position=position, event=event)


def test_a_piece_waits_for_the_event_before_it() -> None:
    order, early = DeltaOrder(), piece(2, "a")
    assert order.placed(early) == ()
    assert list(order.after_event(1, None)) == []
    assert list(order.after_event(2, "talk")) == [early.event]
    assert list(order.after_event(3, "talk")) == []


def test_a_piece_that_comes_after_its_answer_is_dropped() -> None:
    order = DeltaOrder()
    order.after_event(2, "talk")
    order.after_event(3, "talk")
    order.after_event(4, "other")
    assert order.placed(piece(2, "late")) == ()
    in_time = piece(3, "of another step", "third")
    assert list(order.placed(in_time)) == [in_time.event]


def test_what_is_held_is_bounded() -> None:
    order = DeltaOrder()
    for number in range(10_000):
        order.placed(piece(9, f"{number} "))
    assert len(order.after_event(9, "talk")) <= 2_000


@given(st.data())
def test_however_two_streams_arrive_no_piece_stands_before_its_step_or_after_its_answer(
    data: st.DataObject,
) -> None:
    # At the worker: events 1…n, each of a step, with pieces between them.
    addresses = data.draw(st.lists(st.sampled_from("ab"), min_size=1, max_size=8))
    pieces = [piece(at, f"{at}", addresses[at - 1]) for at in range(1, len(addresses) + 1)]
    order, told, stored = DeltaOrder(), list[object](), 0
    while stored < len(addresses) or pieces:
        if pieces and (stored == len(addresses) or data.draw(st.booleans())):
            told += order.placed(pieces.pop(0))
        else:
            stored += 1
            told.append(stored)
            told += order.after_event(stored, addresses[stored - 1])
    newest: dict[str, int] = {}
    for each in told:
        if isinstance(each, StepDeltaEvent):
            assert newest.get(each.address) == int(each.delta.content or "")
        else:
            assert isinstance(each, int)
            newest[addresses[each - 1]] = each


# --- a run at a worker ---------------------------------------------------------------------------


@pytest.fixture
def answers(tmp_path: Path) -> TypedAnswers:
    return TypedAnswers(tmp_path)


def remote_of(
    answers: TypedAnswers, url: str | None, log: RecordingLog, token: str = TOKEN
) -> RemoteDeltas:
    async def stream_url(name: str) -> str | None:
        assert name == "host:1:1+w"
        return url

    async def aclose() -> None:
        """Nothing was opened."""

    return RemoteDeltas(answers.journal, stream_url, aclose, token, log)


async def test_pieces_come_from_the_worker_that_has_the_run_and_nothing_stays_open(
    answers: TypedAnswers,
) -> None:
    session_id, run_id = await answers.queued()
    log, told = RecordingLog(), asyncio.Queue[StepDeltaEvent]()
    async with answers.working():
        await answers.asked()
        remote = remote_of(answers, answers.url, log)
        following = remote_of_run(remote, session_id, run_id, told, after=1_000)
        async with following:
            await answers.followers(1)
            answers.model.say("Good", " day")
            texts = [(await asyncio.wait_for(told.get(), HANG_S)).delta.content for _ in "12"]
        await answers.followers(0)
        answers.model.say(None)
    assert (texts, log.events) == (["Good", " day"], [])


def remote_of_run(
    remote: RemoteDeltas,
    session_id: str,
    run_id: str,
    told: asyncio.Queue[StepDeltaEvent],
    *,
    after: int = 0,
) -> contextlib.AbstractAsyncContextManager[Callable[[int | None, str | None], None]]:
    return remote_deltas_of(remote, session_id, told.put_nowait, run_id=run_id, after=after)


async def test_a_worker_that_begins_later_is_found_when_something_is_stored(
    answers: TypedAnswers,
) -> None:
    session_id, run_id = await answers.queued()
    log, told = RecordingLog(), asyncio.Queue[StepDeltaEvent]()
    urls: list[str] = []

    async def stream_url(_name: str) -> str | None:
        return urls[0]

    async def aclose() -> None:
        """Nothing was opened."""

    remote = RemoteDeltas(answers.journal, stream_url, aclose, TOKEN, log)
    async with remote_of_run(remote, session_id, run_id, told, after=1_000) as note_stored:
        await asyncio.sleep(0.01)  # it has looked
        async with answers.working():
            urls.append(answers.url)
            await answers.asked()
            leap(2)
            note_stored(2, None)
            await answers.followers(1)
            answers.model.say("here", None)
            assert (await asyncio.wait_for(told.get(), HANG_S)).delta.content == "here"


@pytest.mark.parametrize("kind", ["refusing", "unreachable", "garbage", "silent", "odd database"])
async def test_a_worker_that_gives_nothing_costs_one_line_of_the_log(
    answers: TypedAnswers, kind: str
) -> None:
    session_id, run_id = await answers.queued()
    log, told = RecordingLog(), asyncio.Queue[StepDeltaEvent]()
    async with answers.working(), contextlib.AsyncExitStack() as stack:
        await answers.asked()
        garbage = await stack.enter_async_context(serving(sending(HEAD + b"data: 1\n\n" * 9)))
        url = {"unreachable": "http://127.0.0.1:1", "garbage": garbage, "silent": None}
        token = "another-token-of-tests" if kind == "refusing" else TOKEN
        remote = remote_of(answers, url.get(kind, answers.url), log, token)
        if kind == "odd database":
            broken = cast("Journal", object())
            remote = remote_of(evolve(answers, journal=broken), answers.url, log)
        async with remote_of_run(remote, session_id, run_id, told) as note_stored:
            for _ in range(3):
                for _ in range(50):
                    await asyncio.sleep(0.001)
                leap(11)
                note_stored(1, None)
    assert log.events == ([] if kind == "silent" else ["deltas_not_read"])
    assert told.empty()
