"""Responses as small ASGI apps: JSON, texts, problems."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final, TypeAlias

from attrs import field, frozen

from minions.data.codec import encode
from minions.data.errors import MinionsError
from minions.data.json_parts import encoded_parts
from minions.data.json_values import JsonValue, dumps
from minions.interfaces.http.problems import PROBLEM_TYPE, problem_of

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
    """204: neither a body nor headers about one; an `EventSource` does not come again."""

    headers: Mapping[str, str] = field(factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        headers = [(name.encode(), text.encode()) for name, text in self.headers.items()]
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def refusal(error: MinionsError, instance: str) -> Answer:
    """The response for an error: problem details."""
    problem, headers = problem_of(error, instance)
    body = encode(problem)
    if isinstance(body, dict) and not problem.faults:
        del body["faults"]
    return Answer(problem.status, body, PROBLEM_TYPE, headers)
