"""Spans that are written when they end, against those that the SDK makes of the same calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from attrs import define, field
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from minions.adapters.telemetry.open_telemetry import OpenTelemetryTracer
from minions.adapters.telemetry.otlp_spans import (
    OtlpTracerProvider,
    SpanRecord,
    encode_request,
    encode_resource,
)

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
RESOURCE = Resource({"service.name": "shop"})
OTHER = SpanContext(77, 78, is_remote=True, trace_flags=TraceFlags(1))


class _Ids(IdGenerator):
    """Numbers, one after the other; also as bits."""

    def __init__(self) -> None:
        self._next = itertools.count(2**60)

    def generate_span_id(self) -> int:
        return next(self._next)

    def generate_trace_id(self) -> int:
        return next(self._next) << 64

    def is_trace_id_random(self) -> bool:
        return True

    def bits(self, count: int) -> int:
        return self.generate_span_id() if count == 64 else self.generate_trace_id()


@define
class _Sink:
    spans: list[SpanRecord] = field(factory=list)

    def add(self, span: SpanRecord) -> None:
        self.spans.append(span)


Told = Callable[[trace.TracerProvider], object]


def _by_us(told: Told, sampler: Sampler, limits: SpanLimits) -> ExportTraceServiceRequest:
    sink = _Sink()
    told(OtlpTracerProvider(sink, sampler=sampler, limits=limits, random_bits=_Ids().bits))
    resource = encode_resource(RESOURCE.attributes, RESOURCE.schema_url)
    body = encode_request(resource, sink.spans) if sink.spans else b""
    request: ExportTraceServiceRequest = ExportTraceServiceRequest.FromString(body)
    return request


def _by_the_sdk(told: Told, sampler: Sampler, limits: SpanLimits) -> ExportTraceServiceRequest:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(
        sampler, RESOURCE, shutdown_on_exit=False, id_generator=_Ids(), span_limits=limits
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    told(provider)
    return encode_spans(exporter.get_finished_spans())


def _plain(request: ExportTraceServiceRequest) -> ExportTraceServiceRequest:
    """Without times, and lines of files."""
    for span in request.resource_spans[0].scope_spans[0].spans if request.resource_spans else ():
        span.start_time_unix_nano = span.end_time_unix_nano = 0
        for event in span.events:
            event.time_unix_nano = 0
            for attribute in event.attributes:
                if attribute.key == "exception.stacktrace":
                    attribute.value.string_value = ""
    return request


def same(told: Told, sampler: Sampler = ALWAYS_ON, limits: SpanLimits | None = None) -> int:
    """How many spans both make of it."""
    limits = limits or SpanLimits()
    ours, theirs = (each(told, sampler, limits) for each in (_by_us, _by_the_sdk))
    assert _plain(ours) == _plain(theirs)
    return sum(len(scope.spans) for each in ours.resource_spans for scope in each.scope_spans)


def within(traceparent: str, state: str = "") -> Context:
    carrier = {"traceparent": traceparent, "tracestate": state}
    return TraceContextTextMapPropagator().extract(carrier)


def test_names_kinds_attributes_and_places_are_the_same() -> None:
    def told(provider: trace.TracerProvider) -> None:
        tracer = provider.get_tracer("minions", "1.2", "http://schema/1", {"a": 1})
        with tracer.start_as_current_span("root", attributes={"n": 1, "t": "x", "f": (1.5, 2.0)}):
            for kind in SpanKind:
                with tracer.start_as_current_span(kind.name, kind=kind) as span:
                    span.set_attributes({"gen_ai.usage.input_tokens": 7})
                    span.set_attribute("gen_ai.usage.input_tokens", 8)
                    span.update_name(f"chat {kind.name}")

    assert same(told) == 6


def test_events_links_exceptions_and_statuses_are_the_same() -> None:
    def told(provider: trace.TracerProvider) -> None:
        tracer = provider.get_tracer("minions")
        links = [Link(OTHER, {"why": "joined"}), Link(trace.INVALID_SPAN_CONTEXT)]
        with suppress(KeyError), tracer.start_as_current_span("raises", links=links) as span:
            span.add_event("began", {"at": 1})
            span.add_link(OTHER)
            span.set_status(StatusCode.ERROR, "first")
            raise KeyError("x")
        with suppress(KeyError), tracer.start_span("block"):
            raise KeyError("y")
        silent = tracer.start_span("silent", record_exception=False, set_status_on_exception=False)
        with suppress(KeyError), silent:
            raise KeyError("z")
        done = tracer.start_span("done")
        done.set_status(Status(StatusCode.OK))
        done.set_status(StatusCode.ERROR, "too late")
        done.end()
        done.end()
        done.set_attribute("late", 1)
        done.add_event("late")
        done.update_name("late")
        assert not done.is_recording()

    assert same(told) == 4


@pytest.mark.parametrize(
    ("sampler", "flags", "count"),
    [
        (ParentBased(ALWAYS_ON), "01", 2),
        (ParentBased(ALWAYS_ON), "00", 0),
        (ParentBased(ALWAYS_OFF), "03", 2),
        (ALWAYS_ON, "00", 2),
        (ALWAYS_OFF, "01", 0),
        (TraceIdRatioBased(0.0), "01", 0),
    ],
)
def test_a_caller_and_the_sampler_decide_as_in_the_sdk(
    sampler: Sampler, flags: str, count: int
) -> None:
    """A-136."""
    seen: list[Sequence[object]] = []

    def told(provider: trace.TracerProvider) -> None:
        tracer = provider.get_tracer("minions")
        around = within(f"{CALLER}-{flags}", "vendor=a")
        span = tracer.start_span("one", around)
        inner = tracer.start_span("two", trace.set_span_in_context(span))
        seen.append([each.get_span_context() for each in (span, inner)])
        inner.end()
        span.end()

    assert same(told, sampler) == count
    assert seen[0] == seen[1]


def test_a_span_below_one_of_the_application_is_in_its_trace() -> None:
    application = TracerProvider(shutdown_on_exit=False).get_tracer("app")
    sink = _Sink()
    provider = OtlpTracerProvider(sink, sampler=ParentBased(ALWAYS_ON), limits=SpanLimits())
    own = provider.get_tracer("minions")
    with application.start_as_current_span("app") as around, own.start_as_current_span("a") as span:
        within_it = application.start_span("below")
    (message,) = (
        ExportTraceServiceRequest.FromString(encode_request(b"", sink.spans))
        .resource_spans[0]
        .scope_spans[0]
        .spans
    )
    assert message.trace_id.hex() == f"{around.get_span_context().trace_id:032x}"
    assert message.parent_span_id.hex() == f"{around.get_span_context().span_id:016x}"
    assert within_it.get_span_context().trace_id == span.get_span_context().trace_id


def test_a_provider_asks_its_own_sampler_below_a_span_of_another() -> None:
    sinks = _Sink(), _Sink()
    on, off = (
        OtlpTracerProvider(sink, sampler=sampler, limits=SpanLimits()).get_tracer("minions")
        for sink, sampler in zip(sinks, (ALWAYS_ON, ALWAYS_OFF), strict=True)
    )
    with on.start_as_current_span("told"), off.start_as_current_span("not told"):
        pass
    assert [len(sink.spans) for sink in sinks] == [1, 0]


def test_limits_are_those_of_the_sdk() -> None:
    limits = SpanLimits(
        max_span_attributes=3,
        max_events=2,
        max_links=1,
        max_event_attributes=1,
        max_link_attributes=1,
        max_span_attribute_length=4,
    )
    sink = _Sink()
    provider = OtlpTracerProvider(sink, sampler=ALWAYS_ON, limits=limits)
    span = provider.get_tracer("minions").start_span("s", attributes={"a": "x" * 9, "b": 1})
    span.set_attributes({"b": 2, "c": 3, "d": 4, "e": 5})
    for name in ("e1", "e2", "e3"):
        span.add_event(name, {"a": 1, "b": 2})
    for _ in range(2):
        span.add_link(OTHER, {"a": 1, "b": 2})
    span.end()
    body = encode_request(b"", sink.spans, limits.max_span_attribute_length)
    (message,) = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    assert {each.key: each.value.int_value for each in message.attributes} == {
        "a": 0,
        "b": 2,
        "c": 3,
    }
    assert message.attributes[0].value.string_value == "xxxx"
    assert message.dropped_attributes_count == 2
    assert ([each.name for each in message.events], message.dropped_events_count) == (
        ["e1", "e2"],
        1,
    )
    assert (len(message.links), message.dropped_links_count) == (1, 1)
    assert message.events[0].dropped_attributes_count == 1
    assert message.links[0].dropped_attributes_count == 1


def test_attributes_of_a_start_are_limited_and_belong_to_the_span_alone() -> None:
    given = {"a": 1, "b": 2, "c": 3}

    def told(provider: trace.TracerProvider) -> None:
        span = provider.get_tracer("minions").start_span("s", attributes=given)
        given["a"] = 9
        span.end()
        given["a"] = 1

    for most in (None, 3):
        assert same(told, limits=SpanLimits(max_span_attributes=most)) == 1
    sink = _Sink()
    told(OtlpTracerProvider(sink, sampler=ALWAYS_ON, limits=SpanLimits(max_span_attributes=2)))
    (span,) = sink.spans
    assert (span.attributes, span.dropped_attributes) == ({"a": 1, "b": 2}, 1)


def test_ids_of_new_traces_differ_and_are_never_zero() -> None:
    bits = iter([0, 5, 0, 0, 9, 6, 10])
    sink = _Sink()
    provider = OtlpTracerProvider(
        sink, sampler=ALWAYS_ON, limits=SpanLimits(), random_bits=lambda _: next(bits)
    )
    tracer = provider.get_tracer("minions")
    first, second = (tracer.start_span(name).get_span_context() for name in "ab")
    assert (first.trace_id, first.span_id, second.trace_id, second.span_id) == (5, 9, 6, 10)


@pytest.mark.parametrize("state", ["", "vendor=1"])
@pytest.mark.parametrize("has_baggage", [False, True])
def test_headers_are_those_of_the_propagators(state: str, *, has_baggage: bool) -> None:
    provider = OtlpTracerProvider(_Sink(), sampler=ALWAYS_ON, limits=SpanLimits())
    above = within("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", state)
    around = baggage.set_baggage("user", "u", above) if has_baggage else above
    span = provider.get_tracer("t").start_span("s", around)
    token = context.attach(trace.set_span_in_context(span, around))
    expected: dict[str, str] = {}
    propagate.inject(expected)
    given = OpenTelemetryTracer(provider).headers()
    context.detach(token)
    assert given == expected
    assert given.keys() == {
        "traceparent",
        *(("tracestate",) if state else ()),
        *(("baggage",) if has_baggage else ()),
    }


def test_headers_of_other_propagators_are_asked_for() -> None:
    class Own(TraceContextTextMapPropagator):
        def inject(self, carrier: Any, *_: object, **__: object) -> None:  # Any: as theirs
            carrier["own"] = "1"

        @property
        def fields(self) -> set[str]:
            return {"own"}

    before = propagate.get_global_textmap()
    propagate.set_global_textmap(Own())
    provider = OtlpTracerProvider(_Sink(), sampler=ALWAYS_ON, limits=SpanLimits())
    span = provider.get_tracer("t").start_span("s")
    try:
        with trace.use_span(span):
            assert OpenTelemetryTracer(provider).headers() == {"own": "1"}
    finally:
        propagate.set_global_textmap(before)
