"""Answers as small ASGI apps: JSON, texts, and errors as problem details (RFC 9457)."""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from attrs import field, frozen

from minions.contracts.runtime import Ids, Log
from minions.data.codec import encode
from minions.data.errors import (
    BudgetSpentError,
    EnvironmentRefusedError,
    Fault,
    FencedError,
    LeaseHeldError,
    MinionsError,
    NotFoundError,
    RecipeError,
    UsageError,
    words_of,
)
from minions.data.json_parts import encoded_parts
from minions.data.json_values import JsonValue, dumps

PROBLEM_TYPE: Final = "application/problem+json"

_CONFLICTS: Final = frozenset(
    {
        "call-in-doubt",
        "corrupt-entry",
        "decision-needed",
        "empty-session",
        "has-forks",
        "nothing-recorded",
        "nothing-to-mark",
        "nothing-to-retry",
        "other-command",
        "other-folder",
        "other-recipe",
        "other-version",
        "recipe-needed",
        "rolled-back",
        "run-failed",
        "run-rejected",
        "run-went-on",
        "session-exists",
        "session-went-on",
        "unanswered-tool-call",
        "unknown-call",
    }
)
"""Codes of valid requests that the present state does not allow."""


_BAD_HEADS: Final = frozenset({"bad-idempotency-key", "bad-last-event-id", "bad-query"})
"""Codes of wrong queries and headers, whose status is 400; of a wrong body it is 422."""

_BAD_SECRETS: Final = frozenset({"missing-secret", "short-secret"})
"""Codes of secrets that a caller refers to and that cannot be read: a retry does not help."""


class RefusedError(MinionsError):
    """A refusal by the server itself."""

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        message: str,
        *,
        suggestions: tuple[str, ...] = (),
        headers: Mapping[str, str] | None = None,
        instance: str | None = None,
    ) -> None:
        super().__init__(message, code=code, suggestions=suggestions)
        self.status = status
        self.headers = dict(headers or {})
        self.instance = instance
        """The `instance` of the problem instead of the requested path; None: the path."""


@frozen(kw_only=True)
class FaultView:
    """A fault of a recipe."""

    code: str
    message: str
    file: str
    line: int
    column: int
    label: str | None = None
    help: str | None = None


def fault_view(fault: Fault) -> FaultView:
    """The fault without the line of the recipe's text, which may contain a password."""
    return FaultView(
        code=fault.code,
        message=fault.message,
        file=fault.file,
        line=fault.line,
        column=fault.column,
        label=fault.label,
        help=fault.help,
    )


@frozen(kw_only=True)
class Problem:
    """Why a request was refused."""

    type: str
    """`urn:minions:problem:` and the code."""
    title: str
    """The status in words."""
    status: int
    detail: str
    """What was read, what was expected, and what to try."""
    code: str
    """A stable code, lower case with hyphens."""
    category: str
    """What kind of failure it is: `transient`, `rate_limit`, `timeout`, `resource`, `contract`,
    `tool`, `permission`, `refusal`, `terminal` or `internal`."""
    suggestions: tuple[str, ...] = ()
    """Similar names, or commands to try."""
    instance: str
    """The path of the request; of an internal error its number in the log."""
    faults: tuple[FaultView, ...] = ()
    """The faults of a recipe; absent without a recipe."""


def problem_of(error: MinionsError, instance: str) -> tuple[Problem, Mapping[str, str]]:
    """The problem for a caller, and headers of the response."""
    status = _status(error)
    problem = Problem(
        type=f"urn:minions:problem:{error.error_code}",
        title=status.phrase,
        status=status.value,
        detail=error.message,
        code=error.error_code,
        category=error.info().category.value,
        suggestions=error.suggestions,
        instance=getattr(error, "instance", None) or instance,
        faults=tuple(map(fault_view, error.faults)) if isinstance(error, RecipeError) else (),
    )
    return problem, _headers(error, status)


