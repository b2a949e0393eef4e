"""The schemas of streams for the OpenAPI document: server-sent events, and the event in each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast, get_args

from minions.app.runs.event_schema import events_schema
from minions.contracts.events import RunEvent, StepEventType
from minions.data.json_values import JsonValue
from minions.interfaces.http.responses import EVENT_STREAM

_Json = dict[str, JsonValue]

STREAM: Final[Mapping[str, JsonValue]] = {
    "description": "Server-sent events: a text, or for readers that split it, each event.",
    "anyOf": [
        {"type": "string", "contentMediaType": EVENT_STREAM},
        {"$ref": "#/$defs/ServerSentEvent"},
    ],
}
"""The schema of a stream. OpenAPI 3.1 does not say whether it is of the text or of one event, and
tools differ: clients are generated for the first, tests of the second."""

_SERVER_SENT: Final[Mapping[str, JsonValue]] = {
    "description": "One server-sent event; lines that begin with a colon are comments.",
    "type": "object",
    "properties": {
        "id": {
            "type": "string",
            "pattern": "^[0-9]+$",
            "description": "The position in the session; absent: the event is not stored.",
        },
        "event": {"enum": [each.value for each in StepEventType]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/$defs/RunEvent"},
        },
    },
    "required": ["event", "data"],
    "additionalProperties": False,
}


def event_schemas() -> _Json:
    """`ServerSentEvent`, `RunEvent`, and one schema for each type of event, by name."""
    schema = events_schema()
    found = cast("_Json", schema["$defs"])
    mapping = {kind.type: f"#/$defs/{kind.__name__}" for kind in get_args(RunEvent)}
    union: _Json = {
        "description": "An event of a run, told apart by `type`.",
        "oneOf": schema["oneOf"],
        "discriminator": {"propertyName": "type", "mapping": cast("_Json", mapping)},
    }
    return {**found, "RunEvent": union, "ServerSentEvent": dict(_SERVER_SENT)}
