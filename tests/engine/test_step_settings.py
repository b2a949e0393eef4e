"""What a step says for itself: how its calls are tried again, and what it remembers."""

from __future__ import annotations

import pytest

from builders import Ran, fake_tool, run_of
from minions.adapters.models.script_items import Answer, tool_request
from minions.contracts.calls import ModelFailure, Prompt
from minions.contracts.executions import RunStatus
from minions.contracts.messages import MessageRole
from minions.contracts.tools import Effect, Tool
from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from mortal import World, outline


def recipe_with(
    *steps: JsonValue, tools: tuple[Tool, ...] = (), **settings: JsonValue
) -> AgentRecipe:
    catalog = Catalog(tools={tool.spec.name: tool.spec for tool in tools})
    names: list[JsonValue] = [tool.spec.name for tool in tools]
    document: dict[str, JsonValue] = {
        "id": "recipe",
        "tools": names,
        **settings,
        "steps": list(steps),
    }
    return recipe_from_document(document, catalog)


# --- retry -------------------------------------------------------------------------------------


async def test_a_step_says_how_often_its_calls_are_tried() -> None:
    def answer(_: Prompt) -> Answer:
        return ModelFailure(code="busy", message="later", is_retryable=True)

    done = await run_of(
        recipe_with(
            {"id": "a", "goal": "Go.", "retry": {"max_attempts": 5}, "optional": True},
            {"id": "b", "goal": "Go.", "optional": True},
            retry={"max_attempts": 2},
        ),
        answer,
    )
    assert [done.result.step(name).attempts for name in "ab"] == [5, 2]


# --- conversation ------------------------------------------------------------------------------

TALK: tuple[JsonValue, ...] = (
    {"id": "one", "goal": "First.", "memory": "conversation", "tools": ["look"]},
    {"id": "aside", "goal": "Aside."},
    {"id": "two", "goal": "Second.", "memory": "conversation"},
    {"id": "three", "goal": "Third.", "memory": "conversation"},
)


def talk(prompt: Prompt) -> Answer:
    last = prompt.messages[-1]
    if last.content == "First.":
        return tool_request("look")
    return f"after {last.content}"


LOOK = fake_tool("look", lambda _: "seen", effect=Effect.PURE)


def said(done: Ran) -> list[list[tuple[str, str | None]]]:
    return [[(each.role.value, each.content) for each in prompt] for prompt in done.prompts]


async def test_steps_of_one_conversation_go_on_with_what_was_said() -> None:
    recipe = recipe_with(*TALK, tools=(LOOK,), system_prompt="Be kind.", goal="Talk.")
    done = await run_of(recipe, talk, tools=[LOOK])
    assert done.result.status is RunStatus.COMPLETED
    prompts = said(done)
    assert [text for _, text in prompts[2]] == ["Be kind.", "Talk.", "Aside."]
    assert [text for _, text in prompts[-1]] == [
        "Be kind.",
        "Talk.",
        "First.",
        None,
        "seen",
        "after seen",
        "Second.",
        "after Second.",
        "Third.",
    ]


async def test_a_conversation_goes_on_after_a_crash() -> None:
    quiet = World()

    def tools(world: World) -> list[Tool]:
        return [world.tool("look", Effect.PURE, "seen")]

    def answer(prompt: Prompt) -> Answer:
        if prompt.messages[-1].role is not MessageRole.TOOL and "First" in str(
            prompt.messages[-1].content
        ):
            return [tool_request("look")]
        return f"after {prompt.messages[-1].content}"

    recipe = recipe_with(*TALK, tools=(LOOK,))
    expected = await quiet.executor(quiet.model(answer), tools(quiet)).execute(recipe)
    assert expected.status is RunStatus.COMPLETED
    for at in range(2, len(await quiet.journal.entries()) + 1):
        world = World()
        assert await world.killed(world.executor(world.model(answer), tools(world)), recipe, at)
        again = world.executor(world.model(answer), tools(world))
        assert outline(await again.resume("run_1")) == outline(expected), at


def test_one_conversation_cannot_go_on_in_several_places_at_once() -> None:
    with pytest.raises(RecipeError, match="several steps cannot continue one conversation"):
        recipe_with(*TALK, tools=(LOOK,), execution_mode="parallel")
    step: dict[str, JsonValue] = {
        "id": "a",
        "goal": "{{ loop.item }}",
        "memory": "conversation",
        "loop": [1, 2],
        "max_parallel": 2,
    }
    with pytest.raises(RecipeError, match="several items cannot continue one conversation"):
        recipe_with(step)
