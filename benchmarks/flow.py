"""What flow control and metrics cost: against calls without them, and in memory."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Mapping
from functools import partial
from typing import Final

from attrs import evolve
from returns.result import Result, Success

from benchmarks.clients import GOAL, model_at, recipe_of
from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, absolute_row, least_cpu_s, ratio_row
from benchmarks.model_call import RECIPE
from minions import AgentExecutor, AgentRecipe, Services
from minions.adapters.telemetry.prometheus import PrometheusMetrics
from minions.contracts.calls import (
    ChatModel,
    DeltaSink,
    ModelCallResponse,
    ModelFailure,
    Prompt,
)
from minions.contracts.messages import assistant
from minions.contracts.model_endpoints import EndpointLimits, ModelEndpoint

_MIB: Final = 1_048_576


async def measure(effort: Effort, endpoint: Endpoint) -> list[Row]:
    """One call, many calls side by side, and very many that wait."""
    return [
        *await _one_call(effort, endpoint),
        *await _side_by_side(effort, endpoint),
        *await _queued(effort),
    ]


# --- one call -------------------------------------------------------------------------------------


async def _one_call(effort: Effort, endpoint: Endpoint) -> list[Row]:
    calls = effort.count(500)
    async with model_at(endpoint.base_url("plain")) as model:
        works = {
            name: partial(_runs, AgentExecutor(model, services=services), calls)
            for name, services in _variants().items()
        }
        # Twice, first and last of each round: what comes first may meet a colder machine.
        taken = await least_cpu_s(effort, {**works, "again": works["plain"]})
    plain = min(taken["plain"], taken["again"])
    return [
        ratio_row(
            f"flow-{name}",
            f"a model call with {words}, against one without",
            ratio=taken[name] / plain,
            most=1.1,
            of="a call without",
            absolute=f"{taken[name] / calls * 1e6:.0f} µs; {plain / calls * 1e6:.0f} µs",
        )
        for name, words in (
            ("control", "flow control"),
            ("metrics", "flow control and metrics"),
        )
    ]


def _variants() -> Mapping[str, Services]:
    services = Services()
    return {
        "plain": evolve(services, flow=None),
        "control": services,
        "metrics": evolve(Services(), metrics=PrometheusMetrics()),
    }


async def _runs(executor: AgentExecutor, calls: int) -> None:
    for _ in range(calls):
        result = await executor.execute(RECIPE)
        assert result.output == "All is well.", result.error


# --- calls side by side ---------------------------------------------------------------------------


async def _side_by_side(effort: Effort, endpoint: Endpoint) -> list[Row]:
    width = effort.count(200)
    recipe = _wide(width)
    least = dict.fromkeys(_variants(), float("inf"))
    async with model_at(endpoint.base_url("delay-50"), max_requests=width) as model:
        executors = {
            name: AgentExecutor(model, services=services) for name, services in _variants().items()
        }
        for _ in range(effort.rounds * 3):
            for name, executor in executors.items():
                begin = time.perf_counter()
                result = await executor.execute(recipe)
                least[name] = min(least[name], time.perf_counter() - begin)
                assert result.error is None, result.error
    return [
        ratio_row(
            "flow-parallel",
            f"{width} parallel steps of 50 ms with flow control and metrics, against without",
            ratio=least["metrics"] / least["plain"],
            most=1.1,
            of="the steps without",
            absolute=f"{least['metrics'] * 1e3:.1f} ms; {least['plain'] * 1e3:.1f} ms",
        ),
        await _in_flight(effort, endpoint),
    ]


async def _in_flight(effort: Effort, endpoint: Endpoint) -> Row:
    many = effort.count(1_000)
    async with model_at(
        endpoint.base_url(f"delay-{effort.count(5_000)}"), max_requests=many
    ) as model:
        endpoint.peak()
        services = evolve(Services(), metrics=PrometheusMetrics())
        result = await AgentExecutor(model, services=services).execute(_wide(many))
        assert result.error is None, result.error
        peak = endpoint.peak()
    return Row(
        key="flow-in-flight",
        work=f"requests in flight of {many:,} with flow control and metrics",
        goal=f"all {many:,}",
        measured=f"{peak:,}",
        absolute=f"{peak:,}",
        is_met=peak == many,
    )


def _wide(width: int) -> AgentRecipe:
    steps = "".join(f"  - {{id: s{at}, goal: {GOAL}}}\n" for at in range(width))
    return recipe_of(f"id: wide\nexecution_mode: parallel\nmax_parallel: {width}\nsteps:\n{steps}")


# --- calls that wait ------------------------------------------------------------------------------


class _Gate(ChatModel):
    """Answers nothing until it is opened; takes eight calls at a time."""

    def __init__(self) -> None:
        limits = EndpointLimits(max_concurrency=8)
        self._endpoint = ModelEndpoint(origin="http://benchmark", limits=limits)
        self._opened = asyncio.Event()

    @property
    def endpoint(self) -> ModelEndpoint:
        return self._endpoint

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        await self._opened.wait()
        return Success(ModelCallResponse(message=assistant("All is well.")))


async def _queued(effort: Effort) -> list[Row]:
    few, many = effort.count(1_000), effort.count(10_000)
    small, large = await _held(few), await _held(many)
    return [
        ratio_row(
            "flow-queued",
            f"memory of {many:,} items of a loop whose calls wait, against {few:,}",
            ratio=large / small,
            most=1.5,
            of=f"{few:,} items",
            absolute=f"{large / _MIB:.1f} MiB; {small / _MIB:.1f} MiB",
        ),
        absolute_row(
            "flow-queued-each",
            f"memory of {many:,} items of a loop whose calls wait",
            value=large / _MIB,
            most=32,
            unit="MiB",
        ),
    ]


async def _held(items: int) -> float:
    """Bytes that are held while all items want to call at once and none gets an answer."""
    recipe = recipe_of(
        f"id: each\nsteps:\n  - {{id: ask, goal: '{GOAL}', loop: {list(range(items))}, "
        f"max_parallel: {items}}}\n"
    )
    executor = AgentExecutor(_Gate())
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    run = executor.prepare(recipe)
    task = asyncio.ensure_future(run.execute())
    for _ in range(2_000):
        await asyncio.sleep(0)
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    run.cancel()
    await task
    return held
