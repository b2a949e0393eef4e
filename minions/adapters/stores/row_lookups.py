"""Look-ups of runs and sessions that two databases have in common: filters, pages, texts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence

from minions.adapters.stores.row_queries import Part
from minions.adapters.stores.stored_rows import found_by_text
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import (
    RunFilter,
    RunRow,
    SessionFilter,
    SessionRow,
    Spender,
    Spent,
)


class RowLookups(Journal):
    """A journal that keeps rows of runs and sessions in tables with an index for each filter.

    A text is in no index: it is looked for page by page.
    """

    async def runs(
        self,
        wanted: RunFilter | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: RunRow | None = None,
    ) -> Sequence[RunRow]:
        """Found by an index for each filter but `text`."""
        fit = wanted or RunFilter()

        async def page(behind: RunRow | None, most: int) -> Sequence[RunRow]:
            return await self._runs_page(fit, behind, Part(limit=most))

        if fit.text:
            most = None if limit is None else offset + limit
            return (await found_by_text(page, fit.has_text, after, most))[offset:]
        return await self._runs_page(fit, after, Part(limit=limit, offset=offset))

    async def count_runs(self, wanted: RunFilter | None = None) -> int:
        """Counted by the database; with a text, by looking at each."""
        if wanted is not None and wanted.text:
            return len(await self.runs(wanted))
        return await self._count_runs(wanted or RunFilter())

    async def sessions(
        self,
        wanted: SessionFilter | None = None,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: SessionRow | None = None,
    ) -> Sequence[SessionRow]:
        """Found by an index for each filter but `text`."""
        fit = wanted or SessionFilter()

        async def page(behind: SessionRow | None, most: int) -> Sequence[SessionRow]:
            return await self._sessions_page(fit, behind, Part(limit=most))

        if fit.text:
            most = None if limit is None else offset + limit
            return (await found_by_text(page, fit.has_text, after, most))[offset:]
        return await self._sessions_page(fit, after, Part(limit=limit, offset=offset))

    async def count_sessions(self, wanted: SessionFilter | None = None) -> int:
        """As runs are."""
        if wanted is not None and wanted.text:
            return len(await self.sessions(wanted))
        return await self._count_sessions(wanted or SessionFilter())

    @abstractmethod
    async def spent(self, spender: Spender, *, without: Collection[str] = ()) -> Spent:
        """Summed up by the database, from an index."""

    @abstractmethod
    async def is_ambiguous(self, start: str) -> bool:
        """Two of them are looked at, however many there are."""

    @abstractmethod
    async def _runs_page(
        self, wanted: RunFilter, after: RunRow | None, part: Part
    ) -> Sequence[RunRow]:
        """Runs that fit, but for their text, in rows that are right."""

    @abstractmethod
    async def _count_runs(self, wanted: RunFilter) -> int:
        """How many fit, but for their text."""

    @abstractmethod
    async def _sessions_page(
        self, wanted: SessionFilter, after: SessionRow | None, part: Part
    ) -> Sequence[SessionRow]:
        """Sessions that fit, but for their text, in rows that are right."""

    @abstractmethod
    async def _count_sessions(self, wanted: SessionFilter) -> int:
        """How many fit, but for their text."""
