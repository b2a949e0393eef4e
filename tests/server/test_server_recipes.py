"""The listing of recipes: one that is broken takes no other one away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from asgi_client import Client
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import LoadedRecipe, check_recipe
from served import RECIPES, MakeApp

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
    assert (listed["odd"]["ok"], listed["odd"]["fault_count"]) == (False, 1)
    assert (await client.get("/recipes/odd")).json["code"] == "invalid-recipe"
    assert listed["adds"]["ok"]


async def test_a_fault_of_ours_leaves_the_other_recipes_in_the_list(
    client: Client, recipes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (recipes / "odd.yaml").write_text(f"id: odd\n{STEPS}")

    def failing(path: Path, catalog: Catalog) -> LoadedRecipe:
        if path.name == "odd.yaml":
            raise RecursionError("what stands in the file")
        return check_recipe(path, catalog)

    monkeypatch.setattr("minions.interfaces.server.recipe_store.check_recipe", failing)
    listed = await rows(client)
    assert listed["adds"]["ok"]
    assert (listed["odd"]["ok"], listed["odd"]["fault_count"]) == (False, 1)
    one = await client.get("/recipes/odd")
    assert (one.status, one.json["code"]) == (500, "recipe-not-checked")
    assert "RecursionError" in one.json["detail"]
    assert "what stands" not in one.body.decode()


async def test_what_is_no_file_is_no_recipe(client: Client, recipes: Path) -> None:
    os.mkfifo(recipes / "pipe.yaml")
    (recipes / "folder.yaml").mkdir()
    assert set(await rows(client)) == set(RECIPES)


async def test_the_keys_of_a_file_outside_are_not_told(
    client: Client, recipes: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside.yaml").write_text("id: found-by-its-id\npassword_of_the_host: hunter2\n")
    (recipes / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    for name, path in {"up": "../outside.yaml", "absolute": tmp_path / "outside.yaml"}.items():
        text = f"id: {name}\nsteps: [{{id: a, recipe: '{path}'}}]\n"
        (recipes / f"{name}.yaml").write_text(text)
    reply = await client.get("/recipes")
    listed = {row["id"]: row["fault_count"] for row in reply.json["recipes"]}
    for recipe in ("up", "absolute", "link"):
        assert listed[recipe] == 1
        one = await client.post("/runs", {"recipe": recipe})
        assert one.status == 422
        for each in (reply, one, await client.get(f"/recipes/{recipe}")):
            assert "password" not in each.body.decode()
            assert "found-by-its-id" not in each.body.decode()


async def test_a_recipe_in_a_request_names_no_file_outside(
    make_app: MakeApp, recipes: Path, tmp_path: Path
) -> None:
    (tmp_path / "part.yaml").write_text(f"id: part\n{STEPS}")
    (recipes / "part.yaml").write_text(f"id: part\n{STEPS}")
    client = Client(make_app(allow_recipe_bodies=True))
    for folder, status in ((tmp_path, 422), (recipes, 202)):
        text = f"id: sent\nsteps: [{{id: a, recipe: {folder}/part.yaml}}]\n"
        assert (await client.post("/runs", {"recipe_text": text})).status == status


async def test_what_the_check_of_a_recipe_warns_of_is_told(client: Client, recipes: Path) -> None:
    """A-143."""
    (recipes / "forward.yaml").write_text(
        """
id: forward
tools: [{http: {allow: [a.example]}}]
permissions: {allow_write: true}
steps:
  - {id: fetch, tool: http__get, params: {url: "https://a.example"}}
  - {id: post, tool: http__post, params: {url: "https://a.example", body: "{{ fetch.body }}"}}
"""
    )
    listed = await rows(client)
    assert (listed["forward"]["ok"], listed["forward"]["fault_count"]) == (True, 0)
    (warning,) = listed["forward"]["warnings"]
    assert (warning["code"], warning["file"]) == ("untrusted-flow", "forward.yaml")
    assert (await client.get("/recipes/forward")).json["warnings"] == [warning]
    assert listed["adds"]["warnings"] == []
