"""Traces and metrics as the operator asks for them: in `[telemetry]`, or by OTEL_* variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from attrs import frozen

from minions.adapters.telemetry.otel_variables import check_variables, is_disabled
from minions.adapters.telemetry.otlp_target import OtlpTarget
from minions.app.settings.settings import Settings, TelemetrySettings
from minions.contracts.base_url import check_base_url
from minions.contracts.metrics import Metrics
from minions.contracts.tracing import Tracer
from minions.data.errors import EnvironmentRefusedError, UsageError

_VARIABLE: Final = "OTEL_EXPORTER_OTLP_"
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
            or a variable of OpenTelemetry cannot be followed.
        UsageError: `bad-base-url`; the collector's address is none.
    """
    asked = settings.telemetry
    if is_disabled(environ):
        return Telemetry()
    try:
        target = _target(asked, environ)
        if target is None:
            return Telemetry()
        check_variables(target, environ)
        return _opened(target, environ, has_content=_has_content(asked, environ), warn=warn)
    except (EnvironmentRefusedError, UsageError) as refused:
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

        providers = open_providers(target, environ, warn)
    except ImportError as error:
        raise EnvironmentRefusedError(
            "Traces and metrics need the extra `otel`: pip install 'minions-engine[otel]' "
            f"({error}).",
            code="missing-extra",
        ) from error
    except ValueError as error:  # of the process's variables, where `environ` is another one
        raise EnvironmentRefusedError(
            f"OpenTelemetry refuses one of its variables: {error!s:.300}.", code="bad-telemetry"
        ) from error
    tracer = metrics = None
    if providers.traces is not None:
        parent = {name: environ[name.upper()] for name in _PARENT if name.upper() in environ}
        tracer = OpenTelemetryTracer(providers.traces, has_content=has_content, parent=parent)
    if providers.metrics is not None:
        metrics = OpenTelemetryMetrics(providers.metrics)
    return Telemetry(tracer=tracer, metrics=metrics, close=providers.close)


def _target(asked: TelemetrySettings, environ: Mapping[str, str]) -> OtlpTarget | None:
    traces = _url(asked.traces, asked, environ, "traces")
    metrics = _url(asked.metrics, asked, environ, "metrics")
    if traces is None and metrics is None:
        return None
    return OtlpTarget(traces_url=traces, metrics_url=metrics)


def _url(
    is_wanted: bool | None, asked: TelemetrySettings, environ: Mapping[str, str], signal: str
) -> str | None:
    """Where that signal goes; None: nobody asks for it."""
    own_name = f"{_VARIABLE}{signal.upper()}_ENDPOINT"
    own, base = environ.get(own_name, ""), environ.get(f"{_VARIABLE}ENDPOINT", "")
    if is_wanted is None:
        is_wanted = _is_exported(environ, signal, has_endpoint=bool(own or base))
    if not is_wanted:
        return None
    _check_protocol(environ, signal)
    if asked.endpoint is None and own:
        check_base_url(own.partition("?")[0], own_name, f"{_USUAL_PLACE}/v1/{signal}")
        return own.strip()
    if asked.endpoint is not None:
        url = check_base_url(asked.endpoint, "`endpoint` of [telemetry]", _USUAL_PLACE)
    else:
        url = check_base_url(base or _USUAL_PLACE, f"{_VARIABLE}ENDPOINT", _USUAL_PLACE)
    return f"{url}/v1/{signal}"


def _is_exported(environ: Mapping[str, str], signal: str, *, has_endpoint: bool) -> bool:
    """Whether OpenTelemetry's variables ask for that signal."""
    name = f"OTEL_{signal.upper()}_EXPORTER"
    exporter = environ.get(name, "")
    if exporter in ("", "otlp"):
        return has_endpoint or exporter == "otlp"
    if exporter != "none":
        raise EnvironmentRefusedError(
            f"{name} is '{exporter:.40}'; {signal} are sent to a collector only: "
            f"{name}=otlp, or none.",
            code="bad-telemetry",
        )
    return False


def _has_content(asked: TelemetrySettings, environ: Mapping[str, str]) -> bool:
    return asked.content or environ.get(_CONTENT, "").lower() in _OF_SPANS


def _check_protocol(environ: Mapping[str, str], signal: str) -> None:
    own, of_all = f"{_VARIABLE}{signal.upper()}_PROTOCOL", f"{_VARIABLE}PROTOCOL"
    name = own if environ.get(own) else of_all
    protocol = environ.get(name, "")
    if protocol not in _HTTP:
        raise EnvironmentRefusedError(
            f"{name} is '{protocol:.40}'; {signal} are sent as http/protobuf. "
            f"Collectors take that on port 4318: {name}=http/protobuf.",
            code="bad-telemetry",
        )
