"""Steps and tools take the time from the run, and wait by it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from attrs import frozen

from builders import deterministic_services, run_of
from minions.contracts.steps import PythonStep, StepScope
from minions.contracts.tools import Effect, Tool, ToolScope, ToolSpec
from minions.data.json_values import JsonValue
from minions.recipe.model import AgentRecipe
from minions.testing.virtual_time import FakeClock

HOUR = 3_600.0


@frozen
class Waits(PythonStep[JsonValue]):
    id: str = "waits"

    async def run(self, scope: StepScope) -> JsonValue:
        before = scope.now()
        await scope.sleep(HOUR)
        return (scope.now() - before).total_seconds()


@frozen
class CallsTool(PythonStep[JsonValue]):
    id: str = "calls"

    @property
    def available_tools(self) -> frozenset[str]:
        return frozenset({"wait"})

    async def run(self, scope: StepScope) -> JsonValue:
        return await scope.call_tool("wait", {})


class WaitTool(Tool):
    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name="wait", description="Waits.", effect=Effect.PURE)

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        before = scope.now()
        await scope.sleep(HOUR)
        return (scope.now() - before).total_seconds()


async def test_a_python_step_waits_by_the_clock_of_the_run() -> None:
    clock = FakeClock()
    start = clock.now()
    result = (
        await run_of(
            AgentRecipe(id="r", steps=(Waits(),)), services=deterministic_services(clock=clock)
        )
    ).result
    assert result.output == HOUR
    assert clock.now() - start == timedelta(seconds=HOUR)


async def test_a_tool_waits_by_the_clock_of_the_run() -> None:
    clock = FakeClock()
    limits: Mapping[str, JsonValue] = {"tool_timeout_s": 2 * HOUR}
    recipe = AgentRecipe(id="r", steps=(CallsTool(),), limits=limits)
    services = deterministic_services(clock=clock)
    result = (await run_of(recipe, tools=[WaitTool()], services=services)).result
    assert result.output == HOUR
