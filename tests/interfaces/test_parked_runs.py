"""Runs at workers whose model calls wait for batches: they leave their slots until the answers are
there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from attrs import mutable

from batch_worlds import HOUR_S, model_at
from minions.adapters.stores.memory_stores import MemoryState
from minions.app.runs.run_queue import RunQueue
from minions.app.wiring import patient_runtime
from minions.contracts.journal.facts import RunBeginning
from minions.contracts.journal.run_rows import RunFilter
from minions.contracts.journal.start_note import QueuePlace, StartNote
from minions.data.json_values import JsonValue
from minions.testing.batch_endpoint import BatchEndpoint, BatchFate, BatchFaults, BatchForm
from timed_world import World, look_rarely

RECIPE = """
id: r
inputs: {name: string}
steps:
  - {id: greet, goal: "Greet {{ inputs.name }}"}
  - {id: end, goal: "Answer to: {{ greet }} {{ inputs.name }}"}
output: {text: "{{ end }}"}
"""
LOOP = """
id: r
inputs: {name: string}
steps:
  - {id: all, loop: [1, 2, 3, 4, 5, 6], goal: "{{ loop.item }} for {{ inputs.name }}"}
output: {count: "{{ all.successful }}"}
"""
ASKS = """
id: r
inputs: {name: string}
execution_mode: parallel
steps:
  - {id: greet, goal: "Greet {{ inputs.name }}"}
  - {id: sure, ask: "Send it?"}
output: {text: "{{ greet }}"}
"""


@mutable
class BatchedWorld(World):
    """Workers whose model is at a server with batches."""

    batches: BatchEndpoint | None = None
    waves: MemoryState | None = None

    async def queue(self, text: str, names: int = 1, by_s: float = 24 * HOUR_S) -> list[str]:
        """Runs of the recipe in the queue, each of another name."""
        (self.folder / "r.yaml").write_text(text, "utf-8")
        runtime = self.runtime("submitter")
        recipe = runtime.recipes.get(str(self.folder / "r.yaml"))
        by = self.time.now() + timedelta(seconds=by_s)
        note: Mapping[str, JsonValue] = StartNote(by=by).to_json()
        queue, found = RunQueue(None, self.time), list[str]()
        for number in range(names):
            run = runtime.executor(recipe).prepare(recipe, {"name": f"n{number}"}, note=note)
            found.append((await queue.put(run, QueuePlace())).run_id)
        return found

    async def work(self, seconds: float | None = None) -> None:
        """As of every world, with the end of the worker's process."""
        worker = self.worker(once=seconds is None)
        working = asyncio.ensure_future(worker.run())
        if seconds is not None:
            await asyncio.sleep(seconds)
            worker.stop()
        await working
        await worker.aclose()

    @property
    def sizes(self) -> list[int]:
        """Requests of each batch."""
        assert self.batches is not None
        return [len(each.requests) for each in self.batches.batches.values()]

    def expect_all_paid_once(self, calls: int) -> None:
        """Each call was answered in one batch, and none at once."""
        assert self.batches is not None
        self.batches.settle()
        assert not self.batches.live
        assert set(self.batches.submitted.values()) == {1}
        assert set(self.batches.paid.values()) == {1}
        assert self.batches.paid.total() == calls

    async def statuses(self) -> list[str]:
        """How the runs stand."""
        return [row.status for row in await self.services.journal.runs(RunFilter())]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchedWorld:
    look_rarely(monkeypatch, 300)
    world, store = BatchedWorld(tmp_path), MemoryState()
    monkeypatch.setattr(patient_runtime, "state_beside", lambda _journal: store)
    world.waves = store
    return world


async def serve(
    world: BatchedWorld,
    form: BatchForm = BatchForm.OPENAI,
    takes_s: float = HOUR_S,
    faults: BatchFaults | None = None,
) -> BatchEndpoint:
    """A server in the world's time, which its workers ask."""
    server = BatchEndpoint(form, now=world.time.now, takes_s=takes_s, faults=faults)
    await server.__aenter__()
    world.batches = server
    world.server = model_at(server)  # type: ignore[assignment]  # any model
    return server


@pytest.mark.parametrize("form", BatchForm)
def test_more_runs_than_slots_wait_for_one_batch_of_each_step(
    world: BatchedWorld, form: BatchForm
) -> None:
    """A-177: a worker with four slots has twenty runs under way."""

    async def work() -> None:
        server = await serve(world, form)
        await world.queue(RECIPE, 20)
        await world.work(2.5 * HOUR_S)
        assert set(await world.statuses()) == {"completed"}
        assert world.sizes == [20, 20]
        world.expect_all_paid_once(40)
        await server.__aexit__(None, None, None)

    world.run(work())


