"""A server that executes nothing: it queues runs, and workers execute them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from asgi_client import Client
from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.journal.start_note import QueuePlace
from minions.engine.run.recorded_run import load_recorded_run
from minions.interfaces.server.app import App
from minions.interfaces.server.server_runtime import ServerRuntime
from served import MakeApp

PLACE = QueuePlace(name="web", priority=3)


async def executed(app: App, run_id: str) -> None:
    """As a worker of that database would."""
    runtime: ServerRuntime = app.app_state.runtime
    recorded = await load_recorded_run(app.app_state.journal, run_id)
    recipe = runtime.own_recipe(recorded)
    run = runtime.executor_of(recipe, note=recorded.note).prepare_resume(recorded, recipe=recipe)
    await run.execute()


async def test_a_request_queues_a_run_and_a_decision_queues_it_again(
    make_app: MakeApp, tmp_path: Path
) -> None:
    app = make_app(journal=tmp_path / "j.db", queue=PLACE)
    client = Client(app)
    begun = await client.post("/runs", {"recipe": "signs", "inputs": {}})
    run_id = begun.json["run_id"]
    assert (begun.status, begun.json["status"]) == (202, "queued")
    listed = await client.get("/runs?status=queued")
    assert [run["run_id"] for run in listed.json["runs"]] == [run_id]
    await executed(app, run_id)
    [view] = (await client.get("/approvals")).json["approvals"]
    said = {"decision": "approve", "digest": view["digest"]}
    decided = await client.post(f"/approvals/{view['id']}", said)
    assert (decided.status, decided.json["status"]) == (202, "queued")
    await executed(app, run_id)
    run = (await client.get(f"/runs/{run_id}")).json
    assert (run["status"], run["output"]) == ("completed", "sign: a treaty")


async def test_a_repeated_request_queues_its_run_once(make_app: MakeApp, tmp_path: Path) -> None:
    client = Client(make_app(journal=tmp_path / "j.db", queue=PLACE))
    body = {"recipe": "signs", "inputs": {}}
    first = await client.post("/runs", body, **{"idempotency-key": "k1"})
    again = await client.post("/runs", body, **{"idempotency-key": "k1"})
    assert first.json["run_id"] == again.json["run_id"]
    assert (await client.get("/runs")).json["total"] == 1


async def test_a_server_that_executes_runs_leaves_queued_ones_to_workers(
    make_app: MakeApp, tmp_path: Path
) -> None:
    queueing = make_app(journal=tmp_path / "j.db", queue=PLACE)
    begun = await Client(queueing).post("/runs", {"recipe": "signs", "inputs": {}})
    run_id = begun.json["run_id"]
    app = make_app(journal=tmp_path / "j.db", resume=True)
    await app.recovery.resume_all()
    await app.recovery.look()
    assert [row.state for row in await app.app_state.journal.entries(run_id=run_id)] == ["started"]
    await executed(app, run_id)
    [view] = (await Client(app).get("/approvals")).json["approvals"]
    said = {"decision": "approve", "digest": view["digest"]}
    decided = await Client(app).post(f"/approvals/{view['id']}", said)
    assert decided.json["status"] == "queued"


async def test_a_stream_tells_what_a_worker_of_another_process_does(
    make_app: MakeApp, tmp_path: Path
) -> None:
    app = make_app(journal=tmp_path / "j.db", queue=PLACE)
    client = Client(app)
    run_id = (await client.post("/runs", {"recipe": "asks", "inputs": {}})).json["run_id"]
    elsewhere = make_app(journal=tmp_path / "j.db")
    async with client.stream("GET", f"/api/v1/runs/{run_id}/events") as stream:
        working = asyncio.ensure_future(executed(elsewhere, run_id))
        told = [event async for event in stream.events()]
        await working
    begun = [event.data["status"] for event in told if event.type == "run_started"]
    assert begun == ["queued", "running"]
    assert "run_waiting" in [event.type for event in told]


async def test_a_queued_run_is_cancelled(make_app: MakeApp, tmp_path: Path) -> None:
    client = Client(make_app(journal=tmp_path / "j.db", queue=PLACE))
    run_id = (await client.post("/runs", {"recipe": "signs", "inputs": {}})).json["run_id"]
    cancelled = await client.post(f"/runs/{run_id}/cancel")
    assert (cancelled.status, cancelled.json["status"]) == (202, "cancelled")


async def test_a_second_turn_waits_until_the_queued_one_has_ended(
    make_app: MakeApp, tmp_path: Path
) -> None:
    app = make_app(journal=tmp_path / "j.db", queue=PLACE, model=ScriptedModel(["hello", "again"]))
    client = Client(app)
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    first = await client.post(
        "/runs", {"recipe": "chat", "inputs": {"message": "hi"}, "session": session}
    )
    assert first.json["status"] == "queued"
    refused = await client.post(
        "/runs", {"recipe": "chat", "inputs": {"message": "ho"}, "session": session}
    )
    assert (refused.status, refused.json["code"]) == (409, "lease-held")
    await executed(app, first.json["run_id"])
    second = await client.post(
        "/runs", {"recipe": "chat", "inputs": {"message": "ho"}, "session": session}
    )
    await executed(app, second.json["run_id"])
    steps = (await client.get(f"/sessions/{session}/steps")).json["steps"]
    assert [step["content"] for step in steps] == ["hi", "hello", "ho", "again"]


async def test_a_chat_client_gets_the_answer_of_a_run_that_a_worker_executes(
    make_app: MakeApp, tmp_path: Path
) -> None:
    app = make_app(journal=tmp_path / "j.db", queue=PLACE)
    elsewhere = make_app(journal=tmp_path / "j.db", model=ScriptedModel(["Good day!"] * 2))
    for streams in (False, True):
        body = {
            "model": "chat",
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": streams,
        }
        asking = asyncio.ensure_future(Client(app).ask("POST", "/v1/chat/completions", body))
        while not (queued := (await Client(app).get("/runs?status=queued")).json["runs"]):
            continue
        await executed(elsewhere, queued[0]["run_id"])
        reply = await asking
        assert reply.status == 200
        assert b'"content":"Good day!"' in reply.body
