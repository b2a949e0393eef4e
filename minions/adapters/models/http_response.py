"""An HTTP/1.1 response, read out of the bytes of a connection as they come. No I/O here.

Source: RFC 9112 (framing), RFC 9110 (content encodings).
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

__all__ = ["BadResponseError", "BrokenBodyError", "ResponseHead", "ResponseReader"]

_MOST_HEAD_BYTES: Final = 262_144
_MOST_LINE_BYTES: Final = 8_192
"""Of a chunk's size with its extensions, and of a trailer."""
_PIECE_BYTES: Final = 65_536
"""Of what is decompressed at a time: a few bytes can stand for very many."""

_STATUS_LINE: Final = re.compile(r"HTTP/1\.([01]) ([1-9][0-9]{2})(?: (.*))?")
_HEAD_END: Final = re.compile(rb"\r?\n\r?\n")
_FOLD: Final = re.compile(r"\r?\n[ \t]+")
_FIRST_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_NEXT_SIZE: Final = re.compile(rb"\r?\n([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_BLANKS: Final = " \t\r"
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


class BadResponseError(Exception):
    """What came is no HTTP response that can be read; says why, and quotes nothing of it."""


class BrokenBodyError(Exception):
    """A body that ended before its time, or that cannot be decoded; says how."""


class ResponseHead(Struct, frozen=True):
    """Status line and headers."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """By name in lower case; one that comes several times is joined by commas."""
    keeps_connection: bool
    """Whether the server lets the connection serve another request."""


class ResponseReader:
    """Takes the bytes of one response: first its head, then its body.

    The body is kept until it is taken; whoever feeds asks `buffered` and stops for a while.
    """

    def __init__(self, *, has_body: bool = True) -> None:
        """Expect a response.

        Args:
            has_body: False for the answer to CONNECT, behind which other bytes follow.
        """
        self.head: ResponseHead | None = None
        self.is_complete = False
        """Whether the whole body is here."""
        self.has_leftover = False
        """Whether bytes came behind the body, which nobody asked for."""
        self.buffered = 0
        """Bytes of the body that nobody took yet."""
        self._has_body = has_body
        self._rest = b""
        """Came, but is not understood without what follows."""
        self._looked = 0
        """How much of `_rest` was searched for the end of the head."""
        self._left: int | None = None
        """Bytes until the end of the body or of the chunk; None: the connection's end is its."""
        self._is_chunked = False
        self._size_line = _FIRST_SIZE
        """How the next chunk begins."""
        self._is_in_trailers = False
        self._pieces: deque[bytes] = deque()
        self._inflater: _Inflater | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether the whole body came and was taken."""
        return self.is_complete and not self._pieces and self._inflater is None

    def feed(self, data: bytes) -> None:
        """Bytes as they came.

        Raises:
            BadResponseError: They are no HTTP.
        """
        if self.head is None:
            data = self._read_head(self._rest + data)
            if self.head is None:
                return
        if self.is_complete:
            self.has_leftover = self.has_leftover or bool(data)
        elif self._is_chunked:
            self._read_chunks(self._rest + data if self._rest else data)
        else:
            self._read_plain(data)

    def feed_end(self) -> bool:
        """The connection ended; whether the response is whole."""
        if self.head is not None and self._left is None and not self._is_chunked:
            self.is_complete = True
        return self.is_complete

    def take(self) -> bytes:
        """What is there of the body, decompressed; nothing: there is no more yet.

        Raises:
            BrokenBodyError: It cannot be decompressed.
        """
        if self._inflater is None:
            return self._take_raw()
        piece = self._inflater.take()
        while not piece and self._pieces:
            piece = self._inflater.feed(self._take_raw())
        if not piece and self.is_complete:
            self._inflater.check_end()
            self._inflater = None
        return piece

    def _take_raw(self) -> bytes:
        if len(self._pieces) == 1:
            data = self._pieces.popleft()
        else:
            data = b"".join(self._pieces)
            self._pieces.clear()
        self.buffered = 0
        return data

    def _keep(self, data: bytes) -> None:
        if data:
            self._pieces.append(data)
            self.buffered += len(data)

    # --- the head --------------------------------------------------------------------------------

    def _read_head(self, data: bytes) -> bytes:
        """Take the head off, if it is whole; the bytes behind it."""
        if not data.startswith(b"HTTP/1."[: len(data)]):
            raise BadResponseError("it does not begin with a status line")
        end = _HEAD_END.search(data, max(0, self._looked - 3))
        if end is None or end.end() > _MOST_HEAD_BYTES:
            if len(data) > _MOST_HEAD_BYTES:
                raise BadResponseError(f"its headers are larger than {_MOST_HEAD_BYTES} bytes")
            self._rest, self._looked = data, len(data)
            return b""
        self._rest, self._looked = b"", 0
        head, rest = _parsed(data[: end.start()].decode("latin-1")), data[end.end() :]
        if head.status < 200:  # tells of an answer that is to come
            if head.status == 101:
                raise BadResponseError("it changes to another protocol, which nobody asked for")
            return self._read_head(rest) if rest else rest
        self._frame(head)
        self.head = head
        return rest

    def _frame(self, head: ResponseHead) -> None:
        """How the body ends."""
        coding = head.headers.get("transfer-encoding")
        if not self._has_body or head.status in (204, 304):
            self._left, self.is_complete = 0, True
            return
        if coding is not None:
            if coding.lower() != "chunked":
                raise BadResponseError("its transfer encoding was not asked for")
            self._is_chunked = True
        elif (length := head.headers.get("content-length")) is not None:
            self._left = _length(length)
            self.is_complete = self._left == 0
        self._inflater = _inflater(head.headers.get("content-encoding", ""))

    # --- the body --------------------------------------------------------------------------------

    def _read_plain(self, data: bytes) -> None:
        if self._left is None:
            self._keep(data)
            return
        self.has_leftover = len(data) > self._left
        data = data[: self._left]
        self._left -= len(data)
        self.is_complete = self._left == 0
        self._keep(data)

    def _read_chunks(self, data: bytes) -> None:
        at, pieces = 0, []
        while not self._is_in_trailers:
            if self._left:
                piece = data[at : at + self._left]
                pieces.append(piece)
                self._left -= len(piece)
                at += len(piece)
                if self._left:
                    break
            size = _size_line(self._size_line, data, at)
            if size is None:
                break
            at = size.end()
            self._left, self._size_line = int(size[1], 16), _NEXT_SIZE
            self._is_in_trailers = self._left == 0
        self._keep(b"".join(pieces))
        self._rest = data[at:]
        if self._is_in_trailers:
            self._read_trailers()

    def _read_trailers(self) -> None:
        """To the empty line; they say nothing that anybody reads."""
        while (end := self._rest.find(b"\n")) >= 0:
            line, self._rest = self._rest[:end], self._rest[end + 1 :]
            if line in (b"", b"\r"):
                self.is_complete, self.has_leftover = True, bool(self._rest)
                return
        if len(self._rest) > _MOST_LINE_BYTES:
            raise BadResponseError(f"a trailer is larger than {_MOST_LINE_BYTES} bytes")


def _size_line(pattern: re.Pattern[bytes], data: bytes, at: int) -> re.Match[bytes] | None:
    """The line before a chunk; None: it is not whole."""
    found = pattern.match(data, at)
    if found is None and (data.find(b"\n", at + 2) >= 0 or len(data) - at > _MOST_LINE_BYTES):
        raise BadResponseError("a chunk of its body has no size")
    return found


def _parsed(text: str) -> ResponseHead:
    first, _, rest = text.partition("\n")
    status = _STATUS_LINE.fullmatch(first.rstrip("\r"))
    if status is None:
        raise BadResponseError("it does not begin with a status line")
    headers: dict[str, str] = {}
    for line in _FOLD.sub(" ", rest).split("\n") if rest else ():
        name, colon, value = line.partition(":")
        name, value = name.strip(_BLANKS).lower(), value.strip(_BLANKS)
        if not (name and colon):
            raise BadResponseError("a line of its headers has no name")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    options = headers.get("connection", "").lower()
    return ResponseHead(
        status=int(status[2]),
        reason=status[3] or "",
        headers=headers,
        keeps_connection="close" not in options and (status[1] == "1" or "keep-alive" in options),
    )


def _length(said: str) -> int:
    """Of a body; a server may say the same length twice, but not two lengths."""
    (length, *others) = {part.strip() for part in said.split(",")}
    if others or not re.fullmatch(r"[0-9]{1,18}", length):
        raise BadResponseError("its content length is no number")
    return int(length)


# --- compressed bodies ---------------------------------------------------------------------------


class _Inflater:
    """Decompresses a piece at a time, so that nobody's few bytes fill the memory."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._has_begun = False
        self._may_hold_more = False
        """Whether the last piece was a full one: zlib may hold bytes that found no room in it."""

    def feed(self, data: bytes) -> bytes:
        """At most a piece; the rest comes with `take`."""
        self._has_begun = True
        try:
            piece = self._inner.decompress(self._inner.unconsumed_tail + data, _PIECE_BYTES)
        except zlib.error as error:
            raise BrokenBodyError(f"its compressed body cannot be read ({error})") from error
        self._may_hold_more = len(piece) == _PIECE_BYTES
        return piece

    def take(self) -> bytes:
        """The next piece of what was fed."""
        return self.feed(b"") if self._may_hold_more else b""

    def check_end(self) -> None:
        """Whether it came to its end; an empty body needs none."""
        if self._has_begun and not self._inner.eof:
            raise BrokenBodyError("its compressed body ended too soon")


def _inflater(coding: str) -> _Inflater | None:
    """For a server that compresses though nobody asked for it."""
    coding = coding.strip().lower()
    if coding in ("", "identity"):
        return None
    if coding in ("gzip", "x-gzip", "deflate"):
        return _Inflater()
    raise BadResponseError("its content encoding was not asked for")
