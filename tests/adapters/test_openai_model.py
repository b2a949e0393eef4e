from __future__ import annotations

import asyncio
import gc
import itertools
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import cast

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from returns.pipeline import is_successful
from returns.result import Result

from minions.adapters.models import chat_request, http_model
from minions.adapters.models.answer_assembly import read_usage
from minions.adapters.models.chat_failures import ChatPeer, retry_after_s
from minions.adapters.models.chat_request import RequestWriter, encode_body, request_body
from minions.adapters.models.chat_shapes import read_completion
from minions.adapters.models.openai import OpenAIModel, StreamedAnswer
from minions.contracts.calls import (
    ModelCallResponse,
    ModelCapabilities,
    ModelDelta,
    ModelFailure,
    ModelOptions,
    Prompt,
)
from minions.contracts.instructions import OutputMode, OutputRequest
from minions.contracts.messages import (
    Message,
    MessageRole,
    TokenUsage,
    ToolCallRequest,
    assistant,
    goal,
    system,
    tool_result,
    user,
)
from minions.contracts.model_endpoints import Allowance, RateLimits
from minions.contracts.tools import ToolSpec
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.json_values import JsonValue
from minions.testing import endpoint as fake
from minions.testing.endpoint import ChatEndpoint
from patience import HANG_S, leap

KEY = "sk-very-secret-1234567890"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HELLO = Prompt((user("hello"),))
QUICK = ModelOptions(timeout_s=0.15, idle_timeout_s=0.1)
USAGE = TokenUsage(input_tokens=11, output_tokens=3)

Make = Callable[..., OpenAIModel]


@pytest.fixture
async def model_at() -> AsyncIterator[Make]:
    """Models that are closed after the test."""
    models: list[OpenAIModel] = []

    def make(
        base_url: str,
        *,
        provider: str = "fake",
        model: str = "m-1",
        api_key: str | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> OpenAIModel:
        models.append(
            OpenAIModel(
                provider=provider,
                model=model,
                base_url=base_url,
                api_key=api_key,
                clock=clock,
                now=lambda: NOW,
            )
        )
        return models[-1]

    yield make
    for model in models:
        await model.aclose()


Outcome = Result[ModelCallResponse, ModelFailure]


def failure_of(outcome: Outcome) -> ModelFailure:
    assert not is_successful(outcome), outcome
    return outcome.failure()


def response_of(outcome: Outcome) -> ModelCallResponse:
    assert is_successful(outcome), outcome
    return outcome.unwrap()


class Both:
    """Asks plainly and as a stream, and insists that it is the same."""

    def __init__(self, make: Make) -> None:
        self.make = make

    async def response(
        self, behaviour: fake.Behaviour, prompt: Prompt = HELLO
    ) -> ModelCallResponse:
        plain, streamed = await self._ask(behaviour, prompt)
        response = response_of(plain)
        assert evolve(response_of(streamed), first_token_latency_ms=None) == response
        return response

    async def failure(self, behaviour: fake.Behaviour, prompt: Prompt = HELLO) -> ModelFailure:
        plain, streamed = await self._ask(behaviour, prompt)
        assert failure_of(plain) == failure_of(streamed)
        return failure_of(plain)

    async def _ask(self, behaviour: fake.Behaviour, prompt: Prompt) -> tuple[Outcome, Outcome]:
        async with ChatEndpoint(default=behaviour) as server:
            model = self.make(server.base_url)
            outcomes = (
                await model.complete(prompt),
                await model.complete(prompt, lambda delta: None),
            )
            await model.aclose()
        return outcomes


@pytest.fixture
def both(model_at: Make) -> Both:
    return Both(model_at)


async def ask(make: Make, behaviour: fake.Behaviour, prompt: Prompt = HELLO) -> Outcome:
    async with ChatEndpoint(behaviour) as server:
        model = make(server.base_url)
        outcome = await model.complete(prompt)
        await model.aclose()
        return outcome


async def ask_streamed(
    make: Make, behaviour: fake.Behaviour, prompt: Prompt = HELLO
) -> tuple[Outcome, list[ModelDelta]]:
    deltas: list[ModelDelta] = []
    async with ChatEndpoint(behaviour) as server:
        model = make(server.base_url)
        outcome = await model.complete(prompt, deltas.append)
        await model.aclose()
        return outcome, deltas


# --- the request --------------------------------------------------------------------------------


def sent_messages(*messages: Message) -> JsonValue:
    return request_body(Prompt(messages), provider="fake", model="m", stream=False)["messages"]


def test_all_system_messages_become_one_leading_message() -> None:
    assert sent_messages(user("a"), system("one"), assistant("b"), system("two")) == [
        {"role": "system", "content": "one\n\ntwo"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]


def test_neighbouring_user_messages_are_merged_and_a_goal_speaks_as_the_user() -> None:
    assert sent_messages(goal("aim"), user("data"), assistant("b"), user("more")) == [
        {"role": "user", "content": "aim\n\ndata"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "more"},
    ]


def test_users_of_different_names_are_not_merged() -> None:
    ann = Message(role=MessageRole.USER, content="a", name="ann")
    assert sent_messages(ann, user("b")) == [
        {"role": "user", "content": "a", "name": "ann"},
        {"role": "user", "content": "b"},
    ]


def test_broken_arguments_in_the_history_are_sent_as_an_empty_object() -> None:
    calls = (
        ToolCallRequest(id="1", name="a", arguments='{"x":1}'),
        ToolCallRequest(id="2", name="b", arguments='{"x":'),
    )
    assert sent_messages(assistant(tool_calls=calls), tool_result("42", tool_call_id="1")) == [
        {
            "role": "assistant",
            "tool_calls": [fake.call("a", '{"x":1}', call_id="1"), fake.call("b", call_id="2")],
        },
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]


def test_an_assistant_message_without_text_and_calls_still_has_content() -> None:
    assert sent_messages(assistant()) == [{"role": "assistant", "content": ""}]


def test_options_and_tools_are_sent_under_the_providers_names() -> None:
    options = ModelOptions(temperature=0.0, top_p=0.5, max_output_tokens=9)
    prompt = Prompt((user("a"),), options, tools=(ToolSpec(name="t", description="d"),))
    tool = {"name": "t", "description": "d", "parameters": {"type": "object"}}
    expected = {
        "model": "m",
        "messages": [{"role": "user", "content": "a"}],
        "temperature": 0.0,
        "top_p": 0.5,
        "tools": [{"type": "function", "function": tool}],
    }
    local = request_body(prompt, provider="ollama", model="m", stream=False)
    assert local == {**expected, "max_tokens": 9}
    openai = request_body(prompt, provider="openai", model="m", stream=False)
    assert openai == {**expected, "max_completion_tokens": 9}


def test_further_options_are_sent_under_the_servers_names() -> None:
    options = ModelOptions(
        seed=0,
        reasoning_effort="low",
        stop=("END",),
        extra={"top_k": 40, "temperature": 9, "model": "other", "messages": []},
    )
    sent = request_body(Prompt((user("a"),), options), provider="p", model="m", stream=False)
    assert sent == {
        "model": "m",
        "messages": [{"role": "user", "content": "a"}],
        "seed": 0,
        "reasoning_effort": "low",
        "stop": ["END"],
        "top_k": 40,
        "temperature": 9,
    }


def test_the_output_request_is_merged_in_and_its_tools_replace_ours() -> None:
    wanted = OutputRequest(
        mode=OutputMode.TOOLS,
        body={"tools": [{"theirs": 1}], "tool_choice": "required"},
        messages=(system("schema"), user("in a code block")),
    )
    prompt = Prompt((user("a"),), tools=(ToolSpec(name="t"),), output_request=wanted)
    assert request_body(prompt, provider="fake", model="m", stream=True) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "schema"},
            {"role": "user", "content": "a\n\nin a code block"},
        ],
        "tools": [{"theirs": 1}],
        "tool_choice": "required",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_half_characters_are_sent_as_question_marks() -> None:
    assert encode_body({"a": "\ud800é"}) == '{"a":"?é"}'.encode()


