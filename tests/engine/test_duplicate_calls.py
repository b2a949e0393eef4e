"""Identical tool calls: once within an answer, and not for ever within a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pytest

from builders import (
    FakeTool,
    answer_of,
    fake_tool,
    recipe_of,
    run_of,
    run_recipe,
    text_step,
)
from minions.adapters.models.script_items import Answer, tool_request
from minions.contracts.messages import ToolCallRequest
from minions.contracts.tools import Effect, Toolbox
from minions.data.json_values import JsonValue
from minions.engine.calls.duplicate_calls import first_of_each
from minions.recipe.model import Permissions


def counting(
    effect: Effect, result: Callable[[int], JsonValue] = lambda _: "seen"
) -> tuple[FakeTool, Counter[str]]:
    """A tool, and how often it was called with which `q`."""
    asked: Counter[str] = Counter()

    def work(arguments: Mapping[str, JsonValue]) -> JsonValue:
        asked[str(arguments.get("q"))] += 1
        return result(asked.total())

    return fake_tool("look", work, effect=effect), asked


def request(call_id: str, arguments: str) -> ToolCallRequest:
    return ToolCallRequest(id=call_id, name="look", arguments=arguments)


@pytest.mark.parametrize("effect", [Effect.PURE, Effect.IDEMPOTENT, Effect.ONCE])
async def test_identical_calls_of_one_answer_are_carried_out_once_and_all_are_answered(
    effect: Effect,
) -> None:
    tool, asked = counting(effect)
    same = [request("1", '{"q": "a", "n": 1}'), request("2", '{"n":1,"q":"a"}')]
    recipe = recipe_of([text_step(tools=["look"])], permissions=Permissions(allow_write=True))
    answers: list[Answer] = [[*same, request("3", '{"q": "b"}')], answer_of("done")]
    ran = await run_of(recipe, answers, tools=[tool])
    assert asked == {"a": 1, "b": 1}
    said = {m.tool_call_id: m.content for m in ran.prompts[1] if m.tool_call_id}
    assert said["1"] == "seen"
    assert said["2"] is not None
    assert said["2"].endswith("carried out once.)\nseen")
    assert said["3"] == "seen"
    assert [call.key.rsplit("/", 1)[1] for call in ran.only.tool_calls] == ["0", "1", "2"]


async def test_calls_of_a_tool_without_a_declared_effect_are_each_their_own() -> None:
    tool, asked = counting(Effect.UNDECLARED, lambda count: count)
    same: Answer = [request("1", '{"q": "a"}'), request("2", '{"q": "a"}')]
    await run_recipe(text_step(tools=["look"]), [same, answer_of("done")], tools=[tool])
    assert asked == {"a": 2}


async def test_the_same_call_with_the_same_result_is_not_made_a_fourth_time_in_a_row() -> None:
    tool, asked = counting(Effect.UNDECLARED)
    again: Answer = [tool_request("look", {"q": "a"})]
    ran = await run_recipe(
        text_step(tools=["look"]),
        [again, again, again, again, again, answer_of("done")],
        tools=[tool],
    )
    assert asked == {"a": 3}
    assert ran.result.output == "done"
    refused = [call.failure.code for call in ran.only.tool_calls if call.failure is not None]
    assert refused == ["duplicate-call", "duplicate-call"]
    assert "gave the same result each time" in (ran.prompts[-1][-1].content or "")


async def test_a_call_whose_result_changes_is_made_as_often_as_asked() -> None:
    tool, asked = counting(Effect.PURE, lambda count: count)
    again: Answer = [tool_request("look", {"q": "a"})]
    await run_recipe(text_step(tools=["look"]), [*[again] * 6, answer_of("done")], tools=[tool])
    assert asked == {"a": 6}


async def test_another_call_between_allows_the_same_one_again() -> None:
    tool, asked = counting(Effect.PURE)
    a: Answer = [tool_request("look", {"q": "a"})]
    b: Answer = [tool_request("look", {"q": "b"})]
    answers = [a, a, a, b, a, a, a, answer_of("done")]
    await run_recipe(text_step(tools=["look"]), answers, tools=[tool])
    assert asked == {"a": 6, "b": 1}


def test_arguments_that_are_no_json_are_compared_as_they_are() -> None:
    tool, _ = counting(Effect.PURE)
    requests = [request("1", "{"), request("2", "{"), request("3", "{ ")]
    assert first_of_each(requests, Toolbox([tool])) == {0: 0, 1: 0, 2: 2}
