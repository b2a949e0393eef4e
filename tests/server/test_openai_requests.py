"""What `/v1` takes of a chat client, and what becomes of a run that is asked there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

import pytest

from asgi_client import Client, Reply
from minions.adapters.models.script_items import tool_request
from minions.contracts.calls import Prompt
from minions.interfaces.http.tokens import CallerToken, TokenScope, digest_of
from served import Door, MakeApp
from typed_answers import Typing

CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"

_PROMISES = """
id: promises
inputs: {question: {type: string}, count: {type: integer, default: 1}}
steps: [{id: a, set: {n: "{{ inputs.count }}", said: "{{ inputs.question }}"}}]
output: {total: 3, said: "the same"}
"""
_TWO_TEXTS = """
id: two_texts
inputs: {from: {type: string}, to: {type: string}}
steps: [{id: a, set: {n: 1}}]
"""
_FAILS = """
id: fails
inputs: {message: {type: string}}
steps: [{id: a, assert: "1 == 2"}]
"""
_ASKS_BACK = """
id: asks_back
inputs: {message: {type: string}}
steps: [{id: who, ask: "How many of {{ inputs.message }}?", form: {type: integer}}]
output: "{{ who }}"
"""


def said(*texts: str) -> list[dict[str, str]]:
    """Messages of a user and an assistant in turn; the first is the user's."""
    return [
        {"role": "assistant" if at % 2 else "user", "content": text}
        for at, text in enumerate(texts)
    ]


def retelling(prompt: Prompt) -> str:
    """The answer tells what the model saw of the conversation."""
    seen = [f"{each.role}: {each.content}" for each in prompt.messages if each.role != "system"]
    return " | ".join(seen)


@pytest.fixture
def talking(make_app: MakeApp, recipes: Path) -> Client:
    for text in (_PROMISES, _TWO_TEXTS, _FAILS, _ASKS_BACK):
        (recipes / f"{text.split()[1]}.yaml").write_text(text)
    return Client(make_app(answers=retelling))


async def complete(client: Client, *texts: str, **more: Any) -> Reply:  # Any: JSON
    headers = {name: more.pop(name) for name in ("session", "key") if name in more}
    named = {
        **({"x-minions-session": headers["session"]} if "session" in headers else {}),
        **({"idempotency-key": headers["key"]} if "key" in headers else {}),
    }
    body = {"model": "chat", "messages": said(*texts), **more}
    return await client.ask("POST", CHAT, body, named)


async def respond(client: Client, what: object, /, **more: object) -> Reply:
    return await client.ask("POST", RESPONSES, {"model": "chat", "input": what, **more})


def words(reply: Reply) -> str:
    assert reply.status == 200, reply.body
    if reply.json["object"] == "response":
        return str(reply.json["output"][0]["content"][0]["text"])
    return str(reply.json["choices"][0]["message"]["content"])


def refused(reply: Reply) -> tuple[int, str, str | None]:
    error = reply.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return reply.status, error["code"], error["param"]


# --- conversations -------------------------------------------------------------------------------


async def test_the_model_sees_the_messages_that_the_request_brings(talking: Client) -> None:
    reply = await complete(talking, "one", "first answer", "two")
    assert words(reply) == "user: one | assistant: first answer | user: two"
    assert "x-minions-ignored" not in reply.headers


async def test_a_session_named_by_a_header_has_the_conversation(talking: Client) -> None:
    first = await complete(talking, "one")
    session = first.headers["x-minions-session"]
    second = await complete(talking, "passed over", "this, too", "two", session=session)
    assert words(second) == "user: one | assistant: user: one | user: two"
    assert second.headers["x-minions-session"] == session
    assert second.headers["x-minions-ignored"] == "earlier messages"
    missing = await complete(talking, "one", session="ses_none")
    assert refused(missing) == (404, "unknown-session", None)


