"""Cells of CSV as the values that they stand for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.data.json_values import JsonValue, dumps
from minions.data.schema import JsonSchema
from minions.evaluation.cases import CellError, cell_value
from minions.evaluation.scorers import is_same


def read(text: str, kind: JsonValue) -> JsonValue:
    return cell_value(text, "a", [{"properties": {"a": kind}, "additionalProperties": False}])


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("true", {"type": "boolean"}, True),
        ("No", {"type": "boolean"}, False),
        (" 3 ", {"type": "integer"}, 3),
        ("3.0", {"type": "integer"}, 3),
        ("3.50", {"type": "number"}, 3.5),
        ("3", {"type": "number"}, 3),
        ("3", {"type": "string"}, "3"),
        ("3", {"type": ["string", "integer"]}, "3"),
        ("null", {"type": ["string", "null"]}, None),
        ("null", {"type": "string"}, "null"),
        ("[1]", {"type": "array"}, [1]),
        ("2", {"enum": [1, 2]}, 2),
        ("2", {"enum": ["2", 2]}, "2"),
        ("null", {"enum": ["bug", None]}, None),
        ("bgu", {"enum": ["bug", None]}, "bgu"),
        ("yes", {"enum": [True, 1]}, True),
        ("3", {}, "3"),
        ("3", {"anyOf": [{"type": "integer"}]}, 3),
        ("3", {"allOf": [{"type": "integer"}]}, "3"),
    ],
)
def test_a_cell_is_read_as_the_output_has_it(
    text: str, kind: JsonValue, expected: JsonValue
) -> None:
    """A-138."""
    assert dumps(read(text, kind)) == dumps(expected)


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("perhaps", {"type": "boolean"}, '"perhaps" was read, and the output has true or false'),
        ("1", {"type": "boolean"}, "true or false"),
        ("2,5", {"type": ["number", "null"]}, "a number or null"),
        ("2.5", {"type": "integer"}, "a whole number"),
        ("NaN", {"type": "number"}, "a number"),
        ("3", {"enum": [1, 2]}, "one of [1,2]"),
        ("x" * 99, {"type": "object"}, f'"{"x" * 60}…" was read'),
    ],
)
def test_a_cell_that_no_output_can_have_is_told(text: str, kind: JsonValue, told: str) -> None:
    with pytest.raises(CellError) as refused:
        read(text, kind)
    assert told in str(refused.value)


def test_the_first_recipe_that_can_have_it_counts() -> None:
    whole: JsonSchema = {"properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    words: JsonSchema = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    other: JsonSchema = {"properties": {"b": {}}, "additionalProperties": False}
    assert cell_value("yes", "a", [other, whole, words]) is True
    assert cell_value("3", "a", [whole, words]) == 3
    assert cell_value("3", "a", [other]) == "3"
    assert cell_value("3", "a", []) == "3"


KINDS = st.sampled_from(["boolean", "integer", "number", "null", "array", "object"])


@given(st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False), KINDS)
def test_what_json_writes_is_read_as_it_was(value: JsonValue, kind: str) -> None:
    try:
        found = read(dumps(value), {"type": kind})
    except CellError:
        return
    assert is_same(found, value)


@given(st.text(max_size=8), KINDS)
def test_any_text_is_read_or_refused(text: str, kind: str) -> None:
    try:
        found = read(text, {"type": kind})
    except CellError:
        return
    assert not isinstance(found, str)
