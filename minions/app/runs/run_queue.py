"""Puts runs into queues: first the record, then the job, so that a crash loses nothing."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from minions.app.runs.run_needs import needs_key, needs_of
from minions.app.runs.run_policy import QUEUE
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.start_note import QueuePlace, StartNote
from minions.contracts.runtime import Clock
from minions.data.errors import EnvironmentRefusedError
from minions.engine.run.agent_run import AgentRun

if TYPE_CHECKING:
    from minions.contracts.dispatch import DispatchEngine, Job
    from minions.engine.compile.extensions import Extensions


@frozen(kw_only=True)
class QueuedRun:
    """A run that waits in a queue."""

    run_id: str
    session_id: str
    place: QueuePlace
    job: Job
    problem: str | None = None
    """Why its job could not be submitted; a worker submits it then. None: it was, or workers find
    what is queued in the journal alone."""


class RunQueue:
    """Queues runs for workers."""

    def __init__(
        self, engine: DispatchEngine | None, clock: Clock, extensions: Extensions | None = None
    ) -> None:
        """Nothing is opened.

        Args:
            engine: Where jobs are submitted; None: the caller submits them, or workers find the
                runs in the journal.
            extensions: What recipes may name here: the workers of the runs need the same. None:
                they need what the places of the runs say.
        """
        self._engine = engine
        self._clock = clock
        self._extensions = extensions

    async def put(self, run: AgentRun, place: QueuePlace) -> QueuedRun:
        """Record the run as queued, and submit it.

        Args:
            run: Prepared, not begun.
        Raises:
            BudgetSpentError: It is new, and the budget of its session, user or day is spent.
            UsageError, LeaseHeldError, JournalError: It could not be recorded; nothing was done.
        """
        await run.check_budgets()
        if self._extensions is not None:
            needs = needs_of(run.context.recipe, StartNote.of(run.note).cwd, self._extensions)
            place = evolve(place, needs=needs)
        lines = StartNote.of(run.note).batch
        batch = {} if lines is None else {"batch": str(lines)}
        place = evolve(place, labels={**run.labels, **batch, **place.labels})
        return await self.submit(await run.record_queued({QUEUE: place.to_note()}), place)

    async def submit(
        self, entry: JournalEntry, place: QueuePlace, *, replaces: bool = False
    ) -> QueuedRun:
        """Submit the job of a run that was recorded as queued.

        Args:
            replaces: Whether it takes the place of those that wait.
        """
        job, problem = job_of(entry, place, self._clock.now()), None
        if self._engine is not None:
            try:
                if replaces:
                    await self._engine.cancel(entry.run_id)
                await self._engine.submit(job)
            except EnvironmentRefusedError as error:
                problem = error.message
        return QueuedRun(
            run_id=entry.run_id,
            session_id=entry.session_id,
            place=place,
            job=job,
            problem=problem,
        )

    async def aclose(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            await self._engine.aclose()


def job_of(entry: JournalEntry, place: QueuePlace, now: datetime) -> Job:
    """The job of a run that was queued by that fact.

    The fact's position names the submission: whoever submits it, the job is the same.
    """
    from minions.contracts.dispatch import Job  # here: most commands queue nothing

    until = place.not_before
    return Job(
        run_id=entry.run_id,
        session_id=entry.session_id,
        submission=f"{entry.position}-{needs_key(place.needs)}".rstrip("-"),
        queue=place.name,
        priority=place.priority,
        delay_s=0.0 if until is None else max(0.0, (until - now).total_seconds()),
        labels=place.labels,
    )
