"""A worker: serves queues, submits what was lost, and says how it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from attrs import evolve, field, mutable

from minions.adapters.stores.memory_stores import MemoryState, StateStore
from minions.app.evaluating.background_scores import LOOK_AT_RUNS_S, LiveScores
from minions.app.runs.deployments import DeploymentStore
from minions.app.runs.left_runs import (
    MOST_LOOKED,
    LeftRuns,
    WaitingRun,
    left_runs,
    living_workers,
    worker_records,
)
from minions.app.runs.paused_queues import QueuePause, queue_pauses
from minions.app.runs.run_needs import build_version, needs_of
from minions.app.runs.run_policy import QUEUE, RunPolicy
from minions.app.runs.run_queue import RunQueue
from minions.app.runs.schedule_store import (
    Progress,
    Schedule,
    ScheduleStore,
    SkipCause,
    SkippedTime,
)
from minions.app.runs.unattended_runtime import UnattendedRuntime
from minions.app.runs.unexecuted_runs import DueRuns
from minions.app.runs.work_lists import WorkLists
from minions.contracts.dispatch import DispatchEngine, WorkerPlan
from minions.contracts.executions import OPEN_STATES, RunState
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.journal.start_note import SCHEDULE, StartNote
from minions.contracts.runtime import Log
from minions.contracts.waiting import RunWait
from minions.data.errors import (
    BudgetSpentError,
    JournalError,
    LeaseHeldError,
    MinionsError,
    NotFoundError,
    words_of,
)
from minions.data.json_values import JsonValue
from minions.data.texts import seconds_of
from minions.engine.sessions.retention import Retention
from minions.interfaces.http.metrics_page import metrics_page
from minions.interfaces.server.live.waiting_notices import REMINDERS_S, WaitingNotices
from minions.interfaces.worker.delta_streams import DeltaStreams
from minions.interfaces.worker.run_execution import ParentRuns, Reconciliation, RunExecution
from minions.recipe.model import AgentRecipe, MissedRuns, Overlap
from minions.recipe.schedules import MOST_MISSED, due_times, next_due

_LOOK_SHARED_S: Final = 10.0
"""Seconds between two looks for lost jobs, where submitters reach the engine themselves."""
_LOOK_LOCAL_S: Final = 0.5
"""Where the journal is the only way to a worker."""
_LOOK_TIMED_S: Final = 10.0
"""Seconds between two looks for waiting runs whose time has come."""
_LOOK_SCHEDULES_S: Final = 10.0
"""Seconds between two looks at schedules at most; at a due time there is one more."""
_LOOK_PAUSED_S: Final = 5.0
"""Seconds between two looks which queues are paused."""
_LOOK_OLD_S: Final = 10.0
"""Seconds between two looks for old sessions; each removes some of them."""
_LOOK_LEFT_S: Final = 5.0
"""Seconds between two looks whether the worker's folder is there, and for runs that no worker can
execute; only a worker that left some reads anything for those."""
_CROWD: Final = 8
"""Living workers that look at full pace for what any of them may do; more look less often each, so
that all together look as often."""
_LONGEST_LOOK_S: Final = 60.0
"""Seconds between two looks of one worker, however many there are."""
_MOST_LEFT: Final = 500
"""Runs that it left which one look reads."""
_READY_S: Final = 5.0
_AWAY: Final = frozenset(
    {
        *("database-unreachable", "dispatch-unreachable", "database-busy"),
        *("too-many-connections", "server-overloaded"),
    }
)
"""Codes of a database that may be there, or have room, in a moment."""
_AWAITED_S: Final = 60.0
"""Seconds for which a worker that starts waits for such a database."""
_AGAIN_S: Final = 1.0
"""Seconds between two tries to reach it."""


class WorkerRuntime(UnattendedRuntime):
    """The executors of a worker, by its own operator's policy."""

    def in_other_folders(self, run_id: str, home: str) -> str:  # it is told already
        """A worker there, or this one."""
        return (
            "Start a worker in that folder, or let this one execute runs of all folders in its "
            "own: `minions worker --any-folder`."
        )


