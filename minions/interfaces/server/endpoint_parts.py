"""Additions to Litestar for the endpoints: strict request parsing, and answers in our JSON.

Importing this loads Litestar.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Hashable, Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Final, Protocol, TypeAlias, TypeVar, cast
from urllib.parse import parse_qsl

from attrs import frozen
from litestar import Request, Response
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.openapi import ResponseSpec
from litestar.params import BodyKwarg, HeaderParameter, PathParameter, SkipValidationMarker
from litestar.response.base import ASGIResponse

from minions.contracts.runtime import BlockingCalls
from minions.data.codec import decode, encode
from minions.data.errors import UsageError, did_you_mean, near_names
from minions.data.hint_schemas import schema_of
from minions.data.json_parts import encoded_parts, is_large
from minions.data.json_values import (
    JsonValue,
    as_object,
    as_object_of_objects,
    dumps,
    json_type,
    parse_json,
)
from minions.data.schema import SchemaValidator
from minions.engine.services.event_loop import beside
from minions.interfaces.http.http_answers import (
    PROBLEM_TYPE,
    AsgiApp,
    Problem,
    Receive,
    RefusedError,
    Scope,
    Send,
    json_bytes,
    json_bytes_in_parts,
)
from minions.interfaces.http.tokens import CALLER, Caller, TokenScope
from minions.interfaces.server.access import ROOT
from minions.interfaces.server.app_state import AppState
from minions.interfaces.server.documents.shared_documents import MOST_DIGITS
from minions.interfaces.server.live.server_runs import LONGEST_KEY

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


A2aVersion: TypeAlias = Annotated[
    str | None,
    HeaderParameter(name="a2a-version", description="The version of A2A that the caller speaks."),
    SkipValidationMarker(),
]
InSession: TypeAlias = Annotated[
    str | None,
    HeaderParameter(name="x-minions-session", description="The session in which the run begins."),
    SkipValidationMarker(),
]

HEADER_SCHEMAS: Final[Mapping[str, Mapping[str, JsonValue]]] = {
    "a2a-version": {"type": "string", "pattern": r"^1(\.[0-9]+)*$"},
    "idempotency-key": {
        "type": "string",
        "minLength": 1,
        "maxLength": LONGEST_KEY,
        "pattern": "^[!-~]([ -~]*[!-~])?$",
    },
    "last-event-id": {"type": "string", "pattern": f"^[0-9]{{0,{MOST_DIGITS}}}$"},
    "x-minions-session": {"type": "string", "minLength": 1, "maxLength": 200},
}
"""What the values of headers may be."""

RPC_ID: Final = "minions.rpc_id"
"""The key of the id of a request of JSON-RPC in its scope, once it was read."""
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
    state: AppState = request.scope[APP_STATE]  # type: ignore[typeddict-item]  # of this app
    return state


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
        signature = self.route_handler.parsed_fn_signature
        argument = signature.parameters.get(name)
        if argument is None:
            return Nothing
        kind: type[object] = argument.annotation
        return kind

    unknown_keys: Sequence[str] = ()
    """The keys of the body that its class passes over."""

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
        calls, unknown = self.app_state.threads, list[str]()
        made = await beside(
            calls, len(body) > _LONG, lambda: read_body(body, media_type, kind, unknown)
        )
        self.unknown_keys = unknown
        return made


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
    needed: TokenScope | None = handler.opt["needs"]
    if needed is not None:
        caller_in(request).require(needed)


def caller_in(request: AnyRequest) -> Caller:
    """Who sends a request to an endpoint that needs a token."""
    caller: Caller = request.scope[CALLER]  # type: ignore[typeddict-item]  # of this app
    return caller


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


class SentAnswer(ApiResponse[T]):
    """A response that an ASGI app sends; its class is named for the document."""

    def __init__(self, app: AsgiApp) -> None:
        super().__init__(cast("T", b""))
        self._app = app

    def to_asgi_response(self, app: object, request: AnyRequest, **known: object) -> ASGIResponse:
        """The app."""
        return cast("ASGIResponse", self._app)


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


# --- parses bodies and queries strictly ----------------------------------------------------------


_WHOLE: Final = re.compile(r"-?[0-9]{1,30}")
"""A whole number in an address; the schema says which are too large."""


def read_body(data: bytes, media_type: str, kind: type[T], unknown: list[str] | None = None) -> T:
    """The body as `kind`; an empty one is `{}`.

    Args:
        unknown: As for `read_object`.
    Raises:
        RefusedError: It is no JSON (400), or has another media type (415).
        UsageError: Keys are unknown or missing, or values do not fit.
    """
    if not data.strip():
        return read_object({}, kind, "The body")
    if media_type.partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "not-json",
            f"The body is of type {media_type[:80]!r}; send 'Content-Type: application/json'.",
        )
    value = _parse(data)
    if not isinstance(value, Mapping):
        raise UsageError(
            f"The body is JSON of type {json_type(value)}; an object was expected.",
            code="bad-body",
        )
    return read_object(value, kind, "The body", unknown)


_DEEPEST: Final = 100
"""The deepest nesting of a body: functions that walk it later are recursive."""


def _parse(data: bytes) -> JsonValue:
    try:
        value = parse_json(data.decode(), unique_keys=True, in_parts=True)
        if _is_deeper(value, _DEEPEST):
            raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
    except ValueError as error:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, "bad-json", f"The body is not JSON: {error}."
        ) from error
    return value


def _is_deeper(value: JsonValue, levels: int) -> bool:
    if levels == 0:
        return True
    if isinstance(value, Mapping):
        return any(_is_deeper(each, levels - 1) for each in value.values())
    return isinstance(value, list) and any(_is_deeper(each, levels - 1) for each in value)


def read_query(query: bytes, kind: type[T]) -> T:
    """The query of an address as `kind`, whose fields are texts, whole numbers, or None.

    Raises:
        UsageError: Names are unknown, missing or repeated, or values do not fit.
    """
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    numbers = _numbers(cast("Hashable", kind))
    values: dict[str, JsonValue] = {}
    for name, text in pairs:
        if name in values:
            raise UsageError(f"The query gives '{name}' twice.", code="bad-query")
        is_number = name in numbers and _WHOLE.fullmatch(text) is not None
        values[name] = int(text) if is_number else text
    return read_object(values, kind, "The query")


def read_object(
    value: Mapping[str, JsonValue], kind: type[T], what: str, passed_over: list[str] | None = None
) -> T:
    """The object as `kind`.

    Args:
        what: The start of the messages of errors.
        passed_over: Gets the unknown keys, where `kind` `passes_unknown`.
    Raises:
        UsageError: Keys are unknown or missing, or values do not fit.
    """
    validator, names = _validator(cast("Hashable", kind))
    code = "bad-query" if "query" in what else "bad-body"
    unknown = [name for name in value if name not in names]
    if passed_over is not None and passes_unknown(kind):
        passed_over += map(_short, unknown)
        unknown = []
    problems = [
        f"{what} has the unknown key '{_short(name)}'.{did_you_mean(name, names)}"
        for name in unknown
    ]
    numbers = _numbers(cast("Hashable", kind))
    known = {
        name: _as_whole(each) if name in numbers else each
        for name, each in value.items()
        if name in names
    }
    problems += [f"{what} does not fit: {line}" for line in validator.errors(known)]
    if not problems and _has_half_character(known):
        problems.append(f"{what} holds half a character (a lone surrogate).")
    if problems:
        if unknown:
            problems.append(f"Keys are: {', '.join(names) or 'none'}.")
        near = [each for name in unknown for each in near_names(name, names, limit=1)]
        where = _short(unknown[0]) if unknown else _place_in(problems[0])
        raise UsageError("\n".join(problems), code=code, suggestions=near, where=where)
    try:
        return decode(known, kind)
    except ValueError as error:
        raise UsageError(f"{what} does not fit: {error}", code=code) from error


def passes_unknown(kind: type[object]) -> bool:
    """Whether unknown keys of that class are passed over, as its protocol has it."""
    return getattr(kind, "passes_unknown", False)


_PLACE: Final = re.compile(r"does not fit: \$\.([^\s:]+)")


def _place_in(problem: str) -> str | None:
    """The key that a problem is about; None: the whole value."""
    found = _PLACE.search(problem)
    return found[1] if found is not None else None


def _as_whole(value: JsonValue) -> JsonValue:
    """1.0 as 1: for JSON Schema both are the same whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _short(name: str) -> str:
    """The name cut to a length that can be shown, with lone surrogates escaped."""
    return name[:80].encode("utf-8", "backslashreplace").decode()


def _has_half_character(value: JsonValue) -> bool:
    try:
        for part in encoded_parts(value, dumps):
            part.encode()
    except UnicodeEncodeError:
        return True
    return False


@functools.cache  # compiled once per class of contracts; holds no data
def _validator(kind: Hashable) -> tuple[SchemaValidator, Sequence[str]]:
    schema = schema_of(kind)
    return SchemaValidator(schema), tuple(as_object(schema["properties"]))


@functools.cache  # as above
def _numbers(kind: Hashable) -> frozenset[str]:
    properties = as_object_of_objects(schema_of(kind)["properties"])
    return frozenset(name for name, each in properties.items() if "integer" in str(each))
