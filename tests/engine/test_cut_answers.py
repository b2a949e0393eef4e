"""Answers that were cut off inside a list: what is whole of them is kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, cast

import pytest
from attrs import evolve, frozen

from builders import deterministic_services, executor_of, recipe_of, text_step
from minions.adapters.models.openai import OpenAIModel
from minions.adapters.models.structured_output import InstructorParser
from minions.contracts.calls import ModelCallResponse
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.instructions import OutputInstructions
from minions.contracts.messages import assistant
from minions.contracts.retry_config import RetryConfig
from minions.contracts.run_events import OutputChecked, RunEvent
from minions.data.json_values import JsonValue
from minions.engine.calls.cut_answers import closed_answer
from minions.engine.history.conversation import ConversationStart
from minions.engine.services.run_services import MemoryProfiles, Services
from minions.recipe.catalog import Catalog
from minions.recipe.model_config import ModelConfig
from minions.recipe.reading.load import recipe_from_document
from minions.testing.endpoint import (
    Behaviour,
    ChatEndpoint,
    Exchange,
    RecordedRequest,
    answer,
    call,
    error_body,
    status,
    stream,
)
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, MortalJournal

PERSON: Final[JsonValue] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROPERTIES: Final[Mapping[str, JsonValue]] = {
    "title": {"type": "string"},
    "people": {"type": "array", "items": PERSON},
    "total": {"type": "integer"},
}
SCHEMA: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "properties": PROPERTIES,
    "required": ["title", "people", "total"],
    "additionalProperties": False,
}
ADA, BOB = {"name": "Ada", "age": 36}, {"name": "Bob", "age": 4}
CUT: Final = f'{{"title": "T", "people": [{json.dumps(ADA)}, {json.dumps(BOB)}, {{"name": "Ca'
WHOLE: Final = {"title": "T", "people": [ADA, BOB], "total": 2}
REST: Final = json.dumps({"total": 2})


@frozen(kw_only=True)
class Ended:
    """A run against a server."""

    result: AgentResult[object]
    requests: list[RecordedRequest]
    events: list[RunEvent]

    @property
    def code(self) -> str | None:
        return self.result.error.code if self.result.error is not None else None

    def form_of(self, number: int) -> dict[str, dict[str, object]]:
        """The properties that a request asks for."""
        body = cast(
            "dict[str, dict[str, dict[str, dict[str, object]]]]", self.requests[number].body
        )
        schema = body["response_format"]["json_schema"]["schema"]
        return cast("dict[str, dict[str, object]]", schema["properties"])


def services_of() -> Services:
    return evolve(deterministic_services(), parser=InstructorParser(), profiles=MemoryProfiles())


async def run_on(
    *behaviours: Behaviour,
    schema: Mapping[str, JsonValue] = SCHEMA,
    max_output_tokens: int | None = None,
    services: Services | None = None,
    streamed: bool = False,
    default: Behaviour | None = None,
    takes_text: bool = False,
) -> Ended:
    async with ChatEndpoint(*behaviours, default=default) as server:
        model = OpenAIModel("m", base_url=server.base_url)
        services = services or services_of()
        executor = executor_of(model, services=services)
        output = OutputInstructions[object](schema=schema, takes_text=takes_text)
        step = text_step(output=output)
        recipe = recipe_of([step], retry=RetryConfig(max_attempts=1))
        if max_output_tokens is not None:
            recipe = evolve(recipe, model=ModelConfig(max_output_tokens=max_output_tokens))
        run = executor.prepare(recipe)
        events: list[RunEvent] = []
        if streamed:
            run.listen(events.append)
        result = await run.execute()
        await model.aclose()
    return Ended(result=result, requests=server.requests, events=events)


def words_of(ended: Ended) -> list[str]:
    return [each.message for each in ended.result.warnings if each.code == "output-truncated"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("reason", ["length", "stop"])
@pytest.mark.parametrize("room", [None, 40])
async def test_whole_items_are_kept_and_only_what_is_missing_is_asked_for(
    reason: str, room: int | None, streamed: bool
) -> None:
    """A-160: whatever the server calls it, with a limit of the recipe's and without one."""
    cut = answer(CUT, finish_reason=reason)
    ended = await run_on(cut, answer(REST), max_output_tokens=room, streamed=streamed)
    assert (ended.result.status, ended.result.output) == (RunStatus.COMPLETED, WHOLE)
    asked = ended.requests[1]
    assert list(ended.form_of(1)) == ["total"]
    said, told = asked.messages[-2:]
    assert json.loads(str(said["content"])) == {"title": "T", "people": [ADA, BOB]}
    assert "cut off" in str(told["content"])
    assert "people" not in str(told["content"])
    (words,) = words_of(ended)
    assert "$.people; 2 whole items of it were kept, and total asked for alone" in words
    if streamed:
        checked = [each for each in ended.events if isinstance(each, OutputChecked)]
        assert [each.is_valid for each in checked] == [False, True]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("room", [None, 40])
