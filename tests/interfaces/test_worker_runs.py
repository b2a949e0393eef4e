"""What a worker does with runs that it should not execute, cannot, or has to hand over."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest
from attrs import evolve, field, mutable

from builders import fake_tool
from minions.adapters.dispatch.local_dispatch import LocalDispatch
from minions.adapters.stores.state_store import MemoryState
from minions.contracts.dispatch import Job, WorkerPlan
from minions.contracts.facts import RunFinished
from minions.contracts.json_values import JsonValue
from minions.contracts.queue_places import QueuePlace
from minions.contracts.tools import Effect, Toolbox
from minions.engine.compile.extensions import Extensions
from minions.engine.history.lookup import find_run
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.services import NullLog, Services, SystemClock
from minions.interfaces.run_queue import RunQueue
from minions.interfaces.schedule_store import ScheduleStore
from minions.interfaces.server.live.waiting_notices import WaitingNotices
from minions.interfaces.settings import Settings
from minions.interfaces.wiring.runtime import Runtime, make_runtime
from minions.interfaces.worker.worker import Worker, WorkerRuntime
from patience import HANG_S

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

    def runtime(self, name: str) -> Runtime:
        async def look(_arguments: Mapping[str, JsonValue]) -> object:
            self.looks += 1
            if self.looks > 1:
                await self.may_end.wait()
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

    def worker(self, **plan: object) -> Worker:
        name = "host:1:1+w"
        return Worker(
            WorkerRuntime(Settings(no_store=True), self.runtime(name), name=name, folder=None),
            LocalDispatch(SystemClock()),
            evolve(WorkerPlan(name=name), **plan),  # type: ignore[arg-type]  # of a test
            NullLog(),
            notices=WaitingNotices((), self.services.journal, MemoryState(), NullLog(), page=None),
            schedules=ScheduleStore(MemoryState()),
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
    assert await worker.problem() is None
    worker.stop()
    assert await worker.problem() == "stopping"
    await worker.run()
    await worker.aclose()


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
    gave_up = "5 workers that took it have died or refused it" in await reason(world, run_id)
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
