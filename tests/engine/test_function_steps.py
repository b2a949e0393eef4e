"""`@step`: a typed function is a step of a recipe, as code or as the goal of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
from attrs import frozen

from minions.adapters.models.script_items import tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.tools.function_tool import tool
from minions.app.wiring.extension_files import load_extensions
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.messages import MessageRole
from minions.contracts.steps import DefaultStep, PythonStep, StepScope
from minions.contracts.tools import Toolbox
from minions.data.errors import UsageError
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.function_steps import step
from minions.engine.run.agent_executor import AgentExecutor
from minions.recipe.model import AgentRecipe, InputSpec
from minions.recipe.reading.load import check_recipe_text, load_recipe_text


@frozen
class Page:
    """What was fetched."""

    title: str
    words: int


@frozen
class Judgement:
    """What a model thinks of it."""

    good: bool
    reason: str


@step
async def fetch(url: str, scope: StepScope) -> Page:
    """Fetch the page."""
    title = await scope.call_model(f"What is at {url}?")
    return Page(title=title, words=len(title.split()))


@step
async def judge(fetch: Page, style: str = "short") -> Judgement:
    """Is "{{ fetch.title }}" a good title?"""
    raise NotImplementedError


@step(id="name", tools=["look"])
async def name_it(judge: Judgement) -> str:  # type: ignore[empty-body]  # a model does the work
    """Find a better title."""


@step
async def broken() -> int:
    """Say how many there are."""
    return cast(int, "three")


def recipe_of(*steps: object, **inputs: str) -> AgentRecipe:
    declared = {name: InputSpec(schema={"type": "string"}) for name in inputs}
    return AgentRecipe(id="pages", steps=cast("list[DefaultStep[object]]", steps), inputs=declared)


async def run(recipe: AgentRecipe, model: ScriptedModel, **inputs: str) -> AgentResult[object]:
    @tool
    def look(word: str) -> str:
        """Look a word up."""
        return f"{word}: known"

    extensions = Extensions(tools=Toolbox((look,)))
    return await AgentExecutor(model, extensions=extensions).execute(recipe, inputs)


async def test_functions_are_steps_with_their_return_types_as_schemas() -> None:
    """A-130."""
    model = ScriptedModel(
        [
            "Tides and Boats",
            {"good": "perhaps", "reason": "?"},
            {"good": False, "reason": "vague"},
            tool_request("look", {"word": "tide"}),
            "High Water",
        ]
    )
    recipe = recipe_of(fetch, judge, name_it, url="")
    result = await run(recipe, model, url="http://x.test")
    assert result.unwrap() == "High Water"
    assert result.step("fetch").output == Page(title="Tides and Boats", words=3)
    assert result.step("judge").output == Judgement(good=False, reason="vague")
    assert goal_of(model, 1) == 'Is "Tides and Boats" a good title?\n\nstyle: short'
    assert goal_of(model, 3).startswith("Find a better title.\n\njudge: {")


async def test_a_parameter_that_nothing_is_called_fails_the_step_by_name() -> None:
    result = await run(recipe_of(judge), ScriptedModel([]))
    assert result.error is not None
    assert result.error.code == "bad-step-arguments"
    assert "'fetch': no earlier step and no input has this name" in result.error.message


async def test_code_that_returns_something_else_than_it_declares_fails() -> None:
    result = await run(recipe_of(broken), ScriptedModel([]))
    assert result.status is RunStatus.FAILED
    assert result.error is not None
    assert result.error.code == "invalid-output"


async def test_a_function_is_a_step_twice_under_other_names_with_bound_parameters() -> None:
    first = judge.named("first", fetch=Page(title="One", words=1))
    second = judge.named("second", fetch=Page(title="Two", words=1))
    model = ScriptedModel([{"good": True, "reason": "1"}, {"good": True, "reason": "2"}])
    result = await run(recipe_of(first, second), model)
    assert result.unwrap() == Judgement(good=True, reason="2")
    assert "One" in goal_of(model, 0)
    with pytest.raises(UsageError, match="no parameter 'page'"):
        judge.named("third", page=1)


async def test_a_step_is_still_the_function() -> None:
    @step
    async def double(n: int) -> int:
        return 2 * n

    assert await double(4) == 8
    with pytest.raises(UsageError, match="no body"):
        await judge(Page(title="", words=0))


def goal_of(model: ScriptedModel, call: int) -> str:
    messages = model.prompts[call].messages
    return next(each.content or "" for each in messages if each.role is MessageRole.GOAL)


YAML = """\
id: pages
inputs: {site: string}
steps:
  - {id: page, uses: fetch, with: {url: "{{ inputs.site }}"}}
  - {id: verdict, uses: judge, with: {fetch: "{{ page }}", style: long}}
