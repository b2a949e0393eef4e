"""What becomes of the run when a step fails: it ends, goes on, or goes back with feedback."""

from __future__ import annotations

import itertools

import pytest

from builders import Ran, fake_tool, run_of
from minions.adapters.models.script_items import Answer
from minions.contracts.calls import Prompt
from minions.contracts.executions import RunStatus
from minions.contracts.tools import Effect, Tool
from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue
from minions.engine.run.agent_executor import AgentExecutor
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from mortal import KilledError, World, outline

Document = dict[str, JsonValue]


def recipe_with(
    steps: list[JsonValue], tools: list[Tool] | None = None, **settings: JsonValue
) -> AgentRecipe:
    tools = tools or []
    catalog = Catalog(tools={tool.spec.name: tool.spec for tool in tools})
    names: list[JsonValue] = [tool.spec.name for tool in tools]
    return recipe_from_document(
        {"id": "recipe", "tools": names, "steps": steps, **settings}, catalog
    )


async def ran(
    steps: list[JsonValue], tools: list[Tool] | None = None, **settings: JsonValue
) -> Ran:
    return await run_of(recipe_with(steps, tools, **settings), improving, tools=tools or [])


def improving(prompt: Prompt) -> Answer:
    """Good only after it was told what is wrong."""
    said = " ".join(message.content or "" for message in prompt.messages)
    return "good" if "not good enough" in said or "too short" in said else "bad"


# --- continue ------------------------------------------------------------------------------------


async def test_what_only_comes_after_a_failure_goes_on_and_what_reads_it_does_not() -> None:
    done = await ran(
        [
            {"id": "try", "assert": "1 == 2", "on_error": "continue"},
            {"id": "after", "set": {"x": 1}, "depends_on": ["try"]},
            {"id": "reads", "set": {"x": "{{ try }}"}, "optional": True},
            {
                "id": "tells",
                "set": {
                    "how": "{{ steps.try.status }}",
                    "why": "{{ steps.try.error.message }}",
                },
            },
        ]
    )
    assert done.result.status is RunStatus.PARTIAL
    assert done.statuses == {
        "try": "failed",
        "after": "completed",
        "reads": "skipped",
        "tells": "completed",
    }
    assert done.result.step("tells").output == {
        "how": "failed",
        "why": "The condition '1 == 2' does not hold.",
    }


async def test_without_a_failure_nothing_is_different() -> None:
    done = await ran(
        [
            {"id": "try", "set": {"x": 1}, "on_error": "continue"},
            {"id": "tells", "set": {"why": "{{ steps.try.error }}"}},
        ]
    )
    assert (done.result.status, done.result.output) == (RunStatus.COMPLETED, {"why": None})


# --- goto ---------------------------------------------------------------------------------------

LOOP_BACK: list[JsonValue] = [
    {"id": "draft", "goal": "Write."},
    {"id": "between", "set": {"text": "{{ draft }}!"}},
    {
        "id": "check",
        "assert": "draft == 'good'",
        "message": "'{{ draft }}' is too bad",
        "depends_on": ["between"],
        "on_error": {"goto": "draft"},
    },
    {"id": "end", "set": {"it": "{{ between.text }}"}, "depends_on": ["check"]},
]


@pytest.mark.parametrize("mode", ["sequential", "planned", "parallel"])
async def test_an_earlier_step_runs_again_and_is_told_what_went_wrong(mode: str) -> None:
    done = await ran(LOOP_BACK, execution_mode=mode)
    assert (done.result.status, done.result.output) == (RunStatus.COMPLETED, {"it": "good!"})
    assert done.ids == ["draft", "between", "check", "draft", "between", "check", "end"]
    assert done.prompts[1][-1].content == (
        "An earlier answer of yours was not good enough: step 'check', which came after it, "
        "failed: 'bad' is too bad\nDo it again, and do better."
    )
    assert ("goto", "check/1/0/goto", "recorded") in done.facts


async def test_it_goes_back_only_so_often() -> None:
    steps = [dict(step) for step in LOOP_BACK if isinstance(step, dict)]
    steps[2]["assert"] = "draft == 'perfect'"
    steps[2]["on_error"] = {"goto": "draft", "max": 3}
    done = await ran(list(steps))
    assert done.result.status is RunStatus.FAILED
    assert len(done.prompts) == 4
    assert done.result.error is not None
    assert done.result.error.code == "assertion-failed"


async def test_a_template_may_say_what_went_wrong_in_its_own_words() -> None:
    done = await ran(
        [
            {"id": "draft", "goal": "Write. {{ feedback.message | default('') }}"},
            {
                "id": "check",
                "assert": "draft == 'good'",
                "message": "too short",
                "on_error": {"goto": "draft"},
            },
        ]
    )
    prompts = [prompt[-1].content for prompt in done.prompts]
    assert prompts == ["Write. ", "Write. too short"]
    assert done.context.values["feedback"] is None


async def test_a_step_may_go_back_to_itself() -> None:
    tries = iter([RuntimeError("busy"), RuntimeError("busy"), "here"])

    def work(_: object) -> object:
        result = next(tries)
        if isinstance(result, Exception):
            raise result
        return result

    tool = fake_tool("look", work, effect=Effect.ONCE)
    step: Document = {"id": "s", "tool": "look", "on_error": {"goto": "s"}}
    done = await ran([step], [tool], permissions={"allow_write": True})
    assert (done.result.status, done.result.output) == (RunStatus.COMPLETED, "here")
    assert done.result.step("s").id.endswith("s/3/0")


