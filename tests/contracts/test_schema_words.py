"""A schema as the list of fields that a model reads."""

from __future__ import annotations

import pytest

from minions.contracts.instructions import (
    OutputInstructions,
)
from minions.contracts.output import (
    older_output_words,
    output_words,
)
from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema
from minions.data.schema_words import schema_words

TEXT: JsonSchema = {"type": "string"}


def fields(*required: str, **properties: JsonValue) -> dict[str, JsonValue]:
    return {"type": "object", "properties": properties, "required": list(required)}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (TEXT, "string"),
        ({}, "any"),
        ({"type": ["integer", "null"]}, "integer | null"),
        ({"enum": ["a", 1, None]}, '"a" | 1 | null'),
        ({"const": "x", "type": "string"}, '"x"'),
        ({"type": "array", "items": TEXT}, "[string]"),
        ({"type": "array"}, "[any]"),
        ({"type": "object"}, "{…}"),
        ({"type": "object", "additionalProperties": False}, "{}"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "{any name: number}"),
        (fields("a", a=TEXT, b={"type": "integer"}), '{"a": string, "b"?: integer}'),
        ({"anyOf": [TEXT, {"type": "null"}]}, "string | null"),
        ({"type": "integer", "minimum": 0, "default": 5}, "integer (minimum 0, default 5)"),
        ({"type": "string", "description": "Two\n words", "title": "T"}, "string (Two words)"),
        ({"type": "string", "pattern": "^a$"}, "string (pattern ^a$)"),
    ],
)
def test_each_type_has_its_words(schema: JsonSchema, words: str) -> None:
    """A-109."""
    assert schema_words(schema) == words


def test_a_definition_is_said_once_and_named_where_it_counts() -> None:
    """A-109: also where it leads back to itself."""
    node = fields("next", next={"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]})
    schema = {**fields("a", "b", a={"$ref": "#/$defs/Node"}, b={"$ref": "#/$defs/Node"})}
    assert schema_words({**schema, "$defs": {"Node": node}}) == (
        '{"a": Node, "b": Node}\nNode = {"next": Node | null}'
    )


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [TEXT, {"minLength": 2}]},
        {"type": "object", "patternProperties": {"^x": TEXT}},
        {"type": "array", "items": [TEXT, TEXT]},
        {"type": "object", "required": ["a"]},
        {"type": "string", "anyOf": [{"minLength": 2}]},
        {"$ref": "#/properties/a"},
    ],
)
def test_what_has_no_words_stands_as_json_schema_in_its_place(schema: dict[str, JsonValue]) -> None:
    """A-109: nothing that is checked is left unsaid."""
    assert schema_words(schema) == f"(fits JSON Schema {dumps(schema)})"
    assert (
        schema_words({"type": "array", "items": schema}) == f"[(fits JSON Schema {dumps(schema)})]"
    )


def test_the_words_tell_what_a_question_mark_means_only_where_there_is_one() -> None:
    optional = OutputInstructions[object](schema=fields(a=TEXT))
    assert output_words(optional) == (
        'Your final answer is one JSON value of this form ("?": may be left out), and nothing '
        'else:\n{"a"?: string}'
    )
    required = OutputInstructions[object](schema=fields("a", a=TEXT), instructions=["Be short."])
    assert output_words(required) == (
        'Be short.\nYour final answer is one JSON value of this form, and nothing else:\n{"a": '
        "string}"
    )


def test_the_words_are_much_shorter_than_the_schema() -> None:
    """A-109."""
    schema = fields("title", "tags", title=TEXT, tags={"type": "array", "items": TEXT}, n=TEXT)
    output = OutputInstructions[object](schema=schema)
    assert len(output_words(output)) < 0.7 * len(older_output_words(output))
