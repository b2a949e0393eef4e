"""Runs of workers that can go on only at a known time: nothing is held for them meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from minions.contracts.journal.facts import DecisionRecorded, RunBeginning, RunFinished
from minions.interfaces.worker.run_execution import MOST_PAUSES
from timed_world import World

MINUTES = 600.0
ASKED = "id: r\nsteps:\n  - {id: sure, ask: Send it?, timeout: 10m, default: yes}\n"
GOALS = "id: r\nsteps:\n  - {id: first, goal: one}\n  - {id: second, goal: two}\n"
LOOP = "id: r\nsteps:\n  - {id: each, goal: '{{ loop.item }}', loop: [a, b, c, d, e, f, g, h]}\n"
MIXED = (
    "id: r\nexecution_mode: parallel\nsteps:\n"
    "  - {id: sure, ask: Send it?}\n  - {id: first, goal: one}\n"
)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("minions.interfaces.worker.worker._LOOK_LOCAL_S", 10.0)  # fewer polls
    return World(tmp_path)


def test_a_question_whose_time_is_over_is_answered_by_its_default(world: World) -> None:
    """A-146: no worker holds anything for it meanwhile, nor has to be alive."""

    async def work() -> None:
        run_id = await world.queued(ASKED)
        await world.work()
        assert await world.status(run_id) == "needs_decision"
        assert await world.services.journal.held_leases() == []
        await asyncio.sleep(MINUTES - 1)
        await world.work()
        assert await world.status(run_id) == "needs_decision"
        resumed = [each for each in await world.facts(run_id, "run") if each.state == "resumed"]
        assert len(resumed) == 1  # to execute what was queued; nobody looked at it again
        await asyncio.sleep(1)
        await world.work()
        assert await world.status(run_id) == "completed"

    world.run(work())


ESCALATED = """
id: r
permissions:
  allow_write: true
  requires_approval:
    - {tool: saveState, deciders: [ann], expires: 10m, then: {ask: [boss]}}
steps:
  - {id: save, tool: saveState, params: {key: a, value: 1}}
