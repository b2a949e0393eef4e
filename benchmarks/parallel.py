"""Two hundred model calls at once, each 50 ms away, then a step that joins them."""

from __future__ import annotations

import time

from benchmarks.clients import GOAL, executor_of, model_at, recipe_of
from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, absolute_row


async def measure(effort: Effort, endpoint: Endpoint) -> list[Row]:
    """The time until the join, and how many requests were under way at once."""
    width = effort.count(200)
    ids = [f"s{at}" for at in range(width)]
    steps = "".join(f"  - {{id: {id_}, goal: {GOAL}}}\n" for id_ in ids)
    recipe = recipe_of(
        f"id: wide\nexecution_mode: parallel\nmax_parallel: {width}\nsteps:\n{steps}"
        f"  - {{id: join, depends_on: [{', '.join(ids)}], set: {{first: '{{{{ s0 }}}}'}}}}\n"
    )
    least_s, peak = float("inf"), 0
    async with model_at(endpoint.base_url("delay-50")) as model:
        for _ in range(effort.rounds + 1):
            endpoint.peak()
            begin = time.perf_counter()
            result = await executor_of(model).execute(recipe)
            least_s = min(least_s, time.perf_counter() - begin)
            assert result.output == {"first": "All is well."}, result.error
            peak = max(peak, endpoint.peak())
    return [
        absolute_row(
            "parallel", f"{width} parallel steps of 50 ms", value=least_s, most=0.15, unit="s"
        ),
        Row(
            key="parallel-in-flight",
            work=f"requests in flight of {width}",
            goal=f"all {width}",
            measured=str(peak),
            absolute=str(peak),
            is_met=peak == width,
        ),
    ]
