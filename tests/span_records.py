"""Records of spans, for tests of what is made of them."""

from __future__ import annotations

from minions.adapters.telemetry.otlp_spans import SpanRecord

__all__ = ["span_record"]


def span_record(name: str = "n", /, **attributes: object) -> SpanRecord:
    """A span that ended."""
    return SpanRecord(
        scope=b"",
        trace_id=bytes(16),
        span_id=bytes(8),
        parent_id=None,
        is_parent_remote=False,
        trace_state="",
        name=name,
        kind=1,
        start_ns=1,
        end_ns=2,
        attributes=attributes,
    )
