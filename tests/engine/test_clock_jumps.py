"""The clock on the wall jumps by a day: nothing is refused, and a killed run goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from attrs import evolve

from builders import deterministic_services, executor_of, fake_tool
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.executions import RunStatus
from minions.contracts.journal.journal import Journal
from minions.contracts.runtime import Clock, SystemClock
from minions.contracts.tools import Effect, Tool
from minions.data.json_values import JsonValue
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.engine.views.lookup import list_runs
from minions.engine.views.run_detail import show_run
from minions.recipe.kinds.set_kind import SetSpec
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe
from minions.testing.virtual_time import FakeClock, counting_ids
from mortal import MortalJournal, World

DAY = timedelta(days=1)


class JumpingClock(Clock):
    """The machine's, but for what somebody does to the time of day."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self.shift = timedelta()

    def now(self) -> datetime:
        return self._real.now() + self.shift

    def monotonic(self) -> float:
        return self._real.monotonic()


class ShiftedClock(FakeClock):
    """A fake one whose time of day may also go back."""

    shift = timedelta()

    def now(self) -> datetime:
        return super().now() + self.shift


RECIPE = AgentRecipe(
    id="recipe",
    limits={"timeout_s": 30},
    steps=[
        SetSpec(id="before", set={"x": 1}),
        ToolSpecStep(id="jump", tool="jump", timeout_s=20, depends_on=("before",)),
        ToolSpecStep(id="after", tool="look", params={"of": "{{ jump }}"}, depends_on=("jump",)),
    ],
)


Work = Callable[[Mapping[str, JsonValue]], object | Awaitable[object]]


def tools_with(work: Work) -> list[Tool]:
    return [
        fake_tool("jump", work, effect=Effect.PURE),
        fake_tool("look", lambda arguments: arguments, effect=Effect.PURE),
    ]


@pytest.fixture(params=["memory", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def journal_with(kind: str, clock: Clock, folder: Path) -> Journal:
    return MemoryJournal(clock) if kind == "memory" else SqliteJournal(folder / "j.db", clock)


def services_of(journal: Journal, clock: Clock, worker: str) -> Services:
    return Services(journal=journal, clock=clock, ids=counting_ids(), worker_id=worker)


@pytest.mark.parametrize("shift", [DAY, -DAY], ids=["forth", "back"])
async def test_the_clock_jumps_while_a_run_works(
    kind: str, tmp_path: Path, shift: timedelta
) -> None:
    """Time limits are of elapsed time; durations stay what they were; the lease is kept."""
    clock = JumpingClock()
    journal = journal_with(kind, clock, tmp_path)

    async def jump(arguments: Mapping[str, JsonValue]) -> object:
        clock.shift = shift
        services = services_of(journal, clock, "here")
        await services.sleep(0.03)  # so that the lease is renewed at the new time
        return "jumped"

    services = evolve(services_of(journal, clock, "here"), lease_ttl_s=0.03)
    executor = executor_of(ScriptedModel([]), tools=tools_with(jump), services=services)
    result = await executor.execute(RECIPE)
    assert (result.status, result.output) == (RunStatus.COMPLETED, {"of": "jumped"})
    assert all(0 <= each.duration_ms < 20_000 for each in result.executions)
    (summary,) = await list_runs(journal)
    detail = await show_run(journal, summary)
    assert [step.step_id for step in detail.steps] == ["before", "jump", "after"]
    await journal.aclose()


@pytest.mark.parametrize("shift", [DAY, -DAY], ids=["forth", "back"])
async def test_the_clock_jumps_between_the_death_of_a_worker_and_the_next(shift: timedelta) -> None:
    """Back by a day, the lease of the dead would hold for a day: but it is known that it died."""
    clock = ShiftedClock()
    world = World(journal=MortalJournal(clock))
    tools = tools_with(lambda arguments: "jumped")
    dead = evolve(deterministic_services(world.journal, clock), worker_id="dead")
    executor = executor_of(ScriptedModel([]), tools=tools, services=dead)
    assert await world.killed(executor, RECIPE, 4)
    clock.shift = shift
    heir = evolve(dead, worker_id="heir", is_worker_gone=lambda worker: worker == "dead")
    executor = executor_of(ScriptedModel([]), tools=tools, services=heir)
    result = await executor.resume("run_1", recipe=RECIPE)
    assert (result.status, result.output) == (RunStatus.COMPLETED, {"of": "jumped"})
