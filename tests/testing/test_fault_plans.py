"""A fault plan is data: the same from the same seed, printable, and it can be made smaller."""

from __future__ import annotations

import pytest

from minions.data.errors import UsageError
from minions.testing import ChaosEndpoint, FaultPlan, ServerFault


def test_a_seed_always_gives_the_same_plan_and_others_give_others() -> None:
    assert FaultPlan.from_seed(7) == FaultPlan.from_seed(7)
    assert len({FaultPlan.from_seed(seed) for seed in range(20)}) == 20


def test_some_plans_are_mild_and_some_are_harsh() -> None:
    counts = [sum(map(bool, FaultPlan.from_seed(seed).faults)) for seed in range(50)]
    assert min(counts) < 10
    assert max(counts) > 40


def test_every_fault_comes_up_in_some_plan() -> None:
    drawn = {fault for seed in range(100) for fault in FaultPlan.from_seed(seed).faults}
    assert drawn == {*ServerFault, None}


def test_a_plan_is_drawn_from_the_faults_and_the_share_that_are_given() -> None:
    plan = FaultPlan.from_seed(1, faults=[ServerFault.RESET, ServerFault.CUT], share=1, length=9)
    assert len(plan.faults) == 9
    assert set(plan.faults) == {ServerFault.RESET, ServerFault.CUT}
    assert FaultPlan.from_seed(1, share=0).trimmed == FaultPlan()


def test_a_plan_can_be_printed_and_read_back() -> None:
    plan = FaultPlan((None, ServerFault.RATE_LIMITED, None, ServerFault.NO_ANSWER, None))
    assert str(plan) == "- 429 - no-answer"
    assert FaultPlan.parse(str(plan)) == plan.trimmed
    drawn = FaultPlan.from_seed(3)
    assert FaultPlan.parse(str(drawn)) == drawn.trimmed


def test_a_word_that_is_no_fault_is_refused_with_the_near_one() -> None:
    with pytest.raises(UsageError, match="Did you mean 'stalled'"):
        FaultPlan.parse("- staled")


def test_faults_may_be_given_by_their_words() -> None:
    plan = FaultPlan(("reset", None))
    assert plan.faults == (ServerFault.RESET, None)
    assert ChaosEndpoint("reset -").plan == FaultPlan.parse("reset -")


def test_faults_and_shares_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="Did you mean 'reset'"):
        FaultPlan(("resett",))
    with pytest.raises(UsageError, match="share=7 is not from 0 to 1"):
        FaultPlan.from_seed(1, share=7)


def test_after_the_plan_nothing_fails() -> None:
    plan = FaultPlan.parse("reset -")
    assert [plan.fault(index) for index in range(3)] == [ServerFault.RESET, None, None]


def test_a_plan_shrinks_to_the_faults_that_matter() -> None:
    plan = FaultPlan.from_seed(4, share=0.8)
    wanted = {3, 17}
    assert all(plan.faults[place] for place in wanted)

    def fails(smaller: FaultPlan) -> bool:
        return all(smaller.fault(place) for place in wanted)

    shrunk = plan.shrunk(fails)
    assert {place for place, fault in enumerate(shrunk.faults) if fault} == wanted
    assert plan.shrunk(lambda _: False) == plan.trimmed
