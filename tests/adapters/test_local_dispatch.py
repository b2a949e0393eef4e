"""What holds of the queues within a process beyond the conformance suite."""

from __future__ import annotations

import asyncio

import pytest

from minions.adapters.dispatch.local_dispatch import LocalDispatch
from minions.contracts.dispatch import (
    Job,
    JobEnd,
    JobState,
    QueueLimits,
    QueueView,
    RateLimit,
    WorkerPlan,
)
from minions.testing.dispatch_suite import JobRecorder, job, opened, plan, serve, serving, until
from minions.testing.virtual_time import FakeClock


class Time:
    """A clock that goes on when it is told to; whoever sleeps then wakes up."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.slept: list[float] = []
        self._waiting: list[tuple[float, asyncio.Event]] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._waiting.append((self.clock.monotonic() + seconds, over := asyncio.Event()))
        await over.wait()

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for at, over in self._waiting:
            if at <= self.clock.monotonic():
                over.set()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def engine(time: Time) -> LocalDispatch:
    return LocalDispatch(time.clock, time.sleep)


async def settled() -> None:
    """Until whatever can happen now has happened."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_two_runs_of_a_session_are_executed_one_after_the_other(
    engine: LocalDispatch,
) -> None:
    """At whichever worker; the next job of another session goes first meanwhile."""
    for number, session in enumerate(("ses_a", "ses_a", "ses_b")):
        await engine.submit(job(f"run_{number}", session_id=session))
    first, second = JobRecorder(), JobRecorder()
    async with serving(engine, first, slots=3):
        await until(lambda: first.runs == ["run_0", "run_2"])
        async with serving(engine, second, slots=3, name="host:2:2+w2"):
            await settled()
            assert second.runs == []
            first.opened.set()
            second.opened.set()
            await until(lambda: len(first.runs) + len(second.runs) == 3)
    assert sorted(first.runs + second.runs) == ["run_0", "run_1", "run_2"]
    assert first.most_at_once == 2


# --- which job begins -----------------------------------------------------------------------------


async def test_what_was_put_back_goes_before_no_job_of_a_lower_number(
    engine: LocalDispatch,
) -> None:
    await engine.submit(job("run_1", priority=1, number=1))
    await engine.submit(job("run_0", priority=0))
    await engine.submit(job("run_2", priority=1))
    worked = opened()
    await serve(engine, worked, slots=1)
    assert worked.runs == ["run_0", "run_1", "run_2"]


async def test_of_several_queues_the_first_job_of_all_begins(engine: LocalDispatch) -> None:
    for number, (queue, priority) in enumerate((("work", 3), ("other", 1), ("work", 2))):
        await engine.submit(job(f"run_{number}", queue=queue, priority=priority))
    worked = opened()
    await serve(engine, worked, slots=1, queues=("work", "other"))
    assert worked.runs == ["run_1", "run_2", "run_0"]


async def test_a_job_that_may_not_begin_yet_keeps_no_other_back(
    engine: LocalDispatch, time: Time
) -> None:
    await engine.submit(job("run_0", delay_s=5, priority=0))
    for number in range(1, 4):
        await engine.submit(job(f"run_{number}", priority=4 - number))
    worked = opened()
    async with serving(engine, worked, slots=1):
        await until(lambda: worked.runs == ["run_3", "run_2", "run_1"])
        await settled()
        assert time.slept[-1] == 5
        time.advance(4.5)
        await settled()
        assert len(worked.runs) == 3
        time.advance(0.5)
        await until(lambda: worked.runs[3:] == ["run_0"])


async def test_the_order_of_jobs_outlasts_one_that_begins_out_of_turn(
    engine: LocalDispatch, time: Time
) -> None:
    await engine.submit(job("run_0", delay_s=5))
    for priority in (1, 5, 2, 3, 6, 7):
        await engine.submit(job(f"run_{priority}", priority=priority))
    worked = JobRecorder()
    async with serving(engine, worked, slots=1):
        await until(lambda: worked.runs == ["run_1"])
        time.advance(5)
        worked.opened.set()
        await until(lambda: len(worked.runs) == 7)
    assert worked.runs == [f"run_{number}" for number in (1, 0, 2, 3, 5, 6, 7)]


async def test_a_limit_on_starts_counts_those_of_its_last_period(
    engine: LocalDispatch, time: Time
) -> None:
    await engine.set_queue(QueueLimits(name="work", rate=RateLimit(starts=2, period_s=10)))
    worked = opened()
    async with serving(engine, worked, slots=5):
        await engine.submit(job("run_0"))
        await until(lambda: len(worked.runs) == 1)
        time.advance(4)
        for number in range(1, 6):
            await engine.submit(job(f"run_{number}"))
        begun = {4: 2, 9: 2, 10: 3, 13: 3, 14: 4, 19: 4, 20: 5, 24: 6}
        now = 4
        for at, count in begun.items():
            time.advance(at - now)
            now = at
            await settled()
            assert len(worked.runs) == count, at
        assert min(time.slept) > 0


