"""What runs cost, used, how long they took and how many failed: over time, by recipe, model, user
or project.

A fold over the rows of runs that lists show; no entry is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from attrs import evolve, field, frozen

from minions.contracts.executions import RunState
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.runtime import BlockingCalls
from minions.engine.services.event_loop import beside

_MOST_RUNS: Final = 10_000
"""Rows that one look reads, the newest: some 0.2 s."""
_PAGE: Final = 2_000
_MOST_GROUPS: Final = 20
_OTHERS: Final = "other"
_BAD: Final = frozenset((RunState.FAILED, RunState.LIMIT_REACHED, RunState.REJECTED))
"""States that count as a failure."""


class Grouping(StrEnum):
    """By what figures are told apart."""

    RECIPE = "recipe"
    MODEL = "model"
    USER = "user"
    PROJECT = "project"


_GROUP_OF: Final[Mapping[Grouping, Callable[[RunRow], str | None]]] = {
    Grouping.RECIPE: lambda row: row.recipe,
    Grouping.MODEL: lambda row: row.model,
    Grouping.USER: lambda row: row.user,
    Grouping.PROJECT: lambda row: row.project,
}


class Period(StrEnum):
    """The time of which there are figures, up to now."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


_PARTS: Final[Mapping[Period, tuple[int, timedelta]]] = {
    Period.DAY: (24, timedelta(hours=1)),
    Period.WEEK: (28, timedelta(hours=6)),
    Period.MONTH: (30, timedelta(days=1)),
}
"""How many parts of which length each period has."""


@frozen(kw_only=True)
class Figures:
    """What some runs used, as far as their ends say it."""

    runs: int = 0
    ended: int = 0
    """Those that have ended."""
    failed: int = 0
    """Those that failed, reached a limit, or were rejected."""
    tokens: int = 0
    cost_usd: float = 0.0
    """US dollars, as far as they are known."""
    unpriced: int = 0
    """Runs with tokens whose cost is not known."""
    median_ms: float | None = None
    """The time from start to end of half of the ended runs at most; None: none has ended."""
    slow_ms: float | None = None
    """That of 95 % of them at most."""


@frozen(kw_only=True)
class FigureGroup:
    """The figures of a recipe, model, user or project, and of each part of the period."""

    name: str
    total: Figures
    parts: Sequence[Figures]


@frozen(kw_only=True)
class RunFigures:
    """The figures of a period: of all runs together, and in groups."""

    since: datetime
    """When the period and its first part begin."""
    part_s: float
    """Seconds of each part."""
    counted: int
    """The runs that were counted, by when they started."""
    counted_since: datetime | None = None
    """Earlier runs of the period were not counted, as there are too many; None: all were."""
    all: FigureGroup
    groups: Sequence[FigureGroup] = field(factory=tuple)
    """The dearest first; behind the first twenty all others are together, `other`."""


async def read_figures(
    journal: Journal,
    period: Period,
    by: Grouping,
    now: datetime,
    wanted: RunFilter,
    threads: BlockingCalls | None = None,
) -> RunFigures:
    """The figures of the runs that started in a period; of more than 10,000 those of the newest.

    Args:
        wanted: Only runs of that recipe, user and project.
        threads: Where many rows are counted; None: at once.
    Raises:
        JournalError: The journal cannot be read.
    """
    count, length = _PARTS[period]
    since = _first_part(now, count, length)
    rows, after = list[RunRow](), None
    wanted = RunFilter(recipe=wanted.recipe, user=wanted.user, project=wanted.project, since=since)
    is_whole = False
    while len(rows) < _MOST_RUNS and not is_whole:
        page = await journal.runs(wanted, limit=_PAGE, after=after)
        rows += page
        is_whole = len(page) < _PAGE
        after = rows[-1] if rows else None
    counted_since = None if is_whole else rows[-1].started_at
    figures = await beside(threads, len(rows) > _PAGE, lambda: _fold(rows, since, period, by))
    return evolve(figures, counted_since=counted_since)


def _fold(rows: Sequence[RunRow], since: datetime, period: Period, by: Grouping) -> RunFigures:
    count, length = _PARTS[period]
    by_name: dict[str, list[RunRow]] = {}
    for row in rows:
        by_name.setdefault(_GROUP_OF[by](row) or f"no {by.value}", []).append(row)

    def group(name: str, members: Iterable[RunRow]) -> FigureGroup:
        parts: list[list[RunRow]] = [[] for _ in range(count)]
        for row in members:
            at = int((row.started_at - since) / length)
            parts[min(max(at, 0), count - 1)].append(row)  # one may have begun just now
        whole = [row for part in parts for row in part]
        return FigureGroup(name=name, total=_figures(whole), parts=tuple(map(_figures, parts)))

    groups = [group(name, members) for name, members in by_name.items()]
    groups.sort(key=lambda each: (-each.total.cost_usd, -each.total.tokens, each.name))
    if len(groups) > _MOST_GROUPS + 1:
        names = [each.name for each in groups[_MOST_GROUPS:]]
        others = group(_OTHERS, (row for name in names for row in by_name[name]))
        groups = [*groups[:_MOST_GROUPS], others]
    return RunFigures(
        since=since,
        part_s=length.total_seconds(),
        counted=len(rows),
        all=group("all", rows),
        groups=tuple(groups),
    )


def _first_part(now: datetime, count: int, length: timedelta) -> datetime:
    """When the first of the parts begins, the last of which has `now` in it: on a full part of the
    day in UTC.
    """
    now = now.astimezone(UTC)
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return day + ((now - day) // length + 1 - count) * length


def _figures(rows: Sequence[RunRow]) -> Figures:
    """The figures of these runs together."""
    tokens = unpriced = failed = 0
    cost, times = 0.0, list[float]()
    for row in rows:
        own = int(row.usage.get("total_tokens") or 0)
        tokens += own
        usd = row.usage.get("cost_usd")
        cost += usd or 0.0
        unpriced += bool(own) and usd is None
        failed += row.status in _BAD
        if row.ended_at is not None:
            times.append((row.ended_at - row.started_at).total_seconds() * 1000)
    times.sort()
    return Figures(
        runs=len(rows),
        ended=len(times),
        failed=failed,
        tokens=tokens,
        cost_usd=cost,
        unpriced=unpriced,
        median_ms=_at_share(times, 0.5),
        slow_ms=_at_share(times, 0.95),
    )


def _at_share(times: Sequence[float], share: float) -> float | None:
    """The least of these sorted times that this share of them does not exceed."""
    return times[max(0, math.ceil(len(times) * share) - 1)] if times else None
