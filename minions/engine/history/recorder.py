"""The only writer of a run: it stores each fact in the journal, then publishes its event.

It writes under a lease of the run, which it acquires when it is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from minions.contracts.journal.facts import Fact
from minions.contracts.journal.journal import EntryDraft, HeldLease, JournalEntry, Lease, OpenedRun
from minions.contracts.runtime import WorkSlices
from minions.data.errors import JournalError, LeaseHeldError, UsageError
from minions.data.json_parts import is_large
from minions.engine.history.event_stream import NOTED, EventMaker, EventStream
from minions.engine.services.event_loop import Due, breathe
from minions.engine.services.run_services import Services

if TYPE_CHECKING:
    from minions.engine.history.approval_classes import ApprovalClasses
    from minions.engine.history.replay import Replay


_LATE: Final = 2 / 3
"""Of a lease's time, after which a renewal is late: it is due after a third."""
_MOST_HELD: Final = 64
"""Facts that are stored together at most."""
_FACTS: Final = 32
"""Facts in a turn: with the work between them some milliseconds."""


class _AppendQueue:
    """A lock in order of arrival, which is free while there is one writer.

    `asyncio.Lock` is not used: an append without contention would pay for it.
    """

    __slots__ = ("is_taken", "waiting")

    def __init__(self) -> None:
        self.is_taken = False
        """Who finds it False takes the lock by setting it."""
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait in line until the lock is taken."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():  # it came at the same moment
                self.release()
            raise

    def release(self) -> None:
        """Hand the lock to the next waiter, or free it."""
        while self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.is_taken = False


class _Append(Struct, eq=False):
    """A fact that was handed to a journal which groups appends."""

    entry: JournalEntry | None = None
    """None: it is not stored, or not yet."""
    is_done: bool = False


