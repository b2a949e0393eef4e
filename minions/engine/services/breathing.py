"""Lets the rest of the event loop work: between two parts of a long work, or beside a large one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from minions.contracts.runtime import BlockingCalls
from minions.data.patterns import match_beside_loop

T = TypeVar("T")

FEW: Final = 1_000
"""Rows, items or values with which something is done at once: some milliseconds."""


async def breathe() -> None:
    """Let others work after a rendering whose meter `is_long`, or after a part of many things.

    Steps that only compute never wait for anything: neither a timeout nor a cancellation would
    reach them.
    """
    await asyncio.sleep(0)


async def beside(
    calls: BlockingCalls | None, size: int | bool, work: Callable[[], T], *, matches: bool = False
) -> T:
    """What `work()` gives: at once where it is about few things, else in a thread.

    Args:
        calls: Have threads; None: there are none, and all is done at once.
        size: How many things it is about, or whether they are many.
        matches: Whether the work matches patterns, which may take a thread for themselves.
    Raises:
        Exception: Whatever `work` raises.
    """
    if calls is None or size is False or (size is not True and size <= FEW):
        return await match_beside_loop(work) if matches else work()
    return await calls.run(work)
