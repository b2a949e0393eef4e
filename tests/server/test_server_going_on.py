"""Runs that ended, or have no end, and go on over HTTP; what the server is."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from asgi_client import Client, events_in
from forked_commands import PROGRAM, run_forked
from minions.contracts.tools import Effect
from patience import HANG_S
from served import Door, MakeApp, echo


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
    assert (wrong.status, wrong.json["code"]) == (422, "unknown-step")  # of the body


async def test_a_retry_takes_other_inputs_and_runs_what_reads_them(
    client: Client, recipes: Path
) -> None:
    """A step that does not read them keeps its result, and its call is not made again."""
    (recipes / "two.yaml").write_text(
        "id: two\ninputs: {a: {type: integer, default: 1}, b: {type: string, default: x}}\n"
        "steps:\n"
        '  - {id: same, tool: look, params: {text: "{{ inputs.b }}"}}\n'
        '  - {id: other, set: {n: "{{ inputs.a + 1 }}"}}\n'
        'output: {n: "{{ other.n }}", seen: "{{ same }}"}\n',
        "utf-8",
    )
    run_id = (await client.post("/runs", {"recipe": "two"})).json["run_id"]
    first = await client.ended(run_id)
    assert first["output"] == {"n": 2, "seen": "look: x"}
    assert (await client.post(f"/runs/{run_id}/retry", {"inputs": {"a": 5}})).status == 202
    again = await client.ended(run_id)
    assert again["output"] == {"n": 6, "seen": "look: x"}
    assert again["inputs"] == {"a": 5, "b": "x"}
    rows = await client.app.app_state.journal.entries(run_id=run_id, kinds={"tool_call"})
    assert [row.state for row in rows] == ["started", "finished"]
    for inputs in ({"c": 1}, {"a": "many"}):
        wrong = await client.post(f"/runs/{run_id}/retry", {"inputs": inputs})
        assert (wrong.status, wrong.json["code"]) == (422, "bad-input")


async def test_the_message_of_a_turn_is_not_replaced_by_a_retry(make_app: MakeApp) -> None:
    client = Client(make_app(answers=["Good day."]))
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    turn = await client.post(f"/sessions/{session}/messages", {"content": "Hello"})
    run_id = next(events_in(turn.body.decode())).data["run_id"]
    reply = await client.post(f"/runs/{run_id}/retry", {"inputs": {"message": "Bye"}})
    assert (reply.status, reply.json["code"]) == (422, "message-recorded")


DIES = """
import os, signal
from minions import tool

@tool(effect="once")
def send(text: str) -> str:
    '''Dies.'''
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"
"""
MAILS = """
id: mails
permissions: {allow_write: true}
steps: [{id: mail, tool: send, params: {text: hi}}]
output: "{{ mail }}"
"""


async def test_a_call_in_doubt_of_a_killed_run_waits_before_anybody_resumes_it(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of the command line, which a server does not resume by itself."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(DIES, "utf-8")
    (tmp_path / "mails.yaml").write_text(MAILS, "utf-8")
    command = [*PROGRAM, "run", "mails.yaml"]
    flags = ["--db", "j.sqlite", "--extensions", "own.py"]
    killed = run_forked(
        [*command, *flags], check=False, capture_output=True, timeout=HANG_S
    )  # nothing else happens meanwhile
    assert killed.returncode == -signal.SIGKILL
    client = Client(make_app(journal=tmp_path / "j.sqlite", tools=[echo("send", Effect.ONCE)]))
    (waiting,) = (await client.get("/approvals")).json["approvals"]
    assert (waiting["what"], waiting["tool"]) == ("doubt", "send")
    run = (await client.get(f"/runs/{waiting['run_id']}")).json
    assert (run["status"], run["waiting"]) == ("interrupted", [waiting])
    body = {"decision": "done", "value": "sent by hand"}
    decided = await client.post(f"/approvals/{waiting['id']}", body)
    assert decided.status == 202, decided.json
    assert (await client.ended(waiting["run_id"]))["output"] == "sent by hand"
    assert (await client.get("/approvals")).json["approvals"] == []


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
