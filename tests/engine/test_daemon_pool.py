"""Blocking functions on a bounded number of daemon threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from minions.engine.services.event_loop import DaemonPool


async def test_no_more_threads_work_than_the_pool_has() -> None:
    lock, now, most = threading.Lock(), 0, 0
    barrier = threading.Barrier(3)

    def work() -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        barrier.wait(20)
        with lock:
            now -= 1

    pool = DaemonPool(3)
    await asyncio.gather(*(pool.run(work) for _ in range(30)))
    assert most == 3


async def test_a_thousand_calls_are_all_answered_in_order() -> None:
    pool = DaemonPool(10)

    def square(number: int) -> Callable[[], int]:
        return lambda: number * number

    results = await asyncio.gather(*(pool.run(square(number)) for number in range(1000)))
    assert results == [number * number for number in range(1000)]


async def test_an_abandoned_thread_gives_up_its_place() -> None:
    """A-44: ten functions that hang forever do not starve the eleventh."""
    pool, go = DaemonPool(2), threading.Event()
    hung = [asyncio.ensure_future(pool.run(go.wait)) for _ in range(4)]
    await asyncio.sleep(0)
    for task in hung:
        task.cancel()
    await asyncio.gather(*hung, return_exceptions=True)
    assert await pool.run(lambda: "fine") == "fine"
    go.set()
    assert await asyncio.gather(*(pool.run(lambda: 1) for _ in range(20))) == [1] * 20


async def test_a_call_that_was_cancelled_while_it_waited_is_not_made() -> None:
    pool, go, made = DaemonPool(1), threading.Event(), list[int]()
    first = asyncio.ensure_future(pool.run(go.wait))
    second = asyncio.ensure_future(pool.run(lambda: made.append(1)))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    go.set()
    await first
    await pool.run(lambda: None)
    assert made == []


async def test_what_a_function_raises_is_raised() -> None:
    def leave() -> None:
        raise SystemExit(3)

    def stop() -> None:
        raise StopIteration

    pool = DaemonPool(1)
    for function in (leave, stop):
        with pytest.raises(RuntimeError):
            await pool.run(function)
    with pytest.raises(ZeroDivisionError):
        await pool.run(lambda: 1 // 0)


def test_one_pool_serves_several_event_loops() -> None:
    pool = DaemonPool(1)
    assert [asyncio.run(pool.run(lambda: 1)) for _ in range(2)] == [1, 1]


HANGS = """
import asyncio, threading
from minions.engine.services.event_loop import DaemonPool
async def main():
    task = asyncio.ensure_future(DaemonPool(1).run(threading.Event().wait))
    await asyncio.sleep(0.01)
    task.cancel()
asyncio.run(main())
print("ended")
"""


def test_the_end_of_the_process_waits_for_no_thread() -> None:
    """A-44."""
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "ended\n"