MESSAGES: list[st.SearchStrategy[Message]] = [
    st.builds(system, st.sampled_from(["be brief", ""])),
    st.builds(Message, role=st.sampled_from(["user", "goal"]), content=st.text(max_size=3)),
    st.builds(
        Message, role=st.just("user"), content=st.none(), name=st.sampled_from([None, "ann"])
    ),
    st.builds(assistant, st.sampled_from([None, "é\ud800", "said"])),
    st.just(assistant(tool_calls=[ToolCallRequest(id="1", name="a", arguments="{")])),
    st.just(tool_result("42", tool_call_id="1", name="a")),
]


@given(st.lists(st.tuples(st.lists(st.one_of(MESSAGES), max_size=4), st.integers(0, 6))))
def test_what_was_written_before_makes_no_difference(
    turns: list[tuple[list[Message], int]],
) -> None:
    writer = RequestWriter(provider="fake", model="m")
    constrained = OutputRequest(mode=OutputMode.JSON, messages=(system("schema"), user("now")))
    conversation: list[Message] = []
    for new, kept in turns:
        conversation = [*conversation[: kept or None], *new]  # 0: goes on; else: rolled back
        for request in (None, constrained):
            prompt = Prompt(conversation, output_request=request)
            expected = request_body(prompt, provider="fake", model="m", stream=False)
            assert json.loads(writer.write(prompt, stream=False)) == expected


def test_each_message_of_a_conversation_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Message] = []
    write = chat_request._message_dict

    def counting(message: Message) -> dict[str, JsonValue]:
        written.append(message)
        return write(message)

    monkeypatch.setattr(chat_request, "_message_dict", counting)
    writer = RequestWriter(provider="fake", model="m")
    conversation = [system("s"), goal("g"), user("u")]
    for turn in range(50):
        writer.write(Prompt(conversation), stream=False)
        writer.write(Prompt(conversation), stream=True)  # as a second attempt does
        call = ToolCallRequest(id=f"c{turn}", name="a")
        conversation += [assistant(tool_calls=[call]), tool_result("r", tool_call_id=call.id)]
    assert written == conversation[1:-2]


def test_nothing_is_kept_for_conversations_that_are_gone() -> None:
    writer = RequestWriter(provider="fake", model="m")
    for number in range(300):
        conversation = [user(f"{number}")]
        writer.write(Prompt(conversation), stream=False)
        conversation += [assistant("a"), user("b")]
        writer.write(Prompt(conversation), stream=False)
    del conversation
    gc.collect()
    assert writer._kept == {}


def test_tools_that_differ_only_to_the_eye_of_json_are_written_anew() -> None:
    writer = RequestWriter(provider="fake", model="m")
    for const in (1, True, 1.0):
        tools = (ToolSpec(name="t", parameters={"const": const}),)
        for _ in range(2):
            raw = writer.write(Prompt((user("a"),), tools=tools), stream=False)
            assert f'"parameters":{{"const":{json.dumps(const)}}}'.encode() in raw


async def test_the_request_goes_to_chat_completions_with_the_key(model_at: Make) -> None:
    async with ChatEndpoint(fake.answer("hi")) as server:
        response_of(await model_at(server.base_url, api_key=KEY).complete(HELLO))
        (request,) = server.requests
        assert (request.method, request.path) == ("POST", "/v1/chat/completions")
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert request.headers["content-type"] == "application/json"
        assert request.body == {"model": "m-1", "messages": [{"role": "user", "content": "hello"}]}


