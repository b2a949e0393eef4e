"""Counters, gauges and histograms as Prometheus text, with a bounded number of series.

The format is that of Prometheus 0.0.4. Values live in this process; nothing is global.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

__all__ = ["CONTENT_TYPE", "Counter", "Family", "Histogram", "gauge_lines"]

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

    kind = "untyped"

    def __init__(self, name: str, help_: str, labels: Sequence[str] = ()) -> None:
        """No series yet.

        Args:
            help_: What it counts, as a sentence.
        """
        self.name = name
        self._help = help_
        self._labels = tuple(labels)
        self._known: set[tuple[str, ...]] = set()

    def _key(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """The series of these label values; of too many, the one of all others."""
        if values in self._known:
            return values
        values = tuple(value[:_LONGEST] for value in values)
        if values not in self._known and len(self._known) >= _MOST_SERIES:
            return (_OTHER,) * len(self._labels)
        self._known.add(values)
        return values

    def lines(self) -> Iterator[str]:
        """The family as text: what it is, then its series."""
        yield f"# HELP {self.name} {_escaped_help(self._help)}"
        yield f"# TYPE {self.name} {self.kind}"
        yield from self._samples()

    def _samples(self) -> Iterator[str]:
        """One line for each value."""
        return iter(())

    def _named(self, values: tuple[str, ...]) -> Mapping[str, str]:
        return dict(zip(self._labels, values, strict=True))


class Counter(Family):
    """A number that only grows."""

    kind = "counter"

    def __init__(self, name: str, help_: str, labels: Sequence[str] = ()) -> None:
        """No series yet; without labels there is one, which is 0.

        Args:
            help_: What it counts, as a sentence.
        """
        super().__init__(name, help_, labels)
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}

    def add(self, *values: str, amount: float = 1.0) -> None:
        """Add to the series of these label values."""
        key = self._key(values)
        self._values[key] = self._values.get(key, 0.0) + amount

    def _samples(self) -> Iterator[str]:
        for values, amount in self._values.items():
            yield sample(self.name, self._named(values), amount)


class Histogram(Family):
    """How long things took, in seconds."""

    kind = "histogram"

    def __init__(self, name: str, help_: str, labels: Sequence[str] = ()) -> None:
        """No series yet.

        Args:
            help_: What is timed, as a sentence.
        """
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

    def _samples(self) -> Iterator[str]:
        for values, counts in self._counts.items():
            named, total = self._named(values), 0
            for bound, count in zip((*SECONDS, math.inf), counts, strict=True):
                total += count
                yield sample(f"{self.name}_bucket", {**named, "le": _number(bound)}, total)
            yield sample(f"{self.name}_sum", named, self._sums[values])
            yield sample(f"{self.name}_count", named, total)


def gauge_lines(
    name: str, help_: str, values: Sequence[tuple[Mapping[str, str], float]]
) -> Iterator[str]:
    """A family of values as they are now, with their labels."""
    yield f"# HELP {name} {_escaped_help(help_)}"
    yield f"# TYPE {name} gauge"
    for labels, value in values:
        yield sample(name, labels, value)


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    """One line: the name, its labels, the value."""
    if not labels:
        return f"{name} {_number(value)}"
    named = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{name}{{{named}}} {_number(value)}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def _escaped(text: str) -> str:
    """A label value: quotes, backslashes and line breaks escaped; what UTF-8 lacks replaced."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return _encodable(text)


def _escaped_help(text: str) -> str:
    return _encodable(text.replace("\\", "\\\\").replace("\n", "\\n"))


def _encodable(text: str) -> str:
    # A lone carriage return ends a line for some parsers.
    return text.replace("\r", " ").encode("utf-8", "replace").decode("utf-8")
