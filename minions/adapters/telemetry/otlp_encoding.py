"""Spans in the binary form of OTLP: the messages `trace.v1`, `common.v1` and `resource.v1`.

The numbers of fields are those of opentelemetry-proto 1.x, which are stable. Nothing is sent here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from sys import getsizeof
from typing import Final, TypeAlias

from attrs import define, field, frozen

Values: TypeAlias = Mapping[str, object]
"""Attributes: texts, numbers, yes and no, bytes, sequences and mappings of these."""

_LOCAL: Final = b"\x85\x01\x00\x01\x00\x00"
"""The flags of a span: it is told whether its parent is in another process, and it is not."""
_REMOTE: Final = b"\x85\x01\x00\x03\x00\x00"
_LONGEST_KEPT: Final = 128
"""Characters of a text whose encoded attribute is kept for the next span."""
_MOST_KEPT: Final = 2_048
_DEEPEST: Final = 16
"""Levels of sequences and mappings in one attribute."""
_MISMATCH: Final = (TypeError, ValueError, OverflowError)
_INT64: Final = 1 << 63
_SHORT: Final = tuple(bytes((size,)) for size in range(128))
_NO_STATUS: Final = b"\x7a\x00"
_USUAL_SIZE: Final = 512
"""Bytes of a span without its long texts."""
_TIMES: Final = struct.Struct("<BQBQBB")
"""Times and kind, each behind the tag of its field."""


@frozen
class SpanEvent:
    """Something that happened at one time of a span."""

    name: str
    time_ns: int
    attributes: Values
    dropped: int = 0
    """Attributes beyond the most that are recorded."""


@frozen
class SpanLink:
    """Another span that one has to do with."""

    trace_id: bytes
    """16 bytes, as they are sent."""
    span_id: bytes
    """8 bytes."""
    attributes: Values
    is_remote: bool
    dropped: int = 0
    """Attributes beyond the most that are recorded."""


@define(kw_only=True, eq=False)
class SpanRecord:
    """What is known of a span. Only the code that makes the span changes it."""

    scope: bytes
    """Who made it, as `encode_scope` gives it."""
    trace_id: bytes
    """16 bytes, as they are sent; ids of spans have 8."""
    span_id: bytes
    parent_id: bytes | None
    """None: the span begins its trace."""
    is_parent_remote: bool
    trace_state: str
    name: str
    kind: int
    """As in the protocol: 1 internal, 2 server, 3 client, 4 producer, 5 consumer."""
    start_ns: int
    """Nanoseconds since 1970."""
    attributes: dict[str, object] = field(factory=dict)
    end_ns: int = 0
    status: int = 0
    """As in the protocol: 0 unset, 1 ok, 2 error."""
    status_text: str | None = None
    events: Sequence[SpanEvent] = ()
    links: Sequence[SpanLink] = ()
    dropped_attributes: int = 0
    dropped_events: int = 0
    dropped_links: int = 0


def rough_size(span: SpanRecord) -> int:
    """Bytes of memory of a span, by its texts: 3 of them are at most 4 bytes of its message."""
    size = _USUAL_SIZE
    for value in span.attributes.values():
        if type(value) is str:
            if len(value) > _LONGEST_KEPT:
                size += getsizeof(value)
        elif type(value) is tuple:
            size += sum(map(getsizeof, value))
    for event in span.events:
        size += sum(map(getsizeof, event.attributes.values()))
    return size


def encode_resource(attributes: Values, schema_url: str = "") -> bytes:
    """What all spans of a process have in common, as `encode_request` takes it."""
    resource = _sized(b"\x0a", _attributes(b"\x0a", attributes, None)[0])
    return resource + _text(b"\x1a", schema_url)


def encode_scope(name: str, version: str, schema_url: str, attributes: Values) -> bytes:
    """Who made spans, as `SpanRecord` has it."""
    texts = _text(b"\x0a", name) + _text(b"\x12", version)
    scope = _sized(b"\x0a", texts + _attributes(b"\x1a", attributes, None)[0])
    return scope + _text(b"\x1a", schema_url)


def encode_request(
    resource: bytes, spans: Iterable[SpanRecord], longest: int | None = None
) -> bytes:
    """One message `ExportTraceServiceRequest`; spans of one scope that stand together share it.

    Attributes that the protocol has no form for are counted as dropped.

    Args:
        longest: Characters of the texts in attributes; None: all of them.
    """
    parts = [resource]
    for scope, group in groupby(spans, key=attrgetter("scope")):
        bodies = b"".join([_sized(b"\x12", _span(each, longest)) for each in group])
        parts.append(_sized(b"\x12", scope + bodies))
    return _sized(b"\x0a", b"".join(parts))


# --- parts of a span -----------------------------------------------------------------------------


def _span(span: SpanRecord, longest: int | None) -> bytes:
    """One message `Span`."""
    attributes, mismatches = _attributes(b"\x4a", span.attributes, longest)
    name = span.name
    parts = [
        b"\x0a\x10" + span.trace_id + b"\x12\x08" + span.span_id,
        _TIMES.pack(0x39, span.start_ns, 0x41, span.end_ns, 0x30, span.kind),
        _kept_text(b"\x2a", name) if len(name) <= _LONGEST_KEPT else _text(b"\x2a", name),
        _REMOTE if span.is_parent_remote else _LOCAL,
        attributes,
        _status(span.status, span.status_text) if span.status else _NO_STATUS,
    ]
    if span.parent_id is not None:
        parts.append(b"\x22\x08" + span.parent_id)
    if span.trace_state:
        parts.append(_text(b"\x1a", span.trace_state))
    dropped = span.dropped_attributes or span.dropped_events or span.dropped_links
    if span.events or span.links or mismatches or dropped:
        parts += _rare_parts(span, mismatches, longest)
    return b"".join(parts)


def _rare_parts(span: SpanRecord, mismatches: int, longest: int | None) -> Iterator[bytes]:
    """Events, links, and how much was dropped."""
    if dropped := span.dropped_attributes + mismatches:
        yield b"\x50" + _number(dropped)
    for event in span.events:
        yield _sized(b"\x5a", _event(event, longest))
    if span.dropped_events:
        yield b"\x60" + _number(span.dropped_events)
    for link in span.links:
        yield _sized(b"\x6a", _link(link, longest))
    if span.dropped_links:
        yield b"\x70" + _number(span.dropped_links)


def _event(event: SpanEvent, longest: int | None) -> bytes:
    attributes, mismatches = _attributes(b"\x1a", event.attributes, longest)
    head = b"\x09" + event.time_ns.to_bytes(8, "little") + _text(b"\x12", event.name)
    dropped = event.dropped + mismatches
    return head + attributes + (b"\x20" + _number(dropped) if dropped else b"")


def _link(link: SpanLink, longest: int | None) -> bytes:
    attributes, mismatches = _attributes(b"\x22", link.attributes, longest)
    flags = b"\x35" + (_REMOTE if link.is_remote else _LOCAL)[2:]
    head = b"\x0a\x10" + link.trace_id + b"\x12\x08" + link.span_id + flags
    dropped = link.dropped + mismatches
    return head + attributes + (b"\x28" + _number(dropped) if dropped else b"")


def _status(status: int, text: str | None) -> bytes:
    told = _text(b"\x12", text) if text else b""
    return _sized(b"\x7a", told + (b"\x18" + _number(status) if status else b""))


# --- attributes ----------------------------------------------------------------------------------


def _attributes(tag: bytes, attributes: Values, longest: int | None) -> tuple[bytes, int]:
    """All of them, each as a field of that tag; and how many the protocol has no form for."""
    items = tuple(attributes.items())  # another thread may add one just now
    if longest is None:
        try:
            parts = [
                _kept_attribute(tag, key, value)
                if (type(value) is str and len(value) <= _LONGEST_KEPT) or type(value) is int
                else _kept_list(tag, key, value)
                if type(value) is tuple and _is_one_word(value)
                else _attribute(tag, key, value, None)
                for key, value in items
            ]
            return b"".join(parts), 0
        except _MISMATCH:
            pass
    return _fitting_attributes(tag, items, longest)


def _fitting_attributes(
    tag: bytes, items: Sequence[tuple[str, object]], longest: int | None
) -> tuple[bytes, int]:
    """The attributes that the protocol has a form for, and how many it has none for."""
    parts: list[bytes] = []
    for key, value in items:
        with suppress(*_MISMATCH):
            parts.append(_attribute(tag, key, value, longest))
    return b"".join(parts), len(items) - len(parts)


def _attribute(tag: bytes, key: str, value: object, longest: int | None) -> bytes:
    named = _kept_text(b"\x0a", key) if len(key) <= _LONGEST_KEPT else _text(b"\x0a", key)
    return _sized(tag, named + _sized(b"\x12", _value(value, longest)))


@lru_cache(maxsize=_MOST_KEPT)
def _kept_attribute(tag: bytes, key: str, value: str | int) -> bytes:
    """Numbers and short texts, which come again."""
    if isinstance(value, str) and len(key) <= _LONGEST_KEPT:
        text, named = value.encode("utf-8", "replace"), _kept_text(b"\x0a", key)
        size = len(text)
        if size + len(named) < 124:  # ids of runs are new in each: written without further calls
            within = named + b"\x12" + _SHORT[size + 2] + b"\x0a" + _SHORT[size] + text
            return tag + _SHORT[len(within)] + within
    return _attribute(tag, key, value, None)


def _is_one_word(values: tuple[object, ...]) -> bool:
    return len(values) == 1 and type(values[0]) is str and len(values[0]) <= _LONGEST_KEPT


@lru_cache(maxsize=_MOST_KEPT)
def _kept_list(tag: bytes, key: str, texts: tuple[str, ...]) -> bytes:
    """A list of one short text: why an answer ended."""
    return _attribute(tag, key, texts, None)


def _value(value: object, longest: int | None, depth: int = 0) -> bytes:
    """One message `AnyValue`.

    Raises:
        TypeError: The protocol has no form for the value.
        ValueError: The number is too large, or the value too deep.
    """
    if depth > _DEEPEST:
        raise ValueError("too deep")
    if value is None:
        return b""
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, str):
        return _text(b"\x0a", value[:longest])
    if isinstance(value, int):
        return b"\x18" + _signed(value)
    if isinstance(value, float):
        return b"\x21" + struct.pack("<d", value)
    if isinstance(value, bytes):
        return _sized(b"\x3a", value[:longest])
    if isinstance(value, (tuple, list, Sequence)):  # the first two are found without a search
        items = [_sized(b"\x0a", _value(each, longest, depth + 1)) for each in value]
        return _sized(b"\x2a", b"".join(items))
    if isinstance(value, Mapping):
        return _sized(b"\x32", _pairs(value, longest, depth + 1))
    raise TypeError(type(value).__name__)


def _pairs(values: Mapping[object, object], longest: int | None, depth: int) -> bytes:
    pairs = [
        _text(b"\x0a", str(key)) + _sized(b"\x12", _value(value, longest, depth))
        for key, value in values.items()
    ]
    return b"".join([_sized(b"\x0a", pair) for pair in pairs])


# --- the wire ------------------------------------------------------------------------------------


def _signed(number: int) -> bytes:
    if not -_INT64 <= number < _INT64:
        raise ValueError("more than 64 bits")
    return _number(number & (2 * _INT64 - 1))


def _number(number: int) -> bytes:
    """A varint: seven bits a byte, the lowest first."""
    if number < 128:
        return _SHORT[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _sized(tag: bytes, body: bytes) -> bytes:
    size = len(body)
    return tag + (_SHORT[size] if size < 128 else _number(size)) + body


def _text(tag: bytes, text: str) -> bytes:
    # The protocol takes UTF-8 only, and texts of models may hold halves of surrogate pairs.
    return _sized(tag, text.encode("utf-8", "replace"))


@lru_cache(maxsize=_MOST_KEPT)
def _kept_text(tag: bytes, text: str) -> bytes:
    """Short names and keys, which come again."""
    return _text(tag, text)
