"""The rules of the declarative format that a user relies on, each on a recipe from a file."""

from __future__ import annotations

import pytest

from builders import run_of
from minions.data.errors import RecipeError
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe_text, recipe_from_document


def document(*steps: JsonValue, **settings: JsonValue) -> dict[str, JsonValue]:
    return {"id": "recipe", **settings, "steps": list(steps)}


async def test_a_template_alone_keeps_the_native_value_and_in_text_its_string() -> None:
    """A-51: list indices and nesting work; 0, false, "" and [] survive."""
    values: dict[str, JsonValue] = {
        "zero": 0,
        "no": False,
        "empty": "",
        "none": [],
        "null": None,
        "deep": {"list": [{"x": 1.5}, [2, 3]]},
    }
    recipe = recipe_from_document(
        document(
            {"id": "a", "set": values},
            {
                "id": "b",
                "set": {
                    **{name: f"{{{{ a.{name} }}}}" for name in values},
                    "first": "{{ a.deep.list[0].x }}",
                    "last": "{{ a.deep.list.1.1 }}",
                    "text": "{{ a.zero }}, {{ a.no }}, {{ a.deep.list.1 }}",
                },
            },
        ),
        Catalog(),
    )
    done = await run_of(recipe)
    expected = {**values, "first": 1.5, "last": 3, "text": "0, false, [2,3]"}
    assert done.result.output == expected


def test_everything_that_is_wrong_is_told_at_once() -> None:
    """A-56: duplicate ids, unknown dependencies, cycles, missing tools and ids."""
    text = """
steps:
  - {id: a, set: {x: 1}}
  - {id: a, set: {x: 2}}
  - {id: b, set: {x: 1}, depends_on: [nowhere]}
  - {id: c, set: {x: "{{ d.x }}"}}
  - {id: d, set: {x: "{{ c.x }}"}}
  - {id: e, tool: nothing}
"""
    with pytest.raises(RecipeError) as caught:
        load_recipe_text(text, "wrong.yaml", Catalog())
    assert [(fault.line, fault.code) for fault in caught.value.faults] == [
        (4, "duplicate-id"),
        (5, "unknown-step"),
        (6, "cycle"),
        (8, "unknown-tool"),
    ]
    with pytest.raises(RecipeError, match="'id'"):
        load_recipe_text("steps:\n  - {set: {x: 1}}", "nameless.yaml", Catalog())
    with pytest.raises(RecipeError, match="at least one step"):
        load_recipe_text("steps: []", "empty.yaml", Catalog())


async def test_a_dependency_may_be_named_by_its_saved_name_unless_two_have_it() -> None:
    """A-57."""
    steps: list[JsonValue] = [
        {"id": "a", "set": {"x": 1}, "save_as": "first"},
        {"id": "b", "set": {"x": 2}, "depends_on": "first"},
    ]
    done = await run_of(recipe_from_document(document(*steps), Catalog()))
    assert done.ids == ["a", "b"]
    twice: JsonValue = {"id": "c", "set": {"x": 3}, "save_as": "first"}
    with pytest.raises(RecipeError) as caught:
        recipe_from_document(document(twice, *steps), Catalog())
    assert [fault.code for fault in caught.value.faults] == ["ambiguous-name"]


async def test_a_name_of_two_branches_is_that_of_the_branch_that_was_taken() -> None:
    for taken in ("left", "right"):
        steps: list[JsonValue] = [
            {"id": "left", "set": {"x": 1}, "save_as": "way", "when": "inputs.taken == 'left'"},
            {"id": "right", "set": {"x": 2}, "save_as": "way", "when": "inputs.taken == 'right'"},
            {"id": "end", "set": {"x": "{{ way.x }}"}},
        ]
        recipe = recipe_from_document(document(*steps, inputs={"taken": taken}), Catalog())
        done = await run_of(recipe)
        assert done.result.output == {"x": 1 if taken == "left" else 2}, done.statuses


async def test_planned_order_is_stable_and_sequential_order_refuses_what_comes_later() -> None:
    """A-58."""
    steps: list[JsonValue] = [
        {"id": "end", "set": {"x": "{{ b.x }}"}},
        {"id": "z", "set": {"x": 1}},
        {"id": "b", "set": {"x": 2}, "depends_on": ["z"]},
        {"id": "a", "set": {"x": 3}},
    ]
    planned = document(*steps, execution_mode="planned")
    done = await run_of(recipe_from_document(planned, Catalog()))
    assert done.ids == ["z", "b", "end", "a"]
    with pytest.raises(RecipeError) as caught:
        recipe_from_document(document(*steps), Catalog())
    assert [fault.code for fault in caught.value.faults] == ["forward-dependency"]
