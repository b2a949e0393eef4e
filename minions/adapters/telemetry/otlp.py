"""Traces and metrics on their way to a collector, by OTLP over HTTP, from threads of their own.

Needs the extra `otel`. What else OpenTelemetry's own variables say counts as they say it: service
name, sampler, headers, batches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import define, field, frozen
from opentelemetry import context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider

from minions.adapters.telemetry.otlp_encoding import (
    SpanRecord,
    encode_request,
    encode_resource,
)
from minions.adapters.telemetry.otlp_sender import OtlpEndpoint, OtlpSender
from minions.adapters.telemetry.otlp_spans import OtlpTracerProvider
from minions.adapters.telemetry.otlp_target import OtlpTarget
from minions.adapters.telemetry.span_queue import BatchLimits, SpanQueue
from minions.data.errors import EnvironmentRefusedError

__all__ = ["TelemetryProviders", "open_providers"]

_PRODUCT: Final = "minions"
_LONGEST_CLOSE_S: Final = 3.0
"""Seconds that the end of a process waits for a collector."""


@frozen
class _Shutdown:
    """What sends what is left of one signal."""

    what: str
    """`spans` or `metrics`."""
    run: Callable[[], object]
    sender: OtlpSender

    def failure(self) -> str:
        """What is not sent yet, where it should have gone, and why it is not there."""
        return f"{self.what} ({self.sender.address}: {self.sender.last_reason})"


@define(kw_only=True)
class TelemetryProviders:
    """What makes spans and instruments, and sends them."""

    traces: OtlpTracerProvider | None
    metrics: MeterProvider | None
    _shutdowns: Sequence[_Shutdown]
    _warn: Callable[[str], None]
    _is_closed: bool = field(default=False, init=False)

    def close(self, wait_s: float = _LONGEST_CLOSE_S) -> None:
        """Send what is left, and warn where that takes longer. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        threads = [threading.Thread(target=each.run, daemon=True) for each in self._shutdowns]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + wait_s
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))
        ended = zip(self._shutdowns, threads, strict=True)
        if late := [each.failure() for each, thread in ended if thread.is_alive()]:
            self._warn(
                f"The last {' and '.join(late)} were not sent within {wait_s:g} s, "
                "and are given up."
            )


def open_providers(
    target: OtlpTarget, environ: Mapping[str, str], warn: Callable[[str], None]
) -> TelemetryProviders:
    """Providers whose spans and metrics go to a collector.

    Args:
        environ: OpenTelemetry's variables; what the SDK reads by itself it reads of the process.
        warn: Called, from a thread, with one line when a collector first cannot be reached.
    Raises:
        EnvironmentRefusedError: `bad-telemetry`; one of the variables cannot be as it is.
    """
    # Its exporters log every failed attempt; here there is one line for a person.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    resource = _resource(target.service)
    traces = metrics = None
    shutdowns: list[_Shutdown] = []
    if target.traces_url is not None:
        sdk = _sdk_of(resource)
        sender = OtlpSender(OtlpEndpoint.of(target.traces_url, environ, "TRACES"))
        limits = SpanLimits()
        sending = _Sending(sender, sdk, limits.max_span_attribute_length, warn)
        queue = SpanQueue(sending.send, BatchLimits.of(environ), warn)
        traces = OtlpTracerProvider(queue, sampler=sdk.sampler, limits=limits)
        shutdowns.append(_Shutdown("spans", queue.close, sender))
    if target.metrics_url is not None:
        sender = OtlpSender(OtlpEndpoint.of(target.metrics_url, environ, "METRICS"))
        reader = PeriodicExportingMetricReader(_Metrics(sender, warn))
        metrics = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        shutdowns.append(_Shutdown("metrics", metrics.shutdown, sender))
    return TelemetryProviders(traces=traces, metrics=metrics, shutdowns=shutdowns, warn=warn)


def _sdk_of(resource: Resource) -> TracerProvider:
    """The SDK's provider, for what it reads of the variables: sampler, limits, resource."""
    try:
        return TracerProvider(resource=resource, shutdown_on_exit=False)
    except ValueError as error:
        raise EnvironmentRefusedError(
            f"OpenTelemetry refuses one of its variables: {error}.", code="bad-telemetry"
        ) from error


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
        self._words = f"{what} could not be sent to {url}"
        self._warn = warn
        self._is_told = False

    def tell(self, reason: str) -> None:
        if not self._is_told:
            self._is_told = True
            self._warn(f"{self._words}: {reason}.")


class _Sending:
    """Encodes and posts batches of spans, in the thread of their queue."""

    def __init__(
        self,
        sender: OtlpSender,
        sdk: TracerProvider,
        longest: int | None,
        warn: Callable[[str], None],
    ) -> None:
        self._sender = sender
        self._sdk = sdk
        self._longest = longest
        self._warning = _Warning("Spans", sender.address, warn)

    def send(self, spans: Sequence[SpanRecord]) -> None:
        resource = self._sdk.resource  # another one in a process that was forked
        told = encode_resource(resource.attributes, resource.schema_url)
        body = encode_request(told, spans, self._longest)
        # The span of this request would be a span to send, and so on.
        token = context.attach(context.set_value("suppress_instrumentation", True))
        try:
            reason = self._sender.send(body)
        finally:
            context.detach(token)
        if reason is not None:
            self._warning.tell(reason)


class _Metrics(MetricExporter):
    """Encodes and posts metrics, in the thread of their reader."""

    def __init__(self, sender: OtlpSender, warn: Callable[[str], None]) -> None:
        super().__init__()
        self._sender = sender
        self._warning = _Warning("Metrics", sender.address, warn)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: object
    ) -> MetricExportResult:
        # Loaded in the thread that sends: it takes time.
        from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

        reason = self._sender.send(encode_metrics(metrics_data).SerializeToString())
        if reason is None:
            return MetricExportResult.SUCCESS
        self._warning.tell(reason)
        return MetricExportResult.FAILURE

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True  # nothing waits here

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: object) -> None:
        self._sender.close()