async def test_a_response_continues_an_earlier_one_and_branches_where_that_went_on(
    talking: Client,
) -> None:
    first = await respond(talking, "one")
    second = await respond(talking, "two", previous_response_id=first.json["id"])
    assert words(second) == "user: one | assistant: user: one | user: two"
    assert second.json["previous_response_id"] == first.json["id"]
    branch = await respond(talking, "three", previous_response_id=first.json["id"])
    assert words(branch) == "user: one | assistant: user: one | user: three"
    assert branch.headers["x-minions-session"] != first.headers["x-minions-session"]
    body = {"model": "chat", "input": "two", "previous_response_id": first.json["id"]}
    named = {"x-minions-session": first.headers["x-minions-session"]}
    both = await talking.ask("POST", RESPONSES, body, named)
    assert refused(both) == (400, "bad-body", "previous_response_id")
    missing = await respond(talking, "one", previous_response_id="resp_run_none")
    assert refused(missing) == (404, "unknown-run", None)


async def test_a_request_that_is_repeated_with_its_key_runs_once(make_app: MakeApp) -> None:
    asked: list[str] = []

    def answer(prompt: Prompt) -> str:
        asked.append(retelling(prompt))
        return "an answer of several words"

    client = Client(make_app(answers=answer))
    first = await complete(client, "one", "said", "two", key="a key")
    again = await complete(client, "one", "said", "two", key="a key", stream=True)
    assert first.json["choices"][0]["message"]["content"] == "an answer of several words"
    assert asked == ["user: one | assistant: said | user: two"]
    assert again.headers["x-minions-run"] == first.headers["x-minions-run"]
    assert streamed(again) == "an answer of several words"
    other = await complete(client, "another", "said", "two", key="a key")
    assert refused(other) == (400, "idempotency-mismatch", None)


async def test_a_repeated_request_that_joins_its_run_late_gets_the_whole_answer(
    make_app: MakeApp,
) -> None:
    model = Typing()
    client = Client(make_app(model=model))
    body = {"model": "chat", "messages": said("hi"), "stream": True}
    key = {"idempotency-key": "a key"}
    async with client.stream("POST", CHAT, body, key) as first:
        chunks = first.chunks()
        await model.is_asked.wait()
        model.say("Good ")
        while b"Good " not in await anext(chunks):
            continue
        async with client.stream("POST", CHAT, body, key) as second:
            assert second.headers["x-minions-run"] == first.headers["x-minions-run"]
            model.say("day", None)
            late = Reply(second.status, second.headers, await second.read())
    assert streamed(late) == "Good day"


async def test_messages_that_came_before_a_refusal_are_not_stored_twice(
    make_app: MakeApp, door: Door
) -> None:
    client = Client(make_app(answers=retelling, max_runs=1))
    waiting = (await client.post("/runs", {"recipe": "waits"})).json["run_id"]
    texts = ("one", "said", "two")
    assert (await complete(client, *texts, key="a key")).status == 429
    door.opened.set()
    await client.ended(waiting)
    reply = await complete(client, *texts, key="a key")
    assert words(reply) == "user: one | assistant: said | user: two"


async def test_a_refused_request_leaves_no_messages(talking: Client) -> None:
    reply = await complete(talking, "one", "said", "x" * 1_000, metadata={"message": "y"})
    assert refused(reply) == (400, "bad-body", "metadata.message")
    assert (await talking.get("/sessions")).json["total"] == 0


# --- inputs --------------------------------------------------------------------------------------


