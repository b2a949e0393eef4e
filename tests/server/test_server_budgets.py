"""Budgets over HTTP: who is refused, for how long, and what is counted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from asgi_client import Client, Event, Reply, events_in
from builders import answer_of
from minions.app.settings.settings import Settings
from minions.contracts.budgets import Budgets, OnThreshold
from minions.contracts.calls import ModelCallResponse, Prompt
from served import MakeApp

TOKENS = 15
"""Of one call."""


async def answering(_prompt: Prompt) -> ModelCallResponse:
    return answer_of("Fine.")


@pytest.fixture(autouse=True)
def _asks(recipes: Path) -> None:
    (recipes / "asks.yaml").write_text("id: asks\nsteps:\n  - {id: a, goal: Go on.}\n")


def served(make_app: MakeApp, **budgets: int) -> Client:
    settings = Settings(no_store=True, budgets=Budgets(**budgets))  # type: ignore[arg-type]  # limits in tokens
    return Client(make_app(answers=answering, settings=settings))


async def ran(client: Client, **body: object) -> str:
    reply = await client.post("/runs", {"recipe": "asks", **body})
    assert reply.status == 202
    return str((await client.ended(reply.json["run_id"]))["status"])


def turn(reply: Reply) -> Sequence[Event]:
    assert reply.status == 200
    return list(events_in(reply.body.decode()))


async def test_a_run_of_a_user_without_a_budget_is_refused_until_the_next_day(
    make_app: MakeApp,
) -> None:
    client = served(make_app, user_tokens_per_day=TOKENS)
    assert await ran(client, user="ann") == "completed"
    refused = await client.post("/runs", {"recipe": "asks", "user": "ann"})
    assert (refused.status, refused.json["code"]) == (429, "budget-spent")
    assert refused.json["category"] == "rate_limit"
    assert "The user's daily limit user_tokens_per_day=15 is reached" in refused.json["detail"]
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert await ran(client, user="bob") == await ran(client) == "completed"
    runs = (await client.get("/runs")).json
    assert [run.get("user") for run in runs["runs"]] == [None, "bob", "ann"]
    anns = (await client.get("/runs?user=ann")).json
    assert ([run["user"] for run in anns["runs"]], anns["total"]) == (["ann"], 1)


async def test_a_turn_in_a_session_without_a_budget_is_refused_for_good(
    make_app: MakeApp,
) -> None:
    client = served(make_app, session_tokens=TOKENS)
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    talk = f"/sessions/{session}/messages"
    assert turn(await client.post(talk, {"content": "Hi"}))[-1].type == "run_completed"
    refused = await client.post(talk, {"content": "More?"})
    assert (refused.status, refused.json["code"]) == (429, "budget-spent")
    assert "retry-after" not in refused.headers
    steps = (await client.get(f"/sessions/{session}/steps")).json["steps"]
    assert [step["content"] for step in steps] == ["Hi", "Fine."]
    again = await client.post(f"/sessions/{session}/retry", {"sequence": 2})
    assert (again.status, again.json["code"]) == (429, "budget-spent")


async def test_what_is_regenerated_spends_of_the_user_of_the_last_run(make_app: MakeApp) -> None:
    client = served(make_app, user_tokens_per_day=2 * TOKENS)
    session = (await client.post("/sessions", {"recipe": "chat"})).json["id"]
    talk = f"/sessions/{session}"
    turn(await client.post(f"{talk}/messages", {"content": "Hi", "user": "ann"}))
    turn(await client.post(f"{talk}/retry", {"sequence": 2}))
    refused = await client.post(f"{talk}/messages", {"content": "More", "user": "ann"})
    assert refused.status == 429
    assert turn(await client.post(f"{talk}/messages", {"content": "More"}))


async def test_a_run_that_stops_at_the_days_budget_says_whose_and_is_kept(
    make_app: MakeApp, recipes: Path
) -> None:
    (recipes / "two.yaml").write_text(
        "id: two\nsteps:\n  - {id: a, goal: Go on.}\n  - {id: b, goal: 'On {{ a }}.'}\n"
    )
    client = served(make_app, tokens_per_day=TOKENS)
    begun = await client.post("/runs", {"recipe": "two"})
    run = await client.ended(begun.json["run_id"])
    assert run["status"] == "limit_reached"
    view = (await client.get(f"/runs/{begun.json['run_id']}")).json
    assert "The daily limit tokens_per_day=15 is reached" in view["error"]["message"]
    resumed = await client.post(f"/runs/{begun.json['run_id']}/resume")
    assert resumed.status == 202  # it may have other work to do
    run = await client.ended(begun.json["run_id"])
    assert run["status"] == "limit_reached"


async def test_a_refused_request_starts_once_there_is_a_budget(make_app: MakeApp) -> None:
    client = served(make_app, user_tokens_per_day=TOKENS)
    await ran(client, user="ann")
    key = {"idempotency_key": "k1"}
    body = {"recipe": "asks", "user": "ann"}
    assert (await client.post("/runs", body, **key)).status == 429
    assert (await client.get("/runs")).json["total"] == 1


async def test_a_wrong_label_of_a_user_is_refused(make_app: MakeApp) -> None:
    client = served(make_app)
    for label, code in (("x" * 101, "bad-body"), ("", "bad-body"), ("a\nb", "bad-user")):
        reply = await client.post("/runs", {"recipe": "asks", "user": label})
        assert (reply.status, reply.json["code"]) == (422, code)


async def test_the_page_of_metrics_says_what_the_day_has_spent(make_app: MakeApp) -> None:
    client = served(make_app, tokens_per_day=100, user_tokens_per_day=100)
    await ran(client, user="ann")
    page = await client.ask("GET", "/metrics")
    lines = page.body.decode().splitlines()
    told = {"minions_day_budget_tokens_limit 100.0", "minions_day_budget_tokens_spent 15.0"}
    assert told < {*lines}
    assert b"ann" not in page.body


async def test_a_refused_run_is_counted_by_the_limit(make_app: MakeApp) -> None:
    client = served(make_app, tokens_per_day=TOKENS)
    await ran(client)
    assert (await client.post("/runs", {"recipe": "asks"})).status == 429
    page = (await client.ask("GET", "/metrics")).body
    assert b'minions_budget_refusals_total{limit="tokens_per_day"} 1' in page


async def test_a_budget_at_its_threshold_is_decided_over_http(make_app: MakeApp) -> None:
    """It waits among the approvals, with what it is about, and is raised by edited arguments."""
    budgets = Budgets(
        tokens_per_day=4 * TOKENS, threshold=0.5, on_threshold=OnThreshold.ASK, raise_to=2
    )
    settings = Settings(no_store=True, budgets=budgets)
    client = Client(make_app(answers=answering, settings=settings))
    assert [await ran(client) for _ in range(3)] == ["completed", "completed", "needs_decision"]
    (view,) = (await client.get("/approvals")).json["approvals"]
    assert (view["what"], view["tool"]) == ("approval", "budget")
    assert "30 of 60 tokens are used, 0 reserved, 30 left" in view["words"]
    said: dict[str, object] = {"decision": "approve", "digest": view["digest"]}
    refused = await client.post(
        f"/approvals/{view['id']}", {**said, "arguments": {"limit_tokens": 121}}
    )
    assert (refused.status, refused.json["code"]) == (422, "bad-arguments")
    taken = await client.post(
        f"/approvals/{view['id']}", {**said, "arguments": {"limit_tokens": 75}}
    )
    assert taken.status in (200, 202)
    assert (await client.ended(view["run_id"]))["status"] == "completed"
    assert [await ran(client) for _ in range(2)] == ["completed"] * 2
    spent = await client.post("/runs", {"recipe": "asks"})
    assert (spent.status, spent.json["code"]) == (429, "budget-spent")