async def test_without_a_key_no_authorization_is_sent(
    model_at: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_ADMIN_KEY", KEY)
    async with ChatEndpoint(fake.answer("hi")) as server:
        response_of(await model_at(server.base_url).complete(HELLO))
        assert "authorization" not in server.requests[0].headers
        assert KEY not in str(server.requests[0].headers)


async def test_what_the_surroundings_say_to_openai_is_not_told_to_other_servers(
    model_at: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-secret")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-secret")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Gateway: gate-secret")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with ChatEndpoint(fake.answer("hi")) as server:
        response_of(await model_at(server.base_url).complete(HELLO))
        assert "secret" not in str(server.requests[0].headers)


async def test_one_connection_serves_many_calls_streamed_or_not(model_at: Make) -> None:
    async with ChatEndpoint(default=fake.answer("hi there")) as server:
        model = model_at(server.base_url)
        for _ in range(3):
            response_of(await model.complete(HELLO))
            response_of(await model.complete(HELLO, lambda delta: None))
        assert (len(server.requests), server.connections) == (6, 1)


async def test_a_closed_model_opens_new_connections_when_asked_again(model_at: Make) -> None:
    async with ChatEndpoint(default=fake.answer("hi")) as server:
        model = model_at(server.base_url)
        await model.aclose()
        response_of(await model.complete(HELLO))
        await model.aclose()
        response_of(await model.complete(HELLO))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the first loop takes its sockets along
def test_one_model_serves_several_event_loops_one_after_the_other() -> None:
    port = free_port()
    model = OpenAIModel(
        provider="f", model="m", base_url=f"http://127.0.0.1:{port}/v1", api_key=None
    )

    async def one_run() -> Outcome:
        async with ChatEndpoint(fake.answer("hi"), port=port):
            return await model.complete(HELLO)

    outcomes = [asyncio.run(one_run()) for _ in range(2)]
    asyncio.run(model.aclose())
    assert [response_of(outcome).text for outcome in outcomes] == ["hi", "hi"]
    gc.collect()  # or the warning comes in a later test


async def test_a_large_request_is_sent_whole(model_at: Make) -> None:
    text = "x" * 3_000_000
    async with ChatEndpoint(default=fake.answer("hi")) as server:
        response_of(await model_at(server.base_url).complete(Prompt((user(text),))))
        assert server.requests[0].messages == [{"role": "user", "content": text}]


async def test_two_hundred_calls_are_on_their_way_at_once(model_at: Make) -> None:
    everyone, count = asyncio.Event(), itertools.count(1)

    async def wait_for_all(exchange: fake.Exchange) -> None:
        if next(count) % 200 == 0:
            everyone.set()
        await everyone.wait()
        await fake.answer("hi")(exchange)

    async with ChatEndpoint(default=wait_for_all) as server:
        model = model_at(server.base_url)
        for _ in range(2):
            everyone.clear()
            outcomes = await asyncio.gather(*(model.complete(HELLO) for _ in range(200)))
            assert {response_of(outcome).text for outcome in outcomes} == {"hi"}
        assert server.connections == 200


async def test_a_server_that_closes_a_kept_connection_is_called_anew(model_at: Make) -> None:
    async def once(exchange: fake.Exchange) -> None:
        await fake.answer("hi")(exchange)
        exchange.drop()

    async with ChatEndpoint(default=once) as server:
        model = model_at(server.base_url)
        for _ in range(3):
            response_of(await model.complete(HELLO))
            for _ in range(20):  # in which the end of the connection arrives
                await asyncio.sleep(0)
        assert server.connections == 3


UNCLOSED = """
import asyncio, gc, sys
sys.path.insert(0, "tests")
from minions.testing import endpoint as fake
from minions.adapters.models.openai import OpenAIModel
from minions.contracts.calls import Prompt
from minions.contracts.messages import user

async def main(name):
    async with fake.ChatEndpoint(fake.answer("hi")) as server:
        model = OpenAIModel(provider="f", model="m", base_url=server.base_url, api_key=None)
        print((await model.complete(Prompt((user("a"),)))).unwrap().text)
        if name == "forgotten":
            del model
            gc.collect()
            await asyncio.sleep(0)
        else:
            return model

kept = asyncio.run(main("kept"))
asyncio.run(main("forgotten"))
vendors = ("openai", "instructor", "aiohttp", "httpx2", "pydantic")
print([name for name in vendors if name in sys.modules])
"""


def test_a_call_loads_no_vendor_and_a_model_that_nobody_closes_does_not_complain() -> None:
    command = [sys.executable, "-c", UNCLOSED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["hi", "hi", "[]"]
    assert done.stderr == ""


async def test_warming_up_twice_costs_nothing(
    model_at: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[object] = []

    async def count(function: Callable[[], None]) -> None:
        threads.append(function)
        function()

    monkeypatch.setattr(http_model, "import_in_daemon_thread", count)
    for url, expected in (("http://127.0.0.1:1/v1", 0), ("https://127.0.0.1:1/v1", 1)):
        threads.clear()
        model = model_at(url)
        await model.warm_up()
        await model.warm_up()
        assert len(threads) == expected


async def test_parallel_calls_get_their_own_answers(model_at: Make) -> None:
    async def echo(exchange: fake.Exchange) -> None:
        await fake.answer(cast("str", exchange.request.messages[0]["content"]))(exchange)

    async with ChatEndpoint(default=echo) as server:
        model = model_at(server.base_url)
        prompts = [Prompt((user(f"n{number}"),)) for number in range(20)]
        sinks = [(lambda delta: None) if number % 2 else None for number in range(20)]
        outcomes = await asyncio.gather(*map(model.complete, prompts, sinks))
    assert [response_of(outcome).text for outcome in outcomes] == [f"n{n}" for n in range(20)]


async def test_only_so_many_requests_are_in_flight_and_that_is_told_once() -> None:
    told: list[str] = []
    together: list[int] = []
    in_flight = 0

    async def slow(exchange: fake.Exchange) -> None:
        nonlocal in_flight
        in_flight += 1
        together.append(in_flight)
        for _ in range(20):
            await asyncio.sleep(0)
        in_flight -= 1
        await fake.answer("ok")(exchange)

    async with ChatEndpoint(default=slow) as server:
        model = OpenAIModel(
            provider="fake",
            model="m",
            base_url=server.base_url,
            api_key=None,
            max_requests=2,
            warn=told.append,
        )
        await asyncio.gather(*(model.complete(Prompt((user(f"n{n}"),))) for n in range(2)))
        assert told == []
        await asyncio.gather(*(model.complete(Prompt((user(f"n{n}"),))) for n in range(6)))
        await model.aclose()
    assert len(together) == 8
    assert max(together) == 2
    (words,) = told
    assert words.startswith("2 requests to 'fake/m' are in flight; further ones wait")
    assert "max_model_requests" in words


async def test_waiting_for_another_request_is_no_time_of_the_models() -> None:
    arrived, release = asyncio.Event(), asyncio.Event()

    async def held(exchange: fake.Exchange) -> None:
        arrived.set()
        await release.wait()
        await fake.answer("first")(exchange)

    async with ChatEndpoint(held, default=fake.answer("second")) as server:
        model = OpenAIModel(
            provider="fake", model="m", base_url=server.base_url, api_key=None, max_requests=1
        )
        patient = Prompt((user("a"),), ModelOptions(timeout_s=100_000.0))
        first = asyncio.ensure_future(model.complete(patient))
        await arrived.wait()
        second = asyncio.ensure_future(
            model.complete(Prompt((user("b"),), ModelOptions(timeout_s=100.0)))
        )
        await asyncio.sleep(0)
        leap(1_000.0)
        await asyncio.sleep(0)
        release.set()
        texts = [response_of(await each).text for each in (first, second)]
        await model.aclose()
    assert texts == ["first", "second"]


def test_models_of_one_server_and_key_share_an_endpoint() -> None:
    def endpoint(base_url: str, key: str | None, *, model: str = "m", **headers: str) -> object:
        made = OpenAIModel(
            provider="p", model=model, base_url=base_url, api_key=key, headers=headers
        )
        return made.endpoint

    one = endpoint("https://h.example/v1", KEY)
    assert one == endpoint("https://h.example:443/v1", KEY, model="other")
    assert one != endpoint("https://h.example/v1", f"{KEY}x")
    assert one != endpoint("https://h.example/v1", None)
    assert one != endpoint("https://h.example:8443/v1", KEY)
    assert one != endpoint("https://h.example/v1", KEY, organization="o")
    assert KEY not in repr(one)


async def test_what_a_server_says_of_its_limits_is_told_with_answers_and_refusals(
    model_at: Make,
) -> None:
    said = {
        "x-ratelimit-limit-requests": "4",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "2s",
    }
    limits = RateLimits(requests=Allowance(0, 2.0, 2.0))
    body = json.dumps(fake.completion("ok")).encode()
    async with ChatEndpoint(
        fake.status(429, headers=said), default=fake.status(200, body, headers=said)
    ) as server:
        model = model_at(server.base_url)
        failure = failure_of(await model.complete(HELLO))
        plain = response_of(await model.complete(HELLO))
        streamed = response_of(await model.complete(HELLO, lambda _: None))
    assert (failure.status, failure.rate_limits) == (429, limits)
    assert plain.rate_limits == streamed.rate_limits == limits


async def test_a_server_that_says_not_to_try_again_is_not_asked_again(model_at: Make) -> None:
    """`x-should-retry: false` (A-156)."""
    for status in (429, 503):
        said = {"x-should-retry": "false", "retry-after": "1"}
        async with ChatEndpoint(fake.status(status, headers=said)) as server:
            failure = failure_of(await model_at(server.base_url).complete(HELLO))
        assert (failure.status, failure.is_retryable) == (status, False)


def test_without_room_for_a_request_there_is_no_model() -> None:
    with pytest.raises(UsageError, match="max_requests=0"):
        OpenAIModel(provider="p", model="m", base_url="http://h/v1", api_key=None, max_requests=0)


def test_the_name_and_capabilities_are_as_given() -> None:
    capabilities = ModelCapabilities(output_mode=OutputMode.TOOLS)
    model = OpenAIModel(
        provider="p",
        model="a/b",
        base_url="http://h/v1",
        api_key=None,
        capabilities=capabilities,
    )
    assert (model.name, model.capabilities) == ("p/a/b", capabilities)


def test_a_bad_base_url_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match=r"`base_url` is 'localhost:8000'"):
        OpenAIModel(provider="p", model="m", base_url="localhost:8000", api_key=None)


def test_importing_the_adapter_imports_no_vendor() -> None:
    code = (
        "import sys, minions.adapters.models.openai, minions.adapters.models.structured_output,"
        " minions.adapters.models.scripted, minions.adapters.models.endpoints;"
        "names = ('openai', 'instructor', 'pydantic', 'httpx2', 'aiohttp', 'jsonschema', 'yaml');"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- answers that are as they should be ---------------------------------------------------------


async def test_a_text_answer_is_the_same_plain_and_streamed(both: Both) -> None:
    assert await both.response(fake.answer("Hello, wörld 🙂!")) == ModelCallResponse(
        message=assistant("Hello, wörld 🙂!"),
        usage=USAGE,
        finish_reason="stop",
        model_name="fake-1",
        provider="fake",
    )


async def test_tool_calls_are_the_same_plain_and_streamed(both: Both) -> None:
    calls = (
        fake.call("a", {"x": "ü"}, call_id="i1"),
        fake.call("b", "{broken", call_id="i2"),
        fake.call("a", "", call_id="i3"),
    )
    response = await both.response(fake.answer("I look.", tool_calls=calls))
    assert response.text == "I look."
    assert response.tool_calls == (
        ToolCallRequest(id="i1", name="a", arguments='{"x": "\\u00fc"}'),
        ToolCallRequest(id="i2", name="b", arguments="{broken"),
        ToolCallRequest(id="i3", name="a", arguments="{}"),
    )
    assert response.finish_reason == "tool_calls"


@pytest.mark.parametrize("empty", [None, "", " \n"])
async def test_empty_content_beside_tool_calls_is_none(both: Both, empty: str | None) -> None:
    response = await both.response(fake.answer(empty, tool_calls=[fake.call("a")]))
    assert response.message == assistant(tool_calls=[ToolCallRequest(id="c1", name="a")])


@pytest.mark.parametrize(
    ("sent", "unique"),
    [
        (("x", "x"), ["x", "call_1"]),
        (("x", "x", "", "call_1", ""), ["x", "call_1_2", "call_2", "call_1", "call_4"]),
        (("x" * 5_000, "y"), ["call_0", "y"]),
    ],
)
async def test_repeated_and_missing_ids_are_made_unique(
    both: Both, sent: Sequence[str], unique: list[str]
) -> None:
    calls = [fake.call("a", call_id=call_id) for call_id in sent]
    response = await both.response(fake.answer(tool_calls=calls))
    assert [call.id for call in response.tool_calls] == unique


async def test_parts_are_joined_and_reasoning_stays_apart(model_at: Make) -> None:
    document = fake.completion("x", reasoning_content="hmm")
    choices = cast("list[dict[str, dict[str, JsonValue]]]", document["choices"])
    choices[0]["message"]["content"] = [
        {"type": "text", "text": "a"},
        {"type": "image"},
        {"type": "text", "text": "b"},
    ]
    response = response_of(await ask(model_at, fake.document(document)))
    assert (response.text, response.message.reasoning) == ("ab", "hmm")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_what_a_model_thinks_aloud_is_kept_apart_from_its_text(
    model_at: Make, field: str
) -> None:
    """A-134."""
    deltas_sent: list[dict[str, JsonValue]] = [{field: "so, "}, {field: "two"}, {"content": "2"}]
    behaviour = fake.stream([*(fake.chunk(each) for each in deltas_sent), "[DONE]"])
    outcome, deltas = await ask_streamed(model_at, behaviour)
    message = response_of(outcome).message
    assert (message.content, message.reasoning) == ("2", "so, two")
    assert [each.reasoning for each in deltas] == ["so, ", "two", None]
    assert "reasoning" not in message.to_message_dict()


async def test_arguments_sent_as_an_object_become_json_text(model_at: Make) -> None:
    item: dict[str, JsonValue] = {"function": {"name": "a", "arguments": {"x": [1, None]}}}
    (call,) = response_of(await ask(model_at, fake.answer(tool_calls=[item]))).tool_calls
    assert call == ToolCallRequest(id="call_0", name="a", arguments='{"x":[1,null]}')


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, TokenUsage()),
        ({"prompt_tokens": 7, "completion_tokens": 2}, TokenUsage(input_tokens=7, output_tokens=2)),
        ({"input_tokens": 7, "output_tokens": 2}, TokenUsage(input_tokens=7, output_tokens=2)),
        (
            {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}},
            TokenUsage(input_tokens=7, cached_tokens=5),
        ),
        (
            {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 5}},
            TokenUsage(input_tokens=7, cached_tokens=5),
        ),
        (
            {
                "input_tokens": 7,
                "prompt_tokens_details": {},
                "input_tokens_details": {"cached_tokens": 5},
            },
            TokenUsage(input_tokens=7, cached_tokens=5),
        ),
        (
            {"prompt_tokens": 7, "prompt_cache_hit_tokens": 4},
            TokenUsage(input_tokens=7, cached_tokens=4),
        ),
        ({"prompt_tokens": "7", "completion_tokens": True, "input_tokens": -1}, TokenUsage()),
        ({"prompt_tokens": None, "prompt_tokens_details": None}, TokenUsage()),
        ({"prompt_tokens": 10**9 + 1, "completion_tokens": 10**30}, TokenUsage()),
        (
            {"prompt_tokens": 7, "prompt_cache_hit_tokens": 500},
            TokenUsage(input_tokens=7, cached_tokens=7),
        ),
    ],
)
def test_usage_is_read_in_every_dialect(said: Mapping[str, object], expected: TokenUsage) -> None:
    assert read_usage(said) == expected
    answer = {"choices": [{"message": {"content": "x"}}], "usage": said}
    usual = read_completion(json.dumps(answer).encode())  # None: it is read as above
    assert usual is None or (usual.usage is not None and usual.usage.as_usage() == expected)


