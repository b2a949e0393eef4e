"""`uses`: Step classes that the operator registered; `code`: refused without a sandbox."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import frozen

from builders import deterministic_services, fake_tool
from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.context import RunContext
from minions.contracts.executions import AgentResult
from minions.contracts.instructions import OutputInstructions
from minions.contracts.messages import Message, user
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.contracts.tools import Toolbox
from minions.data.errors import EnvironmentRefusedError, RecipeError
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.kinds.code import refuse_code
from minions.engine.compile.preparation import Preparation
from minions.engine.run.agent_executor import AgentExecutor
from minions.recipe.catalog import Catalog
from minions.recipe.kinds.recipe_kind import RecipeSpec
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document


@frozen(kw_only=True)
class Point:
    """A place."""

    x: int
    y: int = 0


@frozen(kw_only=True)
class Shift(PythonStep[int]):
    """Code with typed arguments."""

    id: str
    by: int
    point: Point = Point(x=0)

    async def run(self, scope: StepScope) -> int:
        """Sum."""
        return self.by + self.point.x + self.point.y


@frozen(kw_only=True)
class Caller(PythonStep[object]):
    """Code that calls a tool."""

    id: str

    async def run(self, scope: StepScope) -> object:
        """Look."""
        return await scope.call_tool("look", {})


@frozen(kw_only=True)
class Ask(Step[object]):
    """A question of the operator's own making."""

    id: str
    about: str
    words: int = 3

    @property
    def output(self) -> OutputInstructions[object] | None:
        """A mapping."""
        return OutputInstructions(
            schema={"type": "object", "properties": {"said": {"type": "string"}}}, name="said"
        )

    def messages(self, view: RunContext) -> Sequence[Message]:
        """One."""
        return [user(f"{self.words} words about {self.about}, in run {view.run_id}")]


EXTENSIONS = Extensions(
    steps={"Shift": Shift, "Ask": Ask, "Caller": Caller},
    tools=Toolbox((fake_tool("look", lambda _: "seen"),)),
)


def answer(prompt: Prompt) -> Answer:
    return '{"said": "' + str(prompt.messages[-1].content) + '"}'


async def ran(*steps: JsonValue, **settings: JsonValue) -> AgentResult[JsonValue]:
    recipe = loaded(*steps, **settings)
    executor = AgentExecutor(
        ScriptedModel(answer), extensions=EXTENSIONS, services=deterministic_services()
    )
    return await executor.execute(recipe)


def loaded(*steps: JsonValue, **settings: JsonValue) -> AgentRecipe:
    document: dict[str, JsonValue] = {"id": "recipe", **settings, "steps": list(steps)}
    return recipe_from_document(document, EXTENSIONS.catalog())


async def test_code_gets_its_arguments_rendered_and_typed() -> None:
    result = await ran(
        {"id": "n", "set": {"x": 4}},
        {"id": "s", "uses": "Shift", "with": {"by": "{{ n.x }}", "point": {"x": 1, "y": 2}}},
        {"id": "end", "set": {"it": "{{ s + 1 }}"}},
    )
    assert (result.step("s").output, result.output) == (7, {"it": 8})


async def test_code_may_do_all_that_a_step_in_python_may() -> None:
    assert (await ran({"id": "c", "uses": "Caller"})).output == "seen"


@pytest.mark.parametrize("about", ["bees", "{{ inputs.topic }}"])
async def test_a_model_step_has_its_own_prompt_and_output(about: str) -> None:
    result = await ran(
        {"id": "ask", "uses": "Ask", "with": {"about": about}}, inputs={"topic": "bees"}
    )
    assert result.output == {"said": "3 words about bees, in run run_1"}


async def test_it_is_made_for_each_item_of_a_loop() -> None:
    result = await ran(
        {
            "id": "all",
            "uses": "Ask",
            "with": {"about": "{{ loop.item }}", "words": "{{ loop.index }}"},
            "loop": ["a", "b"],
            "aggregate": True,
        }
    )
    assert result.output == [
        {"said": "0 words about a, in run run_1"},
        {"said": "1 words about b, in run run_1"},
    ]


async def test_arguments_that_the_class_refuses_fail_the_step() -> None:
    result = await ran(
        {"id": "n", "set": {"x": "many"}},
        {"id": "s", "uses": "Shift", "with": {"by": "{{ n['x'] | upper }}"}},
    )
    assert result.error is not None
    assert (result.error.code, result.error.where) == ("bad-step-arguments", "s")
    assert "what `with` gives does not fit Shift. 'by': " in result.error.message


def test_names_and_arguments_are_checked_before_the_run() -> None:
    with pytest.raises(RecipeError) as caught:
        loaded(
            {"id": "a", "uses": "Shft"},
            {"id": "b", "uses": "Shift", "with": {"bye": 1}},
            {"id": "c", "uses": "Shift", "with": {"by": "x"}},
            {"id": "d", "uses": "Shift", "with": {}},
        )
    assert [fault.message for fault in caught.value.faults] == [
        "unknown Step class 'Shft'",
        "'Shift' does not know 'bye'",
        "'by' does not fit 'Shift': 'x' is not of type 'integer'",
        "'Shift' needs 'by'",
    ]


async def test_code_in_a_recipe_is_refused_before_anything_runs() -> None:
    recipe = recipe_from_document(
        {"id": "recipe", "steps": [{"id": "c", "code": "x + 1", "with": {"x": 1}}]}, Catalog()
    )
    executor = AgentExecutor(ScriptedModel(answer), services=deterministic_services())
    with pytest.raises(EnvironmentRefusedError, match="runs only in a sandbox") as caught:
        await executor.execute(recipe)
    assert caught.value.error_code == "no-sandbox"


def test_code_is_refused_only_where_it_is_among_the_steps_that_run() -> None:
    recipe = loaded({"id": "a", "set": {"x": 1}}, {"id": "c", "code": "x + 1"})
    preparation = Preparation(Extensions())
    built = preparation.built(recipe, Toolbox(()), frozenset({"a"}))
    assert [step.id for step in built.graph.steps] == ["a", "c"]
    for runs in (None, frozenset({"c"}), frozenset({"a", "c"})):
        with pytest.raises(EnvironmentRefusedError) as caught:
            preparation.built(recipe, Toolbox(()), runs)
        assert caught.value.error_code == "no-sandbox"


def test_code_within_a_nested_recipe_counts_with_the_step_that_runs_it() -> None:
    inner = loaded({"id": "c", "code": "x + 1"})
    outer = AgentRecipe(
        id="outer",
        steps=[
            SetSpec(id="a", set={"x": 1}),
            RecipeSpec(id="call", name="recipe", recipe=inner),
        ],
    )
    refuse_code(outer, {}, frozenset({"a"}))
    with pytest.raises(EnvironmentRefusedError):
        refuse_code(outer, {}, frozenset({"call"}))
