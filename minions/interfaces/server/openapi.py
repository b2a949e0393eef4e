"""The OpenAPI 3.1 document: Litestar's, from the endpoints' types, with the schemas of our classes.

Added here is what Litestar does not know: queries as classes, the refusals of every request, what a
stream is made of, and links between operations.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, get_args

import attrs
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, Schema, SecurityScheme
from litestar.plugins import OpenAPISchemaPlugin
from litestar.routes import HTTPRoute
from litestar.typing import FieldDefinition

from minions import __version__
from minions.app.runs.event_schema import events_schema
from minions.contracts.run_events import RunEvent, StepEventType
from minions.data.hint_schemas import schema_of
from minions.data.json_values import JsonValue, as_object, as_object_of_objects, as_texts
from minions.interfaces.http.http_answers import (
    A2A_ROOT,
    BAD_REQUESTS,
    EVENT_STREAM,
    OPENAI_ROOT,
    PROBLEM_TYPE,
    Problem,
    is_of_a2a,
)
from minions.interfaces.http.tokens import SCOPES
from minions.interfaces.server.documents.a2a_documents import RpcAnswer
from minions.interfaces.server.documents.openai_documents import ErrorAnswer
from minions.interfaces.server.documents.shared_documents import number_schema
from minions.interfaces.server.endpoint_parts import HEADER_SCHEMAS, EventStream, passes_unknown
from minions.interfaces.server.routes.a2a_routes import A2A
from minions.interfaces.server.routes.agui_routes import run_ag_ui
from minions.interfaces.server.routes.api import API
from minions.interfaces.server.routes.openai_routes import OPENAI
from minions.interfaces.server.routes.run_routes import follow_run

_Json = dict[str, JsonValue]
_Operation = dict[str, Any]  # Any: JSON that is taken apart here

_ALWAYS: Final = (400, 401, 403, 413, 421, 422, 431, 500, 503)
"""The statuses with which any request may be refused."""
_WITH_BODY: Final = (415,)
"""The status with which bodies may be refused, besides."""
_HEADERS: Final[Mapping[int, Mapping[str, JsonValue]]] = {
    401: {"WWW-Authenticate": {"schema": {"const": "Bearer"}}},
    429: {"Retry-After": {"schema": {"type": "string", "pattern": "^[0-9]+$"}}},
    503: {"Retry-After": {"schema": {"type": "string", "pattern": "^[0-9]+$"}}},
}
"""Headers of refusals, by their status."""


def openapi_of(server: str) -> Mapping[str, JsonValue]:
    """The OpenAPI document.

    Args:
        server: The path at which the app is mounted.
    """
    return {**_document(), "servers": [{"url": server or "/"}]}


@functools.cache  # all of it is in the code
def _document() -> _Json:
    schemas = _ContractSchemas()
    app = Litestar(
        [API, OPENAI, A2A], plugins=[schemas], openapi_config=_config(), logging_config=None
    )
    document = app.openapi_schema.to_schema()
    problems: _Json = {PROBLEM_TYPE: {"schema": schemas.of(Problem)}}
    openai_errors: _Json = {"application/json": {"schema": schemas.of(ErrorAnswer)}}
    rpc_errors: _Json = {"application/json": {"schema": schemas.of(RpcAnswer)}}
    for path, handler, operation in _describe_endpoints(app, document):
        operation["tags"] = [tag_of(path)]
        own = problems
        if path.startswith(OPENAI_ROOT):
            own = openai_errors
        elif is_of_a2a(path):
            own = rpc_errors
        _complete(operation, handler, own)
    schemas.found.update(event_schemas())
    document["tags"] = [{"name": name, "description": about} for name, about in TAGS.items()]
    document["components"]["schemas"] = dict(sorted(schemas.found.items()))
    moved = json.dumps(document).replace('"#/$defs/', '"#/components/schemas/')
    return {**as_object(json.loads(moved))}


def _describe_endpoints(
    app: Litestar, document: _Operation
) -> Iterator[tuple[str, HTTPRouteHandler, _Operation]]:
    for route in app.routes:
        operations = document["paths"].get(route.path_format, {})
        handlers = route.route_handler_map if isinstance(route, HTTPRoute) else {}
        for method, (handler, _) in handlers.items():
            if method.lower() in operations:
                yield route.path_format, handler, operations[method.lower()]


def _config() -> OpenAPIConfig:
    token = SecurityScheme(
        type="http",
        scheme="bearer",
        bearer_format="at least 16 printable ASCII characters",
        description="The server's token: `Authorization: Bearer TOKEN`. Each operation names the "
        "scope that it needs; the only token of a server has all of them. "
        + " ".join(f"`{scope}`: {about}" for scope, about in SCOPES.items()),
    )
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
        """A reference to the schema of a class; for a stream that of its text."""
        kind = field_definition.annotation
        return _OwnSchema(words=dict(STREAM) if kind is EventStream else self.of(kind))

    def of(self, kind: type[object]) -> _Json:
        """A reference to the schema, which is collected by the name of its class."""
        schema = schema_of(kind)
        for name, each in as_object_of_objects(schema.pop("$defs", {})).items():
            self._add(name, each)
        variants = {
            name: _variant(schema, properties)
            for name, properties in as_object_of_objects(_variants(kind)).items()
        }
        for name, each in variants.items():
            self._add(name, each)
        if variants:
            union: list[JsonValue] = [{"$ref": f"#/$defs/{name}"} for name in variants]
            schema = {"description": schema["description"], "oneOf": union}
        if passes_unknown(kind):
            schema = {**schema, "additionalProperties": True}
        self._add(kind.__name__, schema)
        return {"$ref": f"#/$defs/{kind.__name__}"}

    def _add(self, name: str, schema: Mapping[str, JsonValue]) -> None:
        if self.found.setdefault(name, dict(schema)) != schema:
            raise ValueError(f"Two schemas of the OpenAPI document are called {name}.")


def _variants(kind: type[object]) -> Mapping[str, JsonValue]:
    """The forms that the class has, one of which a value fits; empty: there is only one.

    By name the properties in which it differs from the class. One that cannot be null is required.
    """
    return as_object(getattr(kind, "schema_variants", {}))


def _variant(schema: Mapping[str, JsonValue], properties: Mapping[str, JsonValue]) -> _Json:
    needed = [name for name, each in properties.items() if each != {"type": "null"}]
    required = dict.fromkeys([*as_texts(schema.get("required", ())), *needed])
    return {
        **schema,
        "properties": {**as_object(schema["properties"]), **properties},
        "required": list(required),
    }


def _complete(operation: _Operation, handler: HTTPRouteHandler, problems: _Json) -> None:
    """Add to an operation what Litestar does not know.

    Args:
        problems: The content of refusals, by media type.
    """
    arguments = handler.parsed_fn_signature.parameters
    operation["summary"] = operation.pop("description")
    if (scope := handler.opt["needs"]) is not None:
        operation["security"] = [{"token": [scope.value]}]
    _complete_parameters(operation, arguments.get("asked"))
    if "data" in arguments:
        kind = arguments["data"].annotation
        is_required = schema_of(kind).get("required") or _variants(kind)
        operation["requestBody"]["required"] = bool(is_required)
    for media_type, about in handler.opt.get("texts", {}).items():
        schema = {"type": "string", "description": about}
        operation["responses"]["200"]["content"][media_type] = {"schema": schema}
    _complete_success(operation, handler)
    _add_problems(operation, handler, problems)


def _complete_success(operation: _Operation, handler: HTTPRouteHandler) -> None:
    responses = operation["responses"]
    if links := links_of_operation(operation["operationId"]):
        responses[min(responses)]["links"] = dict(links)
    if handler.handler_name == follow_run.handler_name:
        responses["204"] = {"description": "The run has ended, and the reader has all of it."}
    if handler.handler_name == run_ag_ui.handler_name:
        about = "Events of AG-UI 1.0, each in one `data:` line."
        schema = {"type": "string", "contentMediaType": EVENT_STREAM, "description": about}
        responses["200"]["content"][EVENT_STREAM] = {"schema": schema}


def _complete_parameters(operation: _Operation, asked: FieldDefinition | None) -> None:
    parameters = operation.setdefault("parameters", [])
    for each in parameters:
        if each["in"] == "header":
            each["schema"] = dict(HEADER_SCHEMAS[each["name"]])
        elif each["name"] == "sequence":  # a text there, so that another one is not found
            each["schema"] = number_schema(1)["schema"]
    if asked is not None:
        parameters += _query_parameters(asked.annotation)


def _query_parameters(kind: type[object]) -> Iterator[JsonValue]:
    schema = schema_of(kind)
    required = as_texts(schema.get("required", ()))
    for name, each in as_object_of_objects(schema["properties"]).items():
        yield {
            "name": name,
            "in": "query",
            "required": name in required,
            "schema": _drop_null(dict(each)),
        }


def _drop_null(schema: Mapping[str, JsonValue]) -> _Json:
    """The schema without null, which no address can express."""
    if isinstance(several := schema.get("anyOf"), list):
        several = [each for each in several if each != {"type": "null"}]
        return {**as_object(several[0])} if len(several) == 1 else {**schema, "anyOf": several}
    kinds = schema.get("type")
    if not isinstance(kinds, list):
        return dict(schema)
    kinds = [kind for kind in kinds if kind != "null"]
    return {**schema, "type": kinds[0] if len(kinds) == 1 else kinds}


def _add_problems(operation: _Operation, handler: HTTPRouteHandler, problems: _Json) -> None:
    responses = operation["responses"]
    always = (status for status in _ALWAYS if status != 401 or not handler.security)
    with_body = _WITH_BODY if "POST" in handler.http_methods else ()
    refused = {*(handler.responses or {}), *always, *with_body}
    if PROBLEM_TYPE not in problems:
        refused -= BAD_REQUESTS  # OpenAI has 400 for them
    for status in sorted(refused):
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": dict(problems),
            **({"headers": dict(_HEADERS[status])} if status in _HEADERS else {}),
        }


# --- links between operations for the OpenAPI document -------------------------------------------


TAGS: Final[Mapping[str, str]] = {
    "runs": "Runs of recipes: start, read, follow, cancel, resume, retry, roll back.",
    "approvals": "What runs wait for, and the decisions.",
    "recipes": "Stored recipes: inputs, steps, pictures.",
    "agents": "The same recipes by what they take: a message or inputs.",
    "sessions": "Conversations, their messages and turns.",
    "workers": "Who executes queued runs.",
    "queues": "What waits for workers, and how many may begin.",
    "batches": "Runs of one recipe for each line of a file.",
    "evaluations": "Cases with known answers, asked and scored.",
    "costs": "What runs cost and used over time.",
    "deployments": "Which versions of recipes new runs get.",
    "projects": "Of a server that has several: which there are, and the runs of all.",
    "schedules": "Recipes that workers run at due times.",
    "a2a": "Recipes as agents of A2A: cards, messages, tasks; errors in its form.",
    "openai": "Recipes as models, for clients of OpenAI's API; errors in its form.",
    "system": "The server itself.",
}
"""The groups of operations, each with its description."""

_OF_RUN: Final = (
    "getRun",
    "followRun",
    "cancelRun",
    "resumeRun",
    "retryRun",
    "rollBackFiles",
    "drawRun",
)
_OF_SESSION: Final = (
    "getSession",
    "sendMessage",
    "listSteps",
    "getContext",
    "forkSession",
    "retrySession",
    "resumeSession",
    "deleteSteps",
    "forgetSession",
)


def tag_of(path: str) -> str:
    """The tag of an operation: the first part of its path below `/api/v1`."""
    if path.startswith(OPENAI_ROOT):
        return "openai"
    if path.startswith((A2A_ROOT, "/.well-known/")):
        return "a2a"
    part = path.removeprefix("/api/v1/").partition("/")[0]
    return part if part in TAGS else "system"


def _links(
    names: Sequence[str], parameter: str, pointer: str, more: Mapping[str, str] | None = None
) -> dict[str, JsonValue]:
    parameters: dict[str, JsonValue] = {parameter: f"$response.body#/{pointer}", **(more or {})}
    return {name: {"operationId": name, "parameters": dict(parameters)} for name in names}


_ACCEPTED: Final = {**_links(_OF_RUN, "run_id", "run_id")} | _links(
    ("getSession",), "session_id", "session_id"
)
_RECIPE: Final = ("getRecipe", "drawRecipe", "getInputsSchema")
_LINKS: Final[Mapping[str, Mapping[str, JsonValue]]] = {
    "startRun": _ACCEPTED,
    "runAgent": _ACCEPTED,
    "resumeRun": _ACCEPTED,
    "retryRun": _ACCEPTED,
    "decide": _ACCEPTED,
    "cancelRun": _links(("getRun", "resumeRun", "followRun"), "run_id", "run_id"),
    "listRuns": _links(_OF_RUN, "run_id", "runs/0/run_id"),
    "getRun": _links(("decide",), "approval_id", "waiting/0/id")
    | _links(("getSession",), "session_id", "session_id"),
    "listApprovals": _links(("decide",), "approval_id", "approvals/0/id")
    | _links(("getRun",), "run_id", "approvals/0/run_id"),
    "listRecipes": _links(_RECIPE, "recipe_id", "recipes/0/id"),
    "listAgents": _links(("runAgent",), "name", "agents/0/name"),
    "createSession": _links(_OF_SESSION, "session_id", "id"),
    "listSessions": _links(_OF_SESSION, "session_id", "sessions/0/id"),
    "forkSession": _links(("getSession", "sendMessage"), "session_id", "new_session_id"),
    "listSteps": _links(
        ("getStep",), "session_id", "session_id", {"sequence": "$response.body#/steps/0/sequence"}
    ),
}
"""By operation: the operations that continue with its answer."""


def links_of_operation(operation_id: str) -> Mapping[str, JsonValue]:
    """The links of an operation's successful answer."""
    return _LINKS.get(operation_id, {})


# --- the schemas of streams for the OpenAPI document ---------------------------------------------


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
    found = as_object(schema["$defs"])
    mapping = {kind.type: f"#/$defs/{kind.__name__}" for kind in get_args(RunEvent)}
    union: _Json = {
        "description": "An event of a run, told apart by `type`.",
        "oneOf": schema["oneOf"],
        "discriminator": {"propertyName": "type", "mapping": mapping},
    }
    return {**found, "RunEvent": union, "ServerSentEvent": dict(_SERVER_SENT)}
