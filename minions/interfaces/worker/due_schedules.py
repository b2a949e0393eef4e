"""Starts the runs of schedules at their due times, each once over all workers of a database.

The id of a run is made of its schedule and its time, so that of several workers one records it. The
run is queued; which worker executes it, and when, is the dispatch engine's task.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from attrs import evolve, field, mutable

from minions.app.runs.run_queue import RunQueue
from minions.app.runs.schedule_store import SCHEDULE, Progress, Schedule, ScheduleStore
from minions.app.runs.unattended_runtime import UnattendedRuntime
from minions.contracts.dispatch import DispatchEngine
from minions.contracts.executions import OPEN_STATES, RunState
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.runtime import Log
from minions.data.errors import (
    BudgetSpentError,
    JournalError,
    LeaseHeldError,
    NotFoundError,
    words_of,
)
from minions.data.json_values import JsonValue
from minions.recipe.model import AgentRecipe
from minions.recipe.schedules import MOST_MISSED, MissedRuns, Overlap, due_times, next_due

ON_TIME_S: Final = 60.0
"""Seconds after its due time until which a run is on time; later it was missed."""
_NOT_ENDED: Final = (*OPEN_STATES, RunState.NEEDS_DECISION)


@mutable(kw_only=True)
class _Look:
    """What one look at a schedule does."""

    schedule: Schedule
    recipe: AgentRecipe
    progress: Progress
    open_runs: list[str]
    """Ids of its runs that have not ended, the oldest first."""
    waiting: list[datetime] = field(factory=list)


class DueSchedules:
    """Looks which schedules are due. Any worker may do so, whatever its queues are."""

    def __init__(
        self,
        runtime: UnattendedRuntime,
        engine: DispatchEngine,
        store: ScheduleStore,
        log: Log,
        *,
        every_s: float,
    ) -> None:
        """Nothing is read yet.

        Args:
            store: Closed here.
            every_s: Seconds between two looks at most, so that new schedules are seen.
        """
        self._runtime = runtime
        self._clock = runtime.services.clock
        self._journal = runtime.services.journal
        self._queue = RunQueue(engine, self._clock)
        self._store = store
        self._log = log
        self._every_s = every_s
        self._next: datetime | None = None
        """The first time at which a schedule is due; None: there is none, or all were late."""
        self._problems: dict[str, str] = {}
        """Why a schedule cannot be carried out, so that it is logged once."""

    @property
    def pause_s(self) -> float:
        """Seconds until the next look."""
        if self._next is None:
            return self._every_s
        return min(self._every_s, max(0.05, (self._next - self._clock.now()).total_seconds()))

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
            count = 0 if schedule.is_paused else await self._started(schedule)
        except (NotFoundError, LeaseHeldError):
            return 0  # it was removed just now, or another worker is about to start its run
        except Exception as error:  # a stranger's recipe may raise anything
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

    async def _started(self, schedule: Schedule) -> int:
        now = self._clock.now()
        before = await self._store.progress(schedule.name)
        handled = max(schedule.since, before.handled or schedule.since)
        dues = due_times(schedule.spec, handled, now)
        count = 0
        if dues or before.waiting:
            look = await self._opened(schedule, before, now)
            count = await self._start_all(look, dues, now)
            await self._keep(look, handled=dues[-1] if dues else before.handled)
        self._note_next(next_due(schedule.spec, dues[-1] if dues else handled), now)
        return count

    async def _keep(self, look: _Look, *, handled: datetime | None) -> None:
        """Store how far it was carried out, unless another worker was faster."""
        name, progress = look.schedule.name, look.progress
        newest = (await self._store.progress(name)).handled
        if newest is None or (handled is not None and handled >= newest):
            waiting, runs = look.waiting[:MOST_MISSED], look.open_runs[-MOST_MISSED:]
            progress = evolve(
                progress, handled=handled, waiting=tuple(waiting), open_runs=tuple(runs)
            )
            await self._store.put_progress(name, progress)

    def _note_next(self, at: datetime | None, now: datetime) -> None:
        if at is not None and at > now and (self._next is None or at < self._next):
            self._next = at

    # --- one look at one schedule -----------------------------------------------------------------

    async def _opened(self, schedule: Schedule, progress: Progress, now: datetime) -> _Look:
        """With the runs that have not ended: of those that are known, and of the newest times."""
        newest = due_times(schedule.spec, schedule.since, now)
        names = dict.fromkeys((*progress.open_runs, *(schedule.ids_at(due)[0] for due in newest)))
        rows = await self._journal.runs(RunFilter(run_ids=set(names))) if names else ()
        open_ids = {row.run_id for row in rows if row.status in _NOT_ENDED}
        return _Look(
            schedule=schedule,
            recipe=self._runtime.bounded(schedule.recipe(self._runtime.catalog)),
            progress=progress,
            open_runs=[run_id for run_id in names if run_id in open_ids],
        )

    async def _start_all(self, look: _Look, dues: Sequence[datetime], now: datetime) -> int:
        """Start the runs of these times, and of those that waited; returns how many."""
        wanted = _without_missed(look.schedule.spec.missed, dues, now)
        left_out = [due for due in dues if due not in wanted]
        if left_out:
            self._skip(look, left_out[-1], "no worker started it in time")
        return sum(
            [await self._start_or_not(look, due) for due in (*look.progress.waiting, *wanted)]
        )

    async def _start_or_not(self, look: _Look, due: datetime) -> bool:
        run_id, _ = look.schedule.ids_at(due)
        others = [each for each in look.open_runs if each != run_id]
        match look.schedule.spec.overlap:
            case Overlap.QUEUE if others:
                look.waiting.append(due)
                return False
            case Overlap.SKIP if others:
                self._skip(look, due, f"{others[-1]} has not ended")
                return False
        try:
            is_new = await self._start(look, due)
        except BudgetSpentError as error:
            self._skip(look, due, error.message)
            return False
        look.open_runs = [*others, run_id]
        look.progress = evolve(look.progress, last_run=run_id)
        return is_new

    def _skip(self, look: _Look, due: datetime, reason: str) -> None:
        name = look.schedule.name
        self._log.info("scheduled_run_skipped", schedule=name, due=due.isoformat(), reason=reason)
        look.progress = evolve(look.progress, skipped=due, reason=reason)

    async def _start(self, look: _Look, due: datetime) -> bool:
        """Queue the run of that time; False: another worker did."""
        schedule = look.schedule
        run_id, session_id = schedule.ids_at(due)
        if await self._is_recorded(run_id):
            return False
        mark: JsonValue = {"name": schedule.name, "due": due.isoformat()}
        note = {**schedule.note, SCHEDULE: mark}
        run = self._runtime.executor_of(look.recipe, note=note).prepare(
            look.recipe,
            schedule.inputs,
            run_id=run_id,
            session_id=session_id,
            note=note,
            project=schedule.project,
        )
        try:
            await self._queue.put(run, schedule.place)
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
