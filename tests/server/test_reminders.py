"""Hooks are told again of what waits until it is decided, each reminder once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from attrs import evolve

from builders import deterministic_services, executor_of, fake_tool
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.adapters.stores.sqlite_side_tables import SqliteState
from minions.app.runs.deciders import Policy
from minions.contracts.approvals import ApprovalRule, ApprovalStage, DecisionMaker
from minions.contracts.decision_types import Verdict
from minions.contracts.tools import Effect
from minions.contracts.waiting import RunWait
from minions.data.errors import RecipeError
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.run_services import NullLog
from minions.interfaces.server.live.waiting_notices import WaitingNotices
from minions.recipe.catalog import Catalog
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe, CallRule, Permissions
from minions.recipe.reading.load import load_recipe_text
from minions.testing.virtual_time import FakeClock

TWO = ApprovalRule(stages=(ApprovalStage(deciders=("ann", "bob"), quorum=2),))
PAYS = AgentRecipe(
    id="pays",
    permissions=Permissions(
        allow_write=True,
        requires_approval=("pay",),
        remind_every_s=60,
        approval_rules=(CallRule(tools=("pay",), rule=TWO),),
    ),
    steps=(ToolSpecStep(id="pay", tool="pay", params={"amount": 5}),),
)


class Place:
    """A journal in a file, which several processes share, here by an object of their own."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.clock = FakeClock()
        self.journal = SqliteJournal(file, self.clock)
        self.told: list[RunWait] = []

    def executor(self) -> AgentExecutor:
        services = evolve(
            deterministic_services(self.journal, self.clock), decider=Policy(Verdict.LATER)
        )
        tools = [fake_tool("pay", dict, effect=Effect.ONCE)]
        return executor_of(ScriptedModel(()), tools=tools, services=services)

    def process(self) -> WaitingNotices:
        """The notices of a worker that has just started."""
        marks = SqliteState(self.file)
        return WaitingNotices(
            (self.told.append,), self.journal, marks, NullLog(), page=None, clock=self.clock
        )


async def told_by(*processes: WaitingNotices) -> int:
    """How many reminders they tell now, all at the same moment."""
    counts = await asyncio.gather(*(each.remind() for each in processes))
    for each in processes:
        await each.told()
    return sum(counts)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "j.sqlite")


async def test_what_waits_is_told_again_until_it_is_decided(place: Place) -> None:
    """A-169: once by all processes, also by one that starts later; a vote ends nothing."""
    await place.executor().execute(PAYS)
    first, second = place.process(), place.process()
    place.clock.advance(59)
    assert await told_by(first, second) == 0
    place.clock.advance(1)
    assert await told_by(first, second) == 1
    assert await told_by(first, second, place.process()) == 0
    ann, bob = (DecisionMaker(name=name, way="cli") for name in ("ann", "bob"))
    decide = {"pay": "approve"}
    await place.executor().resume("run_1", recipe=PAYS, decisions=decide, decided_by=ann)
    place.clock.advance(60)
    assert await told_by(first, second) == 1
    place.clock.advance(300)  # no process ran: what was missed is told as one
    assert await told_by(place.process()) == 1
    assert [each.reminder for each in place.told] == [1, 2, 7]
    assert len({each.id for each in place.told}) == 3
    assert place.told[0].decisions[0]["deciders"] == ["ann", "bob"]
    await place.executor().resume("run_1", recipe=PAYS, decisions=decide, decided_by=bob)
    place.clock.advance(60)
    assert await told_by(first, place.process()) == 0


async def test_without_the_key_nothing_is_told_again(place: Place) -> None:
    once = evolve(PAYS, permissions=evolve(PAYS.permissions, remind_every_s=None))
    await place.executor().execute(once)
    place.clock.advance(3600)
    assert await told_by(place.process()) == 0


def test_the_key_is_a_duration() -> None:
    text = "id: a\npermissions: {remind_every: 30m}\nsteps: [{id: b, ask: Fine?}]\n"
    recipe = load_recipe_text(text, "/recipes/a.yaml", Catalog())
    assert recipe.permissions.remind_every_s == 1800
    with pytest.raises(RecipeError, match="is not a duration"):
        load_recipe_text(text.replace("30m", "often"), "/recipes/a.yaml", Catalog())