async def test_an_answer_without_usage_counts_nothing(both: Both) -> None:
    assert (await both.response(fake.answer("hi", usage=None))).usage == TokenUsage()


async def test_the_first_token_is_timed_in_a_stream(model_at: Make) -> None:
    ticks = iter([10.0, 10.25, 99.0])

    async with ChatEndpoint(fake.answer("a b c")) as server:
        model = model_at(server.base_url, clock=lambda: next(ticks))
        response = response_of(await model.complete(HELLO, lambda delta: None))
    assert response.first_token_latency_ms == 250.0


# --- streams ------------------------------------------------------------------------------------


async def test_the_pieces_of_text_add_up_to_the_text(model_at: Make) -> None:
    outcome, deltas = await ask_streamed(model_at, fake.answer("one two three"))
    assert [delta.content for delta in deltas] == ["one", " ", "two", " ", "three"]
    assert response_of(outcome).text == "one two three"


async def test_tool_fragments_are_shown_with_their_index(model_at: Make) -> None:
    calls = [fake.call("a", '{"x":1}', call_id="i1")]
    _, deltas = await ask_streamed(model_at, fake.answer(tool_calls=calls))
    assert [delta.tool_call for delta in deltas] == [
        {"index": 0, "id": "i1", "function": {"name": "a", "arguments": '{"x'}},
        {"index": 0, "function": {"name": None, "arguments": '":1}'}},
    ]


def fragment(
    arguments: JsonValue = None,
    *,
    name: str | None = None,
    call_id: str | None = None,
    index: JsonValue = None,
) -> dict[str, JsonValue]:
    given: dict[str, JsonValue] = {"function": {"name": name, "arguments": arguments}}
    if index is not None:
        given["index"] = index
    if call_id is not None:
        given["id"] = call_id
    return given


ONE = ToolCallRequest(id="i1", name="a", arguments='{"x":1}')
TWO = ToolCallRequest(id="i2", name="b", arguments='{"y":2}')


@pytest.mark.parametrize(
    ("fragments", "expected"),
    [
        pytest.param(
            [
                fragment("", name="a", call_id="i1", index=0),
                fragment("", name="b", call_id="i2", index=1),
                fragment('{"y"', index=1),
                fragment('{"x":', index=0),
                fragment(":2}", index=1),
                fragment("1}", index=0),
            ],
            (ONE, TWO),
            id="interleaved by index",
        ),
        pytest.param(
            [
                fragment('{"y":2}', name="b", call_id="i2", index=1),
                fragment('{"x":1}', name="a", call_id="i1", index=0),
            ],
            (ONE, TWO),
            id="second call first",
        ),
        pytest.param(
            [
                fragment('{"x":', name="a", call_id="i1", index=0),
                fragment("1}", name="a", call_id="i1", index=0),
            ],
            (ONE,),
            id="id and name repeated",
        ),
        pytest.param(
            [
                fragment('{"x":', name="a", call_id="i1", index=0),
                fragment("1}", call_id="other", index=0),
            ],
            (ONE,),
            id="another id with each fragment",
        ),
        pytest.param(
            [
                fragment('{"x":1}', name="a", call_id="i1", index=0),
                fragment('{"y":2}', name="b", call_id="i2", index=0),
            ],
            (ONE, TWO),
            id="whole calls, all with index 0",
        ),
        pytest.param(
            [
                fragment('{"x":1}', name="a", call_id="i1"),
                fragment('{"y":2}', name="b", call_id="i2"),
            ],
            (ONE, TWO),
            id="whole calls without index",
        ),
        pytest.param(
            [fragment('{"x":', name="a", call_id="i1"), fragment("1}")],
            (ONE,),
            id="pieces without index and id",
        ),
        pytest.param(
            [
                fragment('{"x":', name="a", call_id="i1"),
                fragment('{"y":', name="b", call_id="i2"),
                fragment("1}", call_id="i1"),
                fragment("2}", call_id="i2"),
            ],
            (ONE, TWO),
            id="pieces told apart by id alone",
        ),
        pytest.param(
            [fragment({"x": 1}, name="a"), fragment({"x": 1}, name="a")],
            (evolve(ONE, id="call_0"), evolve(ONE, id="call_1")),
            id="the same whole call twice, arguments as objects, no ids",
        ),
        pytest.param(
            [fragment('{"x":', name="a", index=7), fragment("1}", name="a", index=7)],
            (evolve(ONE, id="call_0"),),
            id="name repeated, no id, odd index",
        ),
    ],
)
async def test_fragments_of_every_make_are_put_together(
    model_at: Make, fragments: list[dict[str, JsonValue]], expected: tuple[ToolCallRequest, ...]
) -> None:
    pieces = [fake.chunk({"tool_calls": [item]}) for item in fragments]
    script = fake.stream([*pieces, fake.chunk({}, finish_reason="tool_calls"), "[DONE]"])
    outcome, _ = await ask_streamed(model_at, script)
    assert response_of(outcome).tool_calls == expected


def streamed(*parts: bytes) -> Outcome:
    peer = ChatPeer(provider="fake", model="m-1", base_url="http://h/v1")
    reader = StreamedAnswer(peer, lambda: 0.0, 0.0)
    for part in parts:
        reader.feed(part)
    return reader.result()


