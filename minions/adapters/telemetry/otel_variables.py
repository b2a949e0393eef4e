"""`check_variables`: OpenTelemetry's variables, before its SDK reads them.

The SDK fails while it is imported where some of them are wrong, and passes over others. Known
without the extra `otel`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Final

from msgspec import Struct

from minions.data.errors import EnvironmentRefusedError

_DISABLED: Final = "OTEL_SDK_DISABLED"
_PROPAGATORS: Final = "OTEL_PROPAGATORS"
_PROPAGATOR_GROUP: Final = "opentelemetry_propagator"
"""The group of entry points of propagators."""
_RESOURCE: Final = "OTEL_RESOURCE_ATTRIBUTES"
_COUNT_LIMITS: Final = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
)
_LENGTH_LIMITS: Final = (
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
)
_RATIO_SAMPLERS: Final = ("traceidratio", "parentbased_traceidratio")
_SAMPLERS: Final = (
    "parentbased_always_on",
    "parentbased_always_off",
    "always_on",
    "always_off",
    *_RATIO_SAMPLERS,
)
_LONGEST_MS: Final = 10**12
"""About what a thread can wait; more would end it."""
_EXEMPLARS: Final = ("trace_based", "always_on", "always_off")


def check_variables(target: OtlpTarget, environ: Mapping[str, str]) -> None:
    """Refuse what the SDK would fail on, or would replace by its default.

    Variables of signals that nobody asks for are not read. Those of requests and batches are
    checked where they are read: `OtlpEndpoint.of`, `BatchLimits.of`.

    Raises:
        EnvironmentRefusedError: `bad-telemetry`; it names the first variable that is wrong.
    """
    _check_choice(environ, _DISABLED, ("true", "false"), of=str.strip)
    _check_propagators(environ)
    _check_resource(environ)
    for name in (*_COUNT_LIMITS, *_LENGTH_LIMITS):
        _check_limit(environ, name, 128 if name in _COUNT_LIMITS else 4096)
    if target.traces_url is not None:
        _check_sampler(environ)
    if target.metrics_url is not None:
        _check_milliseconds(environ, "OTEL_METRIC_EXPORT_INTERVAL", 60_000)
        _check_milliseconds(environ, "OTEL_METRIC_EXPORT_TIMEOUT", 30_000)
        _check_choice(environ, "OTEL_METRICS_EXEMPLAR_FILTER", _EXEMPLARS)


def _check_propagators(environ: Mapping[str, str]) -> None:
    from importlib.metadata import entry_points  # 10 ms: only where something is configured

    said = environ.get(_PROPAGATORS, "")
    for name in map(str.strip, said.split(",") if said else ()):
        if name.lower() == "none":
            return
        installed = {each.name for each in entry_points(group=_PROPAGATOR_GROUP)}
        if name not in installed and "tracecontext" in installed:  # else there is no OpenTelemetry
            raise _refusal(
                _PROPAGATORS,
                name,
                f"; no installed package has a propagator of that name. There are "
                f"{', '.join(sorted(installed))} and none",
                "tracecontext,baggage",
            )


def _check_resource(environ: Mapping[str, str]) -> None:
    for item in environ.get(_RESOURCE, "").split(","):
        key, equals, _ = item.partition("=")
        if item.strip() and not (key.strip() and equals):
            raise EnvironmentRefusedError(
                f"{_RESOURCE} has the part '{item:.40}', which is not KEY=VALUE. Parts are "
                f"separated by commas: {_RESOURCE}=service.namespace=shop,deployment=test.",
                code="bad-telemetry",
            )


def _check_limit(environ: Mapping[str, str], name: str, example: int) -> None:
    said = environ.get(name, "").strip()
    if said and not _is_number(said, int, least=0):
        raise _refusal(name, said, ", which is no whole number from 0 on", str(example))


def _check_sampler(environ: Mapping[str, str]) -> None:
    _check_choice(environ, "OTEL_TRACES_SAMPLER", _SAMPLERS)
    if environ.get("OTEL_TRACES_SAMPLER", "").lower() not in _RATIO_SAMPLERS:
        return
    said = environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip()
    if said and not _is_number(said, float, least=0, most=1):
        what = ", which is no share of all traces from 0 to 1"
        raise _refusal("OTEL_TRACES_SAMPLER_ARG", said, what, "0.1")


def _check_milliseconds(environ: Mapping[str, str], name: str, usual: int) -> None:
    said = environ.get(name, "").strip()
    if said and not _is_number(said, float, least=1, most=_LONGEST_MS):
        what = f", which is no number of milliseconds from 1 to {_LONGEST_MS:,}"
        raise _refusal(name, said, what, str(usual))


def _check_choice(
    environ: Mapping[str, str],
    name: str,
    choices: Collection[str],
    of: Callable[[str], str] = str,
) -> None:
    said = environ.get(name, "")
    if said and of(said).lower() not in choices:
        what = f"; expected is one of {', '.join(choices)}"
        raise _refusal(name, said, what, next(iter(choices)))


def _is_number(
    said: str, read: Callable[[str], float], *, least: float, most: float = sys.float_info.max
) -> bool:
    """Whether it can be read, and is within the bounds: no infinity, no NaN."""
    try:
        number = read(said[:40])
    except ValueError:
        number = math.nan
    return least <= number <= most


def _refusal(name: str, said: str, what: str, example: str) -> EnvironmentRefusedError:
    return EnvironmentRefusedError(
        f"{name} is '{said:.40}'{what}: {name}={example}, or unset it.", code="bad-telemetry"
    )


# --- where traces and metrics go; known without the extra `otel` ---------------------------------


class OtlpTarget(Struct, frozen=True, kw_only=True):
    """Where traces and metrics go."""

    traces_url: str | None
    """The whole URL that spans are posted to; None: no spans are made."""
    metrics_url: str | None
    """The whole URL that metrics are posted to; None: none are sent."""
    service: str | None = None
    """The name of the service; None: as OpenTelemetry's variables say, else `minions`."""
