"""The quick check of schemas says yes only where the full check does."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from referencing import Registry

from minions.data.errors import SchemaError
from minions.data.json_values import JsonValue
from minions.data.quick_schema import quick_check
from minions.data.schema import SchemaValidator, check_schema
from minions.testing.plausible_answers import plausible_value

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([0.0, 1.0, 1.5]),
    st.sampled_from(["a", "b", "", "two", "\U0001f600"]),
)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=8,
)
TYPES = ["string", "integer", "number", "boolean", "null", "array", "object"]
LEAVES: st.SearchStrategy[dict[str, JsonValue]] = st.one_of(
    st.fixed_dictionaries({"type": st.sampled_from(TYPES)}),
    st.fixed_dictionaries({"type": st.lists(st.sampled_from(TYPES), min_size=1, unique=True)}),
    st.fixed_dictionaries({"enum": st.lists(PLAIN, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"const": PLAIN}),
    st.dictionaries(
        st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
        st.sampled_from([0, 1, 0.5, -1.0]),
        min_size=1,
    ),
    st.dictionaries(
        st.sampled_from(["minLength", "maxLength", "minItems", "maxItems"]),
        st.integers(0, 2),
        min_size=1,
    ),
    st.just({"$ref": "#/$defs/shared"}),
)


def _deeper(
    inner: st.SearchStrategy[dict[str, JsonValue]],
) -> st.SearchStrategy[dict[str, JsonValue]]:
    names = st.sampled_from("abc")
    return st.one_of(
        st.fixed_dictionaries(
            {"properties": st.dictionaries(names, inner)},
            optional={
                "type": st.just("object"),
                "required": st.lists(names, unique=True),
                "additionalProperties": st.booleans(),
            },
        ),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2)}),
    )


SCHEMAS = st.recursive(LEAVES, _deeper, max_leaves=5)


@given(SCHEMAS, VALUES)
def test_what_fits_quickly_fits(schema: dict[str, JsonValue], value: JsonValue) -> None:
    whole: Mapping[str, JsonValue] = {**schema, "$defs": {"shared": {"type": "string"}}}
    fits = quick_check(whole)
    if fits is not None and fits(value):
        assert Draft202012Validator(dict(whole)).is_valid(value)


@given(SCHEMAS, st.integers())
def test_what_is_made_for_a_plain_schema_is_mostly_a_quick_yes(
    schema: dict[str, JsonValue], seed: int
) -> None:
    whole: Mapping[str, JsonValue] = {**schema, "$defs": {"shared": {"type": "string"}}}
    value = plausible_value(whole, random.Random(seed))
    fits = quick_check(whole)
    is_valid = Draft202012Validator(dict(whole)).is_valid(value)
    assert fits is None or is_valid or not fits(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "patternProperties": {"a": {}}},
        {"type": "string", "pattern": "a"},
        {"type": "number", "multipleOf": 2},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"$ref": "#"},
        {"$ref": "#/$defs/loop", "$defs": {"loop": {"items": {"$ref": "#/$defs/loop"}}}},
        {"$ref": "https://example.invalid/x"},
        {"properties": {"a": True}},
        {"type": "thing"},
        {"$ref": "#/$defs/a~1b", "$defs": {"a~1b": {"type": "string"}, "a/b": {"type": "integer"}}},
        {"$ref": "#/$defs/a%25b", "$defs": {"a%25b": {}, "a%b": {"type": "integer"}}},
        {"$ref": "#/$defs/a/b", "$defs": {"a/b": {"type": "string"}, "a": {"b": {"type": "null"}}}},
        {"$ref": "#/$defs/a b", "$defs": {"a b": {"type": "string"}}},
        {"$ref": "#/$defs/é", "$defs": {"é": {"type": "string"}}},
        {"$ref": "#/$defs/", "$defs": {"": {"type": "string"}}},
        {"$id": "https://example.invalid/x", "$ref": "#/$defs/a", "$defs": {"a": {}}},
        {"$anchor": "a", "type": "string"},
    ],
)
def test_a_schema_that_says_more_is_left_to_the_full_check(schema: dict[str, JsonValue]) -> None:
    assert quick_check(schema) is None


@pytest.mark.parametrize("place", ["$defs", "definitions"])
def test_a_reference_to_a_plain_name_is_quick(place: str) -> None:
    names: dict[str, JsonValue] = {"a.b-C_1": {"type": "integer"}, "other": {"type": "string"}}
    fits = quick_check({"$ref": f"#/{place}/a.b-C_1", place: names})
    assert fits is not None
    assert (fits(1), fits("text")) == (True, False)


@pytest.mark.parametrize(
    "more", [{}, {"$defs": {}}, {"$defs": {"b": {}}}, {"$defs": ["a"]}, {"$defs": "a"}]
)
def test_a_name_that_is_not_there_is_left_to_the_full_check(more: dict[str, JsonValue]) -> None:
    assert quick_check({"$ref": "#/$defs/a", **more}) is None


def test_a_schema_of_outputs_is_known() -> None:
    schema: dict[str, JsonValue] = {
        "type": "object",
        "required": ["n"],
        "properties": {"n": {"type": "integer"}, "s": {"enum": ["a", "b"]}},
        "additionalProperties": False,
    }
    fits = quick_check(schema)
    assert fits is not None
    assert fits({"n": 1, "s": "a"})
    wrong: list[JsonValue] = [{}, {"n": True}, {"n": 1.0}, {"n": 1, "x": 1}, [], None]
    assert not any(map(fits, wrong))


@pytest.mark.parametrize(
    ("reference", "names"),
    [
        ("a~1b", {"a~1b": "string", "a/b": "integer"}),
        ("a%25b", {"a%25b": "string", "a%b": "integer"}),
        ("a~01b", {"a~01b": "string", "a~1b": "integer", "a/b": "null"}),
        ("a~0b", {"a~0b": "string", "a~b": "integer"}),
        ("%61", {"%61": "string", "a": "integer"}),
    ],
)
def test_a_name_with_escapes_means_what_it_means_to_the_full_check(
    reference: str, names: dict[str, str]
) -> None:
    schema: dict[str, JsonValue] = {
        "$ref": f"#/$defs/{reference}",
        "$defs": {name: {"type": kind} for name, kind in names.items()},
    }
    for value in ("text", 1, None):
        assert _verdict(schema, value) == _verdict_of_library(schema, value)


# --- whatever the schema says --------------------------------------------------------------------

NAMES = ["a", "a/b", "a~1b", "a~b", "a~0b", "a%b", "a%25b", "", "$ref", "type", "const", "é", "0"]
FRAGMENTS = [
    *("a", "a/b", "a~1b", "a~0b", "a~01b", "a~b", "a%b", "a%25b", "a%2Fb", "%61", "", "%24ref"),
    *("$ref", "type", "const", "é", "%C3%A9", "0", "a/properties/a", "a/", "a//b", "~1", "~0"),
]
REFERENCES = st.one_of(
    st.sampled_from(FRAGMENTS).map("#/$defs/{}".format),
    st.sampled_from(FRAGMENTS).map("#/definitions/{}".format),
    st.sampled_from(["#", "#/", "#/anyOf/0", "#/anyOf/00", "#/anyOf/-1", "#/items", "#there"]),
    st.sampled_from(["#/properties/a", "#/%24defs/a", "#%2F$defs%2Fa", "/$defs/a", "#/$defs"]),
)
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([0.0, -0.0, 1.0, 1.5, 2**53, 2**53 + 1, 1e16, 10**30, 1e30, -(10**30)]),
)
TEXTS = st.sampled_from(["", "a", "\U0001f600", "e\u0301", "\u00e9", "aaa", "1", "\ud800"])
ODD = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=6,
)
WORDS: Mapping[str, st.SearchStrategy[JsonValue]] = {
    "type": st.sampled_from(TYPES) | st.lists(st.sampled_from(TYPES), min_size=1, unique=True),
    "$ref": REFERENCES,
    "enum": st.lists(ODD, max_size=3),
    "const": ODD,
    "minimum": NUMBERS,
    "exclusiveMaximum": NUMBERS,
    "multipleOf": st.sampled_from([1, 2, 0.5]),
    "minLength": st.integers(0, 2),
    "maxLength": st.integers(0, 2),
    "maxItems": st.integers(0, 2),
    "minProperties": st.integers(0, 2),
    "uniqueItems": st.booleans(),
    "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
    "pattern": st.sampled_from(["^a", "(a|a)*$", "^.$", "\\d"]),
    "format": st.sampled_from(["uuid", "regex", "date"]),
    "default": ODD,
    "$anchor": st.just("there"),
    "$comment": st.just("#"),
    "deprecated": st.booleans(),
}


def _odd_schemas(
    inner: st.SearchStrategy[JsonValue],
) -> st.SearchStrategy[JsonValue]:
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)
    some = st.lists(inner, min_size=1, max_size=2)
    within: dict[str, st.SearchStrategy[JsonValue]] = {
        "properties": named,
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=1),
        "additionalProperties": inner,
        "unevaluatedProperties": inner,
        "propertyNames": inner,
        "dependentSchemas": named,
        "items": inner,
        "prefixItems": some,
        "contains": inner,
        "anyOf": some,
        "allOf": some,
        "oneOf": some,
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
    }
    every = {**WORDS, **within}
    return st.lists(st.sampled_from(sorted(every)), max_size=3, unique=True).flatmap(
        lambda words: st.fixed_dictionaries({word: every[word] for word in words})
    )


ODD_SCHEMAS = st.recursive(st.booleans(), _odd_schemas, max_leaves=6)
WHOLE = st.builds(
    lambda schema, named, older, own: {
        **({"allOf": [schema]} if isinstance(schema, bool) else schema),
        "$defs": named,
        **({"definitions": older} if older else {}),
        **({"$id": own} if own else {}),
    },
    ODD_SCHEMAS,
    st.dictionaries(st.sampled_from(NAMES), ODD_SCHEMAS, max_size=3),
    st.dictionaries(st.sampled_from(NAMES), ODD_SCHEMAS, max_size=1),
    st.sampled_from(["", "https://example.invalid/x", "urn:x", "x.json"]),
)


def _verdict(schema: dict[str, JsonValue], value: JsonValue) -> bool:
    fits = quick_check(schema)
    is_valid = not SchemaValidator(schema).errors(value)
    assert fits is None or is_valid or not fits(value)
    return is_valid


def _verdict_of_library(schema: dict[str, JsonValue], value: JsonValue) -> bool:
    return Draft202012Validator(schema, registry=Registry()).is_valid(value)


@given(WHOLE, ODD)
def test_whatever_the_schema_says_the_verdict_is_that_of_the_library(
    schema: dict[str, JsonValue], value: JsonValue
) -> None:
    """Or the schema is refused."""
    try:
        check_schema(schema)
    except SchemaError:
        reject()
    assert _verdict(schema, value) == _verdict_of_library(schema, value)