async def test_only_recipes_that_take_a_text_are_models(talking: Client) -> None:
    listed = (await talking.ask("GET", "/v1/models")).json
    assert listed["object"] == "list"
    ids = [each["id"] for each in listed["data"]]
    assert ids == ["asks_back", "chat", "fails", "promises", "signs"]
    assert (await talking.ask("GET", "/v1/models/chat")).json == listed["data"][1]
    assert listed["data"][1] == {
        "id": "chat",
        "object": "model",
        "created": listed["data"][1]["created"],
        "owned_by": "minions",
        "supported_parameters": ["metadata", "response_format", "stream", "stream_options", "user"],
    }
    for name in ("adds", "two_texts"):  # numbers alone; no text of two is the message
        reply = await talking.ask("GET", f"/v1/models/{name}")
        assert refused(reply) == (404, "model_not_found", None)
        assert "is no model" in reply.json["error"]["message"]
    assert refused(await talking.ask("GET", "/v1/models/none"))[:2] == (404, "model_not_found")


async def test_earlier_messages_of_what_is_no_conversation_are_named_and_stored_nowhere(
    talking: Client,
) -> None:
    reply = await complete(talking, "one", "said", "two", model="promises")
    assert reply.headers["x-minions-ignored"] == "earlier messages"
    session = reply.headers["x-minions-session"]
    assert (await talking.get(f"/sessions/{session}/steps")).json["steps"] == []
    alone = await complete(talking, "two", model="promises")
    assert "x-minions-ignored" not in alone.headers


_GUIDE = """
id: guide
inputs: {message: {type: string}, town: {type: string, default: Bern}}
steps: [{id: a, memory: conversation, goal: Answer., system_prompt: "Of {{ inputs.town }}."}]
"""


async def test_the_inputs_of_a_conversation_hold_in_its_session(
    make_app: MakeApp, recipes: Path
) -> None:
    (recipes / "guide.yaml").write_text(_GUIDE)
    (recipes / "promises.yaml").write_text(_PROMISES)
    client = Client(make_app(answers=lambda prompt: f"{prompt.messages[0].content}"))

    async def heard(**more: Any) -> tuple[str, str]:  # Any: JSON
        reply = await complete(client, "Where?", **{"model": "guide", **more})
        assert reply.status == 200, reply.body
        words = reply.json["choices"][0]["message"]["content"]
        return words, reply.headers["x-minions-session"]

    first, session = await heard(metadata={"town": "Basel"})
    assert "Of Basel." in first
    assert "Of Basel." in (await heard(session=session))[0]
    assert "Of Chur." in (await heard(session=session, metadata={"town": "Chur"}))[0]
    assert "Of Bern." in (await heard())[0]
    less = _GUIDE.replace(", town: {type: string, default: Bern}", "")
    (recipes / "guide.yaml").write_text(less.replace("{{ inputs.town }}", "nowhere"))
    assert "Of nowhere." in (await heard(session=session))[0]
    asked = {"model": "promises", "metadata": {"count": "3"}}
    _, session = await heard(**asked)  # no conversation: each question has its own inputs
    run = await complete(client, "And?", model="promises", session=session)
    detail = await client.get(f"/runs/{run.headers['x-minions-run']}")
    assert detail.json["inputs"]["count"] == 1, detail.json


async def test_metadata_gives_further_inputs(talking: Client) -> None:
    more = {"model": "promises", "metadata": {"count": "3"}}
    run = (await complete(talking, "tea", **more)).headers["x-minions-run"]
    inputs = (await talking.get(f"/runs/{run}")).json["inputs"]
    assert inputs == {"question": "tea", "count": 3}
    for metadata, param in (
        ({"cuont": "3"}, "metadata.cuont"),
        ({"question": "x"}, "metadata.question"),
        ({"count": "three"}, "metadata.count"),
        ({"count": 3}, "metadata.count"),
    ):
        reply = await complete(talking, "tea", model="promises", metadata=metadata)
        assert refused(reply) == (400, "bad-body", param)
    wrong = await complete(talking, "tea", model="promises", metadata={"count": '"three"'})
    assert refused(wrong) == (400, "bad-input", None)


