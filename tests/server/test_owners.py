"""A token of one user sees and acts on what is theirs: every operation, of each and of none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

import pytest
import pytest_asyncio
from attrs import frozen

from asgi_client import Client, Reply
from minions.adapters.models.scripted import ScriptedModel
from minions.interfaces.http.tokens import CallerToken
from minions.interfaces.server.app import api_document
from patience import HANG_S
from served import MakeApp

OWN: Final = ("read", "run", "decide", "admin")
USERS: Final = ("ann", "bob")
TOKENS: Final = {
    "ann": CallerToken.of("ann", "a-token-of-user-ann", OWN, user="ann"),
    "bob": CallerToken.of("bob", "a-token-of-user-bob", OWN, user="bob"),
    "eve": CallerToken.of("eve", "a-token-of-user-eve", [*OWN, "all"], user="eve"),
}


class Operation(NamedTuple):
    """One operation as the document has it."""

    name: str
    method: str
    path: str

    @property
    def is_of_something(self) -> bool:
        """Whether it is about one run, session or decision."""
        return any(each in self.path for each in ("{run_id}", "{session_id}", "{approval_id}"))


def operations() -> Iterator[Operation]:
    paths = cast("Mapping[str, Mapping[str, Any]]", api_document()["paths"])  # Any: JSON
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield Operation(operation["operationId"], method.upper(), path)


OPERATIONS: Final = tuple(operations())
ABOUT: Final = tuple(each for each in OPERATIONS if each.is_of_something)
QUERIES: Final = {
    "listRunItems": "?step=sign",
    "getRunStep": "?address=sum",
    "getRunValue": "?at=/status",
    "searchRun": "?text=treaty",
    "deleteSteps": "?start_seq=1",
}
BODIES: Final[Mapping[str, Mapping[str, object]]] = {
    "retryRun": {"from_step": "sign"},
    "rollBackFiles": {"dry_run": True},
    "markOutput": {"verdict": "good"},
    "decideRun": {"decision": "reject", "reason": "no"},
    "decide": {"decision": "reject", "reason": "no"},
    "sendMessage": {"content": "Hello"},
    "retrySession": {"sequence": 2},
    "forkSession": {"sequence": 1},
}


@frozen
class Things:
    """What one user has."""

    run_id: str
    session_id: str
    approval_id: str
    waiting_id: str
    key: str


def by(user: str) -> dict[str, str | None]:
    return {"authorization": f"Bearer a-token-of-user-{user}"}


NOBODYS: Final = Things("run_none", "ses_none", "run_none.x", "run_none", "none")


@frozen
class House:
    """A server at which two users have been."""

    client: Client
    things: Mapping[str, Things]

    async def ask(self, user: str, operation: Operation, things: Things) -> Reply:
        decides = operation.name in ("decideRun", "cancelRun", "resumeRun")
        path = operation.path.replace("{run_id}", things.waiting_id if decides else things.run_id)
        path = path.replace("{session_id}", things.session_id)
        path = path.replace("{approval_id}", things.approval_id).replace("{sequence}", "1")
        path += QUERIES.get(operation.name, "")
        body = BODIES.get(operation.name) if operation.method == "POST" else None
        return await self.told(user, operation.method, path, body)

    async def told(self, user: str, method: str, path: str, body: object = None) -> Reply:
        async with self.client.stream(method, path, body, by(user)) as stream:
            if stream.headers.get("content-type") == "text/event-stream":
                return Reply(stream.status, stream.headers, b"{}")  # perhaps without an end
            text = await asyncio.wait_for(stream.read(), HANG_S)
            return Reply(stream.status, stream.headers, text)


async def begun(client: Client, user: str) -> Things:
    async def ask(path: str, body: object) -> Mapping[str, Any]:  # Any: JSON
        reply = await client.ask("POST", f"/api/v1{path}", body, by(user))
        assert reply.status in (200, 201, 202), reply.body
        return cast("Mapping[str, Any]", reply.json) if reply.body[:1] == b"{" else {}

    run = await ask("/runs", {"recipe": "adds", "inputs": {"a": 41}})
    waiting = await ask("/runs", {"recipe": "signs", "inputs": {"text": f"a treaty of {user}"}})
    session = (await ask("/sessions", {"recipe": "chat", "name": f"talk of {user}"}))["id"]
    await ask(f"/sessions/{session}/messages", {"content": f"I am {user}"})
    await client.ended(run["run_id"])
    await client.ended(waiting["run_id"])
    listed = await client.ask("GET", "/api/v1/approvals", None, by(user))
    (approval,) = listed.json["approvals"]
    return Things(run["run_id"], session, approval["id"], waiting["run_id"], user)


@pytest_asyncio.fixture
async def house(make_app: MakeApp) -> AsyncIterator[House]:
    model = ScriptedModel(lambda _prompt: "Hello.")
    client = Client(make_app(tokens=tuple(TOKENS.values()), model=model))
    yield House(client, {user: await begun(client, user) for user in USERS})


def neutral(reply: Reply, things: Things) -> tuple[int, str]:
    text = reply.body.decode()
    for each in (things.approval_id, things.run_id, things.waiting_id, things.session_id):
        text = text.replace(each, "…")
    return reply.status, text


@pytest.mark.parametrize("operation", ABOUT, ids=lambda each: each.name)
async def test_what_is_anothers_is_not_there_for_any_operation(
    house: House, operation: Operation
) -> None:
    """A-150."""
    bobs = house.things["bob"]
    none = neutral(await house.ask("ann", operation, NOBODYS), NOBODYS)
    assert none[0] == 404
    assert neutral(await house.ask("ann", operation, bobs), bobs) == none
    mine = await house.ask("ann", operation, house.things["ann"])
    assert (mine.status, b"unknown-run" in mine.body) != (404, True)
    assert mine.status < 500
    assert mine.status not in (401, 403, 404), mine.body


@pytest.mark.parametrize("operation", ABOUT, ids=lambda each: each.name)
async def test_the_scope_all_widens_every_operation(house: House, operation: Operation) -> None:
    """A-150."""
    reply = await house.ask("eve", operation, house.things["bob"])
    assert reply.status not in (401, 403, 404), reply.body


LISTS: Final = (
    "/runs",
    "/runs?text=treaty",
    "/runs?status=needs_decision",
    "/runs?user=bob",
    "/runs?q=user:bob",
    "/runs?q=treaty",
    "/approvals",
    "/sessions",
    "/sessions?text=talk",
)


OF_ALL: Final = (
    *("/workers", "/queues", "/queues/runs", "/schedules", "/deployments"),
    *("/batches", "/evaluations"),
)


@pytest.mark.parametrize("path", LISTS)
async def test_lists_and_their_totals_are_of_the_callers_own(house: House, path: str) -> None:
    """A-150."""
    told = await house.told("ann", "GET", f"/api/v1{path}")
    name = next(each for each in ("runs", "approvals", "sessions") if each in told.json)
    assert told.json["total"] == len(told.json[name])
    bobs = house.things["bob"]
    for each in (bobs.run_id, bobs.session_id, bobs.waiting_id, "of bob", "am bob"):
        assert each not in told.body.decode()
    assert (told.json["total"] > 0) is ("user=bob" not in path and "user:bob" not in path)
    both = await house.told("eve", "GET", f"/api/v1{path}")
    assert bobs.waiting_id in both.body.decode() or bobs.session_id in both.body.decode()


async def test_every_list_is_looked_at() -> None:
    """A new list of runs, sessions or decisions has its line in `LISTS`."""
    found = {
        each.path
        for each in OPERATIONS
        if each.method == "GET" and not each.is_of_something and "{" not in each.path
    }
    listed = {f"/api/v1{path.partition('?')[0]}" for path in LISTS}
    nobodys = {f"/api/v1/{each}" for each in ("agents", "recipes", "system", "health", "ready")}
    nobodys |= {"/v1/models", "/.well-known/agent-card.json"}
    of_all = {"", "/runs", "/sessions", "/approvals"}  # see `test_project_databases.py`
    nobodys |= {f"/api/v1/projects{each}" for each in of_all}
    nobodys.add("/api/v1/costs")  # see `test_numbers_of_others_are_not_told`
    assert found - nobodys - {f"/api/v1{each}" for each in OF_ALL} == listed


@pytest.mark.parametrize("path", OF_ALL)
async def test_what_counts_the_runs_of_all_users_needs_the_scope_all(
    house: House, path: str
) -> None:
    """A-150."""
    refused = await house.told("ann", "GET", f"/api/v1{path}")
    assert (refused.status, refused.json["code"]) == (403, "missing-scope")
    assert (await house.told("eve", "GET", f"/api/v1{path}")).status == 200


@pytest.mark.parametrize("word", ["pause", "resume"])
async def test_a_schedule_is_set_by_nobody_who_sees_one_users_runs_alone(
    house: House, word: str
) -> None:
    refused = await house.told("ann", "POST", f"/api/v1/schedules/none/{word}")
    assert (refused.status, refused.json["code"]) == (403, "missing-scope")
    assert (await house.told("eve", "POST", f"/api/v1/schedules/none/{word}")).status == 404


@pytest.mark.parametrize("path", ["/runs", "/agents/adds/run"])
async def test_nobody_begins_a_run_in_anothers_session(house: House, path: str) -> None:
    """A-150."""
    body = {"inputs": {"a": 1}} | ({"recipe": "adds"} if path == "/runs" else {})
    for things in (house.things["bob"], NOBODYS):
        reply = await house.told(
            "ann", "POST", f"/api/v1{path}", {**body, "session": things.session_id}
        )
        assert (reply.status, reply.json["code"]) == (404, "unknown-session")
        assert not reply.json["suggestions"]


async def test_relatives_of_a_session_are_the_callers_own(house: House) -> None:
    """A-150."""
    bobs = house.things["bob"].session_id
    reply = await house.told("ann", "GET", f"/api/v1/sessions?tree={bobs}")
    assert (reply.status, reply.json["code"]) == (404, "unknown-session")
    fork = await house.told("bob", "POST", f"/api/v1/sessions/{bobs}/fork", {"sequence": 1})
    tree = await house.told("bob", "GET", f"/api/v1/sessions?tree={bobs}")
    assert fork.json["new_session_id"] in tree.body.decode()
    assert tree.json["total"] == 2


async def test_what_changes_for_others_is_not_told(house: House) -> None:
    """A-150."""
    async with house.client.stream("GET", "/api/v1/changes", None, by("ann")) as stream:
        events = stream.events()
        first = await anext(events)
        assert (first.type, first.data["total"]) == ("approvals_changed", 1)
        await house.told("bob", "POST", "/api/v1/runs", {"recipe": "signs"})
        await house.told("ann", "POST", "/api/v1/runs", {"recipe": "signs"})
        told = [await anext(events), await anext(events)]
        assert {each.type for each in told} == {"runs_changed", "approvals_changed"}
        assert {each.data.get("total") for each in told} <= {None, 1, 2}


async def test_numbers_of_others_are_not_told(house: House) -> None:
    """A-150."""
    mine = await house.told("ann", "GET", "/api/v1/system")
    assert mine.json["active_runs"] == 0
    assert "followers" not in mine.json or mine.json["followers"] is None
    costs = [await house.told(user, "GET", "/api/v1/costs") for user in ("ann", "eve")]
    listed = [await house.told(user, "GET", "/api/v1/runs") for user in ("ann", "eve")]
    assert [each.json["counted"] for each in costs] == [each.json["total"] for each in listed]
    assert costs[0].json["counted"] < costs[1].json["counted"]
    metrics = await house.told("ann", "GET", "/metrics")
    assert (metrics.status, metrics.json["code"]) == (403, "missing-scope")
    assert (await house.told("eve", "GET", "/metrics")).status == 200


async def test_the_same_key_of_another_user_is_another_run(house: House) -> None:
    """A-150."""
    made = []
    for user in USERS:
        named: dict[str, str | None] = {**by(user), "idempotency-key": "one"}
        body = {"recipe": "adds", "inputs": {"a": 1}}
        made.append(await house.client.ask("POST", "/api/v1/runs", body, named))
        made.append(await house.client.ask("POST", "/api/v1/runs", body, named))
    assert [each.status for each in made] == [202] * 4
    assert made[0].json["run_id"] == made[1].json["run_id"] != made[2].json["run_id"]


async def test_a_run_of_nobody_is_the_operators(house: House) -> None:
    """A-150."""
    begun = await house.client.post("/runs", {"recipe": "adds", "inputs": {"a": 1}})
    run_id = begun.json["run_id"]
    await house.client.ended(run_id)
    assert (await house.told("ann", "GET", f"/api/v1/runs/{run_id}")).status == 404
    assert (await house.told("eve", "GET", f"/api/v1/runs/{run_id}")).status == 200
    assert (await house.client.get(f"/runs/{run_id}")).status == 200


async def test_a_session_that_an_application_opens_for_a_user_is_theirs(house: House) -> None:
    """A-150."""
    opened = await house.client.post("/sessions", {"recipe": "chat", "user": "ann"})
    session = opened.json["id"]
    assert opened.json["user"] == "ann"
    path = f"/api/v1/sessions/{session}"
    assert (await house.told("ann", "GET", path)).status == 200
    assert (await house.told("bob", "GET", path)).status == 404
    as_bob = await house.client.post(
        f"/sessions/{session}/messages", {"content": "a", "user": "bob"}
    )
    assert (as_bob.status, as_bob.json["code"]) == (403, "other-user")
    said = await house.client.post(f"/sessions/{session}/messages", {"content": "a"})
    assert said.status == 200
    runs = await house.told("ann", "GET", f"/api/v1/runs?session={session}")
    assert [each["user"] for each in runs.json["runs"]] == ["ann"]
    forked = await house.client.post(f"/sessions/{session}/fork", {"sequence": 1})
    fork = f"/api/v1/sessions/{forked.json['new_session_id']}"
    assert (await house.told("ann", "GET", fork)).status == 200


async def test_a_token_opens_sessions_for_its_own_user_alone(house: House) -> None:
    refused = await house.told("ann", "POST", "/api/v1/sessions", {"recipe": "chat", "user": "bob"})
    assert (refused.status, refused.json["code"]) == (403, "other-user")