class Worker:
    """Executes queued runs until it is stopped."""

    def __init__(
        self,
        runtime: WorkerRuntime,
        engine: DispatchEngine,
        plan: WorkerPlan,
        log: Log,
        *,
        notices: WaitingNotices,
        schedules: ScheduleStore,
        deltas: DeltaStreams | None = None,
        retain_s: float | None = None,
        patience_s: float | None = None,
        state: StateStore | None = None,
    ) -> None:
        """Nothing is opened yet.

        Args:
            runtime: Closed here, as is the engine.
            plan: Named as the runtime is.
            notices: Told of runs that begin to wait for a person; closed here.
            schedules: Whose runs it starts when they are due; closed here.
            deltas: Offers the pieces of answers of its runs; None: nobody reads them.
            retain_s: How long sessions stay after the end of their last run; None: as long as
                their runs say.
            patience_s: As of `RunExecution`.
            state: Where it says what it lacks for queued runs; None: in memory.
        """
        self.plan = plan
        self._runtime = runtime
        self._services = runtime.services
        self._journal = runtime.services.journal
        self._clock = runtime.services.clock
        self._parts = runtime.parts
        """Taken now, before files change."""
        self._engine = engine
        self._log = log
        self._notices = notices
        self._reconciliation = Reconciliation(runtime.services, engine, self._is_worker_gone, log)
        parents = ParentRuns(runtime, engine, self._reconciliation, log)
        state = state or MemoryState()
        self._state = state
        now, build = runtime.services.clock.now(), build_version()
        self._left = LeftRuns(state, plan, self._parts.offered, now, build)
        self._scores = LiveScores(runtime, state, log, notices.tell_once)
        self._execution = RunExecution(
            runtime,
            log,
            parents,
            on_waiting=notices.tell,
            on_ended=self._scores.run_ended,
            when_begun=engine.when_begun,
            deltas=deltas,
            # One that ends when nothing is to be done would end before the answers are there.
            parks=not plan.ends_when_idle,
            patience_s=patience_s,
            left=self._left,
        )
        self._unable = UnableWorkers(
            runtime, engine, self._execution, self._left, notices, state, log
        )
        runtime.wake_with(parents.wake)
        self._timed_waits = TimedWaits(runtime, engine, log)
        self._schedules = DueSchedules(
            runtime,
            engine,
            schedules,
            DeploymentStore(state),
            log,
            queues=plan.queues,
        )
        self._retention = Retention(runtime.services, retain_s=retain_s, forget=self._forget_runs)
        self._stop = asyncio.Event()
        self._pauses: Mapping[str, QueuePause] = {}

    @property
    def is_stopping(self) -> bool:
        """Whether it takes no more runs."""
        return self._stop.is_set()

    def publish_stream(self, url: str) -> None:
        """Let other processes know where it offers the pieces of answers; to be said before `run`.

        Where workers are not listed, as those of an SQLite file, nobody is told.
        """
        self.plan = evolve(self.plan, stream_url=url)

    def stop(self) -> None:
        """Take no more runs; those under way have the plan's time to end."""
        self._stop.set()

    async def problem(self) -> str | None:
        """Why the worker cannot work now; None: it can."""
        if self.is_stopping:
            return "stopping"
        if (lacks := self._parts.problem) is not None:
            return f"it lacks {lacks}"
        try:
            async with asyncio.timeout(_READY_S):
                await self._journal.held_leases()
        except (MinionsError, TimeoutError) as error:
            return f"the database does not answer{_code_of(error)}"
        try:
            async with asyncio.timeout(_READY_S):
                return await self._engine.problem(self.plan.name)
        except (MinionsError, TimeoutError) as error:
            return f"the queues do not answer{_code_of(error)}"

    async def metrics_page(self) -> bytes:
        """What was counted since the process began, as Prometheus text.

        Raises:
            EnvironmentRefusedError: `missing-extra`.
        """
        services, engine = self._services, self._engine
        shared = engine if engine.is_shared else None
        work = WorkLists(services.journal, self._state, shared, self._runtime.is_worker_gone)
        return await metrics_page(services, self._state, work)

    async def run(self) -> None:
        """Work until `stop`, or until nothing is left where the plan says so.

        A database that cannot be reached at the start is waited for, a minute at the most.

        Raises:
            EnvironmentRefusedError, JournalError: It could not be reached for so long, or refuses.
        """
        for look in (
            self._look_at_pauses,
            self._unable.begin,
            self._schedules.look,
            self._timed_waits.look,
            self._reconciliation.look,
            self._notices.tell_untold,
        ):
            await self._when_reachable(look)
        looking = [
            asyncio.ensure_future(self._look(look, pause_s))
            for look, pause_s in (
                (self._reconciliation.look, lambda: self._shared_s(self._lost_jobs_s)),
                (self._timed_waits.look, lambda: self._shared_s(_LOOK_TIMED_S)),
                (
                    self._schedules.look,
                    lambda: self._schedules.pause_s(self._shared_s(_LOOK_SCHEDULES_S)),
                ),
                (self._notices.remind, lambda: self._shared_s(REMINDERS_S)),
                (self._retention.look, lambda: self._shared_s(_LOOK_OLD_S)),
                (self._unable.look, lambda: _LOOK_LEFT_S),
                (self._look_at_pauses, lambda: _LOOK_PAUSED_S),
                (self._scores.look, lambda: LOOK_AT_RUNS_S),
            )
        ]
        try:
            await self._when_reachable(
                lambda: self._engine.serve(self._execution.execute, self.plan, self._stop)
            )
            if self.plan.ends_when_idle and not self.is_stopping:  # its runs ended just now
                await self._try_once(self._scores.look, None)
        finally:
            for each in looking:
                each.cancel()
            with contextlib.suppress(MinionsError):  # others find that it is dead
                await self._left.remove()
            await self._notices.told()

    async def _when_reachable(self, do: Callable[[], Awaitable[object]]) -> None:
        """Do it; again while the database is away, whose reason is told once. A worker that stops
        waits no more.

        Raises:
            MinionsError: It was away for too long, or something else is wrong.
        """
        monotonic = self._clock.monotonic
        since: float | None = None
        while not self.is_stopping:
            try:
                await do()
            except MinionsError as error:
                if error.error_code not in _AWAY:
                    raise
                if since is None:
                    since = monotonic()
                    self._log.warning(
                        "database_awaited", reason=error.message, longest_s=_AWAITED_S
                    )
                elif monotonic() - since >= _AWAITED_S:
                    raise
            else:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _AGAIN_S)

    async def aclose(self) -> None:
        """Close what was opened for the worker."""
        await self._notices.aclose()
        await self._schedules.aclose()
        await self._engine.aclose()
        await self._runtime.aclose()

    async def _look_at_pauses(self) -> int:
        """Take no runs of paused queues; returns how many pauses there are."""
        pauses = await queue_pauses(self._state)
        self._engine.pause(pauses)
        for queue in pauses.keys() - self._pauses.keys():
            self._log.info("queue_paused", queue=queue, reason=pauses[queue].reason)
        for queue in self._pauses.keys() - pauses.keys():
            self._log.info("queue_resumed", queue=queue)
        self._pauses = pauses
        return len(pauses)

    async def _forget_runs(self, run_ids: Collection[str]) -> None:
        """Remove what removed runs left in the cache."""
        if (cache := self._services.cache) is not None:
            await cache.forget_runs(run_ids)

    def _is_worker_gone(self, worker_id: str) -> bool:
        return self._runtime.is_worker_gone(worker_id)

    @property
    def _lost_jobs_s(self) -> float:
        return _LOOK_SHARED_S if self._engine.is_shared else _LOOK_LOCAL_S

    def _shared_s(self, every_s: float) -> float:
        """Seconds until the next look for what any worker may do."""
        if (living := self._engine.living_workers) <= _CROWD:
            return every_s
        jitter = 0.75 + self._services.random() / 2  # else all would look at once
        return min(_LONGEST_LOOK_S, every_s * living / _CROWD) * jitter

    async def _look(self, look: Callable[[], Awaitable[int]], pause_s: Callable[[], float]) -> None:
        problem: str | None = None
        share = 1.0 - self._services.random()  # workers started together get out of step
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), share * pause_s())
            share = 1.0
            if self.is_stopping:
                return
            problem = await self._try_once(look, problem)

    async def _try_once(self, look: Callable[[], Awaitable[int]], before: str | None) -> str | None:
        """Look once; why that failed, logged when it is another reason than before."""
        try:
            await look()
        except MinionsError as error:
            if error.message != before:
                self._log.warning("runs_not_looked_for", reason=error.message)
            return error.message
        except Exception as error:  # noqa: BLE001  # one odd run must not end the search for others
            self._log.warning("runs_not_looked_for", reason=words_of(error))
            return words_of(error)
        return None


