"""Removes sessions that are older than they may become, some at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeAlias

from minions.contracts.executions import RunState
from minions.contracts.journal.run_rows import RunFilter, SessionFilter, SessionRow
from minions.data.errors import LeaseHeldError
from minions.engine.services.run_services import Services
from minions.engine.sessions.deletion import OPEN, child_sessions, expiry_at, has_owner

ForgetRuns: TypeAlias = Callable[[Collection[str]], Awaitable[object]]
"""Removes what is kept of runs beside the journal, such as cached outputs."""

_PAGE: Final = 50
"""Sessions that are looked at in one turn: some 50 ms of work where all of them are removed."""
_COLLECT_S: Final = 86_400.0
"""Seconds between two collections of blobs: each reads all entries."""


class Retention:
    """Looks for old sessions page by page, so that no turn takes long.

    A session stays while a run of it may be resumed or is active, or while a fork reads from it.
    Sessions of child runs go with that of their run.
    """

    def __init__(
        self, services: Services, *, retain_s: float | None, forget: ForgetRuns | None = None
    ) -> None:
        """Nothing is read yet.

        Args:
            retain_s: How long sessions stay after the last start or end of a run; None: as long as
                their own runs say.
        """
        self._log = services.log
        self._clock = services.clock
        self._journal = services.journal
        self._retain_s = retain_s
        self._forget = forget
        self._after: SessionRow | None = None
        """Where the next turn continues; None: at the beginning."""
        self._has_removed = True
        """Since the last collection; that of another process may have been its last deed."""
        self._collected_at = services.clock.now()

    async def look(self) -> int:
        """Remove what is old among the next sessions; returns how many were removed.

        Raises:
            JournalError: It cannot be read or written.
        """
        wanted = SessionFilter(expiry=expiry_at(self._clock.now(), self._retain_s))
        rows = await self._journal.sessions(wanted, limit=_PAGE, after=self._after)
        self._after = rows[-1] if len(rows) == _PAGE else None
        count = 0
        for row in rows:
            count += await self._removed(row)
        await self._collect(is_wanted=count > 0)
        return count

    async def _removed(self, row: SessionRow) -> int:
        """How many sessions were removed: it and those of its child runs, or none."""
        journal = self._journal
        if await has_owner(journal, row.session_id):
            return 0
        members = (*await child_sessions(journal, [row.session_id]), row.session_id)
        runs = list[str]()
        for each in members:
            for run in await journal.runs(RunFilter(session_id=each)):
                if run.status in OPEN and not (
                    run.status == RunState.UNREADABLE and run.ended_at is not None
                ):
                    return 0
                runs.append(run.run_id)
            forks = await journal.sessions(SessionFilter(parent=each))
            if not {fork.session_id for fork in forks} <= {*members}:
                return 0
        try:
            for each in members:
                await journal.remove_session(each)
        except LeaseHeldError:
            return 0
        if self._forget is not None:
            await self._forget(runs)
        self._log.info("session_expired", session_id=row.session_id, runs=len(runs))
        return len(members)

    async def _collect(self, *, is_wanted: bool) -> None:
        self._has_removed = self._has_removed or is_wanted
        now = self._clock.now()
        if self._has_removed and (now - self._collected_at).total_seconds() >= _COLLECT_S:
            self._has_removed, self._collected_at = False, now
            await self._journal.collect()