@pytest.mark.parametrize("more", ["", "\n    \n", " " * 90])
async def test_a_value_that_ended_before_the_limit_is_the_answer(
    more: str, room: int | None, streamed: bool
) -> None:
    """Models that are held to a schema write blanks behind it; nothing of it is asked for again."""
    whole = answer(json.dumps(WHOLE) + more, finish_reason="length")
    ended = await run_on(whole, max_output_tokens=room, streamed=streamed)
    assert (ended.result.status, ended.result.output) == (RunStatus.COMPLETED, WHOLE)
    assert (len(ended.requests), words_of(ended)) == (1, [])


@pytest.mark.parametrize("text", ["12", '"a text"', "true"])
async def test_a_value_that_does_not_say_where_it_ends_may_be_cut(text: str) -> None:
    schema: Mapping[str, JsonValue] = {"type": ["integer", "string", "boolean"]}
    cut = answer(text, finish_reason="length")
    ended = await run_on(cut, schema=schema, max_output_tokens=40)
    assert ended.code == "output-truncated"


async def test_a_text_that_looks_like_a_value_may_be_cut() -> None:
    cut = answer('{"a": 1}', finish_reason="length")
    ended = await run_on(cut, takes_text=True, max_output_tokens=40)
    assert ended.code == "output-truncated"


async def test_a_whole_value_that_does_not_fit_is_repaired_as_one_that_was_not_cut() -> None:
    wrong = answer(json.dumps({**WHOLE, "total": "two"}), finish_reason="length")
    ended = await run_on(wrong, answer(json.dumps(WHOLE)), max_output_tokens=40)
    assert (ended.result.output, len(ended.requests)) == (WHOLE, 2)


async def test_nothing_more_is_asked_where_nothing_is_missing() -> None:
    """A-160."""
    schema = {**SCHEMA, "required": ["people"]}
    ended = await run_on(answer(CUT, finish_reason="length"), schema=schema)
    assert ended.result.output == {"title": "T", "people": [ADA, BOB]}
    assert len(ended.requests) == 1
    assert len(words_of(ended)) == 1


async def test_the_fields_of_an_object_around_the_list_are_asked_for_in_it() -> None:
    """A-160."""
    schema: JsonValue = {
        "type": "object",
        "properties": {"report": {"$ref": "#/$defs/report"}, "ok": {"type": "boolean"}},
        "required": ["report", "ok"],
        "$defs": {"report": SCHEMA},
    }
    rest = json.dumps({"report": {"total": 2}, "ok": True})
    cut = answer(f'{{"report": {CUT}', finish_reason="length")
    assert isinstance(schema, dict)
    ended = await run_on(cut, answer(rest), schema=schema)
    assert ended.result.output == {"report": WHOLE, "ok": True}


async def test_a_list_that_is_the_whole_output_is_closed() -> None:
    """A-160: it is asked for inside an object."""
    schema: Mapping[str, JsonValue] = {"type": "array", "items": PERSON}
    for begin in ('{"value": [', "["):
        text = f"{begin}{json.dumps(ADA)}, {{"
        ended = await run_on(answer(text, finish_reason="length"), schema=schema)
        assert ended.result.output == [ADA]


async def test_a_forced_call_that_was_cut_keeps_its_items() -> None:
    """A-160."""
    refusal = status(400, error_body("response_format is not supported"))
    begun = answer(tool_calls=[call("output", CUT)], finish_reason="length")
    rest = answer(tool_calls=[call("output", REST)])
    ended = await run_on(refusal, refusal, begun, rest)
    assert ended.result.output == WHOLE


