from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minions.engine.services.flow.endpoint_limiter import RateWindow

GAPS = st.lists(
    st.tuples(st.floats(0, 20, allow_nan=False), st.integers(1, 40)), min_size=1, max_size=120
)


@given(most=st.integers(1, 50), gaps=GAPS)
def test_in_no_minute_is_more_used_than_the_limit(most: int, gaps: list[tuple[float, int]]) -> None:
    window, now = RateWindow(most), 1_000.0
    used: list[tuple[float, int]] = []
    for gap, wanted in gaps:
        now += gap
        amount = min(wanted, most)
        now = max(now, window.free_at(now, amount))
        window.use(now, amount)
        used.append((now, amount))
    for start, _ in used:
        assert sum(amount for at, amount in used if start <= at < start + 60) <= most


@given(most=st.integers(1, 50), gaps=GAPS)
def test_nothing_waits_longer_than_the_window_and_a_tenth_of_a_second(
    most: int, gaps: list[tuple[float, int]]
) -> None:
    window, now = RateWindow(most), 0.0
    for gap, amount in gaps:
        now += gap
        free_at = window.free_at(now, amount)
        assert now <= free_at <= now + 60.1 + 1e-6
        now = free_at
        window.use(now, amount)


def test_what_was_estimated_too_high_is_given_back() -> None:
    window = RateWindow(100)
    part = window.use(0.0, 90)
    assert window.free_at(1.0, 50) > 60
    window.settle(part, -80)
    assert window.free_at(1.0, 50) == 1.0


def test_more_than_the_limit_is_allowed_once_nothing_else_counts() -> None:
    window = RateWindow(100)
    assert window.free_at(0.0, 5_000) == 0.0
    window.use(0.0, 5_000)
    assert 60.0 < window.free_at(0.0, 1) <= 60.1


def test_its_memory_does_not_grow_with_what_is_used() -> None:
    window = RateWindow(10**9)
    for number in range(100_000):
        window.use(number / 1_000, 1)
    assert len(window._used) <= 601 + 400
    assert window.used(100.0) <= 60_100