async def test_what_has_no_effect_is_named_in_a_header(talking: Client) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {**said("hi")[0], "name": "Ann"}]
    reply = await complete(talking, messages=messages, temperature=0.2, n=1, tools=[], stop=None)
    assert words(reply) == "user: hi"
    assert reply.headers["x-minions-ignored"] == "temperature, messages[0], messages[1].name"
    more = {"instructions": "Be brief.", "text": {"verbosity": "low"}, "store": False}
    reply = await respond(talking, "hi", **more)
    assert reply.headers["x-minions-ignored"] == "instructions, store, text.verbosity"


@pytest.mark.parametrize(
    ("more", "code", "param"),
    [
        ({"temprature": 1}, "bad-body", "temprature"),
        ({"stream": "yes"}, "bad-body", "stream"),
        ({"messages": []}, "bad-body", "messages"),
        ({"messages": said("a", "b")}, "bad-body", "messages"),
        ({"messages": [{"role": "usr", "content": "a"}]}, "bad-body", "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "bad-body", "messages[0].content"),
        ({"tools": [{"type": "function"}]}, "unsupported-parameter", "tools"),
        ({"n": 2}, "unsupported-parameter", "n"),
        ({"stop": ["."]}, "unsupported-parameter", "stop"),
        (
            {"messages": [{"role": "tool", "content": "a", "tool_call_id": "1"}]},
            "unsupported-parameter",
            "messages[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "unsupported-parameter",
            "messages[0].content[0]",
        ),
        ({"stream_options": {"usage": True}}, "bad-body", "stream_options"),
        ({"response_format": {"type": "xml"}}, "bad-body", "response_format.type"),
        ({"response_format": {"type": "json_object"}}, "unsupported-parameter", "response_format"),
    ],
)
async def test_what_a_recipe_cannot_do_is_refused_by_name(
    talking: Client, more: dict[str, object], code: str, param: str
) -> None:
    reply = await complete(talking, "hi", **more)
    assert refused(reply) == (400, code, param)
    assert (await talking.get("/runs")).json["total"] == 0


async def test_a_form_of_the_answer_is_taken_where_the_recipe_promises_it(talking: Client) -> None:
    schema = {
        "type": "object",
        "properties": {"total": {"type": "integer"}, "said": {"type": "string"}},
        "required": ["total"],
    }
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}}
    reply = await complete(talking, "tea", model="promises", response_format=form)
    assert json.loads(words(reply)) == {"total": 3, "said": "the same"}
    object_ = {"type": "json_object"}
    assert (await complete(talking, "tea", model="promises", response_format=object_)).status == 200
    schema["properties"] = {"total": {"type": "string"}}
    reply = await complete(talking, "tea", model="promises", response_format=form)
    assert refused(reply) == (400, "unsupported-parameter", "response_format")
    assert "at total" in reply.json["error"]["message"]
    flat = {"format": {"type": "json_schema", "name": "sum", "schema": schema}}
    reply = await respond(talking, "tea", model="promises", text=flat)
    assert refused(reply) == (400, "unsupported-parameter", "text.format")


# --- refusals ------------------------------------------------------------------------------------


async def test_refusals_have_the_form_and_the_status_that_clients_know(
    make_app: MakeApp, door: Door
) -> None:
    reader = CallerToken(name="reader", sha256=digest_of("r" * 20), scopes={TokenScope.READ})
    client = Client(make_app(max_runs=1, max_body_bytes=2_000, tokens=(reader,)))
    body = {"model": "chat", "messages": said("hi")}
    for status, code, given, headers in (
        (401, "invalid_api_key", body, {"authorization": "Bearer wrong"}),
        (401, "invalid_api_key", body, {"authorization": None}),
        (403, "missing-scope", body, {"authorization": f"Bearer {'r' * 20}"}),
        (421, "wrong-host", body, {"host": "elsewhere"}),
        (400, "bad-json", b"{", {"content-type": "application/json"}),
        (400, "not-json", b"model=chat", {"content-type": "text/plain"}),
        (413, "body-too-large", {**body, "user": "u" * 3_000}, {}),
        (404, "model_not_found", {**body, "model": "none"}, {}),
    ):
        reply = await client.ask("POST", CHAT, given, headers)
        assert refused(reply)[:2] == (status, code)
        assert reply.headers["content-type"] == "application/json"
    assert refused(await client.ask("GET", "/v1/none"))[:2] == (404, "no-such-path")
    assert refused(await client.ask("GET", CHAT))[:2] == (405, "method-not-allowed")
    await client.post("/runs", {"recipe": "waits"})
    full = await client.ask("POST", CHAT, body)
    assert refused(full)[:2] == (429, "rate_limit_exceeded")
    assert full.json["error"]["type"] == "rate_limit_error"
    assert full.headers["retry-after"] == "5"
    door.opened.set()