@pytest.mark.parametrize(
    ("schema", "rest"),
    [
        (
            {
                **SCHEMA,
                "properties": {
                    **PROPERTIES,
                    "people": {"type": "array", "items": PERSON, "minItems": 3},
                },
            },
            REST,
        ),
        (SCHEMA, json.dumps({"total": "two"})),
        ({**SCHEMA, "minProperties": 4}, REST),
    ],
)
async def test_what_can_not_fit_fails(schema: Mapping[str, JsonValue], rest: str) -> None:
    """A-160: fewer items than have to be there, a field that is wrong, a rule of the whole."""
    cut = answer(CUT, finish_reason="length")
    ended = await run_on(cut, answer(rest), schema=schema, max_output_tokens=40)
    assert ended.code == "output-truncated"
    assert ended.result.output is None


async def test_too_few_items_are_asked_for_again_as_a_whole_where_the_recipe_says_no_limit() -> (
    None
):
    """A-160, A-133."""
    schema = {
        **SCHEMA,
        "properties": {
            **PROPERTIES,
            "people": {"type": "array", "items": PERSON, "minItems": 3},
        },
    }
    whole = {**WHOLE, "people": [ADA, BOB, ADA]}
    ended = await run_on(
        answer(CUT, finish_reason="length"), answer(json.dumps(whole)), schema=schema
    )
    assert ended.result.output == whole
    assert words_of(ended) == []


async def test_a_list_that_repeats_itself_keeps_one_of_each() -> None:
    """A-160."""
    text = f'{{"title": "T", "people": [{", ".join([json.dumps(ADA), json.dumps(BOB)] * 9)}, {{"na'
    ended = await run_on(answer(text, finish_reason="length"), answer(REST))
    assert ended.result.output == WHOLE
    assert "16 more only repeated them" in words_of(ended)[0]


async def test_a_stream_is_stopped_where_its_list_repeats_itself() -> None:
    """A-160: the server is not heard to its end, and the answer is paid for as it is estimated."""
    item = json.dumps(ADA) + ", "
    pieces = ['{"title": "T", "people": [', json.dumps(BOB) + ", ", *[item] * 400]
    events = [{"choices": [{"index": 0, "delta": {"content": each}}]} for each in pieces]
    endless = stream(events, ends="silent")  # type: ignore[arg-type]  # JSON
    ended = await run_on(endless, answer(REST), streamed=True)
    assert ended.result.output == {"title": "T", "people": [BOB, ADA], "total": 2}
    assert ended.result.usage.output_tokens > 100


async def test_numbers_that_are_equal_are_no_repetition() -> None:
    schema: Mapping[str, JsonValue] = {"type": "array", "items": {"type": "integer"}}
    ended = await run_on(answer("[" + "0, " * 40 + "0", finish_reason="length"), schema=schema)
    assert ended.result.output == [0] * 40


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ('{"a": [1, 2', '{"a": [1]}'),
        ('{"a": [1, 2 ', '{"a": [1,2]}'),
        ('{"a": ["x", "y', '{"a": ["x"]}'),
        ('{"a": ["x\\", [", "y"', '{"a": ["x\\", [", "y"]}'),
        ('[{"a": [1, 2]}, {"a": [3, ', '[{"a": [1, 2]}]'),
        ('```json\n{"a": [true, nul', '{"a": [true]}'),
        ('{"a": {"b": [[1], [2', '{"a": {"b": [[1]]}}'),
        ('{"a": [], "b": [{"c": [1, ', '{"a": [], "b": [{"c": [1]}]}'),
        ('{"a": [', None),
        ('{"a": [{"b": "x', None),
        ('{"a": [1], "b": "x', None),
        ('{"a": [1]}', None),
        ('{"a": [1}', None),
        ('{"a" [1, 2, 3 4', None),
        ("no JSON [1, 2, ", None),
        ("", None),
    ],
)
def test_an_answer_is_closed_after_its_last_whole_item(text: str, closed: str | None) -> None:
    """A-160."""
    found = closed_answer(ModelCallResponse(message=assistant(text)))
    if closed is None:
        assert found is None
    else:
        assert found is not None
        assert json.loads(found.text) == json.loads(closed)


