"""The objects that all endpoints share, made once for each app."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime

from attrs import frozen

from minions.adapters.stores.memory_stores import StateStore
from minions.app.evaluating.background_scores import LiveScores
from minions.app.evaluating.evaluation_records import EvaluationRecords
from minions.app.runs.batch_records import BatchRecords
from minions.app.runs.deployments import DeploymentStore
from minions.app.runs.schedule_store import ScheduleStore
from minions.app.runs.work_lists import WorkLists
from minions.contracts.executions import RunStatus
from minions.contracts.journal.facts import RunFinished
from minions.contracts.journal.journal import Journal, JournalEntry
from minions.contracts.runtime import BlockingCalls, Log
from minions.data.errors import JournalError, MinionsError
from minions.engine.sessions.store import StepRepository
from minions.engine.views.run_summary import RunSummary
from minions.interfaces.http.http_answers import EVENT_STREAM, Receive, Scope, Send
from minions.interfaces.http.tokens import EXPIRED
from minions.interfaces.server.live.changes import Changes
from minions.interfaces.server.live.channels import (
    Channels,
    Follower,
    Frame,
    History,
    StreamPlaces,
    bytes_of,
    error_event,
    last_words,
)
from minions.interfaces.server.live.server_runs import RunLocks, RunManager, RunStarter
from minions.interfaces.server.live.waiting_notices import WaitingNotices
from minions.interfaces.server.recipe_store import RecipeStore
from minions.interfaces.server.server_options import ServerOptions
from minions.interfaces.server.server_runtime import ServerRuntime


@frozen(kw_only=True)
class AppState:
    """Everything that outlives a request."""

    options: ServerOptions
    journal: Journal
    marks: StateStore
    """Texts beside the journal, such as what workers lack; closed with `waiting_notices`."""
    repository: StepRepository
    recipe_store: RecipeStore
    runtime: ServerRuntime
    channels: Channels
    places: StreamPlaces
    changes: Changes
    run_manager: RunManager
    starter: RunStarter
    deployments: DeploymentStore
    waiting_notices: WaitingNotices
    scores: LiveScores
    work: WorkLists
    """Workers, queues and what waits in them."""
    schedules: ScheduleStore
    batches: BatchRecords
    evaluations: EvaluationRecords
    deciding: RunLocks
    """Held while a decision about a run is made, until the run is resumed."""
    log: Log
    place: str
    """The place of the journal as it may be shown, without a password."""
    started_at: datetime

    @property
    def threads(self) -> BlockingCalls:
        """Do what would hold the event loop."""
        return self.runtime.threads

    async def stop(self) -> None:
        """Stop runs, which can be resumed, and close streams."""
        await self.run_manager.aclose(self.options.grace_s)
        await self.changes.aclose()
        await self.waiting_notices.aclose()
        await self.channels.aclose()

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


# --- a response that is a stream of events -------------------------------------------------------


_HEADERS = [(b"content-type", EVENT_STREAM.encode()), (b"x-accel-buffering", b"no")]
_LAST_WORDS_S = 1.0
"""How many seconds a slow reader has to take the comment that ends its stream."""
_OVER = ("finished", "rejected")


class EventStreamAnswer:
    """Sends the frames of its follower, until the run ends, the reader leaves or is too slow."""

    def __init__(
        self, follower: Follower, channels: Channels, journal: Journal, threads: BlockingCalls
    ) -> None:
        """The follower leaves its channel at the end.

        Args:
            threads: Encode large events.
        """
        self._threads = threads
        self._follower = follower
        self._channels = channels
        self._journal = journal
        self._expired: MinionsError | None = None
        """Why the caller is told nothing more; None: nothing speaks against it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole stream."""
        leaving = asyncio.ensure_future(self._notice_leaving(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            words = await self._send(send)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS_S):
                    await send({"type": "http.response.body", "body": words, "more_body": False})
        finally:
            leaving.cancel()
            self._channels.leave(self._follower)

    def give_up(self) -> None:
        """End the stream before it was sent."""
        self._channels.leave(self._follower)

    async def _notice_leaving(self, receive: Receive) -> None:
        while (message := await receive())["type"] != "http.disconnect":
            pass
        self._expired = message.get(EXPIRED)
        self._follower.close()
        if self._expired is not None and self._follower.on_cut is not None:
            self._follower.on_cut()  # nothing of what waits is sent any more

    async def _send(self, send: Send) -> bytes:
        """Send all events; the comment that ends the stream."""
        follower, loop = self._follower, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(None) as deadline:
                follower.on_cut = lambda: deadline.reschedule(loop.time())
                await self._send_all(send)
        except TimeoutError:
            pass
        except JournalError as error:
            return last_words(f"the journal cannot be read ({error.error_code}); come again")
        finally:
            follower.on_cut = None
        if self._expired is not None:
            return error_event(self._expired)
        return last_words("too slow; come again with Last-Event-ID") if follower.is_cut else b""

    async def _send_all(self, send: Send) -> None:
        follower = self._follower
        while not follower.is_cut:
            if follower.is_behind and not follower.is_closed:
                await self._catch_up(send)
                if await self._is_over():
                    # What came meanwhile ends nothing: a heartbeat, or what the journal had, too.
                    await self._send_frames(follower.take(), send)
                    return
            elif frames := await follower.batch():
                if await self._send_frames(frames, send):
                    return
            elif follower.is_closed:
                return

    async def _catch_up(self, send: Send) -> None:
        """Send what the journal has after the follower's position."""
        follower = self._follower
        await follower.channel.watching.wait()
        follower.is_behind = False
        history = History(self._journal, follower.channel.session_id, follower.run_id)
        pages = history.after(follower.position)
        while True:
            follower.is_reading = True
            try:
                frames = await anext(pages, None)
            finally:
                follower.is_reading = False
            if frames is None:
                return
            await self._send_frames(frames, send)
            follower.position = max(follower.position, history.position)

    async def _is_over(self) -> bool:
        """Whether the followed run has ended, and all that the journal has of it was sent."""
        follower = self._follower
        run_id, channel = follower.run_id, follower.channel
        if run_id is None or channel.is_active(run_id):
            return False
        rows = await self._journal.entries(
            channel.session_id, run_id=run_id, kinds={"run"}, limit=1, newest_first=True
        )
        if not rows or rows[0].state not in _OVER:
            return False
        if _waits(rows[0]) and rows[0].position <= follower.began_after:
            return False  # the reader knows that it waits, and came for what follows
        if rows[0].position > follower.position:  # it was stored just now
            follower.is_behind = True
        return not (follower.is_behind or channel.is_active(run_id))

    async def _send_frames(self, frames: Sequence[Frame], send: Send) -> bool:
        """Send frames; whether the followed run ends with them."""
        data = await bytes_of(frames, self._threads)
        if data:
            self._follower.begin_sending()
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._follower.end_sending()
        follower = self._follower
        positions = [frame.position for frame in frames if frame.position is not None]
        follower.position = max((follower.position, *positions))
        return follower.run_id is not None and any(frame.is_end for frame in frames)


def _waits(end: JournalEntry) -> bool:
    return isinstance(end.fact, RunFinished) and end.fact.status == RunStatus.NEEDS_DECISION