async def test_without_limits_a_worker_takes_as_many_as_it_has_slots(
    engine: LocalDispatch,
) -> None:
    for number in range(7):
        await engine.submit(job(f"run_{number}"))
    worked = JobRecorder()
    async with serving(engine, worked, slots=6):
        await settled()
        assert worked.at_once == 6
        worked.opened.set()
    assert len(worked.runs) == 6


# --- what a worker notices ------------------------------------------------------------------------


async def test_a_worker_notices_new_jobs_and_new_limits(engine: LocalDispatch, time: Time) -> None:
    await engine.set_queue(QueueLimits(name="work", concurrency=1))
    worked = JobRecorder()
    async with serving(engine, worked, slots=3):
        await settled()
        for number in range(3):
            await engine.submit(job(f"run_{number}"))
        await settled()
        assert worked.at_once == 1
        await engine.set_queue(QueueLimits(name="work", concurrency=2))
        await settled()
        assert worked.at_once == 2
        assert time.slept == []  # only a change can help
        await engine.cancel("run_2")
        worked.opened.set()
    assert worked.runs == ["run_0", "run_1"]


async def test_a_worker_that_waits_for_a_busy_session_ends_when_the_job_is_cancelled(
    engine: LocalDispatch,
) -> None:
    first, second = JobRecorder(), opened()
    await engine.submit(job("run_0", session_id="ses_a"))
    async with serving(engine, first):
        await until(lambda: first.at_once == 1)
        await engine.submit(job("run_1", session_id="ses_a"))
        idle = asyncio.ensure_future(serve(engine, second, name="host:2:2+w2"))
        await settled()
        assert not idle.done()
        assert await engine.cancel("run_1") == 1
        await settled()
        assert idle.done()
        first.opened.set()
    assert second.runs == []


async def test_a_worker_that_ends_when_it_is_idle_lets_its_jobs_end_before(
    engine: LocalDispatch,
) -> None:
    await engine.submit(job("run_0"))
    worked = JobRecorder()
    working = asyncio.ensure_future(serve(engine, worked, drain_s=0.0))
    await until(lambda: worked.at_once == 1)
    await engine.set_queue(QueueLimits(name="other"))  # it looks again
    await asyncio.sleep(0.01)
    worked.opened.set()
    await working
    assert (worked.runs, worked.cancelled) == (["run_0"], [])


async def test_a_worker_that_ends_when_it_is_idle_waits_for_no_delay(
    engine: LocalDispatch,
) -> None:
    await engine.submit(job("run_0", delay_s=5))
    await engine.submit(job("run_1", queue="other"))
    worked = opened()
    await serve(engine, worked)
    assert worked.runs == []


async def test_a_worker_that_ends_when_it_is_idle_waits_for_a_limit_on_starts(
    engine: LocalDispatch, time: Time
) -> None:
    await engine.set_queue(QueueLimits(name="work", rate=RateLimit(starts=1, period_s=10)))
    for number in range(2):
        await engine.submit(job(f"run_{number}"))
    worked = opened()
    serving_all = asyncio.ensure_future(serve(engine, worked))
    await settled()
    assert (worked.runs, serving_all.done(), set(time.slept)) == (["run_0"], False, {10.0})
    time.advance(10)
    await serving_all
    assert worked.runs == ["run_0", "run_1"]


async def test_a_worker_that_waits_does_nothing_and_leaves_nothing(
    engine: LocalDispatch, time: Time
) -> None:
    await engine.submit(job("run_0", delay_s=5))
    async with serving(engine, opened()):
        await settled()
        looks = len(time.slept)
        await settled()
        assert len(time.slept) == looks
    await serve(engine, opened())
    await settled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_worker_ends_when_all_of_its_jobs_are_handed_over(engine: LocalDispatch) -> None:
    ended: list[str] = []

    async def execute(taken: Job) -> JobEnd:
        try:
            await asyncio.Event().wait()
        finally:
            await settled()  # it records that the run is handed over
            ended.append(taken.run_id)
        return JobEnd()

    stop = asyncio.Event()
    await engine.submit(job("run_0"))
    await engine.submit(job("run_1"))
    task = asyncio.ensure_future(engine.serve(execute, plan(drain_s=0.01), stop))
    await settled()
    stop.set()
    await task
    assert sorted(ended) == ["run_0", "run_1"]
    left = await engine.jobs(["run_0", "run_1"])
    assert [(each.state, each.job.number) for each in left] == [(JobState.WAITING, 1)] * 2


# --- what is stored -------------------------------------------------------------------------------


