"""A run's changes of files are taken back over HTTP."""

from __future__ import annotations

from pathlib import Path

from asgi_client import Client
from served import Door


def changes(recipes: Path, work: Path) -> None:
    work.mkdir()
    (work / "a").write_text("old")
    (recipes / "change.yaml").write_text(
        "id: change\npermissions: {allow_write: true}\n"
        f"tools: [{{files: {{root: {work}, undo: true}}}}]\n"
        "steps:\n  - {id: one, tool: files__write, params: {path: a, text: new}}\n",
        "utf-8",
    )


async def test_a_run_is_rolled_back_and_tells_it(
    client: Client, recipes: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    changes(recipes, work)
    run_id = (await client.post("/runs", {"recipe": "change"})).json["run_id"]
    await client.ended(run_id)
    told = await client.post(f"/runs/{run_id}/rollback", {"dry_run": True})
    assert (work / "a").read_text() == "new"
    done = await client.post(f"/runs/{run_id}/rollback", {})
    assert done.status == 200
    assert done.json == {**told.json, "dry_run": False}
    assert done.json == {
        "run_id": run_id,
        "dry_run": False,
        "complete": True,
        "files": [{"root": str(work), "path": "a", "outcome": "restored", "reason": None}],
        "not_reversible": [],
    }
    assert (work / "a").read_text() == "old"
    (note,) = (await client.get(f"/runs/{run_id}")).json["notes"]
    assert (note["kind"], note["state"]) == ("file_rollback", "finished")
    again = await client.post(f"/runs/{run_id}/retry", {"from_step": "one"})
    assert again.status == 202
    ended = await client.ended(run_id)
    assert ended["status"] == "completed", ended
    assert (work / "a").read_text() == "new"


async def test_what_cannot_be_rolled_back_is_a_conflict(client: Client, door: Door) -> None:
    run_id = (await client.post("/runs", {"recipe": "waits"})).json["run_id"]
    await door.reached.wait()
    busy = await client.post(f"/runs/{run_id}/rollback", {})
    assert (busy.status, busy.json["code"]) == (409, "run-active")
    door.opened.set()
    await client.ended(run_id)
    nothing = await client.post(f"/runs/{run_id}/rollback", {})
    assert (nothing.status, nothing.json["code"]) == (409, "nothing-recorded")
    assert (await client.post("/runs/run_none/rollback", {})).status == 404
