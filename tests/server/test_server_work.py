"""Workers, queues, what waits and what is due, as the server lists them."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from attrs import evolve

from asgi_client import Client
from minions.adapters.dispatch.local_dispatch import LocalDispatch
from minions.adapters.stores.memory_stores import RESERVED, MemoryState
from minions.app.runs.left_runs import WorkerRecord
from minions.app.runs.schedule_store import Progress, Schedule
from minions.app.runs.work_lists import WorkLists
from minions.contracts.dispatch import QueueLimits, RateLimit
from minions.contracts.journal.start_note import QueuePlace
from minions.contracts.runtime import SystemClock
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.services import worker_name
from minions.interfaces.server.app import App
from minions.recipe.model import ScheduleSpec
from served import MakeApp

PLACE = QueuePlace(name="web")
AT = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


@pytest.fixture
def app(make_app: MakeApp, tmp_path: Path) -> App:
    """Of a server that only queues."""
    return make_app(journal=tmp_path / "j.db", queue=PLACE)


async def put(app: App, record: WorkerRecord) -> None:
    await app.app_state.marks.put(f"{RESERVED}worker:{record.name}", record.to_text())


def alive(part: str = "w", queues: tuple[str, ...] = ("web",)) -> WorkerRecord:
    return WorkerRecord(
        name=worker_name(part), queues=queues, version="1.2", slots=4, started_at=AT
    )


async def why(app: App) -> list[str]:
    found = (await Client(app).get("/queues/runs")).json
    assert found["total"] == len(found["runs"])
    return [each["reason"] for each in found["runs"]]


async def test_a_worker_says_its_age_load_and_version(app: App) -> None:
    await put(app, alive())
    gone = worker_name("gone").replace(f":{os.getpid()}:", ":4194999:")
    await put(app, WorkerRecord(name=gone, queues=("web",)))
    found = (await Client(app).get("/workers")).json
    assert found["total"] == 2
    of = {each["name"]: each for each in found["workers"]}
    assert of[worker_name("w")] == {
        "name": worker_name("w"),
        "is_alive": True,
        "queues": ["web"],
        "version": "1.2",
        "slots": 4,
        "taken": 0,
        "started_at": "2026-01-02T03:04:00+00:00",
        "seen_at": None,
        "lacks": [],
    }
    assert (of[gone]["is_alive"], of[gone]["version"]) == (False, None)
    part = (await Client(app).get("/workers?limit=1&offset=1")).json
    assert [each["name"] for each in part["workers"]] == [sorted(of)[1]]


async def test_a_run_that_waits_says_why(app: App) -> None:
    begun = await Client(app).post("/runs", {"recipe": "signs", "inputs": {}})
    assert await why(app) == ["no living worker takes the queue 'web'"]
    await put(app, alive())
    assert await why(app) == ["waits for a free worker"]
    lacks = {begun.json["run_id"]: ("the tool 'price'",)}
    await put(app, evolve(alive(), lacks=lacks))
    assert await why(app) == ["no worker has the tool 'price'"]
    [queued] = (await Client(app).get("/queues/runs")).json["runs"]
    assert (queued["lacks"], queued["queue"]) == (["the tool 'price'"], "web")
    await put(app, alive("able"))
    assert await why(app) == ["waits for a free worker"]


async def test_a_run_that_may_not_begin_yet_says_until_when(
    make_app: MakeApp, tmp_path: Path
) -> None:
    later = datetime(2999, 1, 2, 3, 4, tzinfo=UTC)
    place = evolve(PLACE, not_before=later)
    app = make_app(journal=tmp_path / "j.db", queue=place)
    await Client(app).post("/runs", {"recipe": "signs", "inputs": {}})
    assert await why(app) == ["not before 2999-01-02 03:04:00Z"]
    paused = make_app(journal=tmp_path / "k.db", queue=evolve(place, pauses=2))
    await Client(paused).post("/runs", {"recipe": "signs", "inputs": {}})
    assert await why(paused) == ["waits for a server until 2999-01-02 03:04:00Z"]
    [web] = [
        each for each in (await Client(app).get("/queues")).json["queues"] if each["name"] == "web"
    ]
    assert (web["waiting"], web["delayed"]) == (0, 1)


async def test_what_waits_comes_in_pages_the_longest_first(app: App) -> None:
    client = Client(app)
    begun = [
        (await client.post("/runs", {"recipe": "signs", "inputs": {}})).json["run_id"]
        for _ in range(5)
    ]
    listed: list[str] = []
    for offset in (0, 2, 4, 6):
        part = (await client.get(f"/queues/runs?limit=2&offset={offset}")).json
        assert part["total"] == 5
        listed += [each["run_id"] for each in part["runs"]]
    assert listed == begun


async def test_queues_of_a_file_have_no_limits_and_count_what_waits(app: App) -> None:
    await put(app, alive(queues=("web", "night")))
    await Client(app).post("/runs", {"recipe": "signs", "inputs": {}})
    found = {each["name"]: each for each in (await Client(app).get("/queues")).json["queues"]}
    assert list(found) == ["default", "night", "web"]
    web = found["web"]
    assert (web["waiting"], web["taken"], web["workers"]) == (1, None, 1)
    assert (web["has_limits"], web["is_partial"], web["concurrency"]) == (False, False, None)
    assert web["oldest_at"] is not None
    assert (found["night"]["waiting"], found["night"]["oldest_at"]) == (0, None)


async def test_queues_of_an_engine_have_its_limits_and_numbers() -> None:
    engine, clock = LocalDispatch(SystemClock()), SystemClock()
    limits = QueueLimits(
        name="web", concurrency=3, per_worker=2, rate=RateLimit(starts=5, period_s=60)
    )
    await engine.set_queue(limits)
    lists = WorkLists(MemoryJournal(clock), MemoryState(), engine, lambda _name: False)
    [web] = [each for each in await lists.queues(AT) if each.view.limits.name == "web"]
    assert (web.view.limits, web.has_limits, web.workers) == (limits, True, 0)
    assert await lists.workers() == []
    await engine.aclose()


async def test_of_very_many_queued_runs_it_is_said_that_only_some_were_counted(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minions.app.runs.work_lists._MOST_COUNTED", 2)
    for _ in range(3):
        await Client(app).post("/runs", {"recipe": "signs", "inputs": {}})
    found = {each["name"]: each for each in (await Client(app).get("/queues")).json["queues"]}
    assert (found["web"]["waiting"], found["web"]["is_partial"]) == (2, True)


def daily(name: str) -> Schedule:
    spec = ScheduleSpec(cron="0 8 * * *", timezone="UTC")
    return Schedule(name=name, spec=spec, since=AT, document={"id": "signs"}, bundle={})


async def test_a_schedule_says_when_it_is_due_and_what_became_of_its_last_run(app: App) -> None:
    run = (await Client(app).post("/runs", {"recipe": "signs", "inputs": {}})).json["run_id"]
    store = app.app_state.schedules
    await store.put(daily("morning"))
    await store.put_progress("morning", Progress(last_run=run, skipped=AT, reason="no worker"))
    await store.put_problem("morning", "The tool 'price' is not registered here.")
    await app.app_state.marks.put(f"{RESERVED}schedule:broken", "{}")
    found = (await Client(app).get("/schedules")).json
    broken, morning = found["schedules"]
    assert found["total"] == 2
    assert (morning["recipe"], morning["cron"], morning["is_paused"]) == (
        "signs",
        "0 8 * * *",
        False,
    )
    times = [datetime.fromisoformat(each) for each in morning["next"]]
    assert [each.hour for each in times] == [8, 8, 8]
    assert (times[2] - times[0]).days == 2
    assert (morning["last_run"], morning["last_status"]) == (run, "queued")
    assert (morning["skipped"], morning["reason"]) == (AT.isoformat(), "no worker")
    assert morning["problem"] == "The tool 'price' is not registered here."
    assert "cannot be read" in broken["problem"]
    assert (broken["cron"], broken["next"]) == (None, [])
    part = (await Client(app).get("/schedules?limit=1&offset=1")).json
    assert [each["name"] for each in part["schedules"]] == ["morning"]


async def test_a_schedule_is_paused_and_resumed(app: App) -> None:
    store, client = app.app_state.schedules, Client(app)
    await store.put(daily("morning"))
    paused = await client.post("/schedules/morning/pause")
    assert (paused.status, paused.json["is_paused"], paused.json["next"]) == (200, True, [])
    assert (await store.get("morning")).is_paused
    resumed = await client.post("/schedules/morning/resume")
    assert (resumed.json["is_paused"], len(resumed.json["next"])) == (False, 3)
    assert (await store.get("morning")).since > AT
    unknown = await client.post("/schedules/mornin/pause")
    assert (unknown.status, unknown.json["code"]) == (404, "no-schedule")
