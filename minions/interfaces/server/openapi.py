"""The OpenAPI 3.1 document, from the table of endpoints and the contracts they name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Final, cast

from minions.contracts.events import StepEventType
from minions.contracts.executions import RUN_STATE_SCHEMA
from minions.contracts.json_values import JsonValue
from minions.contracts.schema import schema_of
from minions.interfaces.server.endpoints import Endpoint, EventData
from minions.interfaces.server.http.problems import PROBLEM_TYPE, Problem
from minions.interfaces.server.http.responses import EVENT_STREAM

__all__ = ["openapi_of"]

_Json = dict[str, JsonValue]

_PLACE: Final = re.compile(r"\{(\w+)\}")
_ALWAYS: Final = (400, 401, 403, 421, 431, 500, 503)
"""What any request may meet."""


def openapi_of(endpoints: Sequence[Endpoint], version: str, server: str) -> _Json:
    """The document.

    Args:
        server: Where the app is mounted, as a path.
    """
    schemas = _Schemas()
    paths: dict[str, _Json] = {}
    for endpoint in endpoints:
        operations = paths.setdefault(f"/api/v1{endpoint.path}", {})
        operations[endpoint.method.lower()] = _operation(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Minions", "version": version, "summary": "Recipes, runs, sessions."},
        "servers": [{"url": server or "/"}],
        "security": [{"token": []}],
        "paths": cast("Mapping[str, JsonValue]", paths),
        "components": {
            "schemas": dict(sorted(schemas.found.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


_OF_RUNS: Final = (
    StepEventType.RUN_STARTED.value,
    StepEventType.RUN_COMPLETED.value,
    StepEventType.RUN_FAILED.value,
)
"""Events whose `status` is that of the run."""
_EVENT: Final[Mapping[str, JsonValue]] = {
    "description": "One server-sent event; a stream is any number of them.",
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "Position in the session, where it is stored."},
        "event": {"enum": [each.value for each in StepEventType]},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {
                "type": "object",
                "properties": {
                    "type": {"enum": [each.value for each in StepEventType]},
                    "run_id": {"type": "string"},
                    "session_id": {"type": "string"},
                    "position": {"type": "integer"},
                    "timestamp": {"type": "string", "format": "date-time"},
                },
                "required": ["type", "run_id", "session_id", "timestamp"],
                "if": {"properties": {"type": {"enum": list(_OF_RUNS)}}},
                "then": {"properties": {"status": RUN_STATE_SCHEMA}, "required": ["status"]},
            },
        },
    },
    "required": ["event", "data"],
}


class _Schemas:
    """Schemas by the name of their class."""

    def __init__(self) -> None:
        self.found: _Json = {}

    def of(self, hint: object) -> _Json:
        """A reference to it, or the schema where it has no name."""
        schema = schema_of(hint)
        for name, inner in cast("_Json", schema.pop("$defs", {})).items():
            self.found[name] = _moved(inner)
        if not isinstance(hint, type) or schema.get("type") != "object":
            return cast("_Json", _moved(schema))
        self.found[hint.__name__] = _moved(schema)
        return {"$ref": f"#/components/schemas/{hint.__name__}"}


def _moved(value: JsonValue) -> JsonValue:
    """With references to where the schemas are in the document."""
    if isinstance(value, Mapping):
        return {
            key: each.replace("#/$defs/", "#/components/schemas/")
            if key == "$ref" and isinstance(each, str)
            else _moved(each)
            for key, each in value.items()
        }
    return [_moved(each) for each in value] if isinstance(value, list) else value


def _operation(endpoint: Endpoint, schemas: _Schemas) -> _Json:
    operation: _Json = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "parameters": list(_parameters(endpoint)),
        "responses": _responses(endpoint, schemas),
    }
    if endpoint.body is not None:
        schema = schemas.of(endpoint.body)
        required = bool(schema_of(endpoint.body).get("required"))
        content: _Json = {"application/json": {"schema": schema}}
        operation["requestBody"] = {"required": required, "content": content}
    if endpoint.is_public:
        operation["security"] = []
    return operation


def _parameters(endpoint: Endpoint) -> Iterator[JsonValue]:
    for name in _PLACE.findall(endpoint.path):
        schema: _Json = {"type": "string", "minLength": 1}
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    query = schema_of(endpoint.query)
    required = cast("Sequence[str]", query.get("required", ()))
    for name, each in cast("Mapping[str, _Json]", query["properties"]).items():
        yield {"name": name, "in": "query", "required": name in required, "schema": _given(each)}
    for name, about in endpoint.headers.items():
        yield {
            "name": name,
            "in": "header",
            "required": False,
            "description": about,
            "schema": {"type": "string"},
        }


def _given(schema: _Json) -> _Json:
    """Without null, which no address can say."""
    kinds = schema.get("type")
    if isinstance(kinds, list):
        kinds = [kind for kind in kinds if kind != "null"]
        return {**schema, "type": kinds[0] if len(kinds) == 1 else kinds}
    options = schema.get("anyOf")
    if isinstance(options, list):
        kept = [each for each in options if each != {"type": "null"}]
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
        return {**cast("_Json", kept[0]), **rest} if len(kept) == 1 else {**rest, "anyOf": kept}
    return schema


def _responses(endpoint: Endpoint, schemas: _Schemas) -> _Json:
    responses: _Json = {}
    for status, hint in endpoint.gives.items():
        answer: _Json = {"description": HTTPStatus(status).phrase}
        if hint is not None:
            answer["content"] = _content(endpoint, hint, schemas)
        responses[str(status)] = answer
    problem = schemas.of(Problem)
    always = (status for status in _ALWAYS if not (endpoint.is_public and status == 401))
    takes = (413, 415, 422) if endpoint.body is not None else (422,)
    for status in sorted({*endpoint.refuses, *always, *takes}):
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {PROBLEM_TYPE: {"schema": problem}},
        }
    return responses


def _content(endpoint: Endpoint, hint: object, schemas: _Schemas) -> _Json:
    if hint is EventData:
        return {EVENT_STREAM: {"schema": _EVENT}}
    content: _Json = {"application/json": {"schema": schemas.of(hint)}}
    for media_type, about in endpoint.media_types.items():
        content[media_type] = {"schema": {"type": "string", "description": about}}
    return content
