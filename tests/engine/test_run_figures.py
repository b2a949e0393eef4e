"""Figures of runs over time, by recipe, model, user and project."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from attrs import evolve

from builders import draft_of
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.runtime import Clock
from minions.data.json_values import JsonValue
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.views.run_figures import Figures, Grouping, Period, RunFigures, read_figures

NOW = datetime(2026, 1, 31, 12, 30, tzinfo=UTC)


class Recorded(Clock):
    """A journal whose clock a test sets."""

    def __init__(self) -> None:
        self.at = NOW
        self.journal = MemoryJournal(self)
        self.count = 0

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()

    async def run(
        self,
        recipe: str,
        ago: timedelta,
        *,
        took_s: float = 1,
        status: str = "completed",
        model: str | None = "m",
        user: str | None = None,
        project: str | None = None,
        **usage: JsonValue,
    ) -> None:
        self.count += 1
        self.at = NOW - ago
        name = f"{self.count:04}"
        lease = await self.journal.acquire(f"ses_{name}", f"run_{name}", "w", ttl_s=9_999)
        said = {"recipe": recipe, "model": model, "user": user, "project": project}
        started: dict[str, JsonValue] = {name: each for name, each in said.items() if each}
        await self.journal.append(lease, draft_of("run", "started", started, key="run"))
        self.at += timedelta(seconds=took_s)
        ended: dict[str, JsonValue] = {"status": status, "usage": usage}
        await self.journal.append(lease, draft_of("run", "finished", ended, key="run"))
        await self.journal.release(lease)

    async def figures(
        self,
        period: Period = Period.DAY,
        by: Grouping = Grouping.RECIPE,
        wanted: RunFilter | None = None,
    ) -> RunFigures:
        return await read_figures(self.journal, period, by, NOW, wanted or RunFilter())


HOUR = timedelta(hours=1)


async def test_runs_are_told_apart_by_recipe_the_dearest_first() -> None:
    made = Recorded()
    await made.run("cheap", HOUR, total_tokens=10, cost_usd=0.01, took_s=2)
    await made.run("dear", HOUR, total_tokens=20, cost_usd=1.5, status="failed", took_s=4)
    await made.run("dear", 2 * HOUR, total_tokens=30, cost_usd=0.5, took_s=6)
    found = await made.figures()
    assert [(each.name, each.total) for each in found.groups] == [
        ("dear", Figures(runs=2, ended=2, failed=1, tokens=50, cost_usd=2.0, median_ms=4000.0,
                         slow_ms=6000.0)),
        ("cheap", Figures(runs=1, ended=1, tokens=10, cost_usd=0.01, median_ms=2000.0,
                          slow_ms=2000.0)),
    ]  # fmt: skip
    assert found.all.total.runs == found.counted == 3
    assert found.all.total.cost_usd == pytest.approx(2.01)


async def test_each_part_of_the_period_has_its_own_figures() -> None:
    made = Recorded()
    await made.run("a", timedelta(minutes=10), total_tokens=1, cost_usd=0.1)
    await made.run("a", HOUR, total_tokens=2, cost_usd=0.2)
    await made.run("a", 23 * HOUR, total_tokens=4, cost_usd=0.4)
    await made.run("a", 24 * HOUR, total_tokens=8, cost_usd=0.8)  # before the first part
    found = await made.figures()
    assert found.since == datetime(2026, 1, 30, 13, tzinfo=UTC)
    assert [each.tokens for each in found.all.parts] == [4, *[0] * 21, 2, 1]
    month = await made.figures(Period.MONTH)
    assert (len(month.all.parts), month.part_s) == (30, 86_400)
    assert [each.tokens for each in month.all.parts[-2:]] == [12, 3]
    week = await made.figures(Period.WEEK)
    assert (len(week.all.parts), week.since.hour) == (28, 18)


async def test_unknown_costs_are_counted_and_not_taken_for_nothing() -> None:
    made = Recorded()
    await made.run("a", HOUR, total_tokens=5, cost_usd=None)
    await made.run("a", HOUR)
    found = await made.figures()
    assert (found.all.total.unpriced, found.all.total.cost_usd) == (1, 0.0)


async def test_figures_are_told_apart_by_model_and_filtered() -> None:
    made = Recorded()
    await made.run("a", HOUR, model="openai/x")
    await made.run("b", HOUR, model=None)
    found = await made.figures(by=Grouping.MODEL)
    assert sorted(each.name for each in found.groups) == ["no model", "openai/x"]
    only = await made.figures(wanted=RunFilter(recipe="a"))
    assert [each.name for each in only.groups] == ["a"]


async def test_figures_are_told_apart_by_user_and_project() -> None:
    made = Recorded()
    await made.run("a", HOUR, user="ann", project="/shop", total_tokens=1, cost_usd=2)
    await made.run("b", HOUR, user="ann", total_tokens=1, cost_usd=1)
    await made.run("b", HOUR)
    users = await made.figures(by=Grouping.USER)
    assert [(each.name, each.total.cost_usd) for each in users.groups] == [
        ("ann", 3),
        ("no user", 0),
    ]
    projects = await made.figures(by=Grouping.PROJECT)
    assert [(each.name, each.total.runs) for each in projects.groups] == [
        ("/shop", 1),
        ("no project", 2),
    ]


async def test_many_recipes_are_put_together_behind_the_twentieth() -> None:
    made = Recorded()
    for number in range(25):
        await made.run(f"r{number:02}", HOUR, total_tokens=1, cost_usd=100 - number)
    found = await made.figures()
    assert len(found.groups) == 21
    assert (found.groups[0].name, found.groups[-1].name) == ("r00", "other")
    assert found.groups[-1].total.runs == 5


async def test_of_too_many_runs_the_newest_are_counted_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("minions.engine.views.run_figures._MOST_RUNS", 2)
    made = Recorded()
    for hours in (3, 2, 1):
        await made.run("a", hours * HOUR)
    found = await made.figures()
    assert (found.counted, found.counted_since) == (2, NOW - 2 * HOUR)
    assert found.all.total.runs == 2
    assert evolve(found.all.total, median_ms=None, slow_ms=None) == Figures(runs=2, ended=2)
