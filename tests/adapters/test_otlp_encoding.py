"""Our bytes of spans, read with OpenTelemetry's classes, against those of its own encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from minions.adapters.telemetry.otlp_spans import (
    SpanEvent,
    SpanLink,
    SpanRecord,
    encode_request,
    encode_resource,
    encode_scope,
    rough_size,
)
from span_records import span_record

_texts = st.text(max_size=200)
_numbers = st.integers(-(2**63), 2**63 - 1)
_plain = _texts | st.booleans() | _numbers | st.floats(allow_nan=False) | st.binary(max_size=40)
_values = st.recursive(
    _plain | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=8,
)
_attributes = st.dictionaries(_texts, _values, max_size=6)
_trace_ids = st.integers(1, 2**128 - 1)
_span_ids = st.integers(1, 2**64 - 1)
_times = st.integers(0, 2**63)
_states = st.sampled_from([[], [("vendor", "a")], [("vendor", "a"), ("other", "b=c")]])


@st.composite
def _contexts(draw: st.DrawFn) -> SpanContext:
    return SpanContext(
        draw(_trace_ids),
        draw(_span_ids),
        draw(st.booleans()),
        TraceFlags(1),
        TraceState(draw(_states)),
    )


@st.composite
def _spans(draw: st.DrawFn) -> ReadableSpan:
    code = draw(st.sampled_from(StatusCode))
    scope = InstrumentationScope(draw(st.sampled_from(["minions", "other"])), "1", "http://s/1")
    return ReadableSpan(
        name=draw(_texts),
        context=draw(_contexts()),
        parent=draw(st.none() | _contexts()),
        resource=Resource({"service.name": "shop", "n": 3}, "http://schema/2"),
        attributes=draw(_attributes),
        events=draw(st.lists(st.builds(Event, _texts, _attributes, _times), max_size=2)),
        links=draw(st.lists(st.builds(Link, _contexts(), _attributes), max_size=2)),
        kind=draw(st.sampled_from(SpanKind)),
        status=Status(code, draw(_texts) if code is StatusCode.ERROR else None),
        start_time=draw(_times),
        end_time=draw(_times),
        instrumentation_scope=scope,
    )


def _encoded(span: ReadableSpan) -> SpanRecord:
    """The same span as a record of ours, encoded."""
    scope, context, parent = span.instrumentation_scope, span.context, span.parent
    assert scope is not None
    assert context is not None
    of_scope = encode_scope(scope.name, scope.version or "", scope.schema_url or "", {})
    return SpanRecord(
        scope=of_scope,
        trace_id=context.trace_id.to_bytes(16, "big"),
        span_id=context.span_id.to_bytes(8, "big"),
        parent_id=parent.span_id.to_bytes(8, "big") if parent is not None else None,
        is_parent_remote=parent is not None and parent.is_remote,
        trace_state=context.trace_state.to_header(),
        name=span.name,
        kind=span.kind.value + 1,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        attributes=dict(span.attributes or {}),
        events=[
            SpanEvent(each.name, each.timestamp, each.attributes or {}) for each in span.events
        ],
        links=[
            SpanLink(
                each.context.trace_id.to_bytes(16, "big"),
                each.context.span_id.to_bytes(8, "big"),
                each.attributes or {},
                each.context.is_remote,
            )
            for each in span.links
        ],
        status=span.status.status_code.value,
        status_text=span.status.description,
    )


@given(st.lists(_spans(), min_size=1, max_size=3))
def test_the_official_classes_read_what_the_official_encoder_would_have_written(
    spans: Sequence[ReadableSpan],
) -> None:
    spans = sorted(spans, key=lambda each: str(each.instrumentation_scope))
    resource = spans[0].resource
    ours = encode_request(
        encode_resource(resource.attributes, resource.schema_url), map(_encoded, spans)
    )
    assert ExportTraceServiceRequest.FromString(ours) == encode_spans(spans)


def read(span: SpanRecord, longest: int | None = None) -> Span:
    request = ExportTraceServiceRequest.FromString(encode_request(b"", [span], longest))
    message: Span
    (message,) = request.resource_spans[0].scope_spans[0].spans
    return message


def nested(levels: int) -> object:
    return [nested(levels - 1)] if levels else "x"


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, object(), 1j, nested(40), {1: {2, 3}}])
def test_a_value_that_the_protocol_has_no_form_for_is_counted_as_dropped(value: object) -> None:
    span = span_record(before="a", bad=value, after=True)
    span.dropped_attributes = 4
    message = read(span)
    assert [each.key for each in message.attributes] == ["before", "after"]
    assert message.dropped_attributes_count == 5


def test_what_is_dropped_of_events_and_links_is_told() -> None:
    span = span_record()
    span.dropped_events, span.dropped_links = 300, 1
    span.events = [SpanEvent("e", 5, {"bad": object()}, dropped=2)]
    span.links = [SpanLink(bytes(16), bytes(8), {"bad": object()}, is_remote=False, dropped=1)]
    message = read(span)
    assert (message.dropped_events_count, message.dropped_links_count) == (300, 1)
    assert message.events[0].dropped_attributes_count == 3
    assert message.links[0].dropped_attributes_count == 2


def test_half_a_surrogate_pair_costs_one_character_and_not_the_span() -> None:
    message = read(span_record(said="a\ud800b"))
    assert message.attributes[0].value.string_value == "a?b"


def test_a_name_as_long_as_a_book_and_its_equals_are_told_whole() -> None:
    span = span_record(**{"k" * 500: "v" * 100_000})
    span.name = "n" * 5_000
    message = read(span)
    assert (len(message.name), len(message.attributes[0].key)) == (5_000, 500)
    assert len(message.attributes[0].value.string_value) == 100_000


def test_texts_are_cut_where_the_operator_limits_them() -> None:
    message = read(span_record(a="x" * 50, b=["y" * 50, 3], c=12345), longest=4)
    first, second, third = (each.value for each in message.attributes)
    assert first.string_value == "xxxx"
    assert [each.string_value for each in second.array_value.values] == ["yyyy", ""]
    assert third.int_value == 12345


def test_equal_values_of_different_types_stay_what_they_are() -> None:
    for value, field in ((1, "int_value"), (True, "bool_value"), (1.0, "double_value")):
        (attribute,) = read(span_record(n=value)).attributes
        assert attribute.value.WhichOneof("value") == field


@given(st.dictionaries(st.text(max_size=9), st.text() | st.lists(st.text()).map(tuple)))
def test_the_rough_size_is_not_much_less_than_what_is_sent(texts: Mapping[str, object]) -> None:
    span = span_record(**texts)
    assert 4 * rough_size(span) >= 3 * len(encode_request(b"", [span]))


def test_long_texts_of_attributes_and_events_are_part_of_the_rough_size() -> None:
    usual = rough_size(span_record(a="x", b=7, c=True))
    assert rough_size(span_record(a="x" * 5_000, b=("y" * 5_000, "z"))) - usual > 10_000
    failed = span_record()
    failed.events = [SpanEvent("exception", 5, {"exception.stacktrace": "x" * 5_000})]
    assert rough_size(failed) - usual > 5_000
