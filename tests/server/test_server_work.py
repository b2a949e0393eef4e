"""Workers, queues, what waits and what is due, as the server lists them."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from attrs import evolve

from asgi_client import Client
from builders import draft_of
from minions.adapters.dispatch.local_dispatch import LocalDispatch
from minions.adapters.stores.memory_stores import RESERVED, MemoryState
from minions.app.evaluating.evaluation_records import (
    CaseAnswer,
    CaseRecord,
    EvaluationRecord,
    VariantRecord,
)
from minions.app.runs.batch_records import BatchRecord, batch_id
from minions.app.runs.left_runs import WorkerRecord
from minions.app.runs.paused_queues import ALL_QUEUES, QueuePause, put_pause, remove_pause
from minions.app.runs.schedule_store import Progress, Schedule, SkipCause, SkippedTime
from minions.app.runs.work_lists import WorkLists
from minions.contracts.dispatch import QueueLimits, RateLimit
from minions.contracts.journal.facts import RunResumed, RunStarted
from minions.contracts.journal.journal import EntryDraft
from minions.contracts.journal.start_note import QueuePlace
from minions.contracts.runtime import SystemClock
from minions.engine.batches.lines import BatchLine, RunNames
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import worker_name
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


async def waiting(app: App, page: str = "") -> list[dict[str, object]]:
    found = (await Client(app).get(f"/queues/runs{page}")).json
    runs: list[dict[str, object]] = found["runs"]
    return runs


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
        "problem": None,
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


async def test_why_a_run_waits_is_a_clause_whatever_each_worker_lacks(app: App) -> None:
    begun = await Client(app).post("/runs", {"recipe": "signs", "inputs": {}})
    tool, folder, refusal = "the tool 'price'", "the folder /x", "There is no provider 'corp'."

    async def told(*parts: str) -> str:
        for number, part in enumerate(parts):
            lacks = {begun.json["run_id"]: (part,)}
            await put(app, evolve(alive(f"w{number}"), lacks=lacks))
        (words,) = await why(app)
        return words

    assert await told(tool) == "no worker has the tool 'price'"
    assert await told(tool, folder) == "no worker has all of: the tool 'price'; the folder /x"
    assert await told(tool, refusal) == f"no worker has the tool 'price', or it refuses: {refusal}"
    assert await told(refusal, refusal) == refusal


async def test_a_run_whose_worker_died_waits_before_those_that_were_never_begun(app: App) -> None:
    first, second = [
        (await Client(app).post("/runs", {"recipe": "signs", "inputs": {}})).json for _ in range(2)
    ]
    journal, session = app.app_state.journal, second["session_id"]
    lease = await journal.acquire(
        session, second["run_id"], worker_name("w"), 60.0, next_generation=True
    )
    [start] = await journal.entries(session, run_id=second["run_id"], kinds={"run"})
    assert isinstance(start.fact, RunStarted)
    resumed = RunResumed(
        recipe=start.fact.recipe, document=start.fact.document, note=start.fact.note
    )
    await journal.append(lease, EntryDraft(key="run", fact=resumed))
    assert [each["run_id"] for each in await waiting(app)] == [first["run_id"]]  # it is executed
    await journal.release(lease)
    names = [second["run_id"], first["run_id"]]
    assert [each["run_id"] for each in await waiting(app)] == names
    pages = [await waiting(app, f"?limit=1&offset={at}") for at in range(3)]
    assert [each["run_id"] for page in pages for each in page] == names
    view = (await Client(app).get(f"/runs/{second['run_id']}")).json
    assert (view["status"], view["paused"]) == (
        "interrupted",
        "the queue 'web' has no living worker",
    )
    [web] = [
        each for each in (await Client(app).get("/queues")).json["queues"] if each["name"] == "web"
    ]
    assert web["waiting"] == 2


async def test_a_paused_queue_says_so_and_so_do_its_runs(app: App) -> None:
    await Client(app).post("/runs", {"recipe": "signs", "inputs": {}})
    await put(app, alive())
    for name in ("web", ALL_QUEUES):
        pause = QueuePause(queue=name, reason="moved", since=AT)
        await put_pause(app.app_state.marks, pause)
        assert await why(app) == ["paused: moved"]
        [web] = [
            each
            for each in (await Client(app).get("/queues")).json["queues"]
            if each["name"] == "web"
        ]
        assert web["paused"] == pause.words
        await remove_pause(app.app_state.marks, name)
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
    skipped = SkippedTime(due=AT, cause=SkipCause.MISSED, reason="no worker")
    progress = Progress(last_run=run, skipped=(skipped,), skip_counts={SkipCause.MISSED: 2})
    await store.put_progress("morning", progress)
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
    assert morning["skipped_count"] == 2
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


async def line(app: App, name: str, index: int, status: str | None = None) -> str:
    """A run of the batch of that name; None: it has no end."""
    names, own = RunNames(name), BatchLine(index=index, inputs={"n": index}, place="")
    run_id = names.run_id(own)
    journal = app.app_state.journal
    lease = await journal.acquire(names.session_id(own), run_id, "w", ttl_s=60)
    await journal.append(lease, draft_of("run", "started", {"recipe": "signs"}, key="run"))
    if status is not None:
        usage = {"total_tokens": 10, "cost_usd": 0.5}
        await journal.append(
            lease, draft_of("run", "finished", {"status": status, "usage": usage}, key="run")
        )
        await journal.release(lease)
    return run_id


async def test_a_batch_says_how_far_it_is_what_failed_and_what_it_cost(app: App) -> None:
    record = BatchRecord(
        id=batch_id("b"), title="items.jsonl", recipe="signs", lines=5, began_at=AT
    )
    await app.app_state.batches.begin(record)
    later = AT.replace(hour=9)
    await app.app_state.batches.begin(
        BatchRecord(id=batch_id("c"), title="night", recipe="signs", lines=1, began_at=later)
    )
    for index, status in enumerate(("completed", "failed", "needs_decision", None)):
        await line(app, "b", index, status)
    await line(app, "other", 0, "completed")
    found = (await Client(app).get("/batches")).json
    assert [each["title"] for each in found["batches"]] == ["night", "items.jsonl"]
    of = found["batches"][1]
    assert (of["lines"], of["begun"], of["ended"], of["failed"]) == (5, 4, 2, 1)
    states = {"completed": 1, "failed": 1, "needs_decision": 1, "running": 1}
    assert (of["states"], of["tokens"], of["cost_usd"]) == (states, 30, 1.5)
    assert found["batches"][0]["states"] == {}
    part = (await Client(app).get("/batches?limit=1&offset=1")).json
    assert ([each["id"] for each in part["batches"]], part["total"]) == ([record.id], 2)


async def test_a_batch_that_is_begun_again_stays_one_with_its_first_time(app: App) -> None:
    record = BatchRecord(
        id=batch_id("b"), title="items.jsonl", recipe="signs", lines=5, began_at=AT
    )
    await app.app_state.batches.begin(record)
    again = evolve(record, lines=7, began_at=AT.replace(hour=9))
    await app.app_state.batches.begin(again)
    records, total = await app.app_state.batches.page(10, 0)
    assert (records, total) == ([evolve(record, lines=7)], 1)


async def test_the_runs_of_a_batch_come_in_pages_with_their_lines(app: App) -> None:
    record = BatchRecord(
        id=batch_id("b"), title="items.jsonl", recipe="signs", lines=5, began_at=AT
    )
    await app.app_state.batches.begin(record)
    runs = [await line(app, "b", index, "failed" if index else "completed") for index in range(3)]
    path = f"/batches/{record.id}"
    found = (await Client(app).get(path)).json
    assert found["batch"]["lines"] == 5
    assert [(each["line"], each["run_id"]) for each in found["items"]] == [
        (2, runs[2]),
        (1, runs[1]),
        (0, runs[0]),
    ]
    failed = (await Client(app).get(f"{path}?status=failed&limit=1&offset=1")).json
    assert ([each["line"] for each in failed["items"]], failed["total"]) == ([1], 2)
    unknown = await Client(app).get("/batches/none")
    assert (unknown.status, unknown.json["code"]) == (404, "unknown-batch")


def evaluation(name: str) -> EvaluationRecord:
    return EvaluationRecord(
        id=name,
        title=f"{name} on cases.jsonl",
        ended_at=AT,
        case_count=3,
        samples=1,
        is_passed=True,
        variants=(VariantRecord(label="one", recipe="r"), VariantRecord(label="two", recipe="r")),
    )


def cases() -> list[CaseRecord]:
    def answer(passed: float) -> CaseAnswer:
        return CaseAnswer(passed=passed, reason=None if passed else "fields", run_id="run_1")

    return [
        CaseRecord(name="a", answers=(answer(1), answer(1))),
        CaseRecord(name="b", answers=(answer(0), answer(1))),
        CaseRecord(name="c", answers=(answer(0), answer(0))),
    ]


async def test_an_evaluation_is_listed_and_its_cases_are_filtered(app: App) -> None:
    state = app.app_state
    await state.evaluations.put(evaluation("triage"), cases(), state.threads)
    client = Client(app)
    found = (await client.get("/evaluations")).json
    assert [each["title"] for each in found["evaluations"]] == ["triage on cases.jsonl"]
    assert "cases" not in found["evaluations"][0]
    for show, names in (("all", "abc"), ("failed", "bc"), ("different", "b")):
        of = (await client.get(f"/evaluations/triage?show={show}")).json
        assert ("".join(each["name"] for each in of["cases"]), of["total"]) == (names, len(names))
    part = (await client.get("/evaluations/triage?limit=1&offset=1")).json
    assert [each["name"] for each in part["cases"]] == ["b"]
    assert part["cases"][0]["answers"][0] == {"passed": 0, "reason": "fields", "run_id": "run_1"}
    unknown = await client.get("/evaluations/none")
    assert (unknown.status, unknown.json["code"]) == (404, "unknown-evaluation")
