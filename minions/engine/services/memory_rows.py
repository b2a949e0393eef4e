"""Rows of runs and sessions in memory, ordered as in lists."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Final, Generic, TypeAlias, TypeVar

from msgspec.structs import replace

from minions.contracts.journal.journal import JournalEntry
from minions.contracts.journal.run_row_folds import folded
from minions.contracts.journal.run_rows import (
    MOST_DAYS,
    RunFilter,
    RunRow,
    SessionFilter,
    SessionRow,
    Spender,
    Spent,
)

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
