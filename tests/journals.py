"""Journals for tests that stand in front of a real one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

from minions.contracts.journal.chain import StoredChain
from minions.contracts.journal.facts import Fact
from minions.contracts.journal.journal import (
    SPARED_S,
    BlobCollection,
    EntryDraft,
    HeldLease,
    Journal,
    JournalEntry,
    Lease,
    OpenedRun,
)
from minions.contracts.journal.run_rows import (
    RunFilter,
    RunRow,
    RunUse,
    SessionFilter,
    SessionRow,
    Spender,
    Spent,
    StateTotal,
    UseGroup,
)

__all__ = ["JournalInFront"]

T = TypeVar("T")


class JournalInFront(Journal):
    """Hands every operation on to a real journal; a subclass says what surrounds it."""

    def __init__(self, real: Journal) -> None:
        self._real = real
        self.groups_appends = real.groups_appends
        self.stores_together = real.stores_together

    async def through(self, operation: str, work: Callable[[], Awaitable[T]]) -> T:
        """Carry it out; `operation` is the method's name."""
        return await work()

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
        return await self.through(
            "acquire",
            lambda: self._real.acquire(
                session_id,
                run_id,
                worker_id,
                ttl_s,
                next_generation=next_generation,
                takes_over=takes_over,
            ),
        )

    async def renew(self, lease: Lease, ttl_s: float) -> None:
        await self.through("renew", lambda: self._real.renew(lease, ttl_s))

    async def release(self, lease: Lease) -> None:
        await self.through("release", lambda: self._real.release(lease))

    async def held_leases(self) -> Sequence[HeldLease]:
        return await self.through("held_leases", self._real.held_leases)

    async def append(self, lease: Lease, draft: EntryDraft) -> JournalEntry:
        return await self.through("append", lambda: self._real.append(lease, draft))

    async def append_all(
        self, lease: Lease, drafts: Sequence[EntryDraft]
    ) -> Sequence[JournalEntry]:
        return await self.through("append_all", lambda: self._real.append_all(lease, drafts))

    async def open_run(
        self,
        session_id: str,
        run_id: str,
        worker_id: str,
        ttl_s: float,
        drafts: Sequence[EntryDraft],
        *,
        next_generation: bool = False,
        takes_over: str | None = None,
    ) -> OpenedRun:
        return await self.through(
            "open_run",
            lambda: self._real.open_run(
                session_id,
                run_id,
                worker_id,
                ttl_s,
                drafts,
                next_generation=next_generation,
                takes_over=takes_over,
            ),
        )

    async def close_run(self, lease: Lease, drafts: Sequence[EntryDraft]) -> Sequence[JournalEntry]:
        return await self.through("close_run", lambda: self._real.close_run(lease, drafts))

    def prepared(self, draft: EntryDraft) -> EntryDraft:
        return self._real.prepared(draft)

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
        return await self.through(
            "entries",
            lambda: self._real.entries(
                session_id,
                run_id=run_id,
                after=after,
                until=until,
                kinds=kinds,
                limit=limit,
                newest_first=newest_first,
                with_damaged=with_damaged,
            ),
        )

    async def runs(
        self,
        wanted: RunFilter | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: RunRow | None = None,
    ) -> Sequence[RunRow]:
        return await self.through(
            "runs", lambda: self._real.runs(wanted, limit=limit, offset=offset, after=after)
        )

    async def count_runs(
        self, wanted: RunFilter | None = None, *, at_most: int | None = None
    ) -> int:
        return await self.through(
            "count_runs", lambda: self._real.count_runs(wanted, at_most=at_most)
        )

    async def sessions(
        self,
        wanted: SessionFilter | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: SessionRow | None = None,
    ) -> Sequence[SessionRow]:
        return await self.through(
            "sessions",
            lambda: self._real.sessions(wanted, limit=limit, offset=offset, after=after),
        )

    async def is_ambiguous(self, start: str) -> bool:
        return await self.through("is_ambiguous", lambda: self._real.is_ambiguous(start))

    async def spent(self, spender: Spender, *, without: Collection[str] = ()) -> Spent:
        return await self.through("spent", lambda: self._real.spent(spender, without=without))

    async def totals(self, wanted: RunFilter | None = None) -> Mapping[str, StateTotal]:
        return await self.through("totals", lambda: self._real.totals(wanted))

    async def uses(self, wanted: RunFilter, by: UseGroup, *, limit: int) -> Sequence[RunUse]:
        return await self.through("uses", lambda: self._real.uses(wanted, by, limit=limit))

    async def count_sessions(
        self, wanted: SessionFilter | None = None, *, at_most: int | None = None
    ) -> int:
        return await self.through(
            "count_sessions", lambda: self._real.count_sessions(wanted, at_most=at_most)
        )

    async def wait(self, session_id: str, after: int, timeout_s: float) -> bool:
        return await self.through("wait", lambda: self._real.wait(session_id, after, timeout_s))

    async def adopt(self, session_id: str, entries: Sequence[JournalEntry]) -> None:
        await self.through("adopt", lambda: self._real.adopt(session_id, entries))

    async def remove_session(self, session_id: str) -> bool:
        return await self.through("remove_session", lambda: self._real.remove_session(session_id))

    async def stored_chain(self, session_id: str) -> StoredChain:
        return await self.through("stored_chain", lambda: self._real.stored_chain(session_id))

    async def chained_sessions(self) -> Sequence[str]:
        return await self.through("chained_sessions", self._real.chained_sessions)

    async def rewrite_session(
        self, session_id: str, change: Callable[[Fact], Fact] | None = None
    ) -> int:
        return await self.through(
            "rewrite_session", lambda: self._real.rewrite_session(session_id, change)
        )

    async def rewrite_blobs(self) -> int:
        return await self.through("rewrite_blobs", self._real.rewrite_blobs)

    async def forget_sessions(self, session_ids: Collection[str]) -> None:
        await self.through("forget_sessions", lambda: self._real.forget_sessions(session_ids))

    async def forget_spender(self, user: str) -> None:
        await self.through("forget_spender", lambda: self._real.forget_spender(user))

    async def erase(self) -> bool:
        return await self.through("erase", self._real.erase)

    async def collect(
        self,
        *,
        dry_run: bool = False,
        spare_s: float = SPARED_S,
        only: Collection[str] | None = None,
    ) -> BlobCollection:
        return await self.through(
            "collect", lambda: self._real.collect(dry_run=dry_run, spare_s=spare_s, only=only)
        )

    async def put_blob(self, data: bytes) -> str:
        return await self.through("put_blob", lambda: self._real.put_blob(data))

    async def get_blob(self, digest: str) -> bytes:
        return await self.through("get_blob", lambda: self._real.get_blob(digest))

    async def aclose(self) -> None:
        await self._real.aclose()
