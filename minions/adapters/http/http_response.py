"""An HTTP/1.1 response, read out of the bytes of a connection as they come. No I/O here.

The bytes are parsed by httptools (llhttp). This module keeps what it found, bounds it, refuses what
was not asked for, and decompresses.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from httptools import HttpParserError, HttpResponseParser
from msgspec import Struct

_MOST_HEAD_BYTES: Final = 262_144
_MOST_IDLE_BYTES: Final = 65_536
"""Bytes of chunk extensions and trailers between two bytes of a body; they are ignored."""
_PIECE_BYTES: Final = 65_536
"""Bytes that are decompressed at a time: a few compressed bytes can expand to very many."""
_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


class BadResponseError(Exception):
    """The bytes are no HTTP response that can be read; says why, and quotes nothing of them."""


class BrokenBodyError(Exception):
    """A body that ended before its time, or that cannot be decoded; says how."""


class ResponseHead(Struct, frozen=True):
    """Status line and headers."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """Values by lower-case name; repeated headers are joined by commas."""
    keeps_connection: bool
    """Whether the server lets the connection serve another request."""


def _closes_in_silence(headers: Mapping[str, str]) -> bool:
    """Whether the server closes the connection after this response, although it does not say so.

    llama.cpp does after each stream, while the next request may be on its way.
    """
    if "server" not in headers or not headers["server"].startswith("llama.cpp"):
        return False
    return headers.get("content-type", "").startswith("text/event-stream")


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
        self._parser = HttpResponseParser(self)
        # What servers in use get wrong and what cannot be read in two ways: as other clients do.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._reason = ""
        self._headers: dict[str, str] = {}
        self._idle_bytes = 0
        """Fed since the last byte of a body, or since the beginning."""
        self._ends_with_connection = False
        self._problem: BadResponseError | None = None
        """Found by a callback; raised once the parser has returned."""
        self._pieces: deque[bytes] = deque()
        self._inflater: _Inflater | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether the whole body came and was taken."""
        return self.is_complete and not self._pieces and self._inflater is None

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the connection.

        Raises:
            BadResponseError: They are not HTTP, or exceed a bound.
        """
        if self.is_complete:
            self.has_leftover = self.has_leftover or bool(data)
            return
        self._idle_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            if self._problem is None and not self.is_complete:
                raise BadResponseError(str(error) or "it cannot be parsed") from error
            self.has_leftover = self.is_complete  # bytes behind the body are no second response
        if self._problem is not None:
            raise self._problem
        self._check_sizes()

    def _check_sizes(self) -> None:
        if self.head is None and self._idle_bytes > _MOST_HEAD_BYTES:
            raise BadResponseError(f"its headers are larger than {_MOST_HEAD_BYTES} bytes")
        if self.head is not None and not self.is_complete and self._idle_bytes > _MOST_IDLE_BYTES:
            raise BadResponseError(
                f"more than {_MOST_IDLE_BYTES} bytes of its framing hold no body"
            )

    def feed_end(self) -> bool:
        """Note the end of the connection; returns whether the response is complete."""
        self.is_complete = self.is_complete or self._ends_with_connection
        return self.is_complete

    def take(self) -> bytes:
        """The bytes of the body that are there, decompressed; empty: no more have come yet.

        Raises:
            BrokenBodyError: They cannot be decompressed.
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

    # --- called by the parser --------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """The start of a response; a second one was never requested."""
        self.has_leftover = self.is_complete

    def on_status(self, reason: bytes) -> None:
        """The reason phrase of the status line."""
        self._reason += str(reason, "latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; trailers are ignored."""
        if self.head is not None:
            return
        key, text = str(name.lower(), "latin-1"), str(value.strip(b" \t"), "latin-1")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        """The end of the headers: of the response, or of an interim one (1xx)."""
        if self.head is not None:
            return
        status = self._parser.get_status_code()
        if status < 200:  # interim: the final response follows
            if status == 101:
                self._refuse("it changes to another protocol, which nobody asked for")
            self._reason, self._headers = "", {}
            return
        coding = self._headers.get("transfer-encoding")
        if coding is not None and coding.lower() != "chunked":
            self._refuse("its transfer encoding was not asked for")
        self._ends_with_connection = coding is None and "content-length" not in self._headers
        if "content-encoding" in self._headers:
            try:
                self._inflater = _inflater(self._headers["content-encoding"])
            except BadResponseError as error:
                self._problem = self._problem or error
        self._idle_bytes = 0
        if self._problem is None:  # else nobody takes what came with it for an answer
            self.is_complete = not self._has_body
            self.head = ResponseHead(
                status=status,
                reason=self._reason.strip(),
                headers=self._headers,
                keeps_connection=self._parser.should_keep_alive()
                and not _closes_in_silence(self._headers),
            )

    def on_body(self, data: bytes) -> None:
        """The next bytes of the body."""
        if not self.is_complete:
            self._idle_bytes = 0
            self._pieces.append(data)
            self.buffered += len(data)

    def on_message_complete(self) -> None:
        """The end of the response, or of an interim one."""
        if self.head is not None:
            self.is_complete = True

    def _refuse(self, why: str) -> None:
        self._problem = self._problem or BadResponseError(why)


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


# --- the parser of server-sent events ------------------------------------------------------------


class EventParser:
    """Splits bytes into the `data` of events. Source: WHATWG HTML, server-sent events."""

    def __init__(self) -> None:
        self.has_events = False
        """Whether any line of data was received."""
        self._parts: list[bytes] = []
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Sequence[bytes]:
        """Take the next bytes; returns the events that are now complete."""
        # A long line comes in many chunks: joining them each time would cost quadratic time.
        if b"\n" not in chunk and b"\r" not in chunk:
            self._parts.append(chunk)
            return ()
        if self._parts:
            self._parts.append(chunk)
            chunk = b"".join(self._parts)
        held = b""
        if b"\r" in chunk:
            # A chunk may end between \r and \n, so a lone \r waits for what follows.
            if chunk.endswith(b"\r"):
                chunk, held = chunk[:-1], b"\r"
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = chunk.split(b"\n\n")
        events: list[bytes] = []
        for block in blocks:
            # Nearly every event is one line of data.
            if block.startswith(b"data: ") and b"\n" not in block and not self._data:
                self.has_events = True
                events.append(block[6:])
            else:
                self._take_block(block, events)
        lines, newline, rest = rest.rpartition(b"\n")
        if newline:
            self._take_lines(lines, events)
        self._parts = [part for part in (rest, held) if part]
        return events

    def rest(self) -> Sequence[bytes]:
        """The last event, if the server omitted the blank line after it."""
        events: list[bytes] = []
        left = b"".join(self._parts).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._take_block(left.removesuffix(b"\n"), events)
        self._parts = []
        return events

    def _take_block(self, block: bytes, events: list[bytes]) -> None:
        """Take lines up to and including a blank one."""
        self._take_lines(block, events)
        self._end_event(events)

    def _take_lines(self, lines: bytes, events: list[bytes]) -> None:
        for line in lines.split(b"\n"):
            if not line:
                self._end_event(events)
            elif line.removeprefix(b"\xef\xbb\xbf").startswith(b"data:"):
                self.has_events = True
                self._data.append(line.partition(b":")[2].removeprefix(b" "))
            elif b"data: {" in line or b"data:{" in line:
                # A gateway lost one stream within a line and continued with another one. The event
                # must not vanish: as it is, it is no JSON.
                self.has_events = True
                self._data.append(line)

    def _end_event(self, events: list[bytes]) -> None:
        if self._data:
            events.append(b"\n".join(self._data))
            self._data = []
