"""Additions to Litestar for the endpoints: strict request parsing, and answers in our JSON.

Importing this loads Litestar.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Protocol, TypeAlias, TypeVar, cast

from attrs import frozen
from litestar import Request, Response
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.openapi import ResponseSpec
from litestar.params import BodyKwarg, HeaderParameter, PathParameter, SkipValidationMarker
from litestar.response.base import ASGIResponse

from minions.contracts.runtime import BlockingCalls
from minions.data.codec import encode
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue
from minions.engine.services.breathing import beside
from minions.interfaces.http.callers import CALLER, Caller
from minions.interfaces.http.problems import PROBLEM_TYPE, Problem
from minions.interfaces.http.request_parsing import read_body, read_query
from minions.interfaces.http.responses import (
    Receive,
    Scope,
    Send,
    json_bytes,
    json_bytes_in_parts,
)
from minions.interfaces.http.tokens import TokenScope
from minions.interfaces.server.access import ROOT
from minions.interfaces.server.app_state import AppState
from minions.interfaces.server.documents.common import MOST_DIGITS
from minions.interfaces.server.live.run_starter import LONGEST_KEY

T = TypeVar("T")

_LONG: Final = 4_096
"""Bytes of a body that are parsed at once."""

# Litestar does not validate these again: it would coerce values and ignore unknown keys.
Body: TypeAlias = Annotated[T, BodyKwarg(), SkipValidationMarker()]
"""The type of the argument `data`, for a body of that class."""
Asked: TypeAlias = NamedDependency[Annotated[T, SkipValidationMarker()]]
"""The type of the argument `asked`, for a query of that class."""

InPath: TypeAlias = Annotated[str, PathParameter(min_length=1)]
"""The type of an argument that is part of the path."""
IdempotencyKey: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="idempotency-key",
        description="The same key and body is the same run, also after a restart.",
    ),
    SkipValidationMarker(),
]
LastEventId: TypeAlias = Annotated[
    str | None,
    HeaderParameter(name="last-event-id", description="Send the events after this one."),
    SkipValidationMarker(),
]


HEADER_SCHEMAS: Final[Mapping[str, Mapping[str, JsonValue]]] = {
    "idempotency-key": {
        "type": "string",
        "minLength": 1,
        "maxLength": LONGEST_KEY,
        "pattern": "^[!-~]([ -~]*[!-~])?$",
    },
    "last-event-id": {"type": "string", "pattern": f"^[0-9]{{0,{MOST_DIGITS}}}$"},
}
"""What the values of headers may be."""

APP_STATE: Final = "minions.app_state"
"""The key of the app's `AppState` in the scope of a request."""
AnyRequest: TypeAlias = Request[Any, Any, Any]  # Any: no users, and no state in requests


@frozen(kw_only=True)
class Nothing:
    """A body or query without keys."""


class EventStream(Protocol):
    """A response that is a stream of events."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole stream."""


def app_state_of(request: AnyRequest) -> AppState:
    """The objects that all endpoints of an app share."""
    return cast("AppState", request.scope[APP_STATE])  # type: ignore[typeddict-item]  # of this app


class ApiRequest(Request[None, None, State]):
    """A request whose body is parsed as the type that the endpoint declares."""

    @property
    def app_state(self) -> AppState:
        """The objects that all endpoints share."""
        return app_state_of(self)

    @property
    def caller(self) -> Caller:
        """Who sends the request."""
        return caller_in(self)

    @property
    def owner(self) -> str | None:
        """The user whose runs and sessions alone there are for the caller; None: there are all."""
        return self.caller.owner

    def link(self, path: str) -> str:
        """The address of that path of this app, for a caller."""
        return f"{self.scope.get(ROOT, '')}/api/v1{path}"

    def declared(self, name: str) -> type[object]:
        """The type of that argument of the endpoint; `Nothing`: it has none."""
        argument = self.route_handler.parsed_fn_signature.parameters.get(name)
        return Nothing if argument is None else cast("type[object]", argument.annotation)

    async def body(self) -> bytes:
        """The body; one space instead of an empty body, which Litestar would not parse, means
        `{}`.
        """
        return await super().body() or b" "

    async def json(self) -> object:
        """The body as its declared class.

        Raises:
            RefusedError, UsageError: It does not fit.
        """
        media_type, kind = self.headers.get("content-type", ""), self.declared("data")
        body = await self.body()
        calls = self.app_state.threads
        return await beside(calls, len(body) > _LONG, lambda: read_body(body, media_type, kind))


