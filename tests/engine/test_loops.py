"""A step that is done for each item of a list."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from builders import Ran, fake_tool, run_of
from minions.adapters.models.script_items import Answer
from minions.contracts.calls import Prompt
from minions.contracts.executions import RunStatus
from minions.contracts.tools import Effect, Tool
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_detail import show_run
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document
from mortal import World, outline


async def ran(
    steps: list[JsonValue], *, tools: list[Tool] | None = None, **settings: JsonValue
) -> Ran:
    """A recipe as a file would give it, and its run."""
    tools = tools or []
    document: dict[str, JsonValue] = {
        "id": "recipe",
        "tools": [tool.spec.name for tool in tools],
        **settings,
        "steps": steps,
    }
    catalog = Catalog(tools={tool.spec.name: tool.spec for tool in tools})
    return await run_of(recipe_from_document(document, catalog), echo, tools=tools)


def echo(prompt: Prompt) -> Answer:
    """The last words of the prompt."""
    return f"re: {prompt.messages[-1].content}"


def picky(arguments: Mapping[str, JsonValue]) -> object:
    """Refuses the number 2."""
    if arguments["n"] == 2:
        raise ToolError("no twos")
    return {"twice": [arguments["n"], arguments["n"]]}


async def test_items_are_read_by_name_and_place_and_gone_after_the_step() -> None:
    """A-55: `loop.index` starts at 0; nobody else sees the loop's variables."""
    done = await ran(
        [
            {"id": "list", "set": {"of": [{"id": 7}, {"id": 8}]}},
            {
                "id": "each",
                "loop": "{{ list.of }}",
                "aggregate": True,
                "set": {"text": "{{ loop.index }}={{ loop.item.id }}"},
            },
            {
                "id": "fail",
                "tool": "picky",
                "params": {"n": "{{ loop.item }}"},
                "loop": [2],
                "optional": True,
            },
        ],
        tools=[fake_tool("picky", picky)],
    )
    assert done.result.step("each").output == [{"text": "0=7"}, {"text": "1=8"}]
    assert "loop" not in done.context.values


async def test_all_items_are_tried_and_errors_are_kept_with_their_index() -> None:
    """A-59: results and indexed errors are kept, and the step is failed."""
    done = await ran(
        [
            {"id": "each", "tool": "picky", "params": {"n": "{{ loop.item }}"}, "loop": [1, 2, 3]},
            {"id": "after", "set": {"x": "{{ each.results }}"}},
        ],
        tools=[fake_tool("picky", picky)],
    )
    step = done.result.step("each")
    assert [each.status.value for each in step.iterations] == ["completed", "failed", "completed"]
    assert step.error is not None
    assert step.error.code == "loop-failed"
    assert step.error.message == (
        "1 of 3 items of step 'each' failed: item 1: no twos. The results of the others are kept."
    )
    assert [each.output for each in step.iterations if each.is_complete] == [
        {"twice": [1, 1]},
        {"twice": [3, 3]},
    ]
    assert done.statuses == {"each": "failed", "after": "skipped"}
    (ended,) = (e.body for e in done.entries if (e.key, e.state) == ("each/1/0", "failed"))
    assert ended["output"] == {
        "results": [{"twice": [1, 1]}, None, {"twice": [3, 3]}],
        "errors": [{"index": 1, "item": 2, "code": "tool-error", "message": "no twos"}],
        "total": 3,
        "successful": 2,
        "failed": 1,
    }


@pytest.mark.parametrize("is_aggregated", [True, False])
async def test_an_empty_list_is_no_failure(*, is_aggregated: bool) -> None:
    """A-60: success without an item, in the same form."""
    done = await ran(
        [{"id": "each", "set": {"x": 1}, "loop": "{{ [] }}", "aggregate": is_aggregated}]
    )
    empty = {"results": [], "errors": [], "total": 0, "successful": 0, "failed": 0}
    assert done.result.output == ([] if is_aggregated else empty)
    assert done.result.status is RunStatus.COMPLETED


async def test_what_is_no_list_fails_the_step_and_says_where_one_is() -> None:
    """A-60."""
    done = await ran(
        [
            {"id": "each", "tool": "wrap", "params": {}},
            {"id": "loop_over", "set": {"x": 1}, "loop": "{{ each }}"},
        ],
        tools=[fake_tool("wrap", lambda _: {"found": 2, "list": [1, 2]})],
    )
    error = done.result.step("loop_over").error
    assert error is not None
    assert error.code == "loop-not-a-list"
    assert error.message.endswith(
        "goes over a JSON object, not over a list. Name the list itself in `loop`. There is one at "
        "'.list'."
    )


