"""Inputs: defaults, what typed text becomes, paths, and all problems at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.contracts.secrets import InputValue, SecretRef
from minions.data.errors import RecipeError, UsageError
from minions.data.json_values import JsonValue
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe
from recipe.sample_catalog import load

BASE = Path("/here")


def recipe_with(inputs: str) -> AgentRecipe:
    return load(f"inputs: {inputs}\nsteps: [{{id: a, goal: A}}]\n")


def typed(kind: str, text: str) -> JsonValue:
    recipe = recipe_with(f"{{x: {{type: {kind}}}}}")
    return resolve_inputs(recipe, {"x": text}, from_text=True, base=BASE)["x"]


def test_defaults_fill_what_was_not_given() -> None:
    recipe = recipe_with("{a: 1, b: {type: 'null', default: null}, c: {type: string}}")
    assert resolve_inputs(recipe, {"c": "x"}, from_text=False, base=BASE) == {
        "a": 1,
        "b": None,
        "c": "x",
    }


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", "3", 3),
        ("integer", " -3 ", -3),
        ("integer", "3.0", 3),
        ("number", "3.0", 3.0),
        ("number", "1e3", 1000.0),
        ("boolean", "true", True),
        ("array", "[1, 2]", [1, 2]),
        ("object", '{"a": 1}', {"a": 1}),
        ("string", "3", "3"),
        ("string", "true", "true"),
        ("[string, integer]", "3", "3"),
        ("[integer, boolean]", "false", False),
        ("['null', integer]", "null", None),
    ],
)
def test_typed_text_becomes_what_the_schema_says(kind: str, text: str, value: JsonValue) -> None:
    result = typed(kind, text)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("integer", "3.5"),
        ("integer", "true"),
        ("boolean", "yes"),
        ("boolean", "1"),
        ("array", "{}"),
    ],
)
def test_typed_text_that_does_not_fit_is_refused(kind: str, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        typed(kind, text)
    assert caught.value.error_code == "bad-input"
    assert text in caught.value.message


def test_a_schema_without_a_type_leaves_text_alone() -> None:
    recipe = recipe_with("{x: }")
    assert resolve_inputs(recipe, {"x": "3"}, from_text=True, base=BASE) == {"x": "3"}


def test_only_the_named_ones_are_read_from_text() -> None:
    recipe = recipe_with("{a: 1, b: 2}")
    given: dict[str, JsonValue] = {"a": "7", "b": 8}
    assert resolve_inputs(recipe, given, from_text=frozenset({"a"}), base=BASE) == {"a": 7, "b": 8}
    with pytest.raises(UsageError):
        resolve_inputs(recipe, given, from_text=frozenset({"b"}), base=BASE)


def test_paths_start_where_they_were_written() -> None:
    recipe = recipe_with(
        "{a: {type: string, format: path, default: in/x}, b: {type: string, format: path}}"
    )
    assert resolve_inputs(recipe, {"b": "out"}, base=BASE) == {
        "a": "/recipes/in/x",
        "b": "/here/out",
    }
    again = resolve_inputs(recipe, {"b": "/abs"}, base=BASE)
    assert again == {"a": "/recipes/in/x", "b": "/abs"}
    assert resolve_inputs(recipe, again, base=Path("/elsewhere")) == again


def test_every_problem_has_its_line() -> None:
    recipe = recipe_with("{topic: {type: string, description: About what}, count: 3}")
    with pytest.raises(UsageError) as caught:
        resolve_inputs(recipe, {"topc": "x", "count": "three"}, from_text=True, base=BASE)
    assert caught.value.message.splitlines() == [
        "There is no input 'topc'. Did you mean 'topic'? Inputs are: topic, count.",
        "The input 'topic' is missing (About what). It takes text: -p topic=…",
        "The input 'count' does not fit: $: 'three' is not of type 'integer'",
    ]
    assert caught.value.suggestions == ("topic",)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("null", "any value"),
        ("{type: string}", "text"),
        ("{type: [integer, 'null']}", "a whole number or null"),
        ("{enum: [red, 3]}", 'one of "red", 3'),
    ],
)
def test_a_missing_input_says_what_it_takes_and_how_it_is_given(schema: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_inputs(recipe_with(f"{{x: {schema}}}"), {}, from_text=True, base=BASE)
    assert caught.value.message == f"The input 'x' is missing. It takes {words}: -p x=…"


@pytest.mark.parametrize("kind", ["number", "integer", "array", "object"])
@pytest.mark.parametrize("text", ["1e400", "-1e400", "NaN", "Infinity", "[1e400]", '{"a": NaN}'])
def test_a_number_that_json_cannot_say_is_no_input(kind: str, text: str) -> None:
    with pytest.raises(UsageError, match=f"is not of type '{kind}'") as caught:
        typed(kind, text)
    assert caught.value.error_code == "bad-input"


@given(st.text(), st.sampled_from(["integer", "number", "boolean", "array", "object", "string"]))
def test_any_text_fits_or_is_refused(text: str, kind: str) -> None:
    try:
        value = typed(kind, text)
    except UsageError as error:
        value = error.error_code
    assert value is not None


# --- secrets -----------------------------------------------------------------------------------

SECRETS = "{token: {type: string, secret: true, description: Of the API}, note: ''}"
MARKER = "${secret:env:API_TOKEN}"


@pytest.mark.parametrize("value", ["env:API_TOKEN", MARKER, SecretRef("env:API_TOKEN")])
@pytest.mark.parametrize("from_text", [True, False])
def test_a_secret_input_becomes_its_marker(value: InputValue, from_text: bool) -> None:
    recipe = recipe_with(SECRETS)
    resolved = resolve_inputs(recipe, {"token": value}, from_text=from_text, base=BASE)
    assert resolved == {"token": MARKER, "note": ""}
    assert resolve_inputs(recipe, resolved, base=BASE) == resolved


def test_the_default_of_a_secret_input_is_a_reference() -> None:
    recipe = recipe_with("{token: {type: string, secret: true, default: file:/run/token}}")
    assert resolve_inputs(recipe, {}, base=BASE) == {"token": "${secret:file:/run/token}"}


@pytest.mark.parametrize("value", ["sk-12345678", "env:no such", "", None, 12345678, ["sk-1234"]])
def test_a_secret_given_as_it_is_is_refused_and_not_repeated(value: JsonValue) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_inputs(recipe_with(SECRETS), {"token": value}, base=BASE)
    assert caught.value.error_code == "literal-secret"
    assert caught.value.message == (
        "The input 'token' is secret: it takes a reference, not the value itself. Put the value "
        "into an environment variable or a file and write env:TOKEN or file:/absolute/path."
    )
    assert caught.value.__cause__ is None


def test_a_missing_secret_says_how_it_is_given() -> None:
    with pytest.raises(UsageError) as caught:
        resolve_inputs(recipe_with(SECRETS), {}, from_text=True, base=BASE)
    assert caught.value.error_code == "bad-input"
    assert caught.value.message == (
        "The input 'token' is missing (Of the API). It takes a reference to a secret: "
        "-p token=env:TOKEN"
    )


def test_a_caller_without_a_command_line_is_told_of_no_option() -> None:
    """A-135."""
    with pytest.raises(UsageError) as caught:
        resolve_inputs(recipe_with("{x: {type: string}}"), {}, base=BASE)
    assert caught.value.message == "The input 'x' is missing. It takes text."
    with pytest.raises(UsageError) as caught:
        resolve_inputs(recipe_with(SECRETS), {}, base=BASE)
    assert caught.value.message.endswith("It takes a reference to a secret, such as env:TOKEN.")


def test_beside_other_problems_a_literal_secret_is_one_of_them() -> None:
    given: dict[str, JsonValue] = {"token": "sk-12345678", "nto": 1}
    with pytest.raises(UsageError) as caught:
        resolve_inputs(recipe_with(SECRETS), given, base=BASE)
    assert caught.value.error_code == "bad-input"
    assert len(caught.value.message.splitlines()) == 2
    assert "sk-12345678" not in caught.value.message


@pytest.mark.parametrize("note", [MARKER, f"x {MARKER} y", [{"a": MARKER}], {MARKER: 1}])
def test_an_input_that_is_not_secret_cannot_carry_a_marker(note: JsonValue) -> None:
    recipe = recipe_with("{token: {type: string, secret: true}, note: }")
    with pytest.raises(UsageError, match="'note' holds the marker of a secret") as caught:
        resolve_inputs(recipe, {"token": "env:API_TOKEN", "note": note}, base=BASE)
    assert caught.value.error_code == "bad-input"


def test_a_marker_of_no_secret_of_this_run_is_a_text() -> None:
    recipe = recipe_with("{token: {type: string, secret: true}, note: ''}")
    given: dict[str, JsonValue] = {"token": "env:OTHER", "note": MARKER}
    assert resolve_inputs(recipe, given, base=BASE)["note"] == MARKER


def test_a_reference_for_an_input_that_is_not_secret_is_refused() -> None:
    with pytest.raises(UsageError, match="does not declare it as one"):
        resolve_inputs(recipe_with("{note: ''}"), {"note": SecretRef("env:API_TOKEN")}, base=BASE)


def test_a_default_that_takes_too_long_to_check_is_a_fault_of_the_recipe() -> None:
    both = "[{properties: {a: {$ref: '#'}}}, {properties: {a: {$ref: '#'}}}]"
    default = "{a: " * 22 + "1" + "}" * 22
    with pytest.raises(RecipeError, match="checking it takes too long"):
        recipe_with(f"{{x: {{type: object, anyOf: {both}, default: {default}}}}}")


def test_an_input_that_names_a_type_is_required_and_of_that_type() -> None:
    recipe = recipe_with("{topic: string, size: integer, tags: [string]}")
    given: dict[str, JsonValue] = {"topic": "x", "size": "3", "tags": '["a"]'}
    assert resolve_inputs(recipe, given, from_text=True, base=BASE) == {
        "topic": "x",
        "size": 3,
        "tags": ["a"],
    }
    with pytest.raises(UsageError, match="'topic' is missing"):
        resolve_inputs(recipe, {"size": 3, "tags": []}, base=BASE)


def test_a_default_that_is_the_name_of_a_type_is_written_out() -> None:
    recipe = recipe_with("{kind: {type: string, default: string}}")
    assert resolve_inputs(recipe, {}, base=BASE) == {"kind": "string"}
