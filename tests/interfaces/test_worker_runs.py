"""What a worker does with runs that it should not execute, cannot, or has to hand over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from attrs import evolve, field, mutable

from builders import entry_of, fake_tool
from minions.adapters.dispatch.local_dispatch import LocalDispatch
from minions.adapters.stores.memory_stores import MemoryState
from minions.app.runs import unexecuted_runs
from minions.app.runs.left_runs import worker_records
from minions.app.runs.run_needs import build_version
from minions.app.runs.run_queue import RunQueue
from minions.app.runs.schedule_store import ScheduleStore
from minions.app.settings.settings import Settings
from minions.app.wiring.configured_runtime import Runtime, make_runtime
from minions.contracts.dispatch import Job, JobEnd, WorkerPlan
from minions.contracts.journal.facts import RunFinished
from minions.contracts.journal.start_note import QueuePlace, StartNote
from minions.contracts.runtime import SystemClock
from minions.contracts.tools import Effect, Toolbox
from minions.data.errors import EnvironmentRefusedError, JournalError, NotFoundError
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import Extensions
from minions.engine.run.agent_run import AgentRun
from minions.engine.run.recorded_run import RecordedRun, load_recorded_run
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import NullLog, Services
from minions.engine.views.lookup import find_run
from minions.interfaces.server.live.waiting_notices import WaitingNotices
from minions.interfaces.worker import run_execution
from minions.interfaces.worker.run_execution import Reconciliation
from minions.interfaces.worker.worker import Worker, WorkerRuntime
from patience import HANG_S

ASKS = "id: asks\nsteps:\n  - {id: ok, ask: 'Go on?'}\n"
RECIPE = "id: steps\nsteps:\n  - {id: first, tool: look}\n  - {id: second, tool: look}\n"


@mutable
class World:
    """One journal, and what tools did."""

    folder: Path
    services: Services = field(
        factory=lambda: Services(journal=MemoryJournal(SystemClock()), lease_ttl_s=60)
    )
    looks: int = 0
    may_end: asyncio.Event = field(factory=asyncio.Event)
    ticks_to_end: int = 0
    """How often the loop goes on until a call has ended, also where it is cancelled."""

    def runtime(self, name: str) -> Runtime:
        async def look(_arguments: Mapping[str, JsonValue]) -> object:
            self.looks += 1
            try:
                if self.looks > 1:
                    await self.may_end.wait()
            finally:
                for _ in range(self.ticks_to_end):
                    await asyncio.sleep(0)
            return self.looks

        tool = fake_tool("look", look, effect=Effect.PURE)
        return make_runtime(
            Settings(no_store=True),
            Extensions(tools=Toolbox((tool,))),
            environ={},
            folder_of=lambda _: self.folder,
            log=NullLog(),
            services=evolve(self.services, worker_id=name),
        )

    async def begun(self, place: QueuePlace | None) -> str:
        """The id of a run that is queued, or of one that began and was left."""
        runtime = self.runtime("submitter")
        recipe = runtime.recipes.get(str(self.folder / "steps.yaml"))
        run = runtime.executor(recipe).prepare(recipe)
        if place is not None:
            await RunQueue(None, SystemClock()).put(run, place)
            return run.run_id
        run.hand_over()
        await run.execute()
        return run.run_id

    def worker(
        self, retain_s: float | None = None, give_up_after: str = "7d", **plan: object
    ) -> Worker:
        name = "host:1:1+w"
        settings = Settings(no_store=True, give_up_after=give_up_after)
        return Worker(
            WorkerRuntime(settings, self.runtime(name), name=name, folder=None),
            LocalDispatch(SystemClock()),
            evolve(WorkerPlan(name=name), **plan),  # type: ignore[arg-type]  # of a test
            NullLog(),
            notices=WaitingNotices((), self.services.journal, MemoryState(), NullLog(), page=None),
            schedules=ScheduleStore(MemoryState()),
            retain_s=retain_s,
        )

    async def status(self, run_id: str) -> str:
        return (await find_run(self.services.journal, run_id)).status


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "steps.yaml").write_text(RECIPE, "utf-8")
    return World(tmp_path)


async def until_looked(world: World, times: int) -> None:
    async with asyncio.timeout(HANG_S):
        while world.looks < times:  # noqa: ASYNC110  # a count, not one event
            await asyncio.sleep(0.005)


async def test_a_stopped_worker_hands_over_and_the_next_one_repeats_no_recorded_step(
    world: World,
) -> None:
    run_id = await world.begun(QueuePlace())
    first = world.worker(drain_s=0.05)
    working = asyncio.ensure_future(first.run())
    await until_looked(world, 2)
    first.stop()
    await working
    assert await world.status(run_id) == "interrupted"
    assert await world.services.journal.held_leases() == []
    world.may_end.set()
    await world.worker(ends_when_idle=True).run()
    assert await world.status(run_id) == "completed"
    assert world.looks == 3  # the second step's call was cut off, and was made again


async def test_a_worker_removes_sessions_that_are_older_than_they_may_become(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-172: beside its runs, some at a time."""
    monkeypatch.setattr("minions.interfaces.worker.worker._LOOK_OLD_S", 0.01)
    world.may_end.set()
    await world.begun(QueuePlace())
    left = await world.begun(None)
    worker = world.worker(retain_s=1e-6)
    working = asyncio.ensure_future(worker.run())
    journal = world.services.journal
    async with asyncio.timeout(HANG_S):
        while await journal.count_sessions() > 1:  # noqa: ASYNC110  # as above
            await asyncio.sleep(0.005)
    worker.stop()
    await working
    assert [row.run_id for row in await journal.runs()] == [left]  # it may be resumed


