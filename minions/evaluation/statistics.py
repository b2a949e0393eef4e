"""What counts say of a rate: intervals, and whether two variants differ.

Sources: E. B. Wilson, Probable inference (1927), for the interval of a share; R. G. Newcombe (1998)
for that of a difference of paired cases, and the sign test for their split; case means where a case
was asked several times, since its answers are no independent draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from attrs import frozen

_Z: Final = 1.959963984540054
"""Standard deviations of a normal distribution between which 95 % lie."""


@frozen
class Interval:
    """An estimate with the range in which it lies at 95 %."""

    value: float
    low: float
    high: float


def rate_interval(shares: Sequence[float]) -> Interval | None:
    """The mean of the shares of each case that passed, from 0 to 1; None: there is no case.

    Where each share is 0 or 1, or all are the same, it is Wilson's interval; else that of the means
    of cases, clipped.
    """
    count = len(shares)
    if not count:
        return None
    mean = sum(shares) / count
    if all(share in (0, 1) for share in shares) or len(set(shares)) == 1:
        return _wilson(mean, count)
    spread = _Z * _standard_error(shares, mean)
    return Interval(mean, max(0.0, mean - spread), min(1.0, mean + spread))


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Interval | None:
    """How much better the second of each pair is, in the mean, with its interval at 95 %.

    Source: R. G. Newcombe, Improved confidence intervals for the difference between binomial
    proportions based on paired data, Statistics in Medicine 17 (1998), 2635-2650, method 10: the
    intervals of the two rates, joined by their correlation, which is corrected for continuity. It
    is right for few pairs, and has a width where all differ alike. Shares between 0 and 1, of cases
    that were asked several times, have the interval of `rate_interval` in the place of Wilson's.

    Args:
        ours: Shares of each case that passed, from 0 to 1.
        theirs: Those of the same cases, in the same order.
    Returns:
        From -1 to 1; None: no pair.
    """
    one, other = rate_interval(ours), rate_interval(theirs)
    if one is None or other is None:
        return None
    found = other.value - one.value
    related = _correlation(ours, theirs)
    below = _join(other.value - other.low, one.high - one.value, related)
    above = _join(other.high - other.value, one.value - one.low, related)
    return Interval(found, max(-1.0, found - below), min(1.0, found + above))


def difference_of_groups(before: Sequence[bool], now: Sequence[bool]) -> Interval | None:
    """How much more of the second group passed than of the first, with its interval at 95 %.

    Source: R. G. Newcombe, Interval estimation for the difference between independent proportions,
    Statistics in Medicine 17 (1998), 873-890, method 10.

    Returns:
        From -1 to 1; None: one of them is empty.
    """
    one, other = rate_interval([*map(float, before)]), rate_interval([*map(float, now)])
    if one is None or other is None:
        return None
    mean = other.value - one.value
    return Interval(
        mean,
        mean - _join(other.value - other.low, one.high - one.value, 0.0),
        mean + _join(other.high - other.value, one.value - one.low, 0.0),
    )


def mean_interval(values: Sequence[float]) -> Interval | None:
    """The mean with its interval at 95 %, by the normal approximation; None: fewer than two."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    spread = _Z * _standard_error(values, mean)
    return Interval(mean, mean - spread, mean + spread)


def sign_test(better: int, worse: int) -> float:
    """The probability of a split at least as uneven if neither were better, from 0 to 1."""
    count, less = better + worse, min(better, worse)
    if not count:
        return 1.0
    # In logarithms: a thousand cases are beyond the range of floats.
    tail = sum(
        math.exp(
            math.lgamma(count + 1)
            - math.lgamma(at + 1)
            - math.lgamma(count - at + 1)
            - count * math.log(2)
        )
        for at in range(less + 1)
    )
    return min(1.0, 2 * tail)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least that share of the values do not exceed; None: no value."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def _wilson(mean: float, count: int) -> Interval:
    square = _Z * _Z
    middle = (mean + square / (2 * count)) / (1 + square / count)
    spread = (_Z / (1 + square / count)) * math.sqrt(
        mean * (1 - mean) / count + square / (4 * count * count)
    )
    return Interval(
        mean, max(0.0, min(mean, middle - spread)), min(1.0, max(mean, middle + spread))
    )


def _correlation(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """That of pairs, nearer to 0 if they are few; 0 where one of them is always the same."""
    count = len(ours)
    mean, other_mean = sum(ours) / count, sum(theirs) / count
    both = sum((x - mean) * (y - other_mean) for x, y in zip(ours, theirs, strict=True)) / count
    spread = math.sqrt(
        sum((x - mean) ** 2 for x in ours)
        / count
        * sum((y - other_mean) ** 2 for y in theirs)
        / count
    )
    if not spread:
        return 0.0
    # A half of a pair less in each cell of the table of passes is `1 / 2n` less in the covariance.
    corrected = both if both < 0 else max(0.0, both - 1 / (2 * count))
    return max(-1.0, min(1.0, corrected / spread))


def _join(one: float, other: float, correlation: float) -> float:
    """The distance of a limit, from those of the two rates."""
    return math.sqrt(max(0.0, one * one - 2 * correlation * one * other + other * other))


def _standard_error(values: Sequence[float], mean: float) -> float:
    count = len(values)
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    return math.sqrt(variance / count)
