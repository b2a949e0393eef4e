"""What many workers ask of the database on a fake clock, as `docs/scale.md` computes it.

`python -m benchmarks.thousand_workers` plays a thousand.
"""

from __future__ import annotations

import pytest

pytest.importorskip("dbos")

from workers.crowd import Crowd, CrowdOutcome, crowded

_LOOKS_OF_ANY = ("look at runs", "look at schedules")
"""What any worker may do for all."""


def idle(workers: int) -> CrowdOutcome:
    return crowded(Crowd(workers=workers, started_within_s=5.0, counted_s=40.0), 1)


def test_an_idle_worker_asks_as_often_as_was_measured_of_a_real_one() -> None:
    """0.93 transactions a second."""
    assert idle(1).idle_per_s == pytest.approx(0.93, rel=0.1)


def test_what_any_worker_may_do_is_done_about_as_often_by_many_as_by_eight() -> None:
    few, many = idle(8), idle(40)
    assert many.per_s("heartbeat") == pytest.approx(40 / 5, rel=0.05)
    assert many.per_s("look at pauses and lacks") == pytest.approx(40 / 5, rel=0.05)
    assert many.per_s(*_LOOKS_OF_ANY) == pytest.approx(few.per_s(*_LOOKS_OF_ANY), rel=0.3)
    assert not {"look", "claim"} & many.calls.keys()  # heartbeats look, too
    assert many.statements_per_s == pytest.approx(many.idle_per_s + 40 / 5, rel=0.05)


@pytest.mark.parametrize("seed", range(2))
def test_a_job_is_told_to_all_taken_soon_and_executed_once(seed: int) -> None:
    crowd = Crowd(workers=30, jobs_per_s=2.0, started_within_s=5.0, counted_s=10.0)
    outcome = crowded(crowd, seed)
    assert not outcome.faults
    assert outcome.executed == len(outcome.taken_s) > 5
    assert outcome.told == pytest.approx(2 * 30 * outcome.executed, rel=0.1)
    assert outcome.taken_ms[0] < 30
    assert outcome.calls["claim"] < 5 * outcome.executed


def test_a_seed_plays_the_same_crowd_again() -> None:
    crowd = Crowd(workers=5, jobs_per_s=1.0, started_within_s=2.0, counted_s=5.0)
    assert crowded(crowd, 3) == crowded(crowd, 3)
    assert crowded(crowd, 3) != crowded(crowd, 4)


def test_workers_that_are_started_together_get_out_of_step() -> None:
    outcome = crowded(Crowd(workers=40, started_within_s=0.0, counted_s=40.0), 1)
    assert outcome.busiest < 2.5 * outcome.idle_per_s
