"""What is due again and again in an event loop is called by one timer."""

from __future__ import annotations

import asyncio
from collections import Counter

from minions.engine.services.event_loop import LoopTimer


async def _timers_begun(timer: LoopTimer, count: int) -> int:
    """How many timers of the event loop `count` registrations with one interval need."""
    loop, begun = asyncio.get_running_loop(), 0
    call_later = loop.call_later

    def counted(*arguments: object) -> asyncio.TimerHandle:
        nonlocal begun
        begun += 1
        return call_later(*arguments)  # type: ignore[arg-type]  # handed on

    loop.call_later = counted  # type: ignore[assignment,method-assign]  # of this loop alone
    for _ in range(count):
        timer.of_running_loop(60.0).add(lambda: None)
    return begun


async def test_many_things_of_one_interval_need_one_timer() -> None:
    assert await _timers_begun(LoopTimer(), 100) == 1


async def test_it_calls_what_is_registered_again_and_again_and_nothing_that_is_not() -> None:
    calls, timer = Counter[str](), LoopTimer()
    reached = asyncio.Event()

    def count(name: str) -> None:
        calls[name] += 1
        if calls["a"] >= 3:
            reached.set()

    due = timer.of_running_loop(0.0)
    first, second = (lambda: count("a")), (lambda: count("b"))
    due |= {first, second}
    due.discard(second)
    await reached.wait()
    assert calls["a"] >= 3
    assert calls["b"] == 0


async def test_a_timer_without_anything_to_call_ends_and_begins_again() -> None:
    timer = LoopTimer()
    due = timer.of_running_loop(0.0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert timer.of_running_loop(0.0) is not due
    reached = asyncio.Event()
    timer.of_running_loop(0.0).add(reached.set)
    await reached.wait()


async def test_intervals_do_not_disturb_each_other() -> None:
    timer, reached = LoopTimer(), asyncio.Event()
    timer.of_running_loop(3600.0).add(lambda: None)
    timer.of_running_loop(0.0).add(reached.set)
    await reached.wait()


def test_event_loops_that_are_closed_are_forgotten() -> None:
    timer = LoopTimer()

    async def register() -> None:
        timer.of_running_loop(60.0).add(lambda: None)

    for _ in range(5):
        asyncio.run(register())
    assert len(timer._due) == 1
