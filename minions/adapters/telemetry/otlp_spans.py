"""`OtlpTracerProvider`: spans that are handed on when they end, to be written in the form of OTLP.

It does what the SDK's provider does for spans that go to one collector, for a fourth of the time.
There are no processors and no exporters; the sampler and the limits are the SDK's.
"""

from __future__ import annotations

import random
import struct
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from sys import getsizeof
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from attrs import define, field, frozen
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, ParentBased
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.util.types import AnyValue, Attributes

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
    resource = _add_size(b"\x0a", _attributes(b"\x0a", attributes, None)[0])
    return resource + _text(b"\x1a", schema_url)


def encode_scope(name: str, version: str, schema_url: str, attributes: Values) -> bytes:
    """Who made spans, as `SpanRecord` has it."""
    texts = _text(b"\x0a", name) + _text(b"\x12", version)
    scope = _add_size(b"\x0a", texts + _attributes(b"\x1a", attributes, None)[0])
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
        bodies = b"".join([_add_size(b"\x12", _span(each, longest)) for each in group])
        parts.append(_add_size(b"\x12", scope + bodies))
    return _add_size(b"\x0a", b"".join(parts))


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
        yield _add_size(b"\x5a", _event(event, longest))
    if span.dropped_events:
        yield b"\x60" + _number(span.dropped_events)
    for link in span.links:
        yield _add_size(b"\x6a", _link(link, longest))
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
    return _add_size(b"\x7a", told + (b"\x18" + _number(status) if status else b""))


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
    return _add_size(tag, named + _add_size(b"\x12", _value(value, longest)))


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
        return b"\x18" + _encode_signed(value)
    if isinstance(value, float):
        return b"\x21" + struct.pack("<d", value)
    if isinstance(value, bytes):
        return _add_size(b"\x3a", value[:longest])
    if isinstance(value, (tuple, list, Sequence)):  # the first two are found without a search
        items = [_add_size(b"\x0a", _value(each, longest, depth + 1)) for each in value]
        return _add_size(b"\x2a", b"".join(items))
    if isinstance(value, Mapping):
        return _add_size(b"\x32", _pairs(value, longest, depth + 1))
    raise TypeError(type(value).__name__)


def _pairs(values: Mapping[object, object], longest: int | None, depth: int) -> bytes:
    pairs = [
        _text(b"\x0a", str(key)) + _add_size(b"\x12", _value(value, longest, depth))
        for key, value in values.items()
    ]
    return b"".join([_add_size(b"\x0a", pair) for pair in pairs])


# --- the wire ------------------------------------------------------------------------------------


def _encode_signed(number: int) -> bytes:
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


def _add_size(tag: bytes, body: bytes) -> bytes:
    size = len(body)
    return tag + (_SHORT[size] if size < 128 else _number(size)) + body


def _text(tag: bytes, text: str) -> bytes:
    # The protocol takes UTF-8 only, and texts of models may hold halves of surrogate pairs.
    return _add_size(tag, text.encode("utf-8", "replace"))


@lru_cache(maxsize=_MOST_KEPT)
def _kept_text(tag: bytes, text: str) -> bytes:
    """Short names and keys, which come again."""
    return _text(tag, text)


_FOLLOWS_PARENTS: Final[str] = ParentBased(ALWAYS_ON).get_description()  # type: ignore[no-untyped-call]  # theirs
_NO_STATE: Final = TraceState()
[_CURRENT_SPAN] = trace.set_span_in_context(trace.INVALID_SPAN, Context())
"""The key of the span in a context. `trace.get_current_span` takes ten times as long."""
_RANDOM: Final = 0x02
"""The flag of a trace whose id is random."""
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED | _RANDOM)
"""The flags of a trace that begins here."""


class SpanSink(Protocol):
    """Where spans go when they end."""

    def add(self, span: SpanRecord) -> None:
        """Take a span that ended, and that nobody changes any more. Returns at once."""


class _Origin(NamedTuple):
    """What the spans of a trace have in common, as far as they are made here."""

    trace_id: bytes
    flags: TraceFlags
    state: TraceState
    state_header: str


