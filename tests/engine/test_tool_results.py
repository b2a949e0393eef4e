"""Results of tools that do not fit what the tool declares: refused where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import pytest

from builders import (
    FakeTool,
    deterministic_services,
    executor_of,
    fake_tool,
    run_of,
    run_recipe,
    text_step,
)
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.tools.function_tool import tool
from minions.contracts.executions import StepStatus
from minions.contracts.tools import Effect
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import load_recipe_text
from minions.testing import tool_request


class Found(TypedDict):
    amount: float


def found_by(result: object, effect: Effect = Effect.UNDECLARED) -> FakeTool:
    return fake_tool(
        work=lambda _: result,
        effect=effect,
        returns={
            "type": "object",
            "properties": {"rows": {"type": "array", "items": {"type": "integer"}}},
            "required": ["rows"],
            "additionalProperties": False,
        },
    )


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"rows": [1, "two"]}, ("an object", "$.rows[1]", "'two'", "integer")),
        ({}, ("'rows' is a required property",)),
        ({"rows": [], "more": 1}, ("'more' was unexpected",)),
        ("text", ("a string", "$: 'text' is not of type 'object'")),
        (None, ("a null", "'object'")),
        ({"rows": [str(number) for number in range(2_000)]}, ("$.rows[0]",)),
    ],
)
async def test_a_result_of_another_type_fails_its_call_once(
    result: object, said: tuple[str, ...]
) -> None:
    """A-164."""
    look = found_by(result)
    ran = await run_recipe(text_step(tools=["look"]), [tool_request("look")], tools=[look])
    assert (len(look.asked), ran.only.status) == (1, StepStatus.FAILED)
    assert ran.only.error is not None
    assert ran.only.error.code == "bad-result"
    assert "The tool 'look' returned" in ran.only.error.message
    for part in said:
        assert part in ran.only.error.message


async def test_the_model_may_call_a_pure_tool_in_another_way() -> None:
    look = found_by({"rows": ["x"]}, Effect.PURE)
    ran = await run_recipe(
        text_step(tools=["look"]), [tool_request("look"), "so be it"], tools=[look]
    )
    assert (ran.only.output, len(look.asked)) == ("so be it", 1)


async def test_a_result_of_the_declared_type_is_taken() -> None:
    look = found_by({"rows": [1, 2]})
    ran = await run_recipe(text_step(tools=["look"]), [tool_request("look"), "done"], tools=[look])
    assert ran.only.output == "done"


async def test_a_function_that_breaks_its_annotation_is_told_of() -> None:
    def look() -> Found:
        return {"amuont": 3}  # type: ignore[typeddict-item]  # what is tested

    step = text_step(tools=["look"])
    ran = await run_recipe(step, [tool_request("look")], tools=[tool(look)])
    assert ran.only.error is not None
    assert ran.only.error.code == "bad-result"
    assert "amount" in ran.only.error.message


def _arguments(_: Mapping[str, object]) -> object:
    return {"success": False, "message": "no rows"}


async def test_a_failure_that_the_tool_tells_of_comes_first() -> None:
    look = fake_tool(work=_arguments, returns={"type": "integer"})
    ran = await run_recipe(text_step(tools=["look"]), [tool_request("look"), "I see"], tools=[look])
    assert ran.only.output == "I see"


# --- `returns` of a step ---------------------------------------------------------------------


async def test_a_result_that_the_recipe_says_otherwise_fails_the_step() -> None:
    """A-164."""
    look = fake_tool(work=lambda _: {"rows": [1]})
    text = "id: r\nsteps:\n  - {id: a, tool: look, returns: {rows: [string]}}\n"
    recipe = load_recipe_text(text, "r.yaml", Catalog(tools={"look": look.spec}))
    error = (await run_of(recipe, tools=[look])).result.error
    assert error is not None
    assert error.code == "bad-result"
    for part in ("'look'", "'a'", "$.rows[0]", "1 is not of type 'string'"):
        assert part in error.message
    assert len(look.asked) == 1


async def test_a_recorded_result_is_none_where_the_step_says_another_type_now() -> None:
    """A-164."""
    look = fake_tool(work=lambda _: {"rows": [1]}, effect=Effect.PURE)
    services = deterministic_services()
    executor = executor_of(ScriptedModel([]), tools=[look], services=services)

    def recipe(returns: str) -> AgentRecipe:
        text = (
            f"id: r\nsteps:\n  - {{id: a, tool: look{returns}}}\n"
            "  - {id: b, assert: 'a.rows | length > 1'}\n"
        )
        return load_recipe_text(text, "r.yaml", Catalog(tools={"look": look.spec}))

    assert (await executor.execute(recipe(""))).error is not None
    again = await executor.retry("run_1", recipe=recipe(", returns: {rows: [string]}"))
    assert again.error is not None
    assert again.error.code == "bad-result"
