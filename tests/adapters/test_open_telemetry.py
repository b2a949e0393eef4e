"""Spans of runs: their names, places and attributes, and what they keep to themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence

import pytest
from attrs import evolve
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from builders import answer_of, deterministic_services, fake_tool, flaky_tool
from minions.adapters.models.openai import OpenAIModel
from minions.adapters.models.script_items import Answer, tool_request
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.telemetry.open_telemetry import OpenTelemetryTracer
from minions.app.runs.run_queue import RunQueue
from minions.contracts.calls import ChatModel, ModelCallResponse, ModelFailure
from minions.contracts.executions import AgentResult
from minions.contracts.journal.facts import RunBeginning
from minions.contracts.journal.start_note import QueuePlace
from minions.contracts.metrics import Metrics
from minions.contracts.tools import Tool, Toolbox
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.queued_decisions import record_decisions
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.run_services import Services
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe_text
from minions.testing import endpoint as fake
from minions.testing.endpoint import ChatEndpoint

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def calling(name: str, arguments: Mapping[str, JsonValue]) -> ModelCallResponse:
    return answer_of(tool_calls=(tool_request(name, arguments),))


class Traced:
    """A tracer whose spans can be looked at."""

    def __init__(self, *, has_content: bool = False, parent: Mapping[str, str] | None = None):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = OpenTelemetryTracer(self.provider, has_content=has_content, parent=parent)

    @property
    def services(self) -> Services:
        return evolve(deterministic_services(), tracer=self.tracer)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """In the order in which they began."""
        return sorted(self.exporter.get_finished_spans(), key=lambda each: each.start_time or 0)

    def tree(self) -> list[str]:
        """The names, each behind those around it."""
        by_id = {each.context.span_id: each for each in self.spans if each.context is not None}

        def path(span: ReadableSpan) -> str:
            around = by_id.get(span.parent.span_id) if span.parent is not None else None
            return span.name if around is None else f"{path(around)} > {span.name}"

        return [path(each) for each in self.spans]

    def only(self, name: str) -> ReadableSpan:
        (found,) = [each for each in self.spans if each.name == name]
        return found

    def everything_said(self) -> str:
        return json.dumps([[dict(each.attributes or {}), str(each.status.description), each.name]
                           for each in self.spans], default=str)  # fmt: skip


async def run(
    text: str,
    model: ChatModel,
    services: Services,
    tools: Sequence[Tool] = (),
    inputs: Mapping[str, JsonValue] | None = None,
) -> AgentResult[object]:
    extensions = Extensions(tools=Toolbox(tuple(tools)))
    catalog = replace(Catalog(), tools={tool.spec.name: tool.spec for tool in tools})
    recipe = load_recipe_text(text, "r.yaml", catalog)
    executor = AgentExecutor(model, extensions=extensions, services=services)
    return await executor.execute(recipe, inputs)


ASKS = """
name: asks
steps:
  - id: first
    set: {n: 1}
  - id: talk
    goal: say the secret word PINEAPPLE
    tools: [look]
    completion: {mode: text}
