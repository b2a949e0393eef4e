"""Tools that were found, as each server is told of them: where they were found, or at the head."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest
from attrs import evolve, field, frozen
from returns.pipeline import is_successful

from benchmarks.tool_servers import tool_specs
from builders import fake_tool, run_recipe, text_step
from minions.adapters.models.anthropic import AnthropicModel
from minions.adapters.models.endpoints import OperatorModels, ProviderConfig, resolve_endpoint
from minions.adapters.models.http_model import HttpModel
from minions.adapters.models.responses import ResponsesModel
from minions.contracts.calls import ModelCapabilities, Prompt
from minions.contracts.messages import (
    Message,
    ToolCallRequest,
    assistant,
    system,
    tool_result,
    user,
)
from minions.contracts.model_endpoints import ModelApi
from minions.contracts.tool_search import FIND_TOOLS
from minions.contracts.tools import ToolSpec
from minions.engine.compile.offered_tools import FindTools
from minions.testing.endpoint import ChatEndpoint
from strict_servers.anthropic import StrictAnthropic
from strict_servers.gemini import StrictGemini
from strict_servers.openai import StrictChat, StrictResponses
from strict_servers.server import KEY, Planned, StrictServer

Body = dict[str, Any]  # Any: requests are looked at without knowing their form


def spec(name: str) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=f"Does {name}.",
        parameters={"type": "object", "properties": {"q": {"type": "string"}}},
    )


SPECS = [spec(f"t{n}") for n in range(20)]
FIND = FindTools(SPECS).spec


def finds(call_id: str, *names: str) -> list[Message]:
    """A search and its result."""
    call = ToolCallRequest(id=call_id, name=FIND_TOOLS, arguments='{"query": "it"}')
    content = json.dumps({"tools": [{"name": name, "description": "Does."} for name in names]})
    result = tool_result(content, tool_call_id=call_id, name=FIND_TOOLS)
    return [assistant(None, tool_calls=[call]), result]


def prompt_of(*messages: Message, found: Sequence[str] = ()) -> Prompt:
    tools = (spec("first"), FIND, *(spec(name) for name in found))
    return Prompt((user("do it"), *messages), tools=tools, searches_tools=True)


@frozen(kw_only=True)
class Asked:
    """What was sent, and what came back."""

    bodies: list[Body] = field(factory=list)
    calls: list[list[tuple[str, str]]] = field(factory=list)


async def ask(server: StrictServer, *prompts: Prompt, planned: Planned | None = None) -> Asked:
    """Each prompt, plain and streamed; both have the same answer."""
    asked = Asked()
    async with ChatEndpoint(default=server.answer(planned or Planned(text="done"))) as endpoint:
        model = deferring(server, endpoint.base_url)
        for prompt in prompts:
            plain = await model.complete(prompt)
            streamed = await model.complete(prompt, lambda _: None)
            assert is_successful(plain), plain
            assert is_successful(streamed), streamed
            calls = plain.unwrap().tool_calls
            assert streamed.unwrap().tool_calls == calls
            asked.calls.append([(call.name, call.arguments) for call in calls])
            asked.bodies.append(cast("Body", endpoint.requests[-2].body))
        await model.aclose()
    return asked


def deferring(server: StrictServer, base_url: str) -> HttpModel:
    usual = server.model(base_url).capabilities
    capabilities = evolve(usual, defers_tools=True)
    if isinstance(server, StrictAnthropic):
        return AnthropicModel(
            "claude-sonnet-4-5", base_url=base_url, api_key=KEY, capabilities=capabilities
        )
    return ResponsesModel("gpt-5.4", base_url=base_url, api_key=KEY, capabilities=capabilities)


FIRST = prompt_of()
SECOND = prompt_of(*finds("c1", "t3", "t1"), found=["t3", "t1"])
THIRD = prompt_of(*finds("c1", "t3", "t1"), *finds("c2", "t7", "t3"), found=["t3", "t1", "t7"])


async def test_anthropic_is_told_where_a_tool_was_found_and_its_start_stays_the_same() -> None:
    asked = await ask(StrictAnthropic(), FIRST, SECOND, THIRD)
    starts = [
        [each for each in body["tools"] if "defer_loading" not in each] for body in asked.bodies
    ]
    assert starts[0] == starts[1] == starts[2]
    deferred = [each["name"] for each in asked.bodies[2]["tools"] if each.get("defer_loading")]
    assert deferred == ["t3", "t1", "t7"]
    results = [
        part["content"]
        for message in asked.bodies[2]["messages"]
        for part in message["content"]
        if part["type"] == "tool_result"
    ]
    assert results[0] == [
        {"type": "tool_reference", "tool_name": "t3"},
        {"type": "tool_reference", "tool_name": "t1"},
    ]
    assert [part["tool_name"] for part in results[1]] == ["t7", "t3"]


async def test_the_mark_of_anthropics_cache_stands_on_no_tool_that_is_loaded_later() -> None:
    asked = await ask(StrictAnthropic(), SECOND)
    (marked,) = [each["name"] for each in asked.bodies[0]["tools"] if "cache_control" in each]
    assert marked == FIND_TOOLS
    with_system = evolve(SECOND, messages=(system("Be brief."), *SECOND.messages))
    asked = await ask(StrictAnthropic(), with_system)
    assert not any("cache_control" in each for each in asked.bodies[0]["tools"])


async def test_responses_gets_tools_with_the_search_that_found_them() -> None:
    asked = await ask(StrictResponses(), FIRST, SECOND, THIRD)
    assert asked.bodies[0]["tools"] == asked.bodies[1]["tools"] == asked.bodies[2]["tools"]
    assert [each.get("name") or each["type"] for each in asked.bodies[0]["tools"]] == [
        "first",
        "tool_search",
    ]
    outputs = [each for each in asked.bodies[2]["input"] if each["type"] == "tool_search_output"]
    assert [[each["name"] for each in output["tools"]] for output in outputs] == [
        ["t3", "t1"],
        ["t7", "t3"],
    ]
    assert all(each["defer_loading"] for output in outputs for each in output["tools"])
    call = next(each for each in asked.bodies[2]["input"] if each["type"] == "tool_search_call")
    assert (call["arguments"], call["execution"]) == ({"query": "it"}, "client")


async def test_a_search_in_the_form_of_responses_is_a_call_of_find_tools() -> None:
    planned = Planned(calls=((FIND_TOOLS, {"query": "issue"}), ("first", {"q": "a"})))
    asked = await ask(StrictResponses(), FIRST, planned=planned)
    ((search, other),) = asked.calls
    assert search[0] == FIND_TOOLS
    assert json.loads(search[1]) == {"query": "issue"}
    assert other[0] == "first"


async def test_a_search_that_found_nothing_is_a_result_as_any_other() -> None:
    nothing = prompt_of(*finds("c1"))
    messages = (await ask(StrictAnthropic(), nothing)).bodies[0]["messages"]
    assert isinstance(messages[-1]["content"][0]["content"], str)
    items = (await ask(StrictResponses(), nothing)).bodies[0]["input"]
    assert items[-1]["tools"] == []


async def test_a_tool_that_no_result_in_the_prompt_names_is_offered_at_the_head() -> None:
    """It was called unfound, or its result fell out of the window of the conversation."""
    called = prompt_of(*finds("c1", "t3"), found=["t3", "t9"])
    tools = (await ask(StrictAnthropic(), called)).bodies[0]["tools"]
    assert [each["name"] for each in tools if "defer_loading" not in each] == [
        "first",
        FIND_TOOLS,
        "t9",
    ]
    tools = (await ask(StrictResponses(), called)).bodies[0]["tools"]
    assert [each.get("name") for each in tools] == ["first", None, "t9"]


async def test_a_name_that_is_not_offered_is_no_reference() -> None:
    prompt = prompt_of(*finds("c1", "t3", "gone"), found=["t3"])
    messages = (await ask(StrictAnthropic(), prompt)).bodies[0]["messages"]
    assert messages[-1]["content"][0]["content"] == [{"type": "tool_reference", "tool_name": "t3"}]


@pytest.mark.parametrize(
    "server", [StrictChat(), StrictResponses(), StrictAnthropic(), StrictGemini()]
)
async def test_any_other_server_gets_plain_tools_and_results(server: StrictServer) -> None:
    async with ChatEndpoint(default=server.answer(Planned(text="done"))) as endpoint:
        model = server.model(endpoint.base_url)
        assert model.capabilities.defers_tools is False
        outcome = await model.complete(THIRD)
        assert is_successful(outcome), outcome
        sent = json.dumps(endpoint.requests[-1].body)
        await model.aclose()
    for word in ("defer_loading", "tool_reference", "tool_search"):
        assert word not in sent
    assert sent.count("Does t7.") == 1


async def test_a_tool_of_the_steps_own_that_has_that_name_is_a_tool_as_any_other() -> None:
    own = Prompt(SECOND.messages, tools=(spec(FIND_TOOLS), spec("t3")))
    body = (await ask(StrictAnthropic(), own)).bodies[0]
    assert "defer_loading" not in json.dumps(body)
    body = (await ask(StrictResponses(), own)).bodies[0]
    assert [each["name"] for each in body["tools"]] == [FIND_TOOLS, "t3"]


@pytest.mark.parametrize("server", [StrictResponses(), StrictAnthropic()])
async def test_a_step_finds_a_tool_and_calls_it_at_a_server_that_loads_tools_later(
    server: StrictServer,
) -> None:
    """From the first request to the answer; the server checks each request."""
    issue = "github__create_issue"
    planned = [
        Planned(calls=((FIND_TOOLS, {"query": "create an issue", "most": 1}),)),
        Planned(calls=((issue, {"owner": "a", "repo": "b", "title": "c"}),)),
        Planned(text="done"),
    ]
    tools = [fake_tool(each.name, parameters=each.parameters) for each in tool_specs()]
    step = text_step(tools=[tool.spec.name for tool in tools])
    async with ChatEndpoint(*map(server.answer, planned)) as endpoint:
        model = deferring(server, endpoint.base_url)
        result = (await run_recipe(step, model, tools=tools)).result
        await model.aclose()
    assert result.output == "done", result.error
    assert [len(tool.asked) for tool in tools if tool.spec.name == issue] == [1]
    sent = [json.dumps(cast("Body", each.body)) for each in endpoint.requests]
    assert [text.count('"defer_loading": true') for text in sent] == [0, 1, 1]


class _Wishes:
    base_url: str | None = None
    api_key_env: str | None = None
    min_confidence: float | None = None


@pytest.mark.parametrize(
    ("name", "defers"),
    [
        ("anthropic/claude-sonnet-4-5", True),
        ("anthropic/claude-opus-5", True),
        ("anthropic/claude-sonnet-4", False),
        ("anthropic/claude-haiku-4-5", False),
        ("openai/gpt-5.4", True),
        ("openai/gpt-6-mini", True),
        ("openai/gpt-5.4-nano", False),
        ("openai/gpt-5", False),
        ("openai/o9", False),
        ("gemini/gemini-3-pro", False),
        ("ollama/gpt-6", False),
    ],
)
def test_only_models_that_are_known_to_load_tools_later_are_told_so(
    name: str, defers: bool
) -> None:
    environ = {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k", "GEMINI_API_KEY": "k"}
    operator = OperatorModels(providers={"openai": ProviderConfig(api=ModelApi.RESPONSES)})
    endpoint = resolve_endpoint(name, _Wishes(), environ, operator)
    assert endpoint.capabilities.defers_tools is defers


def test_at_another_address_nothing_is_known_and_the_operator_decides() -> None:
    environ = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "https://proxy.example/v1"}
    responses = OperatorModels(providers={"openai": ProviderConfig(api=ModelApi.RESPONSES)})
    found = resolve_endpoint("openai/gpt-5.4", _Wishes(), environ, responses)
    assert found.capabilities.defers_tools is False
    for said in (True, False):
        operator = OperatorModels(providers={"openai": ProviderConfig(deferred_tools=said)})
        found = resolve_endpoint("openai/gpt-5.4", _Wishes(), {"OPENAI_API_KEY": "k"}, operator)
        assert found.capabilities.defers_tools is said


def test_models_of_a_program_know_their_own_servers() -> None:
    assert AnthropicModel("claude-sonnet-4-5", api_key=KEY).capabilities.defers_tools
    assert ResponsesModel("gpt-5.4", api_key=KEY).capabilities.defers_tools
    elsewhere = AnthropicModel("claude-sonnet-4-5", base_url="http://127.0.0.1:1/v1")
    assert not elsewhere.capabilities.defers_tools
    assert not ModelCapabilities().defers_tools
