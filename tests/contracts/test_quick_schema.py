"""The quick check of schemas says yes only where the full check does."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from minions.contracts.json_values import JsonValue
from minions.contracts.quick_schema import quick_check
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
    ],
)
def test_a_schema_that_says_more_is_left_to_the_full_check(schema: dict[str, JsonValue]) -> None:
    assert quick_check(schema) is None


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
