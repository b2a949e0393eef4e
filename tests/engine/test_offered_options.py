"""Which options of toolsets a run opens that a caller began."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from attrs import evolve
from msgspec.structs import replace

from minions import DefaultStep, MessageBundle
from minions.contracts.journal.start_note import Offer
from minions.contracts.tools import Toolset
from minions.data.errors import EnvironmentRefusedError
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.compile.opening_rights import OpeningRights
from minions.recipe.model import AgentRecipe, InputSpec, ToolsetUse
from minions.recipe.reading.load import load_recipe_text

OPENS: Toolset = Toolset(
    name="opens",
    description="Opens something.",
    options={"type": "object"},
    specs=(),
    open=lambda _options, _prefix: (),
    operator_options=frozenset({"switch"}),
)


def rights(folder: Path, said: str = "", *, brings_recipe: bool = False) -> OpeningRights:
    offer = replace(Offer.beneath([folder], way="http"), brings_recipe=brings_recipe)
    return OpeningRights(offer, frozenset(said.split()))


def checked(
    rights: OpeningRights, written: Mapping[str, JsonValue], rendered: Mapping[str, JsonValue]
) -> Mapping[str, JsonValue]:
    use = ToolsetUse(name="opens", options=written)
    return rights.checked(RECIPE, use, OPENS, rendered)


RECIPE: AgentRecipe = load_recipe_text(
    "id: r\ninputs: {a: {}, b: {}, p: {type: string, format: path, default: .}}\n"
    "steps: [{id: s, set: {n: 1}}]\n",
    "r.yaml",
    Extensions().catalog(),
)
A = "{{ inputs.a }}"


def refuses(
    rights: OpeningRights, written: Mapping[str, JsonValue], rendered: Mapping[str, JsonValue]
) -> bool:
    try:
        checked(rights, written, rendered)
    except EnvironmentRefusedError as error:
        return error.error_code == "input-refused"
    return False


@pytest.mark.parametrize("value", [3, 0.5, None])
def test_a_number_of_a_caller_opens_nothing_and_is_taken(tmp_path: Path, value: JsonValue) -> None:
    assert checked(rights(tmp_path), {"n": A}, {"n": value}) == {"n": value}


@pytest.mark.parametrize("value", ["x", "", True, False, [1], [], {"a": 1}, {}])
def test_what_may_name_or_switch_something_is_refused(tmp_path: Path, value: JsonValue) -> None:
    """A-148."""
    assert refuses(rights(tmp_path), {"n": A}, {"n": value})


@pytest.mark.parametrize(
    "written",
    ["{{ inputs }}", "{{ inputs.b }}", "{{ inputs.a }}{{ inputs.b }}", "{{ inputs[inputs.a] }}"],
)
def test_what_is_not_made_of_said_inputs_alone_is_the_callers(tmp_path: Path, written: str) -> None:
    """A-148."""
    assert refuses(rights(tmp_path, "a"), {"n": written}, {"n": "x"})


@pytest.mark.parametrize("written", ["x", A, "{{ inputs.a }}/{{ run.id }}", True, ["y", A]])
def test_what_the_recipes_say_is_opened_as_it_is(tmp_path: Path, written: JsonValue) -> None:
    options: Mapping[str, JsonValue] = {"n": "/etc", "root": "/etc", "switch": True}
    said = dict.fromkeys(options, written)
    assert checked(rights(tmp_path, "a"), said, options) == options


def test_a_recipe_of_the_caller_opens_folders_that_are_offered_and_switches_nothing(
    tmp_path: Path,
) -> None:
    """A-148."""
    own = rights(tmp_path, brings_recipe=True)
    assert checked(own, {"n": "host"}, {"n": "host"}) == {"n": "host"}
    assert checked(own, {"n": A}, {"n": "host"}) == {"n": "host"}
    assert checked(own, {"n": "{{ inputs }}"}, {"n": "host"}) == {"n": "host"}
    assert checked(own, {"switch": False}, {"switch": False}) == {"switch": False}
    assert refuses(own, {"switch": True}, {"switch": True})
    assert refuses(own, {"root": "/etc"}, {"root": "/etc"})
    assert checked(own, {"root": "x"}, {"root": f"{tmp_path}/x"}) == {
        "root": f"{tmp_path.resolve()}/x"
    }


def test_a_folder_is_opened_as_it_was_resolved(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    found = checked(rights(tmp_path), {"root": A}, {"root": f"{tmp_path}/link"})
    assert found == {"root": str(tmp_path.resolve() / "a")}


def test_a_path_among_the_inputs_is_offered_or_refused(tmp_path: Path) -> None:
    """A-148."""
    rights(tmp_path).check_recipe(RECIPE, {"a": "/etc", "p": str(tmp_path)})
    rights(tmp_path, "p").check_recipe(RECIPE, {"p": "/etc"})
    with pytest.raises(EnvironmentRefusedError, match="'p' of the recipe 'r' is \"/etc\""):
        rights(tmp_path).check_recipe(RECIPE, {"p": "/etc"})


def test_a_recipe_within_knows_what_the_recipe_around_it_says(tmp_path: Path) -> None:
    outer = rights(tmp_path, "x y")
    made = {"a": frozenset("xy"), "b": frozenset("xz"), "p": None}
    values: Mapping[str, JsonValue] = {"a": 1, "b": 1, "p": "/etc"}
    assert outer.within(RECIPE, values, made).inputs == {"a"}
    assert outer.within(RECIPE, {"a": 1, "b": 1, "p": "."}, {}).inputs == {"p"}
    brought = rights(tmp_path, brings_recipe=True).within(RECIPE, values, {"a": frozenset()})
    assert brought.inputs == frozenset()
    assert not brought.offer.brings_recipe


@pytest.mark.parametrize(
    ("default", "value", "is_said"),
    [
        (1, 1, True),
        (1, True, False),
        ("a", "a", True),
        ("a", "b", False),
        ("sub", "/home/sub", True),
    ],
)
def test_a_default_is_said_by_the_recipe_to_the_type(
    default: JsonValue, value: JsonValue, *, is_said: bool
) -> None:
    spec = InputSpec(schema={}, default=default, has_default=True)
    recipe = evolve(RECIPE, inputs={"a": spec}, directory="/home")
    offer = Offer(way="http")
    assert ("a" in OpeningRights.of_run(offer, recipe, {"a": value}).inputs) is is_said
    brought = replace(offer, brings_recipe=True)
    assert OpeningRights.of_run(brought, recipe, {"a": value}).inputs == frozenset()


@pytest.mark.parametrize(
    "model",
    [
        "{name: openai/x, base_url: 'http://inside.example'}",
        "{name: openai/x, fallbacks: [{name: openai/y, base_url: 'http://inside.example'}]}",
        "[openai/x, {name: openai/y, base_url: 'http://inside.example'}]",
    ],
)
@pytest.mark.parametrize("place", ["recipe", "step"])
def test_a_recipe_of_the_caller_names_no_server_of_models(
    tmp_path: Path, model: str, place: str
) -> None:
    """A-148."""
    at_recipe, at_step = (f"model: {model}", "") if place == "recipe" else ("", f", model: {model}")
    text = f"id: r\n{at_recipe}\nsteps: [{{id: s, goal: Hi{at_step}}}]\n"
    recipe = load_recipe_text(text, "r.yaml", Extensions().catalog())
    with pytest.raises(EnvironmentRefusedError, match=r"inside\.example"):
        rights(tmp_path, brings_recipe=True).check_recipe(recipe, {})
    rights(tmp_path).check_recipe(recipe, {})


def test_steps_made_by_code_within_a_recipe_of_the_caller_name_no_server(tmp_path: Path) -> None:
    step = DefaultStep(id="one", messages=MessageBundle.of(goal="Say it."))
    recipe = AgentRecipe(id="made", steps=(step,))
    rights(tmp_path, brings_recipe=True).check_recipe(recipe, {})
