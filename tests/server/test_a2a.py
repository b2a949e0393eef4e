"""Recipes as skills of an agent of A2A: cards, tasks, what they wait for, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from asgi_client import Client, Reply
from minions.adapters.models.script_items import tool_request
from minions.interfaces.http.tokens import CallerToken, TokenScope, digest_of
from patience import HANG_S
from served import RECIPES, Door, MakeApp
from serving import EXTENSIONS, Serving
from typed_answers import Typing

Json = dict[str, Any]  # Any: JSON, compared by the test

VERSION: Final = {"a2a-version": "1.0"}


def message(*parts: object, message_id: str = "m1", **more: Any) -> Json:
    """What `SendMessage` is sent; a text is a part with it, an object one with data."""
    sent = [{"text": each} if isinstance(each, str) else {"data": each} for each in parts]
    return {"message": {"messageId": message_id, "role": "ROLE_USER", "parts": sent, **more}}


async def call(
    client: Client,
    method: str,
    params: object = None,
    *,
    recipe: str | None = None,
    headers: Mapping[str, str | None] | None = None,
) -> Reply:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params or {}}
    path = "/a2a" if recipe is None else f"/a2a/{recipe}"
    return await client.ask("POST", path, body, {**VERSION, **(headers or {})})


async def result(client: Client, method: str, params: object = None, **more: Any) -> Json:
    reply = await call(client, method, params, **more)
    assert reply.status == 200, reply.body
    assert set(reply.json) == {"jsonrpc", "id", "result"}, reply.json
    assert (reply.json["jsonrpc"], reply.json["id"]) == ("2.0", 7)
    return dict(reply.json["result"])


async def task(client: Client, *parts: object, recipe: str, **more: Any) -> Json:
    told = await result(client, "SendMessage", message(*parts, **more), recipe=recipe)
    return dict(told["task"])


async def error(client: Client, method: str, params: object = None, **more: Any) -> Json:
    reply = await call(client, method, params, **more)
    assert reply.status == 200, reply.body
    assert (reply.json["id"], set(reply.json)) == (7, {"jsonrpc", "id", "error"}), reply.json
    return dict(reply.json["error"])


def code_of(told: Json) -> tuple[int, str]:
    """The code of the protocol and ours."""
    (info,) = told["data"]
    return told["code"], info["metadata"]["code"]


def answers_in(body: bytes) -> Sequence[Json]:
    blocks = body.decode().split("\n\n")
    return [json.loads(each[6:]) for each in blocks if each.startswith("data: ")]


async def stream(client: Client, params: object, recipe: str) -> Sequence[Json]:
    reply = await call(client, "SendStreamingMessage", params, recipe=recipe)
    assert reply.headers["content-type"] == "text/event-stream"
    found = answers_in(reply.body)
    assert all(each["id"] == 7 for each in found)
    return [each["result"] for each in found]


def states_in(results: Sequence[Json]) -> list[str]:
    return [each["statusUpdate"]["status"]["state"] for each in results if "statusUpdate" in each]


# --- cards ---------------------------------------------------------------------------------------


async def test_the_card_names_recipes_to_whoever_has_a_token(make_app: MakeApp) -> None:
    client = Client(make_app())
    path = "/.well-known/agent-card.json"
    card = (await client.ask("GET", path)).json
    assert {each["id"] for each in card["skills"]} == {"adds", "asks", "chat", "signs", "waits"}
    assert card["supportedInterfaces"] == [
        {"url": "http://localhost/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ]
    assert card["securitySchemes"]["token"]["httpAuthSecurityScheme"]["scheme"] == "Bearer"
    stranger = await client.ask("GET", path, None, {"authorization": None})
    assert (stranger.status, [each["id"] for each in stranger.json["skills"]]) == (200, ["recipes"])
    assert b"adds" not in stranger.body
    assert await result(client, "GetExtendedAgentCard") == card


async def test_a_recipe_is_an_agent_of_its_own(make_app: MakeApp) -> None:
    client = Client(make_app())
    path = "/a2a/adds/.well-known/agent-card.json"
    card = (await client.ask("GET", path)).json
    assert (card["name"], card["description"]) == ("adds", "Adds two numbers.")
    assert card["supportedInterfaces"][0]["url"] == "http://localhost/a2a/adds"
    (skill,) = card["skills"]
    assert (skill["id"], skill["inputModes"]) == ("adds", ["application/json"])
    assert (await client.ask("GET", path, None, {"authorization": None})).status == 401
    missing = await client.ask("GET", "/a2a/none/.well-known/agent-card.json")
    assert (missing.status, missing.json["code"]) == (404, "recipe-not-found")
    assert await result(client, "GetExtendedAgentCard", recipe="adds") == card


# --- tasks ---------------------------------------------------------------------------------------


async def test_a_message_begins_a_task_and_its_output_is_an_artifact(make_app: MakeApp) -> None:
    client = Client(make_app())
    done = await task(client, {"a": 2, "b": 3}, recipe="adds")
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    (artifact,) = done["artifacts"]
    assert artifact["parts"] == [
        {"data": 5, "mediaType": "application/json"},
        {"text": "5", "mediaType": "text/plain"},
    ]
    run = (await client.get(f"/runs/{done['id']}")).json
    assert (run["session_id"], run["output"]) == (done["contextId"], 5)
    again = await result(client, "GetTask", {"id": done["id"]})
    assert again == done


async def test_a_message_names_its_recipe_where_the_address_does_not(make_app: MakeApp) -> None:
    client = Client(make_app())
    sent = message({"a": 2}, metadata={"skill": "adds"})
    assert (await result(client, "SendMessage", sent))["task"]["artifacts"]
    unnamed = await error(client, "SendMessage", message({"a": 2}, message_id="m2"))
    assert code_of(unnamed) == (-32602, "bad-body")
    assert "params.message.metadata.skill" in unnamed["message"]
    other = message({"a": 2}, message_id="m3", metadata={"skill": "chat"})
    assert code_of(await error(client, "SendMessage", other, recipe="adds"))[0] == -32602


async def test_a_repeated_message_is_the_same_task(make_app: MakeApp) -> None:
    client = Client(make_app(answers=["Good day."]))
    first = await task(client, "Hello", recipe="chat")
    assert await task(client, "Hello", recipe="chat") == first
    other = await error(client, "SendMessage", message("Bye"), recipe="chat")
    assert code_of(other) == (-32602, "idempotency-mismatch")


async def test_a_context_is_a_session_that_the_next_message_continues(make_app: MakeApp) -> None:
    client = Client(make_app(answers=["one", "two"]))
    first = await task(client, "Hello", recipe="chat")
    sent = message("And?", message_id="m2", contextId=first["contextId"])
    second = (await result(client, "SendMessage", sent))["task"]  # its session names the recipe
    assert second["contextId"] == first["contextId"]
    assert second["id"] != first["id"]
    asked = {"id": second["id"], "historyLength": 5}
    history = (await result(client, "GetTask", asked))["history"]
    assert [(each["role"], each["parts"][0]["text"]) for each in history] == [
        ("ROLE_USER", "And?"),
        ("ROLE_AGENT", "two"),
    ]
    unknown = await error(
        client, "SendMessage", message("x", message_id="m3", contextId="mine"), recipe="chat"
    )
    assert code_of(unknown) == (-32602, "unknown-session")


async def test_a_stream_has_the_task_its_words_and_its_end(make_app: MakeApp) -> None:
    answers = [tool_request("look", {"text": "it"}), "I looked."]
    client = Client(make_app(answers=answers))
    results = await stream(client, message("Look!"), "chat")
    assert results[0]["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
    assert states_in(results) == ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]
    artifacts = [each["artifactUpdate"] for each in results if "artifactUpdate" in each]
    assert "".join(each["artifact"]["parts"][0]["text"] for each in artifacts[:-1]) == "I looked."
    assert [each["append"] for each in artifacts[:-1]] == [False] + [True] * (len(artifacts) - 2)
    assert (artifacts[-1]["append"], artifacts[-1]["lastChunk"]) == (False, True)
    assert artifacts[-1]["artifact"]["parts"][0]["text"] == "I looked."
    usage = results[-1]["statusUpdate"]["metadata"]["usage"]
    assert usage["total_tokens"] > 0


async def test_each_piece_is_sent_when_it_comes(make_app: MakeApp) -> None:
    model = Typing()
    client = Client(make_app(model=model))
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message("hi")}
    async with client.stream("POST", "/a2a/chat", body, VERSION) as sent:
        chunks = sent.chunks()
        await model.is_asked.wait()
        seen = b""
        for word in ("Good ", "day"):
            model.say(word)
            while word.encode() not in seen:
                seen += await anext(chunks)
        model.say(None)
        rest = b"".join([chunk async for chunk in chunks])
    assert b"TASK_STATE_COMPLETED" in rest
    told = [each["result"].get("artifactUpdate") for each in answers_in(seen + rest)]
    pieces = [
        (each["append"], each["artifact"]["parts"][0]["text"]) for each in told if each is not None
    ]
    assert pieces == [(False, "Good "), (True, "day"), (False, "Good day")]


async def test_a_failed_run_is_a_failed_task_that_says_why(
    make_app: MakeApp, recipes: Path
) -> None:
    (recipes / "fails.yaml").write_text('id: fails\nsteps: [{id: a, assert: "1 == 2"}]\n')
    client = Client(make_app())
    failed = await task(client, {}, recipe="fails")
    assert failed["status"]["state"] == "TASK_STATE_FAILED"
    assert "1 == 2" in failed["status"]["message"]["parts"][0]["text"]
    assert failed["metadata"]["code"] == "assertion-failed"
    assert "artifacts" not in failed


async def test_a_caller_that_goes_away_loses_nothing(make_app: MakeApp, door: Door) -> None:

    client = Client(make_app())
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message({})}
    async with client.stream("POST", "/a2a/waits", body, VERSION) as sent:
        first = answers_in(await anext(sent.chunks()))[0]["result"]["task"]
        await door.reached.wait()
    asked = {"id": first["id"]}
    assert (await result(client, "GetTask", asked))["status"]["state"] == "TASK_STATE_WORKING"
    body = {"jsonrpc": "2.0", "id": 2, "method": "SubscribeToTask", "params": asked}
    async with client.stream("POST", "/a2a", body, VERSION) as sent:
        chunks = sent.chunks()
        (now,) = answers_in(await anext(chunks))
        assert now["result"]["task"]["status"]["state"] == "TASK_STATE_WORKING"
        door.opened.set()
        rest = answers_in(b"".join([chunk async for chunk in chunks]))
    results = [each["result"] for each in rest]
    assert states_in(results)[-1] == "TASK_STATE_COMPLETED"
    assert results[-2]["artifactUpdate"]["artifact"]["parts"][0]["text"] == "through"
    over = await error(client, "SubscribeToTask", asked)
    assert code_of(over) == (-32004, "run-ended")


async def test_a_stream_that_is_cut_says_so_and_names_its_task(
    make_app: MakeApp, door: Door
) -> None:
    app = make_app()
    client = Client(app)
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message({})}
    async with client.stream("POST", "/a2a/waits", body, VERSION) as sent:
        chunks = sent.chunks()
        first = answers_in(await anext(chunks))[0]["result"]["task"]
        await door.reached.wait()
        app.app_state.channels.close_session(first["contextId"])
        *_, last = answers_in(b"".join([chunk async for chunk in chunks]))
    assert code_of(last["error"]) == (-32603, "stream-cut")
    assert first["id"] in last["error"]["message"]
    door.opened.set()
    assert (await client.ended(first["id"]))["status"] == "completed"


async def test_more_streams_than_there_is_room_for_are_refused_and_begin_nothing(
    make_app: MakeApp, door: Door
) -> None:
    client = Client(make_app(max_followers=1))
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": message({})}
    async with client.stream("POST", "/a2a/waits", body, VERSION):
        await door.reached.wait()
        for method in ("SendStreamingMessage", "SendMessage"):
            reply = await call(client, method, message({}, message_id="m2"), recipe="waits")
            assert (reply.status, reply.headers["retry-after"]) == (503, "5")
            assert code_of(reply.json["error"]) == (-32603, "too-many-followers")
    assert (await client.get("/runs")).json["total"] == 1
    door.opened.set()


async def test_a_task_can_be_cancelled_once(make_app: MakeApp, door: Door) -> None:

    client = Client(make_app())
    params = {**message({}), "configuration": {"returnImmediately": True}}
    begun = (await result(client, "SendMessage", params, recipe="waits"))["task"]
    assert begun["status"]["state"] == "TASK_STATE_SUBMITTED"
    await door.reached.wait()
    cancelled = await result(client, "CancelTask", {"id": begun["id"]})
    assert cancelled["status"]["state"] == "TASK_STATE_CANCELED"
    again = await error(client, "CancelTask", {"id": begun["id"]})
    assert code_of(again) == (-32002, "run-over")


async def test_tasks_are_listed_in_pages(make_app: MakeApp) -> None:
    client = Client(make_app())
    ids = [(await task(client, {"a": a}, recipe="adds", message_id=str(a)))["id"] for a in (1, 2)]
    await task(client, {}, recipe="signs", message_id="s")
    first = await result(client, "ListTasks", {"pageSize": 1}, recipe="adds")
    assert ([each["id"] for each in first["tasks"]], first["totalSize"]) == ([ids[1]], 2)
    assert "artifacts" not in first["tasks"][0]
    more = {"pageSize": 1, "pageToken": first["nextPageToken"], "includeArtifacts": True}
    second = await result(client, "ListTasks", more, recipe="adds")
    assert ([each["id"] for each in second["tasks"]], second["nextPageToken"]) == ([ids[0]], "")
    assert second["tasks"][0]["artifacts"]
    waiting = await result(client, "ListTasks", {"status": "TASK_STATE_INPUT_REQUIRED"})
    assert [each["metadata"]["skill"] for each in waiting["tasks"]] == ["signs"]


# --- what a task waits for -----------------------------------------------------------------------


async def waiting(client: Client, recipe: str) -> tuple[Json, Json]:
    """A task that waits, and the decision that it asks for."""
    asked = await task(client, {}, recipe=recipe)
    assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    text, data = asked["status"]["message"]["parts"]
    assert text["text"]
    (decision,) = data["data"]["decisions"]
    return asked, dict(decision)


async def decide(client: Client, asked: Json, *parts: object) -> Reply:
    sent = message(*parts, message_id="m2", taskId=asked["id"])
    return await call(client, "SendMessage", sent)


async def test_an_approval_is_given_by_the_next_message(make_app: MakeApp) -> None:
    client = Client(make_app())
    asked, decision = await waiting(client, "signs")
    assert (decision["what"], decision["tool"]) == ("approval", "sign")
    assert json.loads(decision["arguments"]) == {"text": "a treaty"}
    assert await result(client, "GetTask", {"id": asked["id"]}) == asked
    approval = {"decision": "approve", "digest": decision["digest"], "id": decision["id"]}
    done = (await decide(client, asked, approval)).json["result"]["task"]
    assert done["id"] == asked["id"]
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert done["artifacts"][0]["parts"][0]["text"] == "sign: a treaty"
    late = await decide(client, asked, approval)
    assert code_of(late.json["error"]) == (-32004, "run-ended")


async def test_a_rejection_has_its_reason(make_app: MakeApp) -> None:
    client = Client(make_app())
    asked, decision = await waiting(client, "signs")
    rejection = {"decision": "reject", "digest": decision["digest"], "reason": "Too early."}
    failed = (await decide(client, asked, rejection)).json["result"]["task"]
    assert failed["status"]["state"] == "TASK_STATE_FAILED"
    assert "Too early." in failed["status"]["message"]["parts"][0]["text"]


@pytest.mark.parametrize("parts", [("3",), ({"decision": "answer", "value": 3},)])
async def test_a_question_is_answered_by_a_text_or_by_data(
    make_app: MakeApp, parts: tuple[object, ...]
) -> None:
    client = Client(make_app())
    asked, decision = await waiting(client, "asks")
    assert (decision["question"], decision["form"]["type"]) == ("How many?", "integer")
    wrong = await decide(client, asked, "none")
    assert code_of(wrong.json["error"]) == (-32602, "bad-answer")
    done = (await decide(client, asked, *parts)).json["result"]["task"]
    assert done["artifacts"][0]["parts"][0]["data"] == 3


async def test_a_decision_that_is_none_decides_nothing(make_app: MakeApp) -> None:
    client = Client(make_app())
    asked, decision = await waiting(client, "signs")
    for part, refusal in (
        ("yes", (-32602, "bad-body")),
        ({"decision": "maybe"}, (-32602, "bad-body")),
        ({"decision": "approve"}, (-32602, "bad-decision")),
        ({"decision": "approve", "digest": "0"}, (-32004, "other-arguments")),
        ({"decision": "approve", "digest": "0", "id": "x"}, (-32602, "unknown-approval")),
    ):
        told = (await decide(client, asked, part)).json["error"]
        assert code_of(told) == refusal, part
        assert "data part" in told["message"] or refusal[1] != "bad-body"
    sent = message({"decision": "approve"}, taskId=asked["id"], contextId="ses_other")
    assert code_of(await error(client, "SendMessage", sent)) == (-32602, "bad-body")
    other = message({"decision": "approve"}, taskId=asked["id"])
    of_another = await error(client, "SendMessage", other, recipe="asks")
    assert code_of(of_another) == (-32001, "unknown-run")
    assert (await client.get("/approvals")).json["total"] == 1
    assert decision["digest"]


async def test_a_reader_of_a_waiting_task_sees_what_follows_the_decision(
    make_app: MakeApp,
) -> None:
    client = Client(make_app())
    asked, decision = await waiting(client, "asks")
    body = {"jsonrpc": "2.0", "id": 2, "method": "SubscribeToTask", "params": {"id": asked["id"]}}
    async with client.stream("POST", "/a2a", body, VERSION) as sent:
        chunks = sent.chunks()
        (now,) = answers_in(await anext(chunks))
        assert now["result"]["task"]["status"] == asked["status"]
        await decide(client, asked, "4")
        rest = answers_in(b"".join([chunk async for chunk in chunks]))
    assert states_in([each["result"] for each in rest])[-1] == "TASK_STATE_COMPLETED"
    assert decision["id"]


# --- who may -------------------------------------------------------------------------------------


async def test_another_user_s_tasks_are_not_there(make_app: MakeApp) -> None:
    scopes = {TokenScope.READ, TokenScope.RUN, TokenScope.DECIDE}
    tokens = tuple(
        CallerToken(name=name, sha256=digest_of(name * 20), scopes=scopes, user=name)
        for name in ("a", "b")
    )
    client = Client(make_app(tokens=tokens))
    by = {name: {"authorization": f"Bearer {name * 20}"} for name in ("a", "b")}
    params = message({"text": "of a"})
    mine = (await result(client, "SendMessage", params, recipe="signs", headers=by["a"]))["task"]
    theirs = (await result(client, "SendMessage", params, recipe="signs", headers=by["b"]))["task"]
    assert mine["id"] != theirs["id"]
    for method in ("GetTask", "CancelTask", "SubscribeToTask"):
        told = await error(client, method, {"id": mine["id"]}, headers=by["b"])
        assert code_of(told) == (-32001, "unknown-run"), method
    sent = message({"decision": "approve"}, taskId=mine["id"])
    told = await error(client, "SendMessage", sent, headers=by["b"])
    assert code_of(told) == (-32001, "unknown-run")
    sent = message({}, message_id="m2", contextId=mine["contextId"])
    told = await error(client, "SendMessage", sent, recipe="signs", headers=by["b"])
    assert code_of(told) == (-32602, "unknown-session")
    listed = await result(client, "ListTasks", headers=by["b"])
    assert [each["id"] for each in listed["tasks"]] == [theirs["id"]]


@pytest.mark.parametrize(
    ("method", "scope"),
    [
        ("SendMessage", "run"),
        ("SendStreamingMessage", "run"),
        ("GetTask", "read"),
        ("ListTasks", "read"),
        ("CancelTask", "run"),
        ("SubscribeToTask", "read"),
        ("GetExtendedAgentCard", "read"),
    ],
)
async def test_a_method_needs_the_scope_of_what_it_does(
    make_app: MakeApp, method: str, scope: str
) -> None:
    lacking = CallerToken(
        name="n", sha256=digest_of("n" * 20), scopes=set(TokenScope) - {"admin", "all", scope}
    )
    client = Client(make_app(tokens=(lacking,)))
    params = message({}) if method.startswith("Send") else {"id": "run_1"}
    headers = {"authorization": f"Bearer {'n' * 20}"}
    reply = await call(client, method, params, recipe="signs", headers=headers)
    assert reply.status == 403
    assert code_of(reply.json["error"]) == (-32600, "missing-scope")


async def test_a_decision_needs_the_scope_decide(make_app: MakeApp) -> None:
    runner = CallerToken(name="r", sha256=digest_of("r" * 20), scopes={TokenScope.RUN})
    client = Client(make_app(tokens=(runner,)))
    asked, decision = await waiting(client, "signs")
    sent = message({"decision": "approve", "digest": decision["digest"]}, taskId=asked["id"])
    headers = {"authorization": f"Bearer {'r' * 20}"}
    reply = await call(client, "SendMessage", sent, headers=headers)
    assert (reply.status, code_of(reply.json["error"])) == (403, (-32600, "missing-scope"))


# --- what is refused, and what is passed over ----------------------------------------------------


@pytest.mark.parametrize(
    ("method", "params", "refusal"),
    [
        ("message/send", {}, (-32601, "unknown-method")),
        ("GetTask", {"id": "run_none"}, (-32001, "unknown-run")),
        ("GetTask", {}, (-32602, "bad-body")),
        ("GetTask", {"id": 3}, (-32602, "bad-body")),
        ("GetTask", {"id": "x", "historyLength": -1}, (-32602, "bad-body")),
        ("GetTask", {"id": "x", "tenant": "t"}, (-32602, "bad-body")),
        ("CancelTask", {"id": "run_none"}, (-32001, "unknown-run")),
        ("SubscribeToTask", {"id": "run_none"}, (-32001, "unknown-run")),
        ("ListTasks", {"status": "TASK_STATE_LOST"}, (-32602, "bad-body")),
        ("ListTasks", {"pageSize": 101}, (-32602, "bad-body")),
        ("ListTasks", {"pageToken": "x"}, (-32602, "bad-body")),
        ("ListTasks", {"statusTimestampAfter": "2026-01-01T00:00:00Z"}, (-32602, "bad-body")),
        ("CreateTaskPushNotificationConfig", {}, (-32003, "no-push-notifications")),
        ("GetTaskPushNotificationConfig", {}, (-32003, "no-push-notifications")),
        ("SendMessage", {}, (-32602, "bad-body")),
        ("SendMessage", {"message": []}, (-32602, "bad-body")),
        ("SendMessage", message(), (-32602, "bad-body")),
        ("SendMessage", message("a", role="ROLE_AGENT"), (-32602, "bad-body")),
        ("SendMessage", message("a", message_id=""), (-32602, "bad-body")),
        ("SendMessage", message("a", parts=[{}]), (-32602, "bad-body")),
        ("SendMessage", message("a", parts=[{"text": "a", "data": {}}]), (-32602, "bad-body")),
        ("SendMessage", message("a", parts=[{"data": [1]}]), (-32602, "bad-body")),
        ("SendMessage", message("a", parts=[{"url": "x"}]), (-32005, "unsupported-content")),
        ("SendMessage", message("a", parts=[{"raw": "eA=="}]), (-32005, "unsupported-content")),
        (
            "SendMessage",
            message("a", parts=[{"text": "a", "mediaType": "image/png"}]),
            (-32005, "unsupported-content"),
        ),
        (
            "SendMessage",
            {**message("a"), "configuration": {"acceptedOutputModes": ["image/png"]}},
            (-32005, "unsupported-content"),
        ),
        (
            "SendMessage",
            {**message("a"), "configuration": {"taskPushNotificationConfig": {"url": "http://x"}}},
            (-32003, "no-push-notifications"),
        ),
        ("SendMessage", message("a", taskId="run_none"), (-32001, "unknown-run")),
        ("SendMessage", message("a", metadata={"skill": "none"}), (-32602, "recipe-not-found")),
        ("SendMessage", message("a", metadata={"skill": "adds"}), (-32602, "bad-body")),
        (
            "SendMessage",
            message("a", {"message": "b"}, metadata={"skill": "chat"}),
            (-32602, "bad-body"),
        ),
        (
            "SendMessage",
            message({"a": 1}, {"a": 2}, metadata={"skill": "adds"}),
            (-32602, "bad-body"),
        ),
        ("SendMessage", message({"c": 1}, metadata={"skill": "adds"}), (-32602, "bad-input")),
    ],
)
async def test_what_does_not_fit_is_refused_in_the_protocol_s_form(
    make_app: MakeApp, method: str, params: object, refusal: tuple[int, str]
) -> None:
    client = Client(make_app())
    assert code_of(await error(client, method, params)) == refusal
    if method == "SendMessage":
        assert code_of(await error(client, "SendStreamingMessage", params)) == refusal
    assert (await client.get("/runs")).json["total"] == 0


@pytest.mark.parametrize("version", [None, "0.3", "2.0", "", "x"])
async def test_another_version_of_the_protocol_is_refused(
    make_app: MakeApp, version: str | None
) -> None:
    client = Client(make_app())
    told = await error(client, "ListTasks", headers={"a2a-version": version})
    assert code_of(told) == (-32009, "unsupported-protocol")
    assert "A2A-Version: 1.0" in told["message"]


@pytest.mark.parametrize(
    ("body", "status", "refusal"),
    [
        (b"{", 400, (-32700, "bad-json")),
        (b"[]", 400, (-32600, "bad-body")),
        (b"{}", 400, (-32600, "bad-body")),
        (b'{"jsonrpc": "1.0", "method": "GetTask"}', 400, (-32600, "bad-body")),
        (b'{"jsonrpc": "2.0", "method": "GetTask", "id": {}}', 400, (-32600, "bad-body")),
        (b'{"jsonrpc": "2.0", "method": "GetTask", "params": []}', 400, (-32600, "bad-body")),
    ],
)
async def test_a_body_that_is_no_request_is_refused_without_an_id(
    make_app: MakeApp, body: bytes, status: int, refusal: tuple[int, str]
) -> None:
    headers = {**VERSION, "content-type": "application/json"}
    reply = await Client(make_app()).ask("POST", "/a2a", body, headers)
    assert (reply.status, reply.json["id"], code_of(reply.json["error"])) == (status, None, refusal)


async def test_a_caller_without_a_token_is_refused(make_app: MakeApp) -> None:
    reply = await call(Client(make_app()), "ListTasks", headers={"authorization": None})
    assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
    assert code_of(reply.json["error"]) == (-32600, "unauthorized")


async def test_what_has_no_effect_is_named(make_app: MakeApp) -> None:
    client = Client(make_app())
    params = {
        **message({"a": 1}, referenceTaskIds=["run_1"], metadata={"skill": "adds", "theme": "x"}),
        "metadata": {"trace": 1},
        "configuration": {"blocking": True, "historyLength": 0, "pushNotificationConfig": None},
    }
    reply = await call(client, "SendMessage", params)
    assert set(reply.headers["x-minions-ignored"].split(", ")) == {
        "params.message.referenceTaskIds",
        "params.message.metadata.theme",
        "params.metadata",
        "params.configuration.blocking",
    }
    either = {"message": {"message_id": "m2", "role": "ROLE_USER", "parts": [{"data": {"a": 1}}]}}
    assert (
        "x-minions-ignored"
        not in (await call(client, "SendMessage", either, recipe="adds")).headers
    )


# --- the protocol's own client -------------------------------------------------------------------


_CLIENT: Final = Path(__file__).with_name("a2a_client.py")


def _python() -> str | None:
    """The Python that has the protocol's package; None: there is none."""
    named = os.environ.get("MINIONS_A2A_PYTHON", sys.executable)
    found = subprocess.run([named, "-c", "import a2a.client"], capture_output=True, check=False)
    return named if found.returncode == 0 else None


