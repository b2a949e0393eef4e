"""Limits and units of readings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What a reading may hold."""

    least_celsius: float = -60.0
    most_celsius: float = 60.0
    most_percent: float = 100.0
    most_faults: float = 0.5
    """Share of faulty lines above which a run is refused."""


DEFAULT = Limits()