"""


async def test_a_run_is_one_trace_of_steps_model_requests_and_tool_calls() -> None:
    """A-136."""
    traced = Traced()
    model = ScriptedModel([calling("look", {"at": "MANGO"}), "done"])
    result = await run(ASKS, model, traced.services, [fake_tool("look", lambda _: "APRICOT")])
    assert result.status.value == "completed"
    assert traced.tree() == [
        "invoke_workflow asks",
        "invoke_workflow asks > step first",
        "invoke_workflow asks > invoke_agent talk",
        "invoke_workflow asks > invoke_agent talk > chat answers",
        "invoke_workflow asks > invoke_agent talk > execute_tool look",
        "invoke_workflow asks > invoke_agent talk > chat answers",
    ]
    assert len({each.context.trace_id for each in traced.spans if each.context}) == 1
    around = dict(traced.only("invoke_workflow asks").attributes or {})
    assert around["gen_ai.operation.name"] == "invoke_workflow"
    assert around["gen_ai.workflow.name"] == around["gen_ai.agent.name"] == "asks"
    assert around["gen_ai.conversation.id"] == result.session_id
    assert around["minions.run.id"] == result.run_id
    tool = traced.only("execute_tool look")
    assert tool.kind is SpanKind.INTERNAL
    assert (tool.attributes or {})["gen_ai.tool.name"] == "look"
    assert (tool.attributes or {})["gen_ai.tool.type"] == "function"


async def test_no_text_of_prompts_answers_and_tools_is_told_unless_asked_for() -> None:
    """A-136."""
    model_answers: list[Answer] = [calling("look", {"at": "MANGO"}), "CHERRY"]
    words = ("PINEAPPLE", "MANGO", "APRICOT", "CHERRY")
    quiet, telling = Traced(), Traced(has_content=True)
    for traced in (quiet, telling):
        model = ScriptedModel(model_answers)
        await run(ASKS, model, traced.services, [fake_tool("look", lambda _: "APRICOT")])
    assert [word for word in words if word in quiet.everything_said()] == []
    assert [word for word in words if word in telling.everything_said()] == [*words]
    last = telling.spans[-1]
    asked = json.loads(str((last.attributes or {})["gen_ai.input.messages"]))
    assert [each["role"] for each in asked][-2:] == ["assistant", "tool"]
    assert asked[-1]["parts"][0]["type"] == "tool_call_response"
    (said,) = json.loads(str((last.attributes or {})["gen_ai.output.messages"]))
    assert (said["role"], said["parts"]) == ("assistant", [{"type": "text", "content": "CHERRY"}])


async def test_a_failure_is_told_by_its_code_and_its_words_only_with_content() -> None:
    quiet, telling = Traced(), Traced(has_content=True)
    failure = ModelFailure(code="bad-request", message="you said PINEAPPLE")
    for traced in (quiet, telling):
        result = await run(
            "name: fails\nsteps:\n  - id: talk\n    goal: hi\n",
            ScriptedModel([failure]),
            traced.services,
        )
        assert result.status.value == "failed"
        chat = traced.only("chat answers")
        assert chat.status.status_code is StatusCode.ERROR
        assert (chat.attributes or {})["error.type"] == "bad-request"
        for name in ("invoke_agent talk", "invoke_workflow fails"):
            assert traced.only(name).status.status_code is StatusCode.ERROR
    assert "PINEAPPLE" not in quiet.everything_said()
    assert "PINEAPPLE" in telling.everything_said()


async def test_a_secret_is_in_no_span_also_with_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "PINEAPPLE-123456")
    traced = Traced(has_content=True)
    text = """
name: sends
inputs: {key: {type: string, secret: true}}
steps:
  - id: send
    tool: look
    params: {at: "{{ inputs.key }}"}
"""
    result = await run(
        text,
        ScriptedModel([]),
        traced.services,
        [fake_tool("look", lambda given: f"got {given}")],
        {"key": "env:WORD"},
    )
    assert result.status.value == "completed"
    assert "gen_ai.tool.call.arguments" in traced.everything_said()
    assert "PINEAPPLE" not in traced.everything_said()


async def test_each_request_of_a_call_that_is_retried_has_a_span() -> None:
    """The metric of its time says the same of it."""
    traced = Traced()
    counted: list[str | None] = []

    class Counting(Metrics):
        def model_attempt_ended(self, model: str, code: str | None, seconds: float) -> None:
            counted.append(code)

    services = evolve(traced.services, metrics=Counting())
    busy = ModelFailure(code="rate-limited", message="wait", is_retryable=True)
    model = ScriptedModel([busy, "well"])
    await run("name: r\nsteps:\n  - id: talk\n    goal: hi\n", model, services)
    assert counted == ["rate-limited", None]
    first, second = [each for each in traced.spans if each.name == "chat answers"]
    assert "minions.call.attempt" not in (first.attributes or {})
    assert (first.attributes or {})["error.type"] == "rate-limited"
    assert (second.attributes or {})["minions.call.attempt"] == 2
    assert second.status.status_code is StatusCode.UNSET
    assert traced.only("invoke_agent talk").status.status_code is StatusCode.UNSET


async def test_a_tool_call_with_its_attempts_is_one_span() -> None:
    traced = Traced()
    text = "name: t\nsteps:\n  - {id: go, tool: shaky}\n"
    await run(text, ScriptedModel([]), traced.services, [flaky_tool("shaky", failures=1)])
    assert traced.only("execute_tool shaky").status.status_code is StatusCode.UNSET


async def test_a_name_that_only_a_model_says_is_no_name_of_a_span() -> None:
    traced = Traced()
    model = ScriptedModel([calling("x" * 900, {}), "done"])
    await run(ASKS, model, traced.services, [fake_tool("look", lambda _: "")])
    span = traced.only("execute_tool unknown")
    assert len(str((span.attributes or {})["gen_ai.tool.name"])) == 200


async def test_items_of_a_loop_are_below_the_loop_also_side_by_side() -> None:
    traced = Traced()
    text = """
