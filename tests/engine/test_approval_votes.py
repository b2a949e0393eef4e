"""Who may approve a call, how many, and until when: counted where the decision is recorded."""

from __future__ import annotations

import pytest
from attrs import evolve, frozen

from builders import FakeTool, deterministic_services, executor_of, fake_tool
from minions.adapters.models.scripted import ScriptedModel
from minions.app.runs.deciders import Policy
from minions.contracts.approvals import ApprovalRule, ApprovalStage, DecisionMaker
from minions.contracts.decision_types import Verdict
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.facts import DecisionRecorded, DecisionWaiting
from minions.contracts.tools import Effect
from minions.data.errors import UsageError
from minions.engine.calls.inbox import InboxItem, list_inbox
from minions.engine.history.imported_entries import imported_entry
from minions.engine.history.replay import Replay
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.views.run_waits import new_wait
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe, CallRule, Permissions
from minions.testing.virtual_time import FakeClock

ANN, BOB, CAT = (DecisionMaker(name=name, way="cli") for name in ("ann", "bob", "cat"))
DAN = DecisionMaker(name="dan", roles=("finance",), way="http")


def stage(*deciders: str, quorum: int = 1, expires_s: float | None = None) -> ApprovalStage:
    return ApprovalStage(deciders=deciders, quorum=quorum, expires_s=expires_s)


def recipe_with(*rules: ApprovalRule, timeout_s: float | None = None) -> AgentRecipe:
    permissions = Permissions(
        allow_write=True,
        requires_approval=("pay",),
        approval_timeout_s=timeout_s,
        approval_rules=tuple(CallRule(tools=("pay",), rule=rule) for rule in rules),
    )
    step = ToolSpecStep(id="pay", tool="pay", params={"amount": 5})
    return AgentRecipe(id="pays", permissions=permissions, steps=(step,))


@frozen
class World:
    """A journal, a clock and a tool that outlive the executors."""

    journal: MemoryJournal
    clock: FakeClock
    tool: FakeTool

    async def start(
        self, recipe: AgentRecipe, verdict: Verdict = Verdict.LATER, user: str | None = None
    ) -> AgentResult[object]:
        services = deterministic_services(self.journal, self.clock)
        works = executor_of(
            ScriptedModel(()),
            tools=[self.tool],
            services=evolve(services, decider=Policy(verdict)),
        )
        return await works.prepare(recipe, {}, user=user).execute()

    async def resume(
        self, recipe: AgentRecipe, word: str | None = None, by: DecisionMaker | None = None
    ) -> AgentResult[object]:
        services = evolve(
            deterministic_services(self.journal, self.clock), decider=Policy(Verdict.LATER)
        )
        works = executor_of(ScriptedModel(()), tools=[self.tool], services=services)
        decisions = {"pay": word} if word is not None else {}
        return await works.resume("run_1", recipe=recipe, decisions=decisions, decided_by=by)

    async def item(self) -> InboxItem:
        (found,) = await list_inbox(self.journal)
        return found

    async def recorded(self) -> DecisionRecorded:
        facts = [each.fact for each in await self.journal.entries(kinds={"decision"})]
        (found,) = [each for each in facts if isinstance(each, DecisionRecorded)]
        return found


@pytest.fixture
def world() -> World:
    clock = FakeClock()
    return World(MemoryJournal(clock), clock, fake_tool("pay", dict, effect=Effect.ONCE))


# --- who -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("maker", [ANN, DAN])
async def test_those_who_are_named_decide(world: World, maker: DecisionMaker) -> None:
    """A-169."""
    recipe = recipe_with(ApprovalRule(stages=(stage("ann", "role:finance"),)))
    assert (await world.start(recipe)).status is RunStatus.NEEDS_DECISION
    result = await world.resume(recipe, "approve", maker)
    assert (result.status, len(world.tool.asked)) == (RunStatus.COMPLETED, 1)
    (vote,) = (await world.recorded()).votes or ()
    assert (vote.by, vote.roles, vote.way) == (maker.name, maker.roles, maker.way)
    assert vote.word == f"approve:{(await world.recorded()).digest}"


@pytest.mark.parametrize("word", ["approve", "reject"])
@pytest.mark.parametrize(
    "maker",
    [
        None,
        BOB,
        DecisionMaker(name="ann", way="http", is_claimed=True),
        DecisionMaker(name="role:finance", way="cli"),
        DecisionMaker(way="cli"),
    ],
)
async def test_nobody_else_decides(world: World, maker: DecisionMaker | None, word: str) -> None:
    """A-169."""
    recipe = recipe_with(ApprovalRule(stages=(stage("ann", "role:finance"),)))
    await world.start(recipe)
    with pytest.raises(UsageError, match="Not everybody may decide this") as caught:
        await world.resume(recipe, word, maker)
    assert caught.value.error_code == "not-a-decider"
    assert (await world.resume(recipe)).status is RunStatus.NEEDS_DECISION
    assert world.tool.asked == []


