"""The short form of a declared output: types, choices, bounds and fields that may be left out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.data.errors import Fault
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator
from minions.recipe.checks.shapes import Shape, excesses
from minions.recipe.text.nodes import MappingNode
from minions.recipe.text.schemas import TYPES, read_output_schema
from minions.recipe.text.yaml_reader import read_document


def read(text: str) -> tuple[Mapping[str, JsonValue] | None, list[Fault]]:
    faults: list[Fault] = []
    node = read_document(text)
    assert isinstance(node, MappingNode)
    return read_output_schema(node, faults.append), faults


def field(text: str) -> JsonValue:
    """The schema of a field `a` that is written so."""
    schema, faults = read(f"a: {text}")
    assert faults == []
    assert schema is not None
    properties = schema["properties"]
    assert isinstance(properties, dict)
    return properties["a"]  # type: ignore[no-any-return]  # JSON


@pytest.mark.parametrize(
    ("written", "schema"),
    [
        ("string", {"type": "string"}),
        ("int", {"type": "integer"}),
        ("[string]", {"type": "array", "items": {"type": "string"}}),
        ("[[integer]]", {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),  # noqa: E501
        ("string[]", {"type": "array", "items": {"type": "string"}}),
        ("bug | feature", {"enum": ["bug", "feature"]}),
        ("[bug, feature]", {"enum": ["bug", "feature"]}),
        ("[1, 2, 3]", {"enum": [1, 2, 3]}),
        ("bug | feature | null", {"enum": ["bug", "feature", None]}),
        ("[[bug, feature]]", {"type": "array", "items": {"enum": ["bug", "feature"]}}),
        ("int | null", {"type": ["integer", "null"]}),
        ("[string, number]", {"type": ["string", "number"]}),
        ("0..10", {"type": "integer", "minimum": 0, "maximum": 10}),
        ("-1..1", {"type": "integer", "minimum": -1, "maximum": 1}),
        ("0.0..1.0", {"type": "number", "minimum": 0.0, "maximum": 1.0}),
        ("1..", {"type": "integer", "minimum": 1}),
        ("..9", {"type": "integer", "maximum": 9}),
        ("0..10 | null", {"type": ["integer", "null"], "minimum": 0, "maximum": 10}),
        ("{b: string}", {
            "type": "object",
            "properties": {"b": {"type": "string"}},
            "required": ["b"],
            "additionalProperties": False,
        }),
    ],
)  # fmt: skip
def test_a_field_has_the_type_that_people_write(written: str, schema: JsonValue) -> None:
    assert field(written) == schema


@pytest.mark.parametrize(
    "written", ["a: string?", "a?: string", "a: bug | feature?", "a: (int | null)?"]
)
def test_a_question_mark_lets_a_field_be_left_out(written: str) -> None:
    schema, faults = read(f"{written}\nb: string")
    assert faults == []
    assert schema is not None
    assert schema["required"] == ["b"]
    assert SchemaValidator(schema).errors({"b": "x"}) == ()
    assert SchemaValidator(schema).errors({}) != ()


@pytest.mark.parametrize(
    ("written", "suggested"),
    [
        ("strng", "string"),
        ("strng | null", "string"),
        ("string | nmber", "number"),
        ("[string, intger]", "integer"),
        ("5..1", None),
        ("string | string", None),
        ("bug | bug", None),
        ("[{b: string}, string]", None),
        ("true", None),
        ("list", "[string]"),
    ],
)
def test_what_is_no_type_is_refused_with_the_nearest_one(
    written: str, suggested: str | None
) -> None:
    schema, faults = read(f"a: {written}")
    assert schema is None
    assert len(faults) == 1
    said = f"{faults[0].label or ''} {faults[0].help or ''}"
    assert suggested is None or suggested in said


@given(
    st.lists(st.sampled_from([each for each in TYPES if each != "null"]), unique=True, min_size=2)
)
def test_a_union_of_types_takes_a_value_of_each(names: list[str]) -> None:
    values: Mapping[str, JsonValue] = {
        "string": "x", "number": 1.5, "integer": 1, "boolean": True, "object": {}, "array": []
    }  # fmt: skip
    schema = field(" | ".join(names))
    assert isinstance(schema, dict)
    assert all(SchemaValidator(schema).errors(values[each]) == () for each in names)


WRITTEN = (
    *("string", "integer", "number", "boolean", "string | null", "integer | null", "0..10"),
    *("0.0..1.0", "a | b", "a | b | c", "a | null", "[string]", "[integer]", "[a, b]"),
    *("[[string]]", "2..5", "3..", "object"),
    *("{x: string}", "{x: string?}", "{x: integer, y: string}", "{y: string}"),
)
NOTHING: Mapping[str, JsonValue] = {}
TWO: Mapping[str, JsonValue] = {"x": 1, "y": "a"}
MORE: Mapping[str, JsonValue] = {"x": "a", "z": 1}
VALUES: tuple[JsonValue, ...] = (
    *("a", "b", "c", "", None, True, 0, 1, 3, 10, 11, -1, 0.5, 2.5, (), ["a"], ["z"], [1]),
    *([["a"]], NOTHING, {"x": "a"}, {"x": 1}, TWO, {"y": "a"}, MORE),
)


def test_a_type_without_excess_over_another_has_only_values_of_it() -> None:
    schemas = {each: field(each) for each in WRITTEN}
    fits = {
        name: [SchemaValidator(schema).errors(each) == () for each in VALUES]
        for name, schema in schemas.items()
        if isinstance(schema, dict)
    }
    for one, other in product(WRITTEN, WRITTEN):
        given, taken = schemas[one], schemas[other]
        assert isinstance(given, dict)
        assert isinstance(taken, dict)
        found = excesses(Shape.of(given), Shape.of(taken))
        is_within = all(left <= right for left, right in zip(fits[one], fits[other], strict=True))
        assert found or is_within, (one, other)
        assert one != other or not found


def test_keywords_that_only_describe_are_left_out_with_a_note() -> None:
    schema, faults = read(
        "type: object\nmarkdownDescription: x\n"
        "properties: {a: {type: string, example: b, 'ui:widget': area}, example: {type: string}}\n"
    )
    assert [fault.is_warning for fault in faults] == [True] * 3
    assert schema == {
        "type": "object",
        "properties": {"a": {"type": "string"}, "example": {"type": "string"}},
    }


@pytest.mark.parametrize(
    ("keyword", "instead"),
    [
        ("nullable: true", "null"),
        ("additionalItems: false", "items"),
        ("dependencies: {a: [b]}", "dependentRequired"),
        ("divisibleBy: 2", "multipleOf"),
        ("discriminator: {propertyName: a}", "const"),
    ],
)
def test_keywords_that_promise_a_check_that_is_not_made_are_refused(
    keyword: str, instead: str
) -> None:
    schema, faults = read(f"type: object\nproperties: {{a: {{type: string}}}}\n{keyword}\n")
    assert schema is None
    assert instead in (faults[0].label or "")