name: loops
steps:
  - id: each
    loop: [a, b, c]
    max_parallel: 3
    goal: "say {{ loop.item }}"
    completion: {mode: text}
"""
    await run(text, ScriptedModel(lambda prompt: "x"), traced.services)
    tree = traced.tree()
    assert tree[:2] == ["invoke_workflow loops", "invoke_workflow loops > step each"]
    assert tree.count("invoke_workflow loops > step each > invoke_agent each > chat answers") == 3


async def test_a_run_that_is_cancelled_ends_its_spans_and_is_no_error() -> None:
    traced = Traced()
    began = asyncio.Event()

    async def wait(_: object) -> str:
        began.set()
        await asyncio.Event().wait()
        return ""

    executor = AgentExecutor(
        ScriptedModel([]),
        extensions=Extensions(tools=Toolbox((fake_tool("look", wait),))),
        services=traced.services,
    )
    text = "name: c\nsteps:\n  - {id: go, tool: look, params: {at: x}}\n"
    catalog = replace(Catalog(), tools={"look": fake_tool("look", wait).spec})
    run = executor.prepare(load_recipe_text(text, "r.yaml", catalog))
    task = asyncio.create_task(run.execute())
    await began.wait()
    run.cancel()
    await task
    assert traced.tree()[-1] == "invoke_workflow c > step go > execute_tool look"
    statuses = [each.status.status_code for each in traced.spans]
    assert statuses[0] is StatusCode.UNSET
    assert (traced.spans[0].attributes or {})["minions.run.status"] == "cancelled"


async def test_spans_say_server_tokens_and_limits_as_the_conventions_name_them() -> None:
    """A-136."""
    traced = Traced()
    text = """
name: real
model: {name: fake/m, temperature: 0.5, max_output_tokens: 50, seed: 7, stop: [END]}
steps:
  - id: talk
    goal: hi
    output: {word: string}
"""
    async with ChatEndpoint(fake.answer('{"word": "x"}')) as server:
        model = OpenAIModel(
            "m", base_url=server.base_url, provider="gemini", trace_headers=traced.tracer.headers
        )
        base_url = server.base_url
        result = await run(text, model, traced.services)
        await model.aclose()
    assert result.status.value == "completed"
    chat = traced.only("chat m")
    assert chat.kind is SpanKind.CLIENT
    told = dict(chat.attributes or {})
    assert told["gen_ai.provider.name"] == "gcp.gemini"
    assert told["gen_ai.request.model"] == "m"
    assert told["gen_ai.output.type"] == "json"
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.request.max_tokens"] == 50
    assert told["gen_ai.request.seed"] == 7
    assert told["gen_ai.request.stop_sequences"] == ("END",)
    assert told["server.address"] == "127.0.0.1"
    assert f":{told['server.port']}/" in base_url
    assert told["gen_ai.usage.input_tokens"] == fake.USAGE["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == fake.USAGE["completion_tokens"]
    assert told["gen_ai.response.finish_reasons"] == ("stop",)
    (request,) = server.requests
    assert chat.context is not None
    span_id, trace_id = f"{chat.context.span_id:016x}", f"{chat.context.trace_id:032x}"
    assert request.headers["traceparent"].startswith(f"00-{trace_id}-{span_id}-")


async def test_a_run_is_below_the_span_of_the_application_and_below_its_callers_otherwise() -> None:
    """A-136."""
    traced = Traced(parent={"traceparent": CALLER})
    text = "name: s\nsteps:\n  - {id: a, set: {n: 1}}\n"
    with traced.provider.get_tracer("app").start_as_current_span("mine"):
        await run(text, ScriptedModel([]), traced.services)
    await run(text, ScriptedModel([]), traced.services)
    assert "mine > invoke_workflow s" in traced.tree()
    alone = traced.spans[-2]
    assert alone.parent is not None
    assert f"{alone.parent.span_id:016x}" == "b7ad6b7169203331"
    assert f"{alone.parent.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert not trace.get_current_span().get_span_context().is_valid


ANSWERED = """
name: answered
steps:
  - {id: wait, ask: May it?}