def test_a_run_without_patience_is_executed_beside_runs_that_wait(world: BatchedWorld) -> None:
    async def work() -> None:
        server = await serve(world)
        await world.queue(RECIPE, 8)
        quick = await world.queued("id: q\nsteps: [{id: a, set: {x: 1}}]\n")
        worker = world.worker()
        working = asyncio.ensure_future(worker.run())
        await world.time.sleep(60)
        assert await world.status(quick) == "completed"
        assert (await world.statuses()).count("queued") == 8
        worker.stop()
        await working
        await server.__aexit__(None, None, None)

    world.run(work())


def test_all_items_of_a_loop_are_in_one_batch(world: BatchedWorld) -> None:
    """An item that waits lets the next one begin, also where one is executed at a time."""

    async def work() -> None:
        server = await serve(world)
        (run_id,) = await world.queue(LOOP)
        await world.work(2 * HOUR_S)
        assert await world.status(run_id) == "completed"
        assert world.sizes == [6]
        world.expect_all_paid_once(6)
        await server.__aexit__(None, None, None)

    world.run(work())


@pytest.mark.parametrize("after_s", [1.0, 15.0, 0.5 * HOUR_S])
@pytest.mark.parametrize("form", BatchForm)
def test_another_worker_reads_what_one_that_ended_has_sent(
    world: BatchedWorld, form: BatchForm, after_s: float
) -> None:
    """A-177: also where the first one ended before the wave was sent."""

    async def work() -> None:
        server = await serve(world, form)
        await world.queue(RECIPE, 6)
        await world.work(after_s)
        await world.work(2.5 * HOUR_S)
        assert set(await world.statuses()) == {"completed"}
        world.expect_all_paid_once(12)
        await server.__aexit__(None, None, None)

    world.run(work())


def test_a_worker_that_ends_before_a_wave_is_sent_leaves_it_to_others(world: BatchedWorld) -> None:
    """They need not wait until its process counts as dead."""

    async def work() -> None:
        server = await serve(world)
        await world.queue(RECIPE, 6)
        await world.work(5)
        assert world.sizes == []
        await world.work(120)
        assert world.sizes == [6]
        await server.__aexit__(None, None, None)

    world.run(work())