class OtlpTracerProvider(trace.TracerProvider):
    """Makes spans for a sink. Whoever made the sink closes it."""

    def __init__(
        self,
        sink: SpanSink,
        *,
        sampler: Sampler,
        limits: SpanLimits,
        now_ns: Callable[[], int] = time.time_ns,
        random_bits: Callable[[int], int] = random.getrandbits,
    ) -> None:
        """Nothing is opened.

        Args:
            sampler: Asked where a trace, or the part of it in this process, begins; the spans
                below follow that.
            limits: Of the attributes, events and links of each span.
            now_ns: Nanoseconds since 1970.
        """
        self.sink = sink
        self.sampler = sampler
        self.limits = limits
        self.most_attributes = limits.max_span_attributes
        self.follows_parents = sampler.get_description() == _FOLLOWS_PARENTS
        """Whether it is the usual sampler: all traces but those of callers who did not sample."""
        self.now_ns = now_ns
        self.random_bits = random_bits

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> trace.Tracer:
        version = instrumenting_library_version or ""
        return _OtlpTracer(
            self,
            encode_scope(instrumenting_module_name, version, schema_url or "", attributes or {}),
        )

    def new_id(self, bits: int) -> int:
        """A random number that is not 0."""
        while not (made := self.random_bits(bits)):
            pass
        return made


