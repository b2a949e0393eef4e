"""`POST /plans`: a task is planned in a folder that the operator offers, approved, carried out."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from asgi_client import Client
from minions.contracts.calls import Prompt
from minions.data.json_values import JsonValue
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


# --- several people, and a plan after a failure --------------------------------------------------


async def _waiting(client: Client) -> tuple[str, dict[str, Any]]:  # Any: a response
    run_id = (await client.post("/plans", {"requirements": "Write notes"})).json["run_id"]
    await client.ended(run_id)
    [waiting] = (await client.get("/approvals")).json["approvals"]
    return run_id, waiting


EDITED: Final = "PLAN: Less\nSTEP: other\nTYPE: generate\nGOAL: Write\nARTIFACTS: notes.md\n"


@pytest.mark.parametrize("is_edit_first", [True, False])
async def test_of_two_answers_to_one_plan_the_first_counts(
    client: Client, is_edit_first: bool
) -> None:
    run_id, waiting = await _waiting(client)
    said = [
        {"decision": "answer", "value": EDITED, "by": "Ann"},
        {"decision": "answer", "value": "yes", "by": "Bob"},
    ]
    first, second = said if is_edit_first else said[::-1]
    path = f"/approvals/{waiting['id']}"
    won, lost = await asyncio.gather(client.post(path, first), client.post(path, second))
    assert (won.status, lost.status, lost.json["code"]) == (202, 409, "already-decided")
    assert f"This was decided by {first['by']} at 20" in lost.json["detail"]
    told = "'PLAN: Less STEP: other" if is_edit_first else "'yes'"
    assert told in lost.json["detail"]
    run = await client.ended(run_id)
    steps = [each["id"] for each in run["output"]["steps"]]
    assert steps == (["other"] if is_edit_first else ["write"])
    late = await client.post(path, second)
    assert (late.status, late.json["code"]) == (409, "already-decided")


async def test_an_answer_to_an_earlier_plan_does_not_approve_the_next_one(
    client: Client, workspace: Path
) -> None:
    run_id, waiting = await _waiting(client)
    path = f"/approvals/{waiting['id']}"
    await client.post(path, {"decision": "answer", "value": "Shorter", "by": "Ann"})
    await client.ended(run_id)
    late = await client.post(path, {"decision": "answer", "value": "yes"})
    assert (late.status, late.json["code"]) == (409, "already-decided")
    assert (await client.ended(run_id))["status"] == "needs_decision"
    assert not (workspace / "notes.md").exists()


def answer_second_time(prompt: Prompt) -> str:
    text = "\n".join(message.content or "" for message in prompt.messages)
    if "An earlier plan failed" in text:
        return json.dumps(PLAN).replace('"goal": "Write"', '"goal": "Write it so"')
    if "You plan work" not in text and "Write it so" not in text:
        return "I will not."
    return answer(prompt)


async def test_a_plan_after_a_failure_waits_with_what_differs(
    make_app: MakeApp, workspace: Path
) -> None:
    client = Client(make_app(answers=answer_second_time, plan_workspaces=(str(workspace),)))
    run_id, first = await _waiting(client)
    assert first["plan"]["text"].startswith("PLAN: Notes\n")
    assert first["plan"]["diff"] is None
    said = {"decision": "answer", "value": "yes"}
    await client.post(f"/approvals/{first['id']}", said)
    await client.ended(run_id)
    [second] = (await client.get("/approvals")).json["approvals"]
    assert second["question"].startswith("NEW PLAN: Notes\n  1 changed\n")
    assert second["plan"]["text"].startswith("PLAN: Notes\n")
    assert second["plan"]["diff"] == {
        "name": "Notes",
        "changes": [],
        "steps": [
            {
                "id": "write",
                "type": "generate",
                "change": "changed",
                "status": "failed",
                "changes": [{"key": "goal", "before": "Write", "after": "Write it so"}],
            }
        ],
    }
    await client.post(f"/approvals/{second['id']}", said)
    assert (await client.ended(run_id))["status"] == "completed"


async def test_a_plan_after_a_failure_is_told_where_nobody_is_asked(
    make_app: MakeApp, workspace: Path
) -> None:
    client = Client(make_app(answers=answer_second_time, plan_workspaces=(str(workspace),)))
    body = {"requirements": "Write notes", "approval": "none"}
    run_id = (await client.post("/plans", body)).json["run_id"]
    run = await client.ended(run_id)
    [note] = [each for each in run["notes"] if each["kind"] == "plan"]
    assert note["facts"]["diff"]["steps"][0]["change"] == "changed"
    assert run["has_file_changes"] is True