def test_a_worker_that_takes_over_wakes_all_runs_of_the_wave(
    world: BatchedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that it did not execute, too: nobody waits for the next look."""
    monkeypatch.setattr("minions.interfaces.worker.run_execution.LOOK_AT_WAVES_S", 50 * HOUR_S)

    async def work() -> None:
        server = await serve(world)
        await world.queue(RECIPE, 20)
        await world.work(0.5 * HOUR_S)
        await world.work(2.5 * HOUR_S)
        assert set(await world.statuses()) == {"completed"}
        assert world.sizes == [20, 20]
        world.expect_all_paid_once(40)
        await server.__aexit__(None, None, None)

    world.run(work())


def test_a_run_may_outlive_many_workers(world: BatchedWorld) -> None:
    """A-177: waiting is no sign that a run ends its process."""

    async def work() -> None:
        server = await serve(world)
        await world.queue(RECIPE, 3)
        for _ in range(8):
            await world.work(100)
        await world.work(2.5 * HOUR_S)
        assert set(await world.statuses()) == {"completed"}
        world.expect_all_paid_once(6)
        await server.__aexit__(None, None, None)

    world.run(work())


def test_two_workers_at_once_ask_for_each_call_once(world: BatchedWorld) -> None:
    async def work() -> None:
        server = await serve(world)
        await world.queue(RECIPE, 12)
        await asyncio.gather(world.work(3 * HOUR_S), world.work(3 * HOUR_S))
        assert set(await world.statuses()) == {"completed"}
        world.expect_all_paid_once(24)
        await server.__aexit__(None, None, None)

    world.run(work())


def test_parked_runs_are_done_in_time(world: BatchedWorld) -> None:
    """A-177: what the batch did not answer is made at once, what it answered is kept."""

    async def work() -> None:
        server = await serve(world, takes_s=3 * HOUR_S)
        await world.queue(RECIPE, 8, by_s=2 * HOUR_S)
        await world.work(2 * HOUR_S)
        assert set(await world.statuses()) == {"completed"}
        server.settle()
        assert 0 < server.paid.total() < 8
        assert server.paid.total() + len(server.live) == 16
        await server.__aexit__(None, None, None)

    world.run(work())


def test_a_time_that_is_too_near_makes_calls_of_workers_at_once(world: BatchedWorld) -> None:
    async def work() -> None:
        server = await serve(world)
        await world.queue(RECIPE, 3, by_s=300)
        await world.work(200)
        assert set(await world.statuses()) == {"completed"}
        assert len(server.live) == 6
        assert not server.batches
        await server.__aexit__(None, None, None)

    world.run(work())


def test_a_person_is_asked_while_the_run_waits_for_a_batch(world: BatchedWorld) -> None:
    async def work() -> None:
        server = await serve(world)
        (run_id,) = await world.queue(ASKS)
        await world.work(600)
        assert await world.status(run_id) == "needs_decision"
        assert world.sizes == [1]
        await server.__aexit__(None, None, None)

    world.run(work())


@pytest.mark.parametrize("fate", [BatchFate.BUSY, BatchFate.EXPIRED, BatchFate.MISSING])
def test_what_a_batch_did_not_answer_is_asked_in_the_next_one(
    world: BatchedWorld, fate: BatchFate
) -> None:
    async def work() -> None:
        faults = BatchFaults(fate=lambda batch, _index: BatchFate.ANSWERED if batch else fate)
        server = await serve(world, faults=faults, takes_s=1_200)
        await world.queue(RECIPE, 5)
        await world.work(1.3 * HOUR_S)
        assert set(await world.statuses()) == {"completed"}
        assert world.sizes == [5, 5, 5]
        server.settle()
        assert server.paid.total() == 10
        await server.__aexit__(None, None, None)

    world.run(work())


def test_a_call_that_every_batch_refuses_fails_its_run(world: BatchedWorld) -> None:
    async def work() -> None:
        faults = BatchFaults(fate=lambda _batch, _index: BatchFate.BUSY)
        server = await serve(world, takes_s=300, faults=faults)
        await world.queue(RECIPE, 2, by_s=40 * HOUR_S)
        await world.work(5 * HOUR_S)
        assert set(await world.statuses()) == {"failed"}
        assert not server.paid.total()
        await server.__aexit__(None, None, None)

    world.run(work())


def test_a_worker_that_ends_when_it_is_idle_waits_in_its_place(world: BatchedWorld) -> None:
    async def work() -> None:
        server = await serve(world)
        await world.queue(RECIPE, 3)
        await world.work()
        assert set(await world.statuses()) == {"completed"}
        world.expect_all_paid_once(6)
        await server.__aexit__(None, None, None)

    world.run(work())


def test_a_parked_run_costs_few_rows(world: BatchedWorld) -> None:
    """However long its batch takes: it is executed when the answers are there."""

    async def work() -> None:
        server = await serve(world, takes_s=3 * HOUR_S)
        (run_id,) = await world.queue(RECIPE, by_s=100 * HOUR_S)
        await world.work(7 * HOUR_S)
        assert await world.status(run_id) == "completed"
        begun = [
            each.fact
            for each in await world.facts(run_id, "run")
            if isinstance(each.fact, RunBeginning)
        ]
        assert [bool(each.queued) for each in begun] == [True, False, True, False, True, False]
        assert [bool(StartNote.of(each.note).batch_waves) for each in begun] == [
            *(False, False, True, False, True, False)
        ]
        await server.__aexit__(None, None, None)

    world.run(work())


@pytest.mark.parametrize("has_batches", [True, False])
def test_a_worker_may_be_patient_for_runs_that_say_nothing(
    world: BatchedWorld, *, has_batches: bool
) -> None:
    """Where their provider has no batches, their calls are made at once."""

    async def work() -> None:
        server = BatchEndpoint(now=world.time.now, takes_s=HOUR_S, has_batches=has_batches)
        await server.__aenter__()
        world.batches = server
        world.server = model_at(server)  # type: ignore[assignment]  # any model
        world.patience_s = 8 * HOUR_S
        text = RECIPE.replace("name: string", "name: {type: string, default: Ada}")
        run_id = await world.queued(text)
        await world.work(2.5 * HOUR_S if has_batches else 60)
        assert await world.status(run_id) == "completed"
        assert len(server.live) == (0 if has_batches else 2)
        await server.__aexit__(None, None, None)

    world.run(work())
