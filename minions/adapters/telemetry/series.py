"""Counters and histograms with a bounded number of series, in this process; nothing is global.

They count without a library; `prometheus-client` makes families and text of them where a page is
asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from minions.data.errors import EnvironmentRefusedError

if TYPE_CHECKING:
    from prometheus_client.core import Metric


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_MOST_SERIES: Final = 200
"""Combinations of label values that a family keeps; what comes later is counted under `other`."""
_OTHER: Final = "other"
_LONGEST: Final = 120
"""Characters of a label value: names come from recipes and servers."""
SECONDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 120.0, 300.0),
)
"""Upper bounds of a histogram's buckets, in seconds."""


class Family:
    """A metric with its labels."""

    def __init__(self, name: str, help_: str, labels: Sequence[str]) -> None:
        """No series yet.

        Args:
            help_: What it counts, as a sentence.
        """
        self.name = name
        self.help = help_
        self.labels = tuple(labels)
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}

    def _key(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """The series of these label values; of too many, the one of all others."""
        known = self._known.get(values)
        if known is not None:
            return known
        shown = tuple(_encodable(value[:_LONGEST]) for value in values)
        if shown not in self._known and len(self._known) >= _MOST_SERIES:
            return (_OTHER,) * len(self.labels)
        self._known[shown] = shown
        return shown

    def collected(self) -> Metric:
        """The family as it is now."""
        raise NotImplementedError


class Counter(Family):
    """A number that only grows."""

    def __init__(self, name: str, help_: str, labels: Sequence[str]) -> None:
        super().__init__(name, help_, labels)
        self._values: dict[tuple[str, ...], float] = {}

    def add(self, *values: str, amount: float = 1.0) -> None:
        """Add to the series of these label values."""
        key = self._key(values)
        self._values[key] = self._values.get(key, 0.0) + amount

    def collected(self) -> Metric:
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(self.name, self.help, labels=self.labels)
        for values, amount in self._values.items():
            family.add_metric(values, amount)
        return family


class Histogram(Family):
    """How long things took, in seconds."""

    def __init__(self, name: str, help_: str, labels: Sequence[str]) -> None:
        super().__init__(name, help_, labels)
        self._counts: dict[tuple[str, ...], list[int]] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def observe(self, *values: str, seconds: float) -> None:
        """Count one that took so long."""
        key = self._key(values)
        counts = self._counts.get(key)
        if counts is None:
            counts = self._counts[key] = [0] * (len(SECONDS) + 1)
            self._sums[key] = 0.0
        counts[bisect_left(SECONDS, seconds)] += 1
        self._sums[key] += seconds

    def collected(self) -> Metric:
        from prometheus_client.core import HistogramMetricFamily

        family = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        bounds = [*map(repr, SECONDS), "+Inf"]
        for values, counts in self._counts.items():
            buckets, total = [], 0
            for bound, count in zip(bounds, counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric(values, buckets, self._sums[values])
        return family


class Gauge(Family):
    """Values as they are now."""

    def __init__(
        self,
        name: str,
        help_: str,
        values: Mapping[tuple[str, ...], float] | float,
        labels: Sequence[str] = (),
    ) -> None:
        """The values by those of their labels; a number: the one without labels."""
        super().__init__(name, help_, labels)
        self._values = values if isinstance(values, Mapping) else {(): float(values)}

    def collected(self) -> Metric:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(self.name, self.help, labels=self.labels)
        for values, amount in self._values.items():
            family.add_metric([_encodable(value) for value in values], amount)
        return family


def text_of(families: Iterable[Family]) -> str:
    """The families as Prometheus text.

    Raises:
        EnvironmentRefusedError: `missing-extra`.
    """
    require_client()
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Page(Collector):
        """These families; the library asks for them once."""

        def collect(self) -> Iterator[Metric]:
            return (each.collected() for each in families)

    registry = CollectorRegistry()
    registry.register(Page())
    return generate_latest(registry).decode()


def require_client() -> None:
    """Load what makes the text, which takes some 40 ms.

    Raises:
        EnvironmentRefusedError: `missing-extra`.
    """
    try:
        import prometheus_client  # noqa: F401  # whether it can be
    except ImportError as error:
        raise EnvironmentRefusedError(
            "A page of metrics needs the package 'prometheus_client', which is not installed. "
            "Install the extra: pip install 'minions-engine[server]'.",
            code="missing-extra",
        ) from error


def _encodable(text: str) -> str:
    """What UTF-8 lacks is replaced. A lone carriage return ends a line for some parsers."""
    return text.replace("\r", " ").encode("utf-8", "replace").decode("utf-8")
