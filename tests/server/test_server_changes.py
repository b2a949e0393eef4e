"""The stream that lists follow: runs or pending decisions have changed, whoever changed them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

from asgi_client import Client
from served import MakeApp

CHANGES = "/api/v1/changes"


async def _told(chunks: AsyncIterator[bytes], *wanted: str) -> list[dict[str, object]]:
    """The events up to that one which completes the wanted types."""
    found: list[dict[str, object]] = []
    async for chunk in chunks:
        lines = chunk.decode().splitlines()
        found += [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        if {str(each["type"]) for each in found} >= set(wanted):
            break
    return found


async def test_a_run_and_a_pending_decision_are_told_to_every_reader(client: Client) -> None:
    async with client.stream("GET", CHANGES) as one, client.stream("GET", CHANGES) as two:
        readers = [one.chunks(), two.chunks()]
        for chunks in readers:
            (first,) = await _told(chunks, "approvals_changed")
            assert first == {"type": "approvals_changed", "total": 0}
        await client.post("/runs", {"recipe": "asks"})
        for chunks in readers:
            told = await _told(chunks, "runs_changed", "approvals_changed")
            assert {"type": "approvals_changed", "total": 1} in told


async def test_runs_of_another_process_are_told_too(make_app: MakeApp, tmp_path: Path) -> None:
    watched = Client(make_app(journal=tmp_path / "j.sqlite"))
    other = Client(make_app(journal=tmp_path / "j.sqlite"))
    async with watched.stream("GET", CHANGES) as stream:
        chunks = stream.chunks()
        await _told(chunks, "approvals_changed")
        await other.post("/runs", {"recipe": "adds", "inputs": {"a": 1}})
        assert {"type": "runs_changed"} in await _told(chunks, "runs_changed")


async def test_nobody_looks_where_nobody_reads_and_a_stop_ends_the_streams(
    make_app: MakeApp,
) -> None:
    app = make_app()
    client = Client(app)
    async with client.stream("GET", CHANGES) as stream:
        await _told(stream.chunks(), "approvals_changed")
    assert not app.app_state.changes.is_looking
    async with client.stream("GET", CHANGES) as stream:
        chunks = stream.chunks()
        await _told(chunks, "approvals_changed")
        await app.stop()
        assert await _told(chunks) == []
    reply = await client.get("/changes")
    assert (reply.status, reply.json["code"]) == (503, "too-many-followers")
