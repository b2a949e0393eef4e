"""Submits again what the journal says is queued and what the engine does not know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from minions.app.runs.run_policy import RunPolicy
from minions.app.runs.run_queue import job_of
from minions.app.runs.unexecuted_runs import RunPages, UnexecutedRuns
from minions.contracts.dispatch import DispatchEngine, Job
from minions.contracts.executions import RunState
from minions.contracts.journal.facts import RunBeginning
from minions.contracts.journal.run_rows import RunRow
from minions.contracts.runtime import IsWorkerGone, Log
from minions.engine.services.services import Services

_OPEN: Final = (RunState.QUEUED, RunState.INTERRUPTED)
"""States of runs that a worker has to execute; an index finds those of one state in order."""
_MOST_NUMBERS: Final = 1_000
"""Jobs of one submission that may have ended without an end of their run."""


class Reconciliation:
    """Finds runs whose process died between the record and the job, and jobs that were lost."""

    def __init__(
        self, services: Services, engine: DispatchEngine, is_worker_gone: IsWorkerGone, log: Log
    ) -> None:
        """Nothing is read yet."""
        self._journal = services.journal
        self._clock = services.clock
        self._engine = engine
        self._unexecuted = UnexecutedRuns(services.journal, is_worker_gone)
        self._log = log
        self._pages = [RunPages(services.journal, state) for state in _OPEN]

    async def look(self) -> int:
        """Submit what is missing; returns how many jobs that are.

        The cost of a pass is bounded: of very many queued runs it looks at some, and at the others
        next time.

        Raises:
            JournalError, EnvironmentRefusedError: Journal or engine cannot be reached.
        """
        found = [await pages.queued() for pages in self._pages]
        return sum([await self.submit_missing(rows[::-1]) for rows in found])  # the oldest first

    async def submit_missing(self, rows: Sequence[RunRow]) -> int:
        """Submit those of these runs that are queued without a job; returns how many.

        Raises:
            JournalError, EnvironmentRefusedError: As of `look`.
        """
        if not rows:
            return 0
        known = {view.job.run_id for view in await self._engine.jobs([row.run_id for row in rows])}
        missing = [row for row in rows if row.run_id not in known]
        return sum([await self._submit(row) for row in await self._unexecuted.among(missing)])

    async def _submit(self, row: RunRow) -> bool:
        newest = await self._journal.entries(
            row.session_id, run_id=row.run_id, kinds={"run"}, limit=1, newest_first=True
        )
        fact = newest[0].fact if newest else None
        if not isinstance(fact, RunBeginning):
            return False  # it has ended by now
        place = RunPolicy.recorded(fact.note or {}).queue
        if place is None:
            return False
        job = await self._put(job_of(newest[0], place, self._clock.now()))
        if job is not None:
            self._log.info("job_found", run_id=row.run_id, queue=place.name)
        return job is not None

    async def _put(self, job: Job) -> Job | None:
        """Submit it under the first name that no ended job has."""
        for _ in range(_MOST_NUMBERS):
            if await self._engine.submit(job):
                return job
            if await self._engine.jobs([job.run_id]):
                return None  # somebody else submitted it just now
            job = job.put_back(is_failed_try=False)
        return None
