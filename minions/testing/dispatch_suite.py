"""Conformance tests for every implementation of `DispatchEngine`, also for your own.

In a test module, with pytest-asyncio in its mode `auto`:

    from minions.testing.dispatch_suite import *

    @pytest.fixture
    async def engine():
        made = MyDispatch()
        yield made
        await made.aclose()

Where one process serves once at a time, override the fixture `second_worker` so that it skips, and
test with workers of two processes what the tests that ask for it say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import pytest
from attrs import evolve, field, mutable

from minions.contracts.dispatch import (
    DispatchEngine,
    FairShares,
    Job,
    JobEnd,
    JobState,
    Lack,
    QueueLimits,
    RateLimit,
    WorkerPlan,
)

_HANG_S: Final = 60.0
"""Longer than any test takes: it only ends one that hangs."""


def job(run: str = "run_1", submission: str = "1", **more: object) -> Job:
    """A job of a run in a session of its own."""
    fields = {"session_id": f"ses_{run}", "queue": "work", **more}
    return Job(run_id=run, submission=submission, **fields)  # type: ignore[arg-type]  # of a test


def plan(**more: object) -> WorkerPlan:
    """A worker of the queue `work`, which ends when nothing is left."""
    fields = {"name": "host:1:1+w1", "queues": ("work",), "ends_when_idle": True, **more}
    return WorkerPlan(**fields)  # type: ignore[arg-type]  # of a test


@mutable
class JobRecorder:
    """Executes jobs by noting them."""

    runs: list[str] = field(factory=list)
    jobs: list[Job] = field(factory=list)
    at_once: int = 0
    most_at_once: int = 0
    opened: asyncio.Event = field(factory=asyncio.Event)
    """Until this is set, jobs do not end."""
    again: Callable[[Job], Job | None] = field(default=lambda _: None)
    lack: Callable[[Job], Lack | None] = field(default=lambda _: None)
    cancelled: list[str] = field(factory=list)

    async def execute(self, taken: Job) -> JobEnd:
        """Note the job, and wait until jobs may end."""
        self.runs.append(taken.run_id)
        self.jobs.append(taken)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.opened.wait()
        except asyncio.CancelledError:
            self.cancelled.append(taken.run_id)
            raise
        finally:
            self.at_once -= 1
        return JobEnd(again=self.again(taken), lack=self.lack(taken))


def opened() -> JobRecorder:
    """Jobs end at once."""
    worked = JobRecorder()
    worked.opened.set()
    return worked


async def serve(engine: DispatchEngine, worked: JobRecorder, **more: object) -> None:
    """Work until nothing is left."""
    async with asyncio.timeout(_HANG_S):
        await engine.serve(worked.execute, plan(**more), asyncio.Event())


@asynccontextmanager
async def serving(
    engine: DispatchEngine, worked: JobRecorder, **more: object
) -> AsyncIterator[None]:
    """Work in the background; then the worker is stopped."""
    stop = asyncio.Event()
    task = asyncio.ensure_future(
        engine.serve(worked.execute, plan(**{"ends_when_idle": False, **more}), stop)
    )
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(_HANG_S):
            await task


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another task does."""
    async with asyncio.timeout(_HANG_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def second_worker(engine: DispatchEngine) -> DispatchEngine:
    """The engine at which a second worker serves while the first one does, over the same jobs."""
    return engine


async def test_a_job_is_executed_once(engine: DispatchEngine) -> None:
    assert await engine.submit(job())
    worked = opened()
    await serve(engine, worked)
    await serve(engine, worked)
    assert worked.runs == ["run_1"]
    assert worked.jobs == [job()]


async def test_a_second_submission_of_one_name_is_the_same_job(engine: DispatchEngine) -> None:
    assert await engine.submit(job())
    assert not await engine.submit(job(priority=5))
    worked = opened()
    await serve(engine, worked)
    assert not await engine.submit(job())
    await serve(engine, worked)
    assert worked.jobs == [job()]


async def test_another_submission_of_the_same_run_is_executed_too(engine: DispatchEngine) -> None:
    await engine.submit(job(submission="1"))
    await engine.submit(job(submission="2"))
    worked = opened()
    await serve(engine, worked, slots=1)
    assert sorted(each.submission for each in worked.jobs) == ["1", "2"]


async def test_lower_numbers_go_first_then_older_jobs(engine: DispatchEngine) -> None:
    for number, priority in enumerate((5, 1, 5, 0)):
        await engine.submit(job(f"run_{number}", priority=priority))
        await asyncio.sleep(0.002)  # a store may order by milliseconds
    worked = opened()
    await serve(engine, worked, slots=1)
    assert worked.runs == ["run_3", "run_1", "run_0", "run_2"]


async def test_a_worker_takes_only_its_queues(engine: DispatchEngine) -> None:
    await engine.submit(job("run_1", queue="work"))
    await engine.submit(job("run_2", queue="other"))
    worked = opened()
    await serve(engine, worked)
    assert worked.runs == ["run_1"]
    assert [each.state for each in await engine.jobs(["run_2"])] == [JobState.WAITING]


async def test_no_more_jobs_are_executed_at_once_than_there_are_slots(
    engine: DispatchEngine,
) -> None:
    for number in range(5):
        await engine.submit(job(f"run_{number}"))
    worked = JobRecorder()
    async with serving(engine, worked, slots=2):
        await until(lambda: worked.at_once == 2)
        worked.opened.set()
        await until(lambda: len(worked.runs) == 5)
    assert worked.most_at_once == 2


async def test_a_queue_limits_jobs_at_once(engine: DispatchEngine) -> None:
    await engine.set_queue(QueueLimits(name="work", concurrency=1, per_worker=1))
    for number in range(3):
        await engine.submit(job(f"run_{number}"))
    worked = opened()
    await serve(engine, worked, slots=3)
    assert worked.most_at_once == 1
    assert len(worked.runs) == 3


async def test_a_queue_limits_jobs_at_once_over_all_workers(
    engine: DispatchEngine, second_worker: DispatchEngine
) -> None:
    """Each worker alone takes as many as the queue allows."""
    await engine.set_queue(QueueLimits(name="work", concurrency=2, per_worker=2))
    for number in range(6):
        await engine.submit(job(f"run_{number}"))
    first, second = JobRecorder(), JobRecorder()
    async with serving(engine, first, slots=6):
        await until(lambda: first.at_once == 2)
        async with serving(second_worker, second, slots=6, name="host:2:2+w2"):
            await asyncio.sleep(0.1)
            assert second.runs == []
            second.opened.set()
            first.opened.set()
            await until(lambda: len(first.runs) + len(second.runs) == 6)
    assert first.most_at_once == 2
    assert second.most_at_once <= 2


async def test_a_queue_limits_jobs_of_each_worker(engine: DispatchEngine) -> None:
    """However many all of them may have."""
    await engine.set_queue(QueueLimits(name="work", per_worker=1))
    for number in range(3):
        await engine.submit(job(f"run_{number}"))
    worked = JobRecorder()
    async with serving(engine, worked, slots=3):
        await until(lambda: worked.at_once == 1)
        await asyncio.sleep(0.1)
        worked.opened.set()
        await until(lambda: len(worked.runs) == 3)
    assert worked.most_at_once == 1


async def test_what_one_worker_has_leaves_the_others_their_share(
    engine: DispatchEngine, second_worker: DispatchEngine
) -> None:
    await engine.set_queue(QueueLimits(name="work", per_worker=1))
    for number in range(4):
        await engine.submit(job(f"run_{number}"))
    first, second = JobRecorder(), JobRecorder()
    async with (
        serving(engine, first, slots=3),
        serving(second_worker, second, slots=3, name="host:2:2+w2"),
    ):
        await until(lambda: first.at_once == second.at_once == 1)
        first.opened.set()
        second.opened.set()
        await until(lambda: len(first.runs) + len(second.runs) == 4)
    assert (first.most_at_once, second.most_at_once) == (1, 1)


async def test_no_worker_may_take_more_than_all_of_them_may(engine: DispatchEngine) -> None:
    limits = QueueLimits(name="work", concurrency=2, per_worker=8)
    await engine.set_queue(limits)
    (seen,) = await engine.queues()
    assert seen.limits == limits.capped() == evolve(limits, per_worker=2)


async def test_a_queue_without_jobs_can_be_removed(engine: DispatchEngine) -> None:
    await engine.set_queue(QueueLimits(name="wrok", concurrency=1))
    await engine.submit(job())
    await engine.set_queue(QueueLimits(name="work", concurrency=3))
    assert await engine.remove_queue("wrok")
    assert not await engine.remove_queue("wrok")
    assert not await engine.remove_queue("work")
    assert [each.limits.name for each in await engine.queues()] == ["work"]
    await serve(engine, opened())
    assert await engine.remove_queue("work")
    assert list(await engine.queues()) == []


async def test_a_queue_limits_how_many_jobs_begin_in_a_time(engine: DispatchEngine) -> None:
    await engine.set_queue(QueueLimits(name="work", rate=RateLimit(starts=2, period_s=3600)))
    for number in range(4):
        await engine.submit(job(f"run_{number}"))
    worked = opened()
    async with serving(engine, worked):
        await until(lambda: len(worked.runs) == 2)
        await asyncio.sleep(0.1)
        assert len(worked.runs) == 2
    (queue,) = [each for each in await engine.queues() if each.limits.name == "work"]
    assert queue.waiting == 2


async def test_a_limit_on_starts_counts_those_before_it_was_set(engine: DispatchEngine) -> None:
    for number in range(7):
        await engine.submit(job(f"run_{number}", delay_s=3600 if number > 1 else 0))
    await serve(engine, worked := opened())
    assert len(worked.runs) == 2
    await engine.set_queue(QueueLimits(name="work", rate=RateLimit(starts=5, period_s=3600)))
    for number in range(2, 7):
        await engine.wake(f"run_{number}")
    async with serving(engine, worked):
        await until(lambda: len(worked.runs) == 5)
        await asyncio.sleep(0.1)
        assert len(worked.runs) == 5


async def test_keys_of_a_queue_that_shares_alternate(engine: DispatchEngine) -> None:
    """A user who submits much keeps nobody else waiting."""
    await engine.set_queue(QueueLimits(name="work", shares=FairShares(by="user"), per_worker=1))
    for number, user in enumerate("aaaabbc"):
        await engine.submit(job(f"run_{user}{number}", labels={"user": user, "project": "p"}))
    await engine.submit(job("run_a0_first", priority=0, labels={}))
    await engine.submit(job("run_urgent", submission="2", priority=0, labels={"user": "b"}))
    worked = opened()
    await serve(engine, worked, slots=1)
    assert [run.removeprefix("run_")[:2] for run in worked.runs] == [
        *("a0", "b4", "c6", "a0"),
        *("a1", "b5", "a2", "ur", "a3"),
    ]


async def test_a_key_has_so_many_jobs_at_a_time_as_its_share_is(engine: DispatchEngine) -> None:
    shares = FairShares(by="user", per_key=2)
    await engine.set_queue(QueueLimits(name="work", shares=shares, per_worker=8))
    for number, user in enumerate("aaaabb"):
        await engine.submit(job(f"run_{number}{user}", labels={"user": user}))
    worked = JobRecorder()
    async with serving(engine, worked, slots=8):
        await until(lambda: worked.at_once == 4)
        await asyncio.sleep(0.1)
        assert sorted(run[-1] for run in worked.runs) == ["a", "a", "b", "b"]
        worked.opened.set()
        await until(lambda: len(worked.runs) == 6)


async def test_of_a_key_no_more_jobs_begin_in_a_time_than_its_share_says(
    engine: DispatchEngine,
) -> None:
    shares = FairShares(by="user", rate=RateLimit(starts=2, period_s=3600))
    await engine.set_queue(QueueLimits(name="work", shares=shares, per_worker=8))
    for number, user in enumerate("aaaab"):
        await engine.submit(job(f"run_{number}{user}", labels={"user": user}))
    worked = opened()
    async with serving(engine, worked, slots=8):
        await until(lambda: len(worked.runs) == 3)
        await asyncio.sleep(0.1)
        assert sorted(run[-1] for run in worked.runs) == ["a", "a", "b"]


async def test_a_rate_of_keys_counts_what_began_before_it_was_set(engine: DispatchEngine) -> None:
    shares = FairShares(by="user")
    await engine.set_queue(QueueLimits(name="work", shares=shares))
    for number in range(2):
        await engine.submit(job(f"run_{number}a", labels={"user": "a"}))
    await serve(engine, worked := opened())
    shares = evolve(shares, rate=RateLimit(starts=2, period_s=3600))
    await engine.set_queue(QueueLimits(name="work", shares=shares))
    await engine.submit(job("run_2a", labels={"user": "a"}))
    await engine.submit(job("run_3b", labels={"user": "b"}))
    async with serving(engine, worked):
        await until(lambda: len(worked.runs) == 3)
        await asyncio.sleep(0.1)
        assert worked.runs[2:] == ["run_3b"]


async def test_a_queue_tells_how_it_shares(engine: DispatchEngine) -> None:
    shares = FairShares(by="user", per_key=3, rate=RateLimit(starts=2, period_s=60))
    limits = QueueLimits(name="work", shares=shares, age_s=60)
    await engine.set_queue(limits)
    assert [each.limits for each in await engine.queues()] == [limits]
    await engine.set_queue(QueueLimits(name="work"))
    assert [each.limits for each in await engine.queues()] == [QueueLimits(name="work")]


async def test_what_waited_before_a_queue_shares_has_one_turn_together(
    engine: DispatchEngine,
) -> None:
    for number in range(3):
        await engine.submit(job(f"run_{number}"))
    await engine.set_queue(QueueLimits(name="work", shares=FairShares(by="user"), per_worker=1))
    await engine.submit(job("run_user", labels={"user": "a"}))
    worked = opened()
    await serve(engine, worked, slots=1)
    assert worked.runs == ["run_0", "run_user", "run_1", "run_2"]


@pytest.mark.parametrize("paused", ["work", "*"])
async def test_jobs_of_a_paused_queue_wait_until_it_is_resumed(
    engine: DispatchEngine, paused: str
) -> None:
    await engine.submit(job("run_1"))
    await engine.submit(job("run_2", queue="other"))
    engine.pause({paused})
    worked = opened()
    await serve(engine, worked, queues=("work", "other"))  # one that is idle ends
    assert worked.runs == ([] if paused == "*" else ["run_2"])
    async with serving(engine, worked, queues=("work", "other")):
        engine.pause(())
        await until(lambda: len(worked.runs) == 2)


async def test_a_delayed_job_begins_when_it_is_woken(engine: DispatchEngine) -> None:
    await engine.submit(job(delay_s=3600))
    worked = opened()
    async with serving(engine, worked):
        assert [each.state for each in await engine.jobs(["run_1"])] == [JobState.DELAYED]
        assert await engine.wake("run_1") == 1
        await until(lambda: worked.runs == ["run_1"])


async def test_a_job_that_waits_is_cancelled(engine: DispatchEngine) -> None:
    await engine.submit(job("run_1"))
    await engine.submit(job("run_2", delay_s=3600))
    await engine.submit(job("run_3"))
    assert await engine.cancel("run_1") == 1
    assert await engine.cancel("run_2") == 1
    assert await engine.cancel("run_9") == 0
    worked = opened()
    await serve(engine, worked)
    assert worked.runs == ["run_3"]
    assert await engine.jobs(["run_1", "run_2", "run_3"]) == []


async def test_a_job_is_put_back_as_its_end_says(engine: DispatchEngine) -> None:
    await engine.submit(job(priority=3))
    worked = opened()
    worked.again = lambda taken: taken.put_back(is_failed_try=True) if taken.tries < 2 else None
    await serve(engine, worked)
    assert [(each.number, each.tries) for each in worked.jobs] == [(0, 0), (1, 1), (2, 2)]
    assert {each.priority for each in worked.jobs} == {3}


async def test_a_job_that_is_put_back_goes_before_others_of_its_priority(
    engine: DispatchEngine,
) -> None:
    for number in range(3):
        await engine.submit(job(f"run_{number}"))
        await asyncio.sleep(0.002)  # a store may order by milliseconds
    worked = opened()
    worked.again = lambda taken: (
        taken.put_back(is_failed_try=False)
        if taken.run_id == "run_0" and taken.number == 0
        else None
    )
    await serve(engine, worked, slots=1)
    assert worked.runs == ["run_0", "run_0", "run_1", "run_2"]


def leaving(**more: object) -> JobRecorder:
    """A worker that cannot execute jobs with the needs `odd`."""
    lack = Lack(parts=("an odd tool",), **more)  # type: ignore[arg-type]  # of a test
    worked = opened()
    worked.lack = lambda taken: lack if taken.needs == "odd" else None
    worked.again = lambda taken: (
        taken.put_back(is_failed_try=False) if taken.needs == "odd" else None
    )
    return worked


async def test_a_worker_takes_jobs_that_it_cannot_execute_once_and_leaves_others_like_them(
    engine: DispatchEngine,
) -> None:
    for number in range(4):
        await engine.submit(job(f"odd_{number}", submission="1-odd"))
    await engine.submit(job("run_1", submission="1-usual"))
    unable = leaving()
    await serve(engine, unable, slots=1)  # it ends: for it, nothing is left to do
    assert sorted(unable.runs) == ["odd_0", "run_1"]
    able = opened()
    await serve(engine, able, slots=1)
    assert sorted(able.runs) == [f"odd_{number}" for number in range(4)]
    assert {each.tries for each in able.jobs} == {0}


async def test_a_worker_leaves_one_run_and_takes_others_with_the_same_needs(
    engine: DispatchEngine,
) -> None:
    for number in range(3):
        await engine.submit(job(f"odd_{number}", submission="1-odd"))
    unable = leaving(is_of_run=True)
    await serve(engine, unable, slots=1)
    assert sorted(unable.runs) == ["odd_0", "odd_1", "odd_2"]
    assert len(await engine.jobs(["odd_0", "odd_1", "odd_2"])) == 3


async def test_a_worker_takes_again_what_it_left_for_a_time(engine: DispatchEngine) -> None:
    await engine.submit(job("odd_0", submission="1-odd"))
    unable = leaving(again_s=0.2)
    async with serving(engine, unable):
        await until(lambda: len(unable.runs) >= 3)
    assert [each.number for each in unable.jobs[:3]] == [0, 1, 2]


async def test_a_stopped_worker_lets_its_jobs_end(engine: DispatchEngine) -> None:
    await engine.submit(job("run_1"))
    await engine.submit(job("run_2"))
    worked = JobRecorder()
    async with serving(engine, worked, slots=1):
        await until(lambda: len(worked.runs) == 1)
        asyncio.get_running_loop().call_later(0.05, worked.opened.set)
    assert len(worked.runs) == 1
    assert worked.cancelled == []
    left = await engine.jobs(["run_1", "run_2"])
    assert [each.state for each in left] == [JobState.WAITING]


async def test_a_job_that_does_not_end_in_time_is_handed_over(engine: DispatchEngine) -> None:
    await engine.submit(job("run_1"))
    worked = JobRecorder()
    async with serving(engine, worked, drain_s=0.05):
        await until(lambda: worked.runs == ["run_1"])
    assert worked.cancelled == ["run_1"]
    (left,) = await engine.jobs(["run_1"])
    assert (left.state, left.job.number, left.job.tries) == (JobState.WAITING, 1, 0)
    worked.opened.set()
    await serve(engine, worked)
    assert worked.runs == ["run_1", "run_1"]


async def test_queues_tell_their_limits_and_jobs(engine: DispatchEngine) -> None:
    limits = QueueLimits(
        name="work", concurrency=7, per_worker=3, rate=RateLimit(starts=5, period_s=60)
    )
    await engine.set_queue(limits)
    await engine.set_queue(evolve(limits, concurrency=8))
    await engine.submit(job("run_1"))
    await engine.submit(job("run_2", delay_s=3600))
    (queue,) = await engine.queues()
    assert queue.limits == evolve(limits, concurrency=8)
    assert (queue.waiting, queue.delayed, queue.taken) == (1, 1, 0)


async def test_a_worker_is_listed_while_it_serves(engine: DispatchEngine) -> None:
    await engine.submit(job())
    worked = JobRecorder()
    async with serving(engine, worked, slots=3):
        await until(lambda: worked.at_once == 1)
        (worker,) = await engine.workers()
        assert (worker.name, worker.queues, worker.slots) == ("host:1:1+w1", ("work",), 3)
        assert worker.is_alive
        (taken,) = await engine.jobs(["run_1"])
        assert (taken.state, taken.worker) == (JobState.TAKEN, "host:1:1+w1")
        worked.opened.set()
    assert await engine.workers() == []


def test_a_job_is_named_by_run_submission_and_number() -> None:
    first = job("run_1", "7")
    assert first.key == "run_1@7"
    assert first.put_back(is_failed_try=False).key == "run_1@7.1"


@pytest.mark.parametrize("queue", ["", "Work", "-x", "a b", "a" * 64])
def test_a_queue_has_a_plain_name(queue: str) -> None:
    with pytest.raises(ValueError, match=r"queue|regex"):
        job(queue=queue)
