"""Recipes that code calls by name: circles, and what was paid when the time is over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import pytest

from builders import deterministic_services, executor_of, fake_tool, python_step
from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.executions import AgentResult
from minions.contracts.steps import StepScope
from minions.data.errors import FailureInfo, StepFailedError
from minions.data.json_values import JsonValue
from minions.engine.run.agent_executor import AgentExecutor
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.kinds.recipe_kind import RecipeSpec
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe
from mortal import KilledError, World
from nested import loaded


def answer(_: Prompt) -> Answer:
    return "four"


def calling(name: str) -> AgentRecipe:
    """A recipe whose step calls another one by name."""

    async def work(scope: StepScope) -> object:
        return await scope.call_recipe(name, {})

    return AgentRecipe(id=f"calls_{name}", steps=(python_step(work),))


async def result_of(recipe: AgentRecipe, recipes: Mapping[str, AgentRecipe]) -> AgentResult[object]:
    return await executor_of(ScriptedModel(answer), recipes=recipes).execute(recipe)


async def test_a_recipe_that_calls_itself_is_refused() -> None:
    one = calling("again")
    result = await result_of(one, {"again": one})
    assert result.error is not None
    assert result.error.code == "recipe-cycle"
    assert "calls_again → calls_again" in result.error.message


async def test_a_circle_of_recipes_is_refused_with_all_their_names() -> None:
    ping, pong = calling("pong"), calling("ping")
    result = await result_of(ping, {"ping": ping, "pong": pong})
    assert result.error is not None
    assert result.error.code == "recipe-cycle"
    assert "calls_pong → calls_ping → calls_pong" in result.error.message


async def test_a_circle_through_a_step_that_is_a_recipe_is_refused() -> None:
    async def work(scope: StepScope) -> object:
        return await scope.call_recipe("outer", {})

    inner = AgentRecipe(id="inner", steps=(python_step(work),))
    outer = AgentRecipe(id="outer", steps=(RecipeSpec(id="call", name="inner", recipe=inner),))
    result = await result_of(outer, {"outer": outer})
    assert result.error is not None
    assert result.error.code == "recipe-cycle"
    assert "outer → inner → outer" in result.error.message


async def test_a_recipe_may_be_called_twice_one_after_the_other() -> None:
    async def work(scope: StepScope) -> object:
        return [await scope.call_recipe("ask", {}) for _ in range(2)]

    ask = AgentRecipe(id="ask", steps=(GoalSpec(id="q", goal="Two and two?"),))
    outer = AgentRecipe(id="outer", steps=(python_step(work),))
    result = await result_of(outer, {"ask": ask})
    assert result.output == ["four", "four"]


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_what_a_recipe_paid_before_its_step_was_cut_off_stands_in_the_step(
    is_cancelled: bool,
) -> None:
    reached = asyncio.Event()

    async def hang(_: object) -> object:
        reached.set()
        return await asyncio.Event().wait()

    tool = fake_tool("hang", hang)
    inner = AgentRecipe(
        id="inner",
        steps=(GoalSpec(id="q", goal="Two and two?"), ToolSpecStep(id="wait", tool="hang")),
    )
    timeout_s = None if is_cancelled else 0.2
    call = RecipeSpec(id="call", name="inner", recipe=inner, timeout_s=timeout_s)
    outer = AgentRecipe(id="outer", steps=(call,))
    executor: AgentExecutor = executor_of(
        ScriptedModel(answer), tools=[tool], services=deterministic_services()
    )
    run = executor.prepare(outer)
    task = asyncio.create_task(run.execute())
    await reached.wait()
    if is_cancelled:
        task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    execution = run.context.step_manager.step_executions[0]
    assert [each.step_id for each in execution.steps] == ["q", "wait"]
    assert len(execution.model_calls) == 1
    assert execution.usage.total_tokens > 0
    if isinstance(result, AgentResult):
        assert result.usage == execution.usage


async def test_a_retried_step_that_calls_a_recipe_twice_keeps_the_two_calls_apart() -> None:
    """Also where the retry is killed and resumed: neither call takes what the other one gave."""
    is_broken = True

    async def work(scope: StepScope) -> object:
        found = [await scope.call_recipe("ask", {"n": n}) for n in (1, 2)]
        if is_broken:
            raise StepFailedError(FailureInfo(code="broken", message="It does not work yet."))
        return found

    def again(prompt: Prompt) -> Answer:
        return f"re({prompt.messages[-1].content})"

    ask = loaded({"id": "ask", "inputs": {"n": "integer"}, "steps": [GOAL]}, {})
    world = World()
    recipe = AgentRecipe(id="calls", steps=(python_step(work),))

    def executor() -> AgentExecutor:
        services = deterministic_services(world.journal)
        return executor_of(world.model(again), recipes={"ask": ask}, services=services)

    await executor().execute(recipe)
    assert dict(world.asked) == {"What of 1?": 1, "What of 2?": 1}
    is_broken = False
    world.journal.dies_at = world.journal.count + 2
    with contextlib.suppress(KilledError):
        await executor().retry("run_1", recipe=recipe)
    world.journal.revive()
    result = await executor().resume("run_1", recipe=recipe)
    assert result.output == ["re(What of 1?)", "re(What of 2?)"]
    assert dict(world.asked) == {"What of 1?": 1, "What of 2?": 1}  # paid once


GOAL: JsonValue = {"id": "q", "goal": "What of {{ inputs.n }}?"}