async def test_a_job_makes_no_worker_execute_a_run_that_nobody_queued(world: World) -> None:
    """Whoever can write a row into a queue can have nothing executed by it."""
    world.may_end.set()
    run_id = await world.begun(None)
    assert await world.status(run_id) == "interrupted"
    run = await find_run(world.services.journal, run_id)
    worker = world.worker(ends_when_idle=True)
    forged = Job(run_id=run_id, session_id=run.session_id, submission="1")
    await worker._engine.submit(forged)  # as a stranger would
    await worker.run()
    assert (world.looks, await world.status(run_id)) == (0, "interrupted")


async def test_a_job_of_a_run_that_does_not_exist_harms_nobody(world: World) -> None:
    world.may_end.set()
    run_id = await world.begun(QueuePlace())
    worker = world.worker(ends_when_idle=True)
    for name in ("run_none", "x" * 200, "'; DROP TABLE runs"):
        await worker._engine.submit(  # as a stranger would
            Job(run_id=name, session_id="ses_none", submission="odd words")
        )
    await worker.run()
    assert await world.status(run_id) == "completed"


async def test_a_worker_that_stops_is_not_ready(world: World) -> None:
    worker = world.worker()
    worker.stop()
    assert await worker.problem() == "stopping"
    await worker.run()
    await worker.aclose()


async def test_a_worker_is_ready_while_it_can_execute_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is named, and no place of it: anybody may ask."""
    worker = world.worker()
    assert await worker.problem() == "it takes no jobs yet"
    running = asyncio.ensure_future(worker.run())
    async with asyncio.timeout(HANG_S):
        while await worker.problem() is not None:  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.01)
    away = JournalError("nobody answers at db.example", code="database-unreachable")
    monkeypatch.setattr(world.services.journal, "held_leases", AsyncMock(side_effect=away))
    assert await worker.problem() == "the database does not answer (database-unreachable)"
    monkeypatch.undo()
    silent = EnvironmentRefusedError("nobody answers at db.example", code="dispatch-unreachable")
    monkeypatch.setattr(worker._engine, "workers", AsyncMock(side_effect=silent))
    assert await worker.problem() == "the queues do not answer (dispatch-unreachable)"
    worker.stop()
    await running
    await worker.aclose()


async def test_a_database_that_is_away_when_a_worker_starts_is_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is told once, not at each try."""
    run_id = await world.begun(QueuePlace())
    world.may_end.set()
    worker, tries = world.worker(ends_when_idle=True), 0
    serve = worker._engine.serve

    async def away_at_first(*arguments: Any) -> None:  # whatever `serve` takes
        nonlocal tries
        tries += 1
        if tries < 4:
            raise EnvironmentRefusedError("no room", code="dispatch-unreachable")
        await serve(*arguments)

    monkeypatch.setattr(worker._engine, "serve", away_at_first)
    monkeypatch.setattr("minions.interfaces.worker.worker._AGAIN_S", 0.001)
    log = log_of(worker, monkeypatch)
    await worker.run()
    await worker.aclose()
    assert tries == 4
    assert [event for event in log if event == "database_awaited"] == ["database_awaited"]
    assert await world.status(run_id) == "completed"


