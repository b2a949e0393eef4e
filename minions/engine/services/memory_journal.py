"""A journal in memory: facts are kept as objects and are lost when the process ends."""

from __future__ import annotations

import hashlib
import sys
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, Generic, TypeAlias, TypeVar

from attrs import evolve, field, frozen, mutable
from msgspec.structs import replace

from minions.contracts.executions import RunStatus
from minions.contracts.journal.entry_waiters import EntryWaiters
from minions.contracts.journal.facts import Fact, RunBeginning, RunFinished
from minions.contracts.journal.journal import (
    SPARED_S,
    BlobCollection,
    EntryDraft,
    HeldLease,
    Journal,
    JournalEntry,
    Lease,
    bad_entries,
    changed_entries,
    digests_in,
    refuse_damaged,
    session_exists,
)
from minions.contracts.journal.run_row_folds import folded
from minions.contracts.journal.run_rows import (
    LISTED,
    MOST_DAYS,
    RunFilter,
    RunRow,
    SessionFilter,
    SessionRow,
    Spender,
    Spent,
    day_of,
)
from minions.contracts.runtime import Clock
from minions.data.errors import FencedError, JournalError, LeaseHeldError, NotFoundError
from minions.data.field_repr import FieldsRepr

_EntryName = tuple[str, int, str, str, str]


@frozen(kw_only=True)
class _LeaseRow(FieldsRepr):
    """The lease of a session, held or released."""

    lease: Lease
    deadline: datetime | None
    """When the lease expires; None: it was released."""


@mutable
class _Session(FieldsRepr):
    """All facts of one session; position n is at index n - 1."""

    entries: list[JournalEntry] = field(factory=list)
    holding: _LeaseRow | None = None


@frozen
class _Blob(FieldsRepr):
    """Bytes, and the time at which they were last put."""

    data: bytes
    put_at: datetime


