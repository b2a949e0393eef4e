"""Resumes runs that a server began: whose worker has died, and whose time to wait is over."""

from __future__ import annotations

import asyncio

from minions.app.runs.run_policy import RunPolicy
from minions.app.runs.unexecuted_runs import (
    MOST_IDLE_EXECUTIONS,
    DueRuns,
    UnexecutedRuns,
    idle_executions,
    may_pass,
)
from minions.contracts.executions import RunState
from minions.contracts.journal.start_note import SERVER
from minions.contracts.runtime import Log
from minions.data.errors import (
    LeaseHeldError,
    MinionsError,
    NotFoundError,
    words_of,
)
from minions.data.texts import shell_word
from minions.engine.run.recorded_run import RecordedRun
from minions.interfaces.server.live.server_runs import RunManager
from minions.interfaces.server.server_runtime import ServerRuntime


class Recovery:
    """Finds leases without a live worker, and runs that this process lost with its journal.

    Runs that a person left at the command line, and runs from a session file, are not resumed
    unless `--resume` is given.
    """

    def __init__(
        self, runtime: ServerRuntime, run_manager: RunManager, log: Log, *, every_s: float
    ) -> None:
        """Nothing is searched yet.

        Args:
            every_s: Seconds between two searches.
        """
        self._runtime = runtime
        self._run_manager = run_manager
        self._lost = run_manager.lost
        self._log = log
        self._every_s = every_s
        self._unexecuted = UnexecutedRuns(runtime.services.journal, runtime.is_worker_gone)
        self._due = DueRuns(runtime.services.journal, runtime.services.clock, SERVER)
        """Runs of a server that wait, as for an approval that expires."""
        self._left: set[tuple[str, int]] = set()
        """Run id and lease epoch of runs for which nothing more is to be done here."""
        self._is_lost = False
        """Whether the journal could not be read at the last search."""
        self._logged: set[tuple[str, str]] = set()
        """Run id and reason of runs that are not resumed, each logged once."""

    async def run(self, *, resumes_all: bool) -> None:
        """Search until cancelled.

        Args:
            resumes_all: Whether to resume first the runs that the command line left.
        """
        if resumes_all:
            await self.resume_all()
        while True:
            await self.look()
            await asyncio.sleep(self._every_s)

    async def look(self) -> None:
        """Resume every run that can be resumed now; others are tried again at the next search."""
        lost = tuple(self._lost.items())
        for _, worker_id in lost:
            self._runtime.has_ended(worker_id)
        try:
            abandoned = await self._unexecuted.abandoned()
            due = await self._due.find()
        except MinionsError as error:
            if not self._is_lost:
                self._log.warning("journal_lost", reason=error.message)
            self._is_lost = True
            return
        self._is_lost = False
        for run_id, _ in lost:
            if self._run_manager.find(run_id) is None and await self._resume(run_id, is_own=True):
                self._lost.pop(run_id)
        for lease in abandoned:
            place = lease.run_id, lease.epoch
            if place in self._left or self._run_manager.find(lease.run_id) is not None:
                continue
            if await self._resume(lease.run_id):
                self._left.add(place)
        for run_id in due:
            if self._run_manager.find(run_id) is None and not await self._resume(
                run_id, is_due=True
            ):
                self._due.put_off(run_id)

    async def resume_all(self) -> None:
        """Resume every run without an end that nobody executes, the oldest first."""
        try:
            runs = await self._unexecuted.interrupted()
        except MinionsError as error:
            self._log.warning("nothing_resumed", reason=error.message)
            return
        for run in runs:
            await self._resume(run.run_id, is_own=True)

    async def _resume(self, run_id: str, *, is_own: bool = False, is_due: bool = False) -> bool:
        """Try to resume a run; whether nothing more is to be done for it here."""
        runtime = self._runtime
        try:
            recorded = await runtime.recorded(run_id)
            if not self._is_wanted(recorded, is_own=is_own, is_due=is_due):
                return True
            await self._run_manager.begin(await runtime.resumed(recorded))
        except NotFoundError as error:
            if error.error_code != "unknown-session":  # else it is no run: an edit was cut off
                self._log_once("run_not_resumed", run_id, error.message)
            return True
        except LeaseHeldError:
            return False  # another worker executes it by now
        except MinionsError as error:
            is_over = not may_pass(error)
            self._log_once(
                "run_not_resumed" if is_over else "run_not_resumed_yet", run_id, error.message
            )
            return is_over
        except Exception as error:  # noqa: BLE001  # one odd run must not end the others' recovery
            self._log_once("run_not_resumed", run_id, words_of(error))
            return True
        self._log.info("run_resumed", run_id=run_id)
        return True

    def _log_once(self, event: str, run_id: str, reason: str) -> None:
        if (run_id, reason) not in self._logged:
            self._logged.add((run_id, reason))
            self._log.warning(event, run_id=run_id, reason=reason)

    def _is_wanted(self, recorded: RecordedRun, *, is_own: bool, is_due: bool) -> bool:
        is_waiting = is_due and recorded.summary.status == RunState.NEEDS_DECISION
        if (recorded.has_ended and not is_waiting) or recorded.noted.is_imported:
            return False
        if RunPolicy.recorded(recorded.note).queue is not None:
            return False  # it belongs to the workers of that queue
        if not (is_own or recorded.noted.is_of_server):
            return False
        if is_waiting:
            return True
        if idle_executions(recorded.entries) >= MOST_IDLE_EXECUTIONS:
            self._log_once(
                "run_left",
                recorded.run_id,
                f"its last {MOST_IDLE_EXECUTIONS} executions finished nothing; resume "
                f"it with `minions resume {shell_word(recorded.run_id)}`",
            )
            return False
        return True
