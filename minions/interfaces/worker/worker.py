"""A worker: serves queues, submits what was lost, and says how it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

from attrs import evolve, frozen

from minions.app.runs.run_policy import RunPolicy
from minions.app.runs.run_queue import RunQueue
from minions.app.runs.schedule_store import ScheduleStore
from minions.app.runs.unattended_runtime import UnattendedRuntime
from minions.app.runs.unexecuted_runs import RunPages
from minions.contracts.dispatch import DispatchEngine, WorkerPlan
from minions.contracts.executions import RunState
from minions.contracts.journal.facts import RunFinished
from minions.contracts.journal.run_rows import RunRow
from minions.contracts.runtime import Log
from minions.data.errors import MinionsError, words_of
from minions.interfaces.server.live.waiting_notices import WaitingNotices
from minions.interfaces.worker.child_queue import ParentRuns
from minions.interfaces.worker.delta_streams import DeltaStreams
from minions.interfaces.worker.due_schedules import DueSchedules
from minions.interfaces.worker.reconciliation import Reconciliation
from minions.interfaces.worker.run_execution import RunExecution

_LOOK_SHARED_S: Final = 10.0
"""Seconds between two looks for lost jobs, where submitters reach the engine themselves."""
_LOOK_LOCAL_S: Final = 0.5
"""Where the journal is the only way to a worker."""
_LOOK_TIMED_S: Final = 5.0
"""Seconds between two looks for waiting runs whose time has come."""
_LOOK_SCHEDULES_S: Final = 5.0
"""Seconds between two looks at schedules at most; at a due time there is one more."""
_READY_S: Final = 5.0


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
    ) -> None:
        """Nothing is opened yet.

        Args:
            runtime: Closed here, as is the engine.
            plan: Named as the runtime is.
            notices: Told of runs that begin to wait for a person; closed here.
            schedules: Whose runs it starts when they are due; closed here.
            deltas: Offers the pieces of answers of its runs; None: nobody reads them.
        """
        self.plan = plan
        self._runtime = runtime
        self._engine = engine
        self._log = log
        self._notices = notices
        self._reconciliation = Reconciliation(runtime.services, engine, self._is_worker_gone, log)
        parents = ParentRuns(runtime, engine, self._reconciliation, log)
        self._execution = RunExecution(
            runtime, log, parents, on_waiting=notices.tell, deltas=deltas
        )
        self._timed_waits = TimedWaits(runtime, engine, log)
        self._schedules = DueSchedules(runtime, engine, schedules, log, every_s=_LOOK_SCHEDULES_S)
        self._stop = asyncio.Event()

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
        try:
            async with asyncio.timeout(_READY_S):
                await self._runtime.services.journal.held_leases()
        except (MinionsError, TimeoutError):
            return "the database does not answer"
        return None

    async def run(self) -> None:
        """Work until `stop`, or until nothing is left where the plan says so.

        Raises:
            EnvironmentRefusedError: The database cannot be reached at the start.
        """
        await self._schedules.look()
        await self._timed_waits.look()
        await self._reconciliation.look()
        await self._notices.tell_untold()
        looking = [
            asyncio.ensure_future(self._look(look, pause_s))
            for look, pause_s in (
                (self._reconciliation.look, lambda: self._lost_jobs_s),
                (self._timed_waits.look, lambda: _LOOK_TIMED_S),
                (self._schedules.look, lambda: self._schedules.pause_s),
            )
        ]
        try:
            await self._engine.serve(self._execution.execute, self.plan, self._stop)
        finally:
            for each in looking:
                each.cancel()
            await self._notices.told()

    async def aclose(self) -> None:
        """Close what was opened for the worker."""
        await self._notices.aclose()
        await self._schedules.aclose()
        await self._engine.aclose()
        await self._runtime.aclose()

    def _is_worker_gone(self, worker_id: str) -> bool:
        return self._runtime.is_worker_gone(worker_id)

    @property
    def _lost_jobs_s(self) -> float:
        return _LOOK_SHARED_S if self._engine.is_shared else _LOOK_LOCAL_S

    async def _look(self, look: Callable[[], Awaitable[int]], pause_s: Callable[[], float]) -> None:
        problem: str | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause_s())
            if self.is_stopping:
                return
            problem = await self._tried(look, problem)

    async def _tried(self, look: Callable[[], Awaitable[int]], before: str | None) -> str | None:
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


# --- waiting runs that can be resumed at a known time without a decision -------------------------


_AGAIN_S: Final = 60.0
"""Seconds until a run is tried again that could not be queued."""


@frozen(kw_only=True)
class _Wait:
    """What was read of one waiting run."""

    ended_at: datetime | None
    """The end that was read: a later one is another wait."""
    due: datetime | None
    """When it can be resumed; None: only a decision helps."""


class TimedWaits:
    """Queues runs again whose time has come. Each end of a run is read once by a process."""

    def __init__(self, runtime: UnattendedRuntime, engine: DispatchEngine, log: Log) -> None:
        """Nothing is read yet."""
        self._runtime = runtime
        self._clock = runtime.services.clock
        self._queue = RunQueue(engine, self._clock)
        self._log = log
        self._pages = RunPages(runtime.services.journal, RunState.NEEDS_DECISION)
        self._waits: dict[str, _Wait] = {}
        self._seen: set[str] = set()
        """Of the present pass over all rows."""

    async def look(self) -> int:
        """Queue the runs that are due; returns how many those are.

        Raises:
            JournalError: It cannot be read.
        """
        return sum([await self._resumed(run_id) for run_id in await self._due_runs()])

    async def _due_runs(self) -> list[str]:
        found = [row.run_id for row in await self._pages.queued() if await self._is_due(row)]
        if self._pages.is_at_start:
            self._waits = {run_id: self._waits[run_id] for run_id in self._seen}
            self._seen = set()
        return found

    async def _is_due(self, row: RunRow) -> bool:
        self._seen.add(row.run_id)
        known = self._waits.get(row.run_id)
        if known is None or known.ended_at != row.ended_at:
            known = self._waits[row.run_id] = await self._read(row)
        return known.due is not None and known.due <= self._clock.now()

    async def _read(self, row: RunRow) -> _Wait:
        newest = await self._runtime.services.journal.entries(
            row.session_id, run_id=row.run_id, kinds={"run"}, limit=1, newest_first=True
        )
        fact = newest[0].fact if newest else None
        resumes_at = fact.resumes_at if isinstance(fact, RunFinished) else None
        due = None if resumes_at is None else datetime.fromisoformat(resumes_at)
        return _Wait(ended_at=row.ended_at, due=due)

    async def _resumed(self, run_id: str) -> bool:
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
            later = self._clock.now() + timedelta(seconds=_AGAIN_S)
            self._waits[run_id] = evolve(self._waits[run_id], due=later)
            return False
        self._log.info("run_due", run_id=run_id, queue=place.name)
        return True
