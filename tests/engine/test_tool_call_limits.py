"""A-125: surplus tool calls of an answer are not made, and the limit is named to the model."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builders import FakeTool, answer_of, fake_tool, recipe_of, run_of, run_recipe, text_step
from minions.adapters.models.script_items import Answer, tool_request
from minions.analysis.bounds import Place, recipe_bound
from minions.contracts.context import Limits
from minions.contracts.messages import ToolCallRequest
from minions.contracts.tools import Effect
from minions.data.json_values import JsonValue
from minions.recipe.model import AgentRecipe


def counting() -> tuple[FakeTool, list[JsonValue]]:
    made: list[JsonValue] = []

    def look(arguments: Mapping[str, JsonValue]) -> JsonValue:
        made.append(arguments["n"])
        return arguments["n"]

    return fake_tool("look", look, effect=Effect.PURE), made


def asking(count: int, start: int = 0) -> list[ToolCallRequest]:
    return [
        ToolCallRequest(id=f"c{n}", name="look", arguments=f'{{"n": {n}}}')
        for n in range(start, start + count)
    ]


async def test_the_surplus_calls_of_an_answer_are_not_made_and_the_model_is_told() -> None:
    """A-125."""
    tool, made = counting()
    step = text_step(tools=["look"], limits={"max_tool_calls_per_answer": 2})
    ran = await run_recipe(step, [asking(4), answer_of("done")], tools=[tool])
    assert ran.result.output == "done"
    assert made == [0, 1]
    said = {m.tool_call_id: m.content or "" for m in ran.prompts[1] if m.tool_call_id}
    assert [said["c0"], said["c1"]] == ["0", "1"]
    for surplus in ("c2", "c3"):
        assert "max_tool_calls_per_answer" in said[surplus]
        assert "2 tool calls" in said[surplus]
    codes = [call.failure.code for call in ran.only.tool_calls if call.failure is not None]
    assert codes == ["too-many-tool-calls", "too-many-tool-calls"]


async def test_a_step_makes_no_more_calls_than_its_limit_and_can_still_answer() -> None:
    """A-125."""
    tool, made = counting()
    step = text_step(tools=["look"], limits={"max_tool_calls_per_step": 3})
    answers: list[Answer] = [asking(2), asking(2, 10), asking(2, 20), answer_of("done")]
    ran = await run_recipe(step, answers, tools=[tool])
    assert made == [0, 1, 10]
    assert ran.result.output == "done"
    said = {m.tool_call_id: m.content or "" for m in ran.prompts[3] if m.tool_call_id}
    assert "max_tool_calls_per_step" in said["c11"]
    assert "max_tool_calls_per_step" in said["c20"]


async def test_the_defaults_are_finite() -> None:
    tool, made = counting()
    step = text_step(tools=["look"])
    answers = [asking(500, n * 500) for n in range(9)]
    ran = await run_recipe(step, [*answers, answer_of("done")], tools=[tool])
    assert ran.result.output == "done"
    assert len(made) == Limits().max_tool_calls_per_step < 9 * 500


async def test_a_step_may_always_say_that_it_is_done() -> None:
    tool, _ = counting()
    step = text_step(tools=["look"], limits={"max_tool_calls_per_answer": 1})
    answer: Answer = [*asking(2), tool_request("final_Answer", {"answer": "done"})]
    ran = await run_recipe(step, [answer], tools=[tool])
    assert ran.result.output == "done"


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"max_tool_calls_per_answer": 2, "max_model_calls_per_step": 4}, 8),
        ({"max_tool_calls_per_answer": 9, "max_tool_calls_per_step": 5}, 5),
    ],
)
def test_the_limits_bound_what_explain_says(limits: dict[str, JsonValue], most: int) -> None:
    tool, _ = counting()
    recipe: AgentRecipe = recipe_of(
        [text_step(tools=["look"], limits={**limits, "max_tool_call_retries": 0})]
    )
    place = Place.of_run(recipe, lambda _: {"look": tool.spec}, {})
    assert recipe_bound(place).tool_calls.known == most
    assert not recipe_bound(place).tool_calls.unbounded


async def test_a_key_that_is_given_twice_is_told_to_the_model() -> None:
    tool, made = counting()
    twice = ToolCallRequest(id="c", name="look", arguments='{"n": 1, "n": 2}')
    ran = await run_of(
        recipe_of([text_step(tools=["look"])]), [[twice], answer_of("done")], tools=[tool]
    )
    assert made == []
    (said,) = [m.content or "" for m in ran.prompts[1] if m.tool_call_id]
    assert "the key 'n' is given twice" in said
    assert ran.only.tool_calls[0].failure is not None
    assert ran.only.tool_calls[0].failure.code == "bad-arguments"


async def test_arguments_with_a_key_twice_are_no_duplicate_of_others() -> None:
    tool, made = counting()
    once = ToolCallRequest(id="a", name="look", arguments='{"n": 2}')
    twice = ToolCallRequest(id="b", name="look", arguments='{"n": 1, "n": 2}')
    ran = await run_of(
        recipe_of([text_step(tools=["look"])]), [[once, twice], answer_of("done")], tools=[tool]
    )
    assert made == [2]
    said = {m.tool_call_id: m.content or "" for m in ran.prompts[1] if m.tool_call_id}
    assert "given twice" in said["b"]