class Recorder:
    """Stores the facts of one run, and holds its lease meanwhile."""

    def __init__(
        self,
        services: Services,
        events: EventStream,
        *,
        session_id: str,
        run_id: str,
        replay: Replay | None = None,
    ) -> None:
        """The lease is acquired with the first facts, or by `open`.

        Args:
            replay: The recorded work of the run; a fact that is in it is not stored again.
                None: the run is new.
        """
        self.replay = replay
        self.session_id = session_id
        self.run_id = run_id
        self._services = services
        self._executing = services.executing
        self._log = services.log
        self._journal = services.journal
        self._clock = services.clock
        self._events = events
        self._maker = EventMaker()
        self._lease: Lease | None = None
        self._confirmed_at = 0.0
        """When the lease was acquired or renewed, in seconds of the clock."""
        self._renewals: set[Due] = set()
        """What the timer of the event loop calls, for the lease as for those of other runs."""
        self._renewal: asyncio.Task[None] | None = None
        """The renewal that is in progress."""
        self._queue = _AppendQueue()
        """Facts are shown in the order of their positions; and two parallel steps may write the
        first fact, for which the lease is acquired."""
        self._held: list[EntryDraft] = []
        """Facts that are stored with the next one."""
        self._lost: JournalError | None = None
        """Why they could not be stored."""
        self.refusal: JournalError | None = None
        """Why the run could not be opened with its first facts: then nothing of it is stored."""
        self._flushing: asyncio.Task[None] | None = None
        self._appends: deque[_Append] = deque()  # likewise, where the journal groups them
        self._is_closed = False
        self._slices = WorkSlices(_FACTS)
        self._classes: ApprovalClasses | None = None
        self.changes = count(1)
        """Numbers the changes of files that this execution of the run records."""
        self.stored = 0
        """How many facts this execution of the run has stored."""

    @property
    def classes(self) -> ApprovalClasses:
        """The calls of the run that were approved together."""
        from minions.engine.history.approval_classes import ApprovalClasses

        if self._classes is None:
            self._classes = ApprovalClasses(self.replay)
        return self._classes

    async def record(self, key: str, fact: Fact, *, is_last: bool = False) -> JournalEntry:
        """Store a fact, then publish its event; a replayed fact is neither stored nor published.

        Args:
            is_last: Nothing can be stored afterwards, as after `close`; where the journal can, it
                releases the lease with the fact.
        Raises:
            FencedError, LeaseHeldError, JournalError: Nothing was stored.
        """
        replay = self.replay
        if replay is not None and (known := replay.same(key, fact)) is not None:
            self.note_replayed(known)
            return known
        journal, draft = self._journal, EntryDraft(key=key, fact=fact)
        if journal.groups_appends:
            return await self._append_beside_others(self._lease or await self.open(), draft)
        if self._slices.is_over():
            await breathe()  # a journal in this process waits for nothing
        queue = self._queue
        if queue.is_taken:
            await queue.wait()
        queue.is_taken = True
        try:
            lease, is_last = self._lease, is_last and journal.stores_together
            if self._held or lease is None or is_last or self._lost is not None:
                return await self._stored_with_held(draft, is_last=is_last)
            entry = await journal.append(lease, draft)
            self._publish(entry)
        finally:
            if queue.waiting:
                queue.release()
            else:
                queue.is_taken = False
        return entry

    # --- facts that may wait for the next one ----------------------------------------------------

    async def record_later(self, key: str, fact: Fact) -> datetime:
        """Store a fact upon which nothing acts before the next one, or before the run waits for
        anything: it is stored then, together with that. Returns the time of the fact.

        Raises:
            As `record`; of what is stored later, the next call raises it.
        """
        journal = self._journal
        is_replayed = self.replay is not None and self.replay.same(key, fact) is not None
        may_wait = journal.stores_together and not (is_replayed or self._is_closed)
        if not may_wait or is_large(fact) or len(self._held) >= _MOST_HELD:
            return (await self.record(key, fact)).at
        if self._slices.is_over():
            await breathe()
        at = self._clock.now()
        self._held.append(journal.prepared(EntryDraft(key=key, fact=fact, at=at)))
        if len(self._held) == 1:
            asyncio.get_running_loop().call_soon(self._begin_flush)
        return at

    async def flush(self) -> None:
        """Store what waits for the next fact.

        Raises:
            As `record`.
        """
        if self._lost is not None:
            raise self._lost
        queue = self._queue
        if not self._held:
            return
        if queue.is_taken:
            await queue.wait()
        queue.is_taken = True
        try:
            if self._held:
                await self._stored_with_held()
        finally:
            queue.release()

    def _begin_flush(self) -> None:
        if self._held and not self._is_closed:
            self._flushing = asyncio.ensure_future(self._flush_alone())

    async def _flush_alone(self) -> None:
        with contextlib.suppress(JournalError):  # whoever records the next fact is told
            await self.flush()

    async def _stored_with_held(self, *drafts: EntryDraft, is_last: bool = False) -> JournalEntry:
        """The last of them."""
        if self._lost is not None:
            raise self._lost
        held, self._held = self._held, []
        journal, lease, facts = self._journal, self._lease, (*held, *drafts)
        try:
            if lease is None:
                entries = await self._take(facts)
            elif is_last:
                entries = await journal.close_run(lease, facts)
                self._leave()
            else:
                entries = await journal.append_all(lease, facts)
        except JournalError as error:
            if held and drafts and error.is_about_one_fact and not self._is_closed:
                self._held = [*held, *self._held]
                await self._stored_with_held()  # what was not at fault
                raise
            if held:
                self._lost = error
            if lease is None and not self._is_closed:
                self.refusal = error
            raise
        except BaseException:  # cancelled before anything was stored
            self._held = [*held, *self._held]
            raise
        for entry in entries:
            self._publish(entry)
        return entries[-1]

    async def _take(self, drafts: Sequence[EntryDraft]) -> Sequence[JournalEntry]:
        """Acquire the lease, with the first facts where they are given; these, as they are stored.

        Raises:
            As `open`.
        """
        services, executing = self._services, self._executing
        if self._is_closed:
            raise JournalError(
                f"Run '{self.run_id}' has ended; nothing more is stored. A Python step left "
                "work behind: await every task before the step returns.",
                code="run-ended",
            )
        if self.run_id in executing:
            raise LeaseHeldError(
                f"Session '{self.session_id}' is busy: run '{self.run_id}' is being executed "
                "in this process. Wait for its end, or cancel it.",
                worker_id=services.worker_id,
                run_id=self.run_id,
            )
        executing.add(self.run_id)
        try:
            opened = await open_run(
                services,
                self.session_id,
                self.run_id,
                drafts,
                next_generation=self.replay is not None,
            )
        except BaseException:
            executing.discard(self.run_id)
            raise
        self._lease = opened.lease
        self._confirmed_at = services.clock.monotonic()
        self._renewals = services.renewals.of_running_loop(services.lease_ttl_s / 3)
        self._renewals.add(self._renew)
        return opened.entries

    def _leave(self) -> None:
        """Hold the lease no more: it was released, or is about to be."""
        self._lease = None
        self._is_closed = True
        self._renewals.discard(self._renew)
        self._executing.discard(self.run_id)

    async def _append_beside_others(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        """Store a fact without waiting for those before it, which the journal stores first.

        Its event is published after theirs: by whichever of these calls is the last to know.
        """
        append = _Append()
        self._appends.append(append)
        try:
            entry = append.entry = await self._journal.append(lease, draft)
        finally:
            append.is_done = True
            while self._appends and self._appends[0].is_done:
                if (stored := self._appends.popleft().entry) is not None:
                    self._publish(stored)
        return entry

    def _publish(self, entry: JournalEntry) -> None:
        self.stored += 1
        if entry.fact.kind in NOTED:
            self._maker.note(entry)
        if self._events.is_watched and (event := self._maker.event_of(entry)) is not None:
            self._events.publish(event)

    def note_replayed(self, entry: JournalEntry) -> None:
        """Note a replayed fact, which is not published again: events of later facts refer to it."""
        self._maker.note(entry)

    async def open(self) -> Lease:
        """Acquire the run's lease, once.

        Raises:
            LeaseHeldError: Another run of the session is active.
            JournalError: The run has ended.
        """
        queue = self._queue
        if queue.is_taken:
            await queue.wait()
        queue.is_taken = True
        try:
            if self._lease is None:
                await self._take(())
            assert self._lease is not None  # noqa: S101  # as was just made sure
            return self._lease
        finally:
            if queue.waiting:
                queue.release()
            else:
                queue.is_taken = False

    async def close(self) -> None:
        """Release the lease; nothing can be stored afterwards."""
        if self._held:
            with contextlib.suppress(JournalError):
                await self.flush()
        renewal, lease = self._renewal, self._lease
        self._renewal = None
        if lease is not None:
            self._leave()
        self._is_closed = True
        if renewal is not None:
            renewal.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await renewal
        if lease is not None:
            try:  # noqa: SIM105  # two calls less in each run
                await self._journal.release(lease)
            except JournalError:
                pass  # a lease that is not released expires

    @property
    def is_late(self) -> bool:
        """Whether the lease should have been renewed by now: this process stood still, and another
        one may have the run.
        """
        idle_s = self._clock.monotonic() - self._confirmed_at
        return idle_s >= self._services.lease_ttl_s * _LATE

    async def confirm_lease(self) -> None:
        """Make sure that the run is still this process's, before something that cannot be undone.

        Raises:
            FencedError: Another process has it.
            JournalError: The journal does not say.
        """
        if (lease := self._lease) is not None:
            await self._renew_now(lease)

    async def _renew_now(self, lease: Lease) -> None:
        begin = self._clock.monotonic()
        await self._journal.renew(lease, self._services.lease_ttl_s)
        self._confirmed_at = begin

    def _renew(self) -> None:
        # By the time of the event loop, not the injected sleep: a simulated clock must neither spin
        # here nor let the lease run out.
        if self._lease is not None and self._renewal is None:
            self._renewal = asyncio.ensure_future(self._renew_lease(self._lease))

    async def _renew_lease(self, lease: Lease) -> None:
        """Renew the lease. If it was lost, the next append is refused (`FencedError`)."""
        try:
            await self._renew_now(lease)
        except JournalError as error:
            self._log.warning("lease_renewal_failed", run_id=self.run_id, reason=error.message)
        self._renewal = None


async def acquire_lease(
    services: Services, session_id: str, run_id: str, *, next_generation: bool = False
) -> Lease:
    """Acquire the lease of a run; one of a worker that has died is taken over.

    Args:
        next_generation: See `Journal.acquire`.
    Raises:
        LeaseHeldError: Another worker holds the session, and is not known to be dead.
        JournalError: The store refuses.
        UsageError: `bad-id`; an id is too long.
    """
    opened = await open_run(services, session_id, run_id, (), next_generation=next_generation)
    return opened.lease


async def open_run(
    services: Services,
    session_id: str,
    run_id: str,
    drafts: Sequence[EntryDraft],
    *,
    next_generation: bool = False,
) -> OpenedRun:
    """As `acquire_lease`, with the first facts of the run; none: only its lease is acquired.

    Raises:
        LeaseHeldError, JournalError, UsageError: As of `acquire_lease`, or a fact is refused.
    """
    journal, names = services.journal, (session_id, run_id, services.worker_id)
    for each in (session_id, run_id):
        if len(each) > _LONGEST_ID:
            raise UsageError(
                f"The id '{each[:40]}…' has {len(each):,} characters; ids of sessions and runs "
                f"have at most {_LONGEST_ID}.",
                code="bad-id",
            )
    if next_generation:
        await refuse_if_renewed(services, session_id)
    takes_over = None
    while True:
        try:
            if drafts:
                return await journal.open_run(
                    *names,
                    services.lease_ttl_s,
                    drafts,
                    next_generation=next_generation,
                    takes_over=takes_over,
                )
            lease = await journal.acquire(
                *names,
                services.lease_ttl_s,
                next_generation=next_generation,
                takes_over=takes_over,
            )
            return OpenedRun(lease=lease, entries=())
        except LeaseHeldError as error:
            if takes_over is not None or not services.is_worker_gone(error.worker_id):
                raise
            takes_over = error.worker_id


@asynccontextmanager
async def held_lease(services: Services, session_id: str, run_id: str) -> AsyncIterator[Lease]:
    """The lease of `acquire_lease`, released at the end of the block."""
    lease = await acquire_lease(services, session_id, run_id)
    try:
        yield lease
    finally:
        await services.journal.release(lease)


_LONGEST_ID: Final = 200
"""Characters of the id of a session or run: it stands in every row, link and list."""


_LOOK_EVERY_S: Final = 1.0


async def refuse_if_renewed(services: Services, session_id: str) -> None:
    """Refuse to take a lease that has expired by the clock here, but that its worker renews.

    The clock is ahead then, or was set forward since the last renewal. Only a worker that is known
    to live is observed, for the time between two renewals; one that is stopped renews nothing.

    Raises:
        LeaseHeldError: The worker renewed its lease meanwhile.
    """
    begin = await _expired_of_living(services, session_id)
    if begin is None:
        return
    observed_s = 0.0
    while observed_s < services.lease_ttl_s / 3 + _LOOK_EVERY_S:
        await services.sleep(_LOOK_EVERY_S)
        observed_s += _LOOK_EVERY_S
        held = await _lease_of(services, session_id)
        if held is None or held.lease != begin.lease:
            return
        if held.expires_at != begin.expires_at:
            raise _ahead(held)


async def _expired_of_living(services: Services, session_id: str) -> HeldLease | None:
    held = await _lease_of(services, session_id)
    if held is None or not held.has_expired or held.expires_at is None:
        return None
    worker = held.lease.worker_id
    is_other = worker != services.worker_id and not services.is_worker_gone(worker)
    return held if is_other and services.is_worker_alive(worker) else None


async def _lease_of(services: Services, session_id: str) -> HeldLease | None:
    held = await services.journal.held_leases()
    return next((each for each in held if each.lease.session_id == session_id), None)


def _ahead(held: HeldLease) -> LeaseHeldError:
    lease = held.lease
    return LeaseHeldError(
        f"Nothing was done: run '{lease.run_id}' is active on worker '{lease.worker_id}', which "
        "renews its lease, but by the clock of this process that lease has expired. This clock is "
        "ahead of the worker's. Set it right, or wait for the run's end.",
        worker_id=lease.worker_id,
        run_id=lease.run_id,
    )
