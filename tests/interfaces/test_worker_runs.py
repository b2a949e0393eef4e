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
from minions.contracts.json_values import JsonValue
from minions.contracts.queue_places import QueuePlace
from minions.contracts.tools import Effect, Toolbox
from minions.engine.compile.extensions import Extensions
from minions.engine.history.lookup import find_run
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
