from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, cast

import pytest
from attrs import field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from returns.pipeline import is_successful
from returns.result import Result, Success

from minions.adapters.models import structured_output
from minions.adapters.models.chat_request import RequestWriter
from minions.adapters.models.strict_schema import is_strict_schema
from minions.adapters.models.structured_output import InstructorParser
from minions.contracts.calls import ModelCallResponse, Prompt
from minions.contracts.instructions import (
    OutputFailure,
    OutputInstructions,
    OutputMode,
    OutputRequest,
)
from minions.contracts.messages import Message, ToolCallRequest, assistant, system, user
from minions.contracts.output import (
    output_words,
)
from minions.contracts.tool_parameters import sent_parameters
from minions.data.errors import SchemaError
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema, SchemaValidator

TEXT_MODES = (OutputMode.JSON_SCHEMA, OutputMode.JSON, OutputMode.MD_JSON)
ALL_MODES = (*TEXT_MODES, OutputMode.TOOLS)


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


@frozen
class Inner:
    tags: tuple[str, ...] = ()


@frozen
class Report:
    """A short report."""

    title: str
    score: int
    mood: Mood = Mood.GOOD
    inner: Inner = field(factory=Inner)


REPORT = OutputInstructions(output_class=Report, name="weather report!")
GOOD = {"title": "a {b} ] `c`", "score": 3, "mood": "bad", "inner": {"tags": ["x"]}}
EXPECTED = Report("a {b} ] `c`", 3, Mood.BAD, Inner(("x",)))
SCHEMA = REPORT.json_schema()


@pytest.fixture
def parser() -> InstructorParser:
    return InstructorParser()


def said(
    text: str | None = None,
    *,
    calls: Sequence[ToolCallRequest] = (),
    finish_reason: str | None = "stop",
) -> ModelCallResponse:
    return ModelCallResponse(message=assistant(text, tool_calls=calls), finish_reason=finish_reason)


def called(name: str, arguments: str, *, id: str = "c1") -> ToolCallRequest:  # noqa: A002  # short
    return ToolCallRequest(id=id, name=name, arguments=arguments)


def failure_of(result: Result[object, OutputFailure]) -> OutputFailure:
    assert not is_successful(result), result
    return result.failure()


# --- the request -------------------------------------------------------------------------------


def test_a_json_schema_request_holds_the_schema_and_no_messages(parser: InstructorParser) -> None:
    request = parser.request(REPORT, OutputMode.JSON_SCHEMA).without_bounds()
    assert request.mode is OutputMode.JSON_SCHEMA
    assert request.messages == ()
    assert request.body == {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "weather_report_", "schema": SCHEMA},
        }
    }


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        {"type": "object"},
        {"properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"type": "integer"}}},
        {"type": "object", "title": "T", "description": "é", "properties": {"a": {"enum": [1]}}},
    ],
)
def test_a_json_schema_request_is_what_instructor_would_write(
    parser: InstructorParser, schema: dict[str, JsonValue]
) -> None:
    from instructor.mode import Mode
    from instructor.processing.response import handle_response_model

    answer = structured_output._response_class("n", schema)
    _, theirs = handle_response_model(answer, mode=Mode.JSON_SCHEMA, messages=[])
    instructions = OutputInstructions[JsonValue](schema=schema, name="n")
    ours = parser.request(instructions, OutputMode.JSON_SCHEMA).without_bounds()
    assert json.dumps({**ours.body, "messages": []}) == json.dumps(
        {"response_format": theirs["response_format"], "messages": theirs["messages"]}
    )


