"""The toolset `http`: `get` and `post` to hosts that the recipe lists, within limits.

Which addresses a request may reach is decided in `network_targets`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final

from attrs import evolve, field, frozen

from minions.adapters.tools.network_targets import (
    HOST_PATTERN,
    AllowedHost,
    Resolve,
    check_address,
    resolve_by_system,
)
from minions.contracts.errors import ToolError
from minions.contracts.json_values import JsonValue, parse_json
from minions.contracts.tools import Effect, Tool, ToolScope, Toolset

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession
    from aiohttp.abc import AbstractResolver
    from yarl import URL

__all__ = ["HttpStatusError", "built_in", "http_toolset"]

_MOST_REDIRECTS: Final = 5
_TEXTS: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}


@frozen(kw_only=True)
class _Options:
    """The options that a recipe may set; `_OPTIONS` is their schema."""

    allow: list[str]
    timeout_s: float = 30.0
    max_bytes: int = 1_048_576
    allow_private: bool = False
    idempotent: bool = False


_OPTIONS: Final[Mapping[str, JsonValue]] = {
    "type": "object",
    "properties": {
        "allow": {
            "type": "array",
            "items": {"type": "string", "pattern": HOST_PATTERN},
            "minItems": 1,
            "description": "Hosts that can be asked: 'api.example.com', '*.example.org:8443'.",
        },
        "timeout_s": {
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 30,
            "description": "The whole request with its redirects, in seconds.",
        },
        "max_bytes": {
            "type": "integer",
            "minimum": 1,
            "default": 1_048_576,
            "description": "The largest answer, unpacked.",
        },
        "allow_private": {
            "type": "boolean",
            "default": False,
            "description": "Also addresses of private networks and of this machine.",
        },
        "idempotent": {
            "type": "boolean",
            "default": False,
            "description": "The servers know `Idempotency-Key`: `post` may be tried again.",
        },
    },
    "required": ["allow"],
    "additionalProperties": False,
}


class HttpStatusError(Exception):
    """The server cannot answer at present; `status_code` decides whether the call is retried."""

    def __init__(self, message: str, status_code: int) -> None:
        super().__init__(message)
        self.status_code = status_code


@frozen
class HttpAnswer:
    """The result of `get` and `post`."""

    status: int
    url: str
    """The URL that answered, without the query."""
    headers: Mapping[str, str]
    """Headers by name in lower case, without `set-cookie`."""
    json: JsonValue
    """The body of a JSON answer; null for any other."""
    body: str | None
    """The body of any other answer as text; null for a JSON answer."""


def built_in(_now: Callable[[], datetime]) -> Toolset:
    """The toolset under its usual name, for every recipe."""
    return http_toolset()


def http_toolset(resolve: Resolve = resolve_by_system) -> Toolset:
    """The tools `get` (pure) and `post` (once, or idempotent by the option).

    Args:
        resolve: Resolves host names to addresses.
    """

    def open_tools(options: Mapping[str, JsonValue], prefix: str) -> Sequence[Tool]:
        from minions.contracts.codec import decode

        checked = decode(options, _Options)
        return _tools(_HttpTools(checked, resolve), prefix=f"{prefix}__" if prefix else "")

    unused = _HttpTools(_Options(allow=[]), resolve)
    return Toolset(
        name="http",
        description="Ask web servers that the recipe lists.",
        options=_OPTIONS,
        specs=tuple(tool.spec for tool in _tools(unused, prefix="")),
        open=open_tools,
    )


def _tools(http: _HttpTools, *, prefix: str) -> Sequence[Tool]:
    from minions.adapters.tools.function_tool import tool

    posting = Effect.IDEMPOTENT if http.options.idempotent else Effect.ONCE
    return (
        tool(name=f"{prefix}get", effect=Effect.PURE)(http.get),
        tool(name=f"{prefix}post", effect=posting)(http.post),
    )


_Url = Annotated[str, "http:// or https://, of a host that is allowed."]
_Headers = Annotated[dict[str, str] | None, "Header names and values."]


@frozen(kw_only=True)
class _Request:
    method: str
    url: URL
    headers: Mapping[str, str]
    data: bytes | None = None


@frozen
class _HttpTools:
    """The tools' functions. The first paragraph of each docstring is shown to the model."""

    options: _Options
    resolve: Resolve
    allowed: tuple[AllowedHost, ...] = field(init=False)

    @allowed.default
    def _allowed(self) -> tuple[AllowedHost, ...]:
        return tuple(AllowedHost.of(text) for text in self.options.allow)

    async def get(
        self,
        scope: ToolScope,
        url: _Url,
        headers: _Headers = None,
        query: Annotated[dict[str, JsonValue] | None, "Added to the URL.", _TEXTS] = None,
    ) -> HttpAnswer:
        """Fetch a URL."""
        target = _parsed(url)
        if query:
            target = target.update_query({name: _query_text(item) for name, item in query.items()})
        return await self._send(
            _Request(method="GET", url=target, headers=_checked_headers(headers or {})), scope
        )

    async def post(
        self,
        scope: ToolScope,
        url: _Url,
        json: Annotated[JsonValue, "Sent as JSON."] = None,
        body: Annotated[str | None, "Sent as text, where there is no json."] = None,
        headers: _Headers = None,
    ) -> HttpAnswer:
        """Send JSON or a text to a URL."""
        sent = _checked_headers(headers or {})
        names = {name.lower() for name in sent}
        if json is not None and body is not None:
            raise ToolError("Give json or body, not both.", code="bad-arguments")
        if self.options.idempotent and "idempotency-key" not in names:
            sent["Idempotency-Key"] = scope.idempotency_key
        data = _encoded(json, body)
        if data is not None and "content-type" not in names:
            kind = "text/plain; charset=utf-8" if json is None else "application/json"
            sent["Content-Type"] = kind
        request = _Request(method="POST", url=_parsed(url), headers=sent, data=data)
        return await self._send(request, scope)

    async def _send(self, request: _Request, scope: ToolScope) -> HttpAnswer:
        most = min(self.options.max_bytes, scope.max_result_bytes)
        start = request.url
        try:
            async with asyncio.timeout(self.options.timeout_s) as deadline:
                return await self._followed(request, most)
        except TimeoutError as error:
            if not deadline.expired():
                raise ConnectionError(f"{_shown(start)} cannot be reached: it timed out") from error
            raise TimeoutError(
                f"{_shown(start)} did not answer within {self.options.timeout_s:g} s "
                "(the toolset's option `timeout_s`)"
            ) from error

    async def _followed(self, request: _Request, most: int) -> HttpAnswer:
        for _ in range(_MOST_REDIRECTS + 1):
            found = await self._once(request, most)
            if isinstance(found, HttpAnswer):
                return found
            request = found
        raise ToolError(
            f"More than {_MOST_REDIRECTS} redirects, the last one to {_shown(request.url)}.",
            code="too-many-redirects",
        )

    async def _once(self, request: _Request, most: int) -> HttpAnswer | _Request:
        """The answer to one request, or the request that a redirect leads to."""
        from aiohttp import ClientError

        self._check_target(request.url)
        addresses = await self._addresses(request.url)
        try:
            async with (
                _session(addresses) as session,
                session.request(
                    request.method,
                    request.url,
                    headers=request.headers,
                    data=request.data,
                    allow_redirects=False,
                ) as response,
            ):
                if (place := _redirect_of(response)) is not None:
                    return _redirected(request, response.status, place)
                return _answer(request, response, await _read(request, response, most))
        except (ClientError, OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
            # Its own words may quote what was sent.
            raise ConnectionError(
                f"{_shown(request.url)} cannot be asked ({type(error).__name__})"
            ) from None

    def _check_target(self, url: URL) -> None:
        host, port = url.raw_host or "", url.port or 0
        if not any(entry.covers(url.scheme, host, port) for entry in self.allowed):
            raise ToolError(
                f"{url.scheme}://{host}:{port} is not among the hosts that can be asked: "
                f"{', '.join(self.options.allow)}.",
                code="host-refused",
            )

    async def _addresses(self, url: URL) -> Sequence[str]:
        """The addresses of the host, all of them checked: any of them
        may be the one that is used.
        """
        host, port = url.raw_host or "", url.port or 0
        try:
            found = [str(ipaddress.ip_address(host))]
        except ValueError:
            found = await self._resolved(host, port)
        if not self.options.allow_private:
            for address in found:
                check_address(host, address)
        return found

    async def _resolved(self, host: str, port: int) -> list[str]:
        try:
            found = list(await self.resolve(host, port))
        except (OSError, UnicodeError) as error:
            raise ConnectionError(f"{host} was not found: {error}") from error
        if not found:
            raise ConnectionError(f"{host} was not found: it has no address")
        return found


# --- requests --------------------------------------------------------------------------------

_SET_BY_US: Final = frozenset(
    {
        "host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer",
        "expect", "accept-encoding", "proxy-authorization",
    }
)  # fmt: skip
_KEPT_ELSEWHERE: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})
"""Request headers that are also sent to another host after a
redirect; all others may hold a secret.
"""
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def _parsed(text: str) -> URL:
    from yarl import URL

    try:
        url = URL(text.strip())
        is_complete = bool(url.raw_host) and url.port is not None
    except ValueError:
        raise ToolError(
            "That is not a URL, such as https://example.com/path.", code="bad-url"
        ) from None
    if url.scheme not in ("http", "https") or not is_complete:
        raise ToolError("The URL does not begin with http://HOST or https://HOST.", code="bad-url")
    if _is_odd_number(url.raw_host or ""):
        raise ToolError("Write the address in the URL as four numbers 0 to 255.", code="bad-url")
    if url.user is not None or url.password is not None:
        raise ToolError(
            "The URL has a name or password before the host. Send an Authorization header.",
            code="bad-url",
        )
    return url.with_fragment(None)


