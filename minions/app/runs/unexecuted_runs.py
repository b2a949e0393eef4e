"""Runs without an end that no process executes: which there are, and when one is resumed unasked.

Servers and workers share it. A server resumes what it began itself, a worker what is in a queue.
Whether somebody executes a run is what `read_leases` says, as for lists and pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from minions.app.runs.run_policy import QUEUE
from minions.contracts.executions import RunState
from minions.contracts.journal.facts import RunBeginning
from minions.contracts.journal.journal import Journal, JournalEntry, Lease
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.runtime import IsWorkerGone
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

    def __init__(self, journal: Journal, state: RunState) -> None:
        """Nothing is read yet."""
        self._journal = journal
        self._wanted = RunFilter(statuses={state})
        self._last: RunRow | None = None
        """The row behind which the next pass continues; None: from the first one."""

    @property
    def is_at_start(self) -> bool:
        """Whether the last pass came to the end of the rows."""
        return self._last is None

    async def queued(self) -> list[RunRow]:
        """The rows of the next pass that are of queued runs, the newest first.

        Raises:
            JournalError: It cannot be read.
        """
        found: list[RunRow] = []
        for _ in range(_PAGES):
            rows = await self._journal.runs(self._wanted, limit=_PAGE, after=self._last)
            self._last = rows[-1] if len(rows) == _PAGE else None
            found += (row for row in rows if row.mark == QUEUE)
            if self._last is None:
                break
        return found


def idle_executions(entries: Sequence[JournalEntry]) -> int:
    """How many of the newest executions finished nothing; to be put in a queue is no execution."""
    at_work = {entry.generation for entry in entries if entry.state not in _BEGINNINGS}
    begun = {
        entry.generation
        for entry in entries
        if isinstance(entry.fact, RunBeginning) and not entry.fact.queued
    }
    return sum(generation > max(at_work, default=0) for generation in begun)


def may_pass(error: MinionsError) -> bool:
    """Whether the error may pass without a change on this machine."""
    if isinstance(error, JournalError):
        return error.error_code != "corrupt-entry"
    return error.error_code in ("stopping", "too-many-runs")
