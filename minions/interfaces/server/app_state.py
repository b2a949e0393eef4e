"""The objects that all endpoints share, made once for each app."""

from __future__ import annotations

from datetime import datetime

from attrs import frozen

from minions.contracts.executions import RunStatus
from minions.contracts.journal.journal import Journal
from minions.contracts.runtime import BlockingCalls, Log
from minions.engine.sessions.store import StepRepository
from minions.engine.views.run_summary import RunSummary
from minions.interfaces.server.live.changes import Changes
from minions.interfaces.server.live.channels import Channels
from minions.interfaces.server.live.run_locks import RunLocks
from minions.interfaces.server.live.run_manager import RunManager
from minions.interfaces.server.live.run_starter import RunStarter
from minions.interfaces.server.live.stream_places import StreamPlaces
from minions.interfaces.server.live.streams import EventStreamAnswer
from minions.interfaces.server.live.waiting_notices import WaitingNotices
from minions.interfaces.server.options import ServerOptions
from minions.interfaces.server.recipe_store import RecipeStore
from minions.interfaces.server.runtime import ServerRuntime


@frozen(kw_only=True)
class AppState:
    """Everything that outlives a request."""

    options: ServerOptions
    journal: Journal
    repository: StepRepository
    recipe_store: RecipeStore
    runtime: ServerRuntime
    channels: Channels
    places: StreamPlaces
    changes: Changes
    run_manager: RunManager
    starter: RunStarter
    waiting_notices: WaitingNotices
    deciding: RunLocks
    """Held while a decision about a run is made, until the run is resumed."""
    log: Log
    place: str
    """The place of the journal as it may be shown, without a password."""
    started_at: datetime

    @property
    def threads(self) -> BlockingCalls:
        """Do what would hold the event loop."""
        return self.runtime.services.beside

    async def last_position(self, session_id: str) -> int:
        """The position of the newest row of a session; 0: it has none."""
        rows = await self.journal.entries(session_id, limit=1, newest_first=True, with_damaged=True)
        return rows[0].position if rows else 0

    async def has_all(self, run: RunSummary, after: int) -> bool:
        """Whether a reader that is at this position has all events of a run that has ended.

        A run that waits for a person has not ended: what follows the decision is still to come.
        """
        if not after or not run.has_ended or run.status == RunStatus.NEEDS_DECISION:
            return False
        rows = await self.journal.entries(
            run.session_id, run_id=run.run_id, limit=1, newest_first=True, with_damaged=True
        )
        return not rows or rows[0].position <= after

    async def stream(
        self,
        session_id: str,
        *,
        run_id: str | None = None,
        after: int = 0,
        caller: str | None = None,
    ) -> EventStreamAnswer:
        """A stream of the events of a session, or of one of its runs.

        Args:
            after: Only events after this position; one beyond the newest row means the newest.
            caller: The name of the caller's token; None: it has none.
        Raises:
            RefusedError: There are too many streams.
        """
        if after:
            after = min(after, await self.last_position(session_id))
        follower = self.channels.follow(session_id, run_id=run_id, after=after, caller=caller)
        return EventStreamAnswer(follower, self.channels, self.journal, self.threads)
