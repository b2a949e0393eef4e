"""What a recipe says about the recipes that are its steps: their secrets and their tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from minions.data.errors import NotFoundError
from minions.recipe.catalog import Catalog, FindRecipe, FoundRecipe
from minions.recipe.model import Permissions
from minions.recipe.reading.load import LoadedRecipe, check_recipe, check_recipe_text
from recipe.sample_catalog import CATALOG


def among(recipes: Mapping[str, str]) -> FindRecipe:
    """Finds recipes by name."""

    def find(name: str, directory: str | None) -> FoundRecipe:
        if name not in recipes:
            raise NotFoundError(f"There is no recipe '{name}'.")
        text = recipes[name].encode()
        return FoundRecipe(identity=name, file=f"{name}.yaml", text=text)

    return find


def check(text: str, **recipes: str) -> LoadedRecipe:
    catalog: Catalog = replace(CATALOG, find_recipe=among(recipes))
    return check_recipe_text(text, "sample.yaml", catalog)


def faults(text: str, **recipes: str) -> list[str]:
    return [f"{fault.code}: {fault.message}" for fault in check(text, **recipes).faults]


# --- secrets -----------------------------------------------------------------------------------

KEYED = """
inputs: {key: {type: string, secret: true}}
steps: [{id: a, tool: add, params: {a: 1, b: 2}}]
"""
OUTER = """
inputs: {token: {type: string, secret: true}, name: {type: string}}
steps:
  - {id: x, set: {token: 1}}
  - {id: g, recipe: keyed, with: {key: %s}}
"""


@pytest.mark.parametrize("given", ['"{{ inputs.token }}"', "\"{{inputs['token']}}\""])
def test_a_nested_recipe_gets_a_secret_of_this_one(given: str) -> None:
    assert faults(OUTER % given, keyed=KEYED) == []


@pytest.mark.parametrize(
    "given",
    [
        "env:HOME",
        "file:/etc/passwd",
        "abc",
        "7",
        "[x]",
        '"Bearer {{ inputs.token }}"',
        '"{{ inputs.token | trim }}"',
        '"{{ inputs.token or inputs.name }}"',
        '"{{ inputs.name }}"',
        '"{{ inputs }}"',
        '"{{ x.token }}"',
        "\"{{ 'env:HOME' }}\"",
    ],
)
def test_nothing_else_is_a_secret_of_a_nested_recipe(given: str) -> None:
    (fault,) = faults(OUTER % given, keyed=KEYED)
    assert fault == (
        "literal-secret: 'key' of the recipe 'keyed' is a secret, and takes only a secret input of "
        "this recipe"
    )


def test_what_may_be_the_secret_itself_is_not_shown() -> None:
    (fault,) = check(OUTER % "sk-12345678", keyed=KEYED).faults
    assert "sk-1" not in f"{fault}{fault.source_line}"
    assert fault.help == 'write "{{ inputs.token }}"'
    (fault,) = check(OUTER.replace("secret: true", "title: T") % "x", keyed=KEYED).faults
    assert fault.help == (
        'declare an input {type: string, secret: true} and write "{{ inputs.NAME }}"'
    )


# --- tools of nested recipes -------------------------------------------------------------------

WRITES = """
tools: [{files: {root: ., as: f2}}]
steps: [{id: a, tool: f2__read, params: {path: x}}]
"""
AROUND = "steps: [{id: a, recipe: writes}]"
AROUND_IT = """
permissions:
  allow_write: true
  allow_files__write: false
  requires_approval: [%s]
steps: [{id: a, recipe: around}]
"""


@pytest.mark.parametrize(
    ("named", "approved"),
    [
        ("files", ("files", "files__read", "files__write")),
        ("f2", ("f2", "f2__read", "f2__write")),
        ("files__read", ("files__read",)),
        ("f2__read", ("f2__read",)),
    ],
)
def test_permissions_may_name_the_tools_of_nested_recipes(
    named: str, approved: tuple[str, ...]
) -> None:
    loaded = check(AROUND_IT % named, around=AROUND, writes=WRITES)
    assert loaded.recipe is not None, loaded.faults
    assert loaded.recipe.permissions == Permissions(
        allow_write=True, tools={"files__write": False}, requires_approval=approved
    )


def test_a_tool_that_no_recipe_has_is_a_fault_still() -> None:
    assert faults(AROUND_IT % "f3", around=AROUND, writes=WRITES) == [
        "unknown-tool: unknown tool 'f3'"
    ]


def test_a_nested_recipe_that_cannot_be_loaded_is_the_only_fault() -> None:
    assert faults(AROUND_IT % "f3", around="steps: [{id: a, recipe: nowhere}]") == [
        "bad-recipe: the recipe 'around' has a fault: There is no recipe 'nowhere'"
    ]


# --- names that are nearly right -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "near"),
    [
        ("parts/iner.yaml", "parts/inner.yaml"),
        ("parts/inner", "parts/inner.yaml"),
        ("parts/iner", "parts/inner.yaml"),
        ("iner", "inner"),
        ("outr.yaml", "outer.yaml"),
    ],
)
def test_a_nested_recipe_that_is_not_there_shows_one_that_is_called_so(
    tmp_path: Path, named: str, near: str
) -> None:
    (tmp_path / "parts").mkdir()
    for path in ("parts/inner.yaml", "inner.yaml", "outer.yaml"):
        (tmp_path / path).write_text("steps: [{id: a, set: {x: 1}}]")
    (tmp_path / "it.yaml").write_text(f"steps: [{{id: a, recipe: {named}}}]")
    (fault,) = check_recipe(tmp_path / "it.yaml", CATALOG).faults
    assert (fault.code, fault.label) == ("unknown-recipe", f"did you mean '{near}'?")


def test_a_test_may_say_what_a_tool_of_a_nested_recipe_gives() -> None:
    tests = "\ntests: [{name: t, tools: {f2__read: x}}, {name: u, tools: {f2__raed: x}}]"
    assert faults(AROUND + tests, writes=WRITES) == [
        "unknown-tool: unknown tool 'f2__raed' in a test"
    ]
