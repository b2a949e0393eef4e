"""Tools of callers at `/v1`: what is taken of a stranger, and how a run gets their results."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from asgi_client import Client, Reply
from minions.adapters.models.script_items import Answer, tool_request
from minions.contracts.calls import Prompt
from minions.contracts.executions import RunState
from minions.contracts.messages import (
    Message,
    MessageRole,
    ToolCallRequest,
    assistant,
    tool_result,
    user,
)
from minions.contracts.tool_search import FIND_TOOLS
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.history.memory import READ_RESULT
from minions.engine.services.memory_journal import MemoryJournal
from minions.interfaces.http.tokens import CallerToken, TokenScope, digest_of
from minions.interfaces.server.documents.caller_tool_documents import paired, read_tools
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document
from minions.testing.virtual_time import FakeClock
from served import MakeApp

CHAT: Final = "/v1/chat/completions"
RESPONSES: Final = "/v1/responses"
HELPS: Final = """
id: helps
inputs: {message: {type: string}}
limits: {max_tool_result_bytes: 100}
steps:
  - id: answer
    goal: Answer the user.
    memory: conversation
    tools: {names: [look], caller: true}
"""
_SIGNS: Final = """
id: consents
inputs: {message: {type: string}}
permissions: {allow_write: true, requires_approval: [sign]}
steps:
  - id: answer
    goal: "{{ inputs.message }}"
    tools: {names: [sign], caller: true}
"""
_WITHIN: Final = """
id: within
inputs: {message: {type: string}}
steps:
  - {id: a, recipe: consents.yaml, with: {message: "{{ inputs.message }}"}}