def _is_odd_number(host: str) -> bool:
    """Whether some programs take the host for an address and others
    for a name: `127.1`, `2130706433`.
    """
    if not host.replace(".", "").isdigit():
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def _query_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers, if they are valid.

    Raises:
        ToolError: Names the invalid headers and never quotes their values.
    """
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise ToolError(f"{name[:60]!r} cannot be the name of a header.", code="bad-header")
        if name.lower() in _SET_BY_US:
            raise ToolError(f"The header '{name}' cannot be given.", code="bad-header")
        if _CONTROL.search(value) or not _is_unicode(value):
            raise ToolError(
                f"The value of the header '{name}' has a line end or another character that a "
                "header cannot hold.",
                code="bad-header",
            )
    return dict(headers)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _encoded(value: JsonValue, body: str | None) -> bytes | None:
    if value is not None:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    if body is not None and not _is_unicode(body):
        raise ToolError("The body has half a character (a lone surrogate).", code="bad-text")
    return None if body is None else body.encode()


def _shown(url: URL) -> str:
    """The URL without the query, which may hold a secret."""
    return str(url.with_query(None).with_fragment(None))


def _redirect_of(response: ClientResponse) -> str | None:
    if response.status in (301, 302, 303, 307, 308):
        return response.headers.get("Location")
    return None


def _redirected(request: _Request, status: int, place: str) -> _Request:
    from yarl import URL

    try:
        target = _parsed(str(request.url.join(URL(place))))
    except ValueError:
        raise ToolError(
            f"{_shown(request.url)} redirects to something that is not a URL.", code="bad-url"
        ) from None
    if request.url.scheme == "https" and target.scheme == "http":
        raise ToolError(
            f"{_shown(request.url)} redirects from https to http, which is not followed.",
            code="redirect-refused",
        )
    request = evolve(request, url=target, headers=_headers_for(request, target))
    if status in (307, 308) or request.method == "GET":
        return request
    headers = {k: v for k, v in request.headers.items() if k.lower() != "content-type"}
    return evolve(request, method="GET", data=None, headers=headers)


def _headers_for(request: _Request, target: URL) -> Mapping[str, str]:
    if target.origin() == request.url.origin():
        return request.headers
    return {k: v for k, v in request.headers.items() if k.lower() in _KEPT_ELSEWHERE}


# --- connection ------------------------------------------------------------------------------


def _session(addresses: Sequence[str]) -> ClientSession:
    """A session that connects to these addresses only, whatever a name server says later."""
    from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

    connector = TCPConnector(
        resolver=_pinned(addresses), use_dns_cache=False, force_close=True, limit=1
    )
    return ClientSession(
        connector=connector,
        cookie_jar=DummyCookieJar(),
        timeout=ClientTimeout(total=None, connect=None),
        trust_env=False,
    )


def _pinned(addresses: Sequence[str]) -> AbstractResolver:
    import socket

    from aiohttp.abc import AbstractResolver, ResolveResult

    def result(host: str, port: int, address: str) -> ResolveResult:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return ResolveResult(
            hostname=host, host=address, port=port, family=family, proto=0, flags=flags
        )

    class Pinned(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            return [result(host, port, address) for address in addresses]

        async def close(self) -> None:
            pass

    return Pinned()


# --- answers ---------------------------------------------------------------------------------

_LATER: Final = frozenset({408, 409, 425, 429})
"""Statuses below 500 for which a retry may help."""
_LONGEST_EXCERPT: Final = 300


async def _read(request: _Request, response: ClientResponse, most: int) -> bytes:
    if response.status >= 400:
        most, is_cut = min(most, 4 * _LONGEST_EXCERPT), True
    else:
        is_cut = False
    data = bytearray()
    async for piece in response.content.iter_chunked(16 * 1024):
        data += piece
        if len(data) > most:
            if is_cut:
                break
            raise ToolError(
                f"The answer of {_shown(request.url)} has over {most} bytes, the most that is "
                "taken. Ask for less.",
                code="answer-too-large",
            )
    return bytes(data[:most])


def _answer(request: _Request, response: ClientResponse, data: bytes) -> HttpAnswer:
    if response.status >= 400:
        raise _failure(request, response.status, data)
    kind = response.content_type.lower()
    text = _text(request, kind, response.charset, data)
    value: JsonValue = None
    is_json = False
    if kind == "application/json" or kind.endswith("+json"):
        with contextlib.suppress(ValueError):  # said to be JSON and is not: the text may tell why
            value, is_json = parse_json(text), True
    headers: dict[str, str] = {}
    for name, item in response.headers.items():
        key = name.lower()
        if key not in ("set-cookie", "set-cookie2"):
            headers[key] = f"{headers[key]}, {item}" if key in headers else item
    return HttpAnswer(
        response.status, _shown(request.url), headers, value, None if is_json else text
    )


_CHARSETS: Final[Mapping[str, str]] = {
    name: codec
    for codec, names in {
        "ascii": "us-ascii ascii",
        "iso8859-1": "iso-8859-1 latin1 latin-1",
        **{f"iso8859-{part}": f"iso-8859-{part}" for part in (*range(2, 12), *range(13, 17))},
        **{f"cp{page}": f"windows-{page} cp{page}" for page in range(1250, 1259)},
        "utf-16": "utf-16",
        "utf-16-le": "utf-16le",
        "utf-16-be": "utf-16be",
        "shift_jis": "shift-jis sjis x-sjis windows-31j",
        "euc_jp": "euc-jp x-euc-jp",
        "gb18030": "gb18030 gbk gb2312",
        "big5": "big5",
        "euc_kr": "euc-kr ks-c-5601-1987",
        "koi8_r": "koi8-r",
        "koi8_u": "koi8-u",
    }.items()
    for name in names.split()
}
"""Python codecs of the charsets that servers may name, all of which take linear time. A server
chooses the charset, and other codecs take quadratic time (punycode) or do something else
altogether.
"""


def _codec(charset: str) -> str:
    """The codec of a charset; UTF-8 for one that is not listed."""
    return _CHARSETS.get(charset.strip().lower().replace("_", "-"), "utf-8")


def _text(request: _Request, kind: str, charset: str | None, data: bytes) -> str:
    try:
        if charset is not None or kind.startswith("text/"):
            return data.decode(_codec(charset or "utf-8"), "replace")
        return data.decode()
    except UnicodeDecodeError:
        raise ToolError(
            f"The answer of {_shown(request.url)} is not text ({kind}).", code="not-text"
        ) from None


def _failure(request: _Request, status: int, data: bytes) -> Exception:
    text = " ".join(data.decode("utf-8", "replace").split())
    for part in _confidential(request.headers):  # a server may tell what it was sent
        text = text.replace(part, "…")
    said = f": {text[:_LONGEST_EXCERPT]}" if text else ""
    message = f"{request.method} {_shown(request.url)} gave status {status}{said}"
    if status >= 500 or status in _LATER:
        return HttpStatusError(message, status)
    return ToolError(message, code=f"http-{status}")


def _confidential(headers: Mapping[str, str]) -> Sequence[str]:
    """Header values, and words in them, that may be secrets; the longest first."""
    values = [value for name, value in headers.items() if name.lower() not in _KEPT_ELSEWHERE]
    words = [word for value in values for word in (value, *value.split()) if len(word) >= 4]
    return sorted(words, key=len, reverse=True)
