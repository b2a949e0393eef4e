"""A damaged run harms only itself, over HTTP as well: A-123."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from asgi_client import Client
from served import MakeApp


def _damage(path: Path, run_id: str, kind: str, body: str) -> None:
    with closing(sqlite3.connect(path)) as db:
        sql = "UPDATE entries SET body = ?, body_digest = NULL WHERE run_id = ? AND kind = ?"
        assert db.execute(sql, (body, run_id, kind)).rowcount > 0
        db.commit()


@pytest.mark.parametrize(
    ("kind", "body", "is_listed"),
    [("run", "{}", True), ("run", "{", True), ("decision", "[]", False), ("step", "{}", False)],
)
async def test_lists_name_the_damaged_run_and_show_the_others(
    make_app: MakeApp, tmp_path: Path, kind: str, body: str, is_listed: bool
) -> None:
    """A-123."""
    path = tmp_path / "j.sqlite"
    client = Client(make_app(journal=path))
    ids = [(await client.post("/runs", {"recipe": "signs"})).json["run_id"] for _ in range(2)]
    for run_id in ids:
        await client.ended(run_id)
    bad, good = ids
    _damage(path, bad, kind, body)

    listed = {each["run_id"]: each for each in (await client.get("/runs")).json["runs"]}
    assert (listed[good]["status"], listed[good]["problem"]) == ("needs_decision", None)
    if is_listed:
        assert listed[bad]["status"] == "unreadable"
        assert listed[bad]["problem"].startswith("Entry 1 of session 'ses_")
        only = (await client.get("/runs?status=unreadable")).json["runs"]
        assert [each["run_id"] for each in only] == [bad]

    assert (await client.get(f"/runs/{good}")).status == 200
    shown = await client.get(f"/runs/{bad}")
    assert (shown.status, shown.json["code"]) == (409, "corrupt-entry")
    assert f"run '{bad}'" in shown.json["detail"]

    waiting = {each["run_id"]: each for each in (await client.get("/approvals")).json["approvals"]}
    assert waiting[good]["what"] == "approval"
    if not is_listed:
        assert waiting[bad]["what"] == "unreadable"
        assert "cannot be read" in waiting[bad]["words"]

    sessions = (await client.get("/sessions")).json["sessions"]
    assert len(sessions) == 2
    for action in ("resume", "retry"):
        refused = await client.post(f"/runs/{bad}/{action}", {})
        assert (refused.status, refused.json["code"]) == (409, "corrupt-entry"), action


def _deep(name: str) -> str:
    """A question that waits, with an answer form or a default that nobody can write out."""
    body = {"step_id": "sign", "what": "answer", "question": "Fine?", name: "DEEP"}
    value = f"{'[' * 700}1{']' * 700}"
    return json.dumps(body).replace('"DEEP"', value if name == "default" else f'{{"a":{value}}}')


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("entries", f"body = '{'[' * 20_000}', body_digest = NULL WHERE kind = 'decision'"),
        ("entries", f"body = '{_deep('default')}', body_digest = NULL WHERE kind = 'decision'"),
        ("entries", f"body = '{_deep('form')}', body_digest = NULL WHERE kind = 'decision'"),
        ("entries", "state = x'ff' WHERE kind = 'decision'"),
        ("entries", """body = '{"recipe": {}}' WHERE kind = 'run'"""),
        ("entries", f"body = '{'[' * 20_000}' WHERE kind = 'run'"),
        ("entries", "state = CAST(state AS BLOB) WHERE kind = 'run'"),
        ("entries", "position = 'abc' WHERE position = 1"),
        ("leases", "epoch = 'abc', deadline = 9000000000000000 WHERE 1"),
    ],
)
async def test_no_value_of_one_row_ends_the_lists(
    make_app: MakeApp, tmp_path: Path, table: str, change: str
) -> None:
    """A-123."""
    path = tmp_path / "j.sqlite"
    client = Client(make_app(journal=path))
    ids = [(await client.post("/runs", {"recipe": "signs"})).json["run_id"] for _ in range(2)]
    for run_id in ids:
        await client.ended(run_id)
    bad, good = ids
    with closing(sqlite3.connect(path)) as db:
        changed = db.execute(f"UPDATE {table} SET {change} AND run_id = ?", (bad,))
        assert changed.rowcount > 0
        db.commit()

    runs = {each["run_id"]: each for each in (await client.get("/runs")).json["runs"]}
    assert runs[good]["status"] == "needs_decision"
    assert (await client.get("/sessions")).status == 200
    answer = await client.get("/approvals")
    assert answer.status == 200
    waiting = {each["run_id"]: each["what"] for each in answer.json["approvals"]}
    assert waiting[good] == "approval"
    if "decision" in change:
        assert waiting[bad] == "unreadable"


@pytest.mark.parametrize("kind", ["run", "step", "decision", "message"])
async def test_what_is_said_of_damage_is_in_the_document(
    make_app: MakeApp, tmp_path: Path, kind: str
) -> None:
    """A-123: with every way to read a run or a session."""
    path = tmp_path / "j.sqlite"
    client = Client(make_app(journal=path, answers=["Good day."]))
    document = (await client.ask("GET", "/openapi.json")).json
    recipe = "chat" if kind == "message" else "signs"
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    inputs = {"message": "Hello"} if recipe == "chat" else {}
    body = {"recipe": recipe, "inputs": inputs, "session": session}
    run = (await client.post("/runs", body)).json["run_id"]
    await client.ended(run)
    _damage(path, run, kind, "{")
    known = {"run_id": run, "session_id": session, "sequence": "1"}
    statuses = set()
    for template, operations in document["paths"].items():
        if "get" not in operations or not set(re.findall(r"{(\w+)}", template)) & set(known):
            continue
        if template.endswith("/sessions/{session_id}/events"):
            continue  # it has no end
        reply = await client.ask("GET", template.format(**known))
        assert str(reply.status) in operations["get"]["responses"], (template, reply.body)
        statuses.add(reply.status)
    assert statuses <= {200, 400, 404, 409}  # 400: it needs a query, which is not given here
