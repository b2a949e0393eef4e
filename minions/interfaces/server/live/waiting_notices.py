"""Tells hooks of waiting runs, each wait once: also one that a process left before it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from minions.adapters.stores.memory_stores import RESERVED, StateStore
from minions.app.runs.waiting_hooks import tell_hook
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.runtime import Log
from minions.contracts.waiting import OnWaiting, RunWait
from minions.data.errors import NEEDS_DECISION, JournalError
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_waits import new_wait

_TOLD: Final = f"{RESERVED}told:"
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
    ) -> None:
        """Nothing is read yet.

        Args:
            marks: Where it is stored which waits were told.
            page: The address of the server's page; None: it is not known.
        """
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
            task = asyncio.ensure_future(self._tell(run_id))
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
