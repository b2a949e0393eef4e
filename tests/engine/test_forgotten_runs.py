"""A journal in memory that nobody passed does not grow with every run."""

from __future__ import annotations

import asyncio

import pytest
from attrs import evolve

from minions.adapters.models.scripted import ScriptedModel
from minions.contracts.executions import RunStatus
from minions.data.errors import NotFoundError
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.sessions.runner import ChatAgent, StepRunner
from minions.engine.views.lookup import list_runs
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import load_recipe_text
from minions.testing.virtual_time import FakeClock

KEPT = 16
FAILS = "id: q\nsteps: [{id: a, set: {n: 1}}, {id: b, assert: a.n > 1}]\n"
SMALL = "id: small\nsteps: [{id: a, set: {n: 1}}]\n"


def recipe(text: str = SMALL) -> AgentRecipe:
    return load_recipe_text(text, "r.yaml", Catalog())


def executor(services: Services | None = None) -> AgentExecutor:
    return AgentExecutor(ScriptedModel(lambda _: "hello"), services=services)


async def test_of_finished_runs_only_the_newest_are_kept() -> None:
    services = Services()
    made = executor(services)
    ids = [(await made.execute(recipe())).run_id for _ in range(3 * KEPT)]
    assert [run.run_id for run in await list_runs(services.journal)] == ids[: -KEPT - 1 : -1]
    with pytest.raises(NotFoundError):
        await made.retry(ids[0])


async def test_a_run_that_failed_can_be_retried_right_after() -> None:
    made = executor(Services())
    failed = await made.execute(recipe(FAILS))
    again = await made.retry(failed.run_id)
    assert (again.run_id, again.status) == (failed.run_id, RunStatus.FAILED)


async def test_what_waits_for_a_person_is_kept() -> None:
    made = executor(Services())
    waits = await made.execute(recipe("id: q\nsteps: [{id: a, ask: 'Fine?'}]\n"))
    for _ in range(2 * KEPT):
        await made.execute(recipe())
    done = await made.resume(waits.run_id, decisions={"a": "answer:yes"})
    assert (done.status, done.output) == (RunStatus.COMPLETED, "yes")


async def test_runs_at_the_same_time_are_kept_while_they_go_on() -> None:
    services = Services()
    made = executor(services)
    done = await asyncio.gather(*(made.execute(recipe()) for _ in range(4 * KEPT)))
    assert all(each.status is RunStatus.COMPLETED for each in done)
    assert len(await list_runs(services.journal)) == KEPT


async def test_a_session_is_kept_however_often_it_is_talked_with() -> None:
    runner = StepRunner(ChatAgent(model=ScriptedModel(lambda _: "hello")))
    for _ in range(KEPT + 2):
        _ = [event async for event in runner.run_stream("ses_talk", "hi")]
    assert await runner.repository.get_step_count("ses_talk") == 2 * (KEPT + 2)


async def test_the_recipe_of_a_run_that_is_kept_is_kept() -> None:
    """Runs of one recipe share it."""
    services = Services()
    made = executor(services)
    first = await made.execute(recipe(FAILS))
    for _ in range(KEPT - 1):
        await made.execute(recipe())
    last = await made.execute(recipe(FAILS))  # the first one is forgotten now
    with pytest.raises(NotFoundError):
        await made.retry(first.run_id)
    assert (await made.retry(last.run_id)).status is RunStatus.FAILED


async def test_a_journal_that_is_passed_keeps_all() -> None:
    journal = MemoryJournal(FakeClock())
    made = executor(evolve(Services(), journal=journal))
    for _ in range(2 * KEPT):
        await made.execute(recipe())
    assert len(await list_runs(journal)) == 2 * KEPT
