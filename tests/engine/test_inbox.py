"""What waits for a person in a journal is one list, in a known order."""

from __future__ import annotations

import pytest
from attrs import evolve

from builders import deterministic_services, executor_of, fake_tool
from minions import Minions
from minions.adapters.models.scripted import ScriptedModel
from minions.app.runs.deciders import Policy
from minions.contracts.calls import ModelCallResponse
from minions.contracts.decision_types import Verdict
from minions.contracts.messages import TokenUsage, assistant
from minions.contracts.tools import Effect, Tool
from minions.engine.calls.inbox import ItemKind, list_inbox
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.kinds.ask_kind import AskSpec
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe, Permissions
from minions.testing.virtual_time import FakeClock
from mortal import KilledError, MortalJournal

ASKS = AgentRecipe(id="asks", steps=(AskSpec(id="who", ask="To whom?"),))
DEAR = AgentRecipe(
    id="dear", steps=(GoalSpec(id="think", goal="Think."), AskSpec(id="who", ask="To whom?"))
)
WRITES = AgentRecipe(
    id="writes",
    permissions=Permissions(allow_write=True, requires_approval=("write",), approval_timeout_s=60),
    steps=(ToolSpecStep(id="do", tool="write", params={"x": 1}),),
)
ANSWER = ModelCallResponse(
    message=assistant("thought"),
    usage=TokenUsage(input_tokens=10, output_tokens=1, cost_usd=0.25),
)


def executor(journal: MemoryJournal, clock: FakeClock, *tools: Tool) -> AgentExecutor:
    services = evolve(deterministic_services(journal, clock), decider=Policy(Verdict.LATER))
    return executor_of(ScriptedModel([ANSWER]), tools=tools, services=services)


async def test_the_oldest_waits_first_and_of_one_hour_that_of_the_dearest_run() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock)
    works = executor(journal, clock, fake_tool("write", dict, effect=Effect.ONCE))
    await works.execute(WRITES)
    clock.advance(3600)
    await works.execute(ASKS)
    clock.advance(60)
    await works.execute(DEAR)
    items = await list_inbox(journal)
    assert [(each.run.recipe, each.kind, each.cost_usd) for each in items] == [
        ("writes", ItemKind.APPROVAL, 0.0),
        ("dear", ItemKind.QUESTION, 0.25),
        ("asks", ItemKind.QUESTION, 0.0),
    ]
    first = items[0]
    assert first.expires_at is not None
    assert (first.expires_at - first.asked_at).total_seconds() == 60


@pytest.mark.parametrize(("effect", "count"), [(Effect.ONCE, 1), (Effect.IDEMPOTENT, 0)])
async def test_a_call_that_was_cut_off_is_listed_where_it_must_not_be_repeated(
    effect: Effect, count: int
) -> None:
    clock = FakeClock()
    journal = MortalJournal(clock)
    tool = fake_tool("write", dict, effect=effect)
    recipe = evolve(WRITES, permissions=Permissions(allow_write=True))
    journal.dies_at = 3  # the call has begun
    with pytest.raises(KilledError):
        await executor(journal, clock, tool).execute(recipe)
    journal.revive()
    clock.advance(1000)  # its lease is over
    items = await list_inbox(journal)
    assert [each.kind for each in items] == [ItemKind.DOUBT] * count
    assert all("may have had its effect" in each.words for each in items)


async def test_an_application_lists_the_same() -> None:
    clock = FakeClock()
    journal = MemoryJournal(clock)
    services = evolve(deterministic_services(journal, clock), decider=Policy(Verdict.LATER))
    async with Minions(services=services, model=ScriptedModel([])) as app:
        await app.arun(ASKS)
        (item,) = await app.inbox()
        assert item.to_json() == (await list_inbox(journal))[0].to_json()
        assert (item.words, item.address) == ("step 'who' asks: To whom?", "who")
        await app.answer(item.run.run_id, item.key, "Ada")
        assert await app.inbox() == []
