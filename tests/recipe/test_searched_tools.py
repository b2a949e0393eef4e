"""How a step says which tools its model may call, and how the model comes to them."""

from __future__ import annotations

from pathlib import Path

from attrs import evolve
from msgspec.structs import replace

from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.reading.load import check_recipe_text, load_recipe_text
from recipe.sample_catalog import CATALOG, FILES, load

OWN = evolve(FILES, name="notes", specs=(evolve(FILES.specs[0], is_offered=False), FILES.specs[1]))
TWO = replace(CATALOG, toolsets={"files": FILES, "notes": OWN})


def goal(tools: str) -> GoalSpec:
    text = f"""
tools: [files: {{root: .}}, notes: {{root: .}}, add]
permissions: {{allow_write: true}}
steps:
  - {{id: a, goal: A, tools: {tools}}}
"""
    (step,) = load_recipe_text(text, "sample.yaml", TWO).steps
    assert isinstance(step, GoalSpec)
    return step


def test_a_list_says_what_may_be_called_and_nothing_of_a_search() -> None:
    step = goal("[files, add]")
    assert step.tools == ("files__read", "files__write", "add")
    assert (step.tool_search.is_on, step.tool_search.always) == (None, ())


def test_a_mapping_says_how_the_model_comes_to_them() -> None:
    step = goal("{names: [files], always: [files__read, add], search: true}")
    assert step.tools == ("files__read", "files__write", "add")
    assert step.tool_search.is_on is True
    assert step.tool_search.always == ("add", "files__read")


def test_without_names_all_toolsets_of_the_recipe_may_be_called() -> None:
    """But what a toolset offers by its own name alone, and single tools."""
    step = goal("{search: true}")
    assert step.tools == ("files__read", "files__write", "notes__write")
    assert goal("{search: false}").tools == step.tools
    assert goal("{names: [], search: true}").tools == ()


def test_a_toolset_may_stand_under_always() -> None:
    step = goal("{names: [notes], always: [files]}")
    assert step.tool_search.always == ("files__read", "files__write")
    assert step.tools == ("notes__write", "files__read", "files__write")


def test_every_check_looks_at_tools_that_are_found() -> None:
    """Whether a write is allowed does not depend on what a model asks."""
    recipe = load("tools: [files]\nsteps:\n  - {id: a, goal: A, tools: {search: true}}\n")
    (step,) = recipe.steps
    assert isinstance(step, GoalSpec)
    assert step.offered_tools == ("files__read", "files__write")


def test_tools_of_the_caller_are_offered_where_the_step_says_so() -> None:
    assert goal("{names: [add], caller: true}").offers_caller_tools
    assert goal("{names: [add], caller: true}").tools == ("add",)
    assert not goal("{names: [add], caller: false}").offers_caller_tools
    assert not goal("[add]").offers_caller_tools


def test_a_step_that_may_call_them_is_not_cached_nor_is_a_recipe_with_one(tmp_path: Path) -> None:
    inner = "id: inner\nsteps:\n  - {id: a, goal: A, tools: {caller: true}}\n"
    (tmp_path / "inner.yaml").write_text(inner)
    text = (
        "id: outer\nsteps:\n"
        "  - {id: a, goal: A, cache: true, tools: {caller: true}}\n"
        "  - {id: b, recipe: inner.yaml, cache: true}\n"
    )
    (tmp_path / "outer.yaml").write_text(text)
    faults = check_recipe_text(text, str(tmp_path / "outer.yaml"), CATALOG).faults
    said = [each.message for each in faults]
    assert ["whoever asks" in each for each in said] == [True, True], said
