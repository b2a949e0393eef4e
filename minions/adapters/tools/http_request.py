"""Requests of the toolset `http`: URLs and headers are validated, redirects change them.

A server that is not the one that was asked for gets no header that may hold a secret.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from attrs import evolve, frozen

from minions.data.errors import ToolError
from minions.data.json_values import JsonValue

if TYPE_CHECKING:
    from yarl import URL

    from minions.adapters.http.http_pool import HttpResponse


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
