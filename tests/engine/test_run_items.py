"""The items of a recorded loop as rows, and their totals."""

from __future__ import annotations

from collections.abc import Mapping

from builders import Ran, fake_tool, run_of
from minions import Minions
from minions.adapters.models.script_items import Answer
from minions.contracts.calls import Prompt
from minions.contracts.runtime import SystemClock
from minions.contracts.tools import Effect
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue
from minions.engine.history.current_rows import current_rows
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.views.run_items import loops_in
from minions.recipe.catalog import Catalog, FoundRecipe
from minions.recipe.reading.load import recipe_from_document


def echo(prompt: Prompt) -> Answer:
    """The last words of the prompt."""
    return f"re: {prompt.messages[-1].content}"


def picky(arguments: Mapping[str, JsonValue]) -> object:
    """Refuses the number 2."""
    if arguments["n"] == 2:
        raise ToolError("no twos")
    return arguments["n"]


PICKY = fake_tool("picky", picky, effect=Effect.PURE)


async def _ran(steps: list[JsonValue], **more: JsonValue) -> Ran:
    document: dict[str, JsonValue] = {"id": "r", "tools": ["picky"], "steps": steps, **more}
    recipe = recipe_from_document(document, Catalog(tools={"picky": PICKY.spec}))
    return await run_of(recipe, echo, tools=[PICKY])


async def test_each_item_is_a_row_with_its_state_and_tokens() -> None:
    done = await _ran(
        [
            {
                "id": "each",
                "loop": ["a fox", "a hen"],
                "goal": "Write two short sentences about {{ loop.item }}.",
            }
        ]
    )
    found = loops_in(done.entries, is_running=False)["each"]
    assert [(each.index, each.status, each.words) for each in found.items] == [
        (0, "completed", "… a fox."),
        (1, "completed", "… a hen."),
    ]
    assert found.totals.total == 2
    assert found.totals.ended == 2
    assert all(each.usage.total_tokens > 0 for each in found.items)
    assert found.totals.usage.total_tokens == sum(e.usage.total_tokens for e in found.items)


async def test_failed_items_are_counted_and_say_why() -> None:
    done = await _ran(
        [
            {
                "id": "each",
                "loop": [1, 2, 3],
                "on_item_error": "collect",
                "tool": "picky",
                "params": {"n": "{{ loop.item }}"},
            }
        ]
    )
    found = loops_in(done.entries, is_running=False)["each"]
    assert [each.status for each in found.items] == ["completed", "failed", "completed"]
    assert (found.totals.total, found.totals.ended, found.totals.failed) == (3, 3, 1)
    error = found.items[1].error
    assert error is not None
    assert "no twos" in str(error["message"])
    assert [each.words for each in found.items] == ['{"n":1}', '{"n":2}', '{"n":3}']


async def test_items_of_a_loop_within_an_item_are_named_by_its_address() -> None:
    inner: dict[str, JsonValue] = {
        "id": "inner",
        "inputs": {"n": {"type": "integer"}},
        "steps": [{"id": "each", "loop": ["x", "y"], "goal": "{{ loop.item }} {{ inputs.n }}"}],
    }
    sub: JsonValue = {
        "id": "sub",
        "loop": [1, 2],
        "recipe": "inner",
        "with": {"n": "{{ loop.item }}"},
    }
    found = FoundRecipe(identity="inner", file="inner.yaml", document=inner)
    catalog = Catalog(find_recipe=lambda *_: found)
    done = await run_of(recipe_from_document({"id": "outer", "steps": [sub]}, catalog), echo)
    outer = loops_in(done.entries, is_running=False)["sub"]
    assert [each.words for each in outer.items] == ["x 1", "x 2"]
    within = loops_in(done.entries, is_running=False)["sub[1]/each"]
    assert [each.words for each in within.items] == ["x 2", "y 2"]


async def test_a_step_that_is_no_loop_has_no_items() -> None:
    done = await _ran([{"id": "one", "set": {"a": 1}}])
    assert loops_in(done.entries, is_running=False) == {}


async def test_a_loop_that_is_retried_with_fewer_items_has_rows_of_those_alone() -> None:
    journal = MemoryJournal(SystemClock())
    recipe = recipe_from_document(
        {
            "id": "r",
            "inputs": {"words": ["string"]},
            "steps": [
                {"id": "each", "loop": "{{ inputs.words }}", "set": {"w": "{{ loop.item }}"}}
            ],
        },
        Catalog(),
    )
    async with Minions(journal=journal) as app:
        first = await app.arun(recipe, {"words": ["a", "b", "c"]})
        await app.retry(first.run_id, inputs={"words": ["x", "b"]})
        entries = await journal.entries(first.session_id, run_id=first.run_id)
    found = loops_in(current_rows(entries), is_running=False)["each"]
    assert [each.index for each in found.items] == [0, 1]
    assert (found.totals.total, found.totals.ended) == (2, 2)