async def test_another_user_s_sessions_are_not_there(make_app: MakeApp) -> None:
    tokens = tuple(
        CallerToken(
            name=name,
            sha256=digest_of(name * 20),
            scopes={TokenScope.RUN, TokenScope.READ},
            user=name,
        )
        for name in ("a", "b")
    )
    client = Client(make_app(answers=retelling, tokens=tokens))
    body = {"model": "chat", "input": "one"}
    mine = {"authorization": f"Bearer {'a' * 20}"}
    first = await client.ask("POST", RESPONSES, body, mine)
    assert first.status == 200
    theirs = {"authorization": f"Bearer {'b' * 20}"}
    more = {**body, "previous_response_id": first.json["id"]}
    assert refused(await client.ask("POST", RESPONSES, more, theirs))[:2] == (404, "unknown-run")
    named = {**theirs, "x-minions-session": first.headers["x-minions-session"]}
    assert refused(await client.ask("POST", RESPONSES, body, named))[0] == 404
    other = await client.ask("POST", RESPONSES, {**body, "user": "a"}, theirs)
    assert refused(other)[:2] == (403, "other-user")


# --- how runs end --------------------------------------------------------------------------------


async def test_a_run_that_fails_is_an_error_that_clients_do_not_repeat(talking: Client) -> None:
    reply = await complete(talking, "x", model="fails")
    assert (reply.status, reply.json["error"]["type"]) == (500, "server_error")
    assert "1 == 2" in reply.json["error"]["message"]
    assert reply.headers["x-should-retry"] == "false"
    run = (await talking.get(f"/runs/{reply.headers['x-minions-run']}")).json
    assert (run["status"], reply.json["error"]["code"]) == ("failed", run["error"]["code"])
    streamed_ = await complete(talking, "x", model="fails", stream=True)
    assert streamed_.status == 200
    assert _chunks(streamed_)[-1] == reply.json
    assert b"[DONE]" not in streamed_.body


async def test_a_run_that_waits_says_for_what_and_where_it_is_decided(talking: Client) -> None:
    reply = await complete(talking, "sheep", model="asks_back")
    run = reply.headers["x-minions-run"]
    assert words(reply).startswith("How many of sheep?\n\nThis run waits for a person.")
    assert f"/api/v1/runs/{run}/decisions" in words(reply)
    assert reply.headers["x-minions-status"] == "needs_decision"
    assert reply.json["choices"][0]["finish_reason"] == "stop"
    assert streamed(await complete(talking, "sheep", model="asks_back", stream=True)).startswith(
        "How many of sheep?"
    )
    answer = await respond(talking, "sheep", model="asks_back", metadata={})
    assert answer.json["metadata"] == {"minions_status": "needs_decision"}
    decided = await talking.post(f"/runs/{run}/decisions", {"decision": "answer", "value": 7})
    assert decided.status == 202
    assert (await talking.ended(run))["output"] == 7


async def test_a_run_continues_when_its_client_leaves(
    make_app: MakeApp, recipes: Path, door: Door
) -> None:
    (recipes / "gated.yaml").write_text(
        "id: gated\ninputs: {message: {type: string}}\nsteps: [{id: a, tool: gate}]\n"
    )
    client = Client(make_app())
    body = {"model": "gated", "messages": said("hi"), "stream": True}
    async with client.stream("POST", CHAT, body) as stream:
        run = stream.headers["x-minions-run"]
        await door.reached.wait()
    door.opened.set()
    assert (await client.ended(run))["output"] == "through"


