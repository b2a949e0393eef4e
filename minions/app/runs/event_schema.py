"""The JSON Schema of events, as `--events` prints them and streams send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast, get_args

from minions.contracts.events import RunEvent
from minions.data.hint_schemas import schema_of
from minions.data.json_values import JsonValue

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
    definitions: _Json = {}
    kinds: list[JsonValue] = []
    for kind in get_args(RunEvent):
        schema = schema_of(kind)
        definitions |= cast("_Json", schema.pop("$defs", {}))
        _forbid_null(schema)
        properties = cast("_Json", schema["properties"])
        schema["properties"] = {"type": {"const": kind.type}, **properties}
        schema["required"] = ["type", *cast("list[JsonValue]", schema["required"])]
        definitions[kind.__name__] = schema
        kinds.append({"$ref": f"#/$defs/{kind.__name__}"})
    for name in ("SessionStep", "StepDelta", "StepMetrics"):
        _forbid_null(cast("_Json", definitions[name]))
    step = cast("_Json", definitions["SessionStep"])
    cast("_Json", step["properties"])["tool_calls"] = {"type": "array", "items": _CALL}
    step["required"] = ["session_id", "role"]
    definitions.pop("ToolCallRequest", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An event of a run",
        "oneOf": kinds,
        "$defs": definitions,
    }


def _forbid_null(schema: _Json) -> None:
    """Replace "may be null" by "may be absent" in a schema."""
    properties = cast("Mapping[str, _Json]", schema["properties"])
    optional = []
    for name, each in properties.items():
        types = each.get("type")
        if isinstance(types, list) and "null" in types:
            left = [kind for kind in types if kind != "null"]
            each["type"] = left[0] if len(left) == 1 else cast(JsonValue, left)
            optional.append(name)
    required = cast("list[JsonValue]", schema.get("required") or [])
    schema["required"] = [name for name in required if name not in optional]
