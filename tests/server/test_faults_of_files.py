"""Faults of files that a caller does not own: how many there are, and nothing that stands there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from asgi_client import Client
from minions.data.errors import EnvironmentRefusedError
from minions.interfaces.server.app import App
from served import MakeApp

SECRET = "hunter2-stands-in-the-file"
BROKEN = {
    "keys": f"id: keys\n{SECRET}: 1\nsteps:\n  - {{id: a, set: {{n: 1}}}}\n",
    "values": f"id: values\nsteps:\n  - {{id: a, set: '{SECRET}'}}\n",
    "yaml": f"id: yaml\nsteps: [{SECRET}\n",
    "template": f"id: template\nsteps:\n  - {{id: a, set: {{n: '{{{{ {SECRET}. }}}}'}}}}\n",
    "part": "id: part\nsteps:\n  - {id: a, recipe: ./keys.yaml}\n",
}
ASKED: Mapping[str, tuple[str, str, object]] = {
    "list": ("GET", "/recipes", None),
    "agents": ("GET", "/agents", None),
    "one": ("GET", "/recipes/{}", None),
    "graph": ("GET", "/recipes/{}/graph", None),
    "schema": ("GET", "/recipes/{}/schema", None),
    "run": ("POST", "/runs", {"recipe": "{}"}),
    "agent": ("POST", "/agents/{}/run", {}),
    "session": ("POST", "/sessions", {"recipe": "{}"}),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("recipe", BROKEN)
async def test_no_answer_says_what_stands_in_a_broken_recipe_or_where_it_is(
    client: Client, recipes: Path, recipe: str, asked: str
) -> None:
    for name, text in BROKEN.items():
        (recipes / f"{name}.yaml").write_text(text, "utf-8")
    method, path, body = ASKED[asked]
    sent = {"recipe": recipe} if body == {"recipe": "{}"} else body
    reply = await client.ask(method, f"/api/v1{path.format(recipe)}", sent)
    assert SECRET not in reply.body.decode()
    assert str(recipes) not in reply.body.decode()
    if asked not in ("list", "agents"):
        assert reply.status == 422
        assert f"'{recipe}' of this server has 1 fault" in reply.json["detail"]
        assert "faults" not in reply.json


async def test_the_list_counts_the_faults_of_a_recipe(client: Client, recipes: Path) -> None:
    (recipes / "two.yaml").write_text(f"id: two\n{SECRET}: 1\nother_{SECRET}: 2\nsteps: []\n")
    listed = await client.get("/recipes")
    counts = {row["id"]: row["fault_count"] for row in listed.json["recipes"]}
    assert counts["adds"] == 0
    assert counts["two"] >= 2


async def test_the_log_has_the_faults_once(
    make_app: MakeApp, recipes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (recipes / "keys.yaml").write_text(BROKEN["keys"])
    client = Client(make_app())
    for _ in range(3):
        await client.get("/recipes")
    lines = [each.getMessage() for each in caplog.records if "recipe='keys'" in each.getMessage()]
    assert len(lines) == 1
    assert SECRET in lines[0]


async def test_a_recipe_of_a_request_tells_its_own_faults_and_no_others(
    make_app: MakeApp, recipes: Path
) -> None:
    (recipes / "keys.yaml").write_text(BROKEN["keys"])
    client = Client(make_app(allow_recipe_bodies=True))
    text = f"id: own\nmine: 1\nsteps:\n  - {{id: a, recipe: {recipes}/keys.yaml}}\n"
    reply = await client.post("/runs", {"recipe_text": text})
    assert reply.status == 422
    assert SECRET not in reply.body.decode()
    codes = [fault["code"] for fault in reply.json["faults"]]
    assert "bad-recipe" in codes
    assert str(recipes) not in reply.body.decode()
    assert any("'mine'" in fault["message"] for fault in reply.json["faults"])


@pytest.mark.parametrize("code", ["bad-configuration", "broken-extension"])
async def test_a_fault_of_the_configuration_has_a_number_in_the_log(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: str
) -> None:
    app: App = make_app()

    def failing(recipe_id: str) -> object:
        raise EnvironmentRefusedError(f"/etc/minions.toml: {SECRET}", code=code)

    monkeypatch.setattr(app.app_state.recipe_store, "get", failing)
    reply = await Client(app).post("/runs", {"recipe": "adds"})
    assert (reply.status, reply.json["code"]) == (500, code)
    assert SECRET not in reply.body.decode()
    assert "/etc" not in reply.body.decode()
    number = reply.json["instance"].rpartition(":")[2]
    assert any(
        number in each.getMessage() and SECRET in each.getMessage() for each in caplog.records
    )