output: "{{ a }}"
"""
PARAMETERS: Final = {"type": "object", "properties": {"town": {"type": "string"}}}
WEATHER: Final[dict[str, Any]] = {  # Any: JSON
    "type": "function",
    "function": {"name": "weather", "description": "Of a town.", "parameters": PARAMETERS},
}
HELLO: Final = {"role": "user", "content": "How is it?"}


def model(prompt: Prompt) -> Answer:
    """Calls what the user names, `weather Bern, weather Basel`, and tells what it gave."""
    if has_result(prompt):
        said: list[str] = []
        for each in reversed(prompt.messages):
            if each.role is not MessageRole.TOOL:
                break
            said.insert(0, f"{each.content}")
        return " | ".join(said)
    asking = (MessageRole.USER, MessageRole.GOAL)
    words = next(f"{e.content}" for e in reversed(prompt.messages) if e.role in asking)
    if "weather" not in words:
        return f"{len(prompt.messages)} messages"
    calls = [each.split() for each in words.split(", ")]
    return [
        tool_request(name, {"town": text} if name == "weather" else {"text": text})
        for name, text in calls
    ]


def has_result(prompt: Prompt) -> bool:
    return prompt.messages[-1].role is MessageRole.TOOL


@pytest.fixture
def helping(make_app: MakeApp, recipes: Path) -> Client:
    for text in (HELPS, _SIGNS, _WITHIN):
        (recipes / f"{text.split()[1]}.yaml").write_text(text)
    return Client(make_app(answers=model))


async def ask(client: Client, *messages: object, **more: Any) -> Reply:  # Any: JSON
    body = {"model": "helps", "messages": list(messages), "tools": [WEATHER], **more}
    return await client.ask("POST", CHAT, body)


def calling(words: str) -> dict[str, str]:
    return {"role": "user", "content": words}


def message(reply: Reply) -> dict[str, Any]:  # Any: JSON
    assert reply.status == 200, reply.body
    found: dict[str, Any] = reply.json["choices"][0]["message"]
    return found


def calls(reply: Reply) -> list[tuple[str, str]]:
    """The functions that the answer asks the caller to call, with their arguments."""
    return [
        (each["function"]["name"], each["function"]["arguments"])
        for each in message(reply).get("tool_calls", [])
    ]


def results(reply: Reply, *texts: str) -> list[dict[str, object]]:
    """The answer that asked for calls, and what these gave."""
    made = message(reply)
    given = [
        {"role": "tool", "tool_call_id": each["id"], "content": text}
        for each, text in zip(made["tool_calls"], texts, strict=False)
    ]
    return [made, *given]


def refused(reply: Reply) -> tuple[int, str, str | None]:
    error = reply.json["error"]
    return reply.status, error["code"], error["param"]


# --- calls and results ---------------------------------------------------------------------------


async def test_a_call_ends_the_answer_and_its_result_lets_the_run_continue(helping: Client) -> None:
    question = calling("weather Bern")
    first = await ask(helping, question)
    assert first.json["choices"][0]["finish_reason"] == "tool_calls"
    assert message(first)["content"] is None
    assert calls(first) == [("weather", '{"town":"Bern"}')]
    second = await ask(helping, question, *results(first, "sunny"))
    assert message(second)["content"] == "sunny"
    assert second.json["choices"][0]["finish_reason"] == "stop"
    assert second.headers["x-minions-run"] == first.headers["x-minions-run"]
    assert second.json["id"] != first.json["id"]
    run = await helping.get(f"/runs/{first.headers['x-minions-run']}")
    assert run.json["status"] == "completed"


async def test_several_calls_at_once_and_one_of_the_recipe_s_own_tools(helping: Client) -> None:
    question = calling("weather Bern, look here, weather Basel")
    first = await ask(helping, question)
    assert calls(first) == [("weather", '{"town":"Bern"}'), ("weather", '{"town":"Basel"}')]
    second = await ask(helping, question, *results(first, "sunny", "rain"))
    assert message(second)["content"] == "sunny | look: here | rain"


async def test_identical_calls_of_one_answer_are_asked_once(helping: Client) -> None:
    first = await ask(helping, calling("weather Bern, weather Bern"))
    assert len(calls(first)) == 1
    second = await ask(helping, calling("weather"), *results(first, "sunny"))
    assert f"{message(second)['content']}".count("sunny") == 2


async def test_a_conversation_of_several_calls_is_one_run_and_a_new_question_another(
    helping: Client,
) -> None:
    said: list[object] = [calling("weather Bern")]
    first = await ask(helping, *said)
    said += results(first, "sunny")
    said += [message(await ask(helping, *said)), calling("And now?")]
    third = await ask(helping, *said)
    assert third.headers["x-minions-run"] != first.headers["x-minions-run"]
    # Its own goal, and all five messages that came before the new question, which is the sixth.
    assert message(third)["content"] == "6 messages"
    assert "x-minions-ignored" not in third.headers


async def test_calls_without_results_and_those_of_other_tools_are_no_part_of_a_new_conversation(
    helping: Client,
) -> None:
    first = await ask(helping, calling("weather Bern"))
    again = await ask(helping, calling("weather Bern"), message(first), calling("And now?"))
    assert message(again)["content"] == "3 messages"
    assert again.headers["x-minions-ignored"] == "calls without results"
    said = [calling("one"), *results(first, "sunny"), calling("And now?")]
    said[1]["tool_calls"][0]["function"]["name"] = "look"  # type: ignore[index]  # JSON
    other = await ask(helping, *said)
    assert message(other)["content"] == "3 messages"


async def test_a_nested_recipe_offers_them_as_well(helping: Client) -> None:
    first = await ask(helping, calling("weather Bern"), model="within")
    assert calls(first) == [("weather", '{"town":"Bern"}')]
    second = await ask(helping, *results(first, "sunny"), model="within")
    assert message(second)["content"] == "sunny"


async def test_a_stream_has_the_calls_as_deltas(helping: Client) -> None:
    reply = await ask(helping, calling("weather Bern, weather Basel"), stream=True)
    lines = [line[6:] for line in reply.body.decode().splitlines() if line.startswith("data: ")]
    choices = [json.loads(each)["choices"][0] for each in lines[:-1]]
    deltas = [each["delta"]["tool_calls"][0] for each in choices if "tool_calls" in each["delta"]]
    assert [each["index"] for each in deltas] == [0, 0, 1, 1]
    assert [each["function"].get("name") for each in deltas] == ["weather", None] * 2
    assert "".join(each["function"]["arguments"] for each in deltas[:2]) == '{"town":"Bern"}'
    assert (choices[-1]["finish_reason"], lines[-1]) == ("tool_calls", "[DONE]")
    given = [
        {"role": "tool", "tool_call_id": each["id"], "content": f"<{each['index']}>"}
        for each in deltas
        if "id" in each
    ]
    second = await ask(helping, *given, stream=True)
    pieces = [each[6:] for each in second.body.decode().splitlines() if each.startswith("data: {")]
    said = [json.loads(each)["choices"][0]["delta"].get("content") for each in pieces]
    assert "".join(filter(None, said)) == "<0> | <1>"


async def test_what_a_model_says_before_a_call_is_the_content_of_the_message(
    make_app: MakeApp, recipes: Path
) -> None:
    (recipes / "helps.yaml").write_text(HELPS)
    says = assistant("Let me see.", tool_calls=[tool_request("weather", {}, id="c")])
    client = Client(make_app(answers=lambda prompt: "So." if has_result(prompt) else says))
    first = await ask(client, HELLO)
    assert message(first)["content"] == "Let me see."
    assert message(await ask(client, *results(first, "sun")))["content"] == "So."
    streamed = (await ask(client, HELLO, stream=True)).body.decode()
    pieces = [json.loads(each[6:]) for each in streamed.splitlines() if each.startswith("data: {")]
    deltas = [each["choices"][0]["delta"] for each in pieces]
    assert "".join(each.get("content") or "" for each in deltas) == "Let me see."
    assert any("tool_calls" in each for each in deltas)


async def test_a_call_is_in_the_inbox_where_a_person_may_give_its_result(helping: Client) -> None:
    first = await ask(helping, calling("weather Bern"))
    listed = await helping.get("/approvals?kind=call")
    [waiting] = listed.json["approvals"]
    assert (waiting["what"], waiting["tool"]) == ("answer", "weather")
    assert waiting["arguments"] == '{"town":"Bern"}'
    body = {"decision": "answer", "value": "by hand"}
    assert (await helping.post(f"/approvals/{waiting['id']}", body)).status == 202
    late = await ask(helping, *results(first, "sunny"))
    assert refused(late) == (409, "already-decided", None)
    assert late.headers["x-should-retry"] == "false"
    same = await ask(helping, *results(first, "by hand"))
    assert message(same)["content"] == "by hand"


async def test_a_run_waits_for_its_caller_and_for_a_person_at_once(helping: Client) -> None:
    question = calling("weather Bern, sign it")
    first = await ask(helping, question, model="consents")
    assert calls(first) == [("weather", '{"town":"Bern"}')]
    assert "'sign' in step 'answer' waits for approval" in message(first)["content"]
    second = await ask(helping, question, *results(first, "sunny"), model="consents")
    assert second.json["choices"][0]["finish_reason"] == "stop"
    assert "waits for approval" in message(second)["content"]
    assert second.headers["x-minions-status"] == "needs_decision"


async def test_a_person_may_decide_first_and_the_result_comes_after(helping: Client) -> None:
    question = calling("weather Bern, sign it")
    first = await ask(helping, question, model="consents")
    run = first.headers["x-minions-run"]
    [waiting] = (await helping.get("/approvals?kind=approval")).json["approvals"]
    body = {"decision": "approve", "digest": waiting["digest"]}
    assert (await helping.post(f"/approvals/{waiting['id']}", body)).status == 202
    await helping.get(f"/runs/{run}/events")  # until the run waits again
    second = await ask(helping, question, *results(first, "sunny"), model="consents")
    assert message(second)["content"] == "sunny | sign: it"


# --- results that are repeated, missing, or of somebody else -------------------------------------


async def test_results_that_are_given_again_have_the_same_answer_and_ask_no_model(
    make_app: MakeApp, recipes: Path
) -> None:
    (recipes / "helps.yaml").write_text(HELPS)
    asked: list[Prompt] = []

    def counting(prompt: Prompt) -> Answer:
        asked.append(prompt)
        return model(prompt)

    client = Client(make_app(answers=counting))
    first = await ask(client, calling("weather Bern"))
    given = results(first, "sunny")
    replies = [await ask(client, *given) for _ in range(2)]
    streamed = await ask(client, *given, stream=True)
    assert [message(each)["content"] for each in replies] == ["sunny", "sunny"]
    assert replies[0].json["id"] == replies[1].json["id"]
    assert '"content":"sunny"' in streamed.body.decode().replace(" ", "")
    assert len(asked) == 2
    both = await asyncio.gather(ask(client, *given), ask(client, *given))
    assert [message(each)["content"] for each in both] == ["sunny", "sunny"]


async def test_results_that_are_given_again_have_their_answer_also_where_the_run_is_further(
    make_app: MakeApp, recipes: Path
) -> None:
    (recipes / "helps.yaml").write_text(HELPS)

    def going_on(prompt: Prompt) -> Answer:
        said = [f"{each.content}" for each in prompt.messages if each.role is MessageRole.TOOL]
        towns = ("Bern", "Basel", "Thun")
        return (
            ", ".join(said)
            if len(said) == 3
            else tool_request("weather", {"town": towns[len(said)]})
        )

    client = Client(make_app(answers=going_on))
    said: list[object] = [HELLO]
    replies: list[Reply] = []
    for text in ("sunny", "rain", "fog"):
        replies.append(await ask(client, *said))
        said += results(replies[-1], text)
    last = await ask(client, *said)
    assert message(last)["content"] == "sunny, rain, fog"
    for at in (1, 2):
        again = await ask(client, *said[: 1 + 2 * at])
        assert message(again) == message(replies[at])
        streamed = await ask(client, *said[: 1 + 2 * at], stream=True)
        assert '"finish_reason":"tool_calls"' in streamed.body.decode()


async def test_results_that_two_requests_bring_at_once_count_once(helping: Client) -> None:
    first = await ask(helping, calling("weather Bern"))
    replies = await asyncio.gather(*(ask(helping, *results(first, "sunny")) for _ in range(3)))
    assert [message(each)["content"] for each in replies] == ["sunny"] * 3


async def test_each_result_that_does_not_fit_is_refused_by_its_place(helping: Client) -> None:
    question = calling("weather Bern, weather Basel")
    first = await ask(helping, question)
    made, one, two = results(first, "sunny", "rain")
    other = results(await ask(helping, calling("weather Thun")), "fog")[1]
    unknown = {**one, "tool_call_id": "call_of_nobody"}
    nameless = {"role": "tool", "content": "sunny"}
    long = {**two, "content": "r" * 101}
    for messages, expected in (
        ([made, one], (400, "bad-body", "messages")),
        ([made, one, two, one], (400, "bad-body", "messages[3]")),
        ([made, one, other], (400, "bad-body", "messages[2]")),
        ([made, unknown], (404, "unknown-call", None)),
        ([made, nameless], (400, "bad-body", "messages[1].tool_call_id")),
        ([made, one, long], (400, "bad-body", "messages[2]")),
    ):
        assert refused(await ask(helping, *messages)) == expected
    last = await ask(helping, made, one, two)  # nothing of these has decided anything
    assert message(last)["content"] == "sunny | rain"


async def test_a_result_up_to_the_bound_is_taken_and_one_other_of_two_is_refused(
    helping: Client,
) -> None:
    question = calling("weather Bern, weather Basel")
    first = await ask(helping, question)
    given = results(first, "x" * 100, "rain")
    second = await ask(helping, question, *given)
    assert message(second)["content"] == f"{'x' * 100} | rain"
    assert (await ask(helping, question, *given)).status == 200
    for texts in (("x" * 100, "sun"), ("y", "rain")):
        reply = await ask(helping, question, *results(first, *texts))
        assert refused(reply)[:2] == (409, "already-decided")


async def test_a_result_for_the_run_of_another_recipe_is_for_no_call(helping: Client) -> None:
    first = await ask(helping, calling("weather Bern"))
    reply = await ask(helping, *results(first, "sunny"), model="consents")
    assert refused(reply) == (404, "unknown-call", None)


async def test_results_are_taken_of_whoever_began_the_run(make_app: MakeApp, recipes: Path) -> None:
    (recipes / "helps.yaml").write_text(HELPS)
    run, decide = frozenset({TokenScope.RUN}), frozenset({TokenScope.RUN, TokenScope.DECIDE})
    tokens = [
        CallerToken(name=name, sha256=digest_of(name * 20), scopes=scopes, user=user)
        for name, scopes, user in (
            ("ann", run, "ann"),
            ("phone of ann", run, "ann"),
            ("desk of ann", decide, "ann"),
            ("bob", decide, "bob"),
        )
    ]
    client = Client(make_app(answers=model, tokens=tuple(tokens)))

    async def by(name: str, *messages: object) -> Reply:
        body = {"model": "helps", "messages": list(messages), "tools": [WEATHER]}
        return await client.ask("POST", CHAT, body, {"authorization": f"Bearer {name * 20}"})

    first = await by("ann", calling("weather Bern"))
    given = results(first, "sunny")
    assert refused(await by("bob", *given)) == (404, "unknown-call", None)
    assert refused(await by("phone of ann", *given)) == (403, "missing-scope", None)
    assert message(await by("desk of ann", *given))["content"] == "sunny"
    second = await by("ann", calling("weather Basel"))
    assert message(await by("ann", *results(second, "rain")))["content"] == "rain"


async def test_a_caller_that_never_comes_back_leaves_a_run_that_ends_with_its_time(
    make_app: MakeApp, recipes: Path
) -> None:
    (recipes / "helps.yaml").write_text(f"{HELPS}permissions: {{approval_timeout_s: 60}}\n")
    clock = FakeClock()
    app = make_app(answers=model, clock=clock)
    client = Client(app)
    first = await ask(client, calling("weather Bern"))
    run = f"/runs/{first.headers['x-minions-run']}"
    [waiting] = (await client.get("/approvals")).json["approvals"]
    assert waiting["expires_at"] is not None
    clock.advance(61)
    await app.recovery.look()
    await client.get(f"{run}/events")  # until it has ended
    assert (await client.get(run)).json["error"]["code"] == "ask-timeout"
    late = await ask(client, *results(first, "sunny"))
    assert refused(late) == (404, "unknown-call", None)


async def test_a_call_and_its_result_survive_the_server(make_app: MakeApp, recipes: Path) -> None:
    (recipes / "helps.yaml").write_text(HELPS)
    journal = MemoryJournal(FakeClock())
    before = Client(make_app(answers=model, journal=journal))
    first = await ask(before, calling("weather Bern"))
    after = Client(make_app(answers=model, journal=journal))
    second = await ask(after, *results(first, "sunny"))
    assert message(second)["content"] == "sunny"
    run = (await after.get(f"/runs/{first.headers['x-minions-run']}")).json
    assert run["status"] == RunState.COMPLETED.value


# --- what is taken -------------------------------------------------------------------------------


async def test_a_recipe_that_does_not_offer_them_refuses_tools_and_their_messages(
    helping: Client,
) -> None:
    assert refused(await ask(helping, HELLO, model="chat")) == (
        400,
        "unsupported-parameter",
        "tools",
    )
    result = {"role": "tool", "tool_call_id": "call_run_1.x", "content": "sunny"}
    reply = await ask(helping, HELLO, result, model="chat", tools=[])
    assert refused(reply) == (400, "unsupported-parameter", "messages[1]")


def _tool(**parts: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "f", **parts}}


def _of_size(size: int) -> dict[str, object]:
    """A tool that has so many bytes as JSON, in a list."""
    empty = len(json.dumps([_tool(parameters={"title": ""})], separators=(",", ":")))
    return _tool(parameters={"title": "x" * (size - empty)})


@pytest.mark.parametrize(
    "tools",
    [
        [_tool(name=f"f{at}") for at in range(64)],
        [_tool(description="x" * 4096)],
        [_of_size(65_536)],
        [_tool(strict=True, metadata={"a": "b"})],
        [_tool(name="x" * 64)],
        [],
        None,
    ],
)
async def test_tools_up_to_the_bounds_are_taken(helping: Client, tools: object) -> None:
    assert (await ask(helping, HELLO, tools=tools)).status == 200


async def test_a_model_is_shown_a_tool_as_its_caller_described_it(
    make_app: MakeApp, recipes: Path
) -> None:
    (recipes / "helps.yaml").write_text(HELPS)
    seen: list[Prompt] = []

    def look(prompt: Prompt) -> Answer:
        seen.append(prompt)
        return "seen"

    await ask(Client(make_app(answers=look)), HELLO, tools=[WEATHER, _tool()])
    _, weather, other = seen[0].tools
    assert (weather.name, weather.description) == ("weather", "Of a town.")
    assert weather.parameters == PARAMETERS
    assert (other.description, other.parameters) == ("", {"type": "object"})


def test_only_calls_with_the_result_right_behind_them_are_part_of_a_conversation() -> None:
    def called(*made: ToolCallRequest, text: str | None = None) -> Message:
        return assistant(text, tool_calls=made)

    one, two = (ToolCallRequest(id=each, name="weather", arguments="{}") for each in "12")
    foreign = ToolCallRequest(id="3", name="other", arguments="{}")
    said = [
        called(one, two, foreign, text="Let me look."),
        tool_result("sunny", tool_call_id=one.id, name="weather"),
        tool_result("again", tool_call_id=one.id, name="weather"),
        tool_result("theirs", tool_call_id=foreign.id, name="other"),
        user("And?"),
        tool_result("late", tool_call_id=two.id, name="weather"),
        called(two),
        user("Well?"),
        called(foreign, text="Words stay."),
        tool_result("theirs", tool_call_id=foreign.id, name="other"),
    ]
    kept = [each for each, _ in paired([(each, "") for each in said], frozenset({"weather"}))]
    assert [each.content for each in kept] == [
        "Let me look.",
        "sunny",
        "And?",
        "Well?",
        "Words stay.",
    ]
    assert [[call.id for call in each.tool_calls] for each in kept] == [[one.id], [], [], [], []]


@pytest.mark.parametrize("given", ["weather", 3, {"a": 1}])
def test_tools_are_a_list(given: JsonValue) -> None:
    document: dict[str, JsonValue] = {
        "id": "r",
        "steps": [{"id": "a", "goal": "Look.", "tools": {"caller": True}}],
    }
    with pytest.raises(UsageError) as wrong:
        read_tools(recipe_from_document(document, Catalog()), given, Catalog())
    assert wrong.value.error_code == "bad-body"


@pytest.mark.parametrize(
    ("tools", "code", "place"),
    [
        ([{"type": "web_search"}], "unsupported-parameter", "tools[0].type"),
        ([_tool(name="a b")], "bad-body", "tools[0].function.name"),
        ([_tool(name="x" * 65)], "bad-body", "tools[0].function.name"),
        ([_tool(name="look")], "bad-body", "tools[0].name"),
        ([_tool(name="final_Answer")], "bad-body", "tools[0].name"),
        ([_tool(name=FIND_TOOLS)], "bad-body", "tools[0].name"),
        ([_tool(name=READ_RESULT)], "bad-body", "tools[0].name"),
        ([_of_size(65_537)], "bad-body", "tools"),
        ([_tool(), _tool()], "bad-body", "tools[1].name"),
        ([_tool(description="x" * 4097)], "bad-body", "tools[0].function.description"),
        ([_tool(description=1)], "bad-body", "tools[0].function.description"),
        ([_tool(parameters={"type": "array"})], "bad-body", "tools[0].function.parameters"),
        (
            [_tool(parameters={"$ref": "https://x.example"})],
            "bad-body",
            "tools[0].function.parameters",
        ),
        ([_tool(parameters=[])], "bad-body", "tools[0].function.parameters"),
        ([_tool(surprise=1)], "unsupported-parameter", "tools[0].function.surprise"),
        ([_tool(name=f"f{at}") for at in range(65)], "bad-body", "tools"),
        ([_tool(parameters={"description": "x" * 66_000})], "bad-body", "tools"),
        ([{"type": "function", "function": 3}], "bad-body", "tools[0].function.name"),
        ([{}], "bad-body", "tools[0].name"),
    ],
)
async def test_tools_beyond_the_bounds_are_refused_by_their_place(
    helping: Client, tools: Sequence[Mapping[str, object]], code: str, place: str
) -> None:
    assert refused(await ask(helping, HELLO, tools=tools)) == (400, code, place)
    assert (await helping.get("/runs")).json["total"] == 0


async def test_no_name_of_a_caller_s_tool_looks_like_one_of_a_toolset(
    make_app: MakeApp, recipes: Path
) -> None:
    text = HELPS.replace("steps:", "tools: [{files: {root: ., as: notes}}]\nsteps:")
    (recipes / "helps.yaml").write_text(text)
    client = Client(make_app(answers=model))
    for name, is_refused in (("notes__send", True), ("notes__read", True), ("files__send", False)):
        reply = await ask(client, HELLO, tools=[_tool(name=name)])
        assert (reply.status == 400) is is_refused, name


async def test_the_choice_of_a_tool_is_the_model_s(helping: Client) -> None:
    none = await ask(helping, calling("weather Bern"), tool_choice="none")
    assert "There is no tool 'weather' here" in message(none)["content"]
    auto = await ask(helping, calling("weather Bern"), tool_choice="auto")
    assert len(calls(auto)) == 1
    others: tuple[object, ...] = (
        3,
        "any",
        {"type": "custom", "name": "weather"},
        {"type": "function"},
        [],
        {},
    )
    for choice in others:
        reply = await ask(helping, HELLO, tool_choice=choice)
        assert refused(reply) == (400, "unsupported-parameter", "tool_choice")
    unknown: tuple[dict[str, object], ...] = ({"name": "other"}, {"function": 3})
    for each in unknown:
        reply = await ask(helping, HELLO, tool_choice={"type": "function", **each})
        assert refused(reply)[0] == 400
    reply = await ask(helping, HELLO, tools=[], tool_choice="required")
    assert refused(reply) == (400, "bad-body", "tool_choice")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "time"}}])
async def test_a_demanded_call_is_made_though_the_model_would_talk(
    make_app: MakeApp, recipes: Path, choice: object
) -> None:
    (recipes / "helps.yaml").write_text(HELPS)
    seen: list[Prompt] = []

    def talk(prompt: Prompt) -> Answer:
        seen.append(prompt)
        last = prompt.messages[-1]
        if prompt.tools or last.role is MessageRole.TOOL:
            return f"{last.content}?"
        return '{"tool": "time"}' if "Which tool" in f"{prompt.messages[0].content}" else "{}"

    client = Client(make_app(answers=talk))
    tools = [WEATHER, _tool(name="time")]
    first = await ask(client, HELLO, tools=tools, tool_choice=choice)
    assert calls(first) == [("time", "{}")]
    offered = ["weather", "time"] if choice == "required" else ["time"]
    assert [each.name for each in seen[0].tools] == offered
    given = [HELLO, *results(first, "noon")]
    second = await ask(client, *given, tools=tools, tool_choice=choice)  # as loops of clients do
    assert message(second)["content"] == "noon?"
    assert second.headers["x-minions-ignored"] == "tool_choice"
    assert [each.name for each in seen[-1].tools] == ["look", "weather", "time"]


def allowed(*names: str, mode: str = "auto", is_flat: bool = False) -> dict[str, object]:
    """The choice of these functions, in the form of chat completions; flat: of responses."""
    named = [{"name": each} for each in names]
    form = [{"type": "function", **(each if is_flat else {"function": each})} for each in named]
    inner = {"mode": mode, "tools": form}
    return {"type": "allowed_tools", **(inner if is_flat else {"allowed_tools": inner})}


@pytest.mark.parametrize("is_flat", [False, True], ids=["chat completions", "responses"])
async def test_of_allowed_tools_the_model_is_shown_no_others(
    make_app: MakeApp, recipes: Path, is_flat: bool
) -> None:
    (recipes / "helps.yaml").write_text(HELPS)
    seen: list[Prompt] = []

    def see(prompt: Prompt) -> Answer:
        seen.append(prompt)
        return model(prompt)

    client = Client(make_app(answers=see))
    tools = [WEATHER, _tool(name="time"), _tool(name="place")]
    two = allowed("place", "weather", is_flat=is_flat)
    first = await ask(client, calling("weather Bern"), tools=tools, tool_choice=two)
    assert [each.name for each in seen[0].tools] == ["look", "weather", "place"]
    given: list[object] = [calling("weather Bern"), *results(first, "sunny")]
    again = await ask(client, *given, tools=tools, tool_choice=two)
    assert (message(again)["content"], again.headers.get("x-minions-ignored")) == ("sunny", None)
    assert [each.name for each in seen[-1].tools] == ["look", "weather", "place"]
    plain = await ask(client, *given, tools=tools)
    assert plain.headers["x-minions-ignored"] == "tools"
    whole = await ask(client, calling("weather Bern"), tools=tools)
    given = [*results(whole, "sunny")]
    narrowed = await ask(client, *given, tools=tools, tool_choice=two)
    assert narrowed.headers["x-minions-ignored"] == "tool_choice"
    later = [calling("weather Bern"), *results(whole, "sunny"), HELLO]
    one = allowed("time", is_flat=is_flat)
    other = await ask(client, *later, tools=tools, tool_choice=one)
    assert "x-minions-ignored" not in other.headers
    roles = [each.role for each in seen[-1].messages]
    assert MessageRole.TOOL in roles  # what was called before stays said


async def test_one_of_the_allowed_tools_may_be_demanded(make_app: MakeApp, recipes: Path) -> None:
    (recipes / "helps.yaml").write_text(HELPS)
    seen: list[Prompt] = []

    def talk(prompt: Prompt) -> Answer:
        seen.append(prompt)
        return "" if not prompt.tools else tool_request("time", {})

    client = Client(make_app(answers=talk))
    tools = [WEATHER, _tool(name="time")]
    choice = allowed("time", mode="required")
    first = await ask(client, HELLO, tools=tools, tool_choice=choice)
    assert calls(first) == [("time", "{}")]
    assert [each.name for each in seen[0].tools] == ["time"]


@pytest.mark.parametrize(
    ("choice", "code", "place"),
    [
        ({"type": "allowed_tools"}, "bad-body", "tool_choice.mode"),
        (
            {"type": "allowed_tools", "allowed_tools": 3},
            "bad-body",
            "tool_choice.allowed_tools.mode",
        ),
        (allowed("weather", mode="none"), "bad-body", "tool_choice.allowed_tools.mode"),
        (allowed(is_flat=True), "bad-body", "tool_choice.tools"),
        (allowed(*["weather"] * 65), "bad-body", "tool_choice.allowed_tools.tools"),
        (allowed("weather", "other"), "bad-body", "tool_choice.allowed_tools.tools[1]"),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "mcp", "name": "weather"}],
            },
            "unsupported-parameter",
            "tool_choice.tools[0]",
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": ["weather"]},
            "unsupported-parameter",
            "tool_choice.tools[0]",
        ),
    ],
)
async def test_allowed_tools_of_another_form_are_refused_by_their_place(
    helping: Client, choice: Mapping[str, object], code: str, place: str
) -> None:
    reply = await ask(helping, HELLO, tool_choice=choice)
    assert refused(reply) == (400, code, place)
    assert (await helping.get("/runs")).json["total"] == 0


async def test_calls_one_at_a_time_come_in_answers_of_their_own(helping: Client) -> None:
    question = calling("weather Bern, weather Basel")
    one = {"parallel_tool_calls": False}
    first = await ask(helping, question, **one)
    assert calls(first) == [("weather", '{"town":"Bern"}')]
    assert "x-minions-ignored" not in first.headers
    given = results(first, "sunny")
    second = await ask(helping, question, *given, **one)
    assert (message(second)["content"], second.headers.get("x-minions-ignored")) == ("sunny", None)
    other = await ask(helping, question, *given, parallel_tool_calls=True)
    assert other.headers["x-minions-ignored"] == "parallel_tool_calls"
    several = await ask(helping, question, parallel_tool_calls=True)
    assert (len(calls(several)), several.headers.get("x-minions-ignored")) == (2, None)
    none = await ask(helping, HELLO, tools=None, **one)
    assert none.headers["x-minions-ignored"] == "parallel_tool_calls"
    assert refused(await ask(helping, HELLO, parallel_tool_calls="no"))[0] == 400


async def test_a_response_says_what_was_wanted_of_calls(helping: Client) -> None:
    flat = {"type": "function", "name": "weather", "parameters": PARAMETERS}
    body = {"model": "helps", "input": "weather Bern", "tools": [flat]}
    for more, expected in (
        ({}, ("auto", True)),
        ({"parallel_tool_calls": False}, ("auto", False)),
        ({"tool_choice": "required"}, ("required", True)),
        ({"tool_choice": {"type": "function", "name": "weather"}}, ("required", True)),
        ({"tool_choice": "none"}, ("none", False)),
        ({"tool_choice": allowed("weather", is_flat=True)}, ("auto", True)),
        ({"tool_choice": allowed("weather", mode="required", is_flat=True)}, ("required", True)),
    ):
        made = (await helping.ask("POST", RESPONSES, {**body, **more})).json
        assert (made["tool_choice"], made["parallel_tool_calls"]) == expected
    named = {"type": "function", "name": "weather"}
    two = {**body, "tools": [flat, {"type": "function", "name": "time"}], "tool_choice": named}
    assert (await helping.ask("POST", RESPONSES, two)).json["tool_choice"] == "required"


async def test_a_key_names_a_request_with_what_it_wants_of_calls(helping: Client) -> None:
    body = {"model": "helps", "messages": [calling("weather Bern")], "tools": [WEATHER]}
    named = {"idempotency-key": "a key"}
    assert (await helping.ask("POST", CHAT, body, named)).status == 200
    other = {**body, "parallel_tool_calls": False}
    assert (await helping.ask("POST", CHAT, other, named)).status in (400, 422)


async def test_a_run_keeps_the_tools_that_it_began_with(helping: Client) -> None:
    first = await ask(helping, calling("weather Bern"))
    given = results(first, "sunny")
    more = {"tools": [_tool(name="other")], "metadata": {"a": "b"}, "user": "ann"}
    other = await ask(helping, *given, **more)
    assert message(other)["content"] == "sunny"
    assert other.headers["x-minions-ignored"] == "tools, metadata, user"


async def test_a_key_names_a_request_with_its_tools(helping: Client) -> None:
    body = {"model": "helps", "messages": [calling("weather Bern")], "tools": [WEATHER]}
    named = {"idempotency-key": "a key"}
    first = await helping.ask("POST", CHAT, body, named)
    again = await helping.ask("POST", CHAT, body, named)
    assert message(again)["tool_calls"] == message(first)["tool_calls"]
    other = await helping.ask("POST", CHAT, {**body, "tools": []}, named)
    assert refused(other) == (400, "idempotency-mismatch", None)


# --- responses -----------------------------------------------------------------------------------


FLAT: Final = {"type": "function", "name": "weather", "parameters": PARAMETERS}


async def respond(client: Client, what: object, **more: object) -> Reply:
    body = {"model": "helps", "input": what, "tools": [FLAT], **more}
    return await client.ask("POST", RESPONSES, body)


def outputs(reply: Reply, *texts: str) -> list[dict[str, object]]:
    items = [each for each in reply.json["output"] if each["type"] == "function_call"]
    return [
        {"type": "function_call_output", "call_id": each["call_id"], "output": text}
        for each, text in zip(items, texts, strict=True)
    ]


async def test_a_response_has_the_calls_as_items_and_the_next_one_brings_their_outputs(
    helping: Client,
) -> None:
    first = await respond(helping, "weather Bern, weather Basel")
    assert first.status == 200, first.body
    assert [(each["type"], each["name"]) for each in first.json["output"]] == [
        ("function_call", "weather"),
        ("function_call", "weather"),
    ]
    assert [each["name"] for each in first.json["tools"]] == ["weather"]
    given = outputs(first, "sunny", "rain")
    second = await respond(helping, given, previous_response_id=first.json["id"])
    assert second.json["output"][0]["content"][0]["text"] == "sunny | rain"
    assert second.json["id"] != first.json["id"]
    third = await respond(helping, "And now?", previous_response_id=second.json["id"])
    assert third.headers["x-minions-session"] == first.headers["x-minions-session"]


async def test_a_response_without_state_brings_calls_and_outputs_as_items(helping: Client) -> None:
    question = {"role": "user", "content": "weather Bern"}
    first = await respond(helping, [question])
    given = [question, *first.json["output"], *outputs(first, "sunny")]
    second = await respond(helping, given)
    assert second.json["output"][0]["content"][0]["text"] == "sunny"
    third = await respond(helping, [*given, *second.json["output"], calling("And now?")])
    assert third.json["output"][0]["content"][0]["text"] == "6 messages"


async def test_outputs_are_for_the_response_that_is_named(helping: Client) -> None:
    first, other = [await respond(helping, "weather Bern") for _ in range(2)]
    reply = await respond(helping, outputs(first, "x"), previous_response_id=other.json["id"])
    assert refused(reply) == (400, "bad-body", "previous_response_id")


async def test_a_streamed_response_has_the_events_of_its_calls(helping: Client) -> None:
    reply = await respond(helping, "weather Bern", stream=True)
    events = [
        json.loads(line[6:])
        for line in reply.body.decode().splitlines()
        if line.startswith("data: ")
    ]
    assert [each["type"] for each in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [each["sequence_number"] for each in events] == list(range(7))
    assert events[4]["arguments"] == '{"town":"Bern"}'
    assert events[-1]["response"]["output"] == [events[5]["item"]]
