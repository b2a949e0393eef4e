"""What a run and a step may spend, and how it ends when it is spent: everything done is kept."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Mapping

import pytest
from attrs import evolve

from builders import (
    Ran,
    answer_of,
    executor_of,
    fake_tool,
    python_step,
    recipe_of,
    run_of,
    run_recipe,
    signal_step,
    text_step,
)
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import ModelFailure
from minions.contracts.executions import AgentExecutionError, RunStatus
from minions.contracts.messages import TokenUsage
from minions.contracts.run_events import LimitReached, RunFailed
from minions.contracts.steps import StepScope
from minions.data.errors import MetadataError
from minions.data.json_values import JsonValue
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import ExecutionMode
from patience import leap


async def forever(*_: object) -> Answer:
    """A model or a tool that never answers: whatever time there is passes at once."""
    leap(3600)
    await asyncio.Event().wait()
    return "never"


# --- steps -------------------------------------------------------------------------------------


async def test_after_max_steps_the_run_ends_limited_with_what_was_done() -> None:
    ran = await run_recipe([text_step(each) for each in "abc"], ["1", "2", "3"], max_steps=2)
    assert ran.statuses == {"a": "completed", "b": "completed"}
    assert ran.result.status is RunStatus.LIMIT_REACHED
    assert ran.result.error is not None
    assert ran.result.error.code == "limit-reached"
    assert "max_steps=2 is reached: 2 steps were run" in ran.result.error.message
    assert ran.result.output is None
    with pytest.raises(AgentExecutionError, match="max_steps=2"):
        ran.result.unwrap()


async def test_a_run_that_needs_no_more_than_it_may_is_complete() -> None:
    ran = await run_recipe([text_step(each) for each in "abc"], ["1", "2", "3"], max_steps=3)
    assert (ran.result.status, ran.result.error) == (RunStatus.COMPLETED, None)


async def test_in_a_dependency_graph_the_rest_is_passed_over_with_the_reason() -> None:
    steps = [SetSpec(id=each, set={"x": each}) for each in "abc"]
    ran = await run_of(recipe_of(steps, limits={"max_steps": 1}))
    assert ran.statuses == {"a": "completed", "b": "skipped", "c": "skipped"}
    assert ran.result.step("c").reason == "the run's limit max_steps is reached"
    assert ran.result.status is RunStatus.LIMIT_REACHED


async def test_a_step_whose_condition_is_false_does_not_count() -> None:
    steps = [
        SetSpec(id="a", set={}, when="false"),
        SetSpec(id="b", set={}),
        SetSpec(id="c", set={}, when="false"),
    ]
    ran = await run_of(recipe_of(steps, limits={"max_steps": 1}))
    assert ran.statuses == {"a": "skipped", "b": "completed", "c": "skipped"}
    assert ran.result.status is RunStatus.COMPLETED


def beside_a_refused_step(*answers: Answer) -> Awaitable[Ran]:
    """`a` makes two model calls; the only step that may run keeps `b` from starting meanwhile."""

    async def look(_: object) -> object:
        await asyncio.sleep(0)  # `b` becomes ready, and is refused
        return "seen"

    recipe = recipe_of(
        [GoalSpec(id="a", goal="A.", tools=("look",)), GoalSpec(id="b", goal="B.")],
        execution_mode=ExecutionMode.PARALLEL,
        limits={"max_steps": 1, "max_tokens": 100},
    )
    return run_of(recipe, answers, tools=[fake_tool(work=look)])


async def test_a_step_that_is_under_way_goes_on_after_max_steps() -> None:
    calls = [tool_request("look")]
    ran = await beside_a_refused_step(answer_of(tool_calls=calls), answer_of("seen"))
    assert ran.statuses == {"a": "completed", "b": "skipped"}
    assert len(ran.prompts) == 2
    assert ran.result.error is not None
    assert "max_steps=1 is reached" in ran.result.error.message


async def test_tokens_are_counted_after_max_steps_too() -> None:
    calls = [tool_request("look")]
    ran = await beside_a_refused_step(
        answer_of(tool_calls=calls, input_tokens=100), answer_of("never")
    )
    assert ran.statuses == {"a": "failed", "b": "skipped"}
    assert len(ran.prompts) == 1
    assert ran.result.error is not None
    assert "max_tokens=100 is reached" in ran.result.error.message


# --- tokens ------------------------------------------------------------------------------------


async def test_after_max_tokens_no_model_is_called_any_more() -> None:
    """Found out after the call that overshot; the tools it asked for still run."""
    look = fake_tool()
    answers = [
        answer_of("a", input_tokens=50, output_tokens=10),
        answer_of(tool_calls=[tool_request("look")], input_tokens=60, output_tokens=10),
        answer_of("never"),
    ]
    steps = [text_step("a"), text_step("b", tools=["look"]), text_step("c")]
    ran = await run_recipe(steps, answers, tools=[look], max_tokens=100)
    assert (len(ran.prompts), len(look.asked)) == (2, 1)
    assert ran.statuses == {"a": "completed", "b": "failed"}
    assert ran.result.status is RunStatus.LIMIT_REACHED
    assert ran.result.usage == TokenUsage(input_tokens=110, output_tokens=20)
    assert ran.result.error is not None
    assert "max_tokens=100 is reached: 130 tokens were used" in ran.result.error.message
    error = ran.result.step("b").error
    assert error is not None
    assert error.code == "limit-reached"
    assert len(ran.result.step("b").tool_calls) == 1


async def test_a_last_call_may_overshoot_for_nothing_was_refused() -> None:
    ran = await run_recipe(text_step(), [answer_of("done", input_tokens=500)], max_tokens=100)
    assert ran.result.status is RunStatus.COMPLETED


async def test_a_next_step_without_a_model_is_refused_as_well() -> None:
    async def work(scope: StepScope) -> object:
        return "never"

    ran = await run_recipe(
        [text_step("a"), python_step(work, "b")], [answer_of("a", input_tokens=100)], max_tokens=100
    )
    assert (ran.ids, ran.result.status) == (["a"], RunStatus.LIMIT_REACHED)


async def test_calls_from_code_count_and_are_refused_too() -> None:
    async def work(scope: StepScope) -> object:
        return [await scope.call_model("one"), await scope.call_model("two")]

    answers = [answer_of("1", input_tokens=100), answer_of("2")]
    ran = await run_recipe(python_step(work), answers, max_tokens=100)
    assert (len(ran.prompts), ran.result.status) == (1, RunStatus.LIMIT_REACHED)
    assert ran.only.error is not None
    assert ran.only.error.code == "limit-reached"
    assert len(ran.only.model_calls) == 1


async def test_tokens_of_a_failed_call_are_counted_where_the_server_said_so() -> None:
    failure = ModelFailure(
        code="output-truncated", message="cut", usage=TokenUsage(input_tokens=7, output_tokens=3)
    )
    ran = await run_recipe(text_step(), [failure])
    assert ran.result.usage == ran.only.usage == failure.usage


async def test_the_usage_of_a_run_is_the_sum_of_its_steps() -> None:
    answers: list[Answer] = [answer_of("1"), answer_of("hm"), answer_of("status: done")]
    ran = await run_recipe([text_step("a"), signal_step("b")], answers)
    first, second = (each.usage for each in ran.result.executions)
    assert ran.result.usage == first + second == TokenUsage(input_tokens=30, output_tokens=15)


# --- time --------------------------------------------------------------------------------------


async def test_a_run_out_of_time_ends_limited_and_keeps_what_was_done() -> None:
    answers = iter(["one"])
    model = ScriptedModel(lambda prompt: next(answers, None) or forever())
    recipe = recipe_of([text_step("a"), text_step("b"), text_step("c")], limits={"timeout_s": 600})
    result = await executor_of(model).execute(recipe)
    assert result.status is RunStatus.LIMIT_REACHED
    assert [(each.step_id, each.status.value) for each in result.executions] == [
        ("a", "completed"),
        ("b", "failed"),
    ]
    assert result.error is not None
    assert "timeout_s=600" in result.error.message
    assert result.step("b").error == evolve(result.error, where="b")


async def test_parallel_steps_are_all_stopped_when_the_run_is_out_of_time() -> None:
    begun = itertools.count(1)

    async def hang(_: object) -> object:
        return await (forever() if next(begun) == 3 else asyncio.Event().wait())

    quick, slow = fake_tool("quick"), fake_tool("slow", hang)
    steps = [ToolSpecStep(id=f"s{n}", tool="slow" if n else "quick") for n in range(4)]
    recipe = recipe_of(
        steps, execution_mode=ExecutionMode.PARALLEL, max_parallel=3, limits={"timeout_s": 600}
    )
    before = asyncio.all_tasks()
    ran = await run_of(recipe, tools=[quick, slow])
    assert ran.result.status is RunStatus.LIMIT_REACHED
    assert ran.statuses == {"s0": "completed", "s1": "failed", "s2": "failed", "s3": "failed"}
    assert asyncio.all_tasks() == before
    assert ran.facts[-2:] == [("run", "run/limit", "limit_reached"), ("run", "run", "finished")]


async def test_a_step_out_of_time_fails_alone() -> None:
    """The limit of a step makes that step FAILED, not the run limited."""
    model = ScriptedModel(lambda prompt: forever() if "slow" in str(prompt.messages) else "quick")
    steps = [text_step("slow", optional=True, limits={"timeout_s": 600}), text_step("b")]
    ran = await run_recipe(steps, model)
    assert ran.statuses == {"slow": "failed", "b": "completed"}
    assert ran.result.status is RunStatus.PARTIAL
    error = ran.result.step("slow").error
    assert error is not None
    assert error.code == "step-timeout"
    assert "within 600 s" in error.message


async def test_the_time_of_the_run_holds_inside_a_step_with_more_time_of_its_own() -> None:
    step = text_step(limits={"timeout_s": 6_000})
    recipe = recipe_of([step], limits={"timeout_s": 600})
    ran = await run_of(recipe, lambda prompt: forever())
    assert ran.result.status is RunStatus.LIMIT_REACHED


async def test_code_that_swallows_its_cancellation_does_not_carry_the_run_on() -> None:
    async def stubborn(_: object) -> object:
        with contextlib.suppress(asyncio.CancelledError):
            await forever()
        return "I do what I want"

    for first in (python_step(stubborn, "a"), text_step("a", tools=["look"])):
        recipe = recipe_of([first, text_step("b")], limits={"timeout_s": 600})
        model = ScriptedModel([tool_request("look"), "never"] if first.available_tools else [])
        tools = [fake_tool(work=stubborn)]
        ran = await run_of(recipe, model, tools=tools)
        assert ran.result.status is RunStatus.LIMIT_REACHED
        assert ran.ids == ["a"]
        assert len(ran.prompts) == len(first.available_tools)


@pytest.mark.parametrize("where", ["limits", "tool"])
async def test_a_tool_that_takes_too_long_is_stopped(where: str) -> None:
    stopped = asyncio.Event()

    async def slow(_: Mapping[str, JsonValue]) -> object:
        with contextlib.ExitStack() as stack:
            stack.callback(stopped.set)
            return await forever()

    look = fake_tool(work=slow, timeout_s=600 if where == "tool" else None)
    limits: Mapping[str, JsonValue] = {"tool_timeout_s": 600} if where == "limits" else {}
    recipe = recipe_of([text_step(tools=["look"], tool_failure="report")], limits=limits)
    answers: list[Answer] = [tool_request("look"), "without it"]
    ran = await run_of(recipe, answers, tools=[look])
    assert stopped.is_set()
    assert ran.prompts[1][-1].content == (
        "Error: The tool 'look' did not answer within 600 s (limit tool_timeout_s)."
    )
    assert ran.result.status is RunStatus.COMPLETED


async def test_a_timeout_error_of_a_tools_own_is_not_the_engines() -> None:
    def raising(_: Mapping[str, JsonValue]) -> object:
        raise TimeoutError("the far side")

    look = fake_tool(work=raising)
    ran = await run_recipe(text_step(tools=["look"]), [tool_request("look")], tools=[look])
    assert ran.only.error is not None
    assert ran.only.error.code == "tool-failed"
    assert "TimeoutError: the far side" in ran.only.error.message


async def test_a_timeout_error_of_code_is_not_the_engines() -> None:
    async def raising(scope: StepScope) -> object:
        raise TimeoutError("the far side")

    recipe = recipe_of([python_step(raising, limits={"timeout_s": 60})], limits={"timeout_s": 60})
    ran = await run_of(recipe)
    assert ran.result.status is RunStatus.FAILED
    assert ran.only.reason == "Step 'code' raised TimeoutError: the far side"


# --- the rest ----------------------------------------------------------------------------------


async def test_a_limit_is_told_just_before_the_run_ends() -> None:
    executor = executor_of(ScriptedModel(["1", "2"]))
    recipe = recipe_of([text_step("a"), text_step("b")], limits={"max_steps": 1})
    *_, limit, end = [event async for event in executor.stream(recipe)]
    assert isinstance(limit, LimitReached)
    assert isinstance(end, RunFailed)
    assert (limit.limit, end.status) == ("max_steps", "limit_reached")
    error = end.data["error"]
    assert isinstance(error, Mapping)
    assert error["message"] == limit.message


@pytest.mark.parametrize(
    "limits",
    [
        {"max_steps": 0},
        {"max_tokens": -1},
        {"timeout_s": 0},
        {"timeout_s": "1"},
        {"tool_timeout_s": None},
        {"max_tool_call_retries": -1},
        {"sequential_tool_calls": 1},
        {"max_steps": 2, "maxSteps": 2},
    ],
)
async def test_limits_that_are_none_are_refused_before_anything_runs(
    limits: Mapping[str, JsonValue],
) -> None:
    model = ScriptedModel(["never"])
    with pytest.raises(MetadataError):
        await executor_of(model).execute(recipe_of([text_step()], limits=limits))
    assert model.prompts == []