def _status(error: MinionsError) -> HTTPStatus:
    if isinstance(error, RefusedError):
        return error.status
    if isinstance(error, BudgetSpentError):
        return HTTPStatus.TOO_MANY_REQUESTS
    if error.error_code == "input-refused":  # as the run found when it opened its tools
        return HTTPStatus.FORBIDDEN
    if error.error_code in _BAD_HEADS:
        return HTTPStatus.BAD_REQUEST
    if isinstance(error, NotFoundError):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, LeaseHeldError | FencedError) or error.error_code in _CONFLICTS:
        return HTTPStatus.CONFLICT
    if isinstance(error, UsageError) or error.error_code in _BAD_SECRETS:
        return HTTPStatus.UNPROCESSABLE_ENTITY
    if isinstance(error, EnvironmentRefusedError):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.INTERNAL_SERVER_ERROR


def _headers(error: MinionsError, status: HTTPStatus) -> Mapping[str, str]:
    if isinstance(error, RefusedError):
        return error.headers
    if isinstance(error, BudgetSpentError):
        wait = error.retry_after_s
        return {} if wait is None else {"retry-after": str(wait)}
    if status in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
        return {"retry-after": "5"}
    return {}


# --- unexpected errors ---------------------------------------------------------------------------


class StandardLog:
    """The logger `minions.server` of the standard library, which an application configures."""

    def __init__(self) -> None:
        self._logger = logging.getLogger("minions.server")

    def info(self, event: str, /, **facts: object) -> None:
        """Log one line."""
        self._logger.info(_line(event, facts))

    def warning(self, event: str, /, **facts: object) -> None:
        """Log one line as a warning."""
        self._logger.warning(_line(event, facts))


def _line(event: str, facts: dict[str, object]) -> str:
    return " ".join((event, *(f"{name}={value!r}" for name, value in facts.items())))


_OPERATORS: Final = frozenset(
    {"bad-configuration", "broken-extension", "empty-extension", "unknown-extension"}
)
"""Codes of faults in files of the operator, whose content and place a caller does not learn."""


class Incidents:
    """Reports unexpected errors."""

    def __init__(self, log: Log, ids: Ids, token: str) -> None:
        """Log to `log`.

        Args:
            token: The server's token, which is removed from what is logged; empty: there is none.
        """
        self._log = log
        self._ids = ids
        self._token = token

    def report(self, error: BaseException) -> MinionsError:
        """Log an unexpected error, and return the error for the caller; ours are returned as they
        are.
        """
        if isinstance(error, MinionsError):
            return self._of_operator(error) if error.error_code in _OPERATORS else error
        number = self._ids("err")
        frames = traceback.extract_tb(error.__traceback__)
        trace = " < ".join(f"{each.filename}:{each.lineno}" for each in reversed(frames))
        words = words_of(error)
        if self._token:
            words = words.replace(self._token, "***")
        self._log.warning("unexpected_error", id=number, error=words, trace=trace)
        return RefusedError(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            "internal",
            f"An unexpected error happened. The server's log has it under '{number}'.",
            instance=f"urn:minions:incident:{number}",
        )

    def _of_operator(self, error: MinionsError) -> MinionsError:
        number = self._ids("err")
        self._log.warning("operators_fault", id=number, error=error.message, where=error.where)
        return RefusedError(
            HTTPStatus.INTERNAL_SERVER_ERROR,
            error.error_code,
            "The configuration of this server, or an extension of it, has a fault. The log has it "
            f"under '{number}'.",
            instance=f"urn:minions:incident:{number}",
        )


# --- responses as small ASGI apps ----------------------------------------------------------------


EVENT_STREAM: Final = "text/event-stream"
"""The media type of server-sent events."""

Scope: TypeAlias = MutableMapping[str, Any]  # Any: as the ASGI specification has it
Message: TypeAlias = MutableMapping[str, Any]  # Any: as above
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def json_bytes(value: JsonValue) -> bytes:
    """Compact JSON as UTF-8; lone surrogates, which UTF-8 cannot express, are escaped."""
    try:
        return dumps(value).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def json_bytes_in_parts(value: JsonValue) -> bytes:
    """As `json_bytes`, in a thread beside the event loop, where others work meanwhile."""
    return b"".join(map(_as_bytes, encoded_parts(value, dumps)))


