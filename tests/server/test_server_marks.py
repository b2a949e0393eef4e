"""Outputs of runs are marked over HTTP."""

from __future__ import annotations

from asgi_client import Client
from served import Door


async def test_an_output_is_marked_and_the_run_tells_it(client: Client) -> None:
    run_id = (await client.post("/runs", {"recipe": "adds", "inputs": {"a": 1}})).json["run_id"]
    await client.ended(run_id)
    body = {"verdict": "good", "address": "sum", "note": "Right.", "by": "ada"}
    marked = await client.post(f"/runs/{run_id}/marks", body)
    assert marked.status == 201, marked.json
    assert {name: marked.json[name] for name in body} == body
    await client.post(f"/runs/{run_id}/marks", {"verdict": "bad"})
    run = (await client.get(f"/runs/{run_id}")).json
    told = [(note["kind"], note["step_id"], note["facts"]["verdict"]) for note in run["notes"]]
    assert told == [("mark", "sum", "good"), ("mark", "", "bad")]
    assert run["status"] == "completed"


async def test_what_cannot_be_marked_is_refused(client: Client, door: Door) -> None:
    run_id = (await client.post("/runs", {"recipe": "waits"})).json["run_id"]
    await door.reached.wait()
    busy = await client.post(f"/runs/{run_id}/marks", {"verdict": "good"})
    assert (busy.status, busy.json["code"]) == (409, "run-active")
    door.opened.set()
    await client.ended(run_id)
    unknown = await client.post(f"/runs/{run_id}/marks", {"verdict": "good", "address": "x"})
    assert (unknown.status, unknown.json["code"]) == (422, "unknown-step")
    wrong = await client.post(f"/runs/{run_id}/marks", {"verdict": "fine"})
    assert (wrong.status, wrong.json["code"]) == (422, "bad-body")
    assert (await client.post("/runs/run_none/marks", {"verdict": "good"})).status == 404