class _OtlpTracer(trace.Tracer):
    """Makes spans of one scope."""

    def __init__(self, provider: OtlpTracerProvider, scope: bytes) -> None:
        self._provider = provider
        self._scope = scope

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> trace.Span:
        provider = self._provider
        around = contexts.get_current() if context is None else context
        above = around.get(_CURRENT_SPAN)
        parent_id: bytes | None
        if type(above) is _OtlpSpan and above.provider is provider:
            origin, parent_id, is_remote = above.origin, above.span_id, False
        elif above is None and provider.follows_parents:
            trace_id = (provider.random_bits(128) or provider.new_id(128)).to_bytes(16, "big")
            origin, parent_id, is_remote = _Origin(trace_id, _SAMPLED, _NO_STATE, ""), None, False
        else:
            parent = trace.get_current_span(around).get_span_context()
            asked = self._sample(parent, context, name, kind, attributes, links)
            if not isinstance(asked, _Origin):
                return asked
            origin, is_remote = asked, parent.is_remote
            parent_id = parent.span_id.to_bytes(8, "big") if parent.is_valid else None
        most = provider.most_attributes
        are_few = attributes is not None and (most is None or len(attributes) <= most)
        span = _OtlpSpan(
            scope=self._scope,
            trace_id=origin.trace_id,
            span_id=(provider.random_bits(64) or provider.new_id(64)).to_bytes(8, "big"),
            parent_id=parent_id,
            is_parent_remote=is_remote,
            trace_state=origin.state_header,
            name=name,
            kind=kind._value_ + 1,
            start_ns=provider.now_ns() if start_time is None else start_time,
            attributes=dict(attributes) if attributes is not None and are_few else {},
            provider=provider,
            origin=origin,
            tells_exceptions=record_exception,
            marks_exceptions=set_status_on_exception,
        )
        if attributes and not are_few:
            span.set_attributes(attributes)
        for link in links or ():
            span.add_link(link.context, link.attributes)
        return span

    @contextmanager
    def start_as_current_span(  # type: ignore[override]  # the API's own decorator is private
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> Iterator[trace.Span]:
        span = self.start_span(name, context, kind, attributes, links, start_time)
        with trace.use_span(span, end_on_exit, record_exception, set_status_on_exception):
            yield span

    def _sample(
        self,
        parent: SpanContext,
        context: Context | None,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        links: Sequence[Link] | None,
    ) -> _Origin | trace.Span:
        """What the spans of a trace have in common; or, if it is not sampled, its one span."""
        provider = self._provider
        has_parent = parent.is_valid
        trace_id = parent.trace_id if has_parent else provider.new_id(128)
        flags = parent.trace_flags & _RANDOM if has_parent else _RANDOM
        state: TraceState | None = parent.trace_state if has_parent else None
        is_sampled = not has_parent or parent.trace_flags.sampled
        if not provider.follows_parents:
            asked = trace_id, name, kind, attributes, links
            result = provider.sampler.should_sample(context, *asked)
            is_sampled = result.decision is Decision.RECORD_AND_SAMPLE
            state = result.trace_state
        if is_sampled:
            sampled = TraceFlags(flags | TraceFlags.SAMPLED)
            header = state.to_header() if state else ""
            return _Origin(trace_id.to_bytes(16, "big"), sampled, state or _NO_STATE, header)
        state = state or _NO_STATE
        unsampled = SpanContext(trace_id, provider.new_id(64), False, TraceFlags(flags), state)
        return trace.NonRecordingSpan(unsampled)


@define(kw_only=True, eq=False, repr=False)
class _OtlpSpan(SpanRecord, trace.Span):
    """A span that is sampled. It takes what the SDK's spans take, and drops what is too much."""

    provider: OtlpTracerProvider
    origin: _Origin
    tells_exceptions: bool
    """Whether an exception of its block becomes an event."""
    marks_exceptions: bool
    """Whether an exception of its block becomes its status."""

    def get_span_context(self) -> SpanContext:
        origin = self.origin
        trace_id, span_id = (int.from_bytes(each, "big") for each in (self.trace_id, self.span_id))
        return SpanContext(trace_id, span_id, False, origin.flags, origin.state)

    @property
    def traceparent(self) -> str | None:
        """All that tells another process of it; None: the state of its trace has to go along."""
        if self.trace_state:
            return None
        return f"00-{self.trace_id.hex()}-{self.span_id.hex()}-{self.origin.flags:02x}"

    def is_recording(self) -> bool:
        return not self.end_ns

    def set_attribute(self, key: str, value: AnyValue) -> None:
        self.set_attributes({key: value})

    def set_attributes(self, attributes: Mapping[str, AnyValue]) -> None:
        most = self.provider.most_attributes
        if self.end_ns:
            return
        kept = self.attributes
        if most is None or len(kept) + len(attributes) <= most:
            kept.update(attributes)
            return
        for key, value in attributes.items():
            if key in kept or len(kept) < most:
                kept[key] = value
            else:
                self.dropped_attributes += 1

    def update_name(self, name: str) -> None:
        if not self.end_ns:
            self.name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        if not isinstance(status, Status):
            status = Status(status, description)
        if self.end_ns or self.status == StatusCode.OK.value or status.is_unset:
            return
        self.status, self.status_text = status.status_code.value, status.description

    def add_event(
        self, name: str, attributes: Attributes = None, timestamp: int | None = None
    ) -> None:
        limits = self.provider.limits
        if self.end_ns:
            return
        if limits.max_events is not None and len(self.events) >= limits.max_events:
            self.dropped_events += 1
            return
        time_ns = self.provider.now_ns() if timestamp is None else timestamp
        kept, dropped = _first(attributes, limits.max_event_attributes)
        self.events = (*self.events, SpanEvent(name, time_ns, kept, dropped))

    def add_link(self, context: SpanContext, attributes: Attributes = None) -> None:
        limits = self.provider.limits
        if self.end_ns or not context.is_valid:
            return
        if limits.max_links is not None and len(self.links) >= limits.max_links:
            self.dropped_links += 1
            return
        kept, dropped = _first(attributes, limits.max_link_attributes)
        ids = context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big")
        link = SpanLink(*ids, kept, context.is_remote, dropped)
        self.links = (*self.links, link)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        kind = type(exception)
        is_built_in = kind.__module__ in ("", "builtins")
        told: dict[str, AnyValue] = {
            "exception.type": kind.__qualname__
            if is_built_in
            else f"{kind.__module__}.{kind.__qualname__}",
            "exception.message": str(exception),
            "exception.stacktrace": "".join(traceback.format_exception(exception)),
            "exception.escaped": str(escaped),
        }
        self.add_event("exception", {**told, **(attributes or {})}, timestamp)

    def end(self, end_time: int | None = None) -> None:
        if self.end_ns:
            return
        provider = self.provider
        self.end_ns = provider.now_ns() if end_time is None else end_time
        provider.sink.add(self)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        if exc_val is not None and self.tells_exceptions:
            self.record_exception(exc_val, escaped=True)
        if exc_val is not None and self.marks_exceptions:
            self.set_status(StatusCode.ERROR, f"{type(exc_val).__name__}: {exc_val}")
        self.end()


def _first(attributes: Attributes, most: int | None) -> tuple[Mapping[str, AnyValue], int]:
    """The first of attributes, and how many are beyond."""
    all_ = dict(attributes or {})
    if most is None or len(all_) <= most:
        return all_, 0
    return dict(list(all_.items())[:most]), len(all_) - most