def _as_bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _HALF.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()


_HALF: Final = re.compile("[\ud800-\udfff]")


@frozen
class Answer:
    """A whole response."""

    status: int
    body: object = None
    """A value that the codec can encode as JSON, or bytes, which are sent as they are; None:
    empty."""
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        body = self.body if isinstance(self.body, bytes) else b""
        if self.body is not None and not isinstance(self.body, bytes):
            body = json_bytes(encode(self.body))
        named = {
            "content-type": self.media_type,
            "content-length": str(len(body)),
            **self.headers,
        }
        headers = [(name.encode("latin-1"), text.encode("latin-1")) for name, text in named.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        if scope["method"] == "HEAD":
            body = b""
        await send({"type": "http.response.body", "body": body})


@frozen
class NoContent:
    """Neither a body nor headers about one. 204: an `EventSource` does not come again; 304: the
    browser has it.
    """

    headers: Mapping[str, str] = field(factory=dict)
    status: int = 204

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        headers = [(name.encode(), text.encode()) for name, text in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def refusal(error: MinionsError, instance: str) -> Answer:
    """The response for an error: problem details, under `/v1` OpenAI's form, under `/a2a` A2A's.

    Args:
        instance: The requested path.
    """
    if instance.startswith(OPENAI_ROOT):
        return _openai_refusal(error)
    if is_of_a2a(instance):
        return _a2a_refusal(error)
    problem, headers = problem_of(error, instance)
    body = encode(problem)
    if isinstance(body, dict) and not problem.faults:
        del body["faults"]
    return Answer(problem.status, body, PROBLEM_TYPE, headers)


# --- errors in OpenAI's form ----------------------------------------------------------------------


OPENAI_ROOT: Final = "/v1/"
"""The paths whose callers speak OpenAI's API."""
_OPENAI_CODES: Final = {
    "recipe-not-found": "model_not_found",
    "too-many-runs": "rate_limit_exceeded",
    "unauthorized": "invalid_api_key",
}
"""The codes for which OpenAI has one of its own that clients know."""
_OF_PARAMETERS: Final = frozenset({"bad-body", "unsupported-parameter"})
"""Codes of errors whose place is a parameter of the request."""
BAD_REQUESTS: Final = frozenset(
    {HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.UNSUPPORTED_MEDIA_TYPE}
)
"""Statuses for which OpenAI has 400."""


def openai_error(
    status: HTTPStatus, code: str, message: str, param: str | None = None
) -> dict[str, JsonValue]:
    """An error in OpenAI's form: `{"error": {"message", "type", "param", "code"}}`."""
    kind = "invalid_request_error"
    if status is HTTPStatus.TOO_MANY_REQUESTS:
        kind = "rate_limit_error"
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        kind = "server_error"
    named = _OPENAI_CODES.get(code, code)
    return {"error": {"message": message, "type": kind, "param": param, "code": named}}


def _openai_refusal(error: MinionsError) -> Answer:
    status = _status(error)
    headers = _headers(error, status)
    if status in BAD_REQUESTS:
        status = HTTPStatus.BAD_REQUEST
    param = error.where if error.error_code in _OF_PARAMETERS else None
    body = openai_error(status, error.error_code, error.message, param)
    return Answer(status, body, headers=headers)


# --- errors in A2A's form ------------------------------------------------------------------------


A2A_ROOT: Final = "/a2a"
"""The path at which A2A is spoken with the server, and below which with one recipe."""
RpcId: TypeAlias = str | int | float | None
"""The id of a request of JSON-RPC; None: it has none, or it could not be read."""
_A2A: Final = re.compile(r"/a2a(?:/[^/]*)?")


@frozen
class _RpcKind:
    code: int
    reason: str


_INVALID_REQUEST: Final = _RpcKind(-32600, "INVALID_REQUEST")
_INTERNAL: Final = _RpcKind(-32603, "INTERNAL_ERROR")
_A2A_KINDS: Final[Mapping[str, _RpcKind]] = {
    "bad-json": _RpcKind(-32700, "JSON_PARSE_ERROR"),
    "unknown-method": _RpcKind(-32601, "METHOD_NOT_FOUND"),
    "unknown-run": _RpcKind(-32001, "TASK_NOT_FOUND"),
    "run-over": _RpcKind(-32002, "TASK_NOT_CANCELABLE"),
    "no-push-notifications": _RpcKind(-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED"),
    "unsupported-content": _RpcKind(-32005, "CONTENT_TYPE_NOT_SUPPORTED"),
    "unsupported-protocol": _RpcKind(-32009, "VERSION_NOT_SUPPORTED"),
}
"""What A2A calls the error with a code. Source: A2A 1.0, as `a2a-sdk` has it."""
_INVALID_PARAMS: Final = _RpcKind(-32602, "INVALID_PARAMS")
_OF_PROTOCOL: Final[Mapping[HTTPStatus, _RpcKind]] = {
    HTTPStatus.BAD_REQUEST: _INVALID_PARAMS,
    HTTPStatus.NOT_FOUND: _INVALID_PARAMS,
    HTTPStatus.UNPROCESSABLE_ENTITY: _INVALID_PARAMS,
    HTTPStatus.CONFLICT: _RpcKind(-32004, "UNSUPPORTED_OPERATION"),
}
"""Other errors by their status; the answer has the status 200, as clients expect it of JSON-RPC."""


def is_of_a2a(path: str) -> bool:
    """Whether callers of that path speak A2A."""
    return _A2A.fullmatch(path) is not None


def a2a_error(error: MinionsError, request_id: RpcId) -> dict[str, JsonValue]:
    """An error as an answer of JSON-RPC, with the `code` that commands print in its metadata."""
    return _rpc_error(error, request_id, _kind_of(error))


def _kind_of(error: MinionsError) -> _RpcKind:
    status = _status(error)
    known = _A2A_KINDS.get(error.error_code) or _OF_PROTOCOL.get(status)
    if known is not None:
        return known
    is_ours = status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS
    return _INTERNAL if is_ours else _INVALID_REQUEST


def _rpc_error(error: MinionsError, request_id: RpcId, kind: _RpcKind) -> dict[str, JsonValue]:
    metadata: dict[str, JsonValue] = {"code": error.error_code}
    if error.where:
        metadata["where"] = error.where
    if error.suggestions:
        metadata["suggestions"] = ", ".join(error.suggestions)
    info: dict[str, JsonValue] = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": kind.reason,
        "domain": "a2a-protocol.org",
        "metadata": metadata,
    }
    told: dict[str, JsonValue] = {"code": kind.code, "message": error.message, "data": [info]}
    return {"jsonrpc": "2.0", "id": request_id, "error": told}


def a2a_answer(error: MinionsError, request_id: RpcId) -> Answer:
    """The answer to a request of A2A that was read. Where HTTP itself says why it is refused, as
    for a lacking scope or too many runs, the status stays.
    """
    status = _status(error)
    headers, body = _headers(error, status), a2a_error(error, request_id)
    return Answer(HTTPStatus.OK if status in _OF_PROTOCOL else status, body, headers=headers)


def _a2a_refusal(error: MinionsError) -> Answer:
    """The answer to a request of which no more than its head was understood."""
    status = _status(error)
    headers, kind = _headers(error, status), _kind_of(error)
    if status is HTTPStatus.UNPROCESSABLE_ENTITY:  # it is no request of JSON-RPC
        status, kind = HTTPStatus.BAD_REQUEST, _INVALID_REQUEST
    return Answer(status, _rpc_error(error, None, kind), headers=headers)