@pytest.mark.parametrize("end", ["signal", "time", "refusal"])
async def test_a_worker_waits_for_its_database_for_a_minute_and_not_after_a_signal(
    world: World, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    worker, tries = world.worker(), 0
    code = "unknown-dbos" if end == "refusal" else "database-unreachable"

    async def away(*_: object) -> None:
        nonlocal tries
        tries += 1
        if end == "signal" and tries == 2:
            worker.stop()
        raise EnvironmentRefusedError("nobody answers", code=code)

    monkeypatch.setattr(worker._engine, "serve", away)
    monkeypatch.setattr("minions.interfaces.worker.worker._AGAIN_S", 0.001)
    if end == "time":
        monkeypatch.setattr("minions.interfaces.worker.worker._AWAITED_S", 0.01)
    with nullcontext() if end == "signal" else pytest.raises(EnvironmentRefusedError):
        await worker.run()
    await worker.aclose()
    assert {"signal": tries == 2, "time": tries > 1, "refusal": tries == 1}[end]


def log_of(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the warnings that it logs from now on."""
    events: list[str] = []
    log = SimpleNamespace(
        info=lambda *_, **__: None, warning=lambda event, **_: events.append(event)
    )
    monkeypatch.setattr(worker, "_log", log)
    return events


async def test_a_job_reads_the_record_of_its_run_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.may_end.set()
    run_id = await world.begun(QueuePlace())
    reads: list[object] = []
    journal, entries = world.services.journal, world.services.journal.entries

    async def counted(session_id: str, **wanted: object) -> object:
        if wanted.get("run_id") == run_id and "after" not in wanted:
            reads.append(wanted.get("kinds"))
        return await entries(session_id, **wanted)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(journal, "entries", counted)
    await world.worker(ends_when_idle=True).run()
    monkeypatch.undo()
    assert await world.status(run_id) == "completed"
    assert reads == [{"run"}, None]  # the search for queued runs, then the run


async def tried(world: World, run_id: str, tries: int, submission: str = "1") -> None:
    """A worker takes a job of the run that so many workers had before."""
    run = await find_run(world.services.journal, run_id)
    worker = world.worker(ends_when_idle=True)
    job = Job(run_id=run_id, session_id=run.session_id, submission=submission, tries=tries)
    await worker._engine.submit(job)  # as a dispatch that gives the jobs of dead workers to others
    await worker._engine.serve(worker._execution.execute, worker.plan, asyncio.Event())


async def died(world: World, place: QueuePlace | None = None) -> str:
    """The id of a run that was queued, whose worker died after its first step."""
    run_id = await world.begun(place or QueuePlace())
    first = world.worker(drain_s=0.0)
    working = asyncio.ensure_future(first.run())
    await until_looked(world, 2)
    first.stop()
    await working
    world.may_end.set()
    return run_id


async def reason(world: World, run_id: str) -> str:
    """Why the run was given up; empty: it was not."""
    recorded = await load_recorded_run(world.services.journal, run_id)
    fact = recorded.entries[-1].fact
    assert isinstance(fact, RunFinished)
    return str((fact.error or {}).get("message", ""))


@pytest.mark.parametrize(("tries", "status"), [(49, "completed"), (50, "failed")])
async def test_a_run_that_gets_on_is_given_up_when_it_has_ended_fifty_workers(
    world: World, tries: int, status: str
) -> None:
    run_id = await died(world)
    await tried(world, run_id, tries)
    assert await world.status(run_id) == status
    gave_up = "50 workers that executed it have died" in await reason(world, run_id)
    assert gave_up is (status == "failed")


@pytest.mark.parametrize(("tries", "status"), [(4, "completed"), (5, "failed")])
async def test_a_run_of_which_nothing_was_finished_is_given_up_after_five_workers(
    world: World, tries: int, status: str
) -> None:
    world.may_end.set()
    run_id = await world.begun(QueuePlace())
    await tried(world, run_id, tries)
    assert await world.status(run_id) == status
    assert world.looks == (0 if status == "failed" else 2)
    gave_up = "5 workers that took it have died." in await reason(world, run_id)
    assert gave_up is (status == "failed")


@pytest.mark.parametrize(("after", "status"), [("1", "completed"), ("1000", "failed")])
async def test_what_was_finished_before_a_run_was_queued_again_does_not_count(
    world: World, after: str, status: str
) -> None:
    """The submission is named by the position of the fact that queued it."""
    run_id = await died(world)
    await tried(world, run_id, 5, submission=after)
    assert await world.status(run_id) == status


async def test_a_run_whose_session_is_busy_is_put_back_and_executed_then(world: World) -> None:
    """One run of a session at a time, also where the dispatch gives out both: no failed try."""
    world.may_end.set()
    run_id = await world.begun(QueuePlace())
    run = await find_run(world.services.journal, run_id)
    lease = await world.services.journal.acquire(run.session_id, "run_other", "host:2:2+w.1", 60)
    worker = world.worker(ends_when_idle=True)
    job = Job(run_id=run_id, session_id=run.session_id, submission="1", tries=3)
    end = await worker._execution.execute(job)  # what it makes of the job is not seen from outside
    assert end.again == job.put_back(2.0, is_failed_try=False)
    assert (world.looks, await world.status(run_id)) == (0, "queued")
    await world.services.journal.release(lease)
    await worker.run()
    assert (world.looks, await world.status(run_id)) == (2, "completed")


async def refused_with(world: World, run_id: str, error: Exception, tries: int = 0) -> JobEnd:
    """What becomes of a job whose run raises that when a worker takes it."""
    run = await find_run(world.services.journal, run_id)
    execution = world.worker()._execution  # what it makes of the job is not seen from outside

    async def raising(job: Job) -> JobEnd:
        raise error

    execution._execute_job = raising  # type: ignore[method-assign]  # see above
    return await execution.execute(
        Job(run_id=run_id, session_id=run.session_id, submission="1", tries=tries)
    )


@pytest.mark.parametrize("error", [EnvironmentRefusedError("no key"), ZeroDivisionError("odd")])
async def test_a_run_that_a_worker_refuses_is_left_to_others_and_never_given_up_for_it(
    world: World, error: Exception
) -> None:
    """A-181: others may take it at once; this worker tries it again, later each time."""
    run_id = await world.begun(QueuePlace())
    execution = world.worker()._execution
    execution._execute_job = returning(error)  # type: ignore[method-assign]  # as `refused_with`
    job = Job(run_id=run_id, session_id="ses", submission="1", tries=40)
    ends = [await execution.execute(job) for _ in range(9)]
    assert {end.again for end in ends} == {job.put_back(is_failed_try=False)}
    lacks = [end.lack for end in ends if end.lack is not None]
    assert [lack.again_s for lack in lacks] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert all(lack.is_of_run for lack in lacks)
    assert str(error) in lacks[0].parts[0]
    assert await world.status(run_id) == "queued"


async def test_a_worker_tells_that_its_folder_is_gone_before_a_run_meets_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minions.interfaces.worker.worker._LOOK_LEFT_S", 0.02)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    worker = world.worker()
    working = asyncio.ensure_future(worker.run())
    expected = f"its folder {home}, which was removed or replaced"
    home.rmdir()
    async with asyncio.timeout(HANG_S):
        while [each.problem for each in await worker_records(worker._state)] != [expected]:  # noqa: ASYNC110  # of another task
            await asyncio.sleep(0.01)
    assert await worker.problem() == f"it lacks {expected}"
    worker.stop()
    await working


async def test_a_worker_that_stood_still_tells_again_what_it_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others removed it when they took it for dead."""
    monkeypatch.setattr("minions.interfaces.worker.worker._LOOK_LEFT_S", 0.02)
    worker = world.worker()
    working = asyncio.ensure_future(worker.run())
    async with asyncio.timeout(HANG_S):
        while not (told := await worker_records(worker._state)):  # noqa: ASYNC110  # of another task
            await asyncio.sleep(0.01)
        assert [each.version for each in told] == [build_version()]
        await worker._left.remove()
        assert await worker_records(worker._state) == []
        worker._engine.silences += 1
        while await worker_records(worker._state) != told:  # noqa: ASYNC110  # of another task
            await asyncio.sleep(0.01)
    worker.stop()
    await working


async def test_a_run_that_waited_too_long_for_a_worker_that_can_execute_it_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A-181: time counts, and not how many workers refused it."""
    monkeypatch.setattr("minions.interfaces.worker.worker._LOOK_LEFT_S", 0.02)
    world.may_end.set()
    odd = await world.begun(QueuePlace(needs=("tool:rare",)))
    patient = world.worker()
    working = asyncio.ensure_future(patient.run())
    usual = await world.begun(QueuePlace(needs=("tool:look",)))
    async with asyncio.timeout(HANG_S):
        while await world.status(usual) != "completed":  # noqa: ASYNC110  # of another task
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert await world.status(odd) == "queued"
    patient.stop()
    await working
    hasty = world.worker(give_up_after="0.001s")
    working = asyncio.ensure_future(hasty.run())
    async with asyncio.timeout(HANG_S):
        while await world.status(odd) != "failed":  # noqa: ASYNC110  # of another task
            await asyncio.sleep(0.01)
    hasty.stop()
    await working
    assert "no worker could execute it, for each lacks: the tool 'rare'" in await reason(world, odd)


async def test_what_may_pass_is_no_failed_try(world: World) -> None:
    run_id = await world.begun(QueuePlace())
    for error in (JournalError("away"), EnvironmentRefusedError("later", code="stopping")):
        end = await refused_with(world, run_id, error, tries=4)
        assert end.again is not None
        assert (end.again.tries, end.again.delay_s) == (4, 2.0)
    assert await world.status(run_id) == "queued"
    gone = await refused_with(world, run_id, NotFoundError("no such run", code="unknown-run"))
    assert gone.again is None


async def test_a_run_that_has_ended_is_not_given_up_after_all(world: World) -> None:
    world.may_end.set()
    run_id = await world.begun(QueuePlace())
    await world.worker(ends_when_idle=True).run()
    await tried(world, run_id, 50)
    assert await world.status(run_id) == "completed"


async def test_a_run_whose_journal_is_away_is_given_up_later(world: World) -> None:
    run_id = await world.begun(QueuePlace())
    execution = world.worker()._execution
    run = await find_run(world.services.journal, run_id)
    job = Job(run_id=run_id, session_id=run.session_id, submission="1", tries=50)

    async def away(*_: object, **__: object) -> None:
        raise JournalError("away")

    append = world.services.journal.append
    world.services.journal.append = away  # type: ignore[method-assign,assignment]  # for a while
    end = await execution.execute(job)
    assert end.again == job.put_back(2.0, is_failed_try=False)
    world.services.journal.append = append  # type: ignore[method-assign]
    assert (await execution.execute(job)).again is None
    assert await world.status(run_id) == "failed"


# --- what an execution heeds, and what it tells ---------------------------------------------------


async def job_of(world: World, run_id: str) -> Job:
    run = await find_run(world.services.journal, run_id)
    return Job(run_id=run_id, session_id=run.session_id, submission="1")


@pytest.mark.parametrize(("idle", "status"), [(4, "completed"), (5, "failed")])
async def test_a_run_whose_last_five_executions_finished_nothing_is_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch, idle: int, status: str
) -> None:
    monkeypatch.setattr(run_execution, "idle_executions", lambda _: idle)
    world.may_end.set()
    run_id = await world.begun(QueuePlace())
    await world.worker()._execution.execute(await job_of(world, run_id))
    assert await world.status(run_id) == status
    assert ("5 executions finished nothing" in await reason(world, run_id)) is (status == "failed")


@pytest.mark.parametrize(("has_ended", "status"), [(True, "completed"), (False, "failed")])
async def test_child_runs_that_ended_are_work_of_the_run_around_them(
    world: World, monkeypatch: pytest.MonkeyPatch, has_ended: bool, status: str
) -> None:
    """Five workers that held it may die while others finish its items."""
    monkeypatch.setattr(run_execution, "idle_executions", lambda _: 5)
    world.may_end.set()
    run_id = await world.begun(QueuePlace())
    child = await world.begun(QueuePlace())
    if has_ended:
        monkeypatch.setattr(run_execution, "child_runs_start", lambda _: child)
        await world.worker()._execution.execute(await job_of(world, child))
        monkeypatch.setattr(run_execution, "idle_executions", lambda _: 0)
        await world.worker()._execution.execute(await job_of(world, child))
        monkeypatch.setattr(run_execution, "idle_executions", lambda _: 5)
    await world.worker()._execution.execute(await job_of(world, run_id))
    assert await world.status(run_id) == status


async def test_a_run_that_waits_for_child_runs_or_has_lost_its_parent_is_not_executed(
    world: World,
) -> None:
    run_id = await world.begun(QueuePlace())
    execution, job = world.worker()._execution, await job_of(world, run_id)
    later = JobEnd(again=job.put_back(7.0, is_failed_try=False))
    execution._parents.looked_at_later = lambda job: later  # type: ignore[method-assign]  # as they say
    execution._parents.waits = returning(True)  # type: ignore[method-assign]
    assert await execution.execute(job) == later
    execution._parents.waits = returning(False)  # type: ignore[method-assign]
    execution._parents.is_orphan = returning(True)  # type: ignore[method-assign]
    assert await execution.execute(job) == JobEnd()
    assert (world.looks, await world.status(run_id)) == (0, "queued")


def returning(value: Any) -> Any:  # Any: of whichever method it stands for
    async def method(*_: object, **__: object) -> Any:  # Any: likewise
        if isinstance(value, Exception):
            raise value
        return value

    return method


@pytest.mark.parametrize("error", [JournalError("away"), EnvironmentRefusedError("no server")])
async def test_a_run_has_ended_also_where_others_cannot_be_told(
    world: World, error: Exception
) -> None:
    world.may_end.set()
    run_id = await world.begun(QueuePlace())
    execution = world.worker()._execution
    execution._parents.ended = returning(error)  # type: ignore[method-assign]  # see above
    assert await execution.execute(await job_of(world, run_id)) == JobEnd()
    assert await world.status(run_id) == "completed"


async def test_a_run_is_handed_over_before_its_job_is(world: World) -> None:
    """Whoever takes the job next finds no lease of this worker."""
    world.ticks_to_end = 50
    run_id = await world.begun(QueuePlace())
    task = asyncio.ensure_future(world.worker()._execution.execute(await job_of(world, run_id)))
    await until_looked(world, 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await world.services.journal.held_leases() == []
    assert await world.status(run_id) == "interrupted"


async def test_a_run_whose_end_was_not_recorded_is_put_back_and_its_worker_known_as_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.may_end.set()
    run_id = await world.begun(QueuePlace())
    execution, job = world.worker()._execution, await job_of(world, run_id)
    gone: list[str] = []
    monkeypatch.setattr(execution._runtime, "has_ended", gone.append)
    monkeypatch.setattr(AgentRun, "has_recorded_end", property(lambda _: False))
    end = await execution.execute(job)
    assert end.again == job.put_back(2.0, is_failed_try=False)
    assert len(gone) == 1
    assert gone[0].startswith("host:1:1+w")


async def test_a_run_that_waits_for_child_runs_is_queued_for_them_and_its_worker_known_as_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.may_end.set()
    run_id = await world.begun(QueuePlace())
    execution, job = world.worker()._execution, await job_of(world, run_id)
    gone: list[str] = []
    later = JobEnd(again=job.put_back(7.0, is_failed_try=False))
    monkeypatch.setattr(execution._runtime, "has_ended", gone.append)
    monkeypatch.setattr(AgentRun, "child_waits", property(lambda _: ("a child",)))
    execution._parents.queued_again = returning(later)  # type: ignore[method-assign]  # as it says
    assert await execution.execute(job) == later
    assert len(gone) == 1


@pytest.mark.parametrize(("recipe", "status"), [(RECIPE, "completed"), (ASKS, "needs_decision")])
async def test_whoever_waits_for_questions_is_told_of_runs_that_begin_to_wait(
    world: World, recipe: str, status: str
) -> None:
    (world.folder / "steps.yaml").write_text(recipe, "utf-8")
    world.may_end.set()
    run_id = await world.begun(QueuePlace())
    execution, told = world.worker()._execution, list[str]()
    execution._on_waiting = told.append
    assert await execution.execute(await job_of(world, run_id)) == JobEnd()
    assert await world.status(run_id) == status
    assert told == ([run_id] if recipe is ASKS else [])


@pytest.mark.parametrize(
    ("states", "gets_on"),
    [
        (["started"], False),
        (["resumed"], False),
        (["waiting"], False),
        (["started", "resumed", "waiting"], False),
        (["started", "finished"], True),
        (["failed"], True),
    ],
)
async def test_only_what_came_to_an_end_lets_a_run_be_tried_more_than_five_times(
    world: World, states: Sequence[str], *, gets_on: bool
) -> None:
    run_id = await world.begun(QueuePlace())
    job = evolve(await job_of(world, run_id), tries=5)
    rows = [entry_of("step", state, {}) for state in states]
    world.services.journal.entries = returning(rows)  # type: ignore[method-assign]  # of the run
    found = await world.worker()._execution._reason_to_give_up(job)
    assert (found is None) is gets_on


async def test_the_parent_of_a_run_that_is_given_up_is_told(world: World) -> None:
    run_id = await world.begun(QueuePlace())
    execution, told = world.worker()._execution, list[str]()

    async def child_ended(recorded: RecordedRun) -> None:
        told.append(recorded.run_id)
        raise JournalError("away")  # which ends no worker

    execution._parents.child_ended = child_ended  # type: ignore[method-assign]  # notes it
    job = evolve(await job_of(world, run_id), tries=50)
    assert await execution.execute(job) == JobEnd()
    assert told == [run_id]


@pytest.mark.parametrize("tries", [0, 5, 50])
async def test_the_job_of_a_run_that_was_deleted_ends(world: World, tries: int) -> None:
    """However many workers had it: nothing is left that could fail."""
    job = Job(run_id="run_gone", session_id="ses_gone", submission="1", tries=tries)
    assert await world.worker()._execution.execute(job) == JobEnd()


async def test_a_run_that_came_from_a_file_is_not_executed_whatever_its_note_says(
    world: World,
) -> None:
    run_id = await world.begun(QueuePlace())
    execution, job = world.worker()._execution, await job_of(world, run_id)
    recorded = await load_recorded_run(world.services.journal, run_id)
    assert await execution._end_at_once(job, recorded) is None
    imported = SimpleNamespace(has_ended=False, noted=StartNote(is_imported=True))
    assert await execution._end_at_once(job, cast("RecordedRun", imported)) == JobEnd()


# --- runs without a job ---------------------------------------------------------------------------


@mutable
class Asked:
    """How often journal and engine were asked."""

    runs: int = 0
    jobs: int = 0

    def counting(self, worker: Worker, world: World) -> Reconciliation:
        runs, jobs = world.services.journal.runs, worker._engine.jobs

        async def counted_runs(*words: Any, **more: Any) -> Any:  # Any: handed on
            self.runs += 1
            return await runs(*words, **more)

        async def counted_jobs(*words: Any) -> Any:  # Any: handed on
            self.jobs += 1
            return await jobs(*words)

        world.services.journal.runs = counted_runs  # type: ignore[method-assign]
        worker._engine.jobs = counted_jobs  # type: ignore[method-assign,assignment]
        return worker._reconciliation


async def test_what_is_queued_without_a_job_is_submitted_page_by_page_the_oldest_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unexecuted_runs, "_PAGE", 2)
    monkeypatch.setattr(unexecuted_runs, "_PAGES", 2)
    world.may_end.set()
    runs = [await world.begun(QueuePlace()) for _ in range(7)]
    worker, asked = world.worker(ends_when_idle=True, slots=1), Asked()
    looks = asked.counting(worker, world)
    assert [await looks.look() for _ in range(3)] == [4, 3, 0]
    assert asked.runs == 3 + 3 + 3  # two pages of queued runs each time, one of interrupted ones
    submitted: list[str] = []

    async def execute(job: Job) -> JobEnd:
        submitted.append(job.run_id)
        return JobEnd()

    await worker._engine.serve(execute, worker.plan, asyncio.Event())
    assert submitted == [*runs[3:], *runs[:3]]


async def test_where_nothing_is_queued_no_job_is_asked_for(world: World) -> None:
    await world.begun(None)
    asked = Asked()
    assert await asked.counting(world.worker(), world).look() == 0
    assert (asked.runs, asked.jobs) == (2, 0)


async def test_a_run_is_submitted_again_under_the_next_name_that_no_ended_job_has(
    world: World,
) -> None:
    run_id = await world.begun(QueuePlace())
    worker = world.worker(ends_when_idle=True)
    tried: list[tuple[int, int]] = []

    async def execute(job: Job) -> JobEnd:
        tried.append((job.number, job.tries))
        return JobEnd()

    for _ in range(3):
        assert await worker._reconciliation.look() == 1
        assert await worker._reconciliation.look() == 0  # it has a job by now
        await worker._engine.serve(execute, worker.plan, asyncio.Event())
    assert tried == [(0, 0), (1, 0), (2, 0)]
    assert await world.status(run_id) == "queued"


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_run_that_a_living_worker_executes_is_submitted_by_no_other(
    world: World, *, is_gone: bool
) -> None:
    run_id = await world.begun(QueuePlace())
    executing = asyncio.ensure_future(
        world.worker()._execution.execute(await job_of(world, run_id))
    )
    await until_looked(world, 2)
    other = world.worker()
    other._runtime.is_worker_gone = lambda worker_id: is_gone  # type: ignore[method-assign]  # says so
    assert await other._reconciliation.look() == int(is_gone)
    world.may_end.set()
    await executing
    assert await other._reconciliation.look() == 0


async def test_the_job_is_that_of_the_newest_fact_that_queued_the_run(world: World) -> None:
    run_id = await world.begun(QueuePlace())
    runtime = world.runtime("submitter")
    recorded = await load_recorded_run(world.services.journal, run_id)
    recipe = runtime.recipes.get(str(world.folder / "steps.yaml"))
    again = runtime.executor(recipe).prepare_resume(recorded, recipe=recipe)
    await RunQueue(None, SystemClock()).put(again, QueuePlace(priority=3))
    newest = (await load_recorded_run(world.services.journal, run_id)).entries[-1]
    worker = world.worker()
    assert await worker._reconciliation.look() == 1
    (view,) = await worker._engine.jobs([run_id])
    assert (view.job.submission, view.job.priority) == (str(newest.position), 3)


async def test_what_nobody_queued_is_not_submitted_whatever_its_row_says(world: World) -> None:
    run_id = await world.begun(None)
    worker = world.worker()
    assert await worker._reconciliation.submit_missing(await world.services.journal.runs()) == 0
    assert await worker._engine.jobs([run_id]) == []


async def test_a_job_that_somebody_else_submitted_meanwhile_is_not_submitted_twice(
    world: World,
) -> None:
    run_id = await world.begun(QueuePlace())
    worker, job = world.worker(), await job_of(world, run_id)
    assert await worker._reconciliation._put(job) == job
    assert await worker._reconciliation._put(job) is None
    assert [each.job for each in await worker._engine.jobs([run_id])] == [job]


async def test_a_run_that_has_ended_since_it_was_listed_is_not_submitted(world: World) -> None:
    world.may_end.set()
    await world.begun(QueuePlace())
    rows = await world.services.journal.runs()
    await world.worker(ends_when_idle=True).run()
    worker = world.worker()
    assert await worker._reconciliation.submit_missing(rows) == 0
    assert await worker._engine.jobs([row.run_id for row in rows]) == []