class MemoryJournal(Journal):
    """Keeps facts as objects, not encoded. There is no lock: one event loop owns the journal."""

    is_shared = False

    def __init__(self, clock: Clock, *, most_ended: int | None = None) -> None:
        """Start without sessions.

        Args:
            most_ended: How many ended runs are kept, the newest; None: all. Runs that wait for a
                person, and runs in sessions that were opened, forked or have messages, are always
                kept.
        """
        self._most_ended = most_ended
        self._ended: dict[str, str] = {}
        """Runs that may be forgotten, in the order of their ends, each with its session."""
        self._runs_of_blob: Counter[str] = Counter()
        """How many run starts name each blob; counted only where runs are forgotten."""
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        self._positions: dict[_EntryName, int] = {}
        self._generations: dict[str, int] = {}
        self._blobs: dict[str, _Blob] = {}
        self._rows = MemoryRows()
        self._waiting = EntryWaiters()

    async def acquire(
        self,
        session_id: str,
        run_id: str,
        worker_id: str,
        ttl_s: float,
        *,
        next_generation: bool = False,
        takes_over: str | None = None,
    ) -> Lease:
        """See the contract. The same worker may acquire its own run again."""
        session = self._sessions.setdefault(session_id, _Session())
        now = self._clock.now()
        if (held := session.holding) is not None and held.lease.worker_id != takes_over:
            _refuse_if_active(held, run_id, worker_id, now)
        written = self._generations.get(run_id, 0)
        lease = Lease(
            session_id=session_id,
            run_id=run_id,
            worker_id=worker_id,
            epoch=held.lease.epoch + 1 if held else 1,
            generation=written + 1 if next_generation else max(written, 1),
        )
        session.holding = _LeaseRow(lease=lease, deadline=now + timedelta(seconds=ttl_s))
        return lease

    async def renew(self, lease: Lease, ttl_s: float) -> None:
        """See the contract. An expired lease that nobody has taken over is renewed."""
        session, holding = self._own_lease(lease)
        deadline = self._clock.now() + timedelta(seconds=ttl_s)
        session.holding = evolve(holding, deadline=deadline)

    async def release(self, lease: Lease) -> None:
        """Free the session for another run."""
        session = self._sessions.get(lease.session_id)
        if session and session.holding and session.holding.lease.epoch == lease.epoch:
            session.holding = _LeaseRow(lease=session.holding.lease, deadline=None)
            if self._most_ended is not None:
                self._forget_old(lease, session, self._most_ended)

    def _forget_old(self, lease: Lease, session: _Session, most: int) -> None:
        """Forget the oldest ended runs that no session refers to, down to `most`."""
        self._ended.pop(lease.run_id, None)
        if _is_over(session, lease.run_id):
            self._ended[lease.run_id] = lease.session_id
        while len(self._ended) > most:
            run_id = next(iter(self._ended))
            self._forget(self._ended.pop(run_id))

    def _forget(self, session_id: str) -> None:
        session = self._sessions.pop(session_id, None)
        self._rows.mark_changed(session_id)
        for entry in session.entries if session is not None else ():
            fact = entry.fact
            del self._positions[entry.run_id, entry.generation, entry.key, fact.kind, fact.state]
            if entry.run_id in self._generations:
                del self._generations[entry.run_id]
            if fact.kind not in LISTED or not isinstance(fact, RunBeginning):
                continue
            for digest in _blobs_of(fact):
                self._runs_of_blob[digest] -= 1
                if self._runs_of_blob[digest]:
                    continue
                del self._runs_of_blob[digest]
                blob = self._blobs.get(digest)
                if blob is not None and blob.put_at <= entry.at:  # else a run is about to begin
                    del self._blobs[digest]

    async def held_leases(self) -> Sequence[HeldLease]:
        """See the contract. The cost grows with the number of sessions in memory."""
        now = self._clock.now()
        holdings = (each.holding for each in self._sessions.values())
        return [
            HeldLease(lease=each.lease, has_expired=each.deadline <= now, expires_at=each.deadline)
            for each in holdings
            if each is not None and each.deadline is not None
        ]

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        """Store the draft's fact itself: do not change its contents afterwards."""
        session = self._sessions.get(lease.session_id)
        holding = session.holding if session is not None else None
        if session is None or holding is None or not (holding.lease is lease and holding.deadline):
            session, _ = self._own_lease(lease)
        entries, fact, kind = session.entries, draft.fact, draft.fact.kind
        name = (lease.run_id, lease.generation, draft.key, kind, fact.state)
        position = len(entries) + 1
        taken = self._positions.setdefault(name, position)
        if taken != position:
            raise _duplicate(lease, draft, taken)
        entry = JournalEntry(
            session_id=lease.session_id,
            position=position,
            run_id=lease.run_id,
            generation=lease.generation,
            key=draft.key,
            fact=fact,
            epoch=lease.epoch,
            at=self._clock.now(),
        )
        entries.append(entry)
        if kind in LISTED:
            self._rows.mark_changed(lease.session_id)
            if self._most_ended is not None and isinstance(fact, RunBeginning):
                for digest in _blobs_of(fact):
                    self._runs_of_blob[digest] += 1
        self._generations[lease.run_id] = lease.generation
        if self._waiting.waiting:
            self._waiting.tell(lease.session_id, position)
        return entry

    async def entries(
        self,
        session_id: str | None = None,
        *,
        run_id: str | None = None,
        after: int = 0,
        until: int | None = None,
        kinds: Collection[str] | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        with_damaged: bool = False,
    ) -> Sequence[JournalEntry]:
        """See the contract. Returns the stored objects themselves."""
        order = -1 if newest_first else 1
        ids = sorted(self._sessions)[::order] if session_id is None else [session_id]
        found = (
            entry
            for each in ids
            if (session := self._sessions.get(each)) is not None
            for entry in _part(session.entries, after, until, is_backwards=newest_first)
            if (run_id is None or entry.run_id == run_id) and (kinds is None or entry.kind in kinds)
        )
        listed = list(islice(found, None if limit is None else min(max(limit, 0), sys.maxsize)))
        if not with_damaged:
            refuse_damaged(listed)
        return listed

    async def runs(
        self,
        wanted: RunFilter | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: RunRow | None = None,
    ) -> Sequence[RunRow]:
        """See the contract. Found in an ordered list, or by id."""
        return self._fresh_rows().runs(wanted or RunFilter(), limit, offset, after)

    async def count_runs(
        self, wanted: RunFilter | None = None, *, at_most: int | None = None
    ) -> int:
        """See the contract. Looks at each run."""
        return len(await self.runs(wanted, limit=at_most))

    async def sessions(
        self,
        wanted: SessionFilter | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: SessionRow | None = None,
    ) -> Sequence[SessionRow]:
        """See the contract. Found in an ordered list, or by id."""
        return self._fresh_rows().sessions(wanted or SessionFilter(), limit, offset, after)

    async def spent(self, spender: Spender, *, without: Collection[str] = ()) -> Spent:
        """See the contract. Kept up to date with the rows."""
        return self._fresh_rows().spent(spender, without)

    async def count_sessions(
        self, wanted: SessionFilter | None = None, *, at_most: int | None = None
    ) -> int:
        """See the contract. Looks at each session."""
        return len(await self.sessions(wanted, limit=at_most))

    def _fresh_rows(self) -> MemoryRows:
        self._rows.refresh(self._entries_of)
        return self._rows

    def _entries_of(self, session_id: str) -> Sequence[JournalEntry]:
        session = self._sessions.get(session_id)
        return session.entries if session is not None else ()

    async def wait(self, session_id: str, after: int, timeout_s: float) -> bool:
        """See the contract. An append wakes the waiter directly."""

        async def look() -> int:
            session = self._sessions.get(session_id)
            return len(session.entries) if session else 0

        return await self._waiting.wait(session_id, after, timeout_s, look)

    async def adopt(self, session_id: str, entries: Sequence[JournalEntry]) -> None:
        """See the contract."""
        session = self._sessions.get(session_id, _Session())
        if session.entries:
            raise session_exists(session_id, len(session.entries))
        if (why := bad_entries(session_id, entries)) is not None:
            raise why
        self._refuse_to_touch(session_id)
        for entry in entries:
            name = _name(entry)
            if name in self._positions:
                raise _duplicate(entry, entry, self._positions[name])
        self._positions.update((_name(entry), entry.position) for entry in entries)
        for entry in entries:
            generation = max(self._generations.get(entry.run_id, 0), entry.generation)
            self._generations[entry.run_id] = generation
        last = max(entries, key=lambda entry: entry.epoch)
        lease = Lease(
            session_id=session_id,
            run_id=last.run_id,
            worker_id="",
            epoch=max(last.epoch, session.holding.lease.epoch if session.holding else 0),
        )
        session.holding = _LeaseRow(lease=lease, deadline=None)
        session.entries = list(entries)
        self._sessions[session_id] = session
        self._rows.mark_changed(session_id)
        self._waiting.tell(session_id, len(entries))

    async def remove_session(self, session_id: str) -> bool:
        """See the contract. The last lease is remembered, since epochs only grow."""
        self._refuse_to_touch(session_id)
        session = self._sessions.get(session_id, _Session())
        if session.holding is not None:
            session.holding = evolve(session.holding, deadline=None)
        self._fresh_rows().keep_spending(session_id, day_of(self._clock.now()))
        removed, session.entries = session.entries, []
        self._rows.mark_changed(session_id)
        for entry in removed:
            self._positions.pop(_name(entry), None)
            self._generations.pop(entry.run_id, None)
        return bool(removed)

    async def forget_sessions(self, session_ids: Collection[str]) -> None:
        """See the contract."""
        for session_id in session_ids:
            session = self._sessions.get(session_id)
            if session is None or session.entries:
                continue
            if session.holding is None or session.holding.deadline is None:
                del self._sessions[session_id]

    async def forget_spender(self, user: str) -> None:
        """See the contract."""
        self._rows.forget_spender(user)

    async def put_blob(self, data: bytes) -> str:
        """Store a copy of the bytes, with the time."""
        digest = hashlib.sha256(data).hexdigest()
        self._blobs[digest] = _Blob(bytes(data), self._clock.now())
        return digest

    async def get_blob(self, digest: str) -> bytes:
        """The bytes of a digest.

        Raises:
            NotFoundError: `unknown-blob`.
        """
        try:
            return self._blobs[digest].data
        except KeyError:
            raise NotFoundError(
                f"The memory journal holds no blob {digest!r}; it keeps only what was put "
                "by this process.",
                code="unknown-blob",
            ) from None

    async def rewrite_session(
        self, session_id: str, change: Callable[[Fact], Fact] | None = None
    ) -> int:
        """See the contract. Without a change nothing is to be done."""
        session = self._sessions.get(session_id)
        if change is None or session is None:
            return 0
        self._refuse_to_touch(session_id)
        session.entries = changed_entries(session.entries, change)
        self._rows.mark_changed(session_id)
        return len(session.entries)

    async def collect(
        self,
        *,
        dry_run: bool = False,
        spare_s: float = SPARED_S,
        only: Collection[str] | None = None,
    ) -> BlobCollection:
        """See the contract."""
        named = self._named_blobs()
        latest = self._clock.now() - timedelta(seconds=spare_s)
        useless = {
            digest: len(blob.data)
            for digest, blob in self._blobs.items()
            if digest not in named and blob.put_at <= latest and (only is None or digest in only)
        }
        if not dry_run:
            for digest in useless:
                del self._blobs[digest]
        return BlobCollection(blobs=len(useless), bytes=sum(useless.values()))

    async def aclose(self) -> None:
        """End all waits; nothing is forgotten."""
        await self._waiting.aclose()

    def _named_blobs(self) -> set[str]:
        named: set[str] = set()
        rest = digests_in(
            # As Python writes them: a body here is never encoded, and may be any mapping.
            *(str(entry.fact) for each in self._sessions.values() for entry in each.entries)
        )
        while rest:
            named |= rest
            found = [self._blobs[digest].data for digest in rest if digest in self._blobs]
            rest = digests_in(*found) - named
        return named

    def _refuse_to_touch(self, session_id: str) -> None:
        """Refuse to change a session while a run of it is active."""
        session = self._sessions.get(session_id)
        if session is not None and session.holding is not None:
            _refuse_if_active(session.holding, None, None, self._clock.now())

    def _own_lease(self, lease: Lease) -> tuple[_Session, _LeaseRow]:
        session = self._sessions.get(lease.session_id)
        holding = session.holding if session else None
        if (
            session is None
            or holding is None
            or holding.deadline is None
            or holding.lease.epoch != lease.epoch
            or holding.lease.run_id != lease.run_id
        ):
            raise _fence_error(lease, holding)
        return session, holding


