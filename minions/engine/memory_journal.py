"""The journal of a process that keeps nothing: facts as objects, gone with the process."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from attrs import evolve, field, frozen, mutable

from minions.contracts.errors import FencedError, JournalError, LeaseHeldError, NotFoundError
from minions.contracts.journal import EntryDraft, Journal, JournalEntry, Lease
from minions.contracts.runtime import Clock

__all__ = ["MemoryJournal"]

_EntryName = tuple[str, int, str, str, str]


@frozen(kw_only=True)
class _Holding:
    """Who has, or last had, a session."""

    lease: Lease
    deadline: datetime | None
    """None: given back."""


@mutable
class _Session:
    """All facts of one session; position n is at index n - 1."""

    entries: list[JournalEntry] = field(factory=list)
    holding: _Holding | None = None


class MemoryJournal(Journal):
    """Keeps objects as they are, unencoded. No lock: one event loop owns it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        self._positions: dict[_EntryName, int] = {}
        self._generations: dict[str, int] = {}
        self._blobs: dict[str, bytes] = {}

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
        """As the contract says; the same worker may acquire its own run again."""
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
        session.holding = _Holding(lease=lease, deadline=now + timedelta(seconds=ttl_s))
        return lease

    async def renew(self, lease: Lease, ttl_s: float) -> None:
        """As the contract says; a lease that ran out and that nobody took is kept."""
        session, holding = self._owned(lease)
        deadline = self._clock.now() + timedelta(seconds=ttl_s)
        session.holding = evolve(holding, deadline=deadline)

    async def release(self, lease: Lease) -> None:
        """Let another run of the session begin."""
        session = self._sessions.get(lease.session_id)
        if session and session.holding and session.holding.lease.epoch == lease.epoch:
            session.holding = evolve(session.holding, deadline=None)

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        """Keep the draft's body itself: do not change it afterwards."""
        entries = self._owned(lease)[0].entries
        name = (lease.run_id, lease.generation, draft.key, draft.kind, draft.state)
        position = len(entries) + 1
        taken = self._positions.setdefault(name, position)
        if taken != position:
            raise _duplicate(lease, draft, taken)
        entry = _entry(lease, draft, position, self._clock.now())
        entries.append(entry)
        self._generations[lease.run_id] = lease.generation
        return entry

    async def entries(
        self,
        session_id: str | None = None,
        *,
        run_id: str | None = None,
        after: int = 0,
        kinds: Collection[str] | None = None,
    ) -> Sequence[JournalEntry]:
        """The stored objects themselves."""
        ids = sorted(self._sessions) if session_id is None else [session_id]
        return [
            entry
            for each in ids
            if (session := self._sessions.get(each)) is not None
            for entry in session.entries[max(after, 0) :]
            if (run_id is None or entry.run_id == run_id) and (kinds is None or entry.kind in kinds)
        ]

    async def put_blob(self, data: bytes) -> str:
        """Keep the bytes."""
        digest = hashlib.sha256(data).hexdigest()
        self._blobs.setdefault(digest, bytes(data))
        return digest

    async def get_blob(self, digest: str) -> bytes:
        """The bytes as they were put."""
        try:
            return self._blobs[digest]
        except KeyError:
            raise NotFoundError(
                f"The memory journal holds no blob {digest!r}; it keeps only what was put "
                "by this process.",
                code="unknown-blob",
            ) from None

    def _owned(self, lease: Lease) -> tuple[_Session, _Holding]:
        session = self._sessions.get(lease.session_id)
        holding = session.holding if session else None
        if (
            session is None
            or holding is None
            or holding.deadline is None
            or holding.lease.epoch != lease.epoch
            or holding.lease.run_id != lease.run_id
        ):
            raise _fenced(lease, holding)
        return session, holding


def _refuse_if_active(held: _Holding, run_id: str, worker_id: str, now: datetime) -> None:
    if held.deadline is None or held.deadline <= now:
        return
    if (held.lease.run_id, held.lease.worker_id) == (run_id, worker_id):
        return
    raise LeaseHeldError(
        f"Session '{held.lease.session_id}' is busy: run '{held.lease.run_id}' is active on "
        f"worker '{held.lease.worker_id}' until {held.deadline.isoformat()}. "
        f"Run '{run_id}' can start when that run ends or its lease runs out.",
        worker_id=held.lease.worker_id,
    )


def _fenced(lease: Lease, holding: _Holding | None) -> FencedError:
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


def _duplicate(lease: Lease, draft: EntryDraft, position: int) -> JournalError:
    return JournalError(
        f"Run '{lease.run_id}' (generation {lease.generation}) already has the entry "
        f"{draft.kind} '{draft.key}' {draft.state}, at position {position}. Nothing was stored.",
        code="duplicate-entry",
    )


def _entry(lease: Lease, draft: EntryDraft, position: int, at: datetime) -> JournalEntry:
    return JournalEntry(
        session_id=lease.session_id,
        position=position,
        run_id=lease.run_id,
        generation=lease.generation,
        key=draft.key,
        kind=draft.kind,
        state=draft.state,
        body=draft.body,
        epoch=lease.epoch,
        at=at,
    )
