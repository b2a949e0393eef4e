"""Corners of going on: what a person decides, what is told afterwards, choices in doubt."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping

import pytest
from attrs import frozen

from builders import (
    FakeTool,
    answer_of,
    deterministic_services,
    executor_of,
    fake_tool,
    python_step,
    text_step,
)
from minions.adapters.models.script_items import Answer, tool_request
from minions.contracts.calls import ModelCallResponse, Prompt
from minions.contracts.executions import RunStatus
from minions.contracts.messages import MessageRole
from minions.contracts.steps import PythonStep, StepScope
from minions.contracts.tools import Effect
from minions.data.errors import LeaseHeldError
from minions.data.json_values import JsonValue
from minions.engine.compile.function_steps import step
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_detail import show_run
from minions.recipe.catalog import Catalog
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe, OnFailure, Permissions
from minions.recipe.reading.load import recipe_from_document
from mortal import KilledError, World

WRITING = Permissions(allow_write=True)


def send_and_more() -> AgentRecipe:
    return AgentRecipe(
        id="recipe",
        permissions=WRITING,
        on_failure=OnFailure.STOP,
        steps=[
            ToolSpecStep(id="mail", tool="send"),
            SetSpec(id="after", set={"x": 1}, depends_on=("mail",)),
        ],
    )


async def test_why_a_step_was_passed_over_is_told_as_it_was_in_the_end() -> None:
    """First it waited for a decision; then what it needs had failed."""
    world = World()
    recipe, tools = send_and_more(), [world.tool("send", Effect.ONCE)]
    executor = world.executor(world.model(lambda prompt: "no"), tools)
    assert await world.killed(executor, recipe, 4, loses_last=True)
    again = world.executor(world.model(lambda prompt: "no"), tools)
    assert (await again.resume("run_1", recipe=recipe)).status is RunStatus.NEEDS_DECISION
    result = await again.resume("run_1", recipe=recipe, decisions={"send": "fail"})
    assert result.step("after").reason == "its dependency 'mail' failed"
    (summary,) = await list_runs(world.journal)
    detail = await show_run(world.journal, summary)
    assert [step.reason for step in detail.steps][1:] == ["its dependency 'mail' failed"]


async def test_a_recipe_of_specs_made_by_code_goes_on_too() -> None:
    """It has no document that could travel with the run; it is handed in again."""
    world = World()
    recipe, tools = send_and_more(), [world.tool("send", Effect.ONCE)]
    executor = world.executor(world.model(lambda prompt: "no"), tools)
    assert await world.killed(executor, recipe, 5)
    again = world.executor(world.model(lambda prompt: "no"), tools)
    result = await again.resume("run_1", recipe=send_and_more())
    assert (result.status, result.output) == (RunStatus.COMPLETED, {"x": 1})
    assert sum(world.done.values()) == 1


async def test_a_run_can_be_shown_whose_step_waited_between_a_result_and_its_message() -> None:
    """Passed over for now is no end: what the step has done is still to be told."""
    world = World()

    def answer(prompt: Prompt) -> Answer:
        if prompt.messages[-1].role is MessageRole.TOOL:
            return "done"
        return [tool_request("look"), tool_request("send")]

    recipe = AgentRecipe(
        id="recipe",
        permissions=WRITING,
        limits={"sequential_tool_calls": True},
        steps=[
            GoalSpec(id="work", goal="Look, then send.", tools=("look", "send")),
        ],
    )
    tools = [world.tool("look", Effect.PURE, [1]), world.tool("send", Effect.ONCE)]
    executor = world.executor(world.model(answer), tools)
    rows = ["run", "step", "model", "look", "looked", "send", "sent"]
    assert await world.killed(executor, recipe, len(rows), loses_last=True)
    again = world.executor(world.model(answer), tools)
    assert (await again.resume("run_1", recipe=recipe)).status is RunStatus.NEEDS_DECISION
    result = await again.resume("run_1", recipe=recipe, decisions={"send": 'done:"seen"'})
    assert result.status is RunStatus.COMPLETED
    (summary,) = await list_runs(world.journal)
    detail = await show_run(world.journal, summary)
    said = [(message["role"], message.get("content")) for _, message in detail.messages]
    results = [("tool", "[1]"), ("tool", "seen")]
    assert said[1:] == [("assistant", None), *results, ("assistant", "done")]


# --- a choice in doubt --------------------------------------------------------------------------


def fork() -> AgentRecipe:
    return AgentRecipe(
        id="recipe",
        permissions=WRITING,
        steps=[
            text_step("fork", decision_tool=tool_request("choose", id="c")),
            text_step("left"),
            text_step("right"),
        ],
        graph={"fork": ["left", "right"]},
    )


def chooser(world: World, effect: Effect) -> FakeTool:
    return world.tool("choose", effect, "right")


ROWS = ["run started", "step started", "model call", "step finished", "call started", "call ended"]


@pytest.mark.parametrize("effect", [Effect.ONCE, Effect.UNDECLARED])
async def test_a_choice_that_may_not_be_made_twice_waits_for_a_decision(effect: Effect) -> None:
    """A decision tool is called after its step has ended; it is in doubt like any other."""
    world = World()
    executor = world.executor(world.model(lambda prompt: "yes"), [chooser(world, effect)])
    assert await world.killed(executor, fork(), len(ROWS), loses_last=True)
    assert sum(world.done.values()) == 1
    again = world.executor(world.model(lambda prompt: "yes"), [chooser(world, effect)])
    result = await again.resume("run_1", recipe=fork())
    assert result.status is RunStatus.NEEDS_DECISION
    assert [each.step_id for each in result.executions] == ["fork"]
    assert sum(world.done.values()) == 1
    result = await again.resume("run_1", recipe=fork(), decisions={"choose": 'done:"right"'})
    assert result.status is RunStatus.COMPLETED
    assert [each.step_id for each in result.executions] == ["fork", "right"]
    assert sum(world.done.values()) == 1


async def test_a_choice_that_may_be_made_again_is() -> None:
    world = World()
    tools = [chooser(world, Effect.IDEMPOTENT)]
    executor = world.executor(world.model(lambda prompt: "yes"), tools)
    assert await world.killed(executor, fork(), len(ROWS), loses_last=True)
    again = world.executor(world.model(lambda prompt: "yes"), tools)
    result = await again.resume("run_1", recipe=fork())
    assert [each.step_id for each in result.executions] == ["fork", "right"]
    assert list(world.done.values()) == [2]  # under one key


# --- a call that counts as failed ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "status"), [("report", RunStatus.COMPLETED), ("fail", RunStatus.FAILED)]
)
async def test_a_call_that_is_decided_to_have_failed_is_treated_as_one_that_failed(
    policy: str, status: RunStatus
) -> None:
    """Policy `report`: the model reads of it and goes on."""
    world = World()

    def broken(arguments: Mapping[str, JsonValue]) -> object:
        raise TypeError("broken")

    def answer(prompt: Prompt) -> Answer:
        last = prompt.messages[-1]
        if last.role is not MessageRole.TOOL:
            return tool_request("send")
        return f"It said: {last.content}"

    recipe = AgentRecipe(
        id="recipe", permissions=WRITING, steps=[text_step(tools=["send"], tool_failure=policy)]
    )
    tools = [fake_tool("send", broken, effect=Effect.ONCE)]
    executor = world.executor(world.model(answer), tools)
    assert await world.killed(executor, recipe, 5, loses_last=True)
    again = world.executor(world.model(answer), tools)
    assert (await again.resume("run_1", recipe=recipe)).status is RunStatus.NEEDS_DECISION
    result = await again.resume("run_1", recipe=recipe, decisions={"send": "fail"})
    assert result.status is status
    if status is RunStatus.COMPLETED:
        assert str(result.output).startswith("It said: Error: The call of 'send' was cut off")


# --- loops ----------------------------------------------------------------------------------------


def loop_over(*numbers: int) -> AgentRecipe:
    return recipe_from_document(
        {
            "id": "recipe",
            "steps": [
                {"id": "list", "set": {"of": list(numbers)}},
                {
                    "id": "each",
                    "loop": "{{ list.of }}",
                    "aggregate": True,
                    "set": {"n": "{{ loop.item }}"},
                },
                {"id": "after", "set": {"x": "{{ each }}"}},
            ],
        },
        Catalog(),
    )


async def outputs_of(world: World) -> Mapping[str, JsonValue]:
    """By step, as the journal tells."""
    (summary,) = await list_runs(world.journal)
    detail = await show_run(world.journal, summary)
    assert {step.status for step in detail.steps} == {"completed"}
    return {step.step_id: step.output for step in detail.steps}


async def test_a_loop_that_had_ended_is_told_as_ended_after_a_crash() -> None:
    """Its items are told again; that is no new fact about the loop."""
    world = World()
    recipe = loop_over(1, 2)
    executor = world.executor(world.model(lambda prompt: "no"))
    rows = ["run", "list", "each", "item 0", "item 1", "each ended"]
    assert await world.killed(executor, recipe, len(rows))
    result = await world.executor(world.model(lambda prompt: "no")).resume("run_1")
    assert result.status is RunStatus.COMPLETED
    assert (await outputs_of(world))["each"] == [{"n": 1}, {"n": 2}]
    facts = Counter((e.kind, e.key, e.state) for e in await world.journal.entries())
    assert facts["step", "each/1/0", "started"] == facts["step", "each/1/0", "finished"] == 1


async def test_a_loop_over_another_list_is_told_with_its_new_output() -> None:
    world = World()
    executor = world.executor(world.model(lambda prompt: "no"))
    assert (await executor.execute(loop_over(1, 2))).status is RunStatus.COMPLETED
    again = world.executor(world.model(lambda prompt: "no"))
    result = await again.retry("run_1", recipe=loop_over(1, 3))
    assert result.output == {"x": [{"n": 1}, {"n": 3}]}
    assert (await outputs_of(world))["each"] == [{"n": 1}, {"n": 3}]
    told = await world.executor(world.model(lambda prompt: "no")).resume("run_1")
    assert told.output == {"x": [{"n": 1}, {"n": 3}]}
    assert (await outputs_of(world))["each"] == [{"n": 1}, {"n": 3}]


async def test_a_loop_that_had_ended_counts_as_a_step_of_the_run() -> None:
    """Else a resumed run could do one step more than its limit allows."""
    world = World()
    document: dict[str, JsonValue] = {
        **(loop_over(1, 2).document or {}),
        "limits": {"max_steps": 2},
    }
    recipe = recipe_from_document(document, Catalog())
    executor = world.executor(world.model(lambda prompt: "no"))
    rows = ["run", "list", "each", "item 0", "item 1", "each ended"]
    assert await world.killed(executor, recipe, len(rows))
    result = await world.executor(world.model(lambda prompt: "no")).resume("run_1")
    assert result.status is RunStatus.LIMIT_REACHED
    assert result.step("after").reason == "the run's limit max_steps is reached"


async def test_items_that_are_recorded_are_told_again_whatever_limit_they_reached() -> None:
    """The last call may exceed the tokens; told one by one all of them stand all the same."""
    world = World()
    recipe = recipe_from_document(
        {
            "id": "recipe",
            "limits": {"max_tokens": 40},
            "steps": [
                {"id": "each", "goal": "Do {{ loop.item }}.", "loop": [1, 2, 3], "max_parallel": 3}
            ],
        },
        Catalog(),
    )

    async def answer(prompt: Prompt) -> ModelCallResponse:
        await asyncio.sleep(0)
        return answer_of("done")

    quiet = await World().executor(world.model(answer)).execute(recipe)
    assert quiet.status is RunStatus.COMPLETED
    facts = len(["run", "each", *["item", "model", "ended"] * 3, "each ended"])
    assert await world.killed(world.executor(world.model(answer)), recipe, facts)
    result = await world.executor(world.model(answer)).resume("run_1")
    assert (result.status, result.output) == (quiet.status, quiet.output)


async def test_a_run_is_resumed_once_at_a_time_also_within_one_process() -> None:
    """The second one is refused; before, it took the lease, and the first lost its work."""
    world = World()
    begun, gate = asyncio.Event(), asyncio.Event()

    async def work(scope: StepScope) -> str:
        begun.set()
        await gate.wait()
        return "done"

    recipe = AgentRecipe(id="slow", steps=(python_step(work),))
    services = deterministic_services(world.journal)

    def executor() -> AgentExecutor:
        return executor_of(world.model(lambda _: "none"), services=services)

    world.journal.dies_at = 2
    with contextlib.suppress(KilledError):
        await executor().execute(recipe)
    world.journal.revive()
    first = asyncio.ensure_future(executor().resume("run_1", recipe=recipe))
    await begun.wait()
    with pytest.raises(LeaseHeldError, match="is being executed in this process"):
        await executor().resume("run_1", recipe=recipe)
    gate.set()
    assert (await first).output == "done"
    assert not services.executing


@frozen
class Report:
    title: str
    pages: int


@step
async def counted() -> Report:
    """Counts the pages."""
    return Report("Bees", 7)


class Listing(PythonStep[list[Report]]):
    @property
    def id(self) -> str:
        return "listing"

    async def run(self, scope: StepScope) -> list[Report]:
        return [Report("Ants", 3)]


async def test_what_code_returned_has_its_type_again_after_a_resume() -> None:
    """Before, a resumed run gave JSON where the run itself gave an object."""
    world = World()
    recipe = AgentRecipe(id="typed", steps=(counted, Listing(), text_step("say")))
    first = world.executor(world.model(lambda _: "none"))
    assert await world.killed(first, recipe, 6)
    result = await world.executor(world.model(lambda _: "fine")).resume("run_1", recipe=recipe)
    assert result.step("counted").output == Report("Bees", 7)
    assert result.step("listing").output == [Report("Ants", 3)]
