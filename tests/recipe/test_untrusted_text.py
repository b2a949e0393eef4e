"""Which expressions of a step may hold what strangers wrote: prompts show it within a border."""

from __future__ import annotations

import pytest

from builders import text_step
from minions.adapters.tools.function_tool import tool
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.checks.flows import UntrustedText
from minions.recipe.expressions.template import compile_template
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.reading.load import check_recipe_text, recipe_from_document


@tool(effect="pure", reads="untrusted")
def page() -> str:
    """A page of a stranger."""
    return ""


@tool(effect="pure", reads="private")
def diary() -> str:
    """What may have been copied from a stranger."""
    return ""


@tool(effect="pure", reads="trusted")
def notes() -> str:
    """The operator's."""
    return ""


@tool(effect="pure")
def undeclared() -> str:
    """It does not say what it reads."""
    return ""


BARE = Catalog(tools={each.spec.name: each.spec for each in (page, diary, notes, undeclared)})
INNER = recipe_from_document(
    {"id": "inner", "steps": [{"id": "got", "tool": "page"}], "output": "{{ got }}"}, BARE
)
CATALOG = Catalog(tools=BARE.tools, recipes={"inner": INNER})
INPUTS: JsonValue = {"own": "string", "mail": {"type": "string", "untrusted": True}}


def recipe(*steps: JsonValue, inputs: JsonValue = None) -> AgentRecipe:
    found: dict[str, JsonValue] = {"id": "r", "steps": list(steps)}
    return recipe_from_document(found | ({"inputs": inputs} if inputs else {}), CATALOG)


def untrusted(made: AgentRecipe, words: str) -> bool:
    """Whether that expression in a text of the last step may hold untrusted text."""
    step = made.steps[-1]
    assert isinstance(step, StepSpec)
    (term,) = compile_template(f"{{{{ {words} }}}}").terms()
    return UntrustedText(made, CATALOG).is_in(step, term)


LAST: JsonValue = {"id": "last", "goal": "Go"}


@pytest.mark.parametrize(
    ("first", "is_untrusted"),
    [
        ({"tool": "page"}, True),
        ({"tool": "diary"}, True),
        ({"tool": "notes"}, False),
        ({"tool": "undeclared"}, False),
        ({"recipe": "inner"}, True),
        ({"goal": "Do", "tools": ["notes", "page"]}, True),
        ({"goal": "Do", "tools": ["notes", "undeclared"]}, False),
        ({"set": {"a": 1}}, False),
    ],
)
def test_the_output_of_a_step_is_as_what_it_reads_says(
    first: dict[str, JsonValue], *, is_untrusted: bool
) -> None:
    """A-143."""
    made = recipe({"id": "a", **first}, {"id": "b", "set": {"x": 1}}, LAST)
    assert untrusted(made, "a") is is_untrusted
    assert not untrusted(made, "b")
    text = UntrustedText(made, CATALOG)
    assert [text.is_of(each) for each in ("a", "b", "gone")] == [is_untrusted, False, False]
    assert bool(text) is is_untrusted


def test_an_input_is_as_it_is_declared() -> None:
    made = recipe(LAST, inputs=INPUTS)
    assert [untrusted(made, f"inputs.{each}") for each in ("own", "mail")] == [False, True]
    assert untrusted(made, "inputs")
    assert untrusted(made, "[inputs.own, inputs.mail]")


def test_feedback_may_hold_what_a_tool_read_where_one_reads_anything() -> None:
    """The message of an error quotes it."""
    assert untrusted(recipe({"id": "a", "tool": "page"}, LAST), "feedback.message")
    assert untrusted(recipe({"id": "a", "tool": "page"}, LAST), "[inputs, feedback.message]")
    assert not untrusted(recipe({"id": "a", "tool": "notes"}, LAST), "feedback.message")


def test_steps_and_tools_that_nothing_is_known_of_read_nothing() -> None:
    assert not UntrustedText(AgentRecipe(id="r", steps=(text_step(),)), CATALOG)
    assert not UntrustedText(recipe({"id": "a", "tool": "page"}), Catalog())


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("words", ["inputs.own", "inputs.own }} {{ inputs.mail"])
def test_examples_of_recorded_runs_are_named_if_any_part_of_the_goal_is_untrusted(
    words: str, *, strict: bool
) -> None:
    text = (
        "id: r\ninputs: {own: string, mail: {type: string, untrusted: true}}\n"
        f"strict: {str(strict).lower()}\nsteps:\n"
        f"- {{id: a, goal: 'Sort {{{{ {words} }}}}', output: {{kind: {{enum: [x, y]}}}}, "
        "examples: {from: journal}}\n"
    )
    found = check_recipe_text(text, "r.yaml", CATALOG).faults
    expected = [("untrusted-examples", not strict)] * ("mail" in words)
    assert [(fault.code, fault.is_warning) for fault in found] == expected
