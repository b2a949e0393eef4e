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


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        ((36, 12, 2, 0), 0.0569, 0.3404),
        ((36, 14, 0, 0), 0.1528, 0.4167),
        ((0, 3, 0, 0), 0.2059, 1.0),
        ((3, 0, 0, 0), -0.5615, 0.5615),
    ],
)
def test_the_interval_of_a_difference_is_newcombes(
    table: tuple[int, int, int, int], low: float, high: float
) -> None:
    """A-138. The first two are of the tables of the paper."""
    both, first, second, none = table
    ones = [1.0] * (both + first) + [0.0] * (second + none)
    others = [1.0] * both + [0.0] * first + [1.0] * second + [0.0] * none
    found = difference(others, ones)
    assert found is not None
    assert found.value == pytest.approx((first - second) / len(ones))
    assert found.low == pytest.approx(low, abs=1e-4)
    assert found.high == pytest.approx(high, abs=1e-4)


share = st.sampled_from([passed / 5 for passed in range(6)])
passes = st.lists(st.tuples(*[st.sampled_from([0.0, 1.0])] * 2), min_size=1, max_size=40)
pairs = passes | st.lists(st.tuples(share, share), min_size=1, max_size=40)


@given(pairs)
def test_a_difference_lies_in_an_interval_that_is_never_a_point(
    each: list[tuple[float, float]],
) -> None:
    """A-138."""
    ours, theirs = [one for one, _ in each], [other for _, other in each]
    found = difference(ours, theirs)
    back = difference(theirs, ours)
    assert found is not None
    assert back is not None
    assert -1 <= found.low <= found.value + 1e-9
    assert found.value - 1e-9 <= found.high <= 1
    assert found.high - found.low > 1e-3
    assert back.low == pytest.approx(-found.high, abs=1e-9)
    assert back.high == pytest.approx(-found.low, abs=1e-9)


@given(pairs, st.integers(2, 6))
def test_more_cases_of_the_same_kind_make_a_difference_more_certain(
    each: list[tuple[float, float]], times: int
) -> None:
    few = difference([one for one, _ in each], [other for _, other in each])
    many = difference([one for one, _ in each * times], [other for _, other in each * times])
    assert few is not None
    assert many is not None
    assert many.value == pytest.approx(few.value, abs=1e-9)
    assert few.low - 1e-9 <= many.low
    assert many.high <= few.high + 1e-9


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0], 0.95) == 3
    assert percentile([4.0, 1.0, 2.0, 3.0], 0.5) == 2
    assert percentile([float(each) for each in range(1, 101)], 0.95) == 95
