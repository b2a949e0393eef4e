"""The recipe that writes recipes, and what it tells the model of the language."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Final

import pytest
from attrs import evolve

from minions.app.wiring.built_in_extensions import built_in_extensions
from minions.contracts.tools import Toolbox, ToolScope
from minions.planning.migration import (
    CheckRecipe,
    migration_inputs,
    migration_recipe,
    read_instruction,
)
from minions.recipe.catalog import Catalog
from minions.recipe.model import Permissions
from minions.recipe.reading.load import check_recipe_text

DOCS: Final = Path(__file__).parents[2] / "docs"
SCOPE: Final = ToolScope(run_id="r", step_id="s", call_id="c", idempotency_key="k")
RECIPE: Final = "id: a\nsteps:\n  - {id: b, set: {n: 1}}\n"


def packaged(name: str) -> str:
    return files("minions.planning").joinpath(name).read_text("utf-8")


def own_catalog() -> Catalog:
    base = built_in_extensions()
    check = CheckRecipe(base.catalog())
    return evolve(base, tools=Toolbox((*base.tools, check))).catalog()


def test_the_recipe_that_writes_recipes_has_no_fault_and_no_warning() -> None:
    assert check_recipe_text(packaged("migrate.yaml"), "migrate.yaml", own_catalog()).faults == ()
    assert [step.id for step in migration_recipe(own_catalog()).steps] == [
        *("draft", "check", "mended", "second_check", "mended_again", "last_check"),
        *("outcome", "right"),
    ]


def test_the_example_that_the_model_sees_has_no_fault_and_no_warning() -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", packaged("language.md"), re.DOTALL)
    assert check_recipe_text(example, "example.yaml", own_catalog()).faults == ()


def test_the_model_is_told_what_tools_give_as_the_pages_tell_it() -> None:
    told = {
        name: shape
        for names, shape in re.findall(r"^- (`.+`): `(.+)`$", packaged("language.md"), re.MULTILINE)
        for name in re.findall(r"`(\w+)`", names)
    }
    pages = (DOCS / "recipes.md").read_text("utf-8") + (DOCS / "tools.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)(?:\(.*?\))?` \|.*\| `(\{.+\})` \|$", pages, re.MULTILINE)
    assert {name: shape for name, shape in rows if name in told}.items() <= told.items()
    assert {name for name, _ in rows} <= set(told)


async def test_a_check_tells_each_fault_in_one_line() -> None:
    check = CheckRecipe(Catalog())
    assert await check.invoke({"text": f"```yaml\n{RECIPE}```"}, SCOPE) == {
        "ok": True,
        "text": RECIPE,
        "faults": [],
    }
    wrong = RECIPE.replace("n: 1", 'n: "{{ a.b }}"').replace("id: a", "id: a\ncolour: 1")
    outcome = await check.invoke({"text": wrong}, SCOPE)
    assert isinstance(outcome, dict)
    assert [fault.partition(";")[0] for fault in outcome["faults"]] == [
        "line 2: unknown key 'colour' in a recipe",
        "line 4: unknown name 'a'",
    ]
    assert outcome["faults"][1].endswith(' | - {id: b, set: {n: "{{ a.b }}"}}')


async def test_a_right_that_was_not_given_is_a_fault() -> None:
    writing = f"permissions: {{allow_write: true}}\n{RECIPE}"
    refused = await CheckRecipe(Catalog()).invoke({"text": writing}, SCOPE)
    assert isinstance(refused, dict)
    assert refused["faults"] == ["permissions.allow_write: the instruction does not allow writing."]
    allowed = await CheckRecipe(Catalog(), permissions=Permissions(allow_write=True)).invoke(
        {"text": writing}, SCOPE
    )
    assert isinstance(allowed, dict)
    assert allowed["ok"] is True


@pytest.mark.parametrize(
    ("name", "text", "recipe_id"),
    [
        ("a.yaml", "name: Strava Monitor (v1)\ninstructions: Look.\n", "strava_monitor_v1"),
        ("Über uns.md", "# Look\n", "ber_uns"),
        ("日本.txt", "Look.", "recipe"),
        ("b.yml", "just words\n", "b"),
    ],
)
def test_an_instruction_has_a_name(tmp_path: Path, name: str, text: str, recipe_id: str) -> None:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    read = read_instruction(path)
    assert (read.text, read.name, read.is_recipe, read.may_write) == (text, recipe_id, False, False)


V1 = """\
name: Strava Monitor
permissions: {allow_saveState: true, allow_loadState: false, requires_approval: [saveState]}
instructions: |
  Look up what is new, and remember it.
"""


@pytest.mark.parametrize("name", ["monitor.yaml", "monitor.txt", "monitor.md"])
def test_an_instruction_says_what_may_be_changed_whatever_its_file_is_called(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text(V1)
    read = read_instruction(tmp_path / name)
    assert (read.name, read.may_write, read.is_recipe) == ("strava_monitor", False, False)
    assert read.permissions == Permissions(
        tools={"saveState": True, "loadState": False}, requires_approval=("saveState",)
    )
    told = migration_inputs(read, own_catalog())["rights"]
    assert told == (
        "It may write: permissions: {allow_saveState: true, allow_loadState: false, "
        "requires_approval: [saveState]}."
    )


@pytest.mark.parametrize(
    ("permissions", "fault"),
    [
        ("{allow_saveState: true, allow_loadState: false, requires_approval: [saveState]}", None),
        (
            "{allow_write: true, allow_loadState: false, requires_approval: [saveState]}",
            "permissions.allow_write: the instruction does not allow writing.",
        ),
        (
            "{allow_saveState: true, allow_listStateKeys: true, allow_loadState: false, "  # noqa: ISC004
            "requires_approval: [saveState]}",
            "permissions.allow_listStateKeys: the instruction does not allow it.",
        ),
        (
            "{allow_saveState: true, requires_approval: [saveState]}",
            "permissions.allow_loadState: the instruction says false; keep it.",
        ),
        (
            "{allow_saveState: true, allow_loadState: false}",
            "permissions.requires_approval: the instruction lists saveState; keep it.",
        ),
    ],
)
async def test_a_recipe_allows_just_what_the_instruction_does(
    tmp_path: Path, permissions: str, fault: str | None
) -> None:
    (tmp_path / "a.yaml").write_text(V1)
    said = read_instruction(tmp_path / "a.yaml").permissions
    text = f"permissions: {permissions}\n{RECIPE}"
    done = await CheckRecipe(own_catalog(), permissions=said).invoke({"text": text}, SCOPE)
    assert isinstance(done, dict)
    assert done["faults"] == ([] if fault is None else [fault])


@pytest.mark.parametrize(
    ("text", "is_recipe"),
    [
        (RECIPE, True),
        ("My day\nsteps: get up, eat\n", False),
        ("steps: get up\n", False),
        ("instructions: |\n  Look.\n", False),
        ("Do it.\nsteps:\n - {bad\n", False),
    ],
)
def test_a_recipe_in_a_text_file_is_one(tmp_path: Path, text: str, is_recipe: bool) -> None:
    (tmp_path / "old.txt").write_text(text)
    assert read_instruction(tmp_path / "old.txt").is_recipe is is_recipe
