"""Virtual time passes only while nobody works, and work that hangs is told."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import socket
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta

import pytest

from minions import Message, OpenAIModel, Prompt
from minions.adapters.daemon_thread import import_in_daemon_thread
from minions.testing import ChatEndpoint, HangError, VirtualTime, endpoint, virtual_time


def test_hours_of_sleep_pass_at_once_and_in_order() -> None:
    time, woken = VirtualTime(), list[str]()

    async def sleeper(name: str, seconds: float) -> None:
        await time.sleep(seconds)
        woken.append(f"{name} {time.monotonic():g}")

    async def both() -> None:
        await asyncio.gather(sleeper("late", 7_200), sleeper("early", 60))

    begin = time.now()
    time.run(both())
    assert woken == ["early 60", "late 7200"]
    assert time.now() - begin == timedelta(hours=2)


def test_time_goes_on_from_one_event_loop_to_the_next() -> None:
    time = VirtualTime()
    time.run(time.sleep(5))
    time.run(time.sleep(6))
    time.advance(1)
    assert time.monotonic() == 12
    with pytest.raises(ValueError, match="does not go back"):
        time.advance(-1)


def test_a_server_that_never_answers_costs_its_time_limit_and_a_quick_one_nothing() -> None:
    time = VirtualTime()

    async def ask(behaviour: endpoint.Behaviour) -> object:
        async with ChatEndpoint(behaviour) as server:
            model = OpenAIModel("tiny", base_url=server.base_url)
            outcome = await model.complete(Prompt((Message(role="user", content="hello"),)))
            await model.aclose()
            return outcome

    time.run(ask(endpoint.answer("Hi.")))
    assert time.monotonic() == 0
    time.run(ask(endpoint.hang()))
    assert time.monotonic() == 120  # the default of `timeout_s`


# --- whether somebody outside may answer ----------------------------------------------------------


@pytest.fixture
def quiet_times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The real seconds for which it is waited whether a byte comes."""
    found, waits = list[float](), virtual_time._JumpingSelector._after_quiet

    def wait(
        selector: virtual_time._JumpingSelector, seconds: float
    ) -> list[tuple[selectors.SelectorKey, int]]:
        found.append(seconds)
        return waits(selector, seconds)

    monkeypatch.setattr(virtual_time._JumpingSelector, "_after_quiet", wait)
    return found


def test_nothing_is_waited_for_where_each_connection_has_both_ends_here(
    quiet_times: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtual_time, "_runs_threads", lambda: False)  # of tests before this one
    time = VirtualTime()

    async def work() -> None:
        accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(
            lambda _, writer: accepted.set_result(writer), "127.0.0.1", 0
        )
        await time.sleep(60)  # it listens
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        other = await accepted
        await time.sleep(60)
        for each in (writer, other):
            each.close()
            await each.wait_closed()
        server.close()

    time.run(work())
    assert time.monotonic() == 120
    assert quiet_times == []


def test_it_is_waited_for_whoever_has_the_other_end_of_a_connection(
    quiet_times: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the connection leads back into this process."""
    monkeypatch.setattr(virtual_time, "_runs_threads", lambda: False)
    time = VirtualTime()
    here, there = socket.socketpair()

    async def work() -> None:
        _, writer = await asyncio.open_connection(sock=here)
        await time.sleep(60)
        writer.close()

    with there:
        time.run(work())
    assert quiet_times == [time.quiet_s]


def test_it_is_waited_for_a_thread(quiet_times: list[float]) -> None:
    time, may_end = VirtualTime(), threading.Event()
    thread = threading.Thread(target=may_end.wait)
    thread.start()
    time.run(time.sleep(60))
    may_end.set()
    thread.join()
    assert quiet_times == [time.quiet_s]


def test_bytes_that_are_under_way_are_waited_for() -> None:
    """Those that were written, and have not reached the other end."""
    with socket.create_server(("127.0.0.1", 0)) as listens:
        one = socket.create_connection(listens.getsockname())
        other, _ = listens.accept()
        with one, other:
            files = [each.fileno() for each in (listens, one, other)]
            assert virtual_time._are_pairs(files)
            assert not virtual_time._are_pairs(files[:2])
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:  # until both buffers are full
                    one.send(b"x" * 65_536)
            assert virtual_time._count_unsent(one.fileno()) > 0
            assert virtual_time._count_unsent(other.fileno()) == 0


def test_an_import_in_a_thread_takes_no_virtual_time() -> None:
    time, may_end = VirtualTime(), threading.Event()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        loading = asyncio.ensure_future(import_in_daemon_thread(may_end.wait))
        loop.call_later(0, lambda: threading.Timer(0.05, may_end.set).start())
        async with asyncio.timeout(1):
            assert await loading

    time.run(work())


def test_the_last_byte_of_an_import_counts_when_it_comes_between_two_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time, states = VirtualTime(), iter([True, False])

    async def work() -> None:
        loop, loaded = asyncio.get_running_loop(), asyncio.Event()

        def is_importing() -> bool:
            if next(states, False):
                return True
            if not loaded.is_set():
                loop.call_soon_threadsafe(loaded.set)
            return False

        monkeypatch.setattr(virtual_time, "_is_importing", is_importing)
        async with asyncio.timeout(1):
            await loaded.wait()

    time.run(work())
    assert time.monotonic() == 0


async def _wait_for_nothing() -> None:
    await asyncio.Event().wait()


async def _turn_for_ever() -> None:
    while True:  # noqa: ASYNC110  # what must be found
        await asyncio.sleep(0)


async def _sleep_for_ever() -> None:
    while True:  # noqa: ASYNC110  # what must be found
        await asyncio.sleep(3_600)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (_wait_for_nothing, "Nothing is scheduled"),
        (_turn_for_ever, "more than 5000 polls"),
        (_sleep_for_ever, "more than 86400 virtual seconds"),
    ],
)
def test_work_that_comes_to_no_end_is_told(
    work: Callable[[], Coroutine[None, None, None]], words: str
) -> None:
    time = VirtualTime(hang_s=0.05, most_polls=5_000, most_s=86_400)
    with pytest.raises(HangError, match=words):
        time.run(work())


def test_what_is_cancelled_because_of_a_hang_may_clean_up() -> None:
    cleaned = list[str]()

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            cleaned.append("done")

    with pytest.raises(HangError):
        VirtualTime(hang_s=0.05).run(hangs())
    assert cleaned == ["done"]