def test_the_protocol_s_own_client_runs_follows_and_decides_tasks(tmp_path: Path) -> None:
    """A-185."""
    python = _python()
    if python is None:
        pytest.skip("the package a2a-sdk is missing here, or in the Python MINIONS_A2A_PYTHON")
    (tmp_path / "recipes").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "own.py").write_text(EXTENSIONS)
    for name, text in RECIPES.items():
        (tmp_path / "recipes" / f"{name}.yaml").write_text(text)
    with Serving(tmp_path, "--extensions", "own.py", "--no-store", "--approve", "wait") as server:
        ran = subprocess.run(
            [python, str(_CLIENT), server.url, server.token],
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_S,
        )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "skills": ["adds", "asks", "chat", "signs", "waits"],
        "sum": 5,
        "state": "completed",
        "streamed": [
            "task",
            "status_update",
            "artifact_update",
            "artifact_update",
            "status_update",
        ],
        "said": "said",
        "waits": "input_required",
        "signed": "sign: a treaty",
        "answered": "3",
        "follows": "task",
        "cancelled": ["canceled", "canceled"],
        "listed": 2,
        "raised": {
            "unknown": "TaskNotFoundError",
            "over": "TaskNotCancelableError",
            "ended": "UnsupportedOperationError",
            "late": "UnsupportedOperationError",
            "push": "PushNotificationNotSupportedError",
            "file": "ContentTypeNotSupportedError",
            "inputs": "InvalidParamsError",
        },
        "stranger": "A2AClientError",
    }
