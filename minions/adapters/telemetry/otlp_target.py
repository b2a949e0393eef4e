"""Where traces and metrics go; known without the extra `otel`."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class OtlpTarget:
    """Where traces and metrics go."""

    traces_url: str | None
    """The whole URL that spans are posted to; None: no spans are made."""
    metrics_url: str | None
    """The whole URL that metrics are posted to; None: none are sent."""
    service: str | None = None
    """The name of the service; None: as OpenTelemetry's variables say, else `minions`."""
