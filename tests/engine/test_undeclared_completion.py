"""A step that declares neither an output nor when it is complete."""

from __future__ import annotations

from builders import fake_tool, run_recipe, signal_step
from minions.adapters.models.script_items import Answer, tool_request
from minions.contracts.messages import MessageBundle
from minions.contracts.steps import DefaultStep

UNDECLARED: DefaultStep[object] = DefaultStep(
    id="work", messages=MessageBundle.of(goal="Say hello."), available_tools={"look"}
)


async def test_two_plain_answers_end_it_with_what_to_declare() -> None:
    ran = await run_recipe(UNDECLARED, lambda prompt: "hello", tools=[fake_tool()])
    assert (len(ran.prompts), ran.statuses) == (2, {"work": "failed"})
    error = ran.only.error
    assert error is not None
    assert error.code == "not-complete"
    assert 'CompletionCriteria(mode="text")' in error.message


async def test_a_signal_after_one_answer_or_between_tool_calls_still_completes_it() -> None:
    answers: list[Answer] = ["thinking", tool_request("look"), "thinking", "status: done"]
    ran = await run_recipe(UNDECLARED, answers, tools=[fake_tool()])
    assert (len(ran.prompts), ran.statuses) == (4, {"work": "completed"})


async def test_a_step_that_declares_the_signal_uses_its_whole_budget() -> None:
    """A-15."""
    ran = await run_recipe(signal_step(), lambda prompt: "hello", max_model_calls_per_step=3)
    assert len(ran.prompts) == 3
