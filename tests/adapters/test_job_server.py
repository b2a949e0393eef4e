"""When a worker looks for jobs, in virtual time: what it looks into is a list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from attrs import asdict, evolve, field, mutable

from minions.adapters.dispatch.job_server import (
    JobServer,
    JobStore,
    QueueLook,
    WaitingQueue,
    job_of_text,
)
from minions.adapters.dispatch.left_jobs import LeftJobs
from minions.adapters.dispatch.postgres_claims import Claim, ClaimedJobs
from minions.adapters.dispatch.postgres_news import JobNews
from minions.contracts.dispatch import Job, JobEnd
from minions.data.errors import EnvironmentRefusedError
from minions.data.json_values import dumps
from minions.engine.services.run_services import NullLog
from minions.testing.dispatch_suite import job, plan
from minions.testing.virtual_time import VirtualTime

POLL_S = 0.25


@mutable
class Jobs:
    """What waits, and what was asked for."""

    time: VirtualTime = field(factory=VirtualTime)
    waiting: list[Job] = field(factory=list)
    limit: int = 100
    """The most jobs that may be taken in all."""
    per_worker: int | None = None
    """The most jobs of a queue that one worker takes."""
    delayed: Job | None = None
    due_at: float = 0.0
    looks: list[float] = field(factory=list)
    """When it was looked."""
    wanted: list[Claim] = field(factory=list)
    began: list[str] = field(factory=list)
    ended: list[dict[str, str]] = field(factory=list)
    submitted: list[Job] = field(factory=list)
    opened: asyncio.Event = field(factory=asyncio.Event)
    """Until this is set, jobs do not end."""
    paused: set[str] = field(factory=set)
    is_away: bool = False
    is_counted: bool = False
    """Whether a limit on rate counts jobs."""
    noted: list[float] = field(factory=list)
    """When jobs were noted as begun."""
    end_s: float = 0.0
    """Seconds that it takes to store ends."""

    async def look(self, queues: Sequence[str], _left: LeftJobs) -> QueueLook:
        self.looks.append(round(self.time.monotonic(), 3))
        self._check()
        found = [
            WaitingQueue(
                name=name,
                waits=any(each.queue == name for each in self.waiting),
                per_worker=self.per_worker,
            )
            for name in queues
        ]
        if self.delayed is None:
            return QueueLook(queues=found)
        next_s = self.due_at - self.time.monotonic()
        return QueueLook(queues=found, next_key=self.delayed.key, next_s=next_s)

    async def begin_due(self) -> None:
        if self.delayed is not None:
            self.waiting.append(self.delayed)
            self.delayed = None

    async def claim(self, wanted: Claim) -> ClaimedJobs:
        self._check()
        self.wanted.append(wanted)
        most = min(wanted.most, self.limit - len(self.began))
        taken = [each for each in self.waiting if each.queue == wanted.queue][:most]
        self.waiting = [each for each in self.waiting if each not in taken]
        inputs = [dumps({"positionalArgs": [asdict(each)]}) for each in taken]
        names = [each.key for each in taken]
        return ClaimedJobs(names=names, inputs=inputs, is_counted=self.is_counted)

    async def submit(self, again: Job) -> None:
        self.submitted.append(again)

    async def note_begin(self, _jobs: Sequence[str]) -> None:
        self.noted.append(round(self.time.monotonic(), 3))

    async def end(self, _worker: str, words: Mapping[str, str]) -> None:
        self._check()
        await asyncio.sleep(self.end_s)
        self.ended.append(dict(words))

    def _check(self) -> None:
        if self.is_away:
            raise EnvironmentRefusedError("away", code="dispatch-unreachable")

    async def execute(self, taken: Job) -> JobEnd:
        self.began.append(taken.run_id)
        await self.opened.wait()
        return JobEnd()

    def server(self, *, random: float = 1.0, **changes: object) -> JobServer:
        return JobServer(
            self.execute,
            plan(**changes),
            JobStore(
                look=self.look,
                begin_due=self.begin_due,
                claim=self.claim,
                submit=self.submit,
                note_begin=self.note_begin,
                end=self.end,
            ),
            poll_s=POLL_S,
            is_paused=self.paused.__contains__,
            log=NullLog(),
            monotonic=self.time.monotonic,
            random=lambda: random,
        )


@asynccontextmanager
async def launched(server: JobServer, *, is_heard: bool = True) -> AsyncIterator[None]:
    """It takes jobs, and is told of them from the second look on."""
    await server.launch()
    if is_heard:
        server.set_heard(True)
        await asyncio.sleep(0.1)
    try:
        yield
    finally:
        await server.drain()


def played(test: Callable[[Jobs], Coroutine[object, object, None]]) -> Jobs:
    """What a test saw, in virtual time."""
    jobs = Jobs()
    jobs.time.run(test(jobs))
    return jobs


def news(key: str, *, is_taken: bool = False, due_s: float = 0.0, queue: str = "work") -> JobNews:
    return JobNews(key=key, queue=queue, is_taken=is_taken, due_s=due_s)


def test_a_worker_that_is_told_of_nothing_looks_four_times_a_minute() -> None:
    async def wait(jobs: Jobs) -> None:
        async with launched(jobs.server()):
            await asyncio.sleep(59)

    assert played(wait).looks == [0.0, 0.01, 15.01, 30.01, 45.01]


def test_a_worker_that_cannot_be_told_polls() -> None:
    async def wait(jobs: Jobs) -> None:
        async with launched(jobs.server(), is_heard=False):
            await asyncio.sleep(0.9)

    assert played(wait).looks == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize(("begins_s", "noted"), [(0.5, 0.5), (None, 2.0)])
def test_a_job_counts_as_begun_when_its_run_has_and_soon_in_any_case(
    begins_s: float | None, noted: float
) -> None:
    """Else the next ones could begin within the time of the limit."""

    async def begin(jobs: Jobs) -> None:
        jobs.waiting, jobs.is_counted = [job("run_1")], True
        server = jobs.server()
        async with launched(server, is_heard=False):
            await asyncio.sleep(begins_s or 0.0)
            assert jobs.noted == []
            if begins_s is not None:
                has_begun = server.when_begun("run_1")
                assert has_begun is not None
                has_begun()
            await asyncio.sleep(3)
            jobs.opened.set()
            await asyncio.sleep(0.1)
            assert server.when_begun("run_1") is None

    assert played(begin).noted == [noted]


def test_a_job_whose_run_ended_at_once_counts_from_its_end() -> None:
    async def end(jobs: Jobs) -> None:
        jobs.waiting, jobs.is_counted = [job("run_1")], True
        jobs.opened.set()
        async with launched(jobs.server(), is_heard=False):
            await asyncio.sleep(0.1)

    assert played(end).noted == [0.0]


def test_a_worker_looks_at_once_for_a_job_that_it_is_told_of() -> None:
    async def tell(jobs: Jobs) -> None:
        server = jobs.server()
        async with launched(server):
            await asyncio.sleep(5)
            jobs.waiting.append(job("run_1"))
            server.hear(news("run_1@1"))
            await asyncio.sleep(0.001)
            assert jobs.began == ["run_1"]
            jobs.opened.set()

    assert played(tell).ended == [{"run_1@1": '"done"'}]


def test_jobs_of_other_queues_are_not_looked_for() -> None:
    async def tell(jobs: Jobs) -> None:
        server = jobs.server()
        async with launched(server):
            server.hear(news("run_1@1", queue="other"))
            await asyncio.sleep(5)

    assert len(played(tell).looks) == 2


def test_of_many_workers_one_that_hears_that_a_job_was_taken_does_not_look() -> None:
    async def tell(jobs: Jobs) -> None:
        server = jobs.server()
        async with launched(server):
            server.note_look(QueueLook(queues=()), 101)
            server.hear(news("run_1@1"))
            await asyncio.sleep(0.19)
            server.hear(news("run_1@1", is_taken=True))
            await asyncio.sleep(5)
            assert len(jobs.looks) == 2
            server.hear(news("run_2@1"))
            await asyncio.sleep(0.19)
            assert len(jobs.looks) == 2
            await asyncio.sleep(0.02)

    assert len(played(tell).looks) == 3


def test_a_delayed_job_is_looked_for_when_it_is_due() -> None:
    async def delay(jobs: Jobs) -> None:
        server = jobs.server()
        async with launched(server):
            jobs.delayed, jobs.due_at = job("run_1"), jobs.time.monotonic() + 4
            server.hear(news("run_1@1", due_s=4.0))
            await asyncio.sleep(3.9)
            assert (len(jobs.looks), jobs.began) == (2, [])
            await asyncio.sleep(0.2)
            assert jobs.began == ["run_1"]
            jobs.opened.set()

    played(delay)


def test_a_delay_that_a_look_finds_is_not_forgotten() -> None:
    async def delay(jobs: Jobs) -> None:
        jobs.delayed, jobs.due_at = job("run_1"), 4.0
        async with launched(jobs.server()):
            await asyncio.sleep(4)
            assert jobs.began == ["run_1"]
            jobs.opened.set()

    played(delay)


def test_a_delay_that_a_heartbeat_finds_is_not_forgotten() -> None:
    async def delay(jobs: Jobs) -> None:
        server = jobs.server()
        async with launched(server):
            server.note_look(QueueLook(queues=(), next_key="run_1@1", next_s=4.0), 101)
            await asyncio.sleep(4.1)
            assert len(jobs.looks) == 2
            await asyncio.sleep(0.2)
            assert len(jobs.looks) == 3

    played(delay)


def test_a_job_that_a_worker_has_and_never_began_is_known_at_the_second_heartbeat() -> None:
    async def claim(jobs: Jobs) -> None:
        jobs.waiting = [job("run_1")]
        server = jobs.server()
        async with launched(server):
            assert server.not_begun(["run_1@1", "run_2@1"]) == frozenset()
            assert server.not_begun(["run_1@1", "run_2@1", "run_3@1"]) == {"run_2@1"}
            assert server.not_begun(["run_3@1"]) == {"run_3@1"}
            jobs.opened.set()

    played(claim)


def test_no_more_jobs_are_claimed_than_there_are_slots_over_all_queues() -> None:
    async def fill(jobs: Jobs) -> None:
        jobs.waiting = [
            evolve(job(f"run_{n}"), queue=q) for n, q in enumerate(("work", "other") * 3)
        ]
        server = jobs.server(slots=4, queues=("work", "other"))
        async with launched(server):
            await asyncio.sleep(60)
            server.hear(news("run_9@1"))
            await asyncio.sleep(1)
            assert len(jobs.began) == 4
            assert len(jobs.looks) == 1  # it has no room, and so it does not look
            jobs.opened.set()
            await asyncio.sleep(0.1)
            assert len(jobs.began) == 6

    played(fill)


def test_of_each_queue_a_worker_has_no_more_jobs_than_one_may_and_looks_when_one_ends() -> None:
    async def fill(jobs: Jobs) -> None:
        jobs.per_worker = 2
        jobs.waiting = [
            evolve(job(f"{queue}_{number}"), queue=queue)
            for queue in ("work", "other")
            for number in range(3)
        ]
        async with launched(jobs.server(slots=5, queues=("work", "other"))):
            await asyncio.sleep(1)
            assert sorted(jobs.began) == ["other_0", "other_1", "work_0", "work_1"]
            jobs.per_worker = 1  # it has more than it may now
            await asyncio.sleep(1)
            assert all(each.most > 0 for each in jobs.wanted)
            jobs.opened.set()
            await asyncio.sleep(0.05)
            assert len(jobs.began) == 6
            await asyncio.sleep(1)
            looks = len(jobs.looks)
            jobs.waiting = [job("run_told")]
            await asyncio.sleep(6)  # nothing waited: it looks no more until it is told
            assert len(jobs.looks) == looks

    played(fill)


def test_the_end_of_a_job_is_no_reason_to_look_where_nothing_waited() -> None:
    async def end(jobs: Jobs) -> None:
        jobs.waiting = [job("run_1")]
        async with launched(jobs.server()):
            await asyncio.sleep(1)
            looks = len(jobs.looks)
            jobs.opened.set()
            await asyncio.sleep(5)
            assert len(jobs.looks) == looks

    played(end)


def test_what_waits_and_may_not_begin_is_looked_for_at_the_pace_of_the_crowd() -> None:
    async def wait(jobs: Jobs) -> None:
        jobs.limit, jobs.waiting = 0, [job("run_1")]
        server = jobs.server()
        async with launched(server):
            looks = len(jobs.looks)
            await asyncio.sleep(10)
            assert 35 <= len(jobs.looks) - looks <= 41
            server.note_look(QueueLook(queues=()), 80)
            looks = len(jobs.looks)
            await asyncio.sleep(10)
            assert 3 <= len(jobs.looks) - looks <= 5

    played(wait)


def test_a_heartbeat_that_finds_jobs_makes_the_worker_look() -> None:
    """For what it was told may be lost."""

    async def beat(jobs: Jobs) -> None:
        server = jobs.server()
        async with launched(server):
            jobs.waiting = [job("run_1")]
            await asyncio.sleep(1)
            assert jobs.began == []
            server.note_look(QueueLook(queues=[WaitingQueue(name="work", waits=True)]), 1)
            await asyncio.sleep(0.02)
            assert jobs.began == ["run_1"]
            jobs.opened.set()

    played(beat)


def test_a_heartbeat_that_finds_none_counts_as_a_look() -> None:
    async def beat(jobs: Jobs) -> None:
        server = jobs.server()
        async with launched(server):
            for _ in range(12):
                await asyncio.sleep(5)
                server.note_look(QueueLook(queues=[WaitingQueue(name="work", waits=False)]), 1)

    assert len(played(beat).looks) == 2


def test_a_paused_queue_is_not_looked_into() -> None:
    async def pause(jobs: Jobs) -> None:
        jobs.paused, jobs.waiting = {"work"}, [job("run_1")]
        server = jobs.server()
        async with launched(server):
            server.note_look(QueueLook(queues=[WaitingQueue(name="work", waits=True)]), 1)
            await asyncio.sleep(5)
            assert (len(jobs.looks), jobs.wanted) == (2, [])
            jobs.paused.clear()
            server.look_soon()
            await asyncio.sleep(0.02)
            assert jobs.began == ["run_1"]
            jobs.opened.set()

    played(pause)


def test_a_store_that_is_away_is_tried_again_and_ends_are_stored_then() -> None:
    async def away(jobs: Jobs) -> None:
        jobs.waiting = [job("run_1")]
        server = jobs.server()
        async with launched(server):
            jobs.is_away = True
            jobs.opened.set()
            await asyncio.sleep(3)
            assert jobs.ended == []
            assert server.taken == 1  # so no heartbeat takes it for one that never began
            jobs.waiting = [job("run_2")]
            server.hear(news("run_2@1"))
            looks = len(jobs.looks)
            await asyncio.sleep(2.5)
            assert len(jobs.looks) - looks <= 3
            jobs.is_away = False
            await asyncio.sleep(1.1)

    jobs = played(away)
    assert {name for each in jobs.ended for name in each} == {"run_1@1", "run_2@1"}


def test_ends_that_come_together_are_stored_together() -> None:
    async def end(jobs: Jobs) -> None:
        jobs.waiting = [job(f"run_{number}") for number in range(9)]
        jobs.end_s = 0.5
        async with launched(jobs.server(slots=9)):
            jobs.opened.set()
            await asyncio.sleep(2)

    assert [len(each) for each in played(end).ended] == [1, 8]


def test_what_a_worker_was_told_too_much_of_is_looked_for_without_names() -> None:
    async def tell(jobs: Jobs) -> None:
        server = jobs.server()
        async with launched(server):
            for number in range(1_000):
                server.hear(news(f"run_{number}@1", due_s=3_600))
            await asyncio.sleep(1)
            assert len(jobs.looks) == 2
            server.hear(news("run_1000@1", due_s=3_600))
            await asyncio.sleep(1)
            assert len(jobs.looks) == 3

    played(tell)


def test_a_worker_that_stops_takes_nothing_more_and_puts_back_what_does_not_end() -> None:
    async def stop(jobs: Jobs) -> None:
        jobs.waiting = [job("run_1")]
        server = jobs.server(drain_s=2.0)
        await server.launch()
        await asyncio.sleep(0.1)
        await server.drain()
        jobs.waiting = [job("run_2")]
        server.hear(news("run_2@1"))
        await asyncio.sleep(20)

    jobs = played(stop)
    assert jobs.began == ["run_1"]
    assert jobs.submitted == [job("run_1").put_back(is_failed_try=False)]
    assert jobs.ended == [{"run_1@1": '"put back"'}]


def test_a_job_whose_execution_fails_is_put_back_as_a_failed_try() -> None:
    async def fail(jobs: Jobs) -> None:
        jobs.waiting = [job("run_1")]
        server = jobs.server()
        jobs.opened = None  # type: ignore[assignment]  # what fails
        async with launched(server):
            await asyncio.sleep(0.1)

    assert played(fail).submitted == [job("run_1").put_back(is_failed_try=True)]


def test_a_worker_that_can_look_no_more_does_not_go_on_as_if_nothing_was() -> None:
    async def fail(jobs: Jobs) -> None:
        server = jobs.server()
        async with launched(server):
            jobs.looks = None  # type: ignore[assignment]  # what fails
            server.look_soon()
            with pytest.raises(AttributeError):
                await server.until_failed(asyncio.ensure_future(asyncio.sleep(3_600)))

    played(fail)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"positionalArgs": [7]}', '{"positionalArgs": [{"run_id": 1}]}']
)
def test_inputs_of_another_form_are_no_job(text: str) -> None:
    assert job_of_text(text) is None


@pytest.mark.parametrize("text", ["", "ENQUEUED", "ENQUEUED work", "ENQUEUED work x run_1@1"])
def test_what_anybody_else_tells_is_no_news(text: str) -> None:
    assert JobNews.of_text(text) is None


def test_news_say_of_which_job_they_are() -> None:
    assert JobNews.of_text("DELAYED work 2.5 run 1@1") == news("run 1@1", due_s=2.5)
    assert JobNews.of_text("PENDING work 0 run_1@1") == news("run_1@1", is_taken=True)