def _closed(**properties: JsonValue) -> dict[str, JsonValue]:
    """An object as strict mode wants it."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_N: JsonValue = {"type": "integer"}
STRICT: dict[str, JsonValue] = {
    "an object": _closed(n=_N),
    "nothing": _closed(),
    "null beside a type": _closed(n={"type": ["integer", "null"]}),
    "described": _closed(n={"type": "integer", "description": "A number.", "title": "N"}),
    "bounds": _closed(n={"type": "number", "minimum": 0, "maximum": 1}),
    "a choice of words": _closed(n={"enum": ["a", "b"]}),
    "a choice of schemas": _closed(n={"anyOf": [_N, _closed(a=_N)]}),
    "a list of objects": _closed(n={"type": "array", "items": _closed(a=_N), "maxItems": 3}),
    "a known format": _closed(n={"type": "string", "format": "date"}),
    "a definition that recurs": {
        **_closed(n={"$ref": "#/$defs/t"}),
        "$defs": {"t": _closed(next={"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]})},
    },
    "a list, asked for inside an object": {"type": "array", "items": _N},
    "as many long words as may be": _closed(n={"enum": ["é" * 61] * 250}),
    "more short words": _closed(n={"enum": [f"v{n}" for n in range(251)]}),
    "few long words": _closed(n={"enum": ["é" * 1_000] * 20}),
    "a pattern": _closed(n={"type": "string", "pattern": r"^[a-z]+(\?b)?$"}),
}
LAX: dict[str, JsonValue] = {
    "an optional property": {**_closed(n=_N, m=_N), "required": ["n"]},
    "further properties": {**_closed(n=_N), "additionalProperties": True},
    "nothing said of further properties": {"type": "object", "properties": {"n": _N}},
    "an object within that is open": _closed(n={"type": "object"}),
    "any value": _closed(n={}),
    "a list of anything": _closed(n={"type": "array"}),
    "a length": _closed(n={"type": "string", "minLength": 1}),
    "another format": _closed(n={"type": "string", "format": "uri"}),
    "a default": _closed(n={"type": "integer", "default": 1}),
    "oneOf": _closed(n={"oneOf": [_N, {"type": "string"}]}),
    "allOf": _closed(n={"allOf": [_N]}),
    "patternProperties": {**_closed(n=_N), "patternProperties": {"x": _N}},
    "a choice at the root": {**_closed(n=_N), "anyOf": [_closed(n=_N)]},
    "uniqueItems": _closed(n={"type": "array", "items": _N, "uniqueItems": True}),
    "too many values": _closed(n={"enum": [f"v{n}" for n in range(1_001)]}),
    "many long values": _closed(n={"enum": [f"{n:060}" for n in range(251)]}),
    "a described reference": {
        **_closed(n={"$ref": "#/$defs/t", "description": "A number."}),
        "$defs": {"t": _N},
    },
    "a reference into a definition": {
        **_closed(n={"$ref": "#/$defs/t/properties/m"}),
        "$defs": {"t": _closed(m=_N)},
    },
    "a reference beside the root's own words": {"$ref": "#/$defs/t", "type": "object"},
    "a pattern that looks ahead": _closed(n={"type": "string", "pattern": "^(?=a)b"}),
    "a pattern with a flag": _closed(n={"type": "string", "pattern": "(?i)a"}),
    "properties without a type": _closed(
        n={"enum": ["a"], "properties": {}, "required": [], "additionalProperties": False}
    ),
    "required without a type": _closed(n={"const": 1, "required": []}),
    "closed without a type": _closed(n={"anyOf": [_N], "additionalProperties": False}),
    "properties of a number": _closed(n={"type": "integer", "properties": {}}),
    "an empty choice of words": _closed(n={"enum": []}),
    "an empty choice of schemas": _closed(n={"anyOf": []}),
    "an empty list of types": _closed(n={"type": []}),
}


@pytest.mark.parametrize("name", [*STRICT, *LAX])
def test_strict_is_asked_for_just_where_the_schema_meets_its_rules(
    parser: InstructorParser, name: str
) -> None:
    """Without it a hosted model is not bound; outside of the rules it is refused."""
    schema = cast("dict[str, JsonValue]", STRICT.get(name) or LAX[name])
    body = parser.request(OutputInstructions(schema=schema), OutputMode.JSON_SCHEMA).body
    sent = cast("Any", body["response_format"])["json_schema"]  # Any: what is sent, as JSON
    assert sent.get("strict") == (True if name in STRICT else None)


@pytest.mark.parametrize("reference", ["#/$defs/u", "#/$defs/t/x", "#/definitions/t", "#/$defs/"])
def test_a_reference_that_leads_nowhere_is_not_strict(reference: str) -> None:
    assert is_strict_schema({**_closed(n={"$ref": "#/$defs/t"}), "$defs": {"t": _N}})
    assert not is_strict_schema({**_closed(n={"$ref": reference}), "$defs": {"t": _N}})


def test_nesting_beyond_ten_levels_is_not_strict(parser: InstructorParser) -> None:
    schema = _closed(n=_N)
    for levels in range(2, 13):
        schema = _closed(n=schema)
        body = parser.request(OutputInstructions(schema=schema), OutputMode.JSON_SCHEMA).body
        sent = cast("Any", body["response_format"])["json_schema"]  # Any: what is sent, as JSON
        assert ("strict" in sent) == (levels <= 10)


def test_the_tool_of_a_tools_request_lists_no_types(parser: InstructorParser) -> None:
    """A-111: null stays allowed where the answer must have the field."""
    schema = _closed(n={"type": ["integer", "null"]})
    body = parser.request(OutputInstructions(schema=schema), OutputMode.TOOLS).body
    (tool,) = cast("list[Any]", body["tools"])  # Any: as above
    assert tool["function"]["parameters"]["properties"] == {
        "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    }


def test_a_tools_request_forces_one_tool_called_like_the_schema(parser: InstructorParser) -> None:
    request = parser.request(REPORT, OutputMode.TOOLS).without_bounds()
    parameters = sent_parameters({k: each for k, each in SCHEMA.items() if k != "description"})
    parameters["required"] = ["score", "title"]  # sorted by instructor
    function = {
        "name": "weather_report_",
        "description": "A short report.",
        "parameters": parameters,
    }
    assert request.messages == ()
    assert request.body == {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",  # by its name llama.cpp does not force it
    }


def test_a_json_request_asks_for_json_and_repeats_no_schema(parser: InstructorParser) -> None:
    """A-109."""
    request = parser.request(REPORT, OutputMode.JSON)
    assert request.body == {"response_format": {"type": "json_object"}}
    assert request.messages == ()


def test_a_json_request_for_another_value_than_an_object_asks_for_one_around_it(
    parser: InstructorParser,
) -> None:
    numbers = OutputInstructions[JsonValue](schema={"type": "array"})
    (message,) = parser.request(numbers, OutputMode.JSON).messages
    assert message == system('Put it into an object: {"value": …}.')


def test_a_markdown_request_adds_nothing_to_the_prompt(parser: InstructorParser) -> None:
    """A-109."""
    assert parser.request(REPORT, OutputMode.MD_JSON) == OutputRequest(mode=OutputMode.MD_JSON)


def described(mode: OutputMode, *, takes_strict: bool = True) -> dict[str, JsonValue]:
    """The request for a strict schema, as it is sent."""
    schema: JsonSchema = {
        "type": "object",
        "properties": {"title": {"type": "string"}, "pages": {"$ref": "#/$defs/count"}},
        "required": ["title", "pages"],
        "additionalProperties": False,
        "$defs": {"count": {"type": "integer"}},
    }
    output = OutputInstructions[object](schema=schema)
    writer = RequestWriter(provider="p", model="m", takes_strict=takes_strict)
    prompt = Prompt(
        [system(output_words(output)), user("Go")],
        instructions=output,
        output_request=InstructorParser().request(output, mode),
    )
    sent: dict[str, JsonValue] = json.loads(writer.write(prompt, stream=False))
    return sent


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_request_says_the_schema_once(mode: OutputMode) -> None:
    """A-109: bound, or in words; what stands beside a bound one is a list of fields."""
    sent = described(mode)
    words = cast("Any", sent["messages"])[0]["content"]  # Any: the server's JSON
    assert words.count("title") == 1
    assert "properties" not in words
    bound = 1 if mode in (OutputMode.JSON_SCHEMA, OutputMode.TOOLS) else 0
    assert json.dumps(sent).count('"properties"') == bound


@pytest.mark.parametrize("mode", [OutputMode.JSON_SCHEMA, OutputMode.TOOLS])
def test_strict_goes_only_to_a_server_that_takes_it(mode: OutputMode) -> None:
    """A-109."""
    assert '"strict": true' in json.dumps(described(mode))
    assert "strict" not in json.dumps(described(mode, takes_strict=False))
    loose = OutputInstructions[object](schema={"type": "object", "properties": {"a": {}}})
    assert "strict" not in json.dumps(InstructorParser().request(loose, mode).body)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_request_is_json_and_built_once_per_instructions(
    parser: InstructorParser, mode: OutputMode
) -> None:
    request = parser.request(REPORT, mode)
    assert parser.request(REPORT, mode) is request
    json.dumps(request.body)
    assert all(isinstance(message, Message) for message in request.messages)


def test_building_a_request_leaves_the_schema_as_it_was(parser: InstructorParser) -> None:
    schema: dict[str, JsonValue] = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
    }
    before = json.dumps(schema)
    for mode in ALL_MODES:
        parser.request(OutputInstructions[JsonValue](schema=schema), mode)
    assert json.dumps(schema) == before


def test_a_name_without_a_usable_character_still_makes_a_name(parser: InstructorParser) -> None:
    for name, expected in (("", "output"), ("é" * 80, "_" * 64), ("a-b_C9", "a-b_C9")):
        instructions = OutputInstructions(output_class=Report, name=name)
        body = parser.request(instructions, OutputMode.TOOLS).body
        (tool,) = cast("list[Any]", body["tools"])  # Any: as above
        assert tool["function"]["name"] == expected


def test_a_schema_that_is_no_object_is_asked_for_inside_one(parser: InstructorParser) -> None:
    schema: dict[str, JsonValue] = {
        "type": "array",
        "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/n"}]},
        "$defs": {"n": {"type": "integer"}},
    }
    moved = {"anyOf": [{"$ref": "#/properties/value"}, {"$ref": "#/$defs/n"}]}
    request = parser.request(OutputInstructions(schema=schema), OutputMode.JSON_SCHEMA)
    shown = {
        "type": "object",
        "properties": {"value": {"type": "array", "items": moved, "maxItems": 1000}},
        "required": ["value"],
        "additionalProperties": False,
        "$defs": {"n": {"type": "integer"}},
    }
    assert request.body == {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": shown},
        }
    }


def test_instructions_without_a_schema_are_refused_with_a_reason(parser: InstructorParser) -> None:
    nothing = OutputInstructions[object]()
    with pytest.raises(SchemaError, match="need a schema or an output_class"):
        parser.request(nothing, OutputMode.TOOLS)
    for mode in (None, *ALL_MODES):
        failure = failure_of(parser.parse(nothing, said("{}"), mode))
        assert "need a schema or an output_class" in failure.message


# --- answers in text ---------------------------------------------------------------------------

PLAIN = json.dumps(GOOD)
DRESSED = {
    "bare": PLAIN,
    "fence": f"```json\n{PLAIN}\n```",
    "fence without a language": f"```\n{PLAIN}\n```",
    "prose around": f"Sure! Here it is: {PLAIN} Hope that helps.",
    "prose with braces before": f"I used the form {{}} and [] as told: {PLAIN}",
    "prose with braces behind": f"{PLAIN}\nNote: {{}} would be empty, [1] a list.",
    "unfinished fence": f"```json\n{PLAIN}",
    "thinking before": f"<think>{{hmm</think>\n{PLAIN}",
}


@pytest.mark.parametrize("mode", [None, *ALL_MODES])
@pytest.mark.parametrize("text", DRESSED.values(), ids=DRESSED)
def test_the_answer_is_found_in_every_dress_and_mode(
    parser: InstructorParser, text: str, mode: OutputMode | None
) -> None:
    assert parser.parse(REPORT, said(text), mode) == Success(EXPECTED)


BAD = {
    "nothing": (None, "the text is empty"),
    "blank": (" \n", "the text is empty"),
    "prose": ("I cannot do that.", "no JSON object or array"),
    "cut off": ('{"title": "a", "sc', "no JSON object or array"),
    "wrong type": ('{"title": "a", "score": "3"}', "$.score"),
    "missing": ('{"title": "a"}', "'score' is a required property"),
    "more than asked": ('{"title": "a", "score": 1, "x": 2}', "'x' was unexpected"),
    "not a number": ('{"title": "a", "score": NaN}', "JSON"),
    "an array": ("[1]", "not of type 'object'"),
    "too deep": ("[" * 100_000, "JSON"),
}


@pytest.mark.parametrize("mode", [None, *ALL_MODES])
@pytest.mark.parametrize(("text", "words"), BAD.values(), ids=BAD)
def test_what_does_not_fit_is_a_failure_that_says_why_in_every_mode(
    parser: InstructorParser, text: str | None, words: str, mode: OutputMode | None
) -> None:
    assert words in failure_of(parser.parse(REPORT, said(text), mode)).message


@pytest.mark.parametrize("mode", [None, *ALL_MODES])
@settings(max_examples=25, deadline=None)
@given(text=st.text(max_size=60))
def test_no_text_whatever_makes_the_parser_raise(mode: OutputMode | None, text: str) -> None:
    shared = _SHARED
    assert not is_successful(shared.parse(REPORT, said(text), mode))
    call = called("weather_report_", text)
    assert not is_successful(shared.parse(REPORT, said(None, calls=[call]), mode))


_SHARED = InstructorParser()


@pytest.mark.parametrize("mode", ALL_MODES)
def test_an_answer_cut_off_at_its_limit_is_a_failure(
    parser: InstructorParser, mode: OutputMode
) -> None:
    failure = failure_of(parser.parse(REPORT, said(PLAIN, finish_reason="length"), mode))
    assert "incomplete" in failure.message


@pytest.mark.parametrize("mode", [None, *ALL_MODES])
def test_a_converter_that_raises_makes_a_failure(
    parser: InstructorParser, mode: OutputMode | None
) -> None:
    class Picky(OutputInstructions[Report]):
        def convert(self, value: JsonValue) -> Report:
            raise RuntimeError("not on a Sunday")

    failure = failure_of(parser.parse(Picky(output_class=Report), said(PLAIN), mode))
    assert "not on a Sunday" in failure.message


# --- answers as tool calls -----------------------------------------------------------------------


def test_the_call_with_the_schemas_name_is_the_answer_whatever_its_place(
    parser: InstructorParser,
) -> None:
    calls = [called("search", '{"title": "x", "score": 1}'), called("weather_report_", PLAIN)]
    answer = said("Let me see {}.", calls=calls)
    assert parser.parse(REPORT, answer, OutputMode.TOOLS) == Success(EXPECTED)


def test_without_that_call_the_text_is_the_answer(parser: InstructorParser) -> None:
    answer = said(f"Here: {PLAIN}", calls=[called("search", "{}")])
    assert parser.parse(REPORT, answer, OutputMode.TOOLS) == Success(EXPECTED)


def test_the_text_instead_of_the_call_is_checked_as_strictly(parser: InstructorParser) -> None:
    answer = said('{"title": "a", "score": "3"}')
    assert "$.score" in failure_of(parser.parse(REPORT, answer, OutputMode.TOOLS)).message


@pytest.mark.parametrize("mode", ALL_MODES)
def test_only_other_calls_and_no_text_is_a_failure_that_names_them(
    parser: InstructorParser, mode: OutputMode
) -> None:
    answer = said(None, calls=[called("search", PLAIN), called("other", PLAIN)])
    failure = failure_of(parser.parse(REPORT, answer, mode))
    assert failure.message == "The answer only calls search, other; it holds no JSON."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [("", "the text is empty"), ('{"title":', "no JSON"), ('{"title": "a"}', "required")],
)
def test_broken_arguments_are_a_failure(
    parser: InstructorParser, arguments: str, words: str
) -> None:
    answer = said(None, calls=[called("weather_report_", arguments)])
    assert words in failure_of(parser.parse(REPORT, answer, OutputMode.TOOLS)).message


# --- schemas that are no objects -----------------------------------------------------------------

NUMBERS = OutputInstructions(output_class=list[int], name="numbers")


@pytest.mark.parametrize("mode", [None, *ALL_MODES])
def test_a_list_is_taken_bare_in_every_mode(
    parser: InstructorParser, mode: OutputMode | None
) -> None:
    assert parser.parse(NUMBERS, said("so: [1, 2]"), mode) == Success([1, 2])


@pytest.mark.parametrize("mode", [OutputMode.JSON_SCHEMA, OutputMode.JSON, OutputMode.TOOLS])
def test_a_list_is_taken_wrapped_where_it_was_asked_for_so(
    parser: InstructorParser, mode: OutputMode
) -> None:
    text = '{"value": [1, 2]}'
    assert parser.parse(NUMBERS, said(text), mode) == Success([1, 2])
    if mode is OutputMode.TOOLS:
        answer = said(None, calls=[called("numbers", text)])
        assert parser.parse(NUMBERS, answer, mode) == Success([1, 2])


def test_the_errors_of_a_wrapped_value_are_told_at_its_own_places(parser: InstructorParser) -> None:
    result = parser.parse(NUMBERS, said('{"value": [1, "x"]}'), OutputMode.JSON_SCHEMA)
    assert "$[1]" in failure_of(result).message


# --- what is kept -------------------------------------------------------------------------------


def test_the_validator_is_compiled_once_for_all_modes(
    parser: InstructorParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[object] = []

    def counting(schema: dict[str, JsonValue]) -> SchemaValidator:
        compiled.append(schema)
        return SchemaValidator(schema)

    monkeypatch.setattr(structured_output, "SchemaValidator", counting)
    for mode in (None, *ALL_MODES, None):
        assert is_successful(parser.parse(REPORT, said(PLAIN), mode))
    assert len(compiled) == 1


def test_equal_names_with_other_schemas_do_not_meet(parser: InstructorParser) -> None:
    for kind, text in (("integer", "1"), ("string", '"a"'), ("boolean", "true")) * 3:
        instructions = OutputInstructions[JsonValue](schema={"type": kind})
        value = json.loads(text)
        assert parser.parse(instructions, said(text), OutputMode.JSON_SCHEMA) == Success(value)


def test_nothing_is_kept_for_instructions_that_are_gone(parser: InstructorParser) -> None:
    for _ in range(20):
        instructions = OutputInstructions[JsonValue](schema={"type": "object"})
        for mode in (None, *ALL_MODES):
            parser.parse(instructions, said("{}"), mode)
    del instructions
    gc.collect()
    assert parser._kept == {}


TONE = OutputInstructions(schema={"enum": ["good", "bad", "42"]}, name="tone")


@pytest.mark.parametrize("mode", [None, *ALL_MODES])
@pytest.mark.parametrize("text", ["good", " good\n", '"good"'])
def test_a_declared_string_may_come_without_quotes(
    parser: InstructorParser, mode: OutputMode | None, text: str
) -> None:
    assert parser.parse(TONE, said(text), mode) == Success("good")
    words: OutputInstructions[str] = OutputInstructions(output_class=str)
    assert parser.parse(words, said(text), mode) == Success("good")


def test_the_whole_text_is_the_string_where_the_json_in_it_does_not_fit(
    parser: InstructorParser,
) -> None:
    assert parser.parse(TONE, said("42"), None) == Success("42")
    words = OutputInstructions(output_class=str)
    assert parser.parse(words, said("see {} there"), None) == Success("see {} there")


@pytest.mark.parametrize("mode", [None, *ALL_MODES])
@pytest.mark.parametrize("text", ["", "  ", "fine"])
def test_a_text_that_is_none_of_the_declared_strings_is_refused(
    parser: InstructorParser, mode: OutputMode | None, text: str
) -> None:
    assert "holds no JSON" in failure_of(parser.parse(TONE, said(text), mode)).message


@pytest.mark.parametrize("mode", [*ALL_MODES])
def test_a_broken_wrapper_is_no_string(parser: InstructorParser, mode: OutputMode) -> None:
    words = OutputInstructions(output_class=str)
    broken = parser.parse(words, said('{"value": "go'), mode)
    assert "holds no JSON" in failure_of(broken).message


def test_a_number_that_json_cannot_say_is_what_is_told(parser: InstructorParser) -> None:
    failure = failure_of(parser.parse(REPORT, said('{"score": 1e999}'), None))
    assert (
        failure.message == "The answer holds no JSON: 1e999 is not a number that JSON can express."
    )


async def test_warming_up_again_costs_nothing(
    parser: InstructorParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[OutputMode] = []

    async def count(load: Callable[[OutputMode], None], mode: OutputMode) -> None:
        threads.append(mode)
        load(mode)

    monkeypatch.setattr(structured_output, "import_in_daemon_thread", count)
    for mode in (OutputMode.JSON_SCHEMA, OutputMode.JSON_SCHEMA, None, OutputMode.TOOLS, None):
        await parser.warm_up(mode)
    assert threads == [OutputMode.JSON_SCHEMA, OutputMode.TOOLS]


def test_a_schema_is_asked_for_and_read_without_the_vendors() -> None:
    code = """
import asyncio, sys
from minions.adapters.models.structured_output import InstructorParser
from minions.contracts.calls import ModelCallResponse, OutputInstructions, OutputMode
from minions.contracts.messages import assistant
parser, mode = InstructorParser(), OutputMode.JSON_SCHEMA
asyncio.run(parser.warm_up(mode))
asked = OutputInstructions(schema={"type": "object"})
print(sorted(parser.request(asked, mode).body))
print(parser.parse(asked, ModelCallResponse(message=assistant('{"a": 1}')), mode))
print([name for name in ("openai", "instructor", "pydantic") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["['response_format']", "<Success: {'a': 1}>", "[]"]


def test_free_text_is_parsed_without_the_vendors() -> None:
    code = """
import sys
from minions.adapters.models.structured_output import InstructorParser
from minions.contracts.calls import ModelCallResponse, OutputInstructions
from minions.contracts.messages import assistant
answer = ModelCallResponse(message=assistant('so: {"a": 1}'))
print(InstructorParser().parse(OutputInstructions(schema={"type": "object"}), answer, None))
print([name for name in ("openai", "instructor", "pydantic") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["<Success: {'a': 1}>", "[]"]
