"""The append-only log of facts: the one truth about every run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from attrs import field, frozen

from minions.contracts.json_values import JsonValue

__all__ = ["EntryDraft", "Journal", "JournalEntry", "Lease"]


@frozen(kw_only=True)
class EntryDraft:
    """A fact before it is stored."""

    kind: str
    """`run`, `step`, `conversation`, `model_call`, `tool_call`, `message`, `rollback` or
    `warning`."""
    key: str
    """Path of the work; with kind and state unique per run and generation."""
    state: str
    """`started`, `finished`, `failed`, `skipped`, `interrupted` …"""
    body: Mapping[str, JsonValue] = field(factory=dict)


@frozen(kw_only=True)
class JournalEntry:
    """A stored fact. Never changes."""

    session_id: str
    position: int
    """Gapless from 1 in its session."""
    run_id: str
    generation: int
    """From 1; a retry starts the next and hides what it supersedes."""
    key: str
    kind: str
    state: str
    body: Mapping[str, JsonValue]
    epoch: int
    """Of the lease under which it was written."""
    at: datetime
    """UTC."""


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
        kinds: Collection[str] | None = None,
    ) -> Sequence[JournalEntry]:
        """Facts in order of session and position; None means all.

        Args:
            after: Only positions greater than this.
        """

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