async def test_jobs_are_told_by_run_with_their_state_and_worker(
    engine: LocalDispatch, time: Time
) -> None:
    for number, delay_s in enumerate((0, 5, 0, 0)):
        await engine.submit(job(f"run_{number}", delay_s=delay_s))
    worked = JobRecorder()
    async with serving(engine, worked, slots=1):
        await until(lambda: worked.at_once == 1)
        told = await engine.jobs(["run_0", "run_1", "run_2", "gone"])
        assert {each.job.run_id: (each.state, each.worker) for each in told} == {
            "run_0": (JobState.TAKEN, "host:1:1+w1"),
            "run_1": (JobState.DELAYED, None),
            "run_2": (JobState.WAITING, None),
        }
        assert [each.state for each in await engine.jobs(["run_2"])] == [JobState.WAITING]
        (queue,) = await engine.queues()
        assert (queue.waiting, queue.delayed, queue.taken) == (2, 1, 1)
        (worker,) = await engine.workers()
        assert worker.taken == 1
        time.advance(5)
        (queue,) = await engine.queues()
        assert (queue.waiting, queue.delayed) == (3, 0)
        for number in (1, 2, 3):
            await engine.cancel(f"run_{number}")
        worked.opened.set()


async def test_a_queue_is_known_by_its_limits_or_jobs(engine: LocalDispatch) -> None:
    await engine.submit(job("run_0", queue="one"))
    await engine.submit(job("run_1", queue="two"))
    await engine.cancel("run_1")
    assert [each.limits.name for each in await engine.queues()] == ["one"]
    worked = JobRecorder()
    async with serving(engine, worked, queues=("one",)):
        await until(lambda: worked.at_once == 1)
        assert [each.limits.name for each in await engine.queues()] == ["one"]
        worked.opened.set()


async def test_a_delay_ends_for_the_jobs_of_the_run_that_is_woken(engine: LocalDispatch) -> None:
    for number in range(3):
        await engine.submit(job(f"run_{number}", delay_s=5 + number))
    await engine.submit(job("run_2", "2"))
    assert await engine.wake("run_2") == 1
    assert await engine.wake("run_2") == 0
    worked = opened()
    await serve(engine, worked, slots=1)
    assert [each.key for each in worked.jobs] == ["run_2@1", "run_2@2"]


async def test_an_idle_worker_notices_that_a_run_was_woken(
    engine: LocalDispatch, time: Time
) -> None:
    await engine.submit(job("run_0", delay_s=5))
    await engine.submit(job("run_1", delay_s=9))
    worked = opened()
    async with serving(engine, worked):
        await settled()
        assert set(time.slept) == {5}
        assert await engine.wake("run_1") == 1
        await settled()
        assert worked.runs == ["run_1"]


async def test_the_order_of_jobs_outlasts_a_cancelled_one(engine: LocalDispatch) -> None:
    for priority in (0, 1, 5, 2, 3, 6, 7):
        await engine.submit(job(f"run_{priority}", priority=priority))
    await engine.cancel("run_1")
    worked = opened()
    await serve(engine, worked, slots=1)
    assert worked.runs == [f"run_{priority}" for priority in (0, 2, 3, 5, 6, 7)]


async def test_a_job_that_was_cancelled_is_known_by_its_name(engine: LocalDispatch) -> None:
    for number in range(3):
        await engine.submit(job(f"run_{number}"))
    await engine.submit(job("run_1", "2"))
    assert await engine.cancel("run_1") == 2
    assert not await engine.submit(job("run_1"))
    worked = opened()
    await serve(engine, worked, slots=1)
    assert worked.runs == ["run_0", "run_2"]


async def test_names_of_ended_jobs_are_kept_up_to_ten_thousand(engine: LocalDispatch) -> None:
    for number in range(10_001):
        await engine.submit(job(f"run_{number}"))
        await engine.cancel(f"run_{number}")
    assert not await engine.submit(job("run_1"))
    assert await engine.submit(job("run_0"))


# --- what holds where nothing is said -------------------------------------------------------------


def test_a_worker_takes_four_runs_until_it_is_stopped() -> None:
    made = WorkerPlan(name="w")
    assert (made.slots, made.ends_when_idle, QueueLimits().per_worker) == (4, False, 4)


def test_an_engine_is_of_one_process_and_knows_no_worker_as_dead(engine: LocalDispatch) -> None:
    assert not engine.is_shared
    assert not engine.is_worker_gone("host:1:1+w1")


@pytest.mark.parametrize("state", ["waiting", "delayed", "taken"])
def test_a_job_in_any_state_is_one_of_its_queue(state: str) -> None:
    limits = QueueLimits()
    assert QueueView(limits=limits, **{state: 1}).has_jobs
    assert not QueueView(limits=limits).has_jobs


def test_limits_that_fit_each_other_stay_as_they_are() -> None:
    for limits in (QueueLimits(concurrency=4, per_worker=4), QueueLimits(per_worker=9)):
        assert limits.capped() is limits
    assert QueueLimits(concurrency=3, per_worker=4).capped().per_worker == 3


def test_a_job_that_is_put_back_counts_how_often_and_what_failed() -> None:
    first = job(number=2, tries=3)
    assert first.put_back(7.0, is_failed_try=True) == job(number=3, tries=4, delay_s=7.0)
    assert first.put_back(is_failed_try=False) == job(number=3, tries=3)
