"""The one writer of a run: each fact goes to the journal, then to the listeners."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from minions.contracts.errors import JournalError
from minions.contracts.facts import Fact
from minions.contracts.journal import EntryDraft, JournalEntry, Lease
from minions.engine.history.events import EventMaker, EventStream
from minions.engine.history.replay import Replay
from minions.engine.services.leases import acquire_lease
from minions.engine.services.services import Services

__all__ = ["Recorder"]


class _AppendQueue:
    """One at a time, in order of arrival. Where nobody else comes it costs nothing to speak of."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Whether it is one's turn at once."""
        if self._is_taken:
            return False
        self._is_taken = True
        return True

    async def wait(self) -> None:
        """Until it is one's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came at the same moment
                self.give()
            raise

    def give(self) -> None:
        """To the next who waits."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False


class Recorder:
    """Holds the lease of one run while it writes."""

    def __init__(
        self,
        services: Services,
        events: EventStream,
        *,
        session_id: str,
        run_id: str,
        replay: Replay | None = None,
    ) -> None:
        """Nothing is opened yet.

        Args:
            replay: What the run recorded before; a fact that stands is not stored again.
        """
        self.replay = replay
        self.session_id = session_id
        self.run_id = run_id
        self._services = services
        self._events = events
        self._maker = EventMaker()
        self._lease: Lease | None = None
        self._alarm: asyncio.TimerHandle | None = None
        """When the lease is to be renewed."""
        self._keeper: asyncio.Task[None] | None = None
        """The renewal that is under way."""
        self._opening = asyncio.Lock()  # two parallel steps may write the first fact
        self._queue = _AppendQueue()  # facts are shown in the order of their positions
        self._is_closed = False
        self.stored = 0
        """Facts that this execution of the run added."""

    async def record(self, key: str, fact: Fact) -> JournalEntry:
        """Store one fact, then show it; a fact that an earlier execution stored is left as it is.

        Raises:
            FencedError, LeaseHeldError, JournalError: Nothing was stored.
        """
        replay = self.replay
        if replay is not None and (known := replay.same(key, fact)) is not None:
            self.note_replayed(known)
            return known
        lease = self._lease or await self.open()
        draft = EntryDraft(key=key, fact=fact)
        if not self._queue.take():
            await self._queue.wait()
        try:
            entry = await self._services.journal.append(lease, draft)
            self.stored += 1
            self._maker.note(entry)
            if self._events.is_watched and (event := self._maker.event_of(entry)) is not None:
                self._events.publish(event)
        finally:
            self._queue.give()
        return entry

    def note_replayed(self, entry: JournalEntry) -> None:
        """Note a replayed fact, which is not published again: events of later facts refer to it."""
        self._maker.note(entry)

    async def open(self) -> Lease:
        """Become the writer of the run, once.

        Raises:
            LeaseHeldError: Another run of the session is active.
            JournalError: The run has ended.
        """
        async with self._opening:
            if self._is_closed:
                raise JournalError(
                    f"Run '{self.run_id}' has ended; nothing more is stored. A Python step left "
                    "work behind: await every task before the step returns.",
                    code="run-ended",
                )
            if self._lease is None:
                self._lease = await acquire_lease(
                    self._services,
                    self.session_id,
                    self.run_id,
                    next_generation=self.replay is not None,
                )
                self._set_alarm()
            return self._lease

    async def close(self) -> None:
        """Give the lease back."""
        keeper, lease = self._keeper, self._lease
        self._keeper = self._lease = None
        self._is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        if keeper is not None:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper
        if lease is not None:
            with contextlib.suppress(JournalError):  # a lease that is kept runs out by itself
                await self._services.journal.release(lease)

    def _set_alarm(self) -> None:
        # The wall clock of this process, not the injected sleep: a simulated clock must
        # neither spin here nor let the lease run out.
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(self._services.lease_ttl_s / 3, self._renew)

    def _renew(self) -> None:
        if self._lease is not None:
            self._keeper = asyncio.ensure_future(self._keep(self._lease))

    async def _keep(self, lease: Lease) -> None:
        """Renew in time. A lost lease shows at the next append, which is fenced."""
        try:
            await self._services.journal.renew(lease, self._services.lease_ttl_s)
        except JournalError as error:
            self._services.log.warning("lease_renewal_failed", reason=error.message)
        self._keeper = None
        if self._lease is lease:
            self._set_alarm()
