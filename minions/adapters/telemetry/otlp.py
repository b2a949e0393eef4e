"""Traces and metrics on their way to a collector, by OTLP over HTTP, from threads of their own.

Needs the extra `otel`. What else OpenTelemetry's own variables say counts as they say it: service
name, sampler, headers, batches.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from attrs import define, field
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from minions.adapters.telemetry.otlp_target import OtlpTarget

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["TelemetryProviders", "open_providers"]

_PRODUCT: Final = "minions"
_LONGEST_CLOSE_S: Final = 3.0
"""Seconds that the end of a process waits for a collector."""


@define(kw_only=True)
class TelemetryProviders:
    """What makes spans and instruments, and sends them."""

    traces: TracerProvider | None
    metrics: MeterProvider | None
    _warn: Callable[[str], None]
    _is_closed: bool = field(default=False, init=False)

    def close(self, wait_s: float = _LONGEST_CLOSE_S) -> None:
        """Send what is left, and warn where that takes longer. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        closing = threading.Thread(target=self._shut_down, daemon=True)
        closing.start()
        closing.join(wait_s)
        if closing.is_alive():
            self._warn(
                f"The last spans and metrics were not sent within {wait_s:g} s, and are given up."
            )

    def _shut_down(self) -> None:
        parts = [part for part in (self.traces, self.metrics) if part is not None]
        threads = [threading.Thread(target=part.shutdown, daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def open_providers(target: OtlpTarget, warn: Callable[[str], None]) -> TelemetryProviders:
    """Providers whose spans and metrics go to a collector.

    Args:
        warn: Called, from a thread, with one line when a collector first cannot be reached.
    """
    # Its exporters log every failed attempt; here there is one line for a person.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    resource = _resource(target.service)
    tracer_provider = meter_provider = None
    if target.traces_url is not None:
        tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        spans = _Spans(target.traces_url, warn)
        tracer_provider.add_span_processor(BatchSpanProcessor(spans))
    if target.metrics_url is not None:
        reader = PeriodicExportingMetricReader(_Metrics(target.metrics_url, warn))
        meter_provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    return TelemetryProviders(traces=tracer_provider, metrics=meter_provider, warn=warn)


def _resource(service: str | None) -> Resource:
    if service is not None:
        return Resource.create({"service.name": service})
    found = Resource.create()
    if str(found.attributes.get("service.name", "")).startswith("unknown_service"):
        return found.merge(Resource({"service.name": _PRODUCT}))
    return found


class _Warning:
    """Tells once that nothing arrives."""

    def __init__(self, what: str, url: str, warn: Callable[[str], None]) -> None:
        self._words = f"{what} could not be sent to {url}: no collector takes them there."
        self._warn = warn
        self._is_told = False

    def tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._warn(self._words)


class _Spans(SpanExporter):
    """Loads the exporter, which takes 100 ms, in the thread that sends."""

    def __init__(self, url: str, warn: Callable[[str], None]) -> None:
        self._url = url
        self._warning = _Warning("Spans", url, warn)
        self._exporter: SpanExporter | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._exporter is None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            self._exporter = OTLPSpanExporter(endpoint=self._url)
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._warning.tell()
        return result

    def shutdown(self) -> None:
        if self._exporter is not None:
            self._exporter.shutdown()


class _Metrics(MetricExporter):
    """Loads the exporter in the thread that sends."""

    def __init__(self, url: str, warn: Callable[[str], None]) -> None:
        super().__init__()
        self._url = url
        self._warning = _Warning("Metrics", url, warn)
        self._exporter: MetricExporter | None = None

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object
    ) -> MetricExportResult:
        if self._exporter is None:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            self._exporter = OTLPMetricExporter(endpoint=self._url)
        result = self._exporter.export(metrics_data, timeout_millis=timeout_millis)
        if result is not MetricExportResult.SUCCESS:
            self._warning.tell()
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter is None or self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        if self._exporter is not None:
            self._exporter.shutdown(timeout_millis=timeout_millis)