def read_asked(request: ApiRequest) -> object:
    """The query as the class of the argument `asked`.

    Raises:
        UsageError: It does not fit.
    """
    return read_query(request.scope["query_string"], request.declared("asked"))


async def check_scope(request: AnyRequest) -> None:
    """Refuse a caller whose token lacks the scope that the endpoint needs.

    Raises:
        RefusedError: `missing-scope`.
    """
    handler = request.route_handler
    needed = cast("TokenScope | None", handler.opt["needs"])
    if needed is not None:
        caller_in(request).require(needed)


def caller_in(request: AnyRequest) -> Caller:
    """Who sends a request to an endpoint that needs a token."""
    return cast("Caller", cast("Mapping[str, object]", request.scope)[CALLER])


async def check_request(request: AnyRequest) -> None:
    """Check the caller's scope, then what was sent without being asked for.

    Raises:
        RefusedError, UsageError: It is refused.
    """
    await check_scope(request)
    await refuse_undeclared(request)


async def refuse_undeclared(request: AnyRequest) -> None:
    """Refuse a body or query for an endpoint that takes none.

    Raises:
        RefusedError, UsageError: There is one.
    """
    arguments = request.route_handler.parsed_fn_signature.parameters
    if "data" not in arguments and not (body := await request.body()).isspace():
        posted = request.headers.get("content-type", "")
        read_body(body, posted if request.method == "POST" else "application/json", Nothing)
    if "asked" not in arguments and (query := request.scope["query_string"]):
        read_query(query, Nothing)


class ApiResponse(Response[T]):
    """A response in the JSON of the codec; bytes are sent as they are."""

    def render(self, content: object, media_type: str, enc_hook: object = None) -> bytes:
        """The bytes of the response."""
        return content if isinstance(content, bytes) else json_bytes(encode(content))

    def to_asgi_response(
        self, app: Any, request: AnyRequest, **known: Any
    ) -> ASGIResponse:  # Any: it is all handed on
        """As Litestar makes it; a large one is encoded when it is sent, in a thread."""
        if isinstance(self.content, bytes) or not is_large(self.content):
            return super().to_asgi_response(app, request, **known)
        content, self.content = self.content, cast("T", b"")
        made = super().to_asgi_response(app, request, **known)
        threads = app_state_of(request).threads
        return cast("ASGIResponse", _LargeResponse(made, content, threads))


class _LargeResponse:
    """A response whose body is yet to be made."""

    def __init__(self, made: ASGIResponse, content: object, threads: BlockingCalls) -> None:
        self._made = made
        self._content = content
        self._threads = threads

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # Any: it is handed on
        """Make the body, and send the response."""
        body = await self._threads.run(lambda: json_bytes_in_parts(encode(self._content)))
        self._content = None
        self._made.body = b"" if self._made.is_head_response else body
        self._made.headers["content-length"] = str(len(body))
        await self._made(scope, receive, send)


def answer(
    value: object, *, media_type: str = "application/json", headers: Mapping[str, str] | None = None
) -> ApiResponse[Any]:  # Any: the class that the endpoint's type names for the document
    """A response that is no instance of its declared class: JSON with absent values, or a text."""
    return ApiResponse(value, headers={"content-type": media_type, **(headers or {})})


def refuses(*statuses: int) -> dict[int, ResponseSpec]:
    """Refusals of an endpoint for the OpenAPI document, beside those of every request."""
    return {
        status: ResponseSpec(Problem, generate_examples=False, media_type=PROBLEM_TYPE)
        for status in statuses
    }
