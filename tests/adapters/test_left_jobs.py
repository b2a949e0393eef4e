"""What one worker leaves to others, and when it takes that again."""

from __future__ import annotations

import pytest

from minions.adapters.dispatch.left_jobs import LeftJobs
from minions.contracts.dispatch import Job, Lack
from minions.testing.virtual_time import FakeClock


def job(run: str, needs: str = "") -> Job:
    return Job(run_id=run, session_id="s", submission=f"1-{needs}" if needs else "1")


def test_jobs_of_a_kind_or_of_one_run_are_left_until_their_time() -> None:
    """A-181."""
    clock = FakeClock()
    left = LeftJobs(clock.monotonic)
    kind, run = Lack(parts=("a tool",)), Lack(parts=("a key",), is_of_run=True, again_s=5)
    left.leave(job("one", "abc"), kind)
    left.leave(job("two", "def"), run)
    assert [
        left.takes(job(*each)) for each in (("new", "abc"), ("two", "def"), ("new", "def"))
    ] == [
        False,
        False,
        True,
    ]
    assert (left.needs, left.runs, left.next_s()) == (["abc"], ["two"], 5)
    clock.advance(5)
    assert left.takes(job("two", "def"))
    assert not left.takes(job("new", "abc"))
    assert left.next_s() is None


@pytest.mark.parametrize("is_of_run", [True, False])
def test_a_worker_remembers_no_more_than_a_thousand_of_each(is_of_run: bool) -> None:
    """A-181: each claim asks the database to leave them out."""
    left = LeftJobs(FakeClock().monotonic)
    for number in range(1_500):
        lack = Lack(parts=("x",), is_of_run=is_of_run)
        left.leave(job(f"r{number}", f"n{number}"), lack)
    assert len(left.runs) + len(left.needs) == 1_000
    assert left.takes(job("r0", "n0"))
    assert not left.takes(job("r1499", "n1499"))


def test_a_job_that_says_no_needs_is_left_alone() -> None:
    left = LeftJobs(FakeClock().monotonic)
    assert left.takes(job("one"))
    left.leave(job("one"), Lack(parts=("x",)))
    assert not left.takes(job("one"))
    assert left.takes(job("two"))
    assert (left.needs, left.runs) == ([], ["one"])


def test_what_was_left_again_is_the_newest_and_the_soonest_time_is_told() -> None:
    """A-181."""
    clock = FakeClock()
    left = LeftJobs(clock.monotonic)
    assert left.next_s() is None
    for number in range(1_000):
        left.leave(job(f"r{number}"), Lack(parts=("x",), is_of_run=True, again_s=10 + number))
    left.leave(job("r0"), Lack(parts=("x",), is_of_run=True, again_s=5_000))
    left.leave(job("new"), Lack(parts=("x",), is_of_run=True))
    assert not left.takes(job("r0"))
    assert left.takes(job("r1"))  # the oldest one is forgotten
    assert left.next_s() == 12
    left.leave(job("one", "abc"), Lack(parts=("x",), again_s=3))
    assert left.next_s() == 3
    clock.advance(3)
    assert (left.needs, left.next_s()) == ([], 9)
    assert left.takes(job("one", "abc"))
    clock.advance(10_000)
    assert (left.runs, left.next_s()) == (["new"], None)
