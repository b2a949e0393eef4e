"""The append-only log of facts: the one truth about every run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from attrs import frozen
from msgspec import Struct

from minions.contracts.facts import Fact, UnreadableFact, body_of
from minions.contracts.json_values import JsonValue

if TYPE_CHECKING:
    from minions.contracts.run_rows import RunFilter, RunRow, SessionFilter, SessionRow

__all__ = [
    "SPARED_S",
    "BlobCollection",
    "EntryDraft",
    "HeldLease",
    "Journal",
    "JournalEntry",
    "Lease",
]

SPARED_S: Final = 3_600.0
"""Seconds. A run puts a blob before the fact that names it: a young one may be wanted still."""


class EntryDraft(Struct, frozen=True, kw_only=True, gc=False):
    """A fact before it is stored."""

    key: str
    """Path of the work; with kind and state unique per run and generation."""
    fact: Fact

    @property
    def kind(self) -> str:
        """`session`, `run`, `step`, `model_call`, `tool_call`, `message` and so on."""
        return self.fact.kind

    @property
    def state(self) -> str:
        """`started`, `finished`, `failed`, `skipped` and so on."""
        return self.fact.state


class JournalEntry(Struct, frozen=True, kw_only=True, gc=False):
    """A stored fact. Never changes."""

    session_id: str
    position: int
    """Gapless from 1 in its session."""
    run_id: str
    generation: int
    """From 1; a retry starts the next and hides what it supersedes."""
    key: str
    fact: Fact | UnreadableFact
    epoch: int
    """Of the lease under which it was written."""
    at: datetime
    """UTC."""

    @property
    def kind(self) -> str:
        """As of its draft."""
        return self.fact.kind

    @property
    def state(self) -> str:
        """As of its draft."""
        return self.fact.state

    @property
    def body(self) -> Mapping[str, JsonValue]:
        """The fact as JSON, for views; made at each look."""
        return body_of(self.fact)


@frozen(kw_only=True)
class Lease:
    """The right to write one run."""

    session_id: str
    run_id: str
    worker_id: str
    epoch: int
    """Grows with every acquisition; a stale one is refused."""
    generation: int = 1
    """What is written under this lease belongs to it."""


@frozen(kw_only=True)
class HeldLease:
    """A lease that was not given back."""

    lease: Lease
    has_expired: bool
    """Whether anybody may take it."""


@frozen(kw_only=True)
class BlobCollection:
    """Blobs that no fact names."""

    blobs: int
    bytes: int
    """As they are stored."""


class Journal(ABC):
    """Stores facts in order. One run of a session is active at a time.

    Cost and bytes of an append do not grow with the length of the run.
    """

    @abstractmethod
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
        """Become the writer of this run; steals a lease that has run out.

        The lease's generation is the newest in which the run has entries; 1 where it has none.

        Args:
            next_generation: Begin one more, in which keys are free again.
            takes_over: A worker that is known to be dead: its lease is stolen before its time.
        Raises:
            LeaseHeldError: Another run of the session, or another worker of this run, is active.
            JournalError: The store refuses.
        """

    @abstractmethod
    async def renew(self, lease: Lease, ttl_s: float) -> None:
        """Keep the lease.

        Raises:
            FencedError: Another worker has it now.
        """

    @abstractmethod
    async def release(self, lease: Lease) -> None:
        """Give the lease back; a stale one is ignored."""

    @abstractmethod
    async def held_leases(self) -> Sequence[HeldLease]:
        """Leases that were not given back, in no particular order.

        Whoever holds one is at work, or died, or lost the store. Costs what is held, not what was
        ever recorded.
        """

    @abstractmethod
    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        """Store one fact; when this returns it survives the death of the process.

        Raises:
            FencedError: The lease's epoch is stale; nothing was stored.
            JournalError: The key is taken, or the store refuses; nothing was stored.
        """

    @abstractmethod
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
        """Facts in order of session and position; None means all.

        Args:
            after: Only positions greater than this.
            until: Only positions up to this.
            limit: At most so many; they are the first in the order that is asked for.
            newest_first: That order backwards. With a limit, the last facts of one session cost
                the same however long it is.
            with_damaged: Also give entries that hold an `UnreadableFact`: for lists, in which one
                damaged run must not hide the others.
        Raises:
            JournalError: The store cannot be read, or (`corrupt-entry`) an entry cannot.
        """

    @abstractmethod
    async def runs(
        self,
        wanted: RunFilter | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: RunRow | None = None,
    ) -> Sequence[RunRow]:
        """What lists show of runs, the newest first; of those that began at once, by their ids.

        Kept with the entries, in the same transaction: no entry is read for it. It costs what it
        gives, not what was ever recorded; with a `text`, what is looked through.

        Args:
            wanted: None: all.
            limit: At most so many.
            offset: So many of the first are left out.
            after: Only those behind this one in the list, whether it is still there or not.
        """

    @abstractmethod
    async def count_runs(self, wanted: RunFilter | None = None) -> int:
        """How many there are."""

    @abstractmethod
    async def sessions(
        self,
        wanted: SessionFilter | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: SessionRow | None = None,
    ) -> Sequence[SessionRow]:
        """What lists show of sessions; those first in which a run began or ended last.

        A session in which steps were stored, and that was neither opened nor ran, is in no list.

        Args:
            wanted: None: all.
            limit: At most so many.
            offset: So many of the first are left out.
            after: Only those behind this one in the list, whether it is still there or not.
        """

    @abstractmethod
    async def count_sessions(self, wanted: SessionFilter | None = None) -> int:
        """How many there are."""

    @abstractmethod
    async def wait(self, session_id: str, after: int, timeout_s: float) -> bool:
        """Whether the session has a fact after that position: at once, or as soon as it has.

        Many may wait at the same time; it costs little.

        Returns:
            False when that time is over, or the journal was closed meanwhile.
        Raises:
            JournalError: The store cannot be read.
        """

    @abstractmethod
    async def adopt(self, session_id: str, entries: Sequence[JournalEntry]) -> None:
        """Store all facts of a session as they are, each at its position, or none of them.

        Args:
            entries: Of that session alone, gapless from position 1; those of another journal.
        Raises:
            JournalError: `session-exists`: it has facts here; `duplicate-entry`: one of its runs
                is here in another session; `bad-entries`: they are not what is expected; or the
                store refuses.
            LeaseHeldError: A run of it is about to begin.
        """

    @abstractmethod
    async def remove_session(self, session_id: str) -> bool:
        """Forget all its facts; False where there were none. Its blobs stay, see `collect`.

        Raises:
            LeaseHeldError: A run of it is active; nothing was removed.
        """

    @abstractmethod
    async def collect(self, *, dry_run: bool = False, spare_s: float = SPARED_S) -> BlobCollection:
        """Forget the blobs that no fact names, itself or in a blob that it names.

        Args:
            dry_run: Only count them.
            spare_s: What was put within that time stays.
        """

    async def compact(self) -> int:
        """Give the room of what was removed back to the disk; how many bytes. 0: nothing to do."""
        return 0

    @abstractmethod
    async def put_blob(self, data: bytes) -> str:
        """Store bytes under their SHA-256, once; gives the hash in hex."""

    @abstractmethod
    async def get_blob(self, digest: str) -> bytes:
        """The bytes of that hash.

        Raises:
            NotFoundError: There are none.
        """

    async def aclose(self) -> None:
        """Give back what is held open."""
