"""A nested schema on servers of every habit: the output or a typed failure, never a loop. A-133."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import pytest
from attrs import evolve, frozen
from returns.pipeline import is_successful

from builders import deterministic_services, executor_of, fake_tool, recipe_of, text_step
from minions.adapters.models.model_probe import probe_model
from minions.adapters.models.openai import OpenAIModel
from minions.adapters.models.structured_output import InstructorParser
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.instructions import OutputInstructions
from minions.contracts.metrics import Metrics
from minions.contracts.model_profiles import Feature, ModelProfile, Support
from minions.contracts.retry_config import RetryConfig
from minions.contracts.run_events import OutputChecked, RunEvent
from minions.data.json_values import JsonValue
from minions.engine.services.run_services import MemoryProfiles, Services
from minions.testing.endpoint import (
    Behaviour,
    ChatEndpoint,
    Exchange,
    RecordedRequest,
    answer,
    call,
    error_body,
    status,
)
from minions.testing.server_behaviours import ServerHabits, model_server, server_behaviours
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, MortalJournal

SCHEMA: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "pages": {"type": "integer"},
        "kind": {"type": "string", "enum": ["novel", "essay"]},
        "is_draft": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "author": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "born": {"type": "integer"}},
            "required": ["name", "born"],
            "additionalProperties": False,
        },
    },
    "required": ["title", "pages", "kind", "is_draft", "tags", "author"],
    "additionalProperties": False,
}
GOOD: Final[Mapping[str, JsonValue]] = {
    "title": "Ebbe und Flüsse",
    "pages": 3,
    "kind": "essay",
    "is_draft": False,
    "tags": ["sea"],
    "author": {"name": "Éva", "born": 1960},
}
BOOK = OutputInstructions[object](schema=SCHEMA)
SAID = json.dumps(GOOD, ensure_ascii=False)


@frozen(kw_only=True)
class Ended:
    """A run against a server."""

    result: AgentResult[object]
    requests: list[RecordedRequest]
    events: list[RunEvent]

    @property
    def code(self) -> str | None:
        return self.result.error.code if self.result.error is not None else None

    @property
    def forms(self) -> list[str]:
        """How each request asked for the output."""
        return [form_of(each.body) for each in self.requests]


def form_of(body: Mapping[str, JsonValue]) -> str:
    form = body.get("response_format")
    if isinstance(form, dict):
        return str(form["type"])
    return "tools" if body.get("tool_choice") == "required" else "text"


def services_of(book: MemoryProfiles | None = None) -> Services:
    return evolve(
        deterministic_services(), parser=InstructorParser(), profiles=book or MemoryProfiles()
    )


async def run_on(
    *behaviours: Behaviour,
    book: MemoryProfiles | None = None,
    default: Behaviour | None = None,
    streamed: bool = False,
    tools: bool = False,
    services: Services | None = None,
    port: int = 0,
) -> Ended:
    """One step with the nested schema, on a server that behaves so."""
    async with ChatEndpoint(*behaviours, default=default, port=port) as server:
        model = OpenAIModel("m", base_url=server.base_url)
        offered = [fake_tool("look")] if tools else []
        executor = executor_of(model, tools=offered, services=services or services_of(book))
        step = text_step(output=BOOK, tools=["look"] if tools else [])
        recipe = recipe_of([step], retry=RetryConfig(max_attempts=2))
        events: list[RunEvent] = []
        run = executor.prepare(recipe)
        if streamed:
            run.listen(events.append)
        result = await run.execute()
        await model.aclose()
    return Ended(result=result, requests=server.requests, events=events)


# --- every behaviour -----------------------------------------------------------------------------

SUCCEEDS: Final = {
    "binds answers to the schema",
    "ignores it, and its model obeys",
    "refuses response_format",
    "refuses response_format and tools",
    "refuses without saying what",
    "refuses strict",
    "refuses system messages",
    "judges the answer with HTTP 500",
    "takes a named call as auto",
    "ends a forced call at its length",
    "calls a tool and says stop",
    "calls a tool and says nothing",
    "counts no tokens",
    "repeats the ids of calls",
    "streams with comments, CRLF and split letters",
}
FAILS: Final = {
    "ignores the schema with 200": "invalid-output",
    "cuts arguments at the length": "output-truncated",
    "cuts arguments and calls it done": "output-truncated",
    "cuts the answer and calls it done": "output-truncated",
    "is asked too often and says no pause": "rate-limited",
    "knows no such model, with 400": "model-not-found",
    "gives up with 408": "model-unavailable",
}


def test_every_behaviour_has_its_end_here() -> None:
    assert set(server_behaviours(SAID)) == SUCCEEDS | set(FAILS)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("name", sorted({*SUCCEEDS, *FAILS}))
async def test_a_nested_schema_gives_the_output_or_a_typed_failure(
    name: str, streamed: bool
) -> None:
    """A-133, A-38: on a server of each behaviour, and never a loop."""
    ended = await run_on(default=server_behaviours(SAID)[name], streamed=streamed)
    assert ended.code == FAILS.get(name)
    assert ended.result.status is (RunStatus.COMPLETED if name in SUCCEEDS else RunStatus.FAILED)
    assert len(ended.requests) <= 8


# --- what a run learns ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("habits", "forms"),
    [
        (ServerHabits(schema=Support.REFUSES), ["json_schema", "json_object"]),
        (
            ServerHabits(schema=Support.REFUSES, json_object=Support.REFUSES),
            ["json_schema", "json_object", "tools"],
        ),
        (
            ServerHabits(
                schema=Support.REFUSES,
                json_object=Support.REFUSES,
                forced_tool=Support.FAILS,
                said=SAID,
            ),
            ["json_schema", "json_object", "tools", "text"],
        ),
        (
            ServerHabits(schema=Support.FAILS, json_object=Support.IGNORES, said=f"So: {SAID}"),
            ["json_schema", "json_object"],
        ),
        (ServerHabits(schema=Support.IGNORES, said="In prose."), ["json_schema", "json_object"]),
    ],
)
async def test_what_the_server_refused_three_times_is_not_asked_for_in_the_next_run(
    habits: ServerHabits, forms: list[str]
) -> None:
    """A-133: the first request of a later run fits."""
    book = MemoryProfiles()
    server = model_server(habits)
    async with ChatEndpoint(default=server) as endpoint:
        model = OpenAIModel("m", base_url=endpoint.base_url)
        begins = []
        for _ in range(4):
            begins.append(len(endpoint.requests))
            executor = executor_of(model, services=services_of(book))
            await executor.execute(recipe_of([text_step(output=BOOK)]))
        await model.aclose()
    asked = [form_of(each.body) for each in endpoint.requests]
    assert asked[: len(forms)] == asked[begins[2] : begins[2] + len(forms)] == forms
    assert asked[begins[3]] == forms[-1]


async def test_a_system_message_that_was_refused_is_folded_from_then_on() -> None:
    """A-133."""
    server = model_server(ServerHabits(system_role=Support.REFUSES))
    book = MemoryProfiles()
    async with ChatEndpoint(default=server) as endpoint:
        model = OpenAIModel("m", base_url=endpoint.base_url)
        for _ in range(4):
            executor = executor_of(model, services=services_of(book))
            result = await executor.execute(recipe_of([text_step(output=BOOK)]))
            assert result.status is RunStatus.COMPLETED
        await model.aclose()
    roles = [[message["role"] for message in each.messages] for each in endpoint.requests]
    assert roles == [*([["system", "user"], ["user"]] * 3), ["user"]]


# --- after a probe -------------------------------------------------------------------------------

FIRST: Final = {
    (Support.BINDS, Support.BINDS): "json_schema",
    (Support.BINDS, Support.REFUSES): "json_schema",
    (Support.IGNORES, Support.BINDS): "tools",
    (Support.IGNORES, Support.REFUSES): "text",
    (Support.REFUSES, Support.BINDS): "tools",
    (Support.REFUSES, Support.REFUSES): "text",
}


@pytest.mark.parametrize(("schema", "tools"), FIRST)
async def test_the_first_request_after_a_probe_fits(schema: Support, tools: Support) -> None:
    """A-133: servers that bind, ignore and refuse, with and without tools."""
    plain = Support.BINDS if schema is Support.BINDS else schema
    habits = ServerHabits(schema=schema, json_object=plain, tools=tools, said=SAID)
    if tools is Support.REFUSES:
        habits = evolve(habits, forced_tool=Support.REFUSES)
    book = MemoryProfiles()
    async with ChatEndpoint(default=model_server(habits)) as endpoint:
        model = OpenAIModel("m", base_url=endpoint.base_url)
        outcome = await probe_model(model, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
        assert is_successful(outcome)
        book.keep(outcome.unwrap().profile)
        probed = len(endpoint.requests)
        executor = executor_of(model, services=services_of(book))
        result = await executor.execute(recipe_of([text_step(output=BOOK)]))
        await model.aclose()
    assert result.status is RunStatus.COMPLETED
    asked = [form_of(each.body) for each in endpoint.requests[probed:]]
    assert asked == [FIRST[schema, tools]]


async def test_tools_and_a_schema_go_together_where_that_was_measured() -> None:
    """A-133: a step with tools then takes one request less."""
    book = MemoryProfiles()
    async with ChatEndpoint(default=model_server()) as endpoint:
        model = OpenAIModel("m", base_url=endpoint.base_url)
        book.keep(
            ModelProfile(
                base_url=endpoint.base_url,
                model=model.name,
                measured_at=datetime(2026, 1, 1, tzinfo=UTC),
                features={
                    Feature.JSON_SCHEMA: Support.BINDS,
                    Feature.SCHEMA_WITH_TOOLS: Support.BINDS,
                },
            )
        )
        executor = executor_of(model, tools=[fake_tool("look")], services=services_of(book))
        result = await executor.execute(recipe_of([text_step(output=BOOK, tools=["look"])]))
        await model.aclose()
    assert result.status is RunStatus.COMPLETED
    assert [form_of(each.body) for each in endpoint.requests] == ["json_schema"]


# --- rungs ---------------------------------------------------------------------------------------

HALF_RIGHT = json.dumps({**GOOD, "pages": "three", "kind": "poem"}, ensure_ascii=False)
LAST_FIELDS = json.dumps({"pages": 3, "kind": "essay"})


def unbound(book: MemoryProfiles, base_url: str) -> None:
    """Nothing is held to a form, as a probe found out."""
    book.keep(
        ModelProfile(
            base_url=base_url,
            model="openai/m",
            measured_at=datetime(2026, 1, 1, tzinfo=UTC),
            features=dict.fromkeys(Feature, Support.IGNORES),
        )
    )


async def run_unbound(*said: str) -> Ended:
    """A run on a server that binds nothing, whose model says these."""
    book = MemoryProfiles()
    async with ChatEndpoint(*map(answer, said)) as server:
        unbound(book, server.base_url)
        model = OpenAIModel("m", base_url=server.base_url)
        executor = executor_of(model, services=services_of(book))
        run = executor.prepare(recipe_of([text_step(output=BOOK)]))
        events: list[RunEvent] = []
        run.listen(events.append)
        result = await run.execute()
        await model.aclose()
    return Ended(result=result, requests=server.requests, events=events)


async def test_only_the_wrong_fields_are_asked_for_again_and_the_right_ones_kept() -> None:
    """A-38, A-133: where answers are held to nothing."""
    ended = await run_unbound(HALF_RIGHT, HALF_RIGHT, LAST_FIELDS)
    assert ended.result.output == GOOD
    words = str(ended.requests[-1].messages[-1]["content"])
    assert '"pages": integer' in words
    assert "title" not in words


async def test_a_large_object_is_asked_for_in_groups_of_fields() -> None:
    """A-133: the last rung; then the step fails."""
    groups = [
        json.dumps({"title": "Tides", "pages": 3}),
        json.dumps({"kind": "essay", "is_draft": True}),
        json.dumps({"tags": [], "author": {"name": "E", "born": 1}}),
    ]
    ended = await run_unbound("no", "no", *groups)
    assert ended.result.status is RunStatus.COMPLETED
    rungs = [each.rung for each in ended.events if isinstance(each, OutputChecked)]
    assert rungs == ["prompt", "repair", "split", "split", "split"]
    failed = await run_unbound("no", "no", "no")
    assert failed.code == "invalid-output"
    assert len(failed.requests) == 3


async def test_each_rung_is_an_event_with_what_it_cost() -> None:
    """A-133."""
    ended = await run_unbound(HALF_RIGHT, HALF_RIGHT, LAST_FIELDS)
    checked = [each for each in ended.events if isinstance(each, OutputChecked)]
    assert [(each.rung, each.is_valid) for each in checked] == [
        ("prompt", False),
        ("repair", False),
        ("fields", True),
    ]
    assert all(each.usage["total_tokens"] == 14 for each in checked)
    assert "'three' is not of type 'integer'" in (checked[0].reason or "")


async def test_each_rung_is_counted() -> None:
    """A-133."""
    counted: list[tuple[str, str, bool]] = []

    class Counting(Metrics):
        def output_checked(
            self, model: str, rung: str, cost_usd: float | None, *, is_valid: bool
        ) -> None:
            counted.append((model, rung, is_valid))

    services = evolve(services_of(), metrics=Counting())
    await run_on(answer("no"), answer(SAID), services=services)
    assert counted == [("openai/m", "constrained", False), ("openai/m", "repair", True)]


async def test_a_usual_failure_costs_no_more_than_a_repair() -> None:
    """A-38: where it is not known that the server holds answers to nothing."""
    ended = await run_on(answer(HALF_RIGHT), answer(HALF_RIGHT), answer(SAID))
    assert len(ended.requests) <= 3


# --- cut answers ---------------------------------------------------------------------------------


async def test_an_answer_that_was_cut_is_asked_for_with_more_room_and_not_repaired() -> None:
    """A-133: the recipe says no limit."""
    cut = answer(SAID[:20], finish_reason="length")
    ended = await run_on(cut, answer(SAID))
    assert ended.result.output == GOOD
    first, second = ended.requests
    assert "max_completion_tokens" not in first.body
    assert second.body["max_completion_tokens"] == 1024
    assert second.messages == first.messages


async def test_unfinished_json_is_asked_for_again_whatever_the_server_calls_it() -> None:
    """A-133: its form is not blamed."""
    ended = await run_on(answer(SAID[:40]), answer(SAID))
    assert ended.result.output == GOOD
    assert ended.requests[1].messages == ended.requests[0].messages


async def test_a_forced_call_that_was_cut_is_given_more_room() -> None:
    """A-133."""
    book = MemoryProfiles()
    refusal = status(400, error_body("response_format is not supported"))
    begun = answer(tool_calls=[call("output", SAID[:20])], finish_reason="length")
    whole = answer(tool_calls=[call("output", SAID)])
    ended = await run_on(refusal, refusal, begun, whole, book=book)
    assert ended.result.output == GOOD
    assert ended.forms == ["json_schema", "json_object", "tools", "tools"]


# --- a resumed run -------------------------------------------------------------------------------


async def _by_tools_only(exchange: Exchange) -> None:
    """A server that takes tools and no other form, whose model is wrong at first."""
    body = exchange.request.body
    if "response_format" in body:
        await status(400, error_body("response_format is not supported"))(exchange)
        return
    has_said = any(each["role"] == "assistant" for each in exchange.request.messages)
    await answer(tool_calls=[call("output", SAID if has_said else HALF_RIGHT)])(exchange)


@pytest.mark.parametrize("forgets", [False, True])
async def test_a_resumed_step_reads_its_answers_as_they_were_asked_for(forgets: bool) -> None:
    """A-133: whatever was learned of the server in between, no recorded call is made again."""
    recipe = recipe_of([text_step(output=BOOK)])

    async def killed_at(at: int | None) -> tuple[AgentResult[object], int, int]:
        book, journal = MemoryProfiles(), MortalJournal(FakeClock())
        async with ChatEndpoint(default=_by_tools_only) as server:
            model = OpenAIModel("m", base_url=server.base_url)
            services = evolve(services_of(book), journal=journal)
            journal.dies_at = at
            try:
                result = await executor_of(model, services=services).execute(recipe)
            except KilledError:
                journal.revive()
                if forgets:
                    services = evolve(services, profiles=MemoryProfiles())
                result = await executor_of(model, services=services).resume("run_1", recipe=recipe)
            await model.aclose()
        return result, len(server.requests), journal.count

    quiet, requests, facts = await killed_at(None)
    assert (quiet.output, requests) == (GOOD, 4)
    for at in range(2, facts + 1):
        result, asked, _ = await killed_at(at)
        assert result.output == GOOD, at
        assert asked <= requests + 1, at


async def test_a_refusal_without_a_reason_does_not_count_where_the_form_was_taken_before() -> None:
    """A-158."""
    book, fits = MemoryProfiles(), ServerHabits(schema=Support.BINDS, said=SAID)
    odd = status(400, error_body("We are sorry."))
    good = model_server(fits)
    async with ChatEndpoint(good, *([odd, good] * 5), default=good) as endpoint:
        model = OpenAIModel("m", base_url=endpoint.base_url)
        for _ in range(7):
            executor = executor_of(model, services=services_of(book))
            result = await executor.execute(recipe_of([text_step(output=BOOK)]))
            assert result.status is RunStatus.COMPLETED
        last = form_of(endpoint.requests[-1].body)
        (profile,) = book.profiles()
        await model.aclose()
    assert last == "json_schema"
    assert "-" not in profile.lessons[Feature.JSON_SCHEMA].seen
