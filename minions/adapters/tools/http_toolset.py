"""The toolset `http`: `get` and `post` to hosts that the recipe lists, within limits.

Which addresses a request may reach is decided in `request_rules`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from datetime import datetime
from email.message import Message
from typing import TYPE_CHECKING, Annotated, Final

from attrs import evolve, field, frozen

from minions.adapters.http.request_rules import (
    HOST_PATTERN,
    AllowedHost,
    Resolve,
    check_address,
    resolve_by_system,
)
from minions.contracts.retry_config import may_pass
from minions.contracts.tools import Effect, Reads, Tool, ToolScope, Toolset
from minions.data.errors import ToolError, UsageError
from minions.data.json_values import JsonValue, parse_json

if TYPE_CHECKING:
    import ssl

    from yarl import URL

    from minions.adapters.http.http_pool import HttpPool, HttpResponse

_MOST_REDIRECTS: Final = 5
_LONGEST_HEADER: Final = 8_190
"""Bytes of a header of an answer."""
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
    answer_headers: Sequence[str] = ()


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
        "answer_headers": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[A-Za-z0-9-]{1,100}$"},
            "maxItems": 20,
            "default": [],
            "description": "Further headers of answers to give, such as x-total-count.",
        },
    },
    "required": ["allow"],
    "additionalProperties": False,
}


def built_in_http(_now: Callable[[], datetime]) -> Toolset:
    """The toolset under its usual name, for every recipe."""
    return http_toolset()


def http_toolset(resolve: Resolve = resolve_by_system) -> Toolset:
    """The tools `get` (pure) and `post` (once, or idempotent by the option).

    Args:
        resolve: Resolves host names to addresses.
    """
    certificates = _Certificates()

    def open_tools(options: Mapping[str, JsonValue], prefix: str) -> Sequence[Tool]:
        from minions.data.codec import decode

        checked = decode(options, _Options)
        _refuse_cookies(checked.answer_headers)
        return _tools(
            _HttpTools(checked, resolve, certificates), prefix=f"{prefix}__" if prefix else ""
        )

    unused = _HttpTools(_Options(allow=[]), resolve, certificates)
    return Toolset(
        name="http",
        description="Ask web servers that the recipe lists.",
        options=_OPTIONS,
        specs=tuple(tool.spec for tool in _tools(unused, prefix="")),
        open=open_tools,
        operator_options=frozenset({"allow_private"}),
    )


def _refuse_cookies(names: Sequence[str]) -> None:
    if cookies := [name for name in names if name.lower() in COOKIES]:
        raise UsageError(
            f"The toolset http has `{cookies[0]}` under `answer_headers`: no recipe gets cookies. "
            "Leave it out.",
            code="bad-header",
        )


def _tools(http: _HttpTools, *, prefix: str) -> Sequence[Tool]:
    from minions.adapters.tools.function_tool import tool

    posting = Effect.IDEMPOTENT if http.options.idempotent else Effect.ONCE
    return (
        tool(name=f"{prefix}get", effect=Effect.PURE, reads=Reads.UNTRUSTED)(http.get),
        tool(name=f"{prefix}post", effect=posting, reads=Reads.UNTRUSTED)(http.post),
    )


_Url = Annotated[str, "http:// or https://, of a host that is allowed."]
_Headers = Annotated[dict[str, str] | None, "Header names and values."]


@frozen
class _HttpTools:
    """The tools' functions. The first paragraph of each docstring is shown to the model."""

    options: _Options
    resolve: Resolve
    certificates: _Certificates
    allowed: tuple[AllowedHost, ...] = field(init=False)
    wanted: frozenset[str] = field(init=False)
    """Further headers of answers, in lower case."""

    @allowed.default
    def _list_allowed(self) -> tuple[AllowedHost, ...]:
        return tuple(AllowedHost.of(text) for text in self.options.allow)

    @wanted.default
    def _find_wanted(self) -> frozenset[str]:
        return frozenset(name.lower() for name in self.options.answer_headers)

    async def get(
        self,
        scope: ToolScope,
        url: _Url,
        headers: _Headers = None,
        query: Annotated[dict[str, JsonValue] | None, "Added to the URL.", _TEXTS] = None,
    ) -> HttpAnswer:
        """Fetch a URL."""
        target = parse_url(url)
        if query:
            target = target.update_query({name: query_text(item) for name, item in query.items()})
        return await self._send(
            HttpRequest(method="GET", url=target, headers=checked_headers(headers or {})), scope
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
        sent = checked_headers(headers or {})
        names = {name.lower() for name in sent}
        if json is not None and body is not None:
            raise ToolError("Give json or body, not both.", code="bad-arguments")
        if self.options.idempotent and "idempotency-key" not in names:
            sent["Idempotency-Key"] = scope.idempotency_key
        data = encoded_body(json, body)
        if data is not None and "content-type" not in names:
            kind = "text/plain; charset=utf-8" if json is None else "application/json"
            sent["Content-Type"] = kind
        request = HttpRequest(method="POST", url=parse_url(url), headers=sent, data=data)
        return await self._send(request, scope)

    async def _send(self, request: HttpRequest, scope: ToolScope) -> HttpAnswer:
        most = min(self.options.max_bytes, scope.max_result_bytes)
        start = request.url
        if scope.trace_headers:
            request = evolve(request, headers={**scope.trace_headers, **request.headers})
        try:
            async with asyncio.timeout(self.options.timeout_s) as deadline:
                return await self._follow_redirects(request, most)
        except TimeoutError as error:
            if not deadline.expired():
                raise ConnectionError(
                    f"{shown_url(start)} cannot be reached: it timed out"
                ) from error
            raise TimeoutError(
                f"{shown_url(start)} did not answer within {self.options.timeout_s:g} s "
                "(the toolset's option `timeout_s`)"
            ) from error

    async def _follow_redirects(self, request: HttpRequest, most: int) -> HttpAnswer:
        for _ in range(_MOST_REDIRECTS + 1):
            found = await self._once(request, most)
            if isinstance(found, HttpAnswer):
                return found
            request = found
        raise ToolError(
            f"More than {_MOST_REDIRECTS} redirects, the last one to {shown_url(request.url)}.",
            code="too-many-redirects",
        )

    async def _once(self, request: HttpRequest, most: int) -> HttpAnswer | HttpRequest:
        """The answer to one request, or the request that a redirect leads to."""
        from minions.adapters.http.http_pool import HttpPool, NoAnswerError
        from minions.adapters.http.http_response import BrokenBodyError

        self._check_target(request.url)
        addresses = await self._addresses(request.url)
        try:
            pool = HttpPool(
                str(request.url),
                _sent_headers(request),
                connect_s=self.options.timeout_s,
                certificates=await self.certificates.of(request.url),
                proxy=None,
                max_requests=1,
                method=request.method,
                addresses=addresses,
            )
            async with _closing(pool):
                response = await pool.post(request.data or b"")
                with contextlib.closing(response):
                    if any(len(value) > _LONGEST_HEADER for value in response.headers.values()):
                        raise NoAnswerError("a header of the answer is too long")
                    if (place := redirect_of(response)) is not None:
                        return redirected(request, response.status, place)
                    data = await read_body(request, response, most)
                    return answer_of(request, response, data, self.wanted)
        except (NoAnswerError, BrokenBodyError) as error:  # these quote nothing of what was sent
            raise ConnectionError(f"{shown_url(request.url)} cannot be asked: {error}") from None
        except (OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
            # A message may quote what was sent, which may hold a secret.
            raise ConnectionError(
                f"{shown_url(request.url)} cannot be asked ({type(error).__name__})"
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
            found = await self._resolve(host, port)
        if not self.options.allow_private:
            for address in found:
                check_address(host, address)
        return found

    async def _resolve(self, host: str, port: int) -> list[str]:
        try:
            found = list(await self.resolve(host, port))
        except (OSError, UnicodeError) as error:
            raise ConnectionError(f"{host} was not found: {error}") from error
        if not found:
            raise ConnectionError(f"{host} was not found: it has no address")
        return found


def _sent_headers(request: HttpRequest) -> dict[str, str]:
    """All headers of the request but those of its content."""
    host = request.url.host_port_subcomponent or ""
    usual = {"Host": host, "Accept": "*/*", "Accept-Encoding": "gzip", "User-Agent": "minions"}
    given = {name.lower() for name in request.headers}
    headers = {name: value for name, value in usual.items() if name.lower() not in given}
    # As bytes of UTF-8: the pool sends one for each character.
    sent = {name: value.encode().decode("latin-1") for name, value in request.headers.items()}
    return {**headers, **sent}


@contextlib.asynccontextmanager
async def _closing(pool: HttpPool) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await pool.close()


class _Certificates:
    """The certificates that are trusted, read once, beside the event loop."""

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None

    async def of(self, url: URL) -> ssl.SSLContext | None:
        """Those for that URL; None: it needs none.

        Raises:
            NoAnswerError: They cannot be read.
        """
        from minions.adapters.http.http_pool import trusted_certificates

        if url.scheme != "https":
            return None
        if self._context is None:
            self._context = await asyncio.to_thread(trusted_certificates)
        return self._context


# --- answers of the toolset `http` ---------------------------------------------------------------


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
    """The headers in `ANSWER_HEADERS` and those that the recipe asks for, by name in lower case."""
    json: JsonValue
    """The body of a JSON answer; null for any other."""
    body: str | None
    """The body of any other answer as text; null for a JSON answer."""


ANSWER_HEADERS: Final = frozenset(
    {
        *("content-disposition", "content-language", "content-type", "etag", "last-modified"),
        *("link", "location", "retry-after"),
    }
)
"""Headers that say something of the answer. Others cost tokens, and many (`date`, `age`, ids of
requests) make two equal answers differ, so that no recorded call could be replayed.
"""
COOKIES: Final = ("set-cookie", "set-cookie2")
"""Headers that no recipe gets."""
_LONGEST_MEDIA_TYPE: Final = 1_000
_MEDIA_TYPE: Final = re.compile(r"[^/;\s]+/[^/;\s]+\s*(;|\Z)")
_LONGEST_EXCERPT: Final = 300


async def read_body(request: HttpRequest, response: HttpResponse, most: int) -> bytes:
    """The body; of an error status only the start, which is shown in the message.

    Raises:
        ToolError: It has more than `most` bytes.
    """
    if response.status >= 400:
        most, is_cut = min(most, 4 * _LONGEST_EXCERPT), True
    else:
        is_cut = False
    data = bytearray()
    while piece := await response.read():
        data += piece
        if len(data) > most:
            if is_cut:
                break
            raise ToolError(
                f"The answer of {shown_url(request.url)} has over {most} bytes, the most that is "
                "taken. Ask for less.",
                code="answer-too-large",
            )
    return bytes(data[:most])


def answer_of(
    request: HttpRequest, response: HttpResponse, data: bytes, wanted: Collection[str] = ()
) -> HttpAnswer:
    """The answer with its body as JSON or text.

    Args:
        wanted: Headers to keep besides `ANSWER_HEADERS`, in lower case.
    Raises:
        ToolError: The model can correct the request: an error status, or a body that is not text.
        HttpStatusError: A status for which a retry may help.
    """
    if response.status >= 400:
        raise _failure(request, response.status, data)
    kind, charset = _media_type(response.headers.get("content-type", ""))
    text = _text(request, kind, charset, data)
    value: JsonValue = None
    is_json = False
    if kind == "application/json" or kind.endswith("+json"):
        with contextlib.suppress(
            ValueError
        ):  # declared as JSON but invalid: the text may be an error message
            value, is_json = parse_json(text), True
    headers = _keep(response.headers, {*ANSWER_HEADERS, *wanted}.difference(COOKIES))
    return HttpAnswer(
        response.status, shown_url(request.url), headers, value, None if is_json else text
    )


def _media_type(said: str) -> tuple[str, str | None]:
    """The type of a body in lower case, and its charset; None: there is none."""
    said = said[:_LONGEST_MEDIA_TYPE]  # parsing its parameters can take quadratic time
    message = Message()
    message["content-type"] = said
    is_type = _MEDIA_TYPE.match(said) is not None
    charset = message.get_param("charset")
    return (
        message.get_content_type().lower() if is_type else "application/octet-stream",
        charset if isinstance(charset, str) else None,
    )


def _keep(headers: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """These headers."""
    kept: dict[str, str] = {}
    for name, item in headers.items():
        key = name.lower()
        if key in names:
            kept[key] = header_text(item)
    return kept


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


def _text(request: HttpRequest, kind: str, charset: str | None, data: bytes) -> str:
    try:
        if charset is not None or kind.startswith("text/"):
            return data.decode(_codec(charset or "utf-8"), "replace")
        return data.decode()
    except UnicodeDecodeError:
        raise ToolError(
            f"The answer of {shown_url(request.url)} is not text ({kind}).", code="not-text"
        ) from None


def _failure(request: HttpRequest, status: int, data: bytes) -> Exception:
    text = " ".join(data.decode("utf-8", "replace").split())
    for part in _confidential(request.headers):  # a server may echo what it was sent
        text = text.replace(part, "…")
    said = f": {text[:_LONGEST_EXCERPT]}" if text else ""
    message = f"{request.method} {shown_url(request.url)} gave status {status}{said}"
    if may_pass(status):
        return HttpStatusError(message, status)
    return ToolError(message, code=f"http-{status}")


def _confidential(headers: Mapping[str, str]) -> Sequence[str]:
    """Header values, and words in them, that may be secrets; the longest first."""
    values = [value for name, value in headers.items() if name.lower() not in HARMLESS_HEADERS]
    words = [word for value in values for word in (value, *value.split()) if len(word) >= 4]
    return sorted(words, key=len, reverse=True)


# --- requests of the toolset `http` --------------------------------------------------------------


@frozen(kw_only=True)
class HttpRequest:
    """One request as it is sent."""

    method: str
    url: URL
    headers: Mapping[str, str]
    data: bytes | None = None


_SET_BY_US: Final = frozenset(
    {
        "host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer",
        "expect", "accept-encoding", "proxy-authorization",
    }
)  # fmt: skip
HARMLESS_HEADERS: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})
"""Request headers that are also sent to another host after a
redirect; all others may hold a secret.
"""
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def parse_url(text: str) -> URL:
    """The URL of a text that a model or recipe wrote.

    Raises:
        ToolError: It is not an absolute http or https URL, or has credentials in it.
    """
    from yarl import URL

    try:
        url = URL(text.strip()).with_fragment(None)
        is_complete = _is_host(url.raw_host or "") and url.port is not None
        str(url.with_query(None))  # parsed once more: what is taken can be shown
    except (ValueError, IndexError):  # yarl raises both
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
    return url


def _is_host(host: str) -> bool:
    """Whether it is the name of a host or an address; only one of IPv6 may have a zone."""
    return bool(host) and host.isascii() and ("%" not in host or ":" in host)


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


def query_text(value: JsonValue) -> str:
    """A value of the query: a text as it is, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
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


def encoded_body(value: JsonValue, body: str | None) -> bytes | None:
    """The bytes of a JSON value, or of a text where that is None; None: no body."""
    if value is not None:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    if body is not None and not _is_unicode(body):
        raise ToolError("The body has half a character (a lone surrogate).", code="bad-text")
    return None if body is None else body.encode()


def shown_url(url: URL) -> str:
    """The URL without the query, which may hold a secret."""
    return str(url.with_query(None).with_fragment(None))


def redirect_of(response: HttpResponse) -> str | None:
    """The target of a redirect as the server wrote it; None: the answer is not a redirect."""
    if response.status in (301, 302, 303, 307, 308):
        place = response.headers.get("location")
        return None if place is None else header_text(place)
    return None


def header_text(value: str) -> str:
    """The text of a header's value, each of whose characters is one byte of UTF-8."""
    return value.encode("latin-1").decode("utf-8", "surrogateescape")


def redirected(request: HttpRequest, status: int, place: str) -> HttpRequest:
    """The request that follows a redirect to `place`.

    Raises:
        ToolError: `place` is not a URL, or leads from https to http.
    """
    from yarl import URL

    try:
        target = parse_url(str(request.url.join(URL(place))))
    except (ValueError, IndexError):
        raise ToolError(
            f"{shown_url(request.url)} redirects to something that is not a URL.", code="bad-url"
        ) from None
    if request.url.scheme == "https" and target.scheme == "http":
        raise ToolError(
            f"{shown_url(request.url)} redirects from https to http, which is not followed.",
            code="redirect-refused",
        )
    request = evolve(request, url=target, headers=_headers_for(request, target))
    if status in (307, 308) or request.method == "GET":
        return request
    headers = {k: v for k, v in request.headers.items() if k.lower() != "content-type"}
    return evolve(request, method="GET", data=None, headers=headers)


def _headers_for(request: HttpRequest, target: URL) -> Mapping[str, str]:
    if target.origin() == request.url.origin():
        return request.headers
    return {k: v for k, v in request.headers.items() if k.lower() in HARMLESS_HEADERS}
