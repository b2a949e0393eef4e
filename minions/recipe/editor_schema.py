"""The JSON Schema of recipes for editors, generated from the key tables that the loader uses."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.recipe.kinds.goal_kind import MESSAGE
from minions.recipe.kinds.kind import StepKind
from minions.recipe.kinds.kind_registry import KINDS, STEP_KINDS
from minions.recipe.language import recipe_keys as keys
from minions.recipe.language import step_keys
from minions.recipe.language import step_keys as model_keys
from minions.recipe.language import step_keys as recipe_test_keys
from minions.recipe.text.key_types import Key, Table


def recipe_schema() -> JsonSchema:
    """The schema (draft 2020-12). An editor marks the same unknown keys that the loader refuses."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Minions recipe",
        **_object(keys.RECIPE),
        "$defs": {
            "secret_input": _object(keys.SECRET_INPUT),
            "step": {"oneOf": [*map(_step, STEP_KINDS), _extending()]},
            "model": _object(model_keys.MODEL),
            "permissions": _object(keys.PERMISSIONS),
            "limits": _object(keys.LIMITS),
            "step_limits": _object(keys.STEP_LIMITS),
            "retry": _object(keys.RETRY),
            "on_error": _object(step_keys.ON_ERROR),
            "schedule": _object(keys.SCHEDULE),
            "watch": _object(keys.WATCH),
            "test": _object(recipe_test_keys.TEST),
            "expect": _object(recipe_test_keys.EXPECT),
            "recorded_call": _object(recipe_test_keys.RECORDED_CALL),
            "decision_tool": _object(step_keys.DECISION_TOOL),
            **{name: _object(table) for each in STEP_KINDS for name, table in each.tables.items()},
            "message": _message(),
        },
    }


def _step(kind: StepKind) -> dict[str, JsonValue]:
    return {**_object(step_keys.STEP.plus(kind.table)), **kind.editor_rules}


def _extending() -> dict[str, JsonValue]:
    """The schema of a step that takes its kind from a template: keys of every kind are allowed."""
    body = _object(Table("a step", (*step_keys.STEP.keys, *_of_all_kinds())))
    body["required"] = ["id", "extends"]
    body["not"] = {"anyOf": [{"required": [kind]} for kind in KINDS]}
    return body


def _of_all_kinds() -> tuple[Key, ...]:
    found = {key.name: key for kind in reversed(STEP_KINDS) for key in kind.table.keys}
    return tuple(replace(key, is_required=False) for key in found.values())


def _object(table: Table) -> dict[str, JsonValue]:
    served = [key for key in table.keys if key.is_served]
    properties: dict[str, JsonValue] = {}
    patterns: dict[str, JsonValue] = {}
    for key in served:
        if "<" in key.name:  # a key that is made of a name
            patterns[f"^{key.name.partition('<')[0]}"] = key.schema()
            continue
        for name in _spellings(key, table):
            properties[name] = _property(key, name)
    body: dict[str, JsonValue] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    if patterns:
        body["patternProperties"] = patterns
    if required := [key.name for key in served if key.is_required]:
        body["required"] = required
    if doubles := [_not_both(key.name, name) for key in served for name in _others(key, table)]:
        body["allOf"] = doubles
    return body


def _property(key: Key, name: str) -> dict[str, JsonValue]:
    schema = key.schema()
    if name != key.name:
        schema["description"] = f"Another spelling of `{key.name}`. {key.description}"
    return schema


def _spellings(key: Key, table: Table) -> tuple[str, ...]:
    return (key.name, *_others(key, table))


def _others(key: Key, table: Table) -> tuple[str, ...]:
    camel = _camel_case(key.name)
    more = (camel,) if table.camel_case and camel != key.name else ()
    return (*key.aliases, *more)


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _not_both(one: str, other: str) -> Mapping[str, JsonValue]:
    return {"not": {"required": [one, other]}}


def _message() -> dict[str, JsonValue]:
    """The schema of a message: one role, in one of three spellings."""
    forms: list[JsonValue] = [
        {"required": ["role", "content"], "maxProperties": 2},
        {"required": ["system"], "maxProperties": 1},
        {"required": ["user"], "maxProperties": 1},
    ]
    return {**_object(MESSAGE), "oneOf": forms}
