"""A fleet of workers on a fake clock: who dies or stands still, and when, is a seed's choice.

The workers, their search for lost jobs, the executors and the journal's leases are the real ones.
Stood in for are processes, which die and stand still as tasks of one event loop, and the engine's
store of jobs, which puts back what the dead had after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final, TypeVar, cast

from attrs import define, field, frozen
from typing_extensions import override

from crash.inspection import repeated_work
from journals import JournalInFront
from minions import tool
from minions.adapters.dispatch.local_dispatch import LocalDispatch, _Server
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.memory_stores import MemoryState
from minions.app.runs.run_queue import RunQueue
from minions.app.runs.schedule_store import ScheduleStore
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_runtime import Runtime
from minions.contracts.dispatch import Job, JobEnd, JobState, JobView, WorkerPlan
from minions.contracts.executions import RunState
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.journal.start_note import QueuePlace
from minions.contracts.runtime import Log
from minions.contracts.tools import Effect, Tool, Toolbox, ToolScope
from minions.data.errors import JournalError
from minions.engine.compile.extensions import Extensions
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.interfaces.server.live.waiting_notices import WaitingNotices
from minions.interfaces.worker.worker import Worker, WorkerRuntime
from minions.recipe.reading.load import load_recipe_text
from minions.testing.virtual_time import VirtualTime
from mortal import KilledError
from workers.fleet import EFFECTS_OF_A_RUN, RECIPE

__all__ = ["Fleet", "Outcome", "Plan", "simulated"]

T = TypeVar("T")

_MISSED_S: Final = 30.0
"""Seconds after which the engine takes a worker for dead."""
_WINDOW: Final = 4
"""Child runs of one run that wait or run at a time."""
_LOOK_S: Final = 10.0
"""Seconds between two looks of the engine for dead workers."""


@frozen(kw_only=True)
class Plan:
    """What is simulated; all times are in seconds of the fake clock."""

    workers: int = 10
    slots: int = 4
    runs: int = 100
    arrivals_s: float = 2.0
    """Between two runs, on average."""
    work_s: tuple[float, float] = (1.0, 30.0)
    """A call of a tool."""
    death_s: float = 60.0
    """Between two deaths or standstills of any worker, on average."""
    stands_still: float = 0.25
    """The share of those that are standstills."""
    still_s: tuple[float, float] = (5.0, 200.0)
    """How long a worker stands still: longer than its leases hold, or not."""
    comes_back_s: float = 20.0
    """Until another worker takes the place of a dead one."""
    lost_submissions: float = 0.1
    """The share of runs whose submitter dies between the record and the job."""
    outages: int = 1
    outage_s: float = 45.0
    """How long the database is away each time."""
    items: int = 0
    """Child runs of each run; 0: its recipe distributes nothing."""

    @property
    def recipe(self) -> str:
        """What the runs execute."""
        if not self.items:
            return RECIPE
        items = f"{list(range(self.items))}, distribute: true, max_parallel: {_WINDOW}"
        return RECIPE.replace("[1, 2, 3]", items)

    @property
    def effects(self) -> int:
        """Calls with an effect in all runs, each counted once."""
        return self.runs * (1 + self.items if self.items else EFFECTS_OF_A_RUN)


@frozen(kw_only=True)
class Outcome:
    """What became of it."""

    faults: Sequence[str]
    done: Counter[str]
    """What happened to workers and database, and how often."""
    facts: int
    executions: int
    """How often runs were taken; one for each run where nobody dies."""
    repeated_effects: int
    """Calls whose key was seen before: the worker died between effect and fact."""
    seconds: float
    """Until the last run had ended."""


@define(eq=False)
class _Process:
    """What stands for a worker's process."""

    name: str
    is_dead: bool = False
    still_since: float | None = None
    """When it was stopped; None: it runs."""
    task: asyncio.Task[None] | None = None
    _awake: asyncio.Event = field(factory=asyncio.Event)

    def __attrs_post_init__(self) -> None:
        self._awake.set()

    async def running(self) -> None:
        """Wait while it stands still; nothing of a dead one goes on."""
        await self._awake.wait()
        if self.is_dead:
            raise KilledError

    def stop(self, now: float) -> None:
        self.still_since = now
        self._awake.clear()

    def wake(self) -> None:
        self.still_since = None
        self._awake.set()


class _Database:
    """Whether it answers."""

    is_away = False

    def check(self) -> None:
        if self.is_away:
            raise JournalError("The database does not answer.", code="journal-unavailable")