def _code_of(error: Exception) -> str:
    """For anybody who asks: the message may name places."""
    return f" ({error.error_code})" if isinstance(error, MinionsError) else " in time"


# --- runs that no worker can execute -------------------------------------------------------------


class UnableWorkers:
    """Tells of queued runs that no living worker can execute, and gives up those that waited too
    long for one. A worker that left no run reads nothing for it.
    """

    def __init__(
        self,
        runtime: UnattendedRuntime,
        engine: DispatchEngine,
        execution: RunExecution,
        left: LeftRuns,
        notices: WaitingNotices,
        state: StateStore,
        log: Log,
    ) -> None:
        """Nothing is read yet."""
        self._runtime = runtime
        self._engine = engine
        self._execution = execution
        self._left = left
        self._notices = notices
        self._state = state
        self._log = log
        self._told: set[str] = set()
        self._looked = 0
        """Runs that wait longer than those at which the next look begins."""
        self._silences = engine.silences

    async def begin(self) -> None:
        """Store what this worker is, where others know it by that alone.

        Raises:
            JournalError: The database cannot be used.
        """
        if not self._engine.is_shared:  # else it is to be known as living before
            await self._left.store()
            await self._remove_dead(None)

    async def _remove_dead(self, living: Collection[str] | None) -> None:
        """Remove what workers stored that have died.

        Args:
            living: The names of those that live; None: a name tells whether its process does.
        """
        records = await worker_records(self._state)
        if self._left.name not in [each.name for each in records]:  # others took it for dead
            await self._left.store(again=True)
        for record in records:
            if living is None:
                is_dead = self._runtime.is_worker_gone(record.name)
            else:
                is_dead = record.name not in living
            if is_dead:
                await self._left.remove(record.name)

    async def look(self) -> int:
        """Tell of what no worker can execute, and what this one lacks before a run meets it;
        returns how many runs wait for that.

        Raises:
            JournalError, EnvironmentRefusedError: The database cannot be used.
        """
        runtime = self._runtime
        self._left.note_problem(runtime.parts.problem)
        silences = self._engine.silences
        # Others may have removed what it stored, when they took it for dead.
        await self._left.store(again=silences != self._silences)
        self._silences = silences
        if not self._left.has_any:
            return 0
        services, living = runtime.services, await living_workers(self._engine)
        await self._remove_dead(living)
        await self._forget_ended(services.journal)
        gone = runtime.is_worker_gone
        found = await left_runs(services.journal, self._state, gone, living, offset=self._looked)
        self._looked = self._looked + MOST_LOOKED if found.has_more else 0
        longest_s, now = seconds_of(runtime.settings.give_up_after), services.clock.now()
        for run in found.runs:
            if now - run.since > timedelta(seconds=longest_s):
                await self._execution.give_up(run)
                continue
            name = f"lacks_{run.queue}_{run.needs or run.run_id}"
            if name not in self._told:
                self._told.add(name)
                self._log.warning(
                    "run_waits_for_worker", run_id=run.run_id, lacks="; ".join(run.parts)
                )
                await self._notices.tell_once(_wait_of(run))
        return len(found.runs)

    async def _forget_ended(self, journal: Journal) -> None:
        """Forget the runs that it left and that others executed, with their jobs here."""
        known = sorted(self._left.run_ids)[:_MOST_LEFT]
        rows = await journal.runs(RunFilter(run_ids=set(known))) if known else ()
        waiting = {row.run_id for row in rows if row.status in OPEN_STATES}
        ended = [run_id for run_id in known if run_id not in waiting]
        for run_id in ended:
            await self._engine.cancel(run_id)
        self._left.forget(ended)


