"""The OpenAPI 3.1 document: Litestar's, from the endpoints' types, with the schemas of our classes.

Added here is what Litestar does not know: queries as classes, and the refusals of every request.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, cast

import attrs
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, Schema, SecurityScheme
from litestar.plugins import OpenAPISchemaPlugin
from litestar.routes import HTTPRoute
from litestar.typing import FieldDefinition

from minions import __version__
from minions.contracts.events import StepEventType
from minions.contracts.executions import RUN_STATE_SCHEMA
from minions.contracts.json_values import JsonValue
from minions.contracts.schema import schema_of
from minions.interfaces.server.endpoints import EventStream
from minions.interfaces.server.http.problems import PROBLEM_TYPE, Problem
from minions.interfaces.server.routes.api import API

__all__ = ["openapi_of"]

_Json = dict[str, JsonValue]
_Operation = dict[str, Any]  # Any: JSON that is taken apart here

_ALWAYS: Final = (400, 401, 403, 421, 422, 431, 500, 503)
"""The statuses with which any request may be refused."""
_WITH_BODY: Final = (413, 415)
"""The statuses with which bodies may be refused, besides."""


def openapi_of(server: str) -> Mapping[str, JsonValue]:
    """The OpenAPI document.

    Args:
        server: The path at which the app is mounted.
    """
    return {**_document(), "servers": [{"url": server or "/"}]}


@functools.cache  # all of it is in the code
def _document() -> _Json:
    schemas = _ContractSchemas()
    app = Litestar([API], plugins=[schemas], openapi_config=_config(), logging_config=None)
    document = app.openapi_schema.to_schema()
    problem = schemas.of(Problem)
    for handler, operation in _described(app, document):
        _complete(operation, handler, problem)
    document["components"]["schemas"] = dict(sorted(schemas.found.items()))
    moved = json.dumps(document).replace('"#/$defs/', '"#/components/schemas/')
    return cast("_Json", json.loads(moved))


def _described(
    app: Litestar, document: _Operation
) -> Iterator[tuple[HTTPRouteHandler, _Operation]]:
    for route in app.routes:
        operations = document["paths"].get(route.path_format, {})
        handlers = route.route_handler_map if isinstance(route, HTTPRoute) else {}
        for method, (handler, _) in handlers.items():
            if method.lower() in operations:
                yield handler, operations[method.lower()]


def _config() -> OpenAPIConfig:
    token = SecurityScheme(type="http", scheme="bearer")
    return OpenAPIConfig(
        title="Minions",
        version=__version__,
        summary="Recipes, runs, sessions.",
        security=[{"token": []}],
        components=Components(security_schemes={"token": token}),
        operation_id_creator=lambda handler, *_: _camel_case(handler.handler_name),
        use_handler_docstrings=True,
    )


def _camel_case(name: str) -> str:
    """The name of an operation, as generated clients use it."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


_OF_RUNS: Final = (
    StepEventType.RUN_STARTED.value,
    StepEventType.RUN_COMPLETED.value,
    StepEventType.RUN_FAILED.value,
)
"""The events whose `status` is that of the run."""
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


@dataclass
class _OwnSchema(Schema):
    """A schema that is put into the document as it is."""

    words: _Json = field(default_factory=dict)

    def to_schema(self) -> _Json:
        """The given schema."""
        return self.words


class _ContractSchemas(OpenAPISchemaPlugin):
    """The schemas of our classes, the same as those that check requests."""

    def __init__(self) -> None:
        self.found: _Json = {}

    def is_plugin_supported_field(self, field_definition: FieldDefinition) -> bool:
        """Whether the type is one of our classes."""
        kind = field_definition.annotation
        return isinstance(kind, type) and (kind is EventStream or attrs.has(kind))

    def to_openapi_schema(
        self, field_definition: FieldDefinition, schema_creator: object
    ) -> Schema:
        """A reference to the schema of a class; for a stream the schema of its events."""
        kind = field_definition.annotation
        return _OwnSchema(words=dict(_EVENT) if kind is EventStream else self.of(kind))

    def of(self, kind: type[object]) -> _Json:
        """A reference to the schema, which is collected by the name of its class."""
        schema = schema_of(kind)
        self.found.update(cast("_Json", schema.pop("$defs", {})))
        self.found[kind.__name__] = schema
        return {"$ref": f"#/$defs/{kind.__name__}"}


def _complete(operation: _Operation, handler: HTTPRouteHandler, problem: _Json) -> None:
    """Add to an operation what Litestar does not know."""
    arguments = handler.parsed_fn_signature.parameters
    operation["summary"] = operation.pop("description")
    _complete_parameters(operation, arguments.get("asked"))
    if "data" in arguments:
        required = schema_of(arguments["data"].annotation).get("required")
        operation["requestBody"]["required"] = bool(required)
    for media_type, about in handler.opt.get("texts", {}).items():
        schema = {"type": "string", "description": about}
        operation["responses"]["200"]["content"][media_type] = {"schema": schema}
    _add_problems(operation, handler, problem)


def _complete_parameters(operation: _Operation, asked: FieldDefinition | None) -> None:
    parameters = operation.setdefault("parameters", [])
    for each in parameters:
        if each["in"] == "header":
            each["schema"] = {"type": "string"}  # Litestar adds null, which no header can say
    if asked is not None:
        parameters += _query_parameters(asked.annotation)


def _query_parameters(kind: type[object]) -> Iterator[JsonValue]:
    schema = schema_of(kind)
    required = cast("Sequence[str]", schema.get("required", ()))
    for name, each in cast("Mapping[str, _Json]", schema["properties"]).items():
        yield {"name": name, "in": "query", "required": name in required, "schema": _given(each)}


def _given(schema: _Json) -> _Json:
    """The schema without null, which no address can express."""
    kinds = schema.get("type")
    if not isinstance(kinds, list):
        return schema
    kinds = [kind for kind in kinds if kind != "null"]
    return {**schema, "type": kinds[0] if len(kinds) == 1 else kinds}


def _add_problems(operation: _Operation, handler: HTTPRouteHandler, problem: _Json) -> None:
    responses = operation["responses"]
    always = (status for status in _ALWAYS if status != 401 or not handler.security)
    with_body = _WITH_BODY if "POST" in handler.http_methods else ()
    refused = {*(handler.responses or {}), *always, *with_body}
    for status in sorted(refused):
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {PROBLEM_TYPE: {"schema": problem}},
        }