async def test_a_vote_that_came_past_the_doors_does_not_count(world: World) -> None:
    """A-169: the check stands where the decision is recorded, not at the doors alone."""
    recipe = recipe_with(ApprovalRule(stages=(stage("ann"),)))
    await world.start(recipe)
    open_to_all = recipe_with(ApprovalRule(stages=(stage("ann", "bob", quorum=2),)))
    # The vote is recorded by an engine that knows other deciders: those of the recipe count.
    await world.resume(open_to_all)
    assert (await world.resume(open_to_all, "approve", BOB)).status is RunStatus.NEEDS_DECISION
    assert (await world.resume(recipe)).status is RunStatus.NEEDS_DECISION
    assert world.tool.asked == []


@pytest.mark.parametrize("verdict", [Verdict.APPROVED, Verdict.REJECTED])
async def test_what_decides_within_the_run_decides_nothing_that_is_for_some(
    world: World, verdict: Verdict
) -> None:
    """A-169: `--approve all` is nobody's word."""
    recipe = recipe_with(ApprovalRule(stages=(stage("ann"),)))
    assert (await world.start(recipe, verdict)).status is RunStatus.NEEDS_DECISION
    assert world.tool.asked == []


async def test_a_rule_for_everybody_is_decided_within_the_run(world: World) -> None:
    recipe = recipe_with(ApprovalRule(stages=(stage(expires_s=60), stage("ann"))))
    assert (await world.start(recipe, Verdict.APPROVED)).status is RunStatus.COMPLETED


async def test_whoever_started_the_run_may_be_kept_from_deciding(world: World) -> None:
    """A-169."""
    recipe = recipe_with(ApprovalRule(stages=(stage("ann", "bob"),), not_by_starter=True))
    await world.start(recipe, user="ann")
    with pytest.raises(UsageError, match="but not ann"):
        await world.resume(recipe, "approve", ANN)
    assert (await world.resume(recipe, "approve", BOB)).status is RunStatus.COMPLETED


async def test_an_imported_session_brings_no_votes(world: World) -> None:
    """A-169."""
    recipe = recipe_with(ApprovalRule(stages=(stage("ann", "bob", quorum=2),)))
    await world.start(recipe)
    await world.resume(recipe, "approve", ANN)
    rows = await world.journal.entries()
    (votes,) = Replay(rows, 3).votes.values()
    assert [each.maker.name for each in votes] == ["ann"]
    imported = [imported_entry(each, None) for each in rows]
    assert Replay(imported, 3).votes == {}


# --- how many ------------------------------------------------------------------------------------


async def test_the_same_person_counts_once(world: World) -> None:
    """A-169: two of three; what one said is there in the next execution."""
    recipe = recipe_with(ApprovalRule(stages=(stage("ann", "bob", "cat", quorum=2),)))
    await world.start(recipe)
    for _ in range(2):
        result = await world.resume(recipe, "approve", ANN)
        assert result.status is RunStatus.NEEDS_DECISION
        assert "1 of 2 approvals (ann), of ann or bob or cat" in f"{result.error}"
    assert "1 of 2 approvals (ann)" in (await world.item()).words
    assert (await world.resume(recipe, "approve", CAT)).status is RunStatus.COMPLETED
    assert [each.by for each in (await world.recorded()).votes or ()] == ["ann", "cat"]


async def test_one_rejection_rejects_unless_the_recipe_says_otherwise(world: World) -> None:
    three = stage("ann", "bob", "cat", quorum=2)
    recipe = recipe_with(ApprovalRule(stages=(three,), rejections=2))
    await world.start(recipe)
    result = await world.resume(recipe, "reject::too dear", ANN)
    assert result.status is RunStatus.NEEDS_DECISION
    result = await world.resume(recipe, "reject::not now", BOB)
    assert result.status is RunStatus.FAILED
    assert "it was rejected: too dear; not now" in f"{result.error}"
    assert world.tool.asked == []


async def test_a_person_may_change_their_mind_while_others_are_waited_for(world: World) -> None:
    recipe = recipe_with(ApprovalRule(stages=(stage("ann", "bob", quorum=2),)))
    await world.start(recipe)
    await world.resume(recipe, "approve", ANN)
    assert (await world.resume(recipe, "reject", ANN)).status is RunStatus.FAILED


async def test_a_quorum_approves_the_same_arguments(world: World) -> None:
    recipe = recipe_with(ApprovalRule(stages=(stage("ann", "bob", "cat", quorum=2),)))
    await world.start(recipe)
    await world.resume(recipe, 'approve::{"amount":1}', ANN)
    result = await world.resume(recipe, "approve", BOB)
    assert result.status is RunStatus.NEEDS_DECISION
    assert (await world.resume(recipe, 'approve::{"amount": 1}', CAT)).status is RunStatus.COMPLETED
    assert world.tool.asked == [{"amount": 1}]


