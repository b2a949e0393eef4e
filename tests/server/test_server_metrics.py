"""The page of metrics: who may read it, and what it says."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from asgi_client import Client

Labels = tuple[tuple[str, str], ...]


def read(body: bytes) -> Mapping[tuple[str, Labels], float]:
    """Every sample, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


async def test_the_page_is_prometheus_text_and_needs_the_token(client: Client) -> None:
    reply = await client.ask("GET", "/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert read(reply.body)["minions_runs_active", ()] == 0
    for given in (None, "Bearer wrong-token-of-tests"):
        refused = await client.ask("GET", "/metrics", None, {"authorization": given})
        assert refused.status == 401
    head = await client.ask("HEAD", "/metrics")
    assert (head.status, head.body) == (200, b"")
    assert (await client.ask("POST", "/metrics")).status == 405


async def test_runs_of_the_server_are_counted(client: Client) -> None:
    accepted = await client.post("/runs", {"recipe": "adds", "inputs": {"a": 2}})
    await client.ended(accepted.json["run_id"])
    found = read((await client.ask("GET", "/metrics")).body)
    assert found["minions_runs_total", (("status", "completed"),)] == 1
    assert found["minions_run_seconds_count", (("status", "completed"),)] == 1
    assert found["minions_steps_total", (("error", ""), ("status", "completed"))] == 1
    assert found["minions_runs_active", ()] == 0