async def test_aggregated_or_not_the_errors_stay_on_the_execution() -> None:
    """A-61."""
    step: dict[str, JsonValue] = {
        "id": "each",
        "tool": "picky",
        "params": {"n": "{{ loop.item }}"},
        "loop": [2, 3],
        "optional": True,
        "save_as": "all",
    }
    for is_aggregated in (True, False):
        done = await ran([{**step, "aggregate": is_aggregated}], tools=[fake_tool("picky", picky)])
        errors = [each.error and each.error.message for each in done.only.iterations]
        assert errors == ["no twos", None]
        assert done.result.status is RunStatus.PARTIAL
    done = await ran(
        [{**step, "loop": [3, 4], "aggregate": True}, {"id": "read", "set": {"n": "{{ all[1] }}"}}],
        tools=[fake_tool("picky", picky)],
    )
    assert done.result.output == {"n": {"twice": [4, 4]}}


async def test_items_are_done_together_up_to_a_bound_and_come_in_order() -> None:
    together = most = 0

    async def work(arguments: Mapping[str, JsonValue]) -> object:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.001 * (5 - int(str(arguments["n"]))))
        together -= 1
        return arguments["n"]

    done = await ran(
        [
            {
                "id": "each",
                "tool": "work",
                "params": {"n": "{{ loop.item }}"},
                "loop": [0, 1, 2, 3, 4],
                "aggregate": True,
                "max_parallel": 3,
            }
        ],
        tools=[fake_tool("work", work)],
    )
    assert (done.result.output, most) == ([0, 1, 2, 3, 4], 3)


async def test_each_item_has_a_model_call_with_a_context_of_its_own() -> None:
    """A-65: no item sees another's prompt."""
    done = await ran([{"id": "ask", "goal": "About {{ loop.item }}", "loop": ["x", "y"]}])
    assert [[m.content for m in prompt] for prompt in done.prompts] == [["About x"], ["About y"]]
    assert done.result.output == {
        "results": ["re: About x", "re: About y"],
        "errors": [],
        "total": 2,
        "successful": 2,
        "failed": 0,
    }
    assert done.only.usage == done.result.usage


async def test_a_spent_run_stops_the_loop_and_keeps_what_was_done() -> None:
    done = await ran(
        [{"id": "ask", "goal": "About {{ loop.item }}", "loop": [1, 2, 3, 4]}],
        limits={"max_tokens": 5},
    )
    assert done.result.status is RunStatus.LIMIT_REACHED
    assert len(done.only.iterations) < 4
    assert done.only.error is not None
    assert done.only.error.code == "limit-reached"


@pytest.mark.parametrize("most", [1, 3])
async def test_a_loop_that_is_killed_anywhere_goes_on_with_the_items_that_are_left(
    most: int,
) -> None:
    document: dict[str, JsonValue] = {
        "id": "recipe",
        "tools": ["note"],
        "permissions": {"allow_write": True},
        "steps": [
            {
                "id": "each",
                "tool": "note",
                "params": {"n": "{{ loop.item }}"},
                "loop": [1, 2, 3],
                "max_parallel": most,
            },
            {"id": "ask", "goal": "{{ loop.item }}", "loop": "{{ each.results }}"},
            {"id": "end", "set": {"all": "{{ ask.results }}"}},
        ],
    }
    quiet = World()
    recipe = recipe_from_document(
        document, Catalog(tools={"note": quiet.tool("note", Effect.IDEMPOTENT).spec})
    )

    def tools(world: World) -> list[Tool]:
        return [world.tool("note", Effect.IDEMPOTENT, "noted")]

    expected = await quiet.executor(quiet.model(echo), tools(quiet)).execute(recipe)
    assert expected.status is RunStatus.COMPLETED
    for at in range(2, len(await quiet.journal.entries()) + 1):
        world = World()
        assert await world.killed(world.executor(world.model(echo), tools(world)), recipe, at)
        again = world.executor(world.model(echo), tools(world))
        result = await again.resume("run_1")
        assert outline(result) == outline(expected), at
        assert sum(world.asked.values()) == sum(quiet.asked.values())
        (run,) = await list_runs(world.journal)
        shown = await show_run(world.journal, run)
        assert [step.step_id for step in shown.steps] == ["each", "ask", "end"]


async def test_only_the_failed_items_are_tried_again() -> None:
    world = World()
    bad = {2}

    def work(arguments: Mapping[str, JsonValue]) -> object:
        world.done[f"{arguments['n']}"] += 1
        if arguments["n"] in bad:
            raise ToolError("not now")
        return arguments["n"]

    tool = fake_tool("work", work)
    document: dict[str, JsonValue] = {
        "id": "recipe",
        "tools": ["work"],
        "steps": [
            {
                "id": "each",
                "tool": "work",
                "params": {"n": "{{ loop.item }}"},
                "loop": [1, 2, 3],
                "aggregate": True,
            }
        ],
    }
    recipe = recipe_from_document(document, Catalog(tools={"work": tool.spec}))
    executor = world.executor(world.model(echo), [tool])
    assert (await executor.execute(recipe)).status is RunStatus.FAILED
    bad.clear()
    result = await executor.retry("run_1")
    assert result.output == [1, 2, 3]
    assert world.done == {"1": 1, "2": 2, "3": 1}
