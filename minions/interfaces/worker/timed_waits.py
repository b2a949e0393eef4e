"""Waiting runs that can be resumed at a known time without a decision: they are queued again then.

The time stands in the fact of the end of their last execution. Nothing is held for them meanwhile.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from attrs import evolve, frozen

from minions.app.runs.run_policy import RunPolicy
from minions.app.runs.run_queue import RunQueue
from minions.app.runs.unattended_runtime import UnattendedRuntime
from minions.app.runs.unexecuted_runs import RunPages
from minions.contracts.dispatch import DispatchEngine
from minions.contracts.executions import RunState
from minions.contracts.journal.facts import RunFinished
from minions.contracts.journal.run_rows import RunRow
from minions.contracts.runtime import Log
from minions.data.errors import words_of

__all__ = ["TimedWaits"]

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
