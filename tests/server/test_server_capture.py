"""A run is captured as a recipe over HTTP."""

from __future__ import annotations

from pathlib import Path

from asgi_client import Client
from minions.data.json_values import JsonValue
from minions.testing import tool_request
from served import MakeApp


async def test_a_run_is_captured_with_its_proof_and_nothing_is_stored(
    make_app: MakeApp, recipes: Path
) -> None:
    (recipes / "keeper.yaml").write_text(
        "id: keeper\ninputs: {task: string}\npermissions: {allow_write: true}\n"
        "steps:\n  - {id: keep, goal: '{{ inputs.task }}', tools: [saveState]}\n"
    )
    kept: dict[str, JsonValue] = {"key": "A-17", "value": {"note": "twelve lamps"}}
    client = Client(make_app(answers=[tool_request("saveState", kept), "Kept under A-17."]))
    body = {"recipe": "keeper", "inputs": {"task": "Keep under A-17: twelve lamps"}}
    run_id = (await client.post("/runs", body)).json["run_id"]
    await client.ended(run_id)
    stored = (await client.get("/recipes")).json
    answer = await client.post(f"/runs/{run_id}/capture", {"recipe_id": "kept"})
    assert answer.status == 200, answer.json
    found = answer.json
    assert found["proved"] is True, found["problems"]
    assert found["recipe"].startswith("id: kept\n")
    assert found["agent_model_calls"] == 2
    assert found["picture"].startswith("<svg")
    assert {each["place"] for each in found["evidence"]} >= {"save_state.key", "output"}
    assert (await client.get("/recipes")).json == stored


async def test_a_run_that_failed_is_not_captured(client: Client, recipes: Path) -> None:
    (recipes / "bad.yaml").write_text("id: bad\nsteps:\n  - {id: a, assert: 'false'}\n")
    run_id = (await client.post("/runs", {"recipe": "bad"})).json["run_id"]
    await client.ended(run_id)
    answer = await client.post(f"/runs/{run_id}/capture", {})
    assert answer.json["code"] == "not-finished"
    assert (await client.post("/runs/run_none/capture", {})).status == 404
