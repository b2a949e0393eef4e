"""Runs that ended, or have no end, and go on over HTTP; what the server is."""

from __future__ import annotations

from pathlib import Path

from asgi_client import Client
from served import Door, MakeApp


async def test_a_cancelled_run_is_resumed(client: Client, door: Door) -> None:
    run_id = (await client.post("/runs", {"recipe": "waits"})).json["run_id"]
    await door.reached.wait()
    busy = await client.post(f"/runs/{run_id}/resume", {})
    assert (busy.status, busy.json["code"]) == (409, "run-active")
    await client.post(f"/runs/{run_id}/cancel", {})
    assert (await client.ended(run_id))["status"] == "cancelled"
    door.opened.set()
    again = await client.post(f"/runs/{run_id}/resume", {})
    assert (again.status, again.json["run_id"]) == (202, run_id)
    assert (await client.ended(run_id))["output"] == "through"


async def test_a_run_runs_again_from_a_step_on(client: Client, door: Door) -> None:
    door.opened.set()
    run_id = (await client.post("/runs", {"recipe": "waits"})).json["run_id"]
    await client.ended(run_id)
    nothing = await client.post(f"/runs/{run_id}/retry", {})
    assert (nothing.status, nothing.json["code"]) == (409, "nothing-to-retry")
    door.reached.clear()
    again = await client.post(f"/runs/{run_id}/retry", {"from_step": "second"})
    assert again.status == 202
    assert (await client.ended(run_id))["status"] == "completed"
    assert door.reached.is_set()
    wrong = await client.post(f"/runs/{run_id}/retry", {"from_step": "third"})
    assert (wrong.status, wrong.json["code"]) == (404, "unknown-step")


async def test_a_run_has_the_picture_of_its_own_recipe(
    client: Client, door: Door, recipes: Path
) -> None:
    door.opened.set()
    run_id = (await client.post("/runs", {"recipe": "waits"})).json["run_id"]
    await client.ended(run_id)
    (recipes / "waits.yaml").unlink()
    picture = await client.get(f"/runs/{run_id}/graph")
    assert [node["id"] for node in picture.json["nodes"]] == ["first", "second"]
    drawn = await client.get(f"/runs/{run_id}/graph?format=svg")
    assert drawn.headers["content-type"] == "image/svg+xml"
    assert (await client.get("/runs/run_nope/graph")).status == 404


async def test_a_run_of_another_process_is_cancelled(
    make_app: MakeApp, door: Door, tmp_path: Path
) -> None:
    ours, theirs = (Client(make_app(journal=tmp_path / "j.sqlite")) for _ in range(2))
    run_id = (await theirs.post("/runs", {"recipe": "waits"})).json["run_id"]
    await door.reached.wait()
    done = await ours.post(f"/runs/{run_id}/cancel", {})
    assert (done.status, done.json["status"]) == (202, "cancelled")
    door.opened.set()
    assert (await ours.ended(run_id))["status"] == "cancelled"
    over = await ours.post(f"/runs/{run_id}/cancel", {})
    assert (over.status, over.json["code"]) == (409, "run-over")


async def test_the_server_tells_what_it_is(client: Client, door: Door) -> None:
    await client.post("/runs", {"recipe": "waits"})
    await door.reached.wait()
    told = (await client.get("/system")).json
    assert (told["active_runs"], told["journal"]) == (1, "in memory")
    assert told["max_runs"] == 100
    assert (await client.post("/system", {})).status == 405
