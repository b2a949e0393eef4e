"""`OtlpTracerProvider`: spans that are handed on when they end, to be written in the form of OTLP.

It does what the SDK's provider does for spans that go to one collector, for a fourth of the time.
There are no processors and no exporters; the sampler and the limits are the SDK's.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from attrs import define
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

from minions.adapters.telemetry.otlp_encoding import (
    SpanEvent,
    SpanLink,
    SpanRecord,
    encode_scope,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.util.types import AnyValue, Attributes


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
            asked = self._sampled(parent, context, name, kind, attributes, links)
            if not isinstance(asked, _Origin):
                return asked
            origin, is_remote = asked, parent.is_remote
            parent_id = parent.span_id.to_bytes(8, "big") if parent.is_valid else None
        most = provider.limits.max_span_attributes
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

    def _sampled(
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
        most = self.provider.limits.max_span_attributes
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
