"""Readings and their validation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, datetime

from pipeline.config import DEFAULT, Limits


class ReadingError(ValueError):
    """A line is no reading; the text says why."""


@dataclass(frozen=True)
class Reading:
    """What a station measured."""

    station: str
    time: datetime
    celsius: float
    percent: float

    @property
    def day(self) -> date:
        """The day of the reading."""
        return self.time.date()


@dataclass(frozen=True)
class Fault:
    """A line that could not be used."""

    line: int
    """From 1."""
    text: str
    why: str


def parse(text: str, limits: Limits = DEFAULT) -> Reading:
    """The reading in a line; raises ReadingError."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ReadingError("no JSON") from error
    if not isinstance(value, dict):
        raise ReadingError("no JSON object")
    station = value.get("station")
    if not isinstance(station, str) or not station:
        raise ReadingError("station: a text is expected")
    reading = Reading(
        station=station,
        time=_time(value.get("time")),
        celsius=_number(value, "celsius"),
        percent=_number(value, "percent"),
    )
    if not limits.least_celsius <= reading.celsius <= limits.most_celsius:
        raise ReadingError(f"celsius: {reading.celsius:g} is out of range")
    if not 0 <= reading.percent <= limits.most_percent:
        raise ReadingError(f"percent: {reading.percent:g} is out of range")
    return reading


def _time(value: object) -> datetime:
    try:
        return datetime.fromisoformat(str(value))
    except ValueError as error:
        raise ReadingError("time: an ISO time is expected") from error


def _number(value: dict[str, object], key: str) -> float:
    found = value.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ReadingError(f"{key}: a number is expected")
    return float(found)
