"""What a decider within the run may decide of calls with rules, and what reviews leave to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve, field, frozen

from builders import FakeTool, deterministic_services, executor_of, fake_tool
from minions.adapters.models.scripted import ScriptedModel
from minions.adapters.stores.sqlite_journal import SqliteJournal
from minions.contracts.approvals import ApprovalRule, ApprovalStage, DecisionMaker
from minions.contracts.decision_types import (
    ApprovalClass,
    ApprovalRequest,
    Approve,
    Decider,
    Rejection,
    Verdict,
    word_of,
)
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.journal.facts import DecisionRecorded
from minions.contracts.journal.journal import Journal
from minions.contracts.tools import Effect
from minions.engine.calls.inbox import list_inbox
from minions.engine.services.memory_journal import MemoryJournal
from minions.recipe.catalog import Catalog
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe, CallRule, LoopSpec, Permissions, Reviewer
from minions.recipe.reading.load import load_recipe_text
from minions.testing.virtual_time import FakeClock

OPEN = ApprovalRule(stages=(ApprovalStage(expires_s=60),))
OF_ANN = ApprovalRule(stages=(ApprovalStage(deciders=("ann",)),))
ANN = DecisionMaker(name="ann", way="cli")
PASSES = """
id: passes
inputs: {arguments: {type: object, untrusted: true}}
steps: [{id: look, set: {verdict: pass, reason: fine}}]
output: "{{ look }}"
"""
REJECTS = PASSES.replace("passes", "rejects").replace("verdict: pass", "verdict: reject")
FAILS = PASSES.replace("passes", "fails").replace("verdict: pass", "verdict: perhaps")


@frozen
class Says(Decider):
    """Always the same; keeps what it was asked."""

    verdict: object
    asked: list[ApprovalRequest] = field(factory=list)

    async def approve(self, request: ApprovalRequest) -> Verdict | Rejection:
        self.asked.append(request)
        return self.verdict  # type: ignore[return-value]  # as each test says


class StandIn(Says):
    """Stands in for all persons."""

    stands_in = True


def pays(*rules: ApprovalRule, reviewers: tuple[str, ...] = ()) -> AgentRecipe:
    loaded = [load_recipe_text(each, "/recipes/r.yaml", Catalog()) for each in reviewers]
    named = [Reviewer(name=each.id, recipe=each) for each in loaded]
    calls = [CallRule(tools=("pay",), rule=rule) for rule in rules]
    calls += [CallRule(tools=("pay",), rule=ApprovalRule(), reviewer=each) for each in named]
    permissions = Permissions(
        allow_write=True, requires_approval=("pay",), approval_rules=tuple(calls)
    )
    step = ToolSpecStep(id="pay", tool="pay", params={"amount": 5})
    return AgentRecipe(id="pays", permissions=permissions, steps=(step,))


async def ran(
    recipe: AgentRecipe, decider: Decider, journal: Journal | None = None
) -> tuple[AgentResult[object], FakeTool]:
    tool = fake_tool("pay", dict, effect=Effect.ONCE)
    services = evolve(deterministic_services(journal), decider=decider)
    works = executor_of(ScriptedModel(()), tools=[tool], services=services)
    return await works.execute(recipe), tool


async def test_a_decider_that_stands_in_for_all_decides_only_where_nothing_is_stored(
    tmp_path: Path,
) -> None:
    """A-169: as in tests of recipes; a journal that others read is none of them."""
    result, tool = await ran(pays(OF_ANN), StandIn(Verdict.APPROVED))
    assert (result.status, len(tool.asked)) == (RunStatus.COMPLETED, 1)
    journal = SqliteJournal(tmp_path / "j.sqlite")
    result, tool = await ran(pays(OF_ANN), StandIn(Verdict.APPROVED), journal)
    assert (result.status, tool.asked) == (RunStatus.NEEDS_DECISION, [])
    await journal.aclose()


async def test_one_rule_for_some_is_enough_to_keep_the_decider_out() -> None:
    says = Says(Verdict.APPROVED)
    result, tool = await ran(pays(OPEN, OF_ANN), says)
    assert (result.status, tool.asked, says.asked) == (RunStatus.NEEDS_DECISION, [], [])


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [(Verdict.REJECTED, None), (Rejection(""), None), (Rejection("too dear"), "too dear")],
)
async def test_its_rejection_is_recorded_with_the_reason(
    verdict: object, reason: str | None
) -> None:
    journal = MemoryJournal(FakeClock())
    result, tool = await ran(pays(OPEN), Says(verdict), journal)
    assert (result.status, tool.asked) == (RunStatus.FAILED, [])
    (fact,) = [each.fact for each in await journal.entries(kinds={"decision"})]
    assert isinstance(fact, DecisionRecorded)
    assert (fact.word, fact.reason) == (f"reject:{fact.digest}", reason)


async def test_its_approval_is_recorded() -> None:
    journal = MemoryJournal(FakeClock())
    result, _ = await ran(pays(OPEN), Says(Verdict.APPROVED), journal)
    (fact,) = [each.fact for each in await journal.entries(kinds={"decision"})]
    assert isinstance(fact, DecisionRecorded)
    assert (result.status, fact.word) == (RunStatus.COMPLETED, f"approve:{fact.digest}")


async def test_what_is_no_verdict_calls_nothing() -> None:
    result, tool = await ran(pays(OPEN), Says("yes"))
    assert result.error is not None
    assert (result.error.code, tool.asked) == ("bad-verdict", [])


async def test_reviewers_are_asked_until_one_rejects() -> None:
    says = Says(Verdict.APPROVED)
    journal = MemoryJournal(FakeClock())
    recipe = pays(reviewers=(PASSES, REJECTS, FAILS))
    result, tool = await ran(recipe, says, journal)
    assert (result.status, tool.asked, says.asked) == (RunStatus.FAILED, [], [])
    (fact,) = [each.fact for each in await journal.entries(kinds={"decision"})]
    assert isinstance(fact, DecisionRecorded)
    assert [each.recipe for each in fact.reviews or ()] == ["passes", "rejects"]


async def test_what_a_reviewer_passes_is_for_the_decider_of_a_rule_for_everybody() -> None:
    for reviewer in (PASSES, FAILS):
        result, tool = await ran(pays(reviewers=(reviewer,)), Says(Verdict.APPROVED))
        assert (result.status, len(tool.asked)) == (RunStatus.COMPLETED, 1)


@pytest.mark.parametrize(("reviewer", "count"), [(PASSES, 3), (FAILS, 1), (REJECTS, 0)])
async def test_calls_that_are_alike_are_reviewed_all_the_same(reviewer: str, count: int) -> None:
    """A-169: what fails a review waits, and what it rejects is not made."""
    step = ToolSpecStep(
        id="pay", tool="pay", params={"amount": "{{ loop.item }}"}, loop=LoopSpec(over=[1, 2, 3])
    )
    recipe = evolve(pays(reviewers=(reviewer,)), steps=(step,))
    clock, tool = FakeClock(), fake_tool("pay", dict, effect=Effect.ONCE)
    journal = MemoryJournal(clock)
    services = evolve(deterministic_services(journal, clock), decider=Says(Verdict.LATER))
    works = executor_of(ScriptedModel(()), tools=[tool], services=services)
    await works.execute(recipe)
    waiting = await list_inbox(journal)
    if waiting:
        like = word_of(Approve(like=ApprovalClass(when="args.amount > 0")))
        await works.resume("run_1", recipe=recipe, decisions={waiting[0].key: like}, decided_by=ANN)
    assert len(tool.asked) == count
