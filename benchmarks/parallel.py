"""Two hundred model calls at once, and thousands of steps that ask nobody; then a join."""

from __future__ import annotations

import time
from functools import partial

from benchmarks.clients import GOAL, executor_of, model_at, recipe_of
from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, absolute_row, least_cpu_s
from minions import AgentExecutor, AgentRecipe, ScriptedModel
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.model import ExecutionMode


async def measure(effort: Effort, endpoint: Endpoint) -> list[Row]:
    """Model calls until the join and how many were under way at once; CPU time of plain steps."""
    return [*await _model_calls(effort, endpoint), *await _plain_steps(effort)]


async def _model_calls(effort: Effort, endpoint: Endpoint) -> list[Row]:
    width, many = effort.count(200), effort.count(1_000)
    least_s, peak = await _side_by_side(endpoint, width, delay_ms=50, rounds=effort.rounds + 1)
    # Long enough that the last is asked before the first is answered.
    _, most = await _side_by_side(endpoint, many, delay_ms=effort.count(5_000), rounds=1)
    return [
        absolute_row(
            "parallel", f"{width} parallel steps of 50 ms", value=least_s, most=0.15, unit="s"
        ),
        _in_flight("parallel-in-flight", peak, of=width),
        _in_flight("parallel-in-flight-many", most, of=many),
    ]


def _in_flight(key: str, peak: int, *, of: int) -> Row:
    return Row(
        key=key,
        work=f"requests in flight of {of:,}",
        goal=f"all {of:,}",
        measured=f"{peak:,}",
        absolute=f"{peak:,}",
        is_met=peak == of,
    )


async def _side_by_side(
    endpoint: Endpoint, width: int, *, delay_ms: int, rounds: int
) -> tuple[float, int]:
    """The least seconds until the join, and the most requests at once."""
    ids = [f"s{at}" for at in range(width)]
    steps = "".join(f"  - {{id: {id_}, goal: {GOAL}}}\n" for id_ in ids)
    recipe = recipe_of(
        f"id: wide\nexecution_mode: parallel\nmax_parallel: {width}\nsteps:\n{steps}"
        f"  - {{id: join, depends_on: [{', '.join(ids)}], set: {{first: '{{{{ s0 }}}}'}}}}\n"
    )
    least_s, peak = float("inf"), 0
    url = endpoint.base_url(f"delay-{delay_ms}")
    async with model_at(url, max_requests=width) as model:
        for _ in range(rounds):
            endpoint.peak()
            begin = time.perf_counter()
            result = await executor_of(model).execute(recipe)
            least_s = min(least_s, time.perf_counter() - begin)
            assert result.output == {"first": "All is well."}, result.error
            peak = max(peak, endpoint.peak())
    return least_s, peak


async def _plain_steps(effort: Effort) -> list[Row]:
    widths = {"fan-out": effort.count(1_000), "fan-out-wide": effort.count(10_000)}
    taken = await least_cpu_s(
        effort, {key: partial(_fan_out, width) for key, width in widths.items()}
    )
    return [
        absolute_row(
            key,
            f"one of {width:,} `set` steps side by side, then a join",
            value=taken[key] / width * 1e6,
            most=30,
            unit="µs",
        )
        for key, width in widths.items()
    ]


async def _fan_out(width: int) -> None:
    ids = tuple(f"s{at}" for at in range(width))
    steps = [SetSpec(id=id_, set={"n": at}) for at, id_ in enumerate(ids)]
    join = SetSpec(id="join", depends_on=ids, set={"last": "{{ " + ids[-1] + ".n }}"})
    recipe = AgentRecipe(id="wide", execution_mode=ExecutionMode.PARALLEL, steps=[*steps, join])
    result = await AgentExecutor(ScriptedModel([])).execute(recipe)
    assert result.output == {"last": width - 1}, result.error
