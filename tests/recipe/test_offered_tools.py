"""Which tools the name of a toolset offers to a model, and which only their own name does."""

from __future__ import annotations

from typing import Final

import pytest

from minions.app.wiring.built_in_extensions import built_in_extensions
from minions.data.errors import RecipeError
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.reading.load import load_recipe_text

BY_NAME: Final = {
    *("files__read_many", "files__prepare_changes", "files__write_many"),
    *("files__read_parquet", "files__read_pdf"),
}


def recipe(tools: str, permissions: str = "") -> AgentRecipe:
    text = (
        f"id: a\ntools: [files]\n{permissions}\nsteps:\n  - {{id: b, goal: c, tools: [{tools}]}}\n"
    )
    return load_recipe_text(text, "a.yaml", built_in_extensions().catalog())


def offered(loaded: AgentRecipe) -> set[str]:
    [step] = loaded.steps
    assert isinstance(step, StepSpec)
    return set(step.offered_tools)


def test_the_name_of_a_toolset_offers_no_tool_that_is_for_recipes() -> None:
    assert offered(recipe("files")) == {
        f"files__{name}" for name in ("read", "list", "glob", "search", "write", "edit")
    }


def test_such_a_tool_is_offered_by_its_name() -> None:
    assert offered(recipe("files__read_many, files")) >= {"files__read_many", "files__read"}


def test_the_name_of_a_toolset_demands_approval_of_all_its_tools() -> None:
    permissions = recipe("files", "permissions: {requires_approval: [files]}").permissions
    assert set(permissions.requires_approval) >= BY_NAME


def test_a_permission_for_a_toolset_says_how_to_name_its_tools() -> None:
    with pytest.raises(RecipeError) as caught:
        recipe("files", "permissions: {allow_files: true}")
    [fault] = caught.value.faults
    assert fault.message == "'files' is a toolset, and 'allow_files' takes one tool"
    assert "allow_files__write, allow_files__edit" in str(fault.help)
