"""Runs that workers start at the due times of schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from attrs import evolve

from minions.app.runs.schedule_store import (
    Progress,
    Schedule,
    ScheduleStore,
    SkipCause,
    SkippedTime,
)
from minions.contracts.journal.facts import RunBeginning
from minions.contracts.journal.run_rows import RunFilter, RunRow
from minions.contracts.journal.start_note import QueuePlace, StartNote
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


async def skipped(world: World) -> list[tuple[float, str]]:
    """Minutes for which no run was started, and why."""
    begin = world.time.now() - timedelta(seconds=world.time.monotonic())
    return [
        (round((each.due - begin).total_seconds() / 60, 1), each.cause.value)
        for each in (await progress(world)).skipped
    ]


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
        assert (await progress(world)).skipped == ()

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
    ("missed", "overlap", "expected", "left_out"),
    [
        ("skip", "skip", [50.0], [10.0, 20.0, 30.0, 40.0]),
        ("once", "allow", [45.0, 50.0], [10.0, 20.0, 30.0]),
        ("all", "allow", [45.0, 45.0, 45.0, 45.0, 50.0], []),
    ],
)
def test_times_at_which_no_worker_was_there_follow_the_policy_and_none_is_lost(
    world: World, missed: str, overlap: str, expected: list[float], left_out: list[float]
) -> None:
    async def work() -> None:
        await add(world, missed=missed, overlap=overlap)
        await asyncio.sleep(45 * MINUTE)
        await world.work(10 * MINUTE)
        assert await started(world) == expected
        assert await skipped(world) == [(at, "missed") for at in left_out]

    world.run(work())


def test_of_very_many_missed_times_the_newest_hundred_are_made_up_for(world: World) -> None:
    async def work() -> None:
        since = world.time.now() - timedelta(days=30)
        await add(world, since=since, missed="all", overlap="allow")
        await world.work(5)
        assert len(await runs(world)) == 100
        (older,) = (await progress(world)).skipped
        assert (older.cause, older.after) == (SkipCause.LIMIT, since)
        assert world.time.now() - older.due > timedelta(minutes=1000)

    world.run(work())


def test_a_run_that_has_not_ended_keeps_the_next_one_from_starting(world: World) -> None:
    async def work() -> None:
        await add(world, WAITS, overlap="skip")  # it waits for 25 minutes
        await world.work(65 * MINUTE)
        assert await started(world) == [10.0, 40.0]
        kept = await progress(world)
        assert await skipped(world) == [
            (20.0, "overlap"),
            (30.0, "overlap"),
            (50.0, "overlap"),
            (60.0, "overlap"),
        ]
        assert kept.skip_counts == {SkipCause.OVERLAP: 4}
        assert kept.skipped[0].reason.endswith("has not ended: needs_decision")

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
        assert await skipped(world) == [(10.0, "paused"), (20.0, "paused"), (30.0, "paused")]

    world.run(work())


def test_times_of_a_pause_that_no_worker_saw_are_told_as_a_span(world: World) -> None:
    async def work() -> None:
        store = ScheduleStore(world.state)
        await add(world)
        await world.work(15 * MINUTE)
        handled = (await progress(world)).handled
        await store.set_paused("r", is_paused=True, now=world.time.now())
        await asyncio.sleep(30 * MINUTE)
        await store.set_paused("r", is_paused=False, now=world.time.now())
        await world.work(10 * MINUTE)
        assert await started(world) == [10.0, 50.0]
        assert await skipped(world) == [(40.0, "paused")]
        assert (await progress(world)).skipped[0].after == handled

    world.run(work())


def test_a_backlog_behind_a_full_queue_leaves_a_trace_of_each_time(world: World) -> None:
    """The run of the first time is queued, and no worker of its queue has room for it."""

    async def work() -> None:
        schedule = await add(world, overlap="skip")
        await ScheduleStore(world.state).put(evolve(schedule, place=QueuePlace(name="full")))
        await world.work(35 * MINUTE)
        assert await started(world) == [10.0]
        assert await skipped(world) == [(20.0, "overlap"), (30.0, "overlap")]
        reasons = {each.reason for each in (await progress(world)).skipped}
        (run,) = await runs(world)
        assert reasons == {f"{run.run_id} has not ended: queued in 'full'"}

    world.run(work())


def test_of_times_that_wait_the_first_hundred_do_and_the_others_are_told(world: World) -> None:
    async def work() -> None:
        schedule = await add(world, WAITS, overlap="queue")
        store = ScheduleStore(world.state)
        await store.put(evolve(schedule, place=QueuePlace(name="full")))
        await world.work(11 * MINUTE)
        late = [schedule.since + timedelta(seconds=each) for each in range(99)]
        await store.put_progress("r", evolve(await progress(world), waiting=tuple(late)))
        await world.work(25 * MINUTE)
        kept = await progress(world)
        assert len(kept.waiting) == 100
        assert await skipped(world) == [(30.0, "limit")]

    world.run(work())


def test_of_skipped_times_the_newest_hundred_are_kept_and_all_are_counted() -> None:
    begin, kept = datetime(2026, 5, 4, tzinfo=UTC), Progress()
    times = [
        SkippedTime(due=begin + timedelta(minutes=each), cause=SkipCause.OVERLAP, reason="busy")
        for each in range(120)
    ]
    for each in (*times, times[-1]):
        kept = kept.skip(each)
    assert kept.skipped == tuple(times[20:])
    assert kept.skip_counts == {SkipCause.OVERLAP: 120}
    assert Progress.of_text(kept.to_text()) == kept


@pytest.mark.parametrize("stored", ['{"skips": 1}', '{"skips": [1]}', '{"skips": [{}]}', "[]"])
def test_progress_of_another_form_is_none(stored: str) -> None:
    assert Progress.of_text(stored) == Progress()


def test_metrics_count_the_times_that_were_left_out_and_name_what_cannot_be_carried_out(
    world: World,
) -> None:
    async def work() -> None:
        page = await world.metrics()
        assert "minions_schedule" not in page
        await add(world, WAITS, overlap="skip")
        await world.work(35 * MINUTE)
        await ScheduleStore(world.state).put_problem("r", "no tool")
        page = await world.metrics()
        assert 'minions_schedule_skipped_total{cause="overlap",schedule="r"} 2.0\n' in page
        assert 'minions_schedule_problem{schedule="r"} 1.0\n' in page

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


def test_a_schedule_that_is_removed_during_a_look_is_no_problem(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ScheduleStore.names

    async def removed(store: ScheduleStore) -> Sequence[str]:
        found = await names(store)
        if found:
            await store.remove("r")
        return found

    async def work() -> None:
        await add(world)
        with monkeypatch.context() as patch:
            patch.setattr(ScheduleStore, "names", removed)
            await world.work(MINUTE)
        assert await ScheduleStore(world.state).problem("r") is None
        assert await ScheduleStore(world.state).names() == []

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