async def test_branches_that_do_not_rest_on_the_step_are_left_alone() -> None:
    done = await ran(
        [
            {"id": "other", "goal": "Something else."},
            *LOOP_BACK,
            {"id": "both", "set": {"x": "{{ other }} {{ draft }}"}},
        ],
        execution_mode="parallel",
    )
    assert done.result.status is RunStatus.COMPLETED
    assert done.ids.count("other") == 1
    assert done.result.step("both").output == {"x": "bad good"}


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
async def test_nothing_else_begins_before_the_run_has_gone_back(mode: str) -> None:
    others: list[JsonValue] = [{"id": f"o{number}", "set": {"x": 1}} for number in range(3)]
    done = await ran([*LOOP_BACK[:3], *others], execution_mode=mode, max_parallel=1)
    assert done.ids[:6] == ["draft", "between", "check", "draft", "between", "check"]


async def test_killed_anywhere_it_goes_on_and_goes_back_no_more_often() -> None:
    quiet = World()
    steps: list[JsonValue] = [*LOOP_BACK, {"id": "tool", "tool": "note", "depends_on": ["between"]}]

    def tools(world: World) -> list[Tool]:
        return [world.tool("note", Effect.PURE, "noted")]

    recipe = recipe_with(steps, tools(quiet), execution_mode="parallel")
    expected = await quiet.executor(quiet.model(improving), tools(quiet)).execute(recipe)
    assert expected.status is RunStatus.COMPLETED
    for at in range(2, len(await quiet.journal.entries()) + 1):
        world = World()
        killed = await world.killed(
            world.executor(world.model(improving), tools(world)), recipe, at
        )
        assert killed, at
        again = world.executor(world.model(improving), tools(world))
        result = await again.resume("run_1")
        assert outline(result) == outline(expected), at
        assert sum(world.asked.values()) <= sum(quiet.asked.values()) + 1, at


async def test_a_retry_begins_with_the_failure_that_counted() -> None:
    world = World()
    wanted = "perfect"

    def answer(prompt: Prompt) -> Answer:
        return improving(prompt)

    steps = [dict(step) for step in LOOP_BACK if isinstance(step, dict)]
    steps[2] = {
        "id": "check",
        "tool": "judge",
        "params": {"text": "{{ draft }}"},
        "depends_on": ["between"],
        "on_error": {"goto": "draft", "max": 1},
    }

    def judge(arguments: object) -> object:
        if wanted not in str(arguments):
            raise RuntimeError("not it")
        return "fine"

    tools: list[Tool] = [fake_tool("judge", judge, effect=Effect.ONCE)]
    recipe = recipe_with(list(steps), tools, permissions={"allow_write": True})
    executor = world.executor(world.model(answer), tools)
    assert (await executor.execute(recipe)).status is RunStatus.FAILED
    asked = sum(world.asked.values())
    wanted = "good"
    again = await executor.retry("run_1")
    assert again.status is RunStatus.COMPLETED
    assert sum(world.asked.values()) == asked


async def test_a_retry_that_is_killed_anywhere_goes_back_as_often_as_one_that_is_not() -> None:
    """Ways back from before the retry are free in every execution of it, not only in the first."""

    async def failed() -> tuple[World, AgentExecutor]:
        world = World()
        counts = itertools.count()
        executor = world.executor(world.model(lambda _: f"draft {next(counts)}"))
        assert (await executor.execute(recipe)).status is RunStatus.FAILED
        return world, executor

    steps: list[JsonValue] = [
        {"id": "draft", "goal": "Write."},
        {"id": "check", "assert": "'4' in draft", "on_error": {"goto": "draft", "max": 2}},
    ]
    recipe = recipe_with(steps)
    quiet, executor = await failed()
    before = quiet.journal.count
    expected = await executor.retry("run_1")
    assert expected.step("draft").output == "draft 4"
    for at in range(before + 2, quiet.journal.count):
        world, executor = await failed()
        world.journal.dies_at = at
        with pytest.raises(KilledError):
            await executor.retry("run_1")
        world.journal.revive()
        result = await executor.resume("run_1")
        assert (result.status, result.error) == (expected.status, None), at


def test_where_a_failure_leads_back_to_is_checked_before_the_run() -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_with(
            [
                {"id": "a", "set": {"x": 1}},
                {"id": "b", "set": {"x": 1}, "on_error": {"goto": "a"}},
                {"id": "c", "set": {"x": 1}, "on_error": {"goto": "nowhere"}},
                {"id": "d", "set": {"x": 1}, "on_error": "ignore"},
                {"id": "e", "set": {"x": 1}, "on_error": "continue", "optional": True},
                {"id": "f", "set": {"x": "{{ feedback.mesage }}"}},
            ]
        )
    assert [fault.message for fault in caught.value.faults] == [
        "'on_error' cannot be 'ignore'",
        "'optional' and 'on_error' both say what a failure does",
        "'feedback' has no 'mesage'",
        "'b' does not depend on 'a': running it again would change nothing",
        "unknown step 'nowhere' in on_error",
    ]
