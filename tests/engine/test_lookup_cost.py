"""What is looked up costs the same in a long journal as in a short one: A-127."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from attrs import evolve

from builders import deterministic_services
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.journal.run_rows import RunFilter
from minions.engine.calls.inbox import list_inbox
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.run.recorded_run import load_recorded_run
from minions.engine.services.run_services import Services
from minions.engine.sessions.deletion import find_session
from minions.engine.sessions.store import StepRepository
from minions.engine.views.lookup import find_run, list_runs
from minions.engine.views.run_detail import show_run
from minions.interfaces.cli.session_choice import last_session, named_session
from minions.interfaces.server.decision_views import all_waiting
from minions.recipe.catalog import Catalog
from minions.recipe.reading.load import load_recipe
from minions.testing.virtual_time import FakeClock

RECIPE = "id: small\nsteps: [{id: a, set: {n: 1}}, {id: ask, ask: 'Fine?'}]\n"
FEW, MANY = 100, 5_000
OWN, OTHER = "/srv/own", "/srv/other"
"""The project of one run, and that of all others."""

Work = Callable[["Place"], Awaitable[object]]


class Place:
    """A journal with a run that waits, and others that have ended."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.journal = SqliteJournal(folder / f"{count}.db", FakeClock())
        self.services: Services = evolve(deterministic_services(self.journal), project=OWN)
        self.recipe = folder / "small.yaml"
        self.run_id = ""
        self.steps = 0

    async def start(self) -> str:
        """One more run."""
        executor = AgentExecutor(ScriptedModel([]), services=self.services)
        run = executor.prepare(load_recipe(self.recipe, Catalog()), {})
        await run.execute()
        return run.run_id

    async def fill(self, count: int) -> None:
        self.recipe.write_text(RECIPE, "utf-8")
        self.run_id = await self.start()
        with closing(sqlite3.connect(self.journal.path)) as db:
            columns = "position, generation, key, kind, state, body, body_digest, epoch, at"
            for number in range(count):
                db.execute(
                    f"INSERT INTO entries (session_id, run_id, {columns}) "
                    f"SELECT ?, ?, {columns} FROM entries WHERE run_id = ? AND kind = 'run'",
                    (f"old_{number:05}", f"old_run_{number:05}", self.run_id),
                )
            db.execute(
                "UPDATE entries SET body = json_set(body, '$.project', ?) "
                "WHERE run_id <> ? AND state = 'started'",
                (OTHER, self.run_id),
            )
            db.execute(
                "UPDATE entries SET body = json_set(body, '$.status', 'completed'), at = at - 1 "
                "WHERE run_id <> ? AND state = 'finished'",
                (self.run_id,),
            )
            db.commit()
        assert await self.journal.count_runs() == count + 1

    async def cost(self, work: Work) -> int:
        """Instructions of SQLite's machine: the same each time, on any machine."""
        self.steps = 0
        connection = self.journal._file._connection
        assert connection is not None
        connection.set_progress_handler(self._count, 1)
        await work(self)
        connection.set_progress_handler(None, 0)
        return self.steps

    def _count(self) -> int:
        self.steps += 1
        return 0


async def _show(place: Place) -> None:
    await show_run(place.journal, await find_run(place.journal, place.run_id))


async def _resume(place: Place) -> None:
    recorded = await load_recorded_run(place.journal, place.run_id)
    executor = AgentExecutor(ScriptedModel([]), services=place.services)
    await executor.prepare_resume(recorded, recipe=load_recipe(place.recipe, Catalog())).execute()


async def _no_calls(_run_id: str) -> tuple[()]:
    """No run was interrupted."""
    return ()


WORKS: dict[str, Work] = {
    "a list of runs": lambda place: list_runs(place.journal, limit=20),
    "a page of a list": lambda place: list_runs(place.journal, limit=20, offset=20),
    "runs in a state": lambda place: list_runs(
        place.journal, wanted=RunFilter(statuses={"completed"}), limit=20
    ),
    "runs of a recipe": lambda place: list_runs(
        place.journal, wanted=RunFilter(recipe="small"), limit=20
    ),
    "runs since a time": lambda place: list_runs(
        place.journal, wanted=RunFilter(since=datetime(2025, 1, 1, tzinfo=UTC)), limit=20
    ),
    "how many runs": lambda place: place.journal.count_runs(),
    "a run by its id": _show,
    "a run by a start": lambda place: find_run(place.journal, "old_run_00007"),
    "a run by its session": lambda place: find_run(place.journal, "old_00007"),
    "a session by a start": lambda place: find_session(place.journal, "old_0000"[:8] + "7"),
    "a list of sessions": lambda place: StepRepository(place.services).list_sessions(limit=20),
    "runs of a small project": lambda place: list_runs(
        place.journal, wanted=RunFilter(project=OWN), limit=20
    ),
    "runs of a large project": lambda place: list_runs(
        place.journal, wanted=RunFilter(project=OTHER), limit=20
    ),
    "the last session": lambda place: last_session(place.journal, None),
    "the last session of a small project": lambda place: last_session(place.journal, OWN),
    "the last session of a large project": lambda place: last_session(place.journal, OTHER),
    "a new name": lambda place: named_session(place.journal, "diary", None),
    "approvals": lambda place: all_waiting(place.journal, _no_calls),
    "the inbox": lambda place: list_inbox(place.journal),
    "a resume": _resume,
    "a new run": lambda place: place.start(),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Place]:
    made = {}
    for count in (FEW, MANY):
        made[count] = Place(tmp_path_factory.mktemp(str(count)), count)
        asyncio.run(made[count].fill(count))
    return made


@pytest.mark.parametrize("name", WORKS)
async def test_a_lookup_costs_what_it_looks_up(places: dict[int, Place], name: str) -> None:
    """A-127."""
    few, many = [await places[count].cost(WORKS[name]) for count in (FEW, MANY)]
    assert few > 0
    assert many <= 1.2 * few