async def test_all_rules_that_hold_have_to_be_fulfilled(world: World) -> None:
    recipe = recipe_with(
        ApprovalRule(stages=(stage("ann", "bob"),)), ApprovalRule(stages=(stage("role:finance"),))
    )
    await world.start(recipe)
    assert (await world.resume(recipe, "approve", ANN)).status is RunStatus.NEEDS_DECISION
    assert (await world.resume(recipe, "approve", DAN)).status is RunStatus.COMPLETED


async def test_a_partial_vote_survives_an_execution_that_records_nothing_else(
    world: World,
) -> None:
    recipe = recipe_with(ApprovalRule(stages=(stage("ann", "bob", quorum=2),)))
    await world.start(recipe)
    await world.resume(recipe, "approve", ANN)
    for _ in range(3):
        await world.resume(recipe)
    pending = (await world.item()).pending
    assert pending is not None
    assert [each.maker.name for each in pending.votes] == ["ann"]


# --- until when ----------------------------------------------------------------------------------


async def test_when_the_time_is_over_others_are_asked_and_then_it_is_rejected(
    world: World,
) -> None:
    """A-169: whoever resumes the run next does it."""
    stages = (stage("ann", expires_s=60), stage("bob", expires_s=120))
    recipe = recipe_with(ApprovalRule(stages=stages))
    await world.start(recipe)
    first = await world.item()
    assert first.expires_at == world.clock.now().replace(minute=1)
    world.clock.advance(90)
    result = await world.resume(recipe)
    assert result.status is RunStatus.NEEDS_DECISION
    second = await world.item()
    assert second.pending is not None
    assert second.pending.deciders == ("bob",)
    assert second.expires_at is not None
    assert (second.expires_at - world.clock.now()).total_seconds() == 120
    assert second.asked_at == first.asked_at
    waits = [
        each.fact
        for each in await world.journal.entries(kinds={"decision"})
        if isinstance(each.fact, DecisionWaiting)
    ]
    assert [[each.stage for each in fact.rules or ()] for fact in waits] == [[0], [1]]
    with pytest.raises(UsageError, match="'ann' is not asked"):
        await world.resume(recipe, "approve", ANN)
    world.clock.advance(120)
    with pytest.raises(UsageError, match="The time for this decision is over"):
        await world.resume(recipe, "approve", BOB)
    result = await world.resume(recipe)
    assert result.status is RunStatus.FAILED
    assert "nobody decided within 2m" in f"{result.error}"
    assert (await world.recorded()).is_default


async def test_others_may_decide_at_once_when_the_time_of_the_first_is_over(world: World) -> None:
    stages = (stage("ann", expires_s=60), stage("bob", expires_s=120))
    recipe = recipe_with(ApprovalRule(stages=stages))
    await world.start(recipe)
    world.clock.advance(60)
    assert (await world.resume(recipe, "approve", BOB)).status is RunStatus.COMPLETED


async def test_the_others_are_told(world: World) -> None:
    stages = (stage("ann", expires_s=60), stage("bob"))
    recipe = recipe_with(ApprovalRule(stages=stages))
    await world.start(recipe)
    first = await new_wait(world.journal, "run_1")
    assert first is not None
    assert first.decisions[0]["deciders"] == ["ann"]
    await world.resume(recipe)
    assert await new_wait(world.journal, "run_1") is None
    world.clock.advance(60)
    await world.resume(recipe)
    second = await new_wait(world.journal, "run_1")
    assert second is not None
    assert second.decisions[0]["deciders"] == ["bob"]


async def test_a_timeout_of_all_is_that_of_rules_that_say_none(world: World) -> None:
    recipe = recipe_with(ApprovalRule(stages=(stage("ann"),)), timeout_s=30)
    await world.start(recipe)
    world.clock.advance(30)
    result = await world.resume(recipe)
    assert "nobody decided within 30s" in f"{result.error}"


async def test_a_vote_in_time_counts_whenever_it_is_counted(world: World) -> None:
    """A-169: a process died between the vote and its count."""
    recipe = recipe_with(ApprovalRule(stages=(stage("ann", expires_s=60),)))
    await world.start(recipe)
    services = deterministic_services(world.journal, world.clock)
    works = executor_of(ScriptedModel(()), tools=[world.tool], services=services)
    run = works.prepare_resume(
        await works._load("run_1"), recipe=recipe, decisions={"pay": "approve"}, decided_by=ANN
    )
    await run.context.scope.recorder.open()
    await run._record.start(None, None)
    await run.context.scope.recorder.close()
    world.clock.advance(3600)
    assert (await world.resume(recipe)).status is RunStatus.COMPLETED
