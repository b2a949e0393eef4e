"""Parameters of tools as models are sent them: A-111."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.contracts.tool_parameters import sent_parameters
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator


def sent(schema: JsonValue, *, is_required: bool = False) -> JsonValue:
    """The schema of one property as it is sent."""
    required: JsonValue = ["x"] if is_required else []
    properties: JsonValue = {"x": schema}
    spec = ToolSpec(
        name="t", parameters={"type": "object", "properties": properties, "required": required}
    )
    function = spec.to_message_dict()["function"]
    assert isinstance(function, dict)
    parameters = function["parameters"]
    assert isinstance(parameters, dict)
    assert parameters["required"] == required
    found = parameters["properties"]
    assert isinstance(found, dict)
    value: JsonValue = found["x"]
    return value


@pytest.mark.parametrize(
    ("declared", "plain"),
    [
        ({"type": ["integer", "null"], "default": None}, {"type": "integer"}),
        ({"type": ["integer", "null"], "default": 7}, {"type": "integer", "default": 7}),
        (
            {"type": ["integer", "null"], "minimum": 1, "description": "How many."},
            {"type": "integer", "minimum": 1, "description": "How many."},
        ),
        (
            {"type": ["integer", "string", "null"]},
            {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        ),
        (
            {"anyOf": [{"enum": ["C", "F"]}, {"type": "null"}], "default": None},
            {"enum": ["C", "F"]},
        ),
        (
            {"anyOf": [{"type": "array", "items": {"type": ["string", "null"]}}, {"type": "null"}]},
            {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
        ),
        (
            {"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}, {"type": "null"}]},
            {"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]},
        ),
        ({"type": ["integer"]}, {"type": "integer"}),
        (
            {"type": ["string", "null"], "enum": ["a", None], "default": None},
            {"type": "string", "enum": ["a"]},
        ),
        ({"type": ["string", "null"], "enum": ["a"]}, {"type": "string", "enum": ["a"]}),
        (
            {"type": ["string", "null"], "enum": [None]},
            {"anyOf": [{"type": "string"}, {"type": "null"}], "enum": [None]},
        ),
        ({"type": "null"}, {"type": "null"}),
        (True, True),
    ],
)
def test_an_optional_parameter_is_sent_as_its_plain_type(
    declared: JsonValue, plain: JsonValue
) -> None:
    """A-111: what may be left out need not take null as well."""
    assert sent(declared) == plain


def test_a_required_parameter_may_still_be_null() -> None:
    """A-111: but not by a list of types."""
    assert sent({"type": ["integer", "null"]}, is_required=True) == {
        "anyOf": [{"type": "integer"}, {"type": "null"}]
    }


def test_objects_within_and_definitions_are_sent_likewise() -> None:
    """A-111."""
    inner: JsonValue = {
        "type": "object",
        "properties": {"a": {"type": ["string", "null"]}, "b": {"type": ["string", "null"]}},
        "required": ["b"],
    }
    plain = {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["b"],
    }
    assert sent(inner) == plain
    loop: dict[str, JsonValue] = {"loop": {"items": {"$ref": "#/$defs/loop"}}, "inner": inner}
    assert sent_parameters({"$ref": "#/$defs/loop", "$defs": loop})["$defs"] == {
        **loop,
        "inner": plain,
    }


_LISTED: JsonValue = {"type": ["integer", "string"]}
_CHOSEN: JsonValue = {"anyOf": [{"type": "integer"}, {"type": "string"}]}


@pytest.mark.parametrize(
    ("declared", "plain"),
    [
        (
            {"dependencies": {"a": _LISTED, "b": ["a"]}},
            {"dependencies": {"a": _CHOSEN, "b": ["a"]}},
        ),
        ({"contentSchema": _LISTED}, {"contentSchema": _CHOSEN}),
        ({"additionalItems": _LISTED}, {"additionalItems": _CHOSEN}),
        ({"items": [_LISTED, True]}, {"items": [_CHOSEN, True]}),
        ({"unevaluatedItems": _LISTED}, {"unevaluatedItems": _CHOSEN}),
        ({"unevaluatedProperties": _LISTED}, {"unevaluatedProperties": _CHOSEN}),
    ],
)
def test_no_list_of_types_is_left_wherever_a_schema_stands(
    declared: dict[str, JsonValue], plain: dict[str, JsonValue]
) -> None:
    """A-111."""
    assert sent_parameters(declared) == plain


def test_what_must_not_fit_is_not_made_narrower() -> None:
    inner: JsonValue = {"properties": {"a": {"type": ["string", "null"]}}}
    assert sent_parameters({"not": inner}) == {
        "not": {"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
    }


def test_a_choice_beside_a_list_of_types_keeps_both() -> None:
    assert sent_parameters({"type": ["integer", "string"], "anyOf": [{"minimum": 1}]}) == {
        "anyOf": [{"minimum": 1}],
        "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}],
    }


_TYPES = st.sampled_from(["null", "integer", "string", "boolean", "array", "object"])
_SCHEMAS: st.SearchStrategy[dict[str, JsonValue]] = st.recursive(
    st.one_of(
        st.fixed_dictionaries({"type": _TYPES}),
        st.fixed_dictionaries({"type": st.lists(_TYPES, min_size=1, max_size=3, unique=True)}),
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.builds(
            lambda properties, required: {
                "type": "object",
                "properties": properties,
                "required": [name for name in properties if name in required],
            },
            st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            st.sets(st.sampled_from("abc")),
        ),
    ),
    max_leaves=8,
)
_VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    st.sampled_from([None, 1, "x", True]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    ),
    max_leaves=5,
)


def _types_in(schema: JsonValue) -> Iterator[JsonValue]:
    if isinstance(schema, Mapping):
        if "type" in schema:
            yield schema["type"]
        for value in schema.values():
            yield from _types_in(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from _types_in(value)


@given(schema=_SCHEMAS, value=_VALUES)
def test_what_fits_the_sent_schema_fits_the_declared_one(
    schema: dict[str, JsonValue], value: JsonValue
) -> None:
    """A-111: nothing that a model is told it may send is refused."""
    plain = sent_parameters(schema)
    assert all(isinstance(kind, str) for kind in _types_in(plain))
    if not SchemaValidator(plain).errors(value):
        assert not SchemaValidator(schema).errors(value)


# --- references ----------------------------------------------------------------------------------


def test_references_are_replaced_by_what_they_name() -> None:
    """A-111: a server that resolves none, and the model, read the whole schema."""
    place: JsonValue = {"type": "object", "properties": {"at": {"$ref": "#/$defs/point"}}}
    point: JsonValue = {"type": "object", "properties": {"x": {"type": "number"}}}
    sent = sent_parameters(
        {
            "type": "object",
            "properties": {
                "place": {"$ref": "#/$defs/place", "description": "Where"},
                "more": {"type": "array", "items": {"$ref": "#/$defs/point"}},
                "$ref": {"type": "string", "enum": ["#/$defs/point"]},
            },
            "required": ["place"],
            "$defs": {"place": place, "point": point},
        }
    )
    assert sent == {
        "type": "object",
        "properties": {
            "place": {"type": "object", "properties": {"at": point}, "description": "Where"},
            "more": {"type": "array", "items": point},
            "$ref": {"type": "string", "enum": ["#/$defs/point"]},
        },
        "required": ["place"],
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
        {"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": {"type": "integer"}}},
        {"items": {"$ref": "#"}, "$defs": {}},
        {"items": {"$ref": "#/$defs/none"}, "$defs": {}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$id": "other", "type": "integer"}}},
        {
            "$ref": "#/$defs/n0",
            "$defs": {
                **{f"n{at}": {"anyOf": [{"$ref": f"#/$defs/n{at + 1}"}] * 2} for at in range(30)},
                "n30": {"type": "string"},
            },
        },
    ],
)
def test_a_reference_that_cannot_be_replaced_leaves_the_schema_as_it_is(
    schema: dict[str, JsonValue],
) -> None:
    assert sent_parameters(schema) == schema
