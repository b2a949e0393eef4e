"""Answers of the toolset `http`: read up to a limit, decoded, or turned into an error."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping, Sequence
from email.message import Message
from typing import TYPE_CHECKING, Final

from attrs import frozen

from minions.adapters.tools.http_request import (
    HARMLESS_HEADERS,
    HttpRequest,
    header_text,
    shown_url,
)
from minions.data.errors import ToolError
from minions.data.json_values import JsonValue, parse_json

if TYPE_CHECKING:
    from minions.adapters.http.http_pool import HttpResponse


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
_LATER: Final = frozenset({408, 409, 425, 429})
"""Statuses below 500 for which a retry may help."""
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
    headers = _kept(response.headers, {*ANSWER_HEADERS, *wanted}.difference(COOKIES))
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


def _kept(headers: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
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
    if status >= 500 or status in _LATER:
        return HttpStatusError(message, status)
    return ToolError(message, code=f"http-{status}")


def _confidential(headers: Mapping[str, str]) -> Sequence[str]:
    """Header values, and words in them, that may be secrets; the longest first."""
    values = [value for name, value in headers.items() if name.lower() not in HARMLESS_HEADERS]
    words = [word for value in values for word in (value, *value.split()) if len(word) >= 4]
    return sorted(words, key=len, reverse=True)
