"""A lock that event loops of several threads share."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from minions.engine.services.event_loop import LoopLock, Waiter


async def test_it_is_held_by_one_at_a_time_in_the_order_of_arrival() -> None:
    lock, seen = LoopLock(), list[int]()

    async def work(number: int) -> None:
        async with lock:
            seen.append(number)
            await asyncio.sleep(0)
            assert seen[-1] == number

    await asyncio.gather(*map(work, range(20)))
    assert seen == list(range(20))


async def test_who_gives_up_waiting_is_passed_over() -> None:
    lock, seen = LoopLock(), list[str]()

    async def work(name: str) -> None:
        async with lock:
            seen.append(name)

    async with lock:
        first, second, third = (asyncio.create_task(work(name)) for name in "abc")
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
    second.cancel()  # it has been given the lock, and does not know yet
    await asyncio.gather(first, second, third, return_exceptions=True)
    assert seen == ["c"]
    async with lock:  # it is free
        seen.append("d")


def test_threads_count_with_it_without_losing_one() -> None:
    lock, count = LoopLock(), 0

    async def one() -> None:
        nonlocal count
        async with lock:
            before = count
            await asyncio.sleep(0)
            count = before + 1

    async def many() -> None:
        await asyncio.gather(*(one() for _ in range(50)))

    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(asyncio.run, many()) for _ in range(4)]:
            each.result(timeout=120)
    assert count == 200


def test_a_task_whose_loop_was_closed_is_no_more_woken() -> None:
    found: list[Waiter] = []

    async def begin() -> None:
        found.append(Waiter())

    thread = threading.Thread(target=lambda: asyncio.run(begin()))
    thread.start()
    thread.join(timeout=120)
    assert not found[0].wake()
