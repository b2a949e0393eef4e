"""Times as people write them: `90`, `90s`, `10m`, `2h`, `30d`."""

from __future__ import annotations

import re
from typing import Final

from minions.data.errors import UsageError

_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S: Final = 1e12
"""31,000 years: a longer duration counts as this one, for JSON has no infinite number."""
_FORM: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")


def seconds_of(text: str) -> float:
    """The duration in seconds.

    Raises:
        UsageError: `text` has another form, or is zero.
    """
    found = _FORM.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if seconds <= 0:
        raise UsageError(f"{text!r} is not a duration. Write seconds or 90s, 10m, 2h.")
    return min(seconds, _LONGEST_S)


def spoken(duration_ms: float) -> str:
    """A duration in short form for people: `12 ms`, `1.2 s`, `3 min 5 s`."""
    if duration_ms < 1_000:
        return f"{duration_ms:.0f} ms"
    if duration_ms < 60_000:
        return f"{duration_ms / 1_000:.1f} s"
    minutes, rest = divmod(duration_ms / 1_000, 60)
    return f"{minutes:.0f} min {rest:.0f} s"