def _wait_of(run: WaitingRun) -> RunWait:
    return RunWait(
        id=f"wait_{run.run_id}_{run.position}_lacks",
        run_id=run.run_id,
        session_id=run.session_id,
        recipe=run.recipe,
        since=run.since,
        decisions=(),
        lacks=run.parts,
    )


# --- waiting runs that can be resumed at a known time without a decision -------------------------


class TimedWaits:
    """Queues runs again whose time has come."""

    def __init__(self, runtime: UnattendedRuntime, engine: DispatchEngine, log: Log) -> None:
        """Nothing is read yet."""
        services = runtime.services
        self._runtime = runtime
        self._queue = RunQueue(engine, services.clock)
        self._log = log
        self._due = DueRuns(services.journal, services.clock, QUEUE)

    async def look(self) -> int:
        """Queue the runs that are due; returns how many those are.

        Raises:
            JournalError: It cannot be read.
        """
        return sum([await self._resume_run(run_id) for run_id in await self._due.find()])

    async def _resume_run(self, run_id: str) -> bool:
        """Whether this worker queued it; another one may have been faster."""
        try:
            recorded = await self._runtime.recorded(run_id)
            place = RunPolicy.recorded(recorded.note).queue
            if place is None or recorded.summary.status != RunState.NEEDS_DECISION:
                return False
            place = evolve(place, not_before=None)
            await self._runtime.queue_again(recorded, place, self._queue)
        except Exception as error:  # noqa: BLE001  # one odd run must not keep back the others
            self._log.info("run_not_resumed", run_id=run_id, reason=words_of(error))
            self._due.put_off(run_id)
            return False
        self._log.info("run_due", run_id=run_id, queue=place.name)
        return True


