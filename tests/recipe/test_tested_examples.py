"""Examples that are taken from the tests of a recipe, and never from a case that is evaluated."""

from __future__ import annotations

from typing import cast

import pytest

from builders import executor_of
from minions.adapters.models.scripted import ScriptedModel
from minions.app.evaluating.recipe_tests import run_test
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.calls import Prompt
from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from minions.recipe.reading.tested_examples import without_cases

CATEGORIES = ("bill", "other", "spam")


def case(text: str, category: str, **more: JsonValue) -> JsonValue:
    return {"inputs": {"text": text}, "expect": {"output": {"category": category}}, **more}


CASES: list[JsonValue] = [
    case("Pay!", "bill"),
    case("Pay again, and soon!", "bill"),
    case("Hello.", "other"),
    {"inputs": {"text": "x"}, "expect": {"status": "failed"}},
    case("Win!", "spam"),
]


def recipe_with(
    tests: JsonValue = CASES,
    examples: JsonValue = None,
    *,
    goal: str = "Sort: {{ inputs.text }}",
    output: JsonValue = None,
    **step: JsonValue,
) -> AgentRecipe:
    document: dict[str, JsonValue] = {
        "id": "r",
        "inputs": {"text": "string", "tone": {"type": "string", "default": "calm"}},
        "steps": [
            {
                "id": "sort",
                "goal": goal,
                "output": {"category": {"enum": list(CATEGORIES)}},
                "examples": examples or {"from": "tests"},
                **step,
            },
        ],
        "tests": tests,
    }
    if output is not None:
        document["output"] = output
    return recipe_from_document(document, Catalog())


def shown(recipe: AgentRecipe) -> list[str]:
    (step,) = recipe.steps
    assert isinstance(step, GoalSpec)
    return [each.question.removeprefix("Sort: ") for each in step.examples]


def faults(**recipe: JsonValue) -> list[str]:
    with pytest.raises(RecipeError) as refused:
        recipe_with(**recipe)  # type: ignore[arg-type]  # the keys are parameters
    return [f"{each.code}: {each.message}" for each in refused.value.faults]


def test_every_listed_value_is_covered_first_in_the_order_of_the_tests() -> None:
    """A-147."""
    assert shown(recipe_with()) == ["Pay!", "Pay again, and soon!", "Hello.", "Win!"]
    assert shown(recipe_with(examples={"from": "tests", "max": 3})) == ["Pay!", "Hello.", "Win!"]
    assert shown(recipe_with(examples={"from": "tests", "max_tokens": 16})) == ["Pay!", "Win!"]


def test_the_examples_travel_with_the_recipe() -> None:
    recipe = recipe_with()
    assert recipe.document is not None
    again = recipe_from_document(recipe.document, Catalog())
    assert again.steps == recipe.steps


def test_defaults_count_as_given() -> None:
    recipe = recipe_with(goal="Sort {{ inputs.tone }}: {{ inputs.text }}")
    assert shown(recipe)[0] == "Sort calm: Pay!"


@pytest.mark.parametrize("output", ["{{ sort }}", "{{ steps.sort.output }}", "{{ saved }}"])
def test_the_recipe_may_say_that_its_output_is_that_of_the_step(output: str) -> None:
    recipe = recipe_with(output=output, save_as="saved")
    assert len(shown(recipe)) == 4


def test_a_test_without_the_whole_output_gives_no_example_and_is_named() -> None:
    (fault,) = faults(tests=[{"name": "half", "inputs": {"text": "x"}, "expect": {"holds": "1"}}])
    assert fault == "no-examples: no test gives an input and the whole output of 'sort'"
    (fault,) = faults(tests=[])
    assert fault.startswith("no-examples")
    with pytest.raises(RecipeError) as refused:
        recipe_with([{"name": "half", "inputs": {"text": "x"}, "expect": {"holds": "1"}}])
    assert refused.value.faults[0].label == "'half' expects no whole output"


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"output": "{{ sort.category }}"}, "which is not that of 'sort'"),
        ({"loop": [1]}, "'sort' is repeated"),
        ({"goal": "Sort: {{ run.id }}"}, "reads 'run.id', which no test gives"),
        ({"tests": [case("x", "bil")]}, "as an example of 'sort' it does not fit"),
        ({"memory": "conversation"}, "a conversation has turns of its own"),
    ],
)
def test_what_gives_no_example_is_a_fault(recipe: dict[str, JsonValue], words: str) -> None:
    """A-147: `validate` names it."""
    assert any(words in each for each in faults(**recipe)), faults(**recipe)


# --- cases under evaluation -----------------------------------------------------------------------


async def prompts_of_tests(recipe: AgentRecipe) -> list[list[str]]:
    """For each test of the recipe the questions of its examples."""
    seen: list[list[str]] = []

    def answer(prompt: Prompt) -> JsonValue:
        users = [each.content or "" for each in prompt.messages if each.role.value == "user"]
        seen.append([each.removeprefix("Sort: ") for each in users])
        return {"category": "bill"}

    models = ScriptedModel(lambda prompt: cast("str", answer(prompt)))
    runtime = cast("Runtime", _Answering(models))
    for test in recipe.tests:
        await run_test(recipe, test, runtime)
    return seen


class _Answering:
    """A runtime whose tests are answered by one model, whatever they script."""

    def __init__(self, model: ScriptedModel) -> None:
        self.services = executor_of(model)._services
        self._model = model

    def evolve(self, **_changes: object) -> _Answering:
        return self

    def executor(self, _recipe: AgentRecipe) -> object:
        return executor_of(self._model)


async def test_a_test_is_never_its_own_example() -> None:
    """A-147: of tests under evaluation, none is shown its own answer, wherever that stands."""
    own = {"input": {"text": "Pay!"}, "output": {"category": "bill"}}
    for recipe in (recipe_with(CASES[:3]), recipe_with(CASES[:3], [own])):
        seen = await prompts_of_tests(recipe)
        for test, questions in zip(recipe.tests, seen, strict=True):
            assert test.inputs["text"] not in questions
    assert await prompts_of_tests(recipe_with(CASES[:3])) == [
        ["Pay again, and soon!", "Hello."],
        ["Pay!", "Hello."],
        ["Pay!", "Pay again, and soon!"],
    ]


def test_another_case_takes_the_place_of_one_that_is_evaluated() -> None:
    recipe = recipe_with(examples={"from": "tests", "max": 1})
    assert shown(recipe) == ["Win!"]
    held = without_cases(recipe, [{"text": "Win!"}])
    assert shown(held) == ["Pay!"]
    assert held.document is not None
    assert shown(recipe_from_document(held.document, Catalog())) == ["Pay!"]
    assert shown(without_cases(held, [{"text": "Pay!", "tone": "calm"}])) == ["Hello."]


def test_all_of_a_data_set_may_be_held_out() -> None:
    recipe = recipe_with()
    cases = [test.inputs for test in recipe.tests]
    assert shown(without_cases(recipe, cases)) == []
    assert without_cases(recipe, []) is recipe
    other = recipe_with(examples=[{"input": "What?", "output": {"category": "other"}}])
    assert without_cases(other, cases) is other
