"""What runs cost, used, how long they took and how many failed: over time, by recipe, model, user
or project.

A fold over the rows of runs that lists show; no entry is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from attrs import evolve, field, frozen

from minions.contracts.executions import RunState
from minions.contracts.journal.journal import Journal
from minions.contracts.journal.run_rows import RunFilter, RunUse, micros, time_at
from minions.contracts.runtime import BlockingCalls
from minions.engine.services.event_loop import beside

_MOST_RUNS: Final = 10_000
"""Runs that are counted, the newest."""
_FEW: Final = 2_000
"""Runs that are added up at once: some 5 ms."""
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
    wanted = RunFilter(recipe=wanted.recipe, user=wanted.user, project=wanted.project, since=since)
    uses = await journal.uses(wanted, by.value, limit=_MOST_RUNS + 1)
    counted = uses[:_MOST_RUNS]
    counted_since = None if len(uses) <= _MOST_RUNS else time_at(counted[-1].started_us)
    figures = await beside(
        threads, len(counted) > _FEW, lambda: _add_up(counted, since, period, by)
    )
    return evolve(figures, counted_since=counted_since)


def _add_up(uses: Sequence[RunUse], since: datetime, period: Period, by: Grouping) -> RunFigures:
    count, length = _PARTS[period]
    since_us, length_us = micros(since), length // timedelta(microseconds=1)
    everything = [_Sum() for _ in range(count)]
    by_name: dict[str | None, list[_Sum]] = {}
    for use in uses:
        group, status, started_us, took_us, tokens, cost_usd = use
        if (parts := by_name.get(group)) is None:
            parts = by_name[group] = [_Sum() for _ in range(count)]
        # One may have begun just now.
        part = parts[min(max((started_us - since_us) // length_us, 0), count - 1)]
        part.runs += 1
        part.tokens += tokens
        if status in _BAD:
            part.failed += 1
        if cost_usd is not None:
            part.cost_usd += cost_usd
        elif tokens:
            part.unpriced += 1
        if took_us is not None:
            part.times_us.append(took_us)
    none = f"no {by.value}"
    named: dict[str, list[_Sum]] = {}
    for name, parts in by_name.items():
        _plus(everything, parts)
        _plus(named.setdefault(name or none, [_Sum() for _ in range(count)]), parts)
    groups = [_group(name, parts) for name, parts in named.items()]
    groups.sort(key=lambda each: (-each.total.cost_usd, -each.total.tokens, each.name))
    if len(groups) > _MOST_GROUPS + 1:
        others = [_Sum() for _ in range(count)]
        for each in groups[_MOST_GROUPS:]:
            _plus(others, named[each.name])
        groups = [*groups[:_MOST_GROUPS], _group(_OTHERS, others)]
    return RunFigures(
        since=since,
        part_s=length.total_seconds(),
        counted=len(uses),
        all=_group("all", everything),
        groups=tuple(groups),
    )


def _first_part(now: datetime, count: int, length: timedelta) -> datetime:
    """When the first of the parts begins, the last of which has `now` in it: on a full part of the
    day in UTC.
    """
    now = now.astimezone(UTC)
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    return day + ((now - day) // length + 1 - count) * length


class _Sum:
    """What some runs used together."""

    __slots__ = ("cost_usd", "failed", "runs", "times_us", "tokens", "unpriced")

    def __init__(self) -> None:
        self.runs = self.failed = self.tokens = self.unpriced = 0
        self.cost_usd = 0.0
        self.times_us: list[int] = []
        """Of those that have ended, from start to end."""

    def plus(self, other: _Sum) -> None:
        """All runs of the other, too."""
        self.runs += other.runs
        self.failed += other.failed
        self.tokens += other.tokens
        self.unpriced += other.unpriced
        self.cost_usd += other.cost_usd
        self.times_us += other.times_us

    def figures(self) -> Figures:
        """The figures of these runs."""
        times = self.times_us
        times.sort()
        return Figures(
            runs=self.runs,
            ended=len(times),
            failed=self.failed,
            tokens=self.tokens,
            cost_usd=self.cost_usd,
            unpriced=self.unpriced,
            median_ms=_at_share(times, 0.5),
            slow_ms=_at_share(times, 0.95),
        )


def _plus(sums: Sequence[_Sum], others: Sequence[_Sum]) -> None:
    for own, other in zip(sums, others, strict=True):
        own.plus(other)


def _group(name: str, parts: Sequence[_Sum]) -> FigureGroup:
    figures = tuple(each.figures() for each in parts)
    total = _Sum()
    for each in parts:
        total.plus(each)  # times that are in order by now
    return FigureGroup(name=name, total=total.figures(), parts=figures)


def _at_share(times_us: Sequence[int], share: float) -> float | None:
    """The least of these sorted times that this share of them does not exceed, in milliseconds."""
    return times_us[max(0, math.ceil(len(times_us) * share) - 1)] / 1000 if times_us else None