# --- starts the runs of schedules at their due times, each once over all workers of a database ---


ON_TIME_S: Final = 60.0
"""Seconds after its due time until which a run is on time; later it was missed."""
_NOT_ENDED: Final = (*OPEN_STATES, RunState.NEEDS_DECISION)


@mutable(kw_only=True)
class _Look:
    """What one look at a schedule does."""

    schedule: Schedule
    recipe: AgentRecipe
    progress: Progress
    open_runs: dict[str, str]
    """Its runs that have not ended, the oldest first: their states by their ids."""
    waiting: list[datetime] = field(factory=list)

    def skip(self, due: datetime, cause: SkipCause, reason: str) -> None:
        """Note that no run is started for that time."""
        self.progress = self.progress.skip(SkippedTime(due=due, cause=cause, reason=reason))


class DueSchedules:
    """Looks which schedules are due. Any worker may do so, whatever its queues are."""

    def __init__(
        self,
        runtime: UnattendedRuntime,
        engine: DispatchEngine,
        store: ScheduleStore,
        deployments: DeploymentStore,
        log: Log,
        *,
        queues: Collection[str],
    ) -> None:
        """Nothing is read yet.

        Args:
            store: Closed here.
            deployments: Which versions of recipes runs get.
            queues: Those whose runs this worker executes; it starts runs of others, too.
        """
        self._runtime = runtime
        self._clock = runtime.services.clock
        self._journal = runtime.services.journal
        self._queue = RunQueue(engine, self._clock)
        self._queues = queues
        self._store = store
        self._deployments = deployments
        self._log = log
        self._next: datetime | None = None
        """The first time at which a schedule is due; None: there is none, or all were late."""
        self._problems: dict[str, str] = {}
        """Why a schedule cannot be carried out, so that it is logged once."""

    def pause_s(self, most_s: float) -> float:
        """Seconds until the next look.

        Args:
            most_s: The most, so that new schedules are seen.
        """
        if self._next is None:
            return most_s
        return min(most_s, max(0.05, (self._next - self._clock.now()).total_seconds()))

    async def look(self) -> int:
        """Start the runs that are due; returns how many this worker started.

        Raises:
            JournalError: The database cannot be used.
        """
        self._next = None
        return sum([await self._carried_out(name) for name in await self._store.names()])

    async def aclose(self) -> None:
        """Close the store."""
        await self._store.aclose()

    async def _carried_out(self, name: str) -> int:
        """How many of its runs were started. One that cannot be carried out harms no other."""
        try:
            schedule = await self._store.get(name)
            count = await self._start_due(schedule)
        except LeaseHeldError:
            return 0  # another worker is about to start its run
        except Exception as error:  # a stranger's recipe may raise anything
            if isinstance(error, NotFoundError) and name not in await self._store.names():
                return 0  # it was removed just now
            if isinstance(error, JournalError) and error.error_code != "corrupt-entry":
                raise  # the database: no schedule can be carried out now
            await self._tell(name, words_of(error))
            return 0
        was_known = self._problems.pop(name, None) is not None
        if count or was_known:
            await self._store.put_problem(name, None)
        return count

    async def _tell(self, name: str, problem: str) -> None:
        if self._problems.get(name) != problem:
            self._problems[name] = problem
            self._log.warning("schedule_not_carried_out", schedule=name, reason=problem)
        if await self._store.problem(name) != problem:
            await self._store.put_problem(name, problem)

    async def _start_due(self, schedule: Schedule) -> int:
        now = self._clock.now()
        before = await self._store.progress(schedule.name)
        handled = max(schedule.since, before.handled or schedule.since)
        dues = due_times(schedule.spec, handled, now)
        count = 0
        if dues or (before.waiting and not schedule.is_paused):
            progress = _with_unseen(schedule, before, dues, handled)
            if schedule.is_paused:
                for due in dues:
                    skipped = SkippedTime(due=due, cause=SkipCause.PAUSED, reason="it was paused")
                    progress = progress.skip(skipped)
            else:
                look = await self._open_look(schedule, progress, now)
                count = await self._start_all(look, dues, now)
                progress = look.progress
            if dues:
                progress = evolve(progress, handled=dues[-1])
            await self._keep(schedule.name, before, progress)
        self._note_next(next_due(schedule.spec, dues[-1] if dues else handled), now)
        return count

    async def _keep(self, name: str, before: Progress, progress: Progress) -> None:
        """Store how far it was carried out, unless another worker was faster; log what it left
        out.
        """
        newest = (await self._store.progress(name)).handled
        if newest is not None and (progress.handled is None or progress.handled < newest):
            return
        await self._store.put_progress(name, progress)
        for each in progress.skipped:
            if each not in before.skipped:
                self._log.info(
                    "scheduled_run_skipped",
                    schedule=name,
                    due=each.due.isoformat(),
                    cause=each.cause.value,
                    reason=each.reason,
                )

    def _note_next(self, at: datetime | None, now: datetime) -> None:
        if at is not None and at > now and (self._next is None or at < self._next):
            self._next = at

    # --- one look at one schedule -----------------------------------------------------------------

    async def _open_look(self, schedule: Schedule, progress: Progress, now: datetime) -> _Look:
        """With the runs that have not ended: of those that are known, and of the newest times."""
        newest = due_times(schedule.spec, schedule.since, now)
        names = dict.fromkeys((*progress.open_runs, *(schedule.ids_at(due)[0] for due in newest)))
        rows = await self._journal.runs(RunFilter(run_ids=set(names))) if names else ()
        states = {row.run_id: row.status for row in rows if row.status in _NOT_ENDED}
        return _Look(
            schedule=schedule,
            recipe=self._runtime.bounded(schedule.recipe(self._runtime.catalog)),
            progress=progress,
            open_runs={run_id: states[run_id] for run_id in names if run_id in states},
        )

    async def _start_all(self, look: _Look, dues: Sequence[datetime], now: datetime) -> int:
        """Start the runs of these times, and of those that waited; returns how many."""
        wanted = _without_missed(look.schedule.spec.missed, dues, now)
        for due in dues:
            if due not in wanted:
                look.skip(due, SkipCause.MISSED, "no worker was there within a minute after it")
        count = sum(
            [await self._start_or_not(look, due) for due in (*look.progress.waiting, *wanted)]
        )
        for due in look.waiting[MOST_MISSED:]:
            look.skip(due, SkipCause.LIMIT, f"{MOST_MISSED} times before it wait")
        look.progress = evolve(
            look.progress,
            waiting=tuple(look.waiting[:MOST_MISSED]),
            open_runs=tuple(look.open_runs)[-MOST_MISSED:],
        )
        return count

    async def _start_or_not(self, look: _Look, due: datetime) -> bool:
        run_id, _ = look.schedule.ids_at(due)
        others = [each for each in look.open_runs if each != run_id]
        match look.schedule.spec.overlap:
            case Overlap.QUEUE if others:
                look.waiting.append(due)
                return False
            case Overlap.SKIP if others:
                state = look.open_runs[others[-1]]
                place = f" in '{look.schedule.place.name}'" if state == RunState.QUEUED else ""
                look.skip(due, SkipCause.OVERLAP, f"{others[-1]} has not ended: {state}{place}")
                return False
        try:
            is_new = await self._start(look, due)
        except BudgetSpentError as error:
            look.skip(due, SkipCause.BUDGET, error.message)
            return False
        state = look.open_runs.pop(run_id, RunState.QUEUED)
        look.open_runs[run_id] = state  # it is the newest
        look.progress = evolve(look.progress, last_run=run_id)
        return is_new

    async def _start(self, look: _Look, due: datetime) -> bool:
        """Queue the run of that time; False: another worker did."""
        schedule = look.schedule
        run_id, session_id = schedule.ids_at(due)
        if await self._is_recorded(run_id):
            return False
        mark: JsonValue = {"name": schedule.name, "due": due.isoformat()}
        patience = schedule.spec.patience
        by = None if patience is None else due + timedelta(seconds=seconds_of(patience))
        note = {**schedule.note, SCHEDULE: mark, **StartNote(by=by).to_json()}
        recipe = look.recipe
        if schedule.deployment is not None:
            recipe, noted = await self._deployments.recipe_for(
                await self._deployments.get(schedule.deployment),
                None,
                run_id,
                self._runtime.catalog,
                journal=self._journal,
                threads=self._runtime.threads,
            )
            recipe, note = self._runtime.bounded(recipe), note | noted
        run = self._runtime.executor_of(recipe, note=note).prepare(
            recipe,
            schedule.inputs,
            run_id=run_id,
            session_id=session_id,
            note=note,
            project=schedule.project,
        )
        # Workers of another queue have tools of their own: what this one has loaded is no need.
        needs = needs_of(
            run.context.recipe,
            StartNote.of(run.note).cwd,
            self._runtime.extensions,
            any_version=schedule.place.name not in self._queues,
        )
        try:
            await self._queue.put(run, evolve(schedule.place, needs=needs))
        except JournalError:
            if not await self._is_recorded(run_id):
                raise
            return False  # another worker was faster by a moment
        self._log.info(
            "scheduled_run_queued", schedule=schedule.name, run_id=run_id, due=due.isoformat()
        )
        return True

    async def _is_recorded(self, run_id: str) -> bool:
        return bool(await self._journal.runs(RunFilter(run_ids={run_id}), limit=1))