"""


def test_a_recipe_knows_the_types_of_what_functions_and_classes_return() -> None:
    """A-163."""

    @frozen
    class Row:
        path: str
        size: int = 1

    class Look(PythonStep[Sequence[Row]]):
        id = "look"

        async def run(self, scope: StepScope) -> Sequence[Row]:
            return [Row("a")]

    class Ask(DefaultStep[Row]):
        id = "ask"

    @step
    async def count() -> dict[str, int]:
        """Count."""
        return {"rows": 1}

    catalog = Extensions(steps={"Look": Look, "Ask": Ask, "count": count}).catalog()
    assert {name: sorted(each) for name, each in catalog.step_outputs.items()} == {
        "Look": ["$defs", "items", "type"],
        "Ask": ["additionalProperties", "properties", "required", "type"],
        "count": ["additionalProperties", "type"],
    }
    text = (
        "id: x\nsteps:\n  - {id: a, uses: Look}\n  - {id: b, uses: Ask}\n"
        "  - {id: c, uses: count}\n"
        "  - {id: d, set: {x: '{{ a.path }}', y: '{{ b.sise }}', z: '{{ c.rows.of }}'}}\n"
    )
    faults = check_recipe_text(text, "x.yaml", catalog).faults
    assert [(each.code, each.label) for each in faults] == [
        ("unknown-reference", "did you mean 'a[0].path'?"),
        ("unknown-reference", "did you mean 'size'?"),
        ("unknown-reference", None),
    ]


async def test_a_recipe_uses_functions_by_name() -> None:
    """A-130."""
    extensions = Extensions(steps={"fetch": fetch, "judge": judge})
    recipe = load_recipe_text(YAML, "pages.yaml", extensions.catalog())
    model = ScriptedModel(["Tides", {"good": True, "reason": "short"}])
    executor = AgentExecutor(model, extensions=extensions)
    result = await executor.execute(recipe, {"site": "http://x.test"}, output_class=Judgement)
    assert result.unwrap() == Judgement(good=True, reason="short")
    assert "style: long" in goal_of(model, 1)


def test_what_a_recipe_gives_a_function_is_checked_before_it_runs() -> None:
    catalog = Extensions(steps={"fetch": fetch}).catalog()
    with pytest.raises(Exception, match="uri"):
        load_recipe_text(
            "id: x\nsteps:\n  - {id: a, uses: fetch, with: {uri: x}}\n", "x.yaml", catalog
        )


def test_functions_of_an_extension_file_are_registered(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from minions import step\n\n@step\nasync def twice(n: int) -> int:\n    return 2 * n\n",
        "utf-8",
    )
    extensions = load_extensions(["own.py"], tmp_path, Extensions())
    assert list(extensions.steps) == ["twice"]
    assert extensions.catalog().steps["twice"]["required"] == ["n"]


async def _untyped(n) -> int:  # type: ignore[no-untyped-def]  # what is to be refused
    return 1


async def _open(*n: int) -> int:
    return 1


async def _no_return(n: int):  # type: ignore[no-untyped-def]  # what is to be refused
    return 1


async def _nothing() -> int:
    raise NotImplementedError


async def _no_json(n: int) -> complex:
    return 1j


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_untyped, "'n' has no type hint"),
        (_open, "variadic"),
        (_no_return, "no return type"),
        (_nothing, "neither a body nor a docstring"),
        (_no_json, "its return type"),
        (lambda: 1, "not async"),
    ],
)
def test_a_function_that_cannot_be_a_step_is_refused(function: object, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        step(function)  # type: ignore[call-overload]  # what is to be refused


def test_code_takes_no_tools_of_a_model() -> None:
    with pytest.raises(UsageError, match="has a body"):

        @step(tools=["look"])
        async def work() -> int:
            return 1