WHOLE = b"".join(fake.event(item) for item in fake.chunks(fake.completion("h\u00e9 \U0001f642")))


@given(st.lists(st.integers(1, len(WHOLE) - 1), max_size=12), st.sampled_from(["\n", "\r\n", "\r"]))
def test_a_stream_may_be_cut_into_pieces_anywhere(places: list[int], newline: str) -> None:
    data = (WHOLE + b"data: [DONE]\n\n").replace(b"\n", newline.encode())
    ends = [0, *sorted(places), len(data)]
    parts = [data[start:end] for start, end in itertools.pairwise(ends)]
    response = response_of(streamed(*parts))
    assert (response.text, response.usage) == ("h\u00e9 \U0001f642", USAGE)


def test_comments_ids_and_many_data_lines_are_read_as_the_standard_says() -> None:
    text = json.dumps(fake.chunk({"content": "hi"}, finish_reason="stop"), indent=1)
    lines = "\n".join(f"data: {line}" for line in text.splitlines())
    stream = f"\ufeffdata\n: keep-alive\nid: 1\nevent: x\nretry: 3\n{lines}\n\n".encode()
    assert response_of(streamed(stream)).text == "hi"


def test_a_last_event_without_its_blank_line_counts() -> None:
    last = json.dumps(fake.chunk({"content": "hi"}, finish_reason="stop"))
    assert response_of(streamed(f"data: {last}".encode())).text == "hi"


def test_half_characters_in_two_pieces_are_one_character() -> None:
    halves = [r'"a\ud83d"', r'"\ude42b\ud83d"', '""', r'"\ude42"', r'"\ud83d"', '"c"', r'"\ude42"']
    pieces = [f'data: {{"choices":[{{"delta":{{"content":{text}}}}}]}}\n\n' for text in halves]
    reader = StreamedAnswer(ChatPeer(provider="f", model="m", base_url="http://h"), float, 0.0)
    deltas = [delta.content for piece in pieces for delta in reader.feed(piece.encode())]
    reader.feed(b"data: [DONE]\n\n")
    assert deltas == ["a", "\U0001f642b", "\U0001f642", "\ud83dc", "\ude42"]
    assert response_of(reader.result()).text == "a\U0001f642b\U0001f642\ud83dc\ude42"


def test_half_characters_meet_in_arguments_too() -> None:
    pieces = [r'"{\"x\": \"\ud83d"', r'"\ude42\"}"']
    calls = [
        f'{{"index":0,"id":"1","function":{{"name":"a","arguments":{text}}}}}' for text in pieces
    ]
    events = [f'data: {{"choices":[{{"delta":{{"tool_calls":[{call}]}}}}]}}\n\n' for call in calls]
    (call,) = response_of(streamed("".join([*events, "data: [DONE]\n\n"]).encode())).tool_calls
    assert call.arguments == '{"x": "\U0001f642"}'


def test_lines_without_a_blank_one_take_no_quadratic_time() -> None:
    parts = [b": ping\n"] * 100_000
    assert failure_of(streamed(*parts)).code == "malformed-response"


def test_a_long_line_in_small_pieces_takes_no_quadratic_time() -> None:
    data = fake.event(fake.chunk({"content": "x" * 2_000_000}, finish_reason="stop"))
    parts = [data[start : start + 50] for start in range(0, len(data), 50)]
    text = response_of(streamed(*parts)).text
    assert text is not None
    assert len(text) == 2_000_000


async def test_a_finish_without_done_is_a_whole_answer(model_at: Make) -> None:
    pieces = fake.chunks(fake.completion("hi"))
    for ends in ("in order", "cut"):
        outcome, _ = await ask_streamed(model_at, fake.stream(pieces, ends=ends))
        assert response_of(outcome).text == "hi"


async def test_done_without_a_finish_reason_is_a_whole_answer(model_at: Make) -> None:
    outcome, _ = await ask_streamed(model_at, fake.stream([fake.chunk({"content": "a"}), "[DONE]"]))
    assert response_of(outcome).text == "a"


async def test_a_server_that_keeps_the_connection_open_after_the_end_is_not_waited_for(
    model_at: Make,
) -> None:
    pieces = fake.chunks(fake.completion("hi"))
    prompt = Prompt((user("a"),), ModelOptions(timeout_s=HANG_S, idle_timeout_s=1))
    for events in (pieces, [*pieces, "[DONE]"]):
        outcome, _ = await ask_streamed(model_at, fake.stream(events, ends="silent"), prompt)
        assert response_of(outcome).text == "hi"


async def test_a_server_that_ignores_the_wish_for_a_stream_is_understood(model_at: Make) -> None:
    document = fake.completion("all at once", tool_calls=[fake.call("a")])
    outcome, deltas = await ask_streamed(model_at, fake.document(document))
    assert response_of(outcome).text == "all at once"
    assert deltas == [
        ModelDelta(content="all at once"),
        ModelDelta(tool_call={"index": 0, **fake.call("a")}),
    ]


# --- answers that are none ----------------------------------------------------------------------


async def test_an_answer_cut_off_at_the_limit_is_terminal_and_paid_for(both: Both) -> None:
    assert await both.failure(fake.answer('{"a":', finish_reason="length")) == ModelFailure(
        code="output-truncated",
        message="The answer of 'fake/m-1' was cut off at its token limit after 3 output tokens. "
        "Raise max_output_tokens, or ask for less.",
        usage=USAGE,
        suggestions=("raise max_output_tokens",),
        text='{"a":',
    )


async def test_a_refusal_is_terminal_with_the_models_words(both: Both) -> None:
    failure = await both.failure(fake.answer(refusal="I must not."))
    assert failure == ModelFailure(
        code="refused", message="'fake/m-1' refused to answer: I must not.", usage=USAGE
    )


async def test_a_filtered_answer_is_terminal(both: Both) -> None:
    failure = await both.failure(fake.answer("half", finish_reason="content_filter"))
    assert (failure.code, failure.is_retryable) == ("content-filtered", False)


@pytest.mark.parametrize("text", [None, "", "  \n"])
async def test_neither_text_nor_calls_is_an_empty_response(both: Both, text: str | None) -> None:
    failure = await both.failure(fake.answer(text))
    assert (failure.code, failure.is_retryable, failure.usage) == ("empty-response", True, USAGE)


MALFORMED: Mapping[str, bytes] = {
    "nothing": b"",
    "empty object": b"{}",
    "null": b"null",
    "a list": b"[]",
    "choices null": b'{"choices": null}',
    "choices empty": b'{"choices": []}',
    "choices of text": b'{"choices": "no"}',
    "choice null": b'{"choices": [null]}',
    "no message": b'{"choices": [{"finish_reason": "stop"}]}',
    "message of text": b'{"choices": [{"message": "hi"}]}',
    "content a number": b'{"choices": [{"message": {"content": 7}}]}',
    "calls no list": b'{"choices": [{"message": {"tool_calls": {"a": 1}}}]}',
    "call null": b'{"choices": [{"message": {"tool_calls": [null]}}]}',
    "call without name": b'{"choices": [{"message": {"tool_calls": [{"id": "1"}]}}]}',
    "function of text": b'{"choices": [{"message": {"tool_calls": [{"function": "f"}]}}]}',
    "half a document": b'{"choices": [{"mess',
    "html": b"<html><body>Bad gateway</body></html>",
    "not UTF-8": b"\xff\xfe\x00{}",
    "too deep": b"[" * 100_000,
    "too many calls": json.dumps(
        fake.completion(tool_calls=[fake.call("a", call_id="")] * 2_000)
    ).encode(),
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
async def test_a_200_that_is_no_completion_is_malformed_and_retryable(
    both: Both, raw: bytes
) -> None:
    failure = await both.failure(fake.body(raw))
    assert (failure.code, failure.is_retryable) == ("malformed-response", True)
    assert "fake/m-1" in failure.message
    assert len(failure.message) < 600


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
async def test_garbage_in_a_stream_is_a_failure_that_may_be_retried(
    model_at: Make, raw: bytes
) -> None:
    outcome, _ = await ask_streamed(
        model_at, fake.stream([b"data: " + raw.replace(b"\n", b" ") + b"\n\n"])
    )
    assert failure_of(outcome).is_retryable
    outcome, _ = await ask_streamed(model_at, fake.stream([raw or b"\n"]))
    assert failure_of(outcome).code == "malformed-response"


_LOST: Mapping[str, Mapping[str, JsonValue]] = {
    "no answer in it": {"choices": []},
    "no message": {"choices": [{"index": 0, "message": None}]},
    "an error": {"error": {"message": "lost a worker"}},
    "a call without a name": fake.completion(tool_calls=[fake.call("")]),
}


@pytest.mark.parametrize("document", _LOST.values(), ids=_LOST)
async def test_an_answer_that_cannot_be_taken_was_paid_for(
    model_at: Make, document: Mapping[str, JsonValue]
) -> None:
    used: JsonValue = {"prompt_tokens": 11, "completion_tokens": 3}
    said: dict[str, JsonValue] = {**document, "usage": used}
    plain = failure_of(await ask(model_at, fake.document(said)))
    outcome, _ = await ask_streamed(model_at, fake.stream([said, "[DONE]"]))
    assert plain.is_retryable
    assert (plain.usage, failure_of(outcome).usage) == (USAGE, USAGE)


async def test_a_stream_that_reports_its_usage_and_breaks_was_paid_for(model_at: Make) -> None:
    used: JsonValue = {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 3}}
    begun = [fake.chunk({"content": "half"}), used]
    for last in ({"error": {"message": "lost a worker"}}, "no JSON", {"choices": 3}):
        outcome, _ = await ask_streamed(model_at, fake.stream([*begun, last]))
        assert failure_of(outcome).usage == USAGE
    silent = fake.stream(begun, ends="silent")
    patient = ModelOptions(idle_timeout_s=1)  # what came before has to be read by then
    outcome, _ = await ask_streamed(model_at, silent, evolve(HELLO, options=patient))
    assert (failure_of(outcome).code, failure_of(outcome).usage) == ("model-timeout", USAGE)


