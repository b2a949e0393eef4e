"""`x-quoted`: what an output copies stands in the question, or it is not the output. A-133."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

import pytest
from attrs import evolve, frozen
from returns.pipeline import is_successful

from builders import deterministic_services, fake_tool, recipe_of, run_of, text_step
from lab_models import run
from minions.adapters.models.openai import OpenAIModel
from minions.adapters.models.script_items import Answer
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.models.structured_output import InstructorParser
from minions.app.wiring.built_in_extensions import built_in_extensions, extended
from minions.contracts.calls import ModelCallResponse, ModelCapabilities
from minions.contracts.executions import RunStatus
from minions.contracts.instructions import OutputInstructions, OutputMode
from minions.contracts.messages import (
    MessageBundle,
    ToolCallRequest,
    assistant,
    system,
    tool_result,
    user,
)
from minions.data.errors import RecipeError, SchemaError
from minions.data.json_values import JsonValue, as_object
from minions.data.schema_words import schema_words
from minions.engine.calls.quoted_values import QuotedParser
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import TextOutputParser
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document
from minions.testing import endpoint as fake

ORDER: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "properties": {
        "customer": {"type": "string", "x-quoted": 2},
        "items": {"type": "array", "items": {"type": "string", "x-quoted": 1}},
        "kind": {"type": "string", "enum": ["rush", "usual"]},
    },
    "required": ["customer", "items", "kind"],
    "additionalProperties": False,
}
PERSON: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "properties": {"name": {"type": "string", "x-quoted": 4}},
    "required": ["name"],
}


@frozen
class Person:
    name: str


QUESTION: Final = "Cafe Nord wants 12 cups, (please)."
GOOD: Final = '{"customer": "Cafe Nord", "items": ["cups"], "kind": "usual"}'
BAD: Final = '{"customer": "Hotel Mistral", "items": ["cups"], "kind": "usual"}'


def recipe(output: Mapping[str, JsonValue] = ORDER, **more: JsonValue) -> AgentRecipe:
    step: JsonValue = {
        "id": "read", "goal": QUESTION, "output": dict(output), "model": "lab/m", **more
    }  # fmt: skip
    return recipe_from_document({"id": "r", "steps": [step]}, Catalog())


CONSTRAINING: Final = evolve(deterministic_services(), parser=InstructorParser())


def model_at(base_url: str) -> OpenAIModel:
    binds = ModelCapabilities(output_mode=OutputMode.JSON_SCHEMA)
    return OpenAIModel("m", base_url=base_url, capabilities=binds)


def bound(schema: Mapping[str, JsonValue], *texts: str) -> Mapping[str, JsonValue]:
    quotes = QuotedParser(TextOutputParser())
    quotes.read([user(texts[0]), *(tool_result(each, tool_call_id="c1") for each in texts[1:])])
    return quotes.bound(OutputInstructions[object](schema=schema)).json_schema()


# --- servers that hold answers to a schema ------------------------------------------------------


async def test_a_server_is_sent_the_words_of_the_question_and_none_of_the_examples() -> None:
    shown: JsonValue = {"customer": "Hotel Mistral", "items": ["towels"], "kind": "rush"}
    examples: JsonValue = [{"input": "Hotel Mistral wants towels, now.", "output": shown}]
    asked = recipe(examples=examples)
    async with fake.ChatEndpoint(fake.answer(GOOD)) as server:
        model = model_at(server.base_url)
        result = await run(asked, CONSTRAINING, m=model)
        await model.aclose()
    assert result.output == json.loads(GOOD)
    form = as_object(as_object(server.requests[0].body["response_format"])["json_schema"])
    fields = as_object(as_object(form["schema"])["properties"])
    assert fields["customer"] == {
        "type": "string",
        "enum": [
            *("Cafe", "Cafe Nord", "Nord", "Nord wants", "wants", "wants 12", "12", "12 cups"),
            *("cups", "cups, (please", "please"),
        ],
    }
    items = as_object(as_object(fields["items"])["items"])
    assert items["enum"] == ["Cafe", "Nord", "wants", "12", "cups", "please"]
    assert fields["kind"] == ORDER["properties"]["kind"]  # type: ignore[index,call-overload]
    assert form["strict"] is True


def test_what_a_tool_gave_may_be_quoted_as_well() -> None:
    schema: Mapping[str, JsonValue] = {"type": ["string", "null"], "x-quoted": 1}
    assert bound(schema, "Who?", "Ada Byron")["enum"] == ["Who", "Ada", "Byron", None]


def test_a_long_text_binds_nothing_and_a_mark_is_not_sent() -> None:
    schema: Mapping[str, JsonValue] = {"type": "string", "x-quoted": 3, "minLength": 1}
    text = " ".join(f"word{at}" for at in range(400))
    assert bound(schema, text) == {"type": "string", "minLength": 1}
    assert bound(schema, "(…)") == {"type": "string", "minLength": 1}


def test_a_pattern_and_an_enumeration_stand_as_they_are() -> None:
    pattern: Mapping[str, JsonValue] = {"type": "string", "x-quoted": 1, "pattern": "^[A-Z]"}
    assert bound(pattern, "a B") == {"type": "string", "pattern": "^[A-Z]"}
    values: Mapping[str, JsonValue] = {"enum": ["a"], "type": "string", "x-quoted": 1}
    assert bound(values, "a B") == {"type": "string", "enum": ["a"]}


def test_a_form_without_marks_is_the_same_one() -> None:
    form = OutputInstructions[object](schema={"type": "object"})
    assert QuotedParser(TextOutputParser()).bound(form) is form


def test_a_repair_asks_by_the_same_form() -> None:
    quotes, form = QuotedParser(TextOutputParser()), OutputInstructions[object](schema=ORDER)
    quotes.read([system("x"), user("Ada"), assistant("?")])
    first = quotes.bound(form)
    quotes.read([user("Ada"), assistant("?"), user("That does not fit.")])
    assert quotes.bound(form) is first
    quotes.read([user("Ada"), tool_result("Bo", tool_call_id="c1")])
    assert quotes.bound(form) is not first


# --- all others ---------------------------------------------------------------------------------


async def test_an_answer_with_words_from_elsewhere_is_repaired() -> None:
    """Never a wrong value that passes as checked."""
    model = ScriptedModel([BAD, GOOD])
    result = await run(recipe(), m=model)
    assert result.output == json.loads(GOOD)
    told = model.prompts[1].messages[-1].content or ""
    assert "$.customer: 'Hotel Mistral' does not stand there" in told


async def test_an_answer_that_cannot_be_mended_is_none() -> None:
    result = await run(recipe(), m=ScriptedModel([BAD, BAD, BAD]))
    assert result.status is RunStatus.FAILED
    assert result.error is not None
    assert result.error.code == "invalid-output"


@pytest.mark.parametrize(
    ("value", "is_taken"),
    [
        ("cafe  nord", True),
        ("Cafe Nord wants", False),
        ("Cafe Sud", False),
        ("12 cups", True),
    ],
)
async def test_case_and_blanks_do_not_count_and_words_do(value: str, is_taken: bool) -> None:
    said = json.dumps({"customer": value, "items": [], "kind": "usual"})
    result = await run(recipe(), m=ScriptedModel([said] * 3))
    assert (result.status is RunStatus.COMPLETED) is is_taken


_TEXT: Final[JsonValue] = {"type": "string", "x-quoted": 2}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"anyOf": [_TEXT, {"type": "null"}]}}},
        {"properties": {"a": {"allOf": [_TEXT]}}},
        {"properties": {"a": {"$ref": "#/$defs/text"}}, "$defs": {"text": _TEXT}},
        {"additionalProperties": _TEXT},
    ],
)
@pytest.mark.parametrize(
    ("value", "is_taken"),
    [("Ada", True), ("ada  wants", True), ("Bob", False), ("Ada wants towels", False)],
)
def test_a_mark_counts_wherever_it_stands(
    schema: Mapping[str, JsonValue], value: str, is_taken: bool
) -> None:
    parser = QuotedParser(TextOutputParser())
    parser.read([user("Ada wants towels.")])
    form = OutputInstructions[object](schema={"type": "object", **schema})
    answer = ModelCallResponse(message=assistant(json.dumps({"a": value})))
    assert is_successful(parser.parse(form, answer, None)) is is_taken


@pytest.mark.parametrize("most", ["4", 0, True, 1.5, None])
def test_a_mark_of_code_is_a_number_of_words(most: JsonValue) -> None:
    form = OutputInstructions[object](schema={"type": "string", "x-quoted": most})
    with pytest.raises(SchemaError, match="how many words of the question a value has at most"):
        assert form.is_quoted


async def test_an_item_of_a_list_is_named_by_its_place() -> None:
    model = ScriptedModel(['{"customer": "Cafe", "items": ["cups", "pots"], "kind": "rush"}', GOOD])
    await run(recipe(), m=model)
    assert "$.items[1]: 'pots' does not stand there" in (
        model.prompts[1].messages[-1].content or ""
    )


async def test_a_text_alone_may_be_quoted() -> None:
    form = OutputInstructions[object](schema={"type": "string", "x-quoted": 2})
    step = text_step(output=form, messages=MessageBundle((user(QUESTION),)))
    async with fake.ChatEndpoint(fake.answer('{"value": "Cafe Nord"}')) as server:
        model = model_at(server.base_url)
        ran = await run_of(recipe_of([step]), model, services=CONSTRAINING)
        await model.aclose()
    assert ran.result.output == "Cafe Nord"


async def test_a_step_with_tools_quotes_what_they_gave() -> None:
    output = OutputInstructions[object](
        schema={
            "type": "object",
            "properties": {"name": {"type": "string", "x-quoted": 1}},
            "required": ["name"],
        }
    )
    look = assistant(None, tool_calls=(ToolCallRequest(id="c1", name="look", arguments="{}"),))
    answers: list[Answer] = [look, '{"name": "Mistral"}', '{"name": "seen"}']
    step = text_step(output=output, tools=["look"])
    ran = await run_of(recipe_of([step]), answers, tools=[fake_tool("look")])
    assert ran.result.output == {"name": "seen"}


def test_models_are_told_in_words() -> None:
    assert schema_words(ORDER).startswith('{"customer": string (words of the text, at most 2), ')


async def test_the_last_answer_of_a_step_that_may_not_call_again_is_checked_as_well() -> None:
    look = assistant(None, tool_calls=(ToolCallRequest(id="c1", name="look", arguments="{}"),))
    document: dict[str, JsonValue] = {
        "id": "r",
        "model": "lab/m",
        "tools": ["look"],
        "limits": {"max_model_calls_per_step": 1},
        "steps": [
            {
                "id": "read",
                "goal": QUESTION,
                "tools": ["look"],
                "at_limit": "answer",
                "output": dict(ORDER),
            }
        ],
    }
    tool = fake_tool("look")
    asked = recipe_from_document(document, Catalog(tools={"look": tool.spec}))
    ran = await run_of(asked, [look, BAD], tools=[tool])
    assert ran.result.status is RunStatus.FAILED
    ran = await run_of(asked, [look, GOOD], tools=[tool])
    assert ran.result.output == json.loads(GOOD)


@pytest.mark.parametrize("most", [0, True, "4", None, {}])
def test_a_mark_is_a_number_of_words(most: JsonValue) -> None:
    output: dict[str, JsonValue] = {"type": "object", "properties": {}}
    output["properties"] = {"name": {"type": "string", "x-quoted": most}}
    with pytest.raises(RecipeError, match="x-quoted"):
        recipe(output)


async def test_a_class_of_the_caller_is_checked_by_what_the_model_said() -> None:
    form = OutputInstructions(output_class=Person, schema=PERSON)
    step = text_step(output=form, messages=MessageBundle((user("Ada wrote."),)))
    answers: list[Answer] = ['{"name": "Bo"}', '{"name": "Ada"}']
    ran = await run_of(recipe_of([step]), answers)
    assert ran.result.output == Person("Ada")


@pytest.mark.parametrize("restore", [False, True])
async def test_no_part_of_what_is_redacted_is_sent_and_its_placeholder_may_be_quoted(
    restore: bool,
) -> None:
    card = "4111 1111 1111 1111"
    document: dict[str, JsonValue] = {
        "id": "r",
        "redact": ["card"],
        "restore": restore,
        "model": "lab/m",
        "steps": [{"id": "read", "goal": f"Take {card}, Ada.", "output": PERSON}],
    }
    asked = recipe_from_document(document, Catalog(redactors=frozenset(("card",))))

    async def quote(exchange: fake.Exchange) -> None:
        said = json.dumps(exchange.request.body)
        (placeholder,) = set(re.findall(r"<card-[0-9a-f]{8}>", said))
        await fake.answer(json.dumps({"name": placeholder}))(exchange)

    async with fake.ChatEndpoint(default=quote) as server:
        model = model_at(server.base_url)
        executor = AgentExecutor(
            lambda _: model,
            extensions=extended(built_in_extensions(), Extensions()),
            services=CONSTRAINING,
        )
        result = await executor.execute(asked)
        await model.aclose()
    sent = json.dumps([each.body for each in server.requests])
    assert "1111" not in sent
    assert result.status is RunStatus.COMPLETED
    found = str(as_object(result.output)["name"])
    assert found == card if restore else found.startswith("<card-")
