"""Runs of other projects in a server's journal: listed, filtered, and continued where that needs no
folder.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from asgi_client import Client
from served import MakeApp

RECIPES = {
    "says": "id: says\nsteps: [{id: sure, ask: 'Sure?'}, {id: say, goal: 'Say {{ sure }}.'}]\n",
    "asks": "id: asks\nsteps: [{id: n, set: {n: 1}}, {id: sure, ask: 'Sure?'}]\n",
    "inner": "id: inner\ntools: [{files: {root: .}}]\n"
    "steps: [{id: all, tool: files__list, params: {path: .}}]\n",
    "opens": "id: opens\nsteps: [{id: sure, ask: 'Sure?'}, {id: i, recipe: inner}]\n",
}


@pytest.fixture
def two(
    recipes: Path, make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Client, Client]:
    """Servers in the projects `a` and `b`, on one journal."""
    for name, text in RECIPES.items():
        (recipes / f"{name}.yaml").write_text(text, "utf-8")
    found = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "minions.toml").write_text("", "utf-8")
        monkeypatch.chdir(folder)
        found.append(Client(make_app(journal=tmp_path / "j.sqlite")))
    return found[0], found[1]


async def started(client: Client, recipe: str) -> str:
    run_id = str((await client.post("/runs", {"recipe": recipe})).json["run_id"])
    await client.ended(run_id)
    return run_id


async def test_lists_tell_the_project_and_filter_by_it(
    two: tuple[Client, Client], tmp_path: Path
) -> None:
    """A-157."""
    a, b = two
    first, second = await started(a, "asks"), await started(b, "asks")
    rows = (await a.get("/runs")).json["runs"]
    folders = {first: str(tmp_path / "a"), second: str(tmp_path / "b")}
    assert {row["run_id"]: row["project"] for row in rows} == folders
    for run_id, folder in folders.items():
        query = f"project={folder}"
        assert [row["run_id"] for row in (await a.get(f"/runs?{query}")).json["runs"]] == [run_id]
        (waiting,) = (await b.get(f"/approvals?{query}")).json["approvals"]
        assert waiting["run_id"] == run_id
        (session,) = (await b.get(f"/sessions?{query}")).json["sessions"]
        assert (session["last_run_id"], session["project"]) == (run_id, folder)
    assert (await a.get("/system")).json["project"] == folders[first]


async def test_what_needs_no_folder_works_in_another_one(
    two: tuple[Client, Client],
) -> None:
    a, b = two
    run_id = await started(a, "asks")
    graph = await b.get(f"/runs/{run_id}/graph?format=svg")
    assert graph.status == 200
    rolled_back = await b.post(f"/runs/{run_id}/rollback", {"dry_run": True})
    assert rolled_back.json["code"] == "nothing-recorded"
    answer = {"decision": "answer", "value": "yes"}
    assert (await b.post(f"/runs/{run_id}/decisions", answer)).status == 202
    assert (await b.ended(run_id))["status"] == "completed"


@pytest.mark.parametrize("recipe", ["opens", "says"])
async def test_what_opens_a_folder_or_asks_a_model_is_left_to_its_own(
    two: tuple[Client, Client], tmp_path: Path, recipe: str
) -> None:
    a, b = two
    run_id = await started(a, recipe)
    assert (await b.get(f"/runs/{run_id}/graph")).status == 200
    answer = {"decision": "answer", "value": "yes"}
    for path, body in ((f"/runs/{run_id}/decisions", answer), (f"/runs/{run_id}/retry", {})):
        refused = await b.post(path, body)
        assert (refused.status, refused.json["code"]) == (409, "other-folder")
        assert f"cd {tmp_path / 'a'} && minions resume {run_id}" in refused.json["detail"]
    assert (await a.post(f"/runs/{run_id}/decisions", answer)).status == 202
    ended = (await a.ended(run_id))["status"]
    assert ended == ("completed" if recipe == "opens" else "failed")  # no answer is scripted


async def test_no_turn_of_another_projects_session_is_taken(
    two: tuple[Client, Client], tmp_path: Path
) -> None:
    """A-157: its messages would go to this project's model."""
    a, b = two
    session = str((await a.post("/sessions", {"recipe": "chat"})).json["id"])
    for path, body in (
        (f"/sessions/{session}/messages", {"content": "Hello"}),
        (f"/sessions/{session}/retry", {"sequence": 1}),
        (f"/sessions/{session}/resume", {}),
        ("/runs", {"recipe": "asks", "session": session}),
    ):
        refused = await b.post(path, body)
        assert (path, refused.status, refused.json["code"]) == (path, 409, "other-project")
        assert f"cd {tmp_path / 'a'} && minions chat --session" in refused.json["detail"]
    assert (await b.get(f"/sessions/{session}/steps")).status == 200
    assert (await a.post("/runs", {"recipe": "asks", "session": session})).status == 202
    said = (await a.post("/runs", {"recipe": "chat", "inputs": {"message": "Hi"}})).json
    await a.ended(said["run_id"])
    fork = await b.post(f"/sessions/{said['session_id']}/fork", {"sequence": 1})
    assert fork.status == 201
    again = await b.post(f"/sessions/{fork.json['new_session_id']}/messages", {"content": "Hello"})
    assert (again.status, again.json["code"]) == (
        409,
        "other-project",
    )  # it holds the same messages
    assert (await a.post("/runs", {"recipe": "asks", "session": session})).status == 202
