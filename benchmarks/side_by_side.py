"""What a step costs where some runs of ten are carried out side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from attrs import frozen

STEPS: Final = 10
"""Of a run."""


@frozen
class StepCost:
    """Seconds of one step."""

    wall_s: float = float("inf")
    cpu_s: float = float("inf")
    """CPU time of this process, its threads included; the server's is not in it."""

    def __str__(self) -> str:
        return f"{1 / self.wall_s:,.0f} steps/s at {self.cpu_s * 1e6:,.0f} µs CPU"


async def step_cost(one: Callable[[], Awaitable[object]], width: int, rounds: int) -> StepCost:
    """Of so many runs side by side, so many times.

    Args:
        one: A run.
    """
    begin, begin_cpu = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        await asyncio.gather(*(one() for _ in range(width)))
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
    steps = rounds * width * STEPS
    return StepCost(wall_s / steps, cpu_s / steps)
