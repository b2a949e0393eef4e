"""A recipe of one step with one plain model call, against the bare SDK call."""

from __future__ import annotations

from benchmarks.clients import (
    GOAL,
    MESSAGES,
    SYSTEM,
    executor_of,
    model_at,
    recipe_of,
    sdk_at,
    sqlite_services,
)
from benchmarks.endpoint import Endpoint
from benchmarks.measuring import Effort, Row, least_cpu_s, ratio_row
from minions import AgentExecutor

RECIPE = recipe_of(f"id: one\nsteps: [{{id: ask, system_prompt: {SYSTEM}, goal: {GOAL}}}]\n")


async def measure(effort: Effort, endpoint: Endpoint) -> list[Row]:
    """In memory and on SQLite."""
    calls = effort.count(500)
    base_url = endpoint.base_url("plain")
    async with (
        model_at(base_url) as model,
        sdk_at(base_url) as client,
        sqlite_services() as on_disk,
    ):

        async def bare() -> None:
            for _ in range(calls):
                await client.chat.completions.create(model="fake", messages=list(MESSAGES))  # type: ignore[arg-type]  # plain mappings

        taken = await least_cpu_s(
            effort,
            {
                "sdk": bare,
                "memory": lambda: _runs(executor_of(model), calls),
                "sqlite": lambda: _runs(executor_of(model, on_disk), calls),
            },
        )
    return [_row(name, most, taken, calls) for name, most in (("memory", 0.45), ("sqlite", 0.6))]


async def _runs(executor: AgentExecutor, calls: int) -> None:
    for _ in range(calls):
        result = await executor.execute(RECIPE)
        assert result.output == "All is well.", result.error


def _row(name: str, most: float, taken: dict[str, float], calls: int) -> Row:
    own, sdk = taken[name] / calls, taken["sdk"] / calls
    return ratio_row(
        f"model-call-{name}",
        f"one step, one model call, journal {_JOURNALS[name]}",
        ratio=own / sdk,
        most=most,
        of="SDK call",
        absolute=f"{own * 1e6:.0f} µs; SDK {sdk * 1e6:.0f} µs",
    )


_JOURNALS = {"memory": "in memory", "sqlite": "on SQLite"}
