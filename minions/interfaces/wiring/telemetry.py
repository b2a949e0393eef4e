"""Traces and metrics as the operator asks for them: in `[telemetry]`, or by OTEL_* variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from attrs import frozen

from minions.adapters.telemetry.otlp_target import OtlpTarget
from minions.contracts.errors import EnvironmentRefusedError
from minions.contracts.metrics import Metrics
from minions.contracts.tracing import Tracer
from minions.interfaces.settings import Settings, TelemetrySettings

__all__ = ["Telemetry", "make_telemetry"]

_USUAL_PLACE: Final = "http://localhost:4318"
"""Where a collector on this machine takes OTLP over HTTP."""
_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_OF_SPANS: Final = ("true", "1", "span_only", "span_and_event")
_PARENT: Final = ("traceparent", "tracestate")
"""Variables in upper case that tell a process which trace it belongs to."""
_HTTP: Final = ("", "http/protobuf")


@frozen(kw_only=True)
class Telemetry:
    """What traces and counts; None each: nothing does."""

    tracer: Tracer | None = None
    metrics: Metrics | None = None
    close: Callable[[], None] | None = None
    """Sends what is left. None: there is nothing to close."""


def make_telemetry(
    settings: Settings, environ: Mapping[str, str], warn: Callable[[str], None]
) -> Telemetry:
    """The tracer and the metrics that were asked for.

    Args:
        warn: Called with one line where only the environment asks for them, and they cannot be had.
    Raises:
        EnvironmentRefusedError: The settings ask for them, and the extra `otel` is not installed,
            or the environment asks for another protocol.
    """
    asked = settings.telemetry
    target = _target(asked, environ)
    if target is None:
        return Telemetry()
    try:
        _check_protocol(environ)
        return _opened(target, environ, has_content=_has_content(asked, environ), warn=warn)
    except EnvironmentRefusedError as refused:
        if asked.traces or asked.metrics:
            raise
        warn(f"OTEL_* variables ask for telemetry, and there is none: {refused.message}")
        return Telemetry()


def _opened(
    target: OtlpTarget,
    environ: Mapping[str, str],
    *,
    has_content: bool,
    warn: Callable[[str], None],
) -> Telemetry:
    try:
        from minions.adapters.telemetry.open_telemetry import OpenTelemetryTracer
        from minions.adapters.telemetry.open_telemetry_metrics import OpenTelemetryMetrics
        from minions.adapters.telemetry.otlp import open_providers

        providers = open_providers(target, warn)
    except ImportError as error:
        raise EnvironmentRefusedError(
            "Traces and metrics need the extra `otel`: pip install 'minions-engine[otel]' "
            f"({error}).",
            code="missing-extra",
        ) from error
    tracer = metrics = None
    if providers.traces is not None:
        parent = {name: environ[name.upper()] for name in _PARENT if name.upper() in environ}
        tracer = OpenTelemetryTracer(providers.traces, has_content=has_content, parent=parent)
    if providers.metrics is not None:
        metrics = OpenTelemetryMetrics(providers.metrics)
    return Telemetry(tracer=tracer, metrics=metrics, close=providers.close)


def _target(asked: TelemetrySettings, environ: Mapping[str, str]) -> OtlpTarget | None:
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    traces = _url(asked.traces, asked, environ, "traces")
    metrics = _url(asked.metrics, asked, environ, "metrics")
    if traces is None and metrics is None:
        return None
    return OtlpTarget(traces_url=traces, metrics_url=metrics)


def _url(
    is_wanted: bool | None, asked: TelemetrySettings, environ: Mapping[str, str], signal: str
) -> str | None:
    """Where that signal goes; None: nobody asks for it."""
    own = environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "")
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    exporter = environ.get(f"OTEL_{signal.upper()}_EXPORTER", "")
    if is_wanted is None:
        is_wanted = exporter != "none" and bool(own or base or exporter == "otlp")
    if not is_wanted:
        return None
    if asked.endpoint is None and own:
        return own
    return f"{(asked.endpoint or base or _USUAL_PLACE).rstrip('/')}/v1/{signal}"


def _has_content(asked: TelemetrySettings, environ: Mapping[str, str]) -> bool:
    return asked.content or environ.get(_CONTENT, "").lower() in _OF_SPANS


def _check_protocol(environ: Mapping[str, str]) -> None:
    protocol = environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    if protocol not in _HTTP:
        raise EnvironmentRefusedError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL is '{protocol:.40}'; spans are sent as http/protobuf. "
            "Collectors take that on port 4318: OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf.",
            code="bad-telemetry",
        )
