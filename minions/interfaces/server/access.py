"""The access middleware: checks host, origin, token and the number of requests. Plain ASGI."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Final

from attrs import evolve, field, frozen

from minions.data.errors import MinionsError
from minions.interfaces.http.http_answers import (
    Answer,
    AsgiApp,
    Message,
    NoContent,
    Receive,
    RefusedError,
    Scope,
    Send,
    refusal,
)
from minions.interfaces.http.tokens import CALLER, EXPIRED, Caller, CallerRole, caller_of, digest_of
from minions.interfaces.server.server_options import ServerOptions

ROOT: Final = "minions.root"
"""Key of the ASGI scope for the path at which the app is mounted."""

_MOST_HEADER_BYTES: Final = 32_768
_PUBLIC: Final = ("/api/v1/health", "/api/v1/ready", "/.well-known/agent-card.json")
_ALWAYS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)


_EXPOSED: Final = (
    b"X-Minions-Run, X-Minions-Session, X-Minions-Status, X-Minions-Ignored, Retry-After, "
    b"X-Should-Retry, X-Request-Id, Location, Content-Disposition"
)
"""Headers of answers that pages of other origins may read."""
_SENT: Final = (
    "Accept, Authorization, Content-Type, User-Agent, Idempotency-Key, Last-Event-ID, Traceparent, "
    "Tracestate, X-Minions-Session, A2A-Version, A2A-Extensions, OpenAI-Organization, "
    "OpenAI-Project, OpenAI-Beta"
)
"""Headers of requests that pages of other origins may send: what is read, and what clients of the
protocols send unasked."""
_OF_SDKS: Final = re.compile(r"x-stainless-[a-z-]{1,40}")
"""Further ones: those by which OpenAI's packages describe themselves."""
_PREFLIGHT_S: Final = 600
"""For how long browsers may keep the answer to a preflight."""


@frozen
class StaticFile:
    """A file of the web page."""

    data: bytes
    media_type: str
    _tag: str = field(init=False)
    _packed: bytes = field(init=False)

    @_tag.default
    def _tag_of_data(self) -> str:
        return hashlib.sha256(self.data).hexdigest()[:16]

    @_packed.default
    def _compressed_data(self) -> bytes:
        return gzip.compress(self.data, mtime=0)  # once: when the server starts

    def answer(self, headers: Sequence[tuple[bytes, bytes]]) -> Answer | NoContent:
        """The file, compressed where the request's headers take that; 304 where the browser has
        it.
        """
        is_packed = len(self._packed) < len(self.data) and _takes_gzip(headers)
        tag = f'"{self._tag}-gzip"' if is_packed else f'"{self._tag}"'
        named = {"etag": tag, "vary": "accept-encoding"}
        known = _one(headers, b"if-none-match") or ""
        if any(each.strip().removeprefix("W/") in (tag, "*") for each in known.split(",")):
            return NoContent(named, status=HTTPStatus.NOT_MODIFIED)
        if not is_packed:
            return Answer(200, self.data, self.media_type, named)
        return Answer(200, self._packed, self.media_type, {**named, "content-encoding": "gzip"})


