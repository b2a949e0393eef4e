"""Intervals and tests of rates, against figures from tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.evaluation.statistics import difference, percentile, rate_interval, sign_test

shares = st.lists(st.floats(0, 1), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("passed", "count", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662), (1, 1, 0.2065, 1.0)],
)
def test_the_interval_of_a_share_is_wilsons(
    passed: int, count: int, low: float, high: float
) -> None:
    found = rate_interval([1.0] * passed + [0.0] * (count - passed))
    assert found is not None
    assert found.value == passed / count
    assert found.low == pytest.approx(low, abs=2e-4)
    assert found.high == pytest.approx(high, abs=2e-4)


@given(shares)
def test_an_interval_holds_its_value_and_stays_within_0_and_1(each: list[float]) -> None:
    found = rate_interval(each)
    assert found is not None
    assert 0 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1


def test_cases_that_were_asked_several_times_count_once_each() -> None:
    several = rate_interval([0.5, 1.0, 0.0, 0.5])
    whole = rate_interval([1.0, 1.0, 0.0, 0.0])
    assert several is not None
    assert whole is not None
    assert several.value == whole.value
    assert several.high - several.low < whole.high - whole.low + 0.3
    assert rate_interval([]) is None


def test_cases_that_all_do_equally_well_do_not_make_a_rate_certain() -> None:
    found = rate_interval([2 / 3] * 3)
    assert found is not None
    assert found.high - found.low > 0.5


@pytest.mark.parametrize(
    ("better", "worse", "expected"),
    [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 0.0625), (9, 1, 0.021484), (1000, 900, 0.023107)],
)
def test_the_sign_test_gives_exact_probabilities(better: int, worse: int, expected: float) -> None:
    assert sign_test(better, worse) == pytest.approx(expected, rel=1e-3)
    assert sign_test(worse, better) == sign_test(better, worse)


@given(shares)
def test_a_variant_does_not_differ_from_itself(each: list[float]) -> None:
    found = difference(each, each)
    assert found is not None
    assert found.value == 0
    assert found.low <= 0 <= found.high


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.95) == 3
    assert percentile([4.0, 1.0, 2.0, 3.0], 0.5) == 2
    assert percentile([float(each) for each in range(1, 101)], 0.95) == 95
