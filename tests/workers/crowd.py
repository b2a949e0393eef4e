"""Very many workers on a fake clock, and what they ask of the database meanwhile.

The workers, their looks, heartbeats, claims, executors and the journal's folds are the real ones.
Stood in for is the database: rows in memory, an answer after some milliseconds, and each call
counted under what it is for.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar, cast

from attrs import asdict, define, field, frozen

from journals import JournalInFront
from minions import tool
from minions.adapters.dispatch.dbos_dispatch import DbosDispatch
from minions.adapters.dispatch.job_server import QueueLook, WaitingQueue
from minions.adapters.dispatch.left_jobs import LeftJobs
from minions.adapters.dispatch.postgres_claims import Claim, ClaimedJobs
from minions.adapters.dispatch.postgres_news import JobNews, PostgresNews
from minions.adapters.dispatch.postgres_workers import Heartbeat, PostgresWorkers
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.memory_stores import MemoryState
from minions.app.runs.run_queue import RunQueue
from minions.app.runs.schedule_store import ScheduleStore
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.dispatch import Job, JobState, JobView, WorkerPlan, WorkerView
from minions.contracts.executions import RunState
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.journal.start_note import QueuePlace
from minions.contracts.tools import Effect, Toolbox, ToolScope
from minions.data.json_values import dumps
from minions.engine.compile.extensions import Extensions
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import NullLog, Services
from minions.interfaces.server.live.waiting_notices import WaitingNotices
from minions.interfaces.worker.worker import Worker, WorkerRuntime
from minions.recipe.reading.load import load_recipe_text
from minions.testing.virtual_time import VirtualTime

if TYPE_CHECKING:
    from dbos import DBOSClient

__all__ = ["STATEMENTS", "Crowd", "CrowdOutcome", "crowded"]

T = TypeVar("T")

STATEMENTS: Final[Mapping[str, int]] = {"heartbeat": 2, "claim": 2}
"""Statements of one call, which is one transaction; of all others it is one."""
_QUEUE: Final = "default"
_RECIPE: Final = "id: one\nsteps:\n  - {id: s, tool: work}\n"
_WORK: Final = "of runs"
_SETTLED_S: Final = 30.0
"""Seconds after the last start in which workers look at what others left, and get out of step."""


@frozen(kw_only=True)
class Crowd:
    """What is played; all times are in seconds of the fake clock."""

    workers: int
    slots: int = 4
    jobs_per_s: float = 0.0
    """Submitted while it is counted."""
    work_s: tuple[float, float] = (1.0, 5.0)
    """The one step of a job."""
    started_within_s: float = 30.0
    """0: all start at the same moment, as after a change of all of them."""
    answer_s: tuple[float, float] = (0.001, 0.004)
    """Until the database answers."""
    counted_s: float = 60.0


@frozen(kw_only=True)
class CrowdOutcome:
    """What the workers asked for while it was counted."""

    crowd: Crowd
    calls: Mapping[str, int]
    """By what they are for. `of runs`: what the journal is asked for by executions."""
    told: int
    """What processes were told of jobs: each job twice to each worker."""
    busiest: int
    """Calls of the busiest second."""
    taken_s: Sequence[float]
    """From the submission of each job to its claim."""
    executed: int
    """Runs that ended."""
    faults: Sequence[str]

    def per_s(self, *kinds: str) -> float:
        """Calls a second of these kinds; of all where none is named."""
        return sum(self.calls[each] for each in kinds or self.calls) / self.crowd.counted_s

    @property
    def statements_per_s(self) -> float:
        """Statements a second, those of runs not counted."""
        asked = {kind: count for kind, count in self.calls.items() if kind != _WORK}
        return sum(n * STATEMENTS.get(kind, 1) for kind, n in asked.items()) / self.crowd.counted_s

    @property
    def idle_per_s(self) -> float:
        """Transactions a second, those of runs not counted."""
        return self.per_s(*(each for each in self.calls if each != _WORK))

    @property
    def taken_ms(self) -> tuple[float, float]:
        """The median and the 95th of a hundred."""
        twentieths = statistics.quantiles(self.taken_s, n=20)
        return statistics.median(self.taken_s) * 1000, twentieths[18] * 1000


@define(eq=False)
class _Database:
    """Rows of workers and jobs, and the count of what is asked."""

    crowd: Crowd
    rng: random.Random
    time: VirtualTime
    living: dict[str, WorkerPlan] = field(factory=dict)
    waiting: list[Job] = field(factory=list)
    taken: dict[str, tuple[Job, str]] = field(factory=dict)
    """Jobs by their keys, and who has them."""
    known: set[str] = field(factory=set)
    listeners: list[Callable[[JobNews], None]] = field(factory=list)
    submitted_at: dict[str, float] = field(factory=dict)
    taken_s: list[float] = field(factory=list)
    calls: Counter[str] = field(factory=Counter)
    seconds: Counter[int] = field(factory=Counter)
    told: int = 0
    is_counting: bool = False

    async def call(self, kind: str) -> None:
        """One call: counted, and answered after a moment."""
        if self.is_counting:
            self.calls[kind] += 1
            self.seconds[int(self.time.monotonic())] += 1
        await asyncio.sleep(self.rng.uniform(*self.crowd.answer_s))

    def tell(self, job: Job, *, is_taken: bool) -> None:
        """Tell all who listen."""
        news = JobNews(key=job.key, queue=job.queue, is_taken=is_taken)
        for listener in self.listeners:
            listener(news)
        if self.is_counting:
            self.told += len(self.listeners)

    def look(self, queues: Sequence[str]) -> QueueLook:
        waits = {each.queue for each in self.waiting}
        found = [
            WaitingQueue(name=name, waits=name in waits, per_worker=self.crowd.slots)
            for name in queues
        ]
        return QueueLook(queues=found)


class _Workers(PostgresWorkers):
    """The tables of workers and jobs, in memory."""

    def __init__(self, database: _Database) -> None:
        super().__init__("postgresql://nowhere/none", dead_after_s=20.0)
        self._database = database

    async def beat(
        self,
        plan: WorkerPlan,
        taken: int,
        left: LeftJobs,
        dead_after_s: float | None = None,
        clock_s: float | None = None,
    ) -> Heartbeat:
        database = self._database
        await database.call("heartbeat")
        database.living[plan.name] = plan
        return Heartbeat(
            living=len(database.living),
            nearby=frozenset({plan.name}),
            dead=frozenset(),
            own=[key for key, (_, worker) in database.taken.items() if worker == plan.name],
            abandoned=(),
            look=database.look(plan.queues),
        )

    async def look(self, queues: Sequence[str], left: LeftJobs) -> QueueLook:
        await self._database.call("look")
        return self._database.look(queues)

    async def claim(self, wanted: Claim) -> ClaimedJobs:
        database = self._database
        await database.call("claim")
        found = [each for each in database.waiting if each.queue == wanted.queue][: wanted.most]
        for job in found:
            database.waiting.remove(job)
            database.taken[job.key] = (job, wanted.worker)
            database.taken_s.append(database.time.monotonic() - database.submitted_at[job.key])
            database.tell(job, is_taken=True)
        inputs = [dumps({"positionalArgs": [asdict(each)]}) for each in found]
        return ClaimedJobs(names=[each.key for each in found], inputs=inputs)

    async def end(self, worker: str, words: Mapping[str, str]) -> None:
        await self._database.call("end of jobs")
        for key in words:
            self._database.taken.pop(key, None)

    async def views(self) -> Sequence[WorkerView]:
        await self._database.call("list of workers")
        now = self._database.time.now()
        return [
            WorkerView(
                name=plan.name, queues=plan.queues, slots=plan.slots, taken=0, started_at=now,
                seen_at=now, is_alive=True,
            )
            for plan in self._database.living.values()
        ]  # fmt: skip

    async def taken_by(self, workers: Collection[str]) -> Sequence[str]:
        await self._database.call("end of workers")
        return ()

    async def forget(self, name: str) -> None:
        await self._database.call("end of workers")

    async def forget_old(self) -> None:
        await self._database.call("old jobs")

    async def aclose(self) -> None:
        """Nothing is held."""


class _News(PostgresNews):
    """What is told, in memory."""

    def __init__(self, database: _Database) -> None:
        super().__init__("postgresql://nowhere/none", NullLog())
        self._database = database

    async def listen(
        self, tell: Callable[[JobNews], None], set_heard: Callable[[bool], None]
    ) -> None:
        self._database.listeners.append(tell)
        set_heard(True)
        await asyncio.Event().wait()


class _Dispatch(DbosDispatch):
    """The queues as one process has them."""

    def __init__(self, database: _Database) -> None:
        super().__init__(
            "postgresql://nowhere/none",
            NullLog(),
            workers=_Workers(database),
            news=_News(database),
            monotonic=database.time.monotonic,
            random=database.rng.random,
        )
        self._database = database
        self._has_tables = True

    async def submit(self, job: Job) -> bool:
        database = self._database
        await database.call("submission")
        if job.key in database.known:
            return False
        database.known.add(job.key)
        database.submitted_at[job.key] = database.time.monotonic()
        database.waiting.append(job)
        database.tell(job, is_taken=False)
        return True

    async def jobs(self, run_ids: Collection[str]) -> Sequence[JobView]:
        await self._database.call("look for lost jobs")
        waiting = [(each, JobState.WAITING) for each in self._database.waiting]
        taken = [(each, JobState.TAKEN) for each, _ in self._database.taken.values()]
        found = [*waiting, *taken]
        return [JobView(job=job, state=state) for job, state in found if job.run_id in run_ids]

    async def _call_client(self, call: Callable[[DBOSClient], T]) -> T:
        """Queues that nobody has set, and old jobs: there are none."""
        await self._database.call("old jobs")
        return cast("T", None)

    async def aclose(self) -> None:
        """Nothing is held."""


class _OwnState(MemoryState):
    """The texts beside the journal, as one process reaches them."""

    def __init__(self, shared: MemoryState, database: _Database, kind: str) -> None:
        super().__init__()
        self._shared = shared
        self._database = database
        self._kind = kind

    async def put(self, key: str, text: str) -> None:
        await self._database.call(self._kind)
        await self._shared.put(key, text)

    async def get(self, key: str) -> str | None:
        await self._database.call(self._kind)
        return await self._shared.get(key)

    async def keys(self, start: str = "") -> Sequence[str]:
        await self._database.call(self._kind)
        return await self._shared.keys(start)

    async def remove(self, key: str) -> None:
        await self._database.call(self._kind)
        await self._shared.remove(key)


class _OwnJournal(JournalInFront):
    """The journal as one process reaches it."""

    _LISTS: Final = frozenset({"runs", "sessions", "expired", "count_runs", "held_leases"})

    def __init__(self, shared: MemoryJournal, database: _Database) -> None:
        super().__init__(shared)
        self._database = database

    async def through(self, operation: str, work: Callable[[], Awaitable[T]]) -> T:
        await self._database.call("look at runs" if operation in self._LISTS else _WORK)
        return await work()


@define(eq=False)
class _Play:
    crowd: Crowd
    rng: random.Random
    time: VirtualTime
    journal: MemoryJournal = field(init=False)
    state: MemoryState = field(factory=MemoryState, init=False)
    database: _Database = field(init=False)
    ended: Counter[str] = field(factory=Counter, init=False)
    """How often the step of each run began."""

    def __attrs_post_init__(self) -> None:
        self.journal = MemoryJournal(self.time)
        self.database = _Database(self.crowd, self.rng, self.time)

    async def play(self) -> CrowdOutcome:
        crowd, database = self.crowd, self.database
        working = [asyncio.ensure_future(self._work(number)) for number in range(crowd.workers)]
        await self.time.sleep(crowd.started_within_s + _SETTLED_S)
        database.is_counting = True
        until = self.time.monotonic() + crowd.counted_s
        runs = await self._submit_until(until)
        await self.time.sleep(until - self.time.monotonic())
        database.is_counting = False
        unended = RunFilter(statuses={RunState.QUEUED, RunState.INTERRUPTED})
        async with asyncio.timeout(3_600):
            while await self.journal.count_runs(unended):
                await self.time.sleep(1)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        rows = await self.journal.runs()
        faults = [f"{row.run_id} is {row.status}" for row in rows if row.status != "completed"]
        faults += [
            f"{run} was executed {self.ended[run]} times" for run in runs if self.ended[run] != 1
        ]
        return CrowdOutcome(
            crowd=crowd,
            calls=dict(database.calls),
            told=database.told,
            busiest=max(database.seconds.values(), default=0),
            taken_s=database.taken_s,
            executed=len(rows),
            faults=faults,
        )

    async def _work(self, number: int) -> None:
        await self.time.sleep(self.rng.uniform(0, self.crowd.started_within_s))
        name = f"host-{number}:1:1+w"
        runtime = WorkerRuntime(Settings(), self._runtime(), name=name, folder=None)
        log, journal = NullLog(), runtime.services.journal
        marks = _OwnState(self.state, self.database, "look at notices")
        worker = Worker(
            runtime,
            _Dispatch(self.database),
            WorkerPlan(name=name, slots=self.crowd.slots),
            log,
            notices=WaitingNotices((), journal, marks, log, page=None, clock=self.time),
            schedules=ScheduleStore(_OwnState(self.state, self.database, "look at schedules")),
            state=_OwnState(self.state, self.database, "look at pauses and lacks"),
        )
        await worker.run()

    async def _submit_until(self, until: float) -> Sequence[str]:
        """Submit jobs at random times; the ids of their runs."""
        if not self.crowd.jobs_per_s:
            return ()
        runtime, found, putting = self._runtime(), list[str](), list[asyncio.Task[object]]()
        recipe = load_recipe_text(_RECIPE, "one.yaml", runtime.catalog)
        queue = RunQueue(_Dispatch(self.database), self.time)
        while True:
            await self.time.sleep(self.rng.expovariate(self.crowd.jobs_per_s))
            if self.time.monotonic() >= until:
                await asyncio.gather(*putting)
                return found
            run = runtime.executor(recipe).prepare(recipe)
            putting.append(asyncio.create_task(queue.put(run, QueuePlace(name=_QUEUE))))
            found.append(run.run_id)

    def _runtime(self) -> Runtime:
        @tool(effect=Effect.PURE)
        async def work(scope: ToolScope) -> int:
            """Take a while."""
            self.ended[scope.run_id] += 1
            await self.time.sleep(self.rng.uniform(*self.crowd.work_s))
            return 1

        services = Services(
            clock=self.time,
            sleep=self.time.sleep,
            random=self.rng.random,
            journal=_OwnJournal(self.journal, self.database),
            ids=lambda kind: f"{kind}_{self.rng.getrandbits(64):016x}",
            is_worker_gone=lambda _: False,
        )
        model = ScriptedModel([])
        return Runtime(
            models=lambda _recipe, _choice: model,
            extensions=Extensions(tools=Toolbox([work])),
            services=services,
        )


def crowded(crowd: Crowd, seed: int) -> CrowdOutcome:
    """Play it; the same seed plays the same."""
    time = VirtualTime(quiet_s=0.0, most_polls=1_000_000_000)
    return time.run(_Play(crowd, random.Random(seed), time).play())
