"""A step that is done again as long as a condition holds."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from builders import Ran, fake_tool, run_of
from minions.adapters.models.script_items import Answer
from minions.contracts.calls import ModelFailure, Prompt
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.tools import Tool
from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from mortal import World, outline

Document = dict[str, JsonValue]


def recipe_with(steps: list[JsonValue], tools: list[Tool] | None = None) -> AgentRecipe:
    tools = tools or []
    catalog = Catalog(tools={tool.spec.name: tool.spec for tool in tools})
    names: list[JsonValue] = [tool.spec.name for tool in tools]
    return recipe_from_document({"id": "recipe", "tools": names, "steps": steps}, catalog)


async def ran(steps: list[JsonValue], tools: list[Tool] | None = None) -> Ran:
    return await run_of(recipe_with(steps, tools), echo, tools=tools or [])


def echo(prompt: Prompt) -> Answer:
    return f"re: {prompt.messages[-1].content}"


def error_of(result: AgentResult[object]) -> tuple[str, str]:
    assert result.error is not None
    return result.error.code, result.error.message


COUNT: Document = {
    "id": "count",
    "set": {"n": "{{ loop.index + 1 }}", "before": "{{ loop.attempts | length }}"},
    "while": "count.n < 3",
}


async def test_it_is_done_until_the_condition_is_false_and_gives_what_the_last_attempt_gave() -> (
    None
):
    done = await ran([COUNT, {"id": "after", "set": {"n": "{{ count.n }}"}}])
    assert done.result.step("count").output == {"n": 3, "before": 2}
    assert [each.output for each in done.result.step("count").iterations] == [
        {"n": n + 1, "before": n} for n in range(3)
    ]
    assert done.result.output == {"n": 3}
    assert "loop" not in done.context.values


async def test_the_first_attempt_is_made_in_any_case() -> None:
    done = await ran([{"id": "once", "set": {"x": 1}, "while": "false"}])
    assert done.result.output == {"x": 1}


async def test_an_attempt_reads_what_the_ones_before_gave() -> None:
    done = await ran(
        [
            {
                "id": "draft",
                "goal": "Improve {{ loop.last | default('nothing', true) }}.",
                "while": "loop.index < 2",
                "save_as": "text",
            },
            {"id": "end", "set": {"it": "{{ text }}"}},
        ]
    )
    prompts = [prompt[-1].content for prompt in done.prompts]
    assert prompts == [
        "Improve nothing.",
        "Improve re: Improve nothing..",
        "Improve re: Improve re: Improve nothing...",
    ]


async def test_a_condition_may_call_the_last_output_by_any_of_its_names() -> None:
    for name in ("count.n", "steps.count.output.n", "loop.last.n", "total.n"):
        step: Document = {**COUNT, "save_as": "total", "while": f"{name} < 2"}
        done = await ran([step])
        assert done.result.step("count").output == {"n": 2, "before": 1}, name


async def test_after_the_last_attempt_the_step_fails_and_all_are_kept() -> None:
    done = await ran(
        [{**COUNT, "while": "count.n < 9", "max_iterations": 4}, {"id": "after", "set": {"x": 1}}]
    )
    code, message = error_of(done.result)
    assert code == "while-exhausted"
    assert message.startswith("After 4 attempts of step 'count' 'count.n < 9' still holds")
    assert len(done.result.step("count").iterations) == 4
    assert done.statuses["after"] == "skipped"


async def test_an_attempt_that_gives_what_another_gave_means_that_the_step_is_stuck() -> None:
    looks = iter("abab")
    tool = fake_tool("look", lambda _: next(looks))
    step: Document = {"id": "s", "tool": "look", "while": "s != 'c'"}
    done = await ran([step], [tool])
    code, message = error_of(done.result)
    assert code == "while-stuck"
    assert message.startswith("Step 's' is stuck: attempt 3 gave the same as attempt 1")
    assert len(tool.asked) == 3


async def test_repeats_may_be_allowed_for_what_is_waited_for() -> None:
    looks = iter(["wait", "wait", "wait", "done"])
    tool = fake_tool("look", lambda _: next(looks))
    step: Document = {"id": "s", "tool": "look", "while": "s == 'wait'", "allow_repeats": True}
    done = await ran([step], [tool])
    assert (done.result.output, len(tool.asked)) == ("done", 4)


async def test_a_failed_attempt_fails_the_step() -> None:
    async def answer(prompt: Prompt) -> Answer:
        return ModelFailure(code="refused", message="no")

    steps: list[JsonValue] = [{"id": "s", "goal": "Go.", "while": "true"}]
    done = await run_of(recipe_with(steps), answer)
    assert error_of(done.result)[0] == "refused"
    assert len(done.result.step("s").iterations) == 1


# --- going on ------------------------------------------------------------------------------------

JOURNEY: list[JsonValue] = [
    {"id": "draft", "goal": "More than {{ loop.last }}", "while": "loop.index < 3"},
    {"id": "end", "goal": "{{ draft }}"},
]


async def test_killed_anywhere_it_goes_on_with_the_attempts_it_has() -> None:
    quiet, recipe = World(), recipe_with(JOURNEY)
    expected = await quiet.executor(quiet.model(echo)).execute(recipe)
    assert expected.status is RunStatus.COMPLETED
    for at in range(2, len(await quiet.journal.entries()) + 1):
        world = World()
        assert await world.killed(world.executor(world.model(echo)), recipe, at)
        result = await world.executor(world.model(echo)).resume("run_1")
        assert outline(result) == outline(expected), at
        assert sum(world.asked.values()) == sum(quiet.asked.values()), at


@pytest.mark.parametrize("is_stuck", [True, False])
async def test_a_retry_of_attempts_that_were_not_enough_makes_all_anew(is_stuck: bool) -> None:
    world = World()
    told: Mapping[str, list[str]] = {"now": ["a", "a"] if is_stuck else ["a", "b"]}

    def answer(_: Prompt) -> Answer:
        return told["now"].pop(0)

    recipe = recipe_with([{"id": "s", "goal": "Go.", "while": "s != 'c'", "max_iterations": 2}])
    executor = world.executor(world.model(answer))
    first = await executor.execute(recipe)
    assert error_of(first)[0] == ("while-stuck" if is_stuck else "while-exhausted")
    told["now"].extend(["d", "c"])
    again = await executor.retry("run_1")
    assert (again.status, again.output) == (RunStatus.COMPLETED, "c")


# --- what is refused -----------------------------------------------------------------------------


def test_what_cannot_be_is_refused_before_the_run() -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_with(
            [
                {"id": "a", "set": {"x": 1}, "while": "a.y > 1 and loop.item", "loop": [1]},
                {"id": "b", "set": {"x": 1}, "max_iterations": 3},
                {"id": "c", "set": {"x": "{{ c.x }}"}, "while": "true", "max_iterations": 0},
            ]
        )
    assert sorted(fault.message for fault in caught.value.faults) == [
        "'a' can never have 'y': it has no 'y'",
        "'loop' has no 'item'",
        "'max_iterations' belongs to a step with 'while'",
        "'max_iterations' must be at least 1, not 0",
        "a step is done for each item or as long as a condition holds, not both",
        "the step 'c' reads its own output",
    ]
