"""What the headers of an answer say of a server's limits, in the spellings of known servers.

What cannot be read says nothing: these headers only make waiting more precise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from minions.contracts.model_endpoints import Allowance, RateLimits

_REQUESTS: Final = (
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests", "x-ratelimit-limit-requests"),
    (
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-reset",
        "anthropic-ratelimit-requests-limit",
    ),
    ("x-ratelimit-remaining", "x-ratelimit-reset", None),
    ("ratelimit-remaining", "ratelimit-reset", None),
)
"""What is left, until when, and the header of the most that can be left. Where that is None, the
time is the end of a window; else it is when there is as much as can be, and until then there is
more each moment."""
_TOKENS: Final = (
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens", "x-ratelimit-limit-tokens"),
    (
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-reset",
        "anthropic-ratelimit-tokens-limit",
    ),
    (
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-reset",
        "anthropic-ratelimit-input-tokens-limit",
    ),
)
_LEFT: Final = frozenset(names[0] for names in (*_REQUESTS, *_TOKENS))
"""The headers of which at least one is there where anything is said."""
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_DURATION: Final = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhd]))+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_EPOCH_S: Final = 1e9
"""A larger number is a time of day in seconds; above a thousand times that, in milliseconds."""
_LONGEST: Final = 64
"""Characters of a value that is read."""


def rate_limits_of(headers: Mapping[str, str], now: Callable[[], datetime]) -> RateLimits | None:
    """The limits that these headers name; None: they name none.

    Args:
        headers: Values by lower-case name.
        now: The time of day, for servers that say one.
    """
    if _LEFT.isdisjoint(headers):
        return None
    requests = _first(headers, _REQUESTS, now)
    tokens = _first(headers, _TOKENS, now)
    if requests is None and tokens is None:
        return None
    return RateLimits(requests=requests, tokens=tokens)


def _first(
    headers: Mapping[str, str],
    names: tuple[tuple[str, str, str | None], ...],
    now: Callable[[], datetime],
) -> Allowance | None:
    for left_name, reset_name, most_name in names:
        said = headers.get(left_name)
        if said is None:
            continue
        left, reset_s = _number(said), _seconds(headers.get(reset_name, ""), now)
        if left is None or reset_s is None:
            continue
        if most_name is None:
            return Allowance(int(left), reset_s)
        most = _number(headers.get(most_name, ""))
        if most is not None and most > left and reset_s > 0:
            return Allowance(int(left), reset_s, (most - left) / reset_s)
        if left >= 1:  # without the limit nothing is known of when one more is allowed
            return Allowance(int(left), 0.0)
    return None


def _seconds(said: str, now: Callable[[], datetime]) -> float | None:
    """Seconds from now, of `6m0s`, `12`, a time of day as a number, or `2026-01-02T03:04:05Z`."""
    text = said.strip()
    if len(text) > _LONGEST:
        return None
    number = _number(text)
    if number is not None:
        return _until(number, now)
    if _DURATION.fullmatch(text):
        return sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(text))
    try:
        until = datetime.fromisoformat(text)
    except ValueError:
        return None
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return max(0.0, (until - now()).total_seconds())


def _until(number: float, now: Callable[[], datetime]) -> float:
    if number < _EPOCH_S:
        return number
    seconds = number if number < _EPOCH_S * 1000 else number / 1000
    return max(0.0, seconds - now().timestamp())


def _number(text: str) -> float | None:
    """A finite number from 0; None: it is none."""
    try:
        value = float(text) if len(text) <= _LONGEST else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None
