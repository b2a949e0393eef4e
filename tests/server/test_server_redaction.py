"""No document of the server shows a secret, before and after the call that takes it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from asgi_client import Client
from builders import fake_tool
from minions.contracts.tools import Effect
from minions.contracts.waiting import RunWait
from minions.data.codec import encode
from minions.data.json_values import JsonValue, dumps
from patience import HANG_S
from served import MakeApp

VALUE = 'sk-"\\live/123'
RECIPE = """
id: sends
inputs: {token: {type: string, secret: true, default: "env:OWN_TOKEN"}}
permissions: {allow_write: true, requires_approval: [send]}
limits: {max_tool_call_retries: 0}
steps:
  - {id: send, tool: send, params: {deep: [{auth: "Bearer {{ inputs.token }}"}]}}
"""
LISTS = ("/runs", "/sessions", "/approvals", "/recipes", "/recipes/sends", "/system")
OF_RUN = (
    *("", "?cut=8&parts=steps", "/steps", "/events", "/journal", "/export.html", "/graph"),
    *("/value?at=/steps", "/value?at=/error", "/search?q=live", "/search?q=Bearer"),
)
OF_SESSION = ("", "/steps", "/steps/1", "/steps/2", "/steps/3", "/context")


def keyed(arguments: Mapping[str, JsonValue]) -> JsonValue:
    """Its keys and texts hold the secret."""
    return {VALUE: [{f"a {VALUE}": json.dumps(VALUE)}]}


def grouped(arguments: Mapping[str, JsonValue]) -> JsonValue:
    try:
        raise KeyError(VALUE)
    except KeyError as error:
        raise ExceptionGroup(f"several of {VALUE}", [ValueError(VALUE)]) from error


async def shown(client: Client, run_id: str, session_id: str) -> dict[str, str]:
    """All documents, by address."""
    paths = [*LISTS, *(f"/runs/{run_id}{each}" for each in OF_RUN)]
    paths += [f"/sessions/{session_id}{each}" for each in OF_SESSION]
    return {path: (await client.get(path)).body.decode() for path in paths}


def stored(folder: Path) -> dict[str, str]:
    """The files of the journal."""
    return {file.name: file.read_bytes().decode("latin-1") for file in folder.glob("j.sqlite*")}


@pytest.mark.parametrize("work", [keyed, grouped])
async def test_no_document_shows_a_secret(
    make_app: MakeApp,
    recipes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[Mapping[str, JsonValue]], JsonValue],
) -> None:
    """A-105, A-143."""
    (recipes / "sends.yaml").write_text(RECIPE)
    monkeypatch.setenv("OWN_TOKEN", VALUE)
    waits: list[RunWait] = []

    async def told(wait: RunWait) -> None:
        waits.append(wait)

    tool = fake_tool("send", work, effect=Effect.ONCE)
    client = Client(make_app(tools=[tool], journal=tmp_path / "j.sqlite", on_waiting=told))
    begun = (await client.post("/runs", {"recipe": "sends"})).json
    run_id, session_id = begun["run_id"], begun["session_id"]
    assert (await client.ended(run_id))["status"] == "needs_decision"
    await asyncio.wait_for(client.app.app_state.waiting_notices.told(), HANG_S)
    before = await shown(client, run_id, session_id)
    texts = {f"waiting {path}": text for path, text in before.items()}
    texts["webhook"] = dumps([encode(wait) for wait in waits])
    (asked,) = (await client.get("/approvals")).json["approvals"]
    said = {"decision": "approve", "digest": asked["digest"]}
    assert (await client.post(f"/approvals/{asked['id']}", said)).status == 202
    assert (await client.ended(run_id))["status"] in ("completed", "failed")
    texts |= await shown(client, run_id, session_id)
    texts |= stored(tmp_path)
    assert len(waits) == 1
    for form in (VALUE, json.dumps(VALUE)[1:-1], json.dumps(json.dumps(VALUE))[3:-3]):
        assert [path for path, text in texts.items() if form in text] == []
