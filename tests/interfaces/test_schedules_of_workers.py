"""Runs that workers start at the due times of schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from attrs import evolve

from minions.app.runs.schedule_store import Progress, Schedule, ScheduleStore
from minions.contracts.journal.facts import RunBeginning
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.journal.start_note import StartNote
from minions.data.json_values import JsonValue
from minions.recipe.model import ScheduleSpec
from timed_world import World, look_rarely

MINUTE = 60.0
QUICK = "id: r\ninputs: {x: {type: integer, default: 1}}\nsteps: [{id: a, set: {x: 1}}]\n"
WAITS = "id: r\nsteps: [{id: sure, ask: Send it?, timeout: 25m, default: yes}]\n"
BROKEN = "id: r\nsteps: [{id: a, set: {x: 1}}]\n"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    look_rarely(monkeypatch, 30)
    return World(tmp_path)


async def add(
    world: World, text: str = QUICK, *, name: str = "r", since: datetime | None = None, **spec: str
) -> Schedule:
    (world.folder / "r.yaml").write_text(text, "utf-8")
    recipe = world.runtime("submitter").recipes.get(str(world.folder / "r.yaml"))
    schedule = Schedule.of(
        name,
        recipe,
        ScheduleSpec(cron="*/10 * * * *", **spec),  # type: ignore[arg-type]  # of a test
        since or world.time.now(),
    )
    await ScheduleStore(world.state).put(schedule)
    return schedule


async def runs(world: World) -> Sequence[RunRow]:
    """The oldest first."""
    return (await world.services.journal.runs(RunFilter()))[::-1]


async def progress(world: World, name: str = "r") -> Progress:
    return await ScheduleStore(world.state).progress(name)


async def started(world: World) -> list[float]:
    """Minutes at which runs were started."""
    begin = world.time.now() - timedelta(seconds=world.time.monotonic())
    return [round((row.started_at - begin).total_seconds() / 60, 1) for row in await runs(world)]


def test_a_run_is_started_at_each_due_time_and_executed(world: World) -> None:
    async def work() -> None:
        await add(world)
        await world.work(35 * MINUTE)
        assert await started(world) == [10.0, 20.0, 30.0]
        assert {row.status for row in await runs(world)} == {"completed"}
        assert {row.mark for row in await runs(world)} == {"queue"}

    world.run(work())


def test_a_run_with_patience_is_to_be_done_so_long_after_its_time(world: World) -> None:
    async def work() -> None:
        await add(world, patience="8h")
        stored = await ScheduleStore(world.state).get("r")
        assert stored.spec.patience == "8h"
        await world.work(15 * MINUTE)
        (row,) = await runs(world)
        entries = await world.services.journal.entries(row.session_id, run_id=row.run_id)
        begun = [entry.fact for entry in entries if isinstance(entry.fact, RunBeginning)]
        begin = world.time.now() - timedelta(seconds=world.time.monotonic())
        due = begin + timedelta(minutes=10)
        assert {StartNote.of(fact.note).by for fact in begun} == {due + timedelta(hours=8)}

    world.run(work())


def test_several_workers_start_the_run_of_a_time_once(world: World) -> None:
    async def work() -> None:
        await add(world, overlap="allow")
        await asyncio.gather(*(world.work(25 * MINUTE) for _ in range(4)))
        assert await started(world) == [10.0, 20.0]
        entries = await world.services.journal.entries(kinds={"run"})
        queued = [each for each in entries if isinstance(each.fact, RunBeginning)]
        assert sum(bool(each.fact.queued) for each in queued) == 2  # type: ignore[union-attr]  # as filtered

    world.run(work())


def test_a_run_that_another_worker_started_is_not_taken_for_an_earlier_one(world: World) -> None:
    async def work() -> None:
        await add(world, WAITS, overlap="skip")
        await world.work(12 * MINUTE)
        await ScheduleStore(world.state).put_progress("r", Progress())
        await world.work(MINUTE)
        assert await started(world) == [10.0]
        assert (await progress(world)).skipped is None

    world.run(work())


def test_a_worker_that_forgot_how_far_it_came_starts_no_run_again(world: World) -> None:
    """It may die after the run is recorded and before its progress is."""

    async def work() -> None:
        await add(world, missed="all")
        await world.work(25 * MINUTE)
        await ScheduleStore(world.state).put_progress("r", Progress())
        await world.work(MINUTE)
        assert await started(world) == [10.0, 20.0]

    world.run(work())


@pytest.mark.parametrize(
    ("missed", "overlap", "expected"),
    [
        ("skip", "skip", [50.0]),
        ("once", "allow", [45.0, 50.0]),
        ("all", "allow", [45.0, 45.0, 45.0, 45.0, 50.0]),
    ],
)
def test_times_at_which_no_worker_was_there_follow_the_policy(
    world: World, missed: str, overlap: str, expected: list[float]
) -> None:
    async def work() -> None:
        await add(world, missed=missed, overlap=overlap)
        await asyncio.sleep(45 * MINUTE)
        await world.work(10 * MINUTE)
        assert await started(world) == expected

    world.run(work())


def test_of_very_many_missed_times_the_newest_hundred_are_made_up_for(world: World) -> None:
    async def work() -> None:
        since = world.time.now() - timedelta(days=30)
        await add(world, since=since, missed="all", overlap="allow")
        await world.work(5)
        assert len(await runs(world)) == 100

    world.run(work())


def test_a_run_that_has_not_ended_keeps_the_next_one_from_starting(world: World) -> None:
    async def work() -> None:
        await add(world, WAITS, overlap="skip")  # it waits for 25 minutes
        await world.work(65 * MINUTE)
        assert await started(world) == [10.0, 40.0]
        skipped = await progress(world)
        assert "has not ended" in (skipped.reason or "")

    world.run(work())


def test_runs_that_wait_for_an_earlier_one_start_one_after_the_other(world: World) -> None:
    async def work() -> None:
        await add(world, WAITS, overlap="queue")
        await world.work(65 * MINUTE)
        first, second, third = await started(world)
        assert first == 10.0
        assert 35 <= second <= 36.1
        assert 60 <= third <= 62.2
        assert len((await progress(world)).waiting) == 3

    world.run(work())


def test_runs_may_overlap(world: World) -> None:
    async def work() -> None:
        await add(world, WAITS, overlap="allow")
        await world.work(35 * MINUTE)
        assert await started(world) == [10.0, 20.0, 30.0]

    world.run(work())


def test_a_paused_schedule_starts_nothing_and_goes_on_from_its_next_time(world: World) -> None:
    async def work() -> None:
        store = ScheduleStore(world.state)
        await add(world, missed="all", overlap="allow")
        await store.set_paused("r", is_paused=True, now=world.time.now())
        await world.work(35 * MINUTE)
        assert await runs(world) == []
        await store.set_paused("r", is_paused=False, now=world.time.now())
        await world.work(10 * MINUTE)
        assert await started(world) == [40.0]

    world.run(work())


def test_a_schedule_that_is_added_removed_or_damaged_while_a_worker_is_there(world: World) -> None:
    async def work() -> None:
        store = ScheduleStore(world.state)
        working = asyncio.ensure_future(world.work(65 * MINUTE))
        await asyncio.sleep(MINUTE)
        await world.state.put("minions:schedule:a", "{}")
        await world.state.put("minions:schedule:b", "no JSON")
        await add(world)
        await asyncio.sleep(20 * MINUTE)
        await store.remove("r")
        await working
        assert await started(world) == [10.0, 20.0]

    world.run(work())


def test_a_schedule_that_no_worker_can_carry_out_harms_no_other(world: World) -> None:
    async def work() -> None:
        broken = await add(world, name="a")
        unknown: dict[str, JsonValue] = {"id": "r", "steps": [{"id": "a", "tool": "gone"}]}
        await ScheduleStore(world.state).put(evolve(broken, document=unknown))
        await add(world, name="b")
        await world.work(15 * MINUTE)
        assert len(await runs(world)) == 1
        assert (await progress(world, "a")).handled is None  # it is tried again

    world.run(work())


def test_an_edited_recipe_counts_only_after_it_is_added_again(world: World) -> None:
    async def work() -> None:
        await add(world)
        (world.folder / "r.yaml").write_text("no recipe", "utf-8")
        await world.work(15 * MINUTE)
        assert [row.status for row in await runs(world)] == ["completed"]

    world.run(work())
