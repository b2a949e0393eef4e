"""What `minions doctor --fleet` says of workers and of what waits."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from attrs import evolve

from command_line import Cli, Write
from minions.adapters.dispatch.dbos_dispatch import make_job_tables
from minions.adapters.dispatch.left_jobs import LeftJobs
from minions.adapters.dispatch.postgres_workers import PostgresWorkers
from minions.adapters.stores.memory_stores import MemoryState
from minions.adapters.stores.postgres_side_tables import PostgresState
from minions.app.runs.fleet_health import FleetHealth, FleetWorker, WaitingGroup, fleet_health
from minions.app.runs.left_runs import LeftRuns, WorkerRecord
from minions.app.runs.paused_queues import QueuePause, put_pause
from minions.app.runs.run_needs import OfferedParts, needs_key
from minions.app.runs.run_queue import RunQueue
from minions.app.runs.schedule_store import ScheduleStore
from minions.app.settings.settings import Settings
from minions.app.wiring.databases import make_state
from minions.contracts.dispatch import WorkerPlan, WorkerView
from minions.contracts.journal.start_note import QueuePlace
from minions.contracts.runtime import SystemClock
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services, worker_name
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document
from minions.testing import ScriptedModel

NOW = datetime(2026, 5, 4, tzinfo=UTC)
RECIPE = "id: r\nsteps: [{id: a, set: {x: 1}}]\n"


async def queued(journal: MemoryJournal, *places: QueuePlace) -> Sequence[str]:
    """The ids of runs that wait there."""
    executor = AgentExecutor(ScriptedModel([]), services=Services(journal=journal))
    recipe = recipe_from_document(
        {"id": "r", "steps": [{"id": "a", "set": {"x": 1}}]}, Catalog(), file="r.yaml"
    )
    queue = RunQueue(None, SystemClock())
    return [(await queue.put(executor.prepare(recipe), place)).run_id for place in places]


async def test_what_waits_is_grouped_by_queue_and_reason() -> None:
    journal, state = MemoryJournal(SystemClock()), MemoryState()
    now = SystemClock().now()
    needs = ("tool:price@v1",)
    record = WorkerRecord(
        name="w1",
        queues=("default", "slow"),
        version="1.0",
        lacks={needs_key(needs): ("the tool 'price'",)},
    )
    await state.put("minions:worker:w1", record.to_text())
    await state.put("minions:worker:gone", record.to_text())
    await put_pause(state, QueuePause(queue="slow", reason="moved", since=now))
    first, second, *_ = await queued(
        journal,
        QueuePlace(),
        QueuePlace(),
        QueuePlace(needs=needs),
        QueuePlace(name="slow"),
        QueuePlace(name="lone"),
        QueuePlace(not_before=now + timedelta(hours=1)),
    )
    health = await fleet_health(journal, state, None, "gone".__eq__, now)
    assert [each.name for each in health.workers] == ["w1"]
    assert {(each.queue, each.reason, each.is_stuck, each.count) for each in health.waiting} == {
        ("default", "waits for a free worker", False, 2),
        ("default", "its time has not come", False, 1),
        ("default", "no worker has the tool 'price'", True, 1),
        ("slow", "paused: moved", False, 1),
        ("lone", "no living worker takes the queue 'lone'", True, 1),
    }
    (pair,) = [each for each in health.waiting if each.count == 2]
    assert pair.oldest_run == first != second
    assert sorted(name for name, _ in health.problems()) == ["queue default", "queue lone"]


def test_problems_are_versions_clocks_what_is_stuck_and_schedules() -> None:
    worker = FleetWorker(name="w1", queues=("default",), version="1.0", clock_ahead_s=-0.5)
    other = evolve(worker, name="w2")
    group = WaitingGroup(
        queue="q",
        reason="no living worker serves the queue",
        is_stuck=False,
        count=2,
        oldest_run="run_1",
        oldest_since=NOW,
    )
    health = FleetHealth(now=NOW, workers=(worker, other), waiting=(group,))
    assert list(health.problems()) == []
    bad = evolve(
        health,
        workers=(worker, evolve(other, version="1.1", clock_ahead_s=-3.25)),
        waiting=(evolve(group, is_stuck=True),),
        schedules={"s": "unknown tool"},
    )
    assert list(bad.problems()) == [
        ("versions", "living workers have the versions 1.0, 1.1"),
        ("clock of w2", "-3.2 s of the database's"),
        ("queue q", "2 wait: no living worker serves the queue"),
        ("schedule s", "unknown tool"),
    ]


def test_a_worker_whose_folder_is_gone_is_named_before_a_run_meets_it(cli: Cli) -> None:
    name = worker_name("w1")
    record = WorkerRecord(name=name, queues=("default",), problem="its folder /gone, removed")

    async def store() -> None:
        state = make_state(Settings(db="j.sqlite"), Path.cwd())
        await state.put(f"minions:worker:{name}", record.to_text())
        await state.aclose()

    assert cli("worker", "--once", "--db", "j.sqlite").code == 0
    asyncio.run(store())
    told = cli("doctor", "--fleet", "--json", "--db", "j.sqlite")
    [found] = json.loads(told.out)
    assert (told.code, found["name"], found["ok"]) == (4, f"worker {name}", False)
    assert found["detail"].startswith("it lacks its folder /gone, removed, and executes nothing")
    listed = cli("workers", "list", "--db", "j.sqlite").out
    assert f"{name} executes nothing: it lacks its folder /gone, removed" in listed
    [worker] = json.loads(cli("workers", "list", "--json", "--db", "j.sqlite").out)["workers"]
    assert worker["problem"] == "its folder /gone, removed"
    assert worker["lacks"] == ["its folder /gone, removed"]


async def test_workers_of_a_shared_engine_are_those_that_are_alive() -> None:
    journal, state = MemoryJournal(SystemClock()), MemoryState()
    await ScheduleStore(state).put_problem("s", "no tool")
    view = WorkerView(
        name="w1",
        queues=("default",),
        slots=4,
        taken=1,
        started_at=NOW,
        seen_at=NOW - timedelta(seconds=3),
        is_alive=True,
        clock_ahead_s=0.25,
    )
    views = (view, evolve(view, name="dead", is_alive=False), evolve(view, name="gone"))
    health = await fleet_health(journal, state, views, "gone".__eq__, NOW)
    assert health.workers == [
        FleetWorker(
            name="w1",
            queues=("default",),
            version="",
            clock_ahead_s=0.25,
            silent_s=3.0,
            load="1 of 4",
        )
    ]
    await state.put(
        "minions:worker:w1", WorkerRecord(name="w1", queues=(), problem="its folder").to_text()
    )
    health = await fleet_health(journal, state, views, "gone".__eq__, NOW)
    assert list(health.problems()) == [("worker w1", "it lacks its folder")]
    assert health.schedules == {}  # there is no schedule of that name


def test_the_command_fails_where_something_wants_a_hand(cli: Cli, write: Write) -> None:
    write("r.yaml", RECIPE)
    at = ("--db", "j.sqlite")
    assert cli("run", "r.yaml", "--detach", *at).code == 0
    stuck = cli("doctor", "--fleet", "--json", *at)
    assert stuck.code == 4
    found = {each["name"]: each for each in json.loads(stuck.out)}
    assert found["workers"]["ok"] is found["queue default"]["ok"] is False
    assert "no living worker takes the queue 'default'" in found["queue default"]["detail"]
    cli("worker", "--once", *at)
    assert cli("doctor", "--fleet", *at).code == 0
    assert cli("doctor", "--fleet", "--no-store").code == 2


def test_clocks_are_compared_with_that_of_the_database(cli: Cli, postgres_url: str) -> None:
    pytest.importorskip("dbos")
    right, wrong = (WorkerPlan(name=worker_name(name)) for name in ("right", "wrong"))
    parts = OfferedParts(versions={}, package="9.9", folder=None)

    async def begin() -> None:
        state = PostgresState(postgres_url)
        workers = PostgresWorkers(postgres_url, dead_after_s=60)
        await workers.make_table()
        await asyncio.to_thread(make_job_tables, postgres_url)
        for plan, ahead_s in ((right, 0), (wrong, 3600)):
            await LeftRuns(state, plan, parts).store()
            clock_s = await workers.server_s() + ahead_s
            await workers.beat(plan, 0, LeftJobs(lambda: 0.0), 60, clock_s)
        await state.aclose()
        await workers.aclose()

    asyncio.run(begin())
    told = cli("doctor", "--fleet", "--json", "--db", postgres_url)
    assert told.code == 4
    found = {each["name"]: each for each in json.loads(told.out)}
    assert found[f"worker {right.name}"]["detail"].startswith("version 9.9 · queues default · 0 of")
    # Less the time until the beat is stored, which a busy machine makes long.
    assert re.match(r"\+3[56]\d\d\.\d s of", found[f"clock of {wrong.name}"]["detail"])
    assert f"clock of {right.name}" not in found
    assert found["clock of this machine"]["ok"] is True
