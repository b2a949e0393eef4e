"""The parser of server-sent events: bytes in, the `data` of each event out."""

from __future__ import annotations

from collections.abc import Sequence


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

    def _end_event(self, events: list[bytes]) -> None:
        if self._data:
            events.append(b"\n".join(self._data))
            self._data = []
