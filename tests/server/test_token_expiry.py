"""Tokens that expire: who is let in until when, and how what is open then ends."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from asgi_client import TOKEN, Client, Stream
from minions.data.errors import EnvironmentRefusedError, MinionsError, UsageError
from minions.interfaces.http.http_answers import Message, Receive, Send
from minions.interfaces.http.token_file import read_token_file
from minions.interfaces.http.tokens import EXPIRED, CallerToken
from minions.interfaces.server import access
from minions.interfaces.server.access import AccessMiddleware
from minions.interfaces.server.server_options import ServerOptions
from minions.testing.virtual_time import FakeClock
from served import Door, MakeApp
from typed_answers import Typing

LENT: Final = "a-token-that-expires"
OWN: Final = "a-token-that-does-not"
HOUR_S: Final = 3_600.0
Tokens: TypeAlias = tuple[CallerToken, ...]


@pytest.fixture(autouse=True)
def _frequent_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_LOOK_S", 0.01)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def tokens(clock: FakeClock) -> Tokens:
    expires = clock.now() + timedelta(seconds=HOUR_S)
    return (
        CallerToken.of("lent", LENT, ["admin"], expires=expires),
        CallerToken.of("own", OWN, ["admin"]),
    )


AS_LENT: Final = {"authorization": f"Bearer {LENT}"}
AS_OWN: Final = {"authorization": f"Bearer {OWN}"}


async def test_a_token_is_taken_until_the_moment_at_which_it_expires(
    make_app: MakeApp, clock: FakeClock, tokens: Tokens
) -> None:
    client = Client(make_app(clock=clock, tokens=tokens))
    clock.advance(HOUR_S - 0.001)
    assert (await client.get("/runs", **AS_LENT)).status == 200
    clock.advance(0.001)
    reply = await client.get("/runs", **AS_LENT)
    assert (reply.status, reply.json["code"]) == (401, "token-expired")
    assert "The token 'lent' expired at 2026-01-01T01:00:00Z" in reply.json["detail"]
    assert reply.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    wrong = await client.get("/runs", authorization="Bearer some-other-wrong-token")
    assert (wrong.status, wrong.json["code"]) == (401, "unauthorized")
    assert (await client.get("/runs", **AS_OWN)).status == 200


async def test_what_is_public_stays_so_for_a_token_that_has_expired(
    make_app: MakeApp, clock: FakeClock, tokens: Tokens
) -> None:
    client = Client(make_app(clock=clock, tokens=tokens))
    clock.advance(HOUR_S)
    for path in ("/", "/api/v1/health", "/.well-known/agent-card.json"):
        reply = await client.ask("GET", path, None, AS_LENT)
        assert reply.status == 200
        assert b"adds" not in reply.body


@pytest.mark.parametrize("date", ["Wed, 31 Dec 2025 00:00:00 GMT", "Fri, 31 Dec 2027 00:00:00 GMT"])
async def test_the_clock_of_a_caller_plays_no_part(
    make_app: MakeApp, clock: FakeClock, tokens: Tokens, date: str
) -> None:
    client = Client(make_app(clock=clock, tokens=tokens))
    assert (await client.get("/runs", date=date, **AS_LENT)).status == 200
    clock.advance(HOUR_S)
    assert (await client.get("/runs", date=date, **AS_LENT)).status == 401


async def test_a_caller_is_told_when_their_token_expires(
    make_app: MakeApp, clock: FakeClock, tokens: Tokens
) -> None:
    client = Client(make_app(clock=clock, tokens=tokens))
    lent, own = [await client.get("/system", **each) for each in (AS_LENT, AS_OWN)]
    assert lent.json["caller"]["expires"] == "2026-01-01T01:00:00+00:00"
    assert own.json["caller"]["expires"] is None


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/v1/models", None, "token-expired"),
        ("/v1/chat/completions", {"model": "chat", "messages": []}, "token-expired"),
        ("/api/v1/agents/chat/ag-ui", {}, "token-expired"),
        ("/a2a", {"jsonrpc": "2.0", "id": 1, "method": "ListTasks"}, "token-expired"),
        ("/metrics", None, "token-expired"),
    ],
)
async def test_every_door_names_the_reason_in_its_own_form(
    make_app: MakeApp, clock: FakeClock, tokens: Tokens, path: str, body: object, code: str
) -> None:
    client = Client(make_app(clock=clock, tokens=tokens))
    clock.advance(HOUR_S)
    reply = await client.ask("GET" if body is None else "POST", path, body, AS_LENT)
    assert reply.status == 401
    assert code in reply.body.decode()


# --- streams ----------------------------------------------------------------------------------


async def test_a_stream_of_a_run_ends_with_an_error_and_the_run_goes_on(
    make_app: MakeApp, clock: FakeClock, tokens: Tokens, door: Door
) -> None:
    client = Client(make_app(clock=clock, tokens=tokens))
    run_id = (await client.post("/runs", {"recipe": "waits"}, **AS_LENT)).json["run_id"]
    path = f"/runs/{run_id}/events"
    seen = []
    async with client.follow(path, **AS_LENT) as stream, client.follow(path, **AS_OWN) as other:
        await door.reached.wait()
        clock.advance(HOUR_S)
        seen = [each async for each in stream.events()]
        assert seen[-1].data["code"] == "token-expired"
        assert "expired at 2026-01-01T01:00:00Z" in seen[-1].data["message"]
        door.opened.set()
        assert [each async for each in other.events()][-1].type == "run_completed"
    assert [each.type for each in seen].count("error") == 1
    last = max(each.id or 0 for each in seen)
    async with client.follow(path, last_event_id=str(last), **AS_OWN) as rest:
        missed = [each async for each in rest.events()]
    assert missed[-1].type == "run_completed"
    assert all((each.id or last + 1) > last for each in missed)


async def test_a_reader_that_takes_nothing_is_cut_off_too(
    make_app: MakeApp, clock: FakeClock, tokens: Tokens, door: Door
) -> None:
    app = make_app(clock=clock, tokens=tokens)
    client = Client(app)
    run_id = (await client.post("/runs", {"recipe": "waits"}, **AS_LENT)).json["run_id"]
    async with client.follow(f"/runs/{run_id}/events", **AS_LENT) as stream:
        await door.reached.wait()
        stream.is_blocked.clear()
        clock.advance(HOUR_S)
        while app.app_state.channels.count:
            await client.get("/health")
        stream.is_blocked.set()
    door.opened.set()
    assert (await client.get("/runs", **AS_OWN)).status == 200


async def test_the_stream_of_changes_ends_with_an_error(
    make_app: MakeApp, clock: FakeClock, tokens: Tokens
) -> None:
    client = Client(make_app(clock=clock, tokens=tokens))
    async with client.follow("/changes", **AS_LENT) as stream:
        clock.advance(HOUR_S)
        assert [each async for each in stream.events()][-1].data["code"] == "token-expired"


async def _last_data(stream: Stream) -> str:
    blocks = [each for each in (await stream.read()).decode().split("\n\n") if "data: {" in each]
    return blocks[-1].rpartition("data: ")[2]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_chat_that_is_streamed_ends_with_an_error(
    make_app: MakeApp, clock: FakeClock, tokens: Tokens, path: str
) -> None:
    model = Typing()
    client = Client(make_app(clock=clock, tokens=tokens, model=model))
    said = [{"role": "user", "content": "hi"}]
    body = {"model": "chat", "stream": True, "messages": said}
    if path.endswith("responses"):
        body = {"model": "chat", "stream": True, "input": "hi"}
    async with client.stream("POST", path, body, AS_LENT) as stream:
        await model.is_asked.wait()
        clock.advance(HOUR_S)
        last = await _last_data(stream)
    assert "token-expired" in last
    assert '"error"' in last
    model.say("Hello", None)


async def test_an_answer_in_one_piece_is_refused_and_its_run_goes_on(
    make_app: MakeApp, clock: FakeClock, tokens: Tokens
) -> None:
    model = Typing()
    client = Client(make_app(clock=clock, tokens=tokens, model=model))
    body = {"model": "chat", "messages": [{"role": "user", "content": "hi"}]}
    asking = asyncio.ensure_future(client.ask("POST", "/v1/chat/completions", body, AS_LENT))
    await model.is_asked.wait()
    clock.advance(HOUR_S)
    reply = await asking
    assert (reply.status, reply.json["error"]["code"]) == (401, "token-expired")
    model.say("Hello", None)
    run_id = reply.headers["x-minions-run"]
    while (run := (await client.get(f"/runs/{run_id}", **AS_OWN)).json)["is_active"]:
        continue  # it ends by itself a moment later
    assert run["status"] == "completed"


async def test_a_run_of_ag_ui_ends_with_its_error(
    make_app: MakeApp, clock: FakeClock, tokens: Tokens, door: Door
) -> None:
    client = Client(make_app(clock=clock, tokens=tokens))
    body = {"threadId": "t1", "runId": "r1", "messages": []}
    path = "/api/v1/agents/waits/ag-ui"
    async with client.stream("POST", path, body, AS_LENT) as stream:
        await door.reached.wait()
        clock.advance(HOUR_S)
        last = json.loads(await _last_data(stream))
    assert (last["type"], last["code"]) == ("RUN_ERROR", "token-expired")
    door.opened.set()


@pytest.mark.parametrize("method", ["SendStreamingMessage", "SendMessage"])
async def test_a_task_of_a2a_ends_with_its_error(
    make_app: MakeApp, clock: FakeClock, tokens: Tokens, door: Door, method: str
) -> None:
    client = Client(make_app(clock=clock, tokens=tokens))
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"data": {}}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}
    headers = {"a2a-version": "1.0", **AS_LENT}
    asking = asyncio.ensure_future(client.ask("POST", "/a2a/waits", body, headers))
    await door.reached.wait()
    clock.advance(HOUR_S)
    text = (await asking).body.decode().strip().rpartition("\n\n")[2]
    error = json.loads(text.removeprefix("data: "))["error"]
    assert error["data"][0]["metadata"]["code"] == "token-expired"
    door.opened.set()


@pytest.mark.parametrize(
    ("method", "ends_calls", "is_told"),
    [("GET", True, True), ("POST", True, True), ("GET", False, True), ("POST", False, False)],
)
async def test_a_call_that_is_cancelled_when_its_caller_leaves_is_not_ended(
    clock: FakeClock, tokens: Tokens, method: str, ends_calls: bool, is_told: bool
) -> None:
    told: asyncio.Queue[Message] = asyncio.Queue()

    async def app(_scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        told.put_nowait(await receive())

    options, now = ServerOptions(token=TOKEN, tokens=tokens), clock.now
    client = Client(AccessMiddleware(app, options, {}, _shown, now, ends_calls=ends_calls))
    async with client.stream(method, "/mcp", {}, AS_LENT):
        clock.advance(HOUR_S)
        await asyncio.sleep(0.1)
        assert told.empty() is not is_told
    if is_told:
        assert told.get_nowait()[EXPIRED].error_code == "token-expired"


def _shown(_error: Exception) -> MinionsError:
    raise AssertionError("nothing goes wrong")


# --- the file ---------------------------------------------------------------------------------

TABLE: Final = '[[tokens]]\nname = "a"\ntoken = "at-least-16-characters"\nrole = "viewer"\n'


def test_the_file_gives_the_time_with_its_offset(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{TABLE}expires = 2026-12-31T01:00:00+01:00\n")
    path.chmod(0o600)
    (token,) = read_token_file(path).tokens
    assert token.expires is not None
    assert token.expires.isoformat() == "2026-12-31T01:00:00+01:00"


@pytest.mark.parametrize("value", ["2026-12-31T00:00:00", "2026-12-31", '"2026-12-31"', "1", "[]"])
def test_a_time_without_offset_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"{TABLE}expires = {value}\n")
    path.chmod(0o600)
    with pytest.raises(EnvironmentRefusedError, match="`expires` is a date and time with its"):
        read_token_file(path)


def test_a_token_of_a_program_has_a_time_with_an_offset(clock: FakeClock) -> None:
    with pytest.raises(UsageError, match="with its offset"):
        CallerToken.of("a", LENT, ["read"], expires=clock.now().replace(tzinfo=None))
