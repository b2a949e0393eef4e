"""What workers store of the runs that they leave to others, and which runs wait for that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from unittest.mock import AsyncMock

import pytest
from attrs import evolve

from minions.adapters.dispatch.local_dispatch import LocalDispatch
from minions.adapters.stores.memory_stores import MemoryState
from minions.app.runs.left_runs import (
    LeftRuns,
    WaitingRun,
    WorkerRecord,
    cut_off_runs,
    left_runs,
    missing_parts,
    worker_records,
)
from minions.app.runs.paused_queues import QueuePause, put_pause
from minions.app.runs.run_needs import OfferedParts, needs_key
from minions.app.runs.run_queue import RunQueue
from minions.app.runs.work_lists import WorkLists
from minions.app.settings.settings import Settings
from minions.contracts.dispatch import Job, Lack, QueueLimits, QueueView, WorkerPlan, WorkerView
from minions.contracts.journal.facts import RunResumed, RunStarted
from minions.contracts.journal.journal import EntryDraft
from minions.contracts.journal.start_note import QueuePlace
from minions.contracts.runtime import IsWorkerGone, SystemClock
from minions.data.errors import EnvironmentRefusedError, JournalError
from minions.data.json_values import JsonValue
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import NullLog, Services
from minions.interfaces.worker.worker import UnableWorkers, WorkerRuntime
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import recipe_from_document
from minions.testing import ScriptedModel
from timed_world import World

_NOW: Final = datetime(2026, 5, 4, tzinfo=UTC)
_NEEDS: Final = ("tool:price@v1",)
_KIND: Final = Lack(parts=("the tool 'price'",))
_OF_RUN: Final = Lack(parts=("a key",), is_of_run=True, again_s=1)


def job(run: str = "run_1", needs: str = "abc") -> Job:
    return Job(run_id=run, session_id="s", submission=f"1-{needs}".rstrip("-"))


def left_of(state: MemoryState, name: str = "w1", *queues: str) -> LeftRuns:
    plan = WorkerPlan(name=name, queues=queues or ("default",))
    return LeftRuns(state, plan, OfferedParts(versions={}, package="1.0", folder=None))


async def record(state: MemoryState) -> WorkerRecord:
    (found,) = await worker_records(state)
    return found


async def test_a_worker_stores_what_it_lacks_when_that_changes_and_not_else() -> None:
    state = MemoryState()
    left = left_of(state)
    await left.leave(job(), _KIND)
    assert (await record(state)).lacks == {"abc": _KIND.parts}
    state.put = AsyncMock()  # type: ignore[method-assign]  # of a test
    await left.leave(job("run_2"), _KIND)
    await left.store()
    state.put.assert_not_awaited()
    await left.store(again=True)
    state.put.assert_awaited_once()
    assert (left.has_any, left.run_ids, left.name) == (True, {"run_1", "run_2"}, "w1")


async def test_what_cannot_be_stored_now_is_stored_later() -> None:
    state = MemoryState()
    left, put = left_of(state), state.put
    state.put = AsyncMock(side_effect=JournalError("away"))  # type: ignore[method-assign]  # of a test
    await left.leave(job(), _KIND)
    state.put = put  # type: ignore[method-assign]  # of a test
    await left.store()
    assert (await record(state)).lacks == {"abc": _KIND.parts}


async def test_runs_that_are_refused_are_counted_one_by_one_up_to_ten() -> None:
    state = MemoryState()
    left = left_of(state)
    for _ in range(12):
        await left.leave(job(), _OF_RUN)
    await left.leave(job("run_2"), _KIND)
    assert (left.times("run_1"), left.times("run_2")) == (10, 0)
    assert (await record(state)).lacks == {"run_1": ("a key",), "abc": _KIND.parts}
    left.took(job("run_1", "other"))
    assert (left.times("run_1"), left.run_ids) == (0, {"run_2"})
    await left.store()
    assert (await record(state)).lacks == {"abc": _KIND.parts}
    left.took(job("run_3"))  # it has what that kind needs by now
    await left.store()
    assert (await record(state)).lacks == {}
    assert not left.has_any


async def test_a_run_that_says_no_needs_is_left_by_its_id() -> None:
    state = MemoryState()
    left = left_of(state)
    await left.leave(job(needs=""), _KIND)
    assert (await record(state)).lacks == {"run_1": _KIND.parts}
    left.forget({"run_2"})
    assert left.has_any
    await left.leave(job("run_2", ""), _KIND)
    left.forget({"run_1"})
    assert left.run_ids == {"run_2"}
    await left.store()
    assert (await record(state)).lacks == {"run_2": _KIND.parts}


async def test_a_worker_names_a_hundred_of_what_it_leaves() -> None:
    state = MemoryState()
    left = left_of(state)
    for number in range(120):
        await left.leave(job(f"run_{number}", f"n{number}"), _KIND)
    assert len((await record(state)).lacks) == 100
    await left.leave(job("run_0", "n0"), Lack(parts=("more",)))
    assert (await record(state)).lacks["n0"] == ("more",)
    assert len(left.run_ids) == 120


async def test_what_a_worker_stored_is_removed_by_its_name() -> None:
    state = MemoryState()
    for name in ("w1", "w2"):
        await left_of(state, name).store()
    await left_of(state, "w1").remove("w2")
    assert [each.name for each in await worker_records(state)] == ["w1"]
    await left_of(state, "w1").remove()
    assert await worker_records(state) == []


async def test_a_worker_that_can_execute_nothing_lacks_that_for_every_run() -> None:
    journal, state = MemoryJournal(SystemClock()), MemoryState()
    left = left_of(state)
    await left.store()
    executor = AgentExecutor(ScriptedModel([]), services=Services(journal=journal))
    recipe = recipe_from_document(
        {"id": "r", "steps": [{"id": "a", "set": {"x": 1}}]}, Catalog(), file="r.yaml"
    )
    queued = await RunQueue(None, SystemClock()).put(executor.prepare(recipe), QueuePlace())
    assert await lacking(journal, state, lambda _: False) == []
    left.note_problem("its folder /gone")
    await left.store()
    [waiting] = await lacking(journal, state, lambda _: False)
    assert (waiting.run_id, waiting.parts) == (queued.run_id, ("its folder /gone",))
    assert await missing_parts(state, lambda _: False, None, "default", ()) == ("its folder /gone",)
    assert (await record(state)).all_lacks == ("its folder /gone",)
    await left.leave(job(), Lack(parts=("its folder /gone", "the tool 'price'")))
    assert (await record(state)).all_lacks == ("its folder /gone", "the tool 'price'")
    left.note_problem(None)
    left.took(job())
    await left.store()
    assert await lacking(journal, state, lambda _: False) == []


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"lacks": []}', '{"queues": []}', '"x"'])
def test_what_another_version_stored_is_not_known(text: str) -> None:
    assert WorkerRecord.of_text("w", text) is None


def test_a_run_is_named_before_its_kind() -> None:
    known = WorkerRecord(name="w", queues=(), lacks={"run_1": ("a",), "k": ("b",)})
    run: Any = WaitingRun(
        run_id="run_1", session_id="s", recipe="r", queue="q", position=1,
        since=SystemClock().now(), needs="k",
    )  # fmt: skip
    assert known.lacking(run) == ("a",)
    assert WorkerRecord(name="w", queues=(), lacks={"k": ("b",)}).lacking(run) == ("b",)
    assert WorkerRecord(name="w", queues=()).lacking(run) is None


async def queued(journal: MemoryJournal, place: QueuePlace) -> str:
    executor = AgentExecutor(ScriptedModel([]), services=Services(journal=journal))
    document: dict[str, JsonValue] = {"id": "r", "steps": [{"id": "a", "set": {"x": 1}}]}
    run = executor.prepare(recipe_from_document(document, Catalog()))
    await RunQueue(None, SystemClock()).put(run, place)
    return run.run_id


async def lacking(
    journal: MemoryJournal,
    state: MemoryState,
    is_gone: IsWorkerGone,
    living: Mapping[str, Collection[str]] | None = None,
) -> list[WaitingRun]:
    return list((await left_runs(journal, state, is_gone, living)).runs)


def nobody(_: str) -> bool:
    return False


async def test_a_run_waits_for_a_worker_where_all_of_its_queue_lack_something() -> None:
    journal, state = MemoryJournal(SystemClock()), MemoryState()
    first = await queued(journal, QueuePlace(needs=_NEEDS))
    second = await queued(journal, QueuePlace(needs=_NEEDS))
    await queued(journal, QueuePlace(name="other", needs=_NEEDS))
    await queued(journal, QueuePlace(needs=("tool:else",)))
    key = needs_key(_NEEDS)
    await left_of(state).leave(job(first, key), _KIND)
    found = await lacking(journal, state, nobody)
    assert [each.run_id for each in found] == [first, second]
    assert found[0].lacks == {"w1": _KIND.parts}
    assert (found[0].queue, found[0].needs, found[0].parts) == ("default", key, _KIND.parts)
    work = WorkLists(journal, state, None, nobody)
    assert await told_of(work, first) == (_KIND.parts, None, ())
    assert await lacking(journal, state, lambda name: name == "w1") == []


async def cut_off(journal: MemoryJournal) -> str:
    """The id of a run with which a worker had begun when it handed it over."""
    run_id = await queued(journal, QueuePlace(needs=_NEEDS))
    recorded = await load_recorded_run(journal, run_id)
    session_id, start = recorded.summary.session_id, recorded.entries[0].fact
    assert isinstance(start, RunStarted)
    resumed = RunResumed(recipe=start.recipe, document=start.document, note=start.note)
    lease = await journal.acquire(session_id, run_id, "w", 60.0, next_generation=True)
    await journal.append(lease, EntryDraft(key="run", fact=resumed))
    await journal.release(lease)
    return run_id


async def test_however_many_runs_were_cut_off_each_is_looked_at_in_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("minions.app.runs.left_runs._PAGE", 2)
    monkeypatch.setattr("minions.app.runs.left_runs.MOST_LOOKED", 3)
    journal, state = MemoryJournal(SystemClock()), MemoryState()
    first = [await queued(journal, QueuePlace(needs=_NEEDS)) for _ in range(3)]
    begun = [await cut_off(journal) for _ in range(5)]
    await left_of(state).leave(job(first[0], needs_key(_NEEDS)), _KIND)
    assert [row.run_id for row in await cut_off_runs(journal, nobody)] == begun
    looks = [await left_runs(journal, state, nobody, offset=at) for at in (0, 3, 6)]
    assert [each.run_id for look in looks for each in look.runs] == [*begun, *first]
    assert [look.has_more for look in looks] == [True, True, False]


def test_a_worker_tells_of_all_that_nobody_can_take_some_with_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("minions.app.runs.left_runs", "minions.interfaces.worker.worker"):
        monkeypatch.setattr(f"{place}.MOST_LOOKED", 1)
    world, notices = World(tmp_path), AsyncMock()

    async def work() -> None:
        ids = [await world.queued("id: r\nsteps: [{id: a, set: {x: 1}}]\n") for _ in range(3)]
        name = "host:1:1+w"
        plan = WorkerPlan(name=name)
        left = LeftRuns(world.state, plan, OfferedParts(versions={}, package="1.0", folder=None))
        for run_id in ids:
            await left.leave(job(run_id), _OF_RUN)
        runtime = WorkerRuntime(
            Settings(no_store=True), world.runtime(name), name=name, folder=None
        )
        unable = UnableWorkers(
            runtime,
            LocalDispatch(world.time),
            execution=AsyncMock(),
            left=left,
            notices=notices,
            state=world.state,
            log=NullLog(),
        )
        for _ in range(4):
            assert await unable.look() == 1
        told = [each.args[0].run_id for each in notices.tell_once.await_args_list]
        assert sorted(told) == sorted(ids)

    world.run(work())


async def told_of(work: WorkLists, run_id: str) -> tuple[Sequence[str], str | None, Sequence[str]]:
    """What is lacking, why no worker takes it, and who may."""
    found = await work.hindrance(run_id)
    assert found.run is not None
    return (found.lacks, found.not_taken, found.takers)


async def test_who_may_take_a_run_is_named_also_where_no_worker_has_met_it() -> None:
    journal, state = MemoryJournal(SystemClock()), MemoryState()
    run_id = await queued(journal, QueuePlace(needs=_NEEDS))
    await state.put("minions:worker:other", with_parts("other", queue="else").to_text())
    await state.put("minions:worker:unable", with_parts("unable", "cost").to_text())
    work = WorkLists(journal, state, None, nobody)
    assert await told_of(work, run_id) == (_KIND.parts, None, ())
    able = WorkerRecord(
        name="able",
        queues=("default",),
        parts=OfferedParts(versions={"tool:price": "v1"}, package="9", folder=None),
    )
    await state.put("minions:worker:able", able.to_text())
    assert await told_of(work, run_id) == ((), None, ("able",))
    await state.put("minions:worker:able", evolve(able, problem="its folder").to_text())
    assert await told_of(work, run_id) == (("its folder", *_KIND.parts), None, ())
    await put_pause(state, QueuePause(queue="default", reason="moved", since=_NOW))
    assert (await work.hindrance(run_id)).is_paused


async def test_runs_of_a_queue_without_a_living_worker_are_counted_and_say_so() -> None:
    """Although no worker lacks anything; a dead one serves nothing."""
    journal, state = MemoryJournal(SystemClock()), MemoryState()
    await left_of(state, "w1", "small").store()
    served = await queued(journal, QueuePlace(name="small"))
    large = [await queued(journal, QueuePlace(name="large")) for _ in range(2)]
    work = WorkLists(journal, state, None, nobody)
    assert await work.unserved() == {"large": 2}
    words = "the queue 'large' has no living worker"
    assert await told_of(work, large[0]) == ((), words, ())
    assert await told_of(work, served) == ((), None, ("w1",))
    assert (await work.hindrance("run_none")).run is None
    work = WorkLists(journal, state, None, lambda name: name == "w1")
    assert await work.unserved() == {"large": 2, "small": 1}
    paused = QueuePause(queue="large", reason="moved", since=SystemClock().now())
    await put_pause(state, paused)
    assert await told_of(work, large[0]) == ((), paused.words, ())


async def test_an_engine_says_what_waits_where_no_worker_lives() -> None:
    """Without a look at any run; it knows workers of other machines, too."""
    journal, state, engine = AsyncMock(), MemoryState(), AsyncMock(is_shared=True)
    await left_of(state, "w1", "small").store()
    await left_of(state, "w2", "large").store()
    alive = WorkerView(
        name="w1", queues=("small",), slots=1, taken=0, started_at=_NOW,
        seen_at=_NOW, is_alive=True,
    )  # fmt: skip
    engine.workers.return_value = [
        alive,
        evolve(alive, name="w2", queues=("large",), is_alive=False),
    ]
    engine.queues.return_value = [
        QueueView(limits=QueueLimits(name=name), waiting=number)
        for name, number in (("small", 3), ("large", 2), ("empty", 0))
    ]
    assert await WorkLists(journal, state, engine, nobody).unserved() == {"large": 2}
    assert journal.method_calls == []


async def test_a_run_is_told_of_also_where_nobody_can_say_who_lives() -> None:
    """What workers stored counts; that none lives is not said, for it is not known."""
    journal, state = MemoryJournal(SystemClock()), MemoryState()
    run_id = await queued(journal, QueuePlace(needs=_NEEDS))
    engine = AsyncMock(is_shared=True)
    engine.workers.side_effect = EnvironmentRefusedError("no answer", code="database-unreachable")
    work = WorkLists(journal, state, engine, nobody)
    assert await told_of(work, run_id) == ((), None, ())
    await left_of(state).leave(job(run_id, needs_key(_NEEDS)), _KIND)
    assert await told_of(work, run_id) == (_KIND.parts, None, ())


async def test_what_a_run_needs_is_what_its_newest_place_says() -> None:
    journal, state = MemoryJournal(SystemClock()), MemoryState()
    run_id = await queued(journal, QueuePlace(needs=("tool:else",)))
    executor = AgentExecutor(ScriptedModel([]), services=Services(journal=journal))
    again = executor.prepare_resume(await load_recorded_run(journal, run_id))
    await RunQueue(None, SystemClock()).put(again, QueuePlace(needs=_NEEDS))
    await left_of(state).leave(job("other", needs_key(_NEEDS)), _KIND)
    (found,) = await lacking(journal, state, nobody)
    assert (found.run_id, found.needs) == (run_id, needs_key(_NEEDS))


async def test_a_worker_of_the_queue_that_lacks_nothing_is_able() -> None:
    journal, state = MemoryJournal(SystemClock()), MemoryState()
    first = await queued(journal, QueuePlace(needs=_NEEDS))
    await left_of(state).leave(job(first, needs_key(_NEEDS)), _KIND)
    await left_of(state, "w2", "other").store()
    alive = {"w1": ("default",), "w2": ("other",)}
    assert len(await lacking(journal, state, nobody, alive)) == 1
    # Of a version that stores nothing:
    assert await lacking(journal, state, nobody, {**alive, "w3": ("default",)}) == []
    # What is stored of a dead one counts no more:
    assert await lacking(journal, state, nobody, {"w2": ("other",)}) == []
    await left_of(state, "w4").store()
    assert await lacking(journal, state, lambda _: False) == []


async def test_where_workers_lack_nothing_no_run_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    journal, state = MemoryJournal(SystemClock()), MemoryState()
    await left_of(state).store()
    monkeypatch.setattr(journal, "runs", AsyncMock(side_effect=AssertionError))
    assert await lacking(journal, state, lambda _: False) == []
    assert await lacking(journal, state, nobody, {"w2": ("default",)}) == []


def with_parts(name: str, *tools: str, queue: str = "default") -> WorkerRecord:
    parts = OfferedParts(versions={f"tool:{each}": "" for each in tools}, package="1", folder=None)
    return WorkerRecord(name=name, queues=(queue,), parts=parts)


_PRICE: Final = ("the tool 'price'",)
_NOBODY: Final = ("a worker of the queue 'default'",)


@pytest.mark.parametrize(
    ("workers", "living", "expected"),
    [
        ([], None, _NOBODY),
        ([with_parts("w1", "price", queue="slow")], None, _NOBODY),
        ([with_parts("gone", "price")], None, _NOBODY),
        ([with_parts("w1", "price")], {}, _NOBODY),
        ([with_parts("w1")], None, _PRICE),
        ([with_parts("w1"), with_parts("w2", "other")], None, _PRICE),
        ([with_parts("w1"), with_parts("w2", "price")], None, ()),
        ([with_parts("w1"), WorkerRecord(name="w2", queues=("default",))], None, ()),
        ([with_parts("w1")], {"w1": ("default",)}, _PRICE),
        ([with_parts("w1")], {"w1": ("default",), "just begun": ("default",)}, ()),
        ([with_parts("w1"), with_parts("w2", "price")], {"w1": ("default",)}, _PRICE),
    ],
)
async def test_what_no_living_worker_of_a_queue_has_is_known_before_a_run_is_queued(
    workers: Sequence[WorkerRecord],
    living: Mapping[str, Sequence[str]] | None,
    expected: Sequence[str],
) -> None:
    state = MemoryState()
    for each in workers:
        await state.put(f"minions:worker:{each.name}", each.to_text())
    is_gone = "gone".__eq__
    assert await missing_parts(state, is_gone, living, "default", ["tool:price"]) == expected
