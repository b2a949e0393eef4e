"""Child runs at a worker: put into the queue of their run, which is continued when they ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from attrs import evolve

from minions.app.runs.run_policy import RunPolicy
from minions.app.runs.run_queue import RunQueue
from minions.app.runs.unattended_runtime import UnattendedRuntime
from minions.contracts.dispatch import DispatchEngine, Job, JobEnd
from minions.contracts.executions import RunState
from minions.contracts.journal.child_runs import (
    OPEN_STATES,
    ChildRunQueue,
    ChildWait,
    QueueableRun,
)
from minions.contracts.journal.facts import RunBeginning
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.queue_places import QueuePlace
from minions.contracts.runtime import Log
from minions.data.json_values import JsonValue
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.recorded_run import RecordedRun
from minions.engine.sessions.cancellation import cancel_child_runs, cancel_run
from minions.interfaces.worker.reconciliation import Reconciliation
from minions.recipe.model import AgentRecipe, StepSpec

_LOOK_S: Final = 10.0
"""Seconds until a run that waits for child runs looks whether they ended, if nobody wakes it."""
_DONE: Final = JobEnd()


class WorkerChildQueue(ChildRunQueue):
    """Queues the child runs of one run where that run is queued itself, under its policy."""

    def __init__(self, recorded: RecordedRun, place: QueuePlace, queue: RunQueue) -> None:
        """Nothing is queued yet."""
        self._recorded = recorded
        self._place = evolve(place, not_before=None, pauses=0)
        self._queue = queue

    @property
    def queue(self) -> str:
        return self._place.name

    @property
    def note(self) -> Mapping[str, JsonValue]:
        return ChildWait.without(self._recorded.note)

    @property
    def user(self) -> str | None:
        return self._recorded.start.user

    @property
    def project(self) -> str | None:
        return self._recorded.summary.project

    async def put(self, run: QueueableRun) -> None:
        await self._queue.put(cast(AgentRun, run), self._place)


class ParentRuns:
    """Runs that wait for child runs, at one worker."""

    def __init__(
        self,
        runtime: UnattendedRuntime,
        engine: DispatchEngine,
        reconciliation: Reconciliation,
        log: Log,
    ) -> None:
        """Nothing is read yet.

        Args:
            reconciliation: Submits the job of a run that waits, where the engine has none.
        """
        self._runtime = runtime
        self._engine = engine
        self._reconciliation = reconciliation
        self._log = log
        self._journal = runtime.services.journal
        self._clock = runtime.services.clock

    def queue_of(self, recorded: RecordedRun) -> ChildRunQueue | None:
        """Where the child runs of that run are queued; None: it is not queued itself."""
        place = RunPolicy.recorded(recorded.note).queue
        if place is None:
            return None
        return WorkerChildQueue(recorded, place, RunQueue(self._engine, self._clock))

    # --- a run that waits -------------------------------------------------------------------------

    async def still_waits(self, job: Job) -> bool:
        """Whether its run waits for child runs of which not enough have ended.

        One fact is read, so that a long run that is looked at again and again costs little.
        """
        return await self._is_ready(job.session_id, job.run_id) is False

    async def waits(self, recorded: RecordedRun) -> bool:
        """The same of a run whose record is there."""
        return await self._has_enough(recorded.start) is False

    async def _is_ready(self, session_id: str, run_id: str) -> bool | None:
        """Whether enough child runs have ended; None: it does not wait for any."""
        newest = await self._journal.entries(
            session_id, run_id=run_id, kinds={"run"}, limit=1, newest_first=True
        )
        fact = newest[0].fact if newest else None
        return await self._has_enough(fact) if isinstance(fact, RunBeginning) else None

    async def _has_enough(self, newest: RunBeginning) -> bool | None:
        waits = ChildWait.of_note(newest.note or {}) if newest.queued else ()
        for wait in waits:
            wanted = RunFilter(id_start=wait.start, statuses=OPEN_STATES)
            if not await self._journal.runs(wanted, limit=1, offset=wait.most_open):
                return True
        return False if waits else None

    def looked_at_later(self, job: Job) -> JobEnd:
        """The end of the job of a run that still waits."""
        return JobEnd(again=job.put_back(_LOOK_S, is_failed_try=False))

    async def queued_again(self, job: Job, run: AgentRun) -> JobEnd:
        """Record that the run waits, which costs nothing until enough child runs have ended.

        Raises:
            MinionsError: It could not be recorded; the run is to be executed again.
        """
        recorded = await self._runtime.recorded(job.run_id)
        place = RunPolicy.recorded(recorded.note).queue
        if recorded.has_ended or place is None:
            return _DONE
        note = {**ChildWait.without(recorded.note), **ChildWait.to_note(run.child_waits)}
        place, queue = evolve(place, not_before=None), RunQueue(None, self._clock)
        await self._runtime.queue_again(recorded, place, queue, note=note)
        self._log.info("run_waits_for_runs", run_id=job.run_id)
        is_ready = await self._is_ready(job.session_id, job.run_id)
        pause_s = _LOOK_S if is_ready is False else 0.0
        return JobEnd(again=job.put_back(pause_s, is_failed_try=False))

    # --- a child run ------------------------------------------------------------------------------

    async def is_orphan(self, recorded: RecordedRun) -> bool:
        """Whether it is the child run of a run that has ended: then it is cancelled here."""
        link = RunPolicy.recorded(recorded.note).child
        if link is None:
            return False
        rows = await self._journal.runs(RunFilter(run_ids={link.run_id}), limit=1)
        if rows and (rows[0].ended_at is None or rows[0].status == RunState.NEEDS_DECISION):
            return False
        await cancel_run(self._runtime.services, recorded.run_id)
        return True

    async def child_ended(self, recorded: RecordedRun) -> None:
        """Let the run around it continue, if it waited for this child run."""
        link = RunPolicy.recorded(recorded.note).child
        if link is None or not await self._is_ready(link.session_id, link.run_id):
            return
        if not await self._engine.wake(link.run_id):
            rows = await self._journal.runs(RunFilter(run_ids={link.run_id}), limit=1)
            await self._reconciliation.submit_missing(rows)

    async def ended(self, recorded: RecordedRun, recipe: AgentRecipe) -> None:
        """Cancel what is left of the child runs of a run that has ended."""
        steps = (step for step in recipe.steps if isinstance(step, StepSpec))
        if any(step.distribute for step in steps):
            await cancel_child_runs(self._runtime.services, recorded.run_id)
