"""Which values carry text that a stranger may have written, and which are closed answers."""

from __future__ import annotations

import pytest

from minions.data.json_values import JsonValue
from minions.recipe.checks.sources import carried_references, is_closed, may_hold_text
from minions.recipe.expressions.template import Templates

NUMBER: JsonValue = {"type": "integer"}
TEXT: JsonValue = {"type": "string"}
YES: JsonValue = {"type": "boolean"}


def _closed(**members: JsonValue) -> JsonValue:
    return {"type": "object", "properties": members, "additionalProperties": False}


def _deep(schema: JsonValue, levels: int, *, lists: bool = False) -> JsonValue:
    for _ in range(levels):
        schema = {"type": "array", "items": schema} if lists else _closed(a=schema)
    return schema


@pytest.mark.parametrize(
    ("schema", "holds_text", "is_open"),
    [
        (True, True, True),
        (None, True, True),
        ({}, True, True),
        (TEXT, True, True),
        (NUMBER, False, True),
        ({"type": "number"}, False, True),
        (YES, False, False),
        ({"type": "null"}, False, False),
        ({"type": ["boolean", "null"]}, False, False),
        ({"type": ["integer", "null"]}, False, True),
        ({"type": ["string", "null"]}, True, True),
        ({"enum": ["a", "b"]}, False, False),
        ({"const": "a"}, False, False),
        ({"type": "array", "items": NUMBER}, False, True),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, False, True),
        ({"type": "array", "items": TEXT}, True, True),
        ({"type": "array"}, True, True),
        ({"type": "array", "items": NUMBER, "prefixItems": [TEXT]}, True, True),
        (_closed(), False, False),
        ({"type": "object", "additionalProperties": False}, False, False),
        ({"type": "object"}, True, True),
        (_closed(a=YES, b={"enum": ["x"]}), False, False),
        (_closed(a=NUMBER, b=YES), False, True),
        (_closed(a=YES, b=TEXT), True, True),
        ({"type": "object", "properties": {"a": YES}}, True, True),
        (
            {"type": "object", "additionalProperties": False, "patternProperties": {"a": YES}},
            True,
            True,
        ),
        (
            {
                "type": ["object", "integer", "number", "boolean", "null", "array"],
                "additionalProperties": False,
                "items": NUMBER,
            },
            False,
            True,
        ),
        (_deep(YES, 20), False, False),
        (_deep(YES, 21), True, True),
        (_deep(YES, 20, lists=True), False, True),
        (_deep(YES, 21, lists=True), True, True),
    ],
)
def test_numbers_and_lists_hold_no_text_and_are_no_closed_answers(
    schema: JsonValue, holds_text: bool, is_open: bool
) -> None:
    assert may_hold_text(schema) is holds_text
    assert is_closed(schema) is not is_open


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        ({"type": "integer", "minimum": 0, "maximum": 9}, True),
        ({"type": ["integer", "null"], "minimum": 0, "maximum": 9}, True),
        ({"type": "integer", "minimum": 0}, False),
        ({"type": "integer", "minimum": 0, "maximum": 10**9}, False),
        ({"type": "number", "minimum": 0, "maximum": 9}, False),
        ({"anyOf": [YES, {"type": "null"}]}, True),
        ({"anyOf": [YES, TEXT]}, False),
        ({"anyOf": []}, False),
    ],
)
def test_a_closed_answer_is_a_choice_among_few(schema: JsonValue, closed: bool) -> None:
    assert is_closed(schema) is closed


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{{ a }}", ["a"]),
        ("{{ a.b }} and {{ c }}", ["a", "c"]),
        ("{{ a ~ b }}", ["a", "b"]),
        ("{{ [a, b] }}", ["a", "b"]),
        ("{{ a == b }}", []),
        ("{{ not a }}", []),
        ("{{ a is defined }}", []),
        ("{{ a is string }}", []),
        ("{{ a | upper }}", ["a"]),
        ("{{ a | length }}", []),
        ("{{ a | bool }}", []),
        ("{{ b if a else c }}", ["b", "c"]),
        ("{{ (a == b) or c }}", ["c"]),
        ("{{ broken", []),
    ],
)
def test_a_number_carries_no_text(template: str, found: list[str]) -> None:
    assert [str(each.path[0]) for each in carried_references(template, Templates())] == found
