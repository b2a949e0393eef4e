"""Runs without an end that no process executes: which there are, and when one is resumed unasked.

Servers and workers share it. A server resumes what it began itself, a worker what is in a queue.
Whether somebody executes a run is what `read_leases` says, as for lists and pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from attrs import evolve, frozen

from minions.app.runs.run_policy import QUEUE
from minions.contracts.executions import RunState
from minions.contracts.journal.facts import RunBeginning, RunFinished
from minions.contracts.journal.journal import Journal, JournalEntry, Lease
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.journal.start_note import StartNote
from minions.contracts.runtime import Clock, IsWorkerGone
from minions.data.errors import JournalError, MinionsError
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_states import executed_runs, read_leases
from minions.engine.views.run_summary import RunSummary

_PAGE: Final = 200
_PAGES: Final = 5
"""Pages that one pass looks at; the next pass continues behind them."""

MOST_IDLE_EXECUTIONS: Final = 5
"""After so many executions in a row that finished nothing, a run is not resumed any more: it may be
the run that ends the process."""

_BEGINNINGS: Final = frozenset({"started", "resumed", "in_doubt", "waiting"})
"""States that finish nothing: an execution with only these may have died of what it started."""


class UnexecutedRuns:
    """The runs of a journal that have no end and that nobody executes."""

    def __init__(self, journal: Journal, is_worker_gone: IsWorkerGone) -> None:
        """Nothing is read yet.

        Args:
            is_worker_gone: Whether the holder of a lease is known to be dead.
        """
        self._journal = journal
        self._is_worker_gone = is_worker_gone

    async def abandoned(self) -> Sequence[Lease]:
        """The leases of runs, and of other work, whose workers are gone or late.

        It costs as much as there are leases, however many runs there are.

        Raises:
            JournalError: It cannot be read.
        """
        return (await read_leases(self._journal, self._is_worker_gone)).abandoned

    async def interrupted(self) -> list[RunSummary]:
        """All of them that were begun, the oldest first, without those that wait in a queue.

        Raises:
            JournalError: It cannot be read.
        """
        wanted = RunFilter(statuses={RunState.INTERRUPTED})
        gone = self._is_worker_gone
        runs = await list_runs(self._journal, wanted=wanted, is_worker_gone=gone)
        return [run for run in reversed(runs) if not run.has_ended]

    async def among(self, rows: Sequence[RunRow]) -> list[RunRow]:
        """Those of these open runs that nobody executes, in their order.

        Raises:
            JournalError: It cannot be read.
        """
        if not rows:
            return []
        executed = await executed_runs(self._journal, self._is_worker_gone)
        return [row for row in rows if row.run_id not in executed]


class RunPages:
    """The runs of one state, page by page: of very many, a pass sees some, the next one others.

    An index finds those of one state in order.
    """

    def __init__(self, journal: Journal, state: RunState, mark: str = QUEUE) -> None:
        """Nothing is read yet.

        Args:
            mark: How their last execution started, as in `RunRow`.
        """
        self._journal = journal
        self._mark = mark
        self._wanted = RunFilter(statuses={state})
        self._last: RunRow | None = None
        """The row behind which the next pass continues; None: from the first one."""

    @property
    def is_at_start(self) -> bool:
        """Whether the last pass came to the end of the rows."""
        return self._last is None

    async def read_next(self) -> list[RunRow]:
        """The rows of the next pass that are of runs with the mark, the newest first.

        Raises:
            JournalError: It cannot be read.
        """
        found: list[RunRow] = []
        for _ in range(_PAGES):
            rows = await self._journal.runs(self._wanted, limit=_PAGE, after=self._last)
            self._last = rows[-1] if len(rows) == _PAGE else None
            found += (row for row in rows if row.mark == self._mark)
            if self._last is None:
                break
        return found


@frozen(kw_only=True)
class _Wait:
    """What was read of one waiting run."""

    ended_at: datetime | None
    """The end that was read: a later one is another wait."""
    due: datetime | None
    """When it can be resumed; None: only a decision helps."""


_AGAIN_S: Final = 60.0
"""Seconds until a run is tried again that could not be resumed."""


class DueRuns:
    """Waiting runs that can be resumed at a known time without a decision. Each end of a run is
    read once by a process.
    """

    def __init__(self, journal: Journal, clock: Clock, mark: str) -> None:
        """Nothing is read yet.

        Args:
            mark: How their last execution started, as in `RunRow`.
        """
        self._journal = journal
        self._clock = clock
        self._pages = RunPages(journal, RunState.NEEDS_DECISION, mark)
        self._waits: dict[str, _Wait] = {}
        self._seen: set[str] = set()
        """Of the present pass over all rows."""

    async def find(self) -> list[str]:
        """The ids of those whose time has come.

        Raises:
            JournalError: It cannot be read.
        """
        found = [row.run_id for row in await self._pages.read_next() if await self._is_due(row)]
        if self._pages.is_at_start:
            self._waits = {run_id: self._waits[run_id] for run_id in self._seen}
            self._seen = set()
        return found

    def put_off(self, run_id: str) -> None:
        """Try a run again in a minute that could not be resumed."""
        later = self._clock.now() + timedelta(seconds=_AGAIN_S)
        self._waits[run_id] = evolve(self._waits[run_id], due=later)

    async def _is_due(self, row: RunRow) -> bool:
        self._seen.add(row.run_id)
        known = self._waits.get(row.run_id)
        if known is None or known.ended_at != row.ended_at:
            known = self._waits[row.run_id] = await self._read(row)
        return known.due is not None and known.due <= self._clock.now()

    async def _read(self, row: RunRow) -> _Wait:
        newest = await self._journal.entries(
            row.session_id, run_id=row.run_id, kinds={"run"}, limit=1, newest_first=True
        )
        fact = newest[0].fact if newest else None
        resumes_at = fact.resumes_at if isinstance(fact, RunFinished) else None
        due = None if resumes_at is None else datetime.fromisoformat(resumes_at)
        return _Wait(ended_at=row.ended_at, due=due)


def idle_executions(entries: Sequence[JournalEntry]) -> int:
    """How many of the newest executions finished nothing; to be put in a queue is no execution, and
    one that ended in order to wait for a batch or for child runs has not died.
    """
    at_work = {
        entry.generation
        for entry in entries
        if entry.state not in _BEGINNINGS or _has_come_to_wait(entry)
    }
    begun = {
        entry.generation
        for entry in entries
        if isinstance(entry.fact, RunBeginning) and not entry.fact.queued
    }
    return sum(generation > max(at_work, default=0) for generation in begun)


def _has_come_to_wait(entry: JournalEntry) -> bool:
    """Whether it says that an execution ended in order to wait for batches or for child runs."""
    fact = entry.fact
    if not isinstance(fact, RunBeginning) or not fact.queued:
        return False
    note = StartNote.of(fact.note)
    return bool(note.waits or note.batch_waves)


def may_pass(error: MinionsError) -> bool:
    """Whether the error may pass without a change on this machine."""
    if isinstance(error, JournalError):
        return error.error_code != "corrupt-entry"
    return error.error_code in ("stopping", "too-many-runs")