"""


async def test_a_resumed_run_has_a_link_to_the_span_of_its_execution_before() -> None:
    traced = Traced()
    executor = AgentExecutor(ScriptedModel([]), services=traced.services)
    waiting = await executor.execute(load_recipe_text(ANSWERED, "r.yaml", Catalog()))
    result = await executor.resume(waiting.run_id, decisions={"wait": 'answer:"yes"'})
    assert result.status.value == "completed"
    first, second = (each for each in traced.spans if each.name == "invoke_workflow answered")
    assert first.context is not None
    assert second.context is not None
    assert first.context.trace_id != second.context.trace_id
    assert not first.links
    assert [each.context.span_id for each in second.links] == [first.context.span_id]
    assert [each.context.trace_id for each in second.links] == [first.context.trace_id]


async def test_a_queued_run_joins_the_trace_of_whoever_queued_it() -> None:
    services, worker = deterministic_services(), Traced()
    front = Traced()
    text = "name: s\nsteps:\n  - {id: a, set: {n: 1}}\n"
    recipe = load_recipe_text(text, "r.yaml", Catalog())
    submits = AgentExecutor(ScriptedModel([]), services=evolve(services, tracer=front.tracer))
    with front.tracer.caller({"traceparent": CALLER, "baggage": "a=b"}):
        run = submits.prepare(recipe)
        await RunQueue(None, services.clock).put(run, QueuePlace())
    executes = AgentExecutor(ScriptedModel([]), services=evolve(services, tracer=worker.tracer))
    await executes.resume(run.run_id)
    (span,) = (each for each in worker.spans if each.name == "invoke_workflow s")
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == CALLER[3:-3]
    assert not span.links
    (queued, *_) = await services.journal.entries(run.session_id, kinds={"run"})
    assert isinstance(queued.fact, RunBeginning)
    assert queued.fact.trace == {"traceparent": CALLER}


async def test_a_queued_run_that_is_queued_again_stays_in_the_trace_of_whoever_queued_it() -> None:
    services, front = deterministic_services(), Traced()
    recipe = load_recipe_text("name: s\nsteps:\n  - {id: a, set: {n: 1}}\n", "r.yaml", Catalog())
    submits = AgentExecutor(ScriptedModel([]), services=evolve(services, tracer=front.tracer))
    with front.tracer.caller({"traceparent": CALLER}):
        run = submits.prepare(recipe)
        await RunQueue(None, services.clock).put(run, QueuePlace())
    recorded = await load_recorded_run(services.journal, run.run_id)
    again = await record_decisions(services, recorded, {}, recorded.note, None)
    assert isinstance(again.fact, RunBeginning)
    assert again.fact.trace == {"traceparent": CALLER}


async def test_a_damaged_header_of_a_caller_begins_a_trace() -> None:
    traced = Traced()
    with traced.tracer.caller({"traceparent": "rubbish", "baggage": "a=b"}):
        await run("name: s\nsteps:\n  - {id: a, set: {n: 1}}\n", ScriptedModel([]), traced.services)
        assert "baggage" not in traced.tracer.headers()
    assert traced.spans[0].parent is None


async def test_nothing_is_told_of_a_run_that_is_not_sampled() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    services = evolve(deterministic_services(), tracer=OpenTelemetryTracer(provider))
    result = await run("name: s\nsteps:\n  - {id: a, goal: x}\n", ScriptedModel(["y"]), services)
    assert result.status.value == "completed"
    assert exporter.get_finished_spans() == ()


async def test_a_request_that_is_constrained_otherwise_after_a_bad_answer_says_how() -> None:
    traced = Traced()
    text = """
name: r
steps:
  - id: talk
    goal: hi
    output: {n: integer}
"""
    wrong = fake.answer("no JSON")
    async with ChatEndpoint(wrong, fake.answer('{"n": 1}')) as server:
        model = OpenAIModel("m", base_url=server.base_url)
        result = await run(text, model, traced.services)
        await model.aclose()
    assert result.status.value == "completed", result.error
    asked = [dict(each.attributes or {}) for each in traced.spans if each.name == "chat m"]
    told = [(each.get("minions.call.phase"), each.get("minions.output.mode")) for each in asked]
    assert told == [(None, None), ("repair", "json")]