def _part(
    entries: Sequence[JournalEntry], after: int, until: int | None, *, is_backwards: bool
) -> Iterator[JournalEntry]:
    """The entries in this range, not copied; position n is at index n - 1."""
    first = max(after, 0)
    end = len(entries) if until is None else min(max(until, 0), len(entries))
    indexes = range(first, end)
    return (entries[index] for index in (reversed(indexes) if is_backwards else indexes))


def _is_over(session: _Session, run_id: str) -> bool:
    """Whether the session holds only this run, which has ended and does not wait for a person."""
    if not session.entries:
        return False
    first, last = session.entries[0], session.entries[-1]
    beginning, end = first.fact, last.fact
    return (
        (first.run_id, beginning.kind, last.run_id) == (run_id, "run", run_id)
        and not (isinstance(beginning, RunBeginning) and beginning.thread is not None)
        and isinstance(end, RunFinished)
        and end.status != RunStatus.NEEDS_DECISION
    )


def _blobs_of(fact: RunBeginning) -> Sequence[str]:
    """The digests that the start of a run names."""
    part = fact.part
    named = (fact.document, fact.recipes, part.pinned if part is not None else None)
    return [digest for digest in named if digest is not None]


def _name(entry: JournalEntry) -> _EntryName:
    fact = entry.fact
    return (entry.run_id, entry.generation, entry.key, fact.kind, fact.state)


