"""What `explain` says a run does at most is what no run exceeds."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from builders import fake_tool, python_step, run_of
from minions.analysis.explanation import explain
from minions.contracts.steps import StepScope
from minions.contracts.tools import Effect, Toolbox
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue
from minions.engine.compile.dry_run import planned_steps
from minions.engine.compile.extensions import Extensions
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document


def document(chance: random.Random, mode: str) -> dict[str, JsonValue]:
    """Steps that rest on earlier ones, and lead back to them when they fail."""
    steps: list[JsonValue] = []
    rests: dict[str, set[str]] = {}
    for at in range(8):
        name = f"s{at}"
        needs = sorted(chance.sample(sorted(rests), min(len(rests), chance.randrange(3))))
        rests[name] = set(needs).union(*(rests[other] for other in needs))
        step: dict[str, JsonValue] = {
            "id": name,
            "tool": "work",
            "params": {"at": at},
            "depends_on": list(needs),
        }
        if chance.random() < 0.5:
            target = chance.choice([name, *sorted(rests[name])])
            step["on_error"] = {"goto": target, "max": chance.randrange(1, 3)}
        steps.append(step)
    return {
        "id": "r",
        "execution_mode": mode,
        "on_failure": "continue",
        "limits": {"max_tool_call_retries": 0},
        "tools": ["work"],
        "steps": steps,
    }


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
@pytest.mark.parametrize("seed", range(20))
async def test_no_step_runs_more_often_than_is_said(mode: str, seed: int) -> None:
    chance = random.Random(seed)  # a test's dice
    done: Counter[str] = Counter()

    def work(arguments: Mapping[str, JsonValue]) -> object:
        done[f"s{arguments['at']}"] += 1
        if chance.random() < 0.6:
            raise ToolError("not this time")
        return "done"

    tool = fake_tool("work", work, effect=Effect.PURE)
    recipe = recipe_from_document(document(chance, mode), Catalog(tools={"work": tool.spec}))
    said = explain(recipe, {"work": tool.spec})
    await run_of(recipe, (), tools=[tool])
    visits = {step.id: step.visits for step in said.steps}
    assert {step_id: count for step_id, count in done.items() if count > visits[step_id]} == {}
    assert done.total() <= said.tool_calls.known


async def test_what_is_said_is_reached() -> None:
    """Nothing but failures: each way back is taken as often as it may be."""
    tool = fake_tool("work", _fail, effect=Effect.PURE)
    steps: list[JsonValue] = [
        {"id": "a", "set": {"x": 1}},
        {"id": "b", "tool": "work", "depends_on": ["a"], "on_error": {"goto": "a", "max": 3}},
    ]
    recipe = recipe_from_document(
        {"id": "r", "limits": {"max_tool_call_retries": 0}, "tools": ["work"], "steps": steps},
        Catalog(tools={"work": tool.spec}),
    )
    done = await run_of(recipe, (), tools=[tool])
    counts = Counter(each.step_id for each in done.result.executions)
    assert counts == {step.id: step.visits for step in explain(recipe, {"work": tool.spec}).steps}


def _fail(arguments: Mapping[str, JsonValue]) -> object:
    raise ToolError("never")


async def _work(scope: StepScope) -> object:
    return await scope.call_model("Anything?")


def test_a_recipe_made_by_code_may_be_a_step() -> None:
    made = AgentRecipe(id="made", steps=[python_step(_work)])
    extensions = Extensions(recipes={"made": made})
    recipe = recipe_from_document(
        {"id": "outer", "steps": [{"id": "call", "recipe": "made"}]}, extensions.catalog()
    )
    found = explain(recipe, {})
    assert found.model_calls.unbounded == ("the code of 'call/code' decides",)
    assert [use.steps for use in found.models] == [("call/code",)]
    plan = planned_steps(recipe, {}, Toolbox(), extensions)
    assert [(each.step_id, each.kind) for each in plan] == [
        ("call", "recipe"),
        ("call/code", "code"),
    ]