class _OwnJournal(JournalInFront):
    """The shared journal as one process reaches it."""

    def __init__(self, shared: MemoryJournal, process: _Process, database: _Database) -> None:
        super().__init__(shared)
        self._process = process
        self._database = database

    async def through(self, operation: str, work: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(0)
        await self._process.running()
        self._database.check()
        return await work()


class _Engine(LocalDispatch):
    """Jobs that all workers see. Those of the dead are put back when they were missed for long."""

    is_shared = True

    def __init__(self, time: VirtualTime) -> None:
        super().__init__(time, time.sleep)
        self._time = time
        self.processes: dict[str, _Process] = {}
        self._lost: list[tuple[float, Job]] = []
        self._given: set[str] = set()
        """Jobs of workers that stand still, which others got as well."""

    @override
    async def jobs(self, run_ids: Collection[str]) -> Sequence[JobView]:
        lost = [
            JobView(job=job, state=JobState.TAKEN) for _, job in self._lost if job.run_id in run_ids
        ]
        return [*await super().jobs(run_ids), *lost]

    @override
    def _next(self, server: _Server) -> Job | None:
        process = self.processes[server.plan.name]
        is_running = process.still_since is None and not process.is_dead
        return super()._next(server) if is_running else None

    @override
    async def _execute_job(self, server: _Server, job: Job) -> None:
        process, end = self.processes[server.plan.name], JobEnd()
        try:
            end = await server.execute(job)
        except asyncio.CancelledError:
            if not process.is_dead:
                await self.submit(job.put_back(is_failed_try=False))
                raise
        except KilledError:
            pass
        if job.key in self._given:
            self._end(job)
        elif process.is_dead:
            self._lost.append((self._time.monotonic(), job))
        elif end.again is not None:
            if end.lack is not None:
                server.left.leave(end.again, end.lack)
            await self.submit(end.again)

    def wake_process(self, process: _Process) -> None:
        """Let it run again; it looks for jobs as a process does that missed a while."""
        process.wake()
        self._changed.set()

    def kill(self, name: str) -> None:
        """End what that worker does."""
        self.processes[name].is_dead = True
        for server in self._servers:
            if server.plan.name == name:
                for task in server.tasks:
                    task.cancel()

    def _missed(self) -> list[Job]:
        """Jobs of workers that stand still for so long that they are taken for dead."""
        now, found = self._time.monotonic(), list[Job]()
        for server in self._servers:
            since = self.processes[server.plan.name].still_since
            if since is not None and now - since >= _MISSED_S:
                found += server.tasks.values()
                server.tasks.clear()  # others may have them, and their sessions
        self._given |= {job.key for job in found}
        return found

    @override
    def _forget(self, server: _Server, task: asyncio.Task[None]) -> None:
        if task in server.tasks:
            super()._forget(server, task)

    async def put_back(self) -> None:
        """Put back the jobs of the dead, for ever."""
        while True:
            await self._time.sleep(_LOOK_S)
            until = self._time.monotonic() - _MISSED_S
            missed = [job for since, job in self._lost if since <= until]
            self._lost = [each for each in self._lost if each[0] > until]
            for job in [*missed, *self._missed()]:
                await self.submit(job.put_back(is_failed_try=True))


class _Quiet(Log):
    def info(self, event: str, /, **facts: object) -> None:
        """Nothing is logged."""

    def warning(self, event: str, /, **facts: object) -> None:
        """Nothing is logged."""


@define(eq=False)
class Fleet:
    """Workers that die and are replaced until all runs have ended."""

    plan: Plan
    rng: random.Random
    time: VirtualTime
    journal: MemoryJournal = field(init=False)
    engine: _Engine = field(init=False)
    database: _Database = field(factory=_Database, init=False)
    done: Counter[str] = field(factory=Counter, init=False)
    effects: Counter[str] = field(factory=Counter, init=False)
    """By the key of the call."""
    late: list[str] = field(factory=list, init=False)
    """Effects of processes that were dead or stood still."""
    _numbers: int = field(default=0, init=False)
    _tasks: set[asyncio.Task[None]] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self.journal = MemoryJournal(self.time)
        self.engine = _Engine(self.time)

    async def play(self) -> Outcome:
        """To the end of all runs."""
        asyncio.get_running_loop().set_exception_handler(_ignore_the_dead)
        for _ in range(self.plan.workers):
            self._start_worker()
        self._spawn(self.engine.put_back())
        self._spawn(self._harass())
        self._spawn(self._outages())
        await self._submit_all()
        open_ones = RunFilter(statuses={RunState.QUEUED, RunState.INTERRUPTED})
        while await self.journal.count_runs(open_ones):
            await self.time.sleep(1)
        seconds = self.time.monotonic()
        for process in self.engine.processes.values():
            process.wake()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return await self._outcome(seconds)

    def _spawn(self, work: object) -> asyncio.Task[None]:
        task = asyncio.ensure_future(cast("asyncio.Future[None]", work))
        self._tasks.add(cast("asyncio.Task[None]", task))
        return cast("asyncio.Task[None]", task)

    # --- processes --------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        self._numbers += 1
        process = _Process(f"worker-{self._numbers}")
        self.engine.processes[process.name] = process
        runtime = WorkerRuntime(Settings(), self._runtime(process), name=process.name, folder=None)
        log = _Quiet()
        notices = WaitingNotices((), runtime.services.journal, MemoryState(), log, page=None)
        plan = WorkerPlan(name=process.name, slots=self.plan.slots)
        worker = Worker(
            runtime,
            self.engine,
            plan,
            log,
            notices=notices,
            schedules=ScheduleStore(MemoryState()),
        )
        process.task = self._spawn(self._work(worker))

    async def _work(self, worker: Worker) -> None:
        with contextlib.suppress(KilledError):
            while True:  # a service manager starts it again
                with contextlib.suppress(JournalError):
                    await worker.run()
                await self.time.sleep(1)

    def _runtime(self, process: _Process | None) -> Runtime:
        alive = process or _Process("submitter")
        services = Services(
            clock=self.time,
            sleep=self.time.sleep,
            random=self.rng.random,
            journal=_OwnJournal(self.journal, alive, self.database),
            ids=self._id,
            is_worker_gone=lambda _: False,
        )
        extensions = Extensions(tools=Toolbox([self._tool(alive)]))
        model = ScriptedModel([])
        return Runtime(
            models=lambda _recipe, _choice: model, extensions=extensions, services=services
        )

    def _id(self, kind: str) -> str:
        return f"{kind}_{self.rng.getrandbits(64):016x}"

    def _tool(self, process: _Process) -> Tool:
        @tool(effect=Effect.IDEMPOTENT)
        async def work(n: int, scope: ToolScope) -> int:
            """Take a while."""
            await self.time.sleep(self.rng.uniform(*self.plan.work_s))
            await process.running()
            self.effects[scope.idempotency_key] += 1
            return n * 2

        return work

    # --- what happens to them ---------------------------------------------------------------------

    async def _harass(self) -> None:
        while True:
            await self.time.sleep(self.rng.expovariate(1 / self.plan.death_s))
            alive = [each for each in self.engine.processes.values() if not each.is_dead]
            if not alive:
                continue
            process = self.rng.choice(alive)
            if self.rng.random() < self.plan.stands_still:
                self._spawn(self._stand_still(process))
            else:
                self._spawn(self._die(process))

    async def _die(self, process: _Process) -> None:
        self.done["deaths"] += 1
        self.engine.kill(process.name)
        process.wake()
        if process.task is not None:
            process.task.cancel()
        await self.time.sleep(self.plan.comes_back_s)
        self._start_worker()

    async def _stand_still(self, process: _Process) -> None:
        self.done["standstills"] += 1
        process.stop(self.time.monotonic())
        await self.time.sleep(self.rng.uniform(*self.plan.still_s))
        self.engine.wake_process(process)

    async def _outages(self) -> None:
        for _ in range(self.plan.outages):
            await self.time.sleep(self.rng.uniform(60, 300))
            self.done["outages of the database"] += 1
            self.database.is_away = True
            await self.time.sleep(self.plan.outage_s)
            self.database.is_away = False

    # --- runs -------------------------------------------------------------------------------------

    async def _submit_all(self) -> None:
        runtime = self._runtime(None)
        recipe = load_recipe_text(self.plan.recipe, "parts.yaml", runtime.catalog)
        for number in range(self.plan.runs):
            await self.time.sleep(self.rng.expovariate(1 / self.plan.arrivals_s))
            run = runtime.executor(recipe).prepare(recipe, {"n": number})
            is_lost = self.rng.random() < self.plan.lost_submissions
            queue = RunQueue(None if is_lost else self.engine, self.time)
            self.done["lost submissions"] += is_lost
            while True:
                try:
                    await queue.put(run, QueuePlace())
                    break
                except JournalError:
                    await self.time.sleep(5)
                    run = runtime.executor(recipe).prepare(recipe, {"n": number})

    # --- what must hold ---------------------------------------------------------------------------

    async def _outcome(self, seconds: float) -> Outcome:
        rows = await self.journal.runs()
        entries = await self.journal.entries()
        by_session: dict[str, list[JournalEntry]] = {}
        for entry in entries:
            by_session.setdefault(entry.session_id, []).append(entry)
        wanted = self.plan.effects
        faults = [
            *(f"{row.run_id} is {row.status}" for row in rows if row.status != RunState.COMPLETED),
            *(fault for each in by_session.values() for fault in repeated_work(each)),
        ]
        expected = self.plan.runs * (1 + self.plan.items)
        if len(rows) != expected:
            faults.append(f"{len(rows)} runs instead of {expected}")
        if len(self.effects) != wanted:
            faults.append(f"{len(self.effects)} effects instead of {wanted}")
        begun = sum(entry.kind == "run" and entry.state == "resumed" for entry in entries)
        return Outcome(
            faults=faults,
            done=self.done,
            facts=len(entries),
            executions=begun,
            repeated_effects=sum(count - 1 for count in self.effects.values()),
            seconds=seconds,
        )


def _ignore_the_dead(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Nobody looks at what became of tasks of a dead process."""
    if not isinstance(context.get("exception"), KilledError):
        loop.default_exception_handler(cast("dict[str, Any]", context))  # Any: as it is typed


def simulated(plan: Plan, seed: int) -> Outcome:
    """Play it; the same seed plays the same."""
    time = VirtualTime(quiet_s=0.0)
    return time.run(Fleet(plan, random.Random(seed), time).play())