def _refuse_if_active(
    held: _LeaseRow, run_id: str | None, worker_id: str | None, now: datetime
) -> None:
    if held.deadline is None or held.deadline <= now:
        return
    if (held.lease.run_id, held.lease.worker_id) == (run_id, worker_id):
        return
    raise LeaseHeldError(
        f"Session '{held.lease.session_id}' is busy: run '{held.lease.run_id}' is active on "
        f"worker '{held.lease.worker_id}' until {held.deadline.isoformat()}. {_when_free(run_id)}",
        worker_id=held.lease.worker_id,
        run_id=held.lease.run_id,
    )


def _when_free(run_id: str | None) -> str:
    who = "It can be changed" if run_id is None else f"Run '{run_id}' can start"
    return f"{who} when that run ends or its lease runs out."


def _fence_error(lease: Lease, holding: _LeaseRow | None) -> FencedError:
    if holding is None:
        state = "nobody holds it"
    elif holding.deadline is None:
        state = "its last lease was given back"
    else:
        owner = holding.lease
        state = f"worker '{owner.worker_id}' has it for run '{owner.run_id}' (epoch {owner.epoch})"
    return FencedError(
        f"Worker '{lease.worker_id}' may no longer write run '{lease.run_id}' of session "
        f"'{lease.session_id}' (epoch {lease.epoch}): {state}. Nothing was stored."
    )