def _with_unseen(
    schedule: Schedule, progress: Progress, dues: Sequence[datetime], handled: datetime
) -> Progress:
    """With the times that no look has seen: those before the schedule was resumed or replaced,
    while no worker was there, and those that were more than one look takes.

    Args:
        dues: The times that this look takes.
        handled: After which times it looked.
    """
    before = progress.handled
    if before is not None and before < schedule.since:
        unseen = due_times(schedule.spec, before, schedule.since)
        if unseen:
            reason = "no worker was there before the schedule was resumed or replaced"
            last = SkippedTime(due=unseen[-1], cause=SkipCause.PAUSED, reason=reason)
            progress = progress.skip(last if len(unseen) == 1 else evolve(last, after=before))
    if len(dues) == MOST_MISSED:
        older = due_times(schedule.spec, handled, dues[0] - timedelta(seconds=1))
        if older:
            reason = f"of the times that no worker saw, the newest {MOST_MISSED} count"
            last = SkippedTime(due=older[-1], cause=SkipCause.LIMIT, reason=reason)
            progress = progress.skip(evolve(last, after=handled))
    return progress


def _without_missed(
    missed: MissedRuns, dues: Sequence[datetime], now: datetime
) -> Sequence[datetime]:
    """Those for which a run is started: all that are on time, and what is to be made up for."""
    on_time = [due for due in dues if now - due <= timedelta(seconds=ON_TIME_S)]
    late = dues[: len(dues) - len(on_time)]
    match missed:
        case MissedRuns.SKIP:
            return on_time
        case MissedRuns.ONCE:
            return on_time or late[-1:]
        case MissedRuns.ALL:
            return dues
