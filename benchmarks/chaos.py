"""What resilience costs without faults, and what runs cost where a third of the requests fails."""

from __future__ import annotations

import asyncio
from typing import Final

from benchmarks.clients import GOAL, executor_of, model_at, recipe_of
from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, least_cpu_s, ratio_row
from minions import AgentExecutor, AgentRecipe, OpenAIModel, RunStatus, Services
from minions.testing import ChaosEndpoint, FaultPlan, ServerFault, VirtualTime

_STEPS: Final = f"steps: [{{id: ask, goal: {GOAL}}}]\n"
_PLAIN: Final = recipe_of(f"id: plain\nretry: {{max_attempts: 1}}\n{_STEPS}")
_RESILIENT: Final = recipe_of(
    "id: resilient\n"
    "retry: {max_attempts: 20, initial_delay: 0.1, max_delay: 5}\n"
    "limits: {max_model_calls: 50, max_tokens: 1000000, timeout_s: 600}\n"
    f"steps: [{{id: ask, goal: {GOAL}, completion: text, timeout_s: 300, idle_timeout_s: 30, "
    "at_limit: answer}]\n"
)
_FAULTS: Final = (
    ServerFault.RATE_LIMITED_SECONDS,
    ServerFault.SERVER_ERROR,
    ServerFault.UNAVAILABLE,
    ServerFault.CLOSED,
    ServerFault.RESET,
    ServerFault.CUT,
    ServerFault.EMPTY_DOCUMENT,
    ServerFault.NOT_JSON,
)
"""Faults after which another attempt helps."""
_SHARE: Final = 0.3


async def measure(effort: Effort, endpoint: Endpoint) -> list[Row]:
    """The resilient path against the plain one, then faults against none."""
    return [await _without_faults(effort, endpoint), await _with_faults(effort)]


async def _without_faults(effort: Effort, endpoint: Endpoint) -> Row:
    calls = effort.count(1_000)
    async with model_at(endpoint.base_url("plain")) as model:

        async def runs(recipe: AgentRecipe) -> None:
            executor = executor_of(model)
            for _ in range(calls):
                result = await executor.execute(recipe)
                assert result.output == "All is well.", result.error

        taken = await least_cpu_s(
            effort, {"plain": lambda: runs(_PLAIN), "resilient": lambda: runs(_RESILIENT)}
        )
    plain, resilient = taken["plain"] / calls, taken["resilient"] / calls
    return ratio_row(
        "resilient-path",
        "a model call with retries, limits and timeouts, nothing fails",
        ratio=resilient / plain,
        most=1.1,
        of="call without them",
        absolute=f"{resilient * 1e6:.0f} µs; without {plain * 1e6:.0f} µs",
    )


async def _with_faults(effort: Effort) -> Row:
    count = effort.count(400)

    async def calm() -> None:
        await asyncio.to_thread(_runs, count, 0.0)

    async def chaotic() -> None:
        await asyncio.to_thread(_runs, count, _SHARE)

    taken = await least_cpu_s(effort, {"calm": calm, "chaotic": chaotic})
    per_s = {name: count / seconds for name, seconds in taken.items()}
    return ratio_row(
        "chaos",
        f"a run where {_SHARE:.0%} of the requests fail, with its server",
        ratio=taken["chaotic"] / taken["calm"],
        most=2,
        of="run without faults",
        absolute=f"{per_s['chaotic']:.0f} runs/s; without faults {per_s['calm']:.0f}",
    )


def _runs(count: int, share: float) -> None:
    """So many runs, one after the other, in virtual time."""
    time = VirtualTime()
    plan = FaultPlan.from_seed(1, faults=_FAULTS, share=share, length=2 * count)

    async def work() -> None:
        async with ChaosEndpoint(plan, now=time.now) as server:
            model = OpenAIModel(
                "fake", base_url=server.base_url, clock=time.monotonic, now=time.now
            )
            services = Services(clock=time, sleep=time.sleep)
            executor = AgentExecutor(model, services=services)
            for _ in range(count):
                result = await executor.execute(_RESILIENT)
                assert result.status is RunStatus.COMPLETED, result.error
            await model.aclose()

    time.run(work())
