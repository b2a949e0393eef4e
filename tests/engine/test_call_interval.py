"""The interval between calls that a server limits over time."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minions.engine.services.flow.call_interval import CallInterval

REFUSAL_S = 0.01
SURE_S = 0.03


class Bucket:
    """A server that takes so many calls a second, `most` of them at once."""

    def __init__(self, per_s: float, most: float = 1.0) -> None:
        self.per_s, self.most = per_s, most
        self.left, self.at = 0.0, 0.0

    def takes(self, now: float) -> bool:
        self.left = min(self.most, self.left + (now - self.at) * self.per_s)
        self.at = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


def played(
    takes: Callable[[float], bool], first_at: float, until: float, said_s: float | None = None
) -> tuple[list[float], int, CallInterval]:
    """When calls were taken, and how many were refused."""
    while not takes(first_at):
        first_at += REFUSAL_S
    interval, now = CallInterval(0.0, 1, first_at), first_at
    taken, refused, held = list[float](), 0, 0.0
    while now < until:
        now = max(interval.free_at(now, SURE_S), held)
        if now < interval.free_at(now, SURE_S):
            continue
        interval.begin(now)
        if takes(now):
            taken.append(now)
            continue
        refused += 1
        begun_at, now = now, now + REFUSAL_S
        assert interval.refused(begun_at, now, is_said=said_s is not None)
        held = now + (said_s or 0.0)
    return taken, refused, interval


@given(per_s=st.floats(0.2, 20.0), most=st.floats(1.0, 4.0))
def test_calls_are_taken_nearly_as_fast_as_a_bucket_fills(per_s: float, most: float) -> None:
    """At 90 % of its rate and with a refusal for few of them (A-156)."""
    long_s = 200 / per_s
    taken, refused, _ = played(Bucket(per_s, most).takes, 1 / per_s, long_s)
    assert len(taken) >= 0.9 * 200
    assert refused <= 100


def test_a_server_that_says_when_refuses_less_and_less() -> None:
    taken, refused, _ = played(Bucket(1.0).takes, 1.0, 200.0, said_s=1.0)
    assert refused <= 12
    assert len(taken) >= 180
    later, all_refused, _ = played(Bucket(1.0).takes, 1.0, 400.0, said_s=1.0)
    assert all_refused - refused <= 8
    assert len(later) >= 370


def test_a_bucket_that_fills_up_while_its_server_is_left_alone_is_used_for_the_most_part() -> None:
    taken, refused, _ = played(Bucket(10.0, 5.0).takes, 0.1, 60.0, said_s=1.0)
    assert len(taken) >= 0.8 * 600
    assert refused <= 20


@pytest.mark.parametrize(("before", "after"), [(1.0, 4.0), (4.0, 1.0)])
def test_another_rate_is_found(before: float, after: float) -> None:
    bucket = Bucket(before)

    def takes(now: float) -> bool:
        bucket.per_s = before if now < 100 else after
        return bucket.takes(now)

    taken, _, _ = played(takes, 1 / before, 250.0)
    assert len([each for each in taken if each >= 200]) >= 0.9 * 50 * after


def test_while_it_is_measured_calls_follow_one_another_twice_as_many_each_time() -> None:
    interval = CallInterval(0.0, 1, 0.0)
    rounds = list[tuple[float, int]]()
    now = 0.0
    for _ in range(4):
        count = 0
        while interval.free_at(now, SURE_S) <= now:
            interval.begin(now)
            count += 1
        rounds.append((now, count))
        now = interval.free_at(now, SURE_S)
    assert rounds == [(0.0, 1), (SURE_S, 2), (2 * SURE_S, 4), (pytest.approx(0.09), 8)]


def test_an_interval_is_the_time_between_two_refusals_by_the_calls_that_were_taken() -> None:
    interval = CallInterval(1.0, 3, 2.5)
    interval.begin(2.5)
    assert interval.refused(2.5, 3.0, is_said=False)
    assert interval.free_at(3.0, SURE_S) == pytest.approx(2.5 + 2.0 / 3)


def test_it_is_lost_after_four_of_them_without_a_call_that_was_taken() -> None:
    interval = CallInterval(0.0, 1, 0.5)
    interval.begin(0.9)
    assert interval.refused(0.9, 1.0, is_said=False)
    now, tries = 1.0, 0
    while True:
        now = interval.free_at(now, SURE_S)
        interval.begin(now)
        tries += 1
        if not interval.refused(now, now, is_said=False):
            break
    assert 4.0 <= now - 0.9 <= 6.5
    assert tries <= 12
    assert interval.is_late


def test_what_was_under_way_with_a_refused_call_says_nothing_more() -> None:
    interval = CallInterval(0.0, 1, 0.0)
    for at in (0.0, 0.1):
        interval.begin(at)
    assert interval.refused(0.0, 1.0, is_said=False)
    free = interval.free_at(1.0, SURE_S)
    assert interval.refused(0.1, 1.0, is_said=False)
    assert interval.free_at(1.0, SURE_S) == free
    assert math.isfinite(free)
    assert not interval.is_late


def test_a_call_that_is_refused_for_a_reason_of_its_own_is_not_counted_as_taken() -> None:
    def shortest(*, is_left_out: bool) -> float:
        interval = CallInterval(0.0, 1, 0.0)
        interval.begin(0.0)
        interval.refused(0.0, 1.0, is_said=False)
        now = 1.0
        for _ in range(20):
            now = interval.free_at(now, SURE_S)
            interval.begin(now)
            if is_left_out:
                interval.leave_out(now)
        return interval.free_at(now, SURE_S) - now

    assert shortest(is_left_out=True) == pytest.approx(1.0)
    assert shortest(is_left_out=False) < 0.2