# --- streams -------------------------------------------------------------------------------------


def _chunks(reply: Reply) -> list[Any]:  # Any: JSON
    blocks = reply.body.decode().split("\n\n")
    lines = [each.removeprefix("data: ") for each in blocks if each.startswith("data: {")]
    return [json.loads(line) for line in lines]


def streamed(reply: Reply) -> str:
    """The text of a streamed chat completion."""
    chunks = _chunks(reply)
    assert reply.headers["content-type"] == "text/event-stream"
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert reply.body.endswith(b"\n\ndata: [DONE]\n\n")
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)


async def test_a_stream_has_the_words_of_the_answering_step_as_they_come(
    make_app: MakeApp,
) -> None:
    client = Client(make_app(answers=[tool_request("look", {"text": "it"}), "I looked at it."]))
    reply = await complete(client, "Look!", stream=True)
    assert streamed(reply) == "I looked at it."
    assert {chunk["id"] for chunk in _chunks(reply)} == {
        f"chatcmpl-{reply.headers['x-minions-run']}"
    }
    assert all("usage" not in chunk for chunk in _chunks(reply))


async def test_the_last_chunk_has_the_usage_where_it_is_asked_for(talking: Client) -> None:
    options = {"include_usage": True}
    *before, last = _chunks(await complete(talking, "hi", stream=True, stream_options=options))
    assert {chunk["usage"] for chunk in before} == {None}
    assert last["choices"] == []
    whole = (await complete(talking, "hi")).json["usage"]
    assert last["usage"] == whole
    assert whole["total_tokens"] == whole["prompt_tokens"] + whole["completion_tokens"] > 0


async def test_each_piece_is_sent_when_it_comes(make_app: MakeApp) -> None:
    model = Typing()
    client = Client(make_app(model=model))
    body = {"model": "chat", "messages": said("hi"), "stream": True}
    async with client.stream("POST", CHAT, body) as stream:
        chunks = stream.chunks()
        assert b'"role":"assistant"' in await anext(chunks)
        await model.is_asked.wait()
        for word in ("Good ", "day"):
            model.say(word)
            chunk = await anext(chunks)
            assert json.loads(chunk[6:])["choices"][0]["delta"] == {"content": word}
        model.say(None)
        rest = b"".join([chunk async for chunk in chunks])
    assert b'"content"' not in rest
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_stream_that_is_cut_ends_with_an_error_that_names_the_run(
    make_app: MakeApp,
) -> None:
    model = Typing()
    client = Client(app := make_app(model=model))
    body = {"model": "chat", "messages": said("hi"), "stream": True}
    async with client.stream("POST", CHAT, body) as stream:
        run = stream.headers["x-minions-run"]
        await model.is_asked.wait()
        app.app_state.channels.close()
        last = (await stream.read()).rstrip().rpartition(b"\n\n")[2]
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert (error["code"], error["type"]) == ("stream-cut", "server_error")
    assert f"/api/v1/runs/{run}" in error["message"]
    model.say(None)


async def test_a_whole_answer_that_is_cut_says_where_its_run_is(make_app: MakeApp) -> None:
    model = Typing()
    client = Client(app := make_app(model=model))
    asking = asyncio.ensure_future(complete(client, "hi"))
    await model.is_asked.wait()
    (run,) = (await client.get("/runs")).json["runs"]
    app.app_state.channels.close_session(run["session_id"])
    reply = await asking
    assert refused(reply)[:2] == (503, "stream-cut")
    assert reply.headers["x-should-retry"] == "false"
    model.say("Hello", None)
    assert (await client.ended(reply.headers["x-minions-run"]))["output"] == "Hello"
