"""A worker: serves queues, submits what was lost, and says how it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from attrs import evolve

from minions.app.runs.schedule_store import ScheduleStore
from minions.app.runs.unattended_runtime import UnattendedRuntime
from minions.contracts.dispatch import DispatchEngine, WorkerPlan
from minions.contracts.runtime import Log
from minions.data.errors import MinionsError, words_of
from minions.interfaces.server.live.waiting_notices import WaitingNotices
from minions.interfaces.worker.child_queue import ParentRuns
from minions.interfaces.worker.delta_streams import DeltaStreams
from minions.interfaces.worker.due_schedules import DueSchedules
from minions.interfaces.worker.reconciliation import Reconciliation
from minions.interfaces.worker.run_execution import RunExecution
from minions.interfaces.worker.timed_waits import TimedWaits

__all__ = ["Worker", "WorkerRuntime"]

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
