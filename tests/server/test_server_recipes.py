"""The listing of recipes: one that is broken takes no other one away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from asgi_client import Client
from minions.recipe.catalog import Catalog
from minions.recipe.load import load_recipe
from minions.recipe.model import AgentRecipe
from served import RECIPES

STEPS = "steps: [{id: a, set: {n: 1}}]\n"


async def rows(client: Client) -> dict[str, Any]:  # Any: JSON, compared by the test
    reply = await client.get("/recipes")
    assert reply.status == 200
    return {row["id"]: row for row in reply.json["recipes"]}


@pytest.mark.parametrize(
    "schema",
    [
        'pattern: "a{99999999999}"',
        f'pattern: "{"(" * 400}{")" * 400}"',
        'pattern: "a{4000000000}", default: aaa',
        f'anyOf: [{{}}], $ref: "#/anyOf/{"9" * 5_000}"',
        '$ref: "#", default: 1',
    ],
)
async def test_a_schema_that_cannot_be_checked_is_a_fault_of_its_recipe(
    client: Client, recipes: Path, schema: str
) -> None:
    (recipes / "odd.yaml").write_text(f"id: odd\ninputs:\n  a: {{{schema}}}\n{STEPS}")
    listed = await rows(client)
    assert set(listed) == {*RECIPES, "odd"}
    assert [fault["code"] for fault in listed["odd"]["faults"]] == ["bad-schema"]
    assert listed["adds"]["ok"]


async def test_a_fault_of_ours_leaves_the_other_recipes_in_the_list(
    client: Client, recipes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (recipes / "odd.yaml").write_text(f"id: odd\n{STEPS}")

    def failing(path: Path, catalog: Catalog) -> AgentRecipe:
        if path.name == "odd.yaml":
            raise RecursionError("what stands in the file")
        return load_recipe(path, catalog)

    monkeypatch.setattr("minions.interfaces.server.shelf.load_recipe", failing)
    listed = await rows(client)
    assert listed["adds"]["ok"]
    (fault,) = listed["odd"]["faults"]
    assert fault["code"] == "recipe-not-checked"
    assert "RecursionError" in fault["message"]
    assert "what stands" not in fault["message"]
    one = await client.get("/recipes/odd")
    assert (one.status, one.json["code"]) == (500, "recipe-not-checked")


async def test_what_is_no_file_is_no_recipe(client: Client, recipes: Path) -> None:
    os.mkfifo(recipes / "pipe.yaml")
    (recipes / "folder.yaml").mkdir()
    assert set(await rows(client)) == set(RECIPES)
