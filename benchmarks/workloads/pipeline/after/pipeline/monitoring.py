"""What happened in a run, and whether its figures may be used."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pipeline.config import DEFAULT, Limits
from pipeline.processing import Batch


class TooManyFaultsError(Exception):
    """So many lines are faulty that the figures would say nothing."""


@dataclass
class Monitor:
    """Counts faults and measures how long the parts of a run take."""

    clock: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)
    lines: int = 0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure a part of the run, also one that fails."""
        begin = self.clock()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + self.clock() - begin

    def saw(self, batch: Batch) -> None:
        """Count the lines of a batch, and its faults by the field that they are in."""
        self.lines += batch.lines
        self.faults.update(each.why.partition(":")[0] for each in batch.faults)

    @property
    def share(self) -> float:
        """The share of lines that are faulty."""
        return self.faults.total() / self.lines if self.lines else 0.0

    def check(self, limits: Limits = DEFAULT) -> None:
        """Raise TooManyFaultsError where the share is above the limit."""
        if self.share > limits.most_faults:
            raise TooManyFaultsError(f"{self.share:.0%} of {self.lines} lines are faulty")

    def report(self) -> str:
        """One line for a log."""
        faults = ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items()))
        seconds = ", ".join(f"{name} {taken:.2f} s" for name, taken in self.seconds.items())
        parts = [f"{self.lines} lines", f"faults: {faults or 'none'}", seconds]
        return "; ".join(each for each in parts if each)