async def test_a_resumed_run_closes_its_recorded_answer_alike() -> None:
    """A-160: wherever it was killed, it has the same output and warning, and repeats no call."""
    step = text_step(output=OutputInstructions[object](schema=SCHEMA))
    recipe = recipe_of([step], retry=RetryConfig(max_attempts=1))

    async def by_question(exchange: Exchange) -> None:
        is_cut = len(exchange.request.messages) < 4
        await (answer(CUT, finish_reason="length") if is_cut else answer(REST))(exchange)

    async def killed_at(at: int | None) -> tuple[AgentResult[object], int, int]:
        journal = MortalJournal(FakeClock())
        async with ChatEndpoint(default=by_question) as server:
            model = OpenAIModel("m", base_url=server.base_url)
            executor = executor_of(model, services=evolve(services_of(), journal=journal))
            journal.dies_at = at
            try:
                result = await executor.execute(recipe)
            except KilledError:
                journal.revive()
                executor = executor_of(model, services=evolve(services_of(), journal=journal))
                result = await executor.resume("run_1", recipe=recipe)
            await model.aclose()
        return result, len(server.requests), journal.count

    quiet, requests, facts = await killed_at(None)
    assert (quiet.output, requests) == (WHOLE, 2)
    for at in range(2, facts + 1):
        result, asked, _ = await killed_at(at)
        assert (result.output, result.warnings) == (WHOLE, quiet.warnings), at
        assert asked <= requests + 1, at


async def test_lists_and_texts_in_them_are_sent_with_bounds_where_there_are_none() -> None:
    """A-160."""
    ended = await run_on(answer(json.dumps(WHOLE)), schema={**SCHEMA, "required": ["people"]})
    form = ended.form_of(0)
    name = {"type": "string", "maxLength": 2000}
    assert form["people"]["maxItems"] == 1000
    assert (
        cast("dict[str, dict[str, object]]", form["people"]["items"])["properties"]["name"] == name
    )
    assert form["title"] == {"type": "string"}


async def test_a_server_that_refuses_bounds_is_asked_without_them() -> None:
    """A-160: in the same way, and free of charge."""
    refusal = status(400, error_body("Unsupported JSON schema keyword: maxItems"))
    ended = await run_on(refusal, answer(json.dumps(WHOLE)))
    assert ended.result.output == WHOLE
    assert list(ended.form_of(1)) == list(PROPERTIES)
    assert "maxItems" not in json.dumps(ended.requests[1].body)


async def test_a_list_that_ends_at_the_bound_is_told() -> None:
    """A-160: the server may have ended it there."""
    full = json.dumps({**WHOLE, "people": [{"name": f"P{n}", "age": n} for n in range(1000)]})
    ended = await run_on(answer(full))
    assert ended.result.status is RunStatus.COMPLETED
    assert "at a bound that the request added" in words_of(ended)[0]


@pytest.mark.parametrize("required", [["people"], ["title", "people", "total"]])
async def test_a_later_turn_reads_one_whole_answer(required: list[str]) -> None:
    """A-160: not the text that was cut, and not its parts."""
    schema = {**SCHEMA, "required": required}
    is_whole = "total" in required
    said = [answer(CUT, finish_reason="length"), *([answer(REST)] if is_whole else [])]
    document: Mapping[str, JsonValue] = {
        "id": "talk",
        "inputs": {"message": "string"},
        "steps": [{"id": "say", "goal": "List.", "memory": "conversation", "output": schema}],
    }
    async with ChatEndpoint(*said, default=answer(json.dumps(WHOLE))) as server:
        model = OpenAIModel("m", base_url=server.base_url)
        executor = executor_of(model, services=services_of())
        for number in range(2):
            run = executor.prepare(
                recipe_from_document(document, Catalog()),
                {"message": f"question {number}"},
                session_id="ses_1",
                live_conversation=ConversationStart(),
            )
            result = await run.execute()
            assert result.status is RunStatus.COMPLETED, result.error
        await model.aclose()
    told = [each for each in server.requests[-1].messages if each["role"] == "assistant"]
    kept = WHOLE if is_whole else {"title": "T", "people": [ADA, BOB]}
    assert [json.loads(str(each["content"])) for each in told] == [kept]
