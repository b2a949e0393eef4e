"""The JSON Schema of events, as `--events` prints them and streams send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from minions.contracts.run_events import RunEvent
from minions.data.hint_schemas import schema_of
from minions.data.json_values import JsonValue, as_object, as_object_of_objects, as_texts

_Json = dict[str, JsonValue]

_CALL: Final[_Json] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "arguments": {"type": "string"}},
            "required": ["name", "arguments"],
        },
    },
    "required": ["id", "type", "function"],
}


def events_schema() -> _Json:
    """The schema of one event of any type; values that are None are left out."""
    definitions: dict[str, Mapping[str, JsonValue]] = {}
    kinds: list[JsonValue] = []
    for kind in get_args(RunEvent):
        schema = schema_of(kind)
        definitions |= as_object_of_objects(schema.pop("$defs", {}))
        event = _without_null(schema)
        properties = {"type": {"const": kind.type}, **as_object(event["properties"])}
        required = ["type", *as_texts(event["required"])]
        definitions[kind.__name__] = {**event, "properties": properties, "required": required}
        kinds.append({"$ref": f"#/$defs/{kind.__name__}"})
    for name in ("SessionStep", "StepDelta", "StepMetrics"):
        definitions[name] = _without_null(definitions[name])
    step = definitions["SessionStep"]
    calls: _Json = {"type": "array", "items": _CALL}
    definitions["SessionStep"] = {
        **step,
        "properties": {**as_object(step["properties"]), "tool_calls": calls},
        "required": ["session_id", "role"],
    }
    definitions.pop("ToolCallRequest", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An event of a run",
        "oneOf": kinds,
        "$defs": definitions,
    }


def _without_null(schema: Mapping[str, JsonValue]) -> _Json:
    """The schema, with "may be absent" in the place of "may be null"."""
    properties = {**as_object_of_objects(schema["properties"])}
    optional = set()
    for name, each in properties.items():
        types = each.get("type")
        if isinstance(types, list) and "null" in types:
            left: list[JsonValue] = [kind for kind in types if kind != "null"]
            properties[name] = {**each, "type": left[0] if len(left) == 1 else left}
            optional.add(name)
    required = [name for name in as_texts(schema.get("required") or []) if name not in optional]
    return {**schema, "properties": properties, "required": required}
