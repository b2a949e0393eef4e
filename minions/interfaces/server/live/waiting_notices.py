"""Tells hooks of waiting runs, each wait once: also one that a process left before it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import datetime
from typing import Final

from attrs import evolve

from minions.adapters.stores.memory_stores import RESERVED, StateStore
from minions.app.runs.waiting_hooks import tell_hook
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.runtime import Clock, Log, SystemClock
from minions.contracts.waiting import OnWaiting, RunWait
from minions.data.errors import NEEDS_DECISION, JournalError, MinionsError
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_waits import due_reminder, new_wait

_TOLD: Final = f"{RESERVED}told:"
REMINDERS_S: Final = 15.0
"""Seconds between two looks for waiting runs of which hooks are to be reminded."""
_STATUS: Final = NEEDS_DECISION.replace("-", "_")


class WaitingNotices:
    """Tells hooks in the background. A told wait is marked beside the journal."""

    def __init__(
        self,
        hooks: Sequence[OnWaiting],
        journal: Journal,
        marks: StateStore,
        log: Log,
        *,
        page: str | None,
        clock: Clock | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            marks: Where it is stored which waits were told.
            page: The address of the server's page; None: it is not known.
            clock: Says which reminders are due; None: that of the system.
        """
        self._clock = clock or SystemClock()
        self._due: dict[str, tuple[object, datetime | None]] = {}
        """Of runs that wait: the end that was read, and when a reminder is due."""
        self._hooks = tuple(hooks)
        self._journal = journal
        self._marks = marks
        self._log = log
        self._page = page
        self._tasks: set[asyncio.Task[None]] = set()

    async def told(self) -> None:
        """Wait until nothing is being told."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def tell(self, run_id: str) -> None:
        """Tell of a run that has begun to wait; returns at once."""
        if self._hooks:
            self._begin(self._tell(run_id))

    def _begin(self, telling: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(telling)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def tell_untold(self) -> None:
        """Tell of every waiting run of which no process has told."""
        if not self._hooks:
            return
        try:
            runs = await list_runs(self._journal, wanted=RunFilter(statuses={_STATUS}))
        except JournalError as error:
            self._log.warning("waiting_runs_not_told", reason=error.message)
            return
        for run in reversed(runs):
            self.tell(run.run_id)

    async def remind_at_intervals(self) -> None:
        """Look for due reminders until cancelled."""
        while self._hooks:
            await asyncio.sleep(REMINDERS_S)
            try:
                await self.remind()
            except MinionsError as error:
                self._log.warning("waiting_runs_not_told", reason=error.message)

    async def remind(self) -> int:
        """Remind hooks of runs that still wait; how many those were.

        Each reminder is marked before it is told, so that of several processes one tells it, and
        none tells it twice. What was read of a run is read again when it is due, or when the run
        has ended again.

        Raises:
            JournalError: The journal cannot be read.
        """
        if not self._hooks:
            return 0
        now, told = self._clock.now(), 0
        due: dict[str, tuple[object, datetime | None]] = {}
        for run in await list_runs(self._journal, wanted=RunFilter(statuses={_STATUS})):
            known = self._due.get(run.run_id)
            if known is not None and known[0] == run.finished_at:
                due[run.run_id] = known
                if known[1] is None or known[1] > now:
                    continue
            wait, following = await due_reminder(self._journal, run.run_id, now, page=self._page)
            due[run.run_id] = (run.finished_at, following)
            if wait is not None and await self._marks.replace(
                f"{_TOLD}{wait.id}", None, run.run_id
            ):
                told += 1
                self._begin(self._tell_all(wait))
        self._due = due
        return told

    async def tell_once(self, wait: RunWait) -> None:
        """Tell of a wait, or an alarm, that no process has told; of several that try, one does.

        Raises:
            JournalError: The mark of it cannot be stored.
        """
        if self._hooks and await self._marks.replace(f"{_TOLD}{wait.id}", None, wait.run_id):
            if wait.alarm is not None and self._page is not None:
                wait = evolve(wait, address=f"{self._page}#/runs/{wait.run_id}")
            self._begin(self._tell_all(wait))

    async def _tell(self, run_id: str) -> None:
        try:
            wait = await new_wait(self._journal, run_id, page=self._page)
            if wait is None or await self._marks.get(f"{_TOLD}{wait.id}") is not None:
                return
            await self._tell_all(wait)
            await self._marks.put(f"{_TOLD}{wait.id}", run_id)
        except JournalError as error:
            self._log.warning("waiting_run_not_told", run_id=run_id, reason=error.message)

    async def _tell_all(self, wait: RunWait) -> None:
        async with asyncio.TaskGroup() as group:
            for hook in self._hooks:
                group.create_task(tell_hook(hook, wait, self._log))

    async def aclose(self) -> None:
        """End what is being told: it has no mark, so the next process tells it."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._marks.aclose()
