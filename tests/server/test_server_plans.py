"""`POST /plans`: a task is planned in a folder that the operator offers, approved, carried out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asgi_client import Client
from minions.contracts.calls import Prompt
from minions.contracts.json_values import JsonValue
from served import MakeApp

PLAN: JsonValue = {
    "name": "Notes",
    "steps": [{"id": "write", "type": "generate", "goal": "Write", "artifacts": ["notes.md"]}],
}


def answer(prompt: Prompt) -> str:
    text = "\n".join(message.content or "" for message in prompt.messages)
    return json.dumps(PLAN) if "You plan work" in text else "notes.md\n```\n# Notes\n```"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "inner").mkdir(parents=True)
    return folder


@pytest.fixture
def client(make_app: MakeApp, workspace: Path) -> Client:
    return Client(make_app(answers=answer, plan_workspaces=(str(workspace),)))


async def test_a_plan_waits_for_its_approval_and_is_carried_out(
    client: Client, workspace: Path
) -> None:
    reply = await client.post("/plans", {"requirements": "Write notes"})
    assert reply.status == 202
    run = await client.ended(reply.json["run_id"])
    assert run["status"] == "needs_decision"
    [waiting] = (await client.get("/approvals")).json["approvals"]
    assert waiting["question"].startswith("PLAN: Notes\n")
    assert not (workspace / "notes.md").exists()
    said = {"decision": "answer", "value": "yes"}
    assert (await client.post(f"/approvals/{waiting['id']}", said)).status == 202
    run = await client.ended(reply.json["run_id"])
    assert run["status"] == "completed"
    assert (workspace / "notes.md").read_text() == "# Notes\n"


async def test_a_person_edits_the_plan_that_waits(client: Client, workspace: Path) -> None:
    reply = await client.post("/plans", {"requirements": "Write notes"})
    await client.ended(reply.json["run_id"])
    [waiting] = (await client.get("/approvals")).json["approvals"]
    edited = "PLAN: Less\nSTEP: other\nTYPE: generate\nGOAL: Write\nARTIFACTS: notes.md\n"
    await client.post(f"/approvals/{waiting['id']}", {"decision": "answer", "value": edited})
    run = await client.ended(reply.json["run_id"])
    assert [each["id"] for each in run["output"]["steps"]] == ["other"]


async def test_without_approval_it_is_carried_out_at_once(client: Client, workspace: Path) -> None:
    body = {"requirements": "Write notes", "approval": "none", "workspace": "inner"}
    reply = await client.post("/plans", body)
    assert (await client.ended(reply.json["run_id"]))["status"] == "completed"
    assert (workspace / "inner" / "notes.md").exists()


async def test_a_plan_may_be_written_only(client: Client, workspace: Path) -> None:
    reply = await client.post("/plans", {"requirements": "Write notes", "execute": False})
    run = await client.ended(reply.json["run_id"])
    assert "files__write_many" in run["output"]["recipe"]
    assert not (workspace / "notes.md").exists()


@pytest.mark.parametrize("place", ["..", "/etc", "../workspace2", "inner/../..", "link"])
async def test_a_folder_that_is_not_offered_is_refused(
    client: Client, workspace: Path, place: str
) -> None:
    (workspace / "link").symlink_to("/etc")
    reply = await client.post("/plans", {"requirements": "x", "workspace": place})
    assert (reply.status, reply.json["code"]) == (403, "workspace-refused")


async def test_a_server_that_offers_no_folder_makes_no_plans(make_app: MakeApp) -> None:
    reply = await Client(make_app()).post("/plans", {"requirements": "x"})
    assert (reply.status, reply.json["code"]) == (403, "plans-refused")


async def test_the_same_key_begins_one_run(client: Client) -> None:
    body = {"requirements": "Write notes"}
    first = await client.post("/plans", body, idempotency_key="k1")
    again = await client.post("/plans", body, idempotency_key="k1")
    assert first.json["run_id"] == again.json["run_id"]
    other = await client.post("/plans", {**body, "share": "whole"}, idempotency_key="k1")
    assert other.json["code"] == "idempotency-mismatch"


async def test_a_caller_cannot_run_the_planner_where_no_folder_is_offered(
    make_app: MakeApp, workspace: Path
) -> None:
    inputs: JsonValue = {"requirements": "x", "workspace": str(workspace)}
    reply = await Client(make_app()).post("/runs", {"recipe": "StepExecutor", "inputs": inputs})
    assert reply.status == 404