class AccessMiddleware:
    """Passes a request to the app, answers with a file of the page, or refuses it."""

    def __init__(
        self,
        app: AsgiApp,
        options: ServerOptions,
        files: Mapping[str, StaticFile],
        report: Callable[[Exception], MinionsError],
        now: Callable[[], datetime],
        *,
        ends_calls: bool = True,
    ) -> None:
        """Protect `app`.

        Args:
            files: By path, from `/`; they are public.
            report: Logs an unexpected error, and returns the error for the caller.
            now: The time of day, by which tokens expire.
            ends_calls: Whether an app is told that its caller has left when the token expires
                meanwhile; False: only where it answers a GET, as calls are cancelled by that.
        """
        self._app = app
        self._options = options
        self._files = files
        self._report = report
        self._now = now
        self._ends_calls = ends_calls
        self._sha256 = digest_of(options.token) if options.token else None
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        scope = _unmounted_scope(scope)
        is_file = scope["path"] in self._files
        if not is_file and scope["method"] == "GET" and _takes_gzip(scope["headers"]):
            send = _Packing(send)
        shared = () if is_file else sharing_headers(scope["headers"], self._options.origins)
        sender = _Sender(send, shared, is_api=not is_file)
        try:
            self._check(scope)
        except MinionsError as error:
            await refusal(error, scope["path"])(scope, receive, sender)
            return
        caller: Caller | None = scope.get(CALLER)
        is_ended = self._ends_calls or scope["method"] == "GET"
        if caller is not None and caller.expires is not None and is_ended:
            receive = _UntilExpiry(receive, caller, self._now)
        self._inside += 1
        try:
            if self._is_preflight(scope):
                await self._app(scope, receive, _Preflight(sender, scope["headers"]))
            else:
                await self._pass(scope, receive, sender)
        except Exception as error:  # noqa: BLE001  # the outermost level of a request: a caller gets an answer
            shown = self._report(error)
            if not sender.has_begun:  # else the connection is closed in the middle
                await refusal(shown, scope["path"])(scope, receive, sender)
        finally:
            self._inside -= 1

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        file = self._files.get(scope["path"])
        if file is not None and scope["method"] in ("GET", "HEAD"):
            await file.answer(scope["headers"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Check a request before it reaches the app.

        Raises:
            RefusedError: The request is not allowed.
        """
        headers = scope["headers"]
        if sum(len(name) + len(value) for name, value in headers) > _MOST_HEADER_BYTES:
            raise RefusedError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                "headers-too-large",
                f"The headers have more than {_MOST_HEADER_BYTES:,} bytes.",
            )
        host = _one(headers, b"host")
        if host is None or _name_of(host) not in self._options.hosts:
            raise RefusedError(
                HTTPStatus.MISDIRECTED_REQUEST,
                "wrong-host",
                "The Host header names none of this server's hosts. `minions serve --allow-host "
                "NAME` allows another one.",
            )
        self._check_origin(headers, host)
        is_public = self._is_public(scope)
        caller = None
        if not self._is_preflight(scope):
            caller = self._caller(headers, scope.get("client"))
        if caller is not None and (refused := caller.expired(self._now())) is not None:
            if not is_public:
                raise refused
            caller = None
        if caller is not None:
            scope[CALLER] = caller
        if caller is not None and not is_public:
            self._check_role(caller)
        if caller is None and not is_public:
            raise RefusedError(
                HTTPStatus.UNAUTHORIZED,
                "unauthorized",
                "Send the header 'Authorization: Bearer TOKEN'; `minions serve` prints the token "
                "when it starts, or has it in its --token-file.",
                headers={"www-authenticate": "Bearer"},
            )
        if self._inside >= self._options.max_connections:
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too-many-connections",
                f"{self._inside} requests are being answered; no more at a time.",
                headers={"retry-after": "1"},
            )

    def _check_origin(self, headers: _Headers, host: str) -> None:
        if not any(name == b"origin" for name, _ in headers):
            return
        origin = _one(headers, b"origin")
        own = (f"http://{host}", f"https://{host}")
        if origin not in own and origin not in self._options.origins:
            raise RefusedError(
                HTTPStatus.FORBIDDEN,
                "wrong-origin",
                "A page of another origin sent the request. The server's own page may, and those "
                "of the origins that `minions serve --allow-origin ORIGIN` lists.",
            )

    def _is_public(self, scope: Scope) -> bool:
        path, method = scope["path"], scope["method"]
        if (method == "GET" and path in _PUBLIC) or self._is_preflight(scope):
            return True
        return method in ("GET", "HEAD") and path in self._files

    def _is_preflight(self, scope: Scope) -> bool:
        """Whether a browser asks for a page of a listed origin what that page may send. It sends no
        token with that, and no operation is reached by it.
        """
        headers = scope["headers"]
        return (
            scope["method"] == "OPTIONS"
            and _one(headers, b"origin") in self._options.origins
            and _one(headers, b"access-control-request-method") is not None
        )

    def _caller(self, headers: _Headers, client: Sequence[str | int] | None) -> Caller | None:
        """Whom the proxy names, else whose token the request has, with their scopes here; None: it
        has no token, or a wrong one.

        Raises:
            RefusedError: `proxy-refused`.
        """
        proxy, caller = self._options.proxy, None
        if proxy is not None:
            caller = proxy.caller_of(headers, str(client[0]) if client else None)
        if caller is None:
            given = _one(headers, b"authorization") or ""
            scheme, _, token = given.partition(" ")
            found = caller_of(token.strip(), self._sha256, self._options.tokens)
            caller = found if scheme.lower() == "bearer" else None
        if caller is None or not caller.projects:
            return caller
        return evolve(caller, scopes=caller.within(self._options.project))

    def _check_role(self, caller: Caller) -> None:
        project = self._options.project
        if caller.scopes or (project is None and caller.projects):
            return
        where = "on this server" if project is None else f"in the project '{project}'"
        raise RefusedError(
            HTTPStatus.FORBIDDEN,
            "missing-role",
            f"'{caller.name}' has no role {where}. To look at something takes the role "
            f"'{CallerRole.VIEWER}', to decide '{CallerRole.APPROVER}', to run and change things "
            f"'{CallerRole.OPERATOR}'. The token file gives one: to the token, or, under [proxy], "
            "to everyone, a user or a group.",
        )


_LOOK_S: Final = 1.0
"""Seconds between two looks at the clock, which may be set, or stand still while a machine sleeps.
"""


class _UntilExpiry:
    """Receives what the caller sends, until their token expires: for the app they have then left,
    so that every stream ends.
    """

    def __init__(self, receive: Receive, caller: Caller, now: Callable[[], datetime]) -> None:
        self._receive = receive
        self._caller = caller
        self._now = now

    async def __call__(self) -> Message:
        """The next message."""
        asked = asyncio.ensure_future(self._receive())
        try:
            while (refused := self._caller.expired(self._now())) is None:
                await asyncio.wait((asked,), timeout=_LOOK_S)
                if asked.done():
                    return asked.result()
        finally:
            asked.cancel()
        return {"type": "http.disconnect", EXPIRED: refused}


_Pairs = Sequence[tuple[bytes, bytes]]
_Headers = list[tuple[bytes, bytes]]


def sharing_headers(headers: _Pairs, origins: Collection[str]) -> _Pairs:
    """The headers of a response by which a page of a listed origin may read it.

    Args:
        headers: Those of the request, as far as they have come.
        origins: Those that are listed.
    """
    if not origins:
        return ()
    origin = _one(headers, b"origin")
    if origin is None or origin not in origins:
        return ((b"vary", b"origin"),)
    return (
        (b"vary", b"origin"),
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", _EXPOSED),
    )


def _takes_gzip(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    for each in (_one(headers, b"accept-encoding") or "").lower().split(","):
        name, _, weight = each.replace(" ", "").partition(";q=")
        if name == "gzip":
            return weight.strip("0.") != "" or weight == ""
    return False


def _one(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> str | None:
    """The only value of a header; None: it is missing or given twice."""
    found = [value for key, value in headers if key == name]
    return found[0].decode("latin-1") if len(found) == 1 else None


_HOST: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:@\[\]]+))(?::\d{1,5})?")


def _name_of(host: str) -> str:
    """The host without port and brackets; empty: it is not valid."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found is not None else ""


def _unmounted_scope(scope: Scope) -> Scope:
    """The scope with the path below the mount point; servers and frameworks differ in that."""
    root, path = scope.get("root_path", "").rstrip("/"), scope["path"]
    if path.startswith(("http://", "https://")):  # the whole address, as proxies send it
        path = f"/{path.split('/', 3)[3]}" if path.count("/") > 2 else "/"
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    return {**scope, "path": path or "/", "root_path": "", ROOT: root}


_PACKED_BYTES: Final = range(1_000, 512_001)
"""How large a JSON body is that is sent compressed: a smaller one gets hardly smaller, a larger one
would take the event loop for more than some milliseconds.
"""


class _Packing:
    """Compresses a JSON body that is sent at once; streams, files and pieces pass as they are."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        """Held until its body is there."""

    async def __call__(self, message: Message) -> None:
        """Send a message; the start of such a body together with it."""
        if message["type"] == "http.response.start" and _may_pack(message["headers"]):
            self._start = message
            return
        if (start := self._start) is not None:
            self._start = None
            body = message.get("body", b"")
            if not message.get("more_body") and len(body) in _PACKED_BYTES:
                body = gzip.compress(body, _LEVEL, mtime=0)
                message = {**message, "body": body}
                start = {**start, "headers": _packed_headers(start["headers"], len(body))}
            await self._send(start)
        await self._send(message)


_LEVEL: Final = 5


def _may_pack(headers: _Headers) -> bool:
    kinds = [value for name, value in headers if name.lower() == b"content-type"]
    is_packed = any(name.lower() == b"content-encoding" for name, _ in headers)
    return not is_packed and len(kinds) == 1 and kinds[0].startswith(b"application/json")


def _packed_headers(headers: _Headers, size: int) -> _Headers:
    others = [each for each in headers if each[0].lower() != b"content-length"]
    length = (b"content-length", str(size).encode())
    return [*others, length, (b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]


class _Sender:
    """Adds the headers that every response has, and those for pages of another origin."""

    def __init__(self, send: Send, shared: _Pairs, *, is_api: bool) -> None:
        """Wrap `send`; `shared` are those for pages of another origin."""
        self._send = send
        caching = b"no-store" if is_api else b"no-cache"
        self._added = [*_ALWAYS, (b"cache-control", caching), *shared]
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        """Send a message, with these headers at the start."""
        if message["type"] == "http.response.start":
            self.has_begun = True
            message["headers"] = [*message.get("headers", ()), *self._added]
        await self._send(message)


class _Preflight:
    """Turns the app's answer to OPTIONS, which names the methods of a path, into the answer to a
    preflight; a refusal stays what it is.
    """

    def __init__(self, send: Send, headers: _Headers) -> None:
        """Wrap `send`; `headers` are those of the request."""
        self._send = send
        asked = (_one(headers, b"access-control-request-headers") or "").lower().split(",")
        named = (each.strip() for each in asked)
        self._sent = ", ".join((_SENT, *(each for each in named if _OF_SDKS.fullmatch(each))))
        self._is_answered = False

    async def __call__(self, message: Message) -> None:
        """Send the answer, or what the app sends where it knows no such path."""
        if message["type"] == "http.response.start":
            methods = _one([(name.lower(), value) for name, value in message["headers"]], b"allow")
            if methods is not None:
                self._is_answered = True
                answer = (
                    (b"access-control-allow-methods", methods.encode("latin-1")),
                    (b"access-control-allow-headers", self._sent.encode("latin-1")),
                    (b"access-control-max-age", b"%d" % _PREFLIGHT_S),
                )
                await self._send({**message, "status": HTTPStatus.NO_CONTENT, "headers": answer})
                await self._send({"type": "http.response.body", "body": b""})
        if not self._is_answered:
            await self._send(message)
