"""Which values carry text that a stranger may have written, and which under `strict = "full"`."""

from __future__ import annotations

import pytest

from minions.data.json_values import JsonValue
from minions.recipe.checks.sources import carried_by, carried_references, may_hold_text
from minions.recipe.expressions.template import Templates, compile_template

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
    ("schema", "usual", "in_full"),
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
def test_numbers_and_lists_may_hold_text_in_full_alone(
    schema: JsonValue, usual: bool, in_full: bool
) -> None:
    assert may_hold_text(schema) is usual
    assert may_hold_text(schema, in_full=True) is in_full


@pytest.mark.parametrize(
    ("template", "usual", "in_full"),
    [
        ("{{ a }}", ["a"], ["a"]),
        ("{{ a.b }} and {{ c }}", ["a", "c"], ["a", "c"]),
        ("{{ a ~ b }}", ["a", "b"], ["a", "b"]),
        ("{{ [a, b] }}", ["a", "b"], ["a", "b"]),
        ("{{ a == b }}", [], []),
        ("{{ not a }}", [], []),
        ("{{ a is defined }}", [], []),
        ("{{ a is string }}", [], []),
        ("{{ a | upper }}", ["a"], ["a"]),
        ("{{ a | length }}", [], ["a"]),
        ("{{ a | bool }}", [], []),
        ("{{ b if a else c }}", ["b", "c"], ["b", "c"]),
        ("{{ (a == b) or c }}", ["c"], ["c"]),
        ("{{ broken", [], []),
    ],
)
def test_a_number_carries_text_in_full_alone(
    template: str, usual: list[str], in_full: list[str]
) -> None:
    assert [str(each.path[0]) for each in carried_references(template, Templates())] == usual
    found = carried_references(template, Templates(), in_full=True)
    assert [str(each.path[0]) for each in found] == in_full
    (term,) = compile_template("{{ a | length }}").terms()
    assert list(carried_by(term)) == []