def _duplicate(
    lease: Lease | JournalEntry, draft: EntryDraft | JournalEntry, position: int
) -> JournalError:
    return JournalError(
        f"Run '{lease.run_id}' (generation {lease.generation}) already has the entry "
        f"{draft.kind} '{draft.key}' {draft.state}, at position {position}. Nothing was stored.",
        code="duplicate-entry",
    )


# --- rows of runs and sessions in memory, ordered as in lists ------------------------------------


R = TypeVar("R", RunRow, SessionRow)
Place: TypeAlias = tuple[float, str]

_ROUNDING: Final = 1e-9
"""US dollars by which sums may differ."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class MemoryRows:
    """Rows are folded again only when they are read, so that appends stay fast."""

    def __init__(self) -> None:
        """Start without rows."""
        self._runs: _OrderedRows[RunRow] = _OrderedRows(_place_of_run)
        self._sessions: _OrderedRows[SessionRow] = _OrderedRows(_place_of_session)
        self._changed: dict[str, None] = {}
        self._runs_of: dict[str, tuple[str, ...]] = {}
        self._spent: dict[Spender, Spent] = {}
        self._removed: list[RunRow] = []
        """Rows of removed runs, without words, as long as budgets count them."""

    def mark_changed(self, session_id: str) -> None:
        """Mark a session whose entries changed: its rows are folded again at the next read."""
        self._changed[session_id] = None

    def refresh(self, entries_of: Callable[[str], Iterable[JournalEntry]]) -> None:
        """Fold the rows of the changed sessions again."""
        for session_id in self._changed:
            rows = folded(entries_of(session_id))
            self._sessions.remove(session_id)
            for run_id in self._runs_of.pop(session_id, ()):
                self._count(self._runs.remove(run_id), -1)
            for session in rows.sessions.values():
                self._sessions.add(session_id, session)
                self._runs_of[session_id] = tuple(rows.runs)
            for run in rows.runs.values():
                self._count(self._runs.remove(run.run_id), -1)
                self._runs.add(run.run_id, run)
                self._count(run)
        self._changed.clear()

    def keep_spending(self, session_id: str, today: int) -> None:
        """Keep what the runs of a session spent, before it is removed."""
        kept = (self._runs.get(run_id) for run_id in self._runs_of.get(session_id, ()))
        self._removed = [
            replace(row, session_id="", error_message=None, input_words=None, problem=None)
            for row in (*self._removed, *kept)
            if row is not None and any(row.spent) and row.day > today - MOST_DAYS
        ]

    def forget_spender(self, user: str) -> None:
        """See `Journal.forget_spender`."""
        self._removed = [
            replace(row, user=None) if row.user == user else row for row in self._removed
        ]

    def spent(self, spender: Spender, without: Collection[str]) -> Spent:
        """See `Journal.spent`."""
        by_others = (spender.recipe, spender.project, spender.schedule, spender.token)
        has_both = spender.session_id is not None and spender.day is not None
        if spender.days > 1 or has_both or any(each is not None for each in by_others):
            parts = (spender.of(row) for row in self._runs.part(None, None))
            total = Spent()
            for part in parts:
                total = total.plus(part)
        else:
            total = self._spent.get(spender, Spent())
        for row in self._runs.part(without, None):
            total = total.plus(spender.of(row), -1)
        for row in self._removed if spender.day is not None else ():
            total = total.plus(spender.of(row))
        return total

    def _count(self, row: RunRow | None, sign: int = 1) -> None:
        """Add the run to what its session, its user and its day spent."""
        if row is None or not any(row.spent):
            return
        spenders = [Spender(session_id=row.session_id), Spender(day=row.day)]
        if row.user is not None:
            spenders.append(Spender(day=row.day, user=row.user))
        for spender in spenders:
            total = self._spent.pop(spender, Spent()).plus(spender.of(row), sign)
            if total.tokens or total.cost_usd > _ROUNDING:
                self._spent[spender] = total

    def runs(
        self, wanted: RunFilter, limit: int | None, offset: int, after: RunRow | None
    ) -> list[RunRow]:
        """See `Journal.runs`."""
        some = self._runs.part(wanted.run_ids, after)
        return _page((row for row in some if wanted.fits(row)), limit, offset)

    def sessions(
        self, wanted: SessionFilter, limit: int | None, offset: int, after: SessionRow | None
    ) -> list[SessionRow]:
        """See `Journal.sessions`."""
        some = self._sessions.part(wanted.session_ids, after)
        return _page((row for row in some if wanted.fits(row)), limit, offset)


def _page(rows: Iterable[R], limit: int | None, offset: int) -> list[R]:
    first = min(max(offset, 0), sys.maxsize)
    end = None if limit is None else min(first + max(limit, 0), sys.maxsize)
    return list(islice(rows, first, end))


def _place_of_run(row: RunRow) -> Place:
    return -(row.started_at - _EPOCH).total_seconds(), row.run_id


def _place_of_session(row: SessionRow) -> Place:
    return -(row.updated_at - _EPOCH).total_seconds(), row.session_id


class _OrderedRows(Generic[R]):
    """Rows by name and in order; an insert moves pointers only."""

    def __init__(self, place_of: Callable[[R], Place]) -> None:
        """Start empty."""
        self._place_of: Callable[[R], Place] = place_of
        self._by_name: dict[str, R] = {}
        self._in_order: list[tuple[Place, R]] = []

    def add(self, name: str, row: R) -> None:
        """Add a row; it replaces one with the same name."""
        self.remove(name)
        self._by_name[name] = row
        insort(self._in_order, (self._place_of(row), row), key=_first)

    def get(self, name: str) -> R | None:
        """The row with that name; None: there is none."""
        return self._by_name.get(name)

    def remove(self, name: str) -> R | None:
        """Remove the row with that name, and return it; None: there is none."""
        row = self._by_name.pop(name, None)
        if row is not None:
            del self._in_order[bisect_left(self._in_order, self._place_of(row), key=_first)]
        return row

    def part(self, names: Iterable[str] | None, after: R | None) -> Iterable[R]:
        """The rows with these names (None: all), in order, after the row `after`."""
        order: Sequence[tuple[Place, R]] = self._in_order
        if names is not None:
            known = [self._by_name[name] for name in set(names) if name in self._by_name]
            order = sorted(((self._place_of(row), row) for row in known), key=_first)
        begin = 0 if after is None else bisect_right(order, self._place_of(after), key=_first)
        return (row for _, row in islice(order, begin, None))


def _first(pair: tuple[Place, R]) -> Place:
    return pair[0]