"""


def test_an_approval_that_nobody_gives_in_time_is_put_to_others_and_then_rejected(
    world: World,
) -> None:
    """A-169: no process runs when the time is over; the worker that comes next does it."""

    async def work() -> None:
        run_id = await world.queued(ESCALATED)
        await world.work()
        for deciders in (["ann"], ["boss"]):
            assert await world.status(run_id) == "needs_decision"
            end = (await world.facts(run_id, "run"))[-1].fact
            assert isinstance(end, RunFinished)
            assert (end.waiting or [{}])[0]["deciders"] == deciders
            await asyncio.sleep(3 * MINUTES)
            await world.work()
        assert await world.status(run_id) == "failed"
        (taken,) = [each.fact for each in await world.facts(run_id, "decision")][-1:]
        assert isinstance(taken, DecisionRecorded)
        assert (taken.is_default, taken.reason) == (True, "nobody decided within 10m")

    world.run(work())


def test_a_worker_at_work_notices_that_a_time_has_come(world: World) -> None:
    async def work() -> None:
        run_id = await world.queued(ASKED)
        await world.work(MINUTES + 10)
        assert await world.status(run_id) == "completed"
        end = (await world.facts(run_id, "run"))[-1]
        assert 0 <= (end.at - world.services.clock.now()).total_seconds() + 10 <= 6

    world.run(work())


def test_a_question_without_a_time_waits_for_a_person(world: World) -> None:
    async def work() -> None:
        run_id = await world.queued("id: r\nsteps:\n  - {id: sure, ask: Send it?}\n")
        await world.work(2 * MINUTES)
        assert await world.status(run_id) == "needs_decision"

    world.run(work())


def test_one_of_two_workers_resumes_a_run_that_is_due(world: World) -> None:
    async def work() -> None:
        run_id = await world.queued(ASKED)
        await world.work()
        await asyncio.sleep(MINUTES)
        await asyncio.gather(*(world.work(20) for _ in range(3)))
        assert await world.status(run_id) == "completed"
        facts = [each.fact for each in await world.facts(run_id, "run")]
        assert sum(isinstance(each, RunBeginning) and bool(each.queued) for each in facts) == 2
        assert sum(isinstance(each, RunFinished) for each in facts) == 2

    world.run(work())


def test_a_run_whose_server_wants_to_be_left_alone_ends_its_job_until_then(world: World) -> None:
    async def work() -> None:
        world.server.refuses = lambda said: 600.0 if said == "two" and quiet() else None

        def quiet() -> bool:
            return world.time.monotonic() < 600

        run_id = await world.queued(GOALS)
        await world.work()  # it ends: nothing is left to do now
        assert await world.status(run_id) == "queued"
        assert await world.services.journal.held_leases() == []
        until = (await world.place(run_id)).not_before
        assert until is not None
        assert 600 <= (until - world.time.now()).total_seconds() <= 661
        await world.work(700)
        assert await world.status(run_id) == "completed"
        assert [said for said, _ in world.server.asked] == ["one", "two", "two"]

    world.run(work())


def test_a_short_wait_is_made_in_its_place(world: World) -> None:
    async def work() -> None:
        answers = iter((20.0, None))
        world.server.refuses = lambda _said: next(answers, None)
        run_id = await world.queued("id: r\nsteps:\n  - {id: first, goal: one}\n")
        await world.work()
        assert await world.status(run_id) == "completed"
        assert [at for _, at in world.server.asked] == [0, 20]

    world.run(work())


def test_runs_that_find_the_server_closed_ask_it_nothing_and_pause_too(world: World) -> None:
    async def work() -> None:
        world.server.refuses = lambda _said: 300.0 if world.time.monotonic() < 300 else None
        runs = [await world.queued("id: r\nsteps:\n  - {id: a, goal: one}\n") for _ in range(12)]
        await world.work()
        asked = len(world.server.asked)
        assert asked < len(runs)
        assert {await world.status(each) for each in runs} == {"queued"}
        await world.work(400)
        assert {await world.status(each) for each in runs} == {"completed"}
        assert len(world.server.asked) == asked + len(runs)

    world.run(work())


def test_the_items_of_a_loop_behind_the_one_that_waits_do_not_start(world: World) -> None:
    async def work() -> None:
        world.server.refuses = lambda said: (
            300.0 if said == "c" and world.time.monotonic() < 300 else None
        )
        run_id = await world.queued(LOOP)
        await world.work()
        assert await world.status(run_id) == "queued"
        started = {each.key for each in await world.facts(run_id, "step")}
        assert not any("/4" in key for key in started), started
        await world.work(400)
        assert await world.status(run_id) == "completed"
        said = [said for said, _ in world.server.asked]
        assert said == ["a", "b", "c", *"cdefgh"]  # nothing that was answered is asked again

    world.run(work())


def test_a_run_that_also_waits_for_a_person_can_be_decided_meanwhile(world: World) -> None:
    async def work() -> None:
        world.server.refuses = lambda _said: 300.0 if world.time.monotonic() < 300 else None
        run_id = await world.queued(MIXED)
        await world.work()
        assert await world.status(run_id) == "needs_decision"
        end = (await world.facts(run_id, "run"))[-1].fact
        assert isinstance(end, RunFinished)
        assert end.resumes_at is not None
        await world.work(400)
        assert await world.status(run_id) == "needs_decision"
        assert [said for said, _ in world.server.asked] == ["one", "one"]
        end = (await world.facts(run_id, "run"))[-1].fact
        assert isinstance(end, RunFinished)
        assert end.resumes_at is None

    world.run(work())


def test_a_run_does_not_pause_for_ever(world: World) -> None:
    async def work() -> None:
        world.server.refuses = lambda _said: 60.0
        run_id = await world.queued("id: r\nsteps:\n  - {id: first, goal: one}\n")
        await world.work(2 * MINUTES)
        assert await world.status(run_id) == "failed"
        pauses = [each for each in await world.facts(run_id, "run") if each.state == "resumed"]
        queued = [each for each in pauses if isinstance(each.fact, RunBeginning)]
        assert sum(bool(each.fact.queued) for each in queued) == MOST_PAUSES  # type: ignore[union-attr]  # as filtered

    world.run(work())


def test_each_wait_of_a_run_has_its_own_time(world: World) -> None:
    async def work() -> None:
        again = "  - {id: again, depends_on: [sure], ask: Really?, timeout: 10m, default: yes}\n"
        run_id = await world.queued(ASKED + again)
        await world.work(2 * MINUTES + 20)
        assert await world.status(run_id) == "completed"
        facts = [each.fact for each in await world.facts(run_id, "run")]
        assert sum(isinstance(each, RunBeginning) and bool(each.queued) for each in facts) == 3

    world.run(work())


def test_a_server_that_asks_for_days_has_refused(world: World) -> None:
    async def work() -> None:
        world.server.refuses = lambda _said: 2 * 86_400.0
        run_id = await world.queued("id: r\nsteps:\n  - {id: first, goal: one}\n")
        await world.work()
        assert await world.status(run_id) == "failed"  # a run pauses for a day at most

    world.run(work())