def test_a_stream_that_is_none_is_told_alike_wherever_it_is_cut() -> None:
    page = b"\n" * 1_990 + b"not found " * 100
    peer = ChatPeer(provider="f", model="m", base_url="http://h")
    whole = StreamedAnswer(peer, float, 0.0)
    whole.feed(page)
    for size in (1, 7, 1_999):
        cut = StreamedAnswer(peer, float, 0.0)
        for at in range(0, len(page), size):
            cut.feed(page[at : at + size])
        assert cut.result() == whole.result()


async def test_a_malformed_answer_shows_its_first_200_characters(model_at: Make) -> None:
    page = b"<html>\n" + b"x" * 5_000
    failure = failure_of(await ask(model_at, fake.body(page, content_type="text/html")))
    assert f"It starts with: <html> {'x' * 193}…" in failure.message


@pytest.mark.parametrize(
    ("error", "code", "is_retryable"),
    [
        ("out of memory", "model-unavailable", True),
        ({"message": "overloaded", "type": "overloaded_error"}, "model-unavailable", True),
        ({"message": "slow down", "code": 429}, "rate-limited", True),
        ({"message": "slow down", "type": "rate_limit_error"}, "rate-limited", True),
        ({"message": "pay first", "code": "insufficient_quota"}, "quota-exhausted", False),
        ({"message": "who?", "code": "invalid_api_key"}, "auth-rejected", False),
        ({"message": "bad tools", "type": "invalid_request_error"}, "bad-request", False),
        ({"odd": 1}, "model-unavailable", True),
    ],
)
async def test_an_error_inside_a_200_is_a_failure_with_its_words(
    model_at: Make, error: JsonValue, code: str, is_retryable: bool
) -> None:
    plain = failure_of(await ask(model_at, fake.document({"error": error, "choices": []})))
    begun = fake.chunk({"content": "I was"})
    outcome, _ = await ask_streamed(model_at, fake.stream([begun, {"error": error}]))
    assert failure_of(outcome).message.split("answered")[1] == plain.message.split("answered")[1]
    assert (plain.code, plain.is_retryable) == (code, is_retryable)
    said = error if isinstance(error, str) else cast("dict[str, str]", error).get("message", "odd")
    assert said in plain.message
    assert "answered HTTP 200 with an error for 'fake/m-1': " in plain.message


LONG = "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens."


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (
            400,
            {"message": LONG, "type": "invalid_request_error", "code": "context_length_exceeded"},
        ),
        (400, {"message": LONG, "type": "BadRequestError", "code": 400}),
        (400, {"message": "prompt is too long: 200001 tokens > 200000 maximum"}),
        (400, {"message": "The input token count (40000) exceeds the maximum number of tokens"}),
        (413, {"message": "Please reduce the length of the messages or completion."}),
        (
            400,
            {
                "message": "request (4390 tokens) exceeds the available context size (4096 tokens)",
                "type": "exceed_context_size_error",
                "n_ctx": 4096,
            },
        ),
        (500, {"message": "Context size has been exceeded.", "type": "server_error"}),
        (200, {"message": "too long", "type": "exceed_context_size_error", "code": 400}),
    ],
)
async def test_a_prompt_that_is_too_long_is_told_as_such_whatever_the_server_says(
    model_at: Make, status: int, error: JsonValue
) -> None:
    """It is not tried again, and the failure says what can be done."""
    raw = json.dumps({"error": error}).encode()
    failure = failure_of(await ask(model_at, fake.status(status, raw)))
    assert (failure.code, failure.is_retryable) == ("context-exceeded", False)
    assert failure.message.startswith("The prompt is longer than 'fake/m-1' takes: ")
    assert "history: {max_tokens: N, strategy: drop}" in failure.suggestions[0]


@pytest.mark.parametrize(
    "words", ["response_format is not supported", "unknown type json_schema", "too long"]
)
async def test_a_server_that_knows_no_schemas_is_told_of_the_other_modes(
    model_at: Make, words: str
) -> None:
    raw = json.dumps({"error": {"message": words}}).encode()
    failure = failure_of(await ask(model_at, fake.status(400, raw)))
    assert failure.code == "bad-request"
    modes = ("output_mode: json", "output_mode: md_json", "output_mode: tools")
    assert failure.suggestions == (() if words == "too long" else modes)
    assert all(mode in failure.message for mode in failure.suggestions)


# --- failures of the transport ------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("provider", "tip"), [("ollama", "ollama serve"), ("fake", "check that the server is running")]
)
async def test_a_server_that_does_not_run_is_unreachable(
    model_at: Make, provider: str, tip: str
) -> None:
    base_url = f"http://127.0.0.1:{free_port()}/v1"
    failure = failure_of(await model_at(base_url, provider=provider).complete(HELLO))
    assert (failure.code, failure.is_retryable) == ("model-unreachable", True)
    assert base_url in failure.message
    assert tip in failure.message
    assert tip in failure.suggestions[0]


