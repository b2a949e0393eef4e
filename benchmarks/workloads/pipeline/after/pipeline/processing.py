"""From lines to daily figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from statistics import fmean

from pipeline.config import DEFAULT, Limits
from pipeline.models import Fault, Reading, ReadingError, parse


@dataclass(frozen=True)
class Daily:
    """The figures of one station on one day."""

    station: str
    day: date
    readings: int
    least: float
    mean: float
    most: float
    percent: float
    """Mean humidity."""


@dataclass
class Batch:
    """The readings and the faults of a run."""

    readings: list[Reading] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @property
    def lines(self) -> int:
        """How many lines were read."""
        return len(self.readings) + len(self.faults)


def read_lines(lines: Iterable[str], limits: Limits = DEFAULT) -> Batch:
    """Parse lines; empty ones are left out, faulty ones kept with their number and reason."""
    batch = Batch()
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text:
            continue
        try:
            batch.readings.append(parse(text, limits))
        except ReadingError as error:
            batch.faults.append(Fault(line=number, text=text, why=str(error)))
    return batch


def daily(readings: Iterable[Reading]) -> list[Daily]:
    """The figures by station and day, in that order."""
    groups: dict[tuple[str, date], list[Reading]] = defaultdict(list)
    for reading in readings:
        groups[reading.station, reading.day].append(reading)
    return [_daily(station, day, groups[station, day]) for station, day in sorted(groups)]


def _daily(station: str, day: date, readings: list[Reading]) -> Daily:
    celsius = [each.celsius for each in readings]
    return Daily(
        station=station,
        day=day,
        readings=len(readings),
        least=min(celsius),
        mean=round(fmean(celsius), 2),
        most=max(celsius),
        percent=round(fmean(each.percent for each in readings), 2),
    )
