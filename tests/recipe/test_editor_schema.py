"""The editor schema and the loader say the same."""

from __future__ import annotations

from functools import cache
from typing import Final

import attrs
import pytest

from minions.contracts.context import Limits
from minions.contracts.retry_config import RetryConfig
from minions.data.json_values import JsonValue
from minions.data.schema import SchemaValidator
from minions.recipe.editor_schema import recipe_schema
from minions.recipe.language import recipe_keys as keys
from minions.recipe.language import step_keys as model_keys
from minions.recipe.model_config import ModelConfig
from minions.recipe.text.key_types import Table
from minions.recipe.text.nodes import to_plain
from minions.recipe.text.yaml_reader import read_document
from recipe.sample_catalog import check
from recipe.test_recipe_load import FULL


@cache
def _validator() -> SchemaValidator:
    return SchemaValidator(recipe_schema())


def errors(text: str) -> tuple[str, ...]:
    return _validator().errors(to_plain(read_document(text)))


GOOD = [
    FULL,
    "name: x\nsteps: [{id: a, goal: A}]",
    "id: x\nversion: 1.5\nmodel: demo\nsteps: [{id: a, set: {x: 1}, when: true, depends_on: []}]",
    "limits: {maxSteps: 1, max_tokens: 2}\nsteps: [{id: a, tool: add, params: {a: 1, b: 2}}]",
    "inputs: {a: 1, b: , c: {type: string}}\nsteps: [{id: a, goal: A, completion: signal}]",
    "inputs: {a: null, b: {type: 'null', default: null}}\nsteps: [{id: a, goal: A}]",
    "limits: {max_steps: 2}\nsteps: [{id: a, goal: A, limits: {timeout_s: 1}}]",
    "steps: [{id: a, goal: A, messages: [{user: x}, {role: system, content: y}]}]",
    "inputs: {a: {type: string, secret: true, default: 'env:A'}}\nsteps: [{id: a, goal: A}]",
    "inputs: {a: {secret: true, type: string, title: x}}\nsteps: [{id: a, goal: A}]",
    "inputs: {a: {type: integer, secret: false}}\nsteps: [{id: a, goal: '{{ inputs.a }}'}]",
    "steps: [{id: a, goal: A, output: {type: string}}, {id: b, goal: B, depends_on: a}]",
    (
        "graph: {a: [b, c], b: c, c: []}\n"
        "steps: [{id: a, goal: A, route: 'B?'}, {id: b, goal: B}, {id: c, goal: C}]"
    ),
    (
        "graph: {a: [b, c]}\nsteps:\n- {id: a, goal: A, decision_tool: {tool: add, params: {a: 1, "
        "b: 2}}}\n- {id: b, goal: B}\n- {id: c, goal: C}"
    ),
]


@pytest.mark.parametrize("text", GOOD)
def test_a_good_recipe_is_good_for_both(text: str) -> None:
    assert check(text).errors == ()
    assert errors(text) == ()


STEP = "steps: [{id: a, goal: A}]"
BAD = [
    "stesp: []",
    "steps: []",
    f"limits: {{max_steps: 1, maxSteps: 2}}\n{STEP}",
    f"limits: {{max_steps: 0}}\n{STEP}",
    f"execution_mode: paralel\n{STEP}",
    f"permissions: {{allow_write: 1}}\n{STEP}",
    f"retry: {{max_attempts: 0}}\n{STEP}",
    f"model: {{temprature: 1}}\n{STEP}",
    f"inputs: {{bad name: 1}}\n{STEP}",
    "steps: [{id: a}]",
    "steps: [{goal: A}]",
    "steps: [{id: 1a, goal: A}]",
    "steps: [{id: a, goal: A, tool: add}]",
    "steps: [{id: a, goal: A, params: {}}]",
    "steps: [{id: a, goal: A, messages: [{user: x, system: y}]}]",
    "steps: [{id: a, goal: A, completion: txt}]",
    "steps: [{id: a, goal: A, timeout_s: 0}]",
    "steps: [{id: a, goal: A, limits: {maxSteps: 1}}]",
    "steps: [{id: a, goal: A, limits: {max_tokens: 1}}]",
    f"inputs: {{x: [1]}}\n{STEP}",
    f"graph: [a]\n{STEP}",
    f"graph: {{a: 1}}\n{STEP}",
    f"graph: {{a: [1]}}\n{STEP}",
    "steps: [{id: a, goal: A, route: 1}]",
    "steps: [{id: a, goal: A, decision_tool: {params: {}}}]",
    "steps: [{id: a, goal: A, decision_tool: {tool: add, with: {}}}]",
    f"inputs: {{x: {{secret: true}}}}\n{STEP}",
    f"inputs: {{x: {{type: integer, secret: true}}}}\n{STEP}",
    f"inputs: {{x: {{type: string, secret: 1}}}}\n{STEP}",
    f"inputs: {{x: {{type: string, secret: true, default: sk-12345678}}}}\n{STEP}",
    f"inputs: {{x: {{type: string, secret: true, pattern: a}}}}\n{STEP}",
]


@pytest.mark.parametrize("text", BAD)
def test_a_bad_recipe_is_bad_for_both(text: str) -> None:
    assert check(text).errors
    assert errors(text)


@pytest.mark.parametrize("name", [key.name for key in model_keys.MODEL.keys if not key.is_served])
def test_keys_of_later_versions_are_not_in_the_schema(name: str) -> None:
    text = f"model: {{name: demo, {name}: [x]}}\n{STEP}"
    assert [fault.code for fault in check(text).faults] == ["not-supported-yet"]
    assert errors(text)


ONLY_IN_CODE: Final = frozenset({"retryable_exceptions", "stated", "tiers"})
"""Fields whose values are classes of Python, further items of a list, or names of other fields."""


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (keys.LIMITS, Limits),
        (keys.RETRY, RetryConfig),
        (model_keys.MODEL, ModelConfig),
    ],
)
def test_the_tables_have_every_field_of_their_classes(
    table: Table, kind: type[attrs.AttrsInstance]
) -> None:
    names = tuple(field.name for field in attrs.fields(kind))
    assert table.names == tuple(name for name in names if name not in ONLY_IN_CODE)


def test_every_key_is_described() -> None:
    def undescribed(schema: JsonValue) -> list[str]:
        if not isinstance(schema, dict):
            return []
        own = schema.get("properties")
        names = own.items() if isinstance(own, dict) else ()
        return [name for name, value in names if "description" not in value]

    schema = recipe_schema()
    definitions = schema["$defs"]
    assert isinstance(definitions, dict)
    steps = definitions["step"]["oneOf"]
    assert [undescribed(part) for part in (schema, *definitions.values(), *steps)] == [
        [] for _ in range(len(definitions) + len(steps) + 1)
    ]