async def test_a_host_without_an_address_is_unreachable(
    model_at: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_address(*_: object, **__: object) -> object:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", no_address)
    failure = failure_of(await model_at("http://no-such-host.invalid/v1").complete(HELLO))
    assert (failure.code, failure.is_retryable) == ("model-unreachable", True)
    assert "http://no-such-host.invalid/v1" in failure.message


async def test_a_connection_closed_without_a_byte_is_unreachable(both: Both) -> None:
    failure = await both.failure(fake.drop())
    assert (failure.code, failure.is_retryable) == ("model-unreachable", True)


async def test_an_answer_cut_in_the_middle_is_interrupted(model_at: Make) -> None:
    plain = failure_of(await ask(model_at, fake.cut(b'{"choices": [')))
    outcome, _ = await ask_streamed(
        model_at, fake.stream([fake.chunk({"content": "I was"})], ends="cut")
    )
    for failure in (plain, failure_of(outcome)):
        assert (failure.code, failure.is_retryable) == ("stream-interrupted", True)


async def test_a_stream_that_ends_before_its_finish_is_interrupted(model_at: Make) -> None:
    half = b'data: {"choices": [{"delta": {"conte'
    for tail in (b"", half):
        script = fake.stream([fake.chunk({"content": "a"}), tail or b": nothing\n"])
        outcome, deltas = await ask_streamed(model_at, script)
        assert failure_of(outcome).is_retryable
        assert deltas == [ModelDelta(content="a")]
    outcome, _ = await ask_streamed(model_at, fake.stream([fake.chunk({"content": "a"})]))
    assert failure_of(outcome).code == "stream-interrupted"


async def test_an_answer_that_does_not_come_in_time_is_a_timeout(both: Both) -> None:
    for late in (fake.hang(), fake.slow(0.3, fake.answer("late"))):
        failure = await both.failure(late, Prompt((user("a"),), QUICK))
        assert (failure.code, failure.is_retryable) == ("model-timeout", True)
        assert "did not complete its answer within 0.15 s" in failure.message
        assert failure.suggestions == ("raise timeout_s",)


@pytest.mark.asyncio(loop_factories=["asyncio"])  # its clock leaps
async def test_an_answer_that_trickles_forever_ends_at_the_total_timeout(model_at: Make) -> None:
    endless = fake.stream([fake.chunk({"content": "a"})] * 1_000, pause_s=0.02)
    prompt = Prompt((user("a"),), ModelOptions(timeout_s=600, idle_timeout_s=6_000))
    async with ChatEndpoint(endless) as server:
        outcome = await model_at(server.base_url).complete(prompt, lambda delta: leap(1_000))
    assert failure_of(outcome).suggestions == ("raise timeout_s",)


async def test_silence_in_mid_answer_is_a_timeout_of_its_own(model_at: Make) -> None:
    prompt = Prompt((user("a"),), ModelOptions(timeout_s=HANG_S, idle_timeout_s=0.05))
    outcome, _ = await ask_streamed(
        model_at, fake.stream([fake.chunk({"content": "a"})], ends="silent"), prompt
    )
    plain = await ask(model_at, fake.silent_after(b'{"choices": ['), prompt)
    for failure in (failure_of(outcome), failure_of(plain)):
        assert (failure.code, failure.is_retryable) == ("model-timeout", True)
        assert "stopped sending in the middle of its answer for 0.05 s" in failure.message
        assert failure.suggestions == ("raise idle_timeout_s",)


async def test_thinking_before_the_first_byte_is_not_silence(both: Both) -> None:
    async def think(exchange: fake.Exchange) -> None:
        leap(100)
        await fake.slow(0.01, fake.answer("thought"))(exchange)

    prompt = Prompt((user("a"),), ModelOptions(timeout_s=600, idle_timeout_s=50))
    response = await both.response(think, prompt)
    assert response.text == "thought"


async def test_a_huge_answer_is_refused(model_at: Make) -> None:
    failure = failure_of(await ask(model_at, fake.huge(21 * 1_048_576)))
    assert (failure.code, failure.is_retryable) == ("response-too-large", False)
    assert "larger than 20 MiB" in failure.message


async def test_a_huge_error_is_not_read_to_its_end(model_at: Make) -> None:
    failure = failure_of(await ask(model_at, fake.huge(200 * 1_048_576, code=400)))
    assert failure.code == "bad-request"
    assert len(failure.message) < 700


async def test_an_error_that_breaks_off_is_a_failure(model_at: Make) -> None:
    broken = fake.status(500, b'{"err', headers={"Content-Length": "100"})

    async def behave(exchange: fake.Exchange) -> None:
        await broken(exchange)
        exchange.drop()

    assert failure_of(await ask(model_at, behave)).is_retryable


@pytest.mark.parametrize("events", [None, [], [fake.chunk({"content": "a"})]])
async def test_cancelling_passes_at_once_and_closes_the_connection(
    model_at: Make, events: list[JsonValue] | None
) -> None:
    script = fake.hang() if events is None else fake.stream(events, ends="silent")
    async with ChatEndpoint(script) as server:
        call = asyncio.create_task(model_at(server.base_url).complete(HELLO, lambda delta: None))
        await asyncio.wait_for(server.waiting.wait(), HANG_S)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(server.left.wait(), HANG_S)


async def test_an_exception_of_the_listener_is_not_swallowed(model_at: Make) -> None:
    def broken(delta: ModelDelta) -> None:
        raise TimeoutError("the screen is gone")

    async with ChatEndpoint(fake.answer("hi")) as server:
        with pytest.raises(TimeoutError, match="the screen is gone"):
            await model_at(server.base_url).complete(HELLO, broken)


# --- HTTP status --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected", "is_retryable"),
    [
        (400, "bad-request", False),
        (401, "auth-rejected", False),
        (402, "bad-request", False),
        (403, "auth-rejected", False),
        (404, "model-not-found", False),
        (408, "model-unavailable", True),
        (409, "model-unavailable", True),
        (413, "bad-request", False),
        (422, "bad-request", False),
        (429, "rate-limited", True),
        (500, "model-unavailable", True),
        (503, "model-unavailable", True),
        (529, "model-unavailable", True),
    ],
)
async def test_each_status_has_its_code(
    both: Both, code: int, expected: str, is_retryable: bool
) -> None:
    failure = await both.failure(fake.status(code, fake.error_body("the words")))
    assert (failure.code, failure.is_retryable) == (expected, is_retryable)
    assert "the words" in failure.message


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"error": {"message": "deep"}}', "deep"),
        (b'{"error": "flat"}', "flat"),
        (b'{"message": "top"}', "top"),
        (b'{"detail": [{"loc": ["body"], "msg": "bad"}]}', '"msg": "bad"'),
        (b"<h1>Oh\n\nno</h1>", "<h1>Oh no</h1>"),
        (b"", "no message"),
        (b"{", "{"),
        (b"[]", "[]"),
        (b"\xff", "\ufffd"),
    ],
)
async def test_the_servers_words_are_found_in_every_dialect(
    model_at: Make, raw: bytes, words: str
) -> None:
    failure = failure_of(await ask(model_at, fake.status(400, raw)))
    assert failure.message.endswith(f"answered HTTP 400 for 'fake/m-1': {words}") or (
        words in failure.message
    )


async def test_a_missing_model_is_named_with_its_endpoint(model_at: Make) -> None:
    async with ChatEndpoint(fake.status(404, fake.error_body("no such model"))) as server:
        model = model_at(server.base_url, provider="ollama", model="lama3")
        failure = failure_of(await model.complete(HELLO))
        assert f"no model 'lama3' at {server.base_url}" in failure.message
        assert failure.suggestions[0] == "ollama pull lama3"


async def test_a_used_up_quota_is_not_retried(model_at: Make) -> None:
    raw = fake.error_body("You exceeded your quota", code="insufficient_quota")
    failure = failure_of(await ask(model_at, fake.status(429, raw)))
    assert (failure.code, failure.is_retryable) == ("quota-exhausted", False)


async def test_a_rate_limit_says_how_long_to_wait(model_at: Make) -> None:
    script = fake.status(429, fake.error_body("slow"), headers={"Retry-After": "7"})
    failure = failure_of(await ask(model_at, script))
    assert failure.retry_after_s == 7.0
    assert failure.message.endswith("slow (It asks to be left alone for 7 s.)")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0.0),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "Fri, 02 Jan 2026 03:04:35 GMT"}, 30.0),
        ({"retry-after": "Fri, 02 Jan 2026 03:04:35 -0000"}, 30.0),
        ({"retry-after": "Thu, 01 Jan 2026 00:00:00 GMT"}, 0.0),
        ({"retry-after": "2 Jan 6 44444444444:1"}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
    ],
)
def test_retry_after_is_read_in_all_its_forms(
    headers: Mapping[str, str], expected: float | None
) -> None:
    assert retry_after_s(headers, NOW) == expected


# --- the key stays where it belongs -------------------------------------------------------------


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(model_at: Make, code: int) -> None:
    async with ChatEndpoint() as elsewhere:
        target = f"http://u:pw@{elsewhere.host}/v1/chat/completions?token=t"
        moved = fake.status(code, headers={"Location": target})
        async with ChatEndpoint(default=moved) as server:
            model = model_at(server.base_url, api_key=KEY)
            for sink in (None, lambda delta: None):
                failure = failure_of(await model.complete(HELLO, sink))
                assert (failure.code, failure.is_retryable) == ("redirected", False)
                assert f"to http://{elsewhere.host}/v1/chat/completions." in failure.message
                assert "pw" not in failure.message
        assert elsewhere.requests == []


