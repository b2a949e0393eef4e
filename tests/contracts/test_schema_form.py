"""The quick check of schemas says yes only where the metaschema does."""

from __future__ import annotations

import sys
from subprocess import run
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError

from minions.contracts.tools import ToolSpec
from minions.data.hint_schemas import schema_of
from minions.data.schema import SchemaValidator
from minions.data.schema_form import is_plain_schema

TYPES = ["string", "integer", "number", "boolean", "null", "array", "object", "thing"]
ODD = st.sampled_from(
    [None, True, -1, 0, 1, 1.0, 2.5, "", "a", [], ["a"], ["a", "a"], {}, {"a": 1}]
)
PLAIN = st.one_of(
    st.booleans(),
    st.fixed_dictionaries({"type": st.sampled_from(TYPES)}),
    st.fixed_dictionaries({"type": st.lists(st.sampled_from(TYPES), max_size=3)}),
    st.fixed_dictionaries({"required": st.lists(st.sampled_from("ab"), max_size=3)}),
    st.dictionaries(
        st.sampled_from(
            [
                *("title", "description", "format", "$comment", "$ref", "const", "default"),
                *("enum", "examples", "minimum", "exclusiveMaximum", "minLength", "maxItems"),
                *("uniqueItems", "deprecated", "type", "required", "items", "anyOf", "properties"),
                *("pattern", "$id", "$anchor", "multipleOf", "unknown", "dependentRequired"),
            ]
        ),
        ODD,
        max_size=2,
    ),
)
SCHEMAS = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.dictionaries(
            st.sampled_from(["items", "additionalProperties", "not", "if", "contains"]),
            inner,
            max_size=2,
        ),
        st.dictionaries(
            st.sampled_from(["anyOf", "oneOf", "allOf", "prefixItems"]),
            st.lists(inner, max_size=2),
            max_size=1,
        ),
        st.dictionaries(
            st.sampled_from(["properties", "$defs"]),
            st.dictionaries(st.sampled_from("ab"), inner),
            max_size=1,
        ),
    ),
    max_leaves=5,
)


def _is_valid(schema: Any) -> bool:  # Any: what a stranger may give as a schema
    try:
        # A pattern is checked by the engine that runs it.
        Draft202012Validator.check_schema(schema, format_checker=FormatChecker(()))
    except SchemaError:
        return False
    return True


@given(SCHEMAS)
def test_what_is_plain_is_valid(schema: Any) -> None:  # Any: what a stranger may give as a schema
    assert not is_plain_schema(schema) or _is_valid(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": 1},
        {"$ref": "#/$defs/a b"},
        {"$ref": "other.json"},
        {"unknown": 1},
        {"enum": (1,)},
        {"minLength": 1.0},
        {"type": []},
        {"anyOf": []},
    ],
)
def test_what_is_not_known_is_left_to_the_metaschema(schema: Any) -> None:  # Any: as above
    assert not is_plain_schema(schema)


def test_the_schema_of_a_class_is_plain() -> None:
    assert is_plain_schema(schema_of(ToolSpec))


def test_a_schema_that_refers_to_its_definitions_is_plain() -> None:
    """As that of any tool whose parameters hold values of a class."""
    schema: dict[str, Any] = {"items": {"$ref": "#/$defs/File"}}  # Any: of a schema
    schema["$defs"] = {"File": {"type": "string"}}
    Draft202012Validator.check_schema(schema)
    assert is_plain_schema(schema)


def test_a_schema_that_is_nested_too_deep_is_left_to_the_metaschema() -> None:
    schema: dict[str, Any] = {}  # Any: of a schema
    for _ in range(100):
        schema = {"items": schema}
    assert not is_plain_schema(schema)


def test_a_plain_schema_and_a_value_that_fits_load_no_validator() -> None:
    """They would take a fifth of the time in which a run starts."""
    program = (
        "import sys; from minions.data.schema import SchemaValidator\n"
        "made = SchemaValidator({'type': 'object', 'properties': {'n': {'type': 'integer', "
        "'minimum': 1}}, 'required': ['n'], 'additionalProperties': False})\n"
        "assert made.errors({'n': 1}) == ()\n"
        "assert 'jsonschema' not in sys.modules\n"
        "print(made.errors({'n': 0}))"
    )
    done = run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "('$.n: 0 is less than the minimum of 1',)\n", done.stderr


def test_the_validator_is_made_once() -> None:
    made = SchemaValidator({"type": "string"})
    assert made.errors(1) == made.errors(1) == ("$: 1 is not of type 'string'",)
