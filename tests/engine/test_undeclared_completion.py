"""A step that declares neither an output nor when it is complete."""

from __future__ import annotations

import pytest

from builders import fake_tool, run_recipe, signal_step
from minions.adapters.models.script_items import Answer, tool_request
from minions.contracts.messages import MessageBundle
from minions.contracts.steps import DefaultStep
from minions.data.errors import MAX_MODEL_CALLS

UNDECLARED: DefaultStep[object] = DefaultStep(
    id="work", messages=MessageBundle.of(goal="Say hello."), available_tools={"look"}
)


@pytest.mark.parametrize("budget", [1, 3, 5])
async def test_plain_answers_go_on_until_the_budget_ends(budget: int) -> None:
    """A-15: exactly as many calls, and the reason names the limit and what may be declared."""
    ran = await run_recipe(
        UNDECLARED, lambda prompt: "hello", tools=[fake_tool()], max_model_calls_per_step=budget
    )
    assert (len(ran.prompts), ran.statuses) == (budget, {"work": "failed"})
    error = ran.only.error
    assert error is not None
    assert error.code == MAX_MODEL_CALLS
    assert f"made {budget} model calls" in error.message
    assert 'CompletionCriteria(mode="text")' in error.message


async def test_a_step_that_works_with_tools_is_not_told_that_its_first_answer_is_the_result() -> (
    None
):
    answers: list[Answer] = ["thinking", tool_request("look"), "thinking"]
    ran = await run_recipe(UNDECLARED, answers, tools=[fake_tool()], max_model_calls_per_step=3)
    assert ran.only.error is not None
    assert ran.only.error.code == MAX_MODEL_CALLS
    assert "CompletionCriteria" not in ran.only.error.message


async def test_many_plain_answers_before_the_signal_complete_it() -> None:
    answers: list[Answer] = ["one", "two", "three", "four. status: done"]
    ran = await run_recipe(UNDECLARED, answers, tools=[fake_tool()])
    assert (len(ran.prompts), ran.statuses) == (4, {"work": "completed"})


async def test_a_signal_after_one_answer_or_between_tool_calls_still_completes_it() -> None:
    answers: list[Answer] = ["thinking", tool_request("look"), "thinking", "status: done"]
    ran = await run_recipe(UNDECLARED, answers, tools=[fake_tool()])
    assert (len(ran.prompts), ran.statuses) == (4, {"work": "completed"})


async def test_a_step_that_declares_the_signal_uses_its_whole_budget() -> None:
    """A-15."""
    ran = await run_recipe(signal_step(), lambda prompt: "hello", max_model_calls_per_step=3)
    assert (len(ran.prompts), ran.statuses) == (3, {"work": "failed"})
    assert ran.only.error is not None
    assert ran.only.error.code == MAX_MODEL_CALLS
