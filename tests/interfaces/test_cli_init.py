"""`minions init`: a project that runs, and that an editor understands."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import Cli
from minions.recipe.editor_schema import recipe_schema


def test_the_recipe_names_the_schema_that_an_editor_reads(cli: Cli, here: Path) -> None:
    assert cli("init", "project").code == 0
    recipe = here / "project" / "recipes" / "hello.yaml"
    first = recipe.read_text("utf-8").splitlines()[0]
    head, _, name = first.partition("$schema=")
    assert head == "# yaml-language-server: "
    schema = (recipe.parent / name).resolve()
    assert schema == (here / "project" / "recipe.schema.json").resolve()
    assert json.loads(schema.read_text("utf-8")) == recipe_schema()


def test_nothing_is_overwritten(cli: Cli, here: Path) -> None:
    (here / "recipe.schema.json").write_text("mine")
    done = cli("init")
    assert (done.code, "recipe.schema.json" in done.err) == (2, True)
    assert sorted(path.name for path in here.iterdir()) == [".git", "recipe.schema.json"]


def test_no_file_among_the_recipes_is_none(cli: Cli) -> None:
    cli("init")
    listed = cli("agents", "list", "--json")
    assert "hello" in listed.out
    assert "faults" not in cli("agents", "list").out
    assert '"hello_answers"' not in listed.out


def test_the_recipe_is_valid_and_runs(cli: Cli) -> None:
    assert cli("init").code == 0
    assert cli("validate", "hello").code == 0
    assert cli("run", "hello", "--no-store").code == 0