@pytest.mark.parametrize("code", [200, 400, 401, 403, 404, 429, 500])
async def test_a_server_that_quotes_the_key_is_not_repeated(model_at: Make, code: int) -> None:
    padding = "x" * 180  # so that the key lies across the end of what is shown
    raw = fake.error_body(f"{padding} Incorrect API key provided: {KEY} {KEY}")
    async with ChatEndpoint(default=fake.status(code, raw)) as server:
        model = model_at(server.base_url, api_key=KEY)
        failure = failure_of(await model.complete(HELLO))
    assert "secret" not in str(failure)
    assert "Incorrect API key provided: ***" in failure.message


async def test_garbage_that_holds_the_key_is_not_repeated(model_at: Make) -> None:
    async with ChatEndpoint(default=fake.body(f"{'x' * 190} {KEY}".encode())) as server:
        model = model_at(server.base_url, api_key=KEY)
        assert "sk-" not in str(failure_of(await model.complete(HELLO)))


@pytest.mark.parametrize("key", ["sk-with\nbreak", "sk-with-ü", "sk with blank", "sk\x00zero"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(EnvironmentRefusedError, match="`api_key` holds") as caught:
        OpenAIModel(provider="p", model="m", base_url="http://h/v1", api_key=key)
    assert caught.value.error_code == "bad-key"
    assert "sk" not in str(caught.value)


async def test_a_refused_call_without_a_key_says_that_none_was_sent(model_at: Make) -> None:
    failure = failure_of(await ask(model_at, fake.status(401, fake.error_body("who are you?"))))
    assert "No key was sent" in failure.message
    assert failure.suggestions[0].startswith("set base_url and api_key_env of [providers.fake]")


async def test_what_cannot_be_written_as_json_is_a_bad_request(model_at: Make) -> None:
    prompt = Prompt((user("a"),), ModelOptions(temperature=float("nan")))
    failure = failure_of(await ask(model_at, fake.answer("hi"), prompt))
    assert (failure.code, failure.is_retryable) == ("bad-request", False)


# --- clients of the SDK -------------------------------------------------------------------------


async def test_what_a_client_was_configured_with_goes_along() -> None:
    from openai import AsyncOpenAI

    async with ChatEndpoint(default=fake.answer("hi")) as server:
        client = AsyncOpenAI(
            api_key=KEY,
            base_url=server.base_url,
            organization="org-1",
            project="proj-1",
            default_headers={"X-Gateway": "gate-secret", "Accept": "application/json"},
            default_query={"tier": "flex 1"},
        )
        model = OpenAIModel.from_client(client, model="gpt-x")
        response_of(await model.complete(Prompt((user("a"),), ModelOptions(max_output_tokens=5))))
        await model.aclose()
    (request,) = server.requests
    assert model.name == "openai/gpt-x"
    assert request.path == "/v1/chat/completions?tier=flex+1"
    sent = ("authorization", "openai-organization", "openai-project", "x-gateway", "accept")
    told = [f"Bearer {KEY}", "org-1", "proj-1", "gate-secret", "application/json"]
    assert [request.headers[name] for name in sent] == told
    assert not [name for name in request.headers if name.startswith("x-stainless")]
    assert request.body == {
        "model": "gpt-x",
        "messages": [{"role": "user", "content": "a"}],
        "max_completion_tokens": 5,
    }
    await client.close()


@pytest.mark.parametrize(
    ("client_s", "shown", "option"),
    [(0.05, "within 0.05 s", "the client's timeout"), (9, "within 0.15 s", "timeout_s")],
)
async def test_the_shorter_of_two_timeouts_ends_a_call(
    client_s: float, shown: str, option: str
) -> None:
    from openai import AsyncOpenAI

    async with ChatEndpoint(default=fake.hang()) as server:
        client = AsyncOpenAI(api_key=KEY, base_url=server.base_url, timeout=client_s)
        model = OpenAIModel.from_client(client, model="m")
        failure = failure_of(await model.complete(Prompt((user("a"),), QUICK)))
        await model.aclose()
    assert (failure.code, failure.suggestions) == ("model-timeout", (f"raise {option}",))
    assert shown in failure.message


async def test_what_a_client_sends_in_secret_is_not_repeated() -> None:
    from openai import AsyncOpenAI

    raw = fake.error_body(f"no gate-secret, no {KEY}")
    async with ChatEndpoint(default=fake.status(403, raw)) as server:
        client = AsyncOpenAI(
            api_key=KEY, base_url=server.base_url, default_headers={"X-Gateway": "gate-secret"}
        )
        model = OpenAIModel.from_client(client, model="m")
        failure = failure_of(await model.complete(HELLO))
        await model.aclose()
    assert failure.message.endswith("for 'openai/m': no ***, no ***")


async def test_further_headers_are_sent_and_shown_nowhere() -> None:
    script = fake.status(403, fake.error_body("no gate-secret"))
    async with ChatEndpoint(default=script) as server:
        headers = {"X-Gateway": "gate-secret", "user-agent": "lab"}
        model = OpenAIModel("m", base_url=server.base_url, headers=headers)
        failure = failure_of(await model.complete(HELLO))
        await model.aclose()
        sent = server.requests[0].headers
    assert (sent["x-gateway"], sent["user-agent"]) == ("gate-secret", "lab")
    assert "gate-secret" not in failure.message + repr(model._route)
    with pytest.raises(EnvironmentRefusedError) as caught:
        OpenAIModel("m", base_url="http://127.0.0.1:1", headers={"X-Gateway": "gate\nsecret"})
    assert caught.value.error_code == "bad-header"
    assert "secret" not in str(caught.value)


async def test_a_synchronous_client_and_the_one_of_instructor_are_taken_over_likewise() -> None:
    import instructor
    from openai import AsyncOpenAI, OpenAI

    async with ChatEndpoint(default=fake.answer("hi")) as server:
        plain = OpenAI(api_key=KEY, base_url=server.base_url, organization="org-1")
        around = instructor.from_openai(
            AsyncOpenAI(api_key=KEY, base_url=server.base_url, organization="org-1")
        )
        for client in (plain, around):
            model = OpenAIModel.from_client(client, model="m")
            response_of(await model.complete(HELLO))
            await model.aclose()
    first, second = server.requests
    assert first.body == second.body
    assert [each.headers["openai-organization"] for each in (first, second)] == ["org-1"] * 2


async def test_a_client_without_a_plain_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from openai import AsyncAzureOpenAI, AsyncOpenAI, AzureOpenAI

    async def key() -> str:
        return KEY

    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    azure = AsyncAzureOpenAI(
        api_key=KEY, azure_endpoint="https://h.example", api_version="2024-10-21"
    )
    other = AzureOpenAI(api_key=KEY, azure_endpoint="https://h.example", api_version="2024-10-21")

    class Own(AsyncOpenAI):
        """Of an application, which is as the SDK's."""

    assert OpenAIModel.from_client(Own(api_key=KEY), model="m").name == "openai/m"
    for client in (AsyncOpenAI(api_key=key), azure, other, object()):
        with pytest.raises(UsageError, match="without a plain `api_key`") as caught:
            OpenAIModel.from_client(client, model="m")  # type: ignore[arg-type]  # an object, too
        assert caught.value.error_code == "unknown-client"
    broken = AsyncOpenAI(api_key=KEY, default_headers={"X-Gateway": "gate\nsecret"})
    with pytest.raises(EnvironmentRefusedError, match="The client's header X-Gateway") as refused:
        OpenAIModel.from_client(broken, model="m")
    assert "secret" not in str(refused.value)


async def test_a_model_is_made_of_its_name_and_address() -> None:
    async with ChatEndpoint(fake.answer("Hello.")) as server:
        model = OpenAIModel("tiny", base_url=server.base_url, api_key="sk-1")
        assert is_successful(await model.complete(HELLO))
        await model.aclose()
    assert model.name == "openai/tiny"
    assert server.requests[0].headers["authorization"] == "Bearer sk-1"


def test_a_model_without_an_address_is_openais(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(EnvironmentRefusedError, match="OPENAI_API_KEY"):
        OpenAIModel("gpt-5-mini")
    assert OpenAIModel("gpt-5-mini", api_key="sk-1").base_url == "https://api.openai.com/v1"


def test_the_key_of_openai_does_not_go_to_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    model = OpenAIModel("tiny", base_url="https://elsewhere.test/v1")
    assert "sk-secret" not in repr(model._route.headers) + str(model._route.headers)
