"""`by` and `patience` of `POST /runs`: how long callers may let model calls wait for batches."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from asgi_client import TOKEN, Client
from minions.app.settings.settings import Settings
from minions.contracts.journal.start_note import StartNote
from minions.contracts.runtime import SystemClock
from minions.interfaces.server.app import create_app
from minions.interfaces.server.server_options import ServerOptions

RECIPE = "id: quick\nsteps: [{id: a, set: {x: 1}}]\n"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A server that lets callers be patient for a day."""
    return client_of(tmp_path, monkeypatch, "24h")


def client_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str | None) -> Client:
    """A server with that bound."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "quick.yaml").write_text(RECIPE, "utf-8")
    settings = Settings(db=str(tmp_path / "j.sqlite"), caller_patience=most)
    app = create_app(ServerOptions(token=TOKEN), recipes=[tmp_path / "recipes"], settings=settings)
    return Client(app)


async def deadline_of(client: Client, run_id: str) -> datetime | None:
    """What the record of the run's start says."""
    journal = await client.get(f"/runs/{run_id}/journal")
    begun = json.loads(journal.body.splitlines()[0])
    return StartNote.of(begun["body"]["note"]).by


async def test_a_caller_says_how_long_a_run_may_take(client: Client) -> None:
    """A-177."""
    before = SystemClock().now()
    begun = await client.post("/runs", {"recipe": "quick", "patience": "8h"})
    assert begun.status == 202
    found = await deadline_of(client, begun.json["run_id"])
    assert found is not None
    assert timedelta(0) <= found - before - timedelta(hours=8) < timedelta(minutes=5)


async def test_a_time_without_zone_is_in_utc(client: Client) -> None:
    at = SystemClock().now() + timedelta(hours=3)
    begun = await client.post("/runs", {"recipe": "quick", "by": f"{at:%Y-%m-%dT%H:%M}"})
    assert begun.status == 202
    found = await deadline_of(client, begun.json["run_id"])
    assert found == datetime(at.year, at.month, at.day, at.hour, at.minute, tzinfo=at.tzinfo)


@pytest.mark.parametrize(
    ("wanted", "status", "code"),
    [
        ({"patience": "25h"}, 403, "patience-refused"),
        ({"by": "2999-01-01T00:00"}, 403, "patience-refused"),
        ({"by": "2001-01-01T00:00"}, 422, "bad-deadline"),
        ({"by": "soon"}, 422, "bad-deadline"),
        ({"by": "06:00", "patience": "8h"}, 422, "bad-deadline"),
    ],
)
async def test_more_than_the_operator_allows_is_refused(
    client: Client, wanted: dict[str, str], status: int, code: str
) -> None:
    refused = await client.post("/runs", {"recipe": "quick", **wanted})
    assert (refused.status, refused.json["code"]) == (status, code)
    assert "--" not in refused.json["detail"]
    assert (await client.get("/runs")).json["total"] == 0


async def test_without_the_setting_no_caller_is_patient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(tmp_path, monkeypatch, None)
    refused = await client.post("/runs", {"recipe": "quick", "patience": "8h"})
    assert (refused.status, refused.json["code"]) == (403, "patience-refused")
    assert "caller_patience" in refused.json["detail"]


async def test_another_time_is_another_request_of_the_same_key(client: Client) -> None:
    one = await client.post("/runs", {"recipe": "quick", "patience": "8h"}, idempotency_key="k1")
    same = await client.post("/runs", {"recipe": "quick", "patience": "8h"}, idempotency_key="k1")
    other = await client.post("/runs", {"recipe": "quick", "patience": "9h"}, idempotency_key="k1")
    assert one.json["run_id"] == same.json["run_id"]
    assert other.json["code"] == "idempotency-mismatch"
