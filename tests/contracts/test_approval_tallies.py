"""What votes come to: whose count, until when, and under how many rules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from msgspec import structs
from msgspec.structs import replace

from minions.contracts.approvals import (
    ApprovalRule,
    ApprovalStage,
    AskedRule,
    DecisionMaker,
    Tally,
    Vote,
    VoteResult,
    rule_words,
    tally_of,
)
from minions.contracts.decision_types import ApprovalClass, Approve, Decision, Reject

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def asked(
    *deciders: str, quorum: int = 1, expires_s: float | None = None, **rule: object
) -> AskedRule:
    stage = ApprovalStage(deciders=deciders, quorum=quorum, expires_s=expires_s)
    whole = ApprovalRule(stages=(stage,), **rule)  # type: ignore[arg-type]  # as each test says
    return AskedRule(rule=whole, since=BEGIN.isoformat())


def maker(name: str | None, way: str = "http", **more: object) -> DecisionMaker:
    return DecisionMaker(name=name, way=way, **more)  # type: ignore[arg-type]  # as each test says


def vote(who: DecisionMaker | str, decision: Decision | None = None, seconds: float = 1) -> Vote:
    by = maker(who) if isinstance(who, str) else who
    return Vote(decision=decision or Approve("d"), maker=by, at=at(seconds))


def tally(rules: list[AskedRule], votes: list[Vote], seconds: float = 10) -> Tally:
    return tally_of(rules, votes, "d", at(seconds))


def test_a_rule_that_says_nothing_is_open_to_all() -> None:
    assert asked().is_open
    assert asked().allows(None)
    assert not asked("ann").is_open
    assert not asked(quorum=2).is_open
    assert not asked(rejections=2).is_open
    assert not asked(not_by_starter=True).is_open
    assert ApprovalRule() == ApprovalRule(not_by_starter=False)


@pytest.mark.parametrize(
    ("who", "is_allowed"),
    [
        (None, False),
        (maker(None), False),
        (maker("ann"), True),
        (maker("ann", is_claimed=True), False),
        (maker("bob"), False),
        (maker("phone", user="ann"), True),
        (maker("bob", roles=("finance",)), True),
        (maker("bob", roles=("sales",)), False),
        (maker("role:finance"), False),
    ],
)
def test_a_person_is_allowed_by_name_user_or_role(
    who: DecisionMaker | None, is_allowed: bool
) -> None:
    assert asked("ann", "role:finance").allows(who) is is_allowed


def test_without_names_everybody_with_a_name_is_allowed() -> None:
    assert asked(quorum=2).allows(maker("ann"))
    assert not asked(quorum=2).allows(maker(None))
    assert not asked(quorum=2).allows(None)


def test_who_started_the_run_is_not_allowed_whatever_the_token() -> None:
    rule = replace(asked("ann", "bob", not_by_starter=True), not_by=("ann",))
    assert not rule.allows(maker("ann"))
    assert not rule.allows(maker("bob", user="ann"))
    assert rule.allows(maker("bob"))
    assert rule.allows(maker("bob", "cli"))
    unknown = asked("ann", not_by_starter=True)
    assert unknown.allows(maker("ann"))
    assert not unknown.allows(maker("ann", "cli"))


def test_tokens_of_one_user_are_one_person_whose_last_word_counts() -> None:
    rule = asked("ann", "bob", quorum=2, rejections=2)
    votes = [vote(maker("desk", user="ann")), vote(maker("phone", user="ann"))]
    assert tally([rule], votes).standing is VoteResult.WAITING
    assert tally([rule], [*votes, vote("bob")]).standing is VoteResult.APPROVED
    changed = [vote("ann"), vote("bob", Reject("d")), vote("ann", Reject("d"))]
    assert tally([rule], changed).standing is VoteResult.REJECTED
    assert [each.maker.name for each in tally([rule], changed).counted] == ["bob", "ann"]


def test_a_vote_about_another_call_counts_for_nothing() -> None:
    assert tally([asked("ann")], [vote("ann", Approve("other"))]).standing is VoteResult.WAITING
    assert tally([asked("ann")], [vote("ann", Reject("other"))]).standing is VoteResult.WAITING
    assert tally([asked("ann")], [vote("ann", Reject(None))]).standing is VoteResult.WAITING


@pytest.mark.parametrize(
    ("seconds", "standing"),
    [(59.9, VoteResult.APPROVED), (60, VoteResult.EXPIRED), (61, VoteResult.EXPIRED)],
)
def test_a_vote_that_came_too_late_counts_for_nothing(seconds: float, standing: VoteResult) -> None:
    found = tally([asked("ann", expires_s=60)], [vote("ann", seconds=seconds)], 90)
    assert found.standing is standing
    assert (found.expired is None) is (standing is VoteResult.APPROVED)


@pytest.mark.parametrize(("now", "standing"), [(59, VoteResult.WAITING), (60, VoteResult.EXPIRED)])
def test_a_time_is_over_when_it_is_reached(now: float, standing: VoteResult) -> None:
    assert tally([asked("ann", expires_s=60)], [], now).standing is standing


def test_a_time_that_no_calendar_has_never_ends() -> None:
    assert asked(expires_s=1e12).end is None
    assert replace(asked(expires_s=60), since="soon").end is None
    assert asked().end is None


def test_those_who_are_asked_next_have_their_own_time() -> None:
    stages = (
        ApprovalStage(deciders=("ann",), expires_s=60),
        ApprovalStage(deciders=("bob",), expires_s=30),
    )
    rule = AskedRule(rule=ApprovalRule(stages=stages), since=BEGIN.isoformat())
    waits = tally([rule], [], 100)
    assert waits.standing is VoteResult.WAITING
    (present,) = waits.rules
    assert (present.stage, present.end) == (1, at(130))
    assert rule.present_at(at(59)) == rule
    assert rule.present_at(at(60)) == replace(rule, stage=1, since=at(60).isoformat())
    assert present.present_at(at(130)) is None
    assert tally([present], [], 130).standing is VoteResult.EXPIRED
    assert tally([present], [vote("ann", seconds=5)], 129).standing is VoteResult.WAITING
    assert tally([present], [vote("bob", seconds=129)], 129).standing is VoteResult.APPROVED


def test_reasons_of_several_are_told_once_each() -> None:
    said = [
        vote("ann", Reject("d", "no")),
        vote("bob", Reject("d")),
        vote("cat", Reject("d", "no")),
    ]
    found = tally([asked(rejections=3)], said)
    assert found.decision == Reject("d", "no")
    found = tally([asked(rejections=2)], [vote("ann"), vote("bob", Reject("d")), vote("cat")])
    assert found.standing is VoteResult.APPROVED
    silent = tally([asked("ann")], [vote("ann", Reject("d"))])
    assert silent.decision == Reject("d")


def test_the_same_arguments_are_approved_by_as_many_as_are_needed() -> None:
    rule = asked("ann", "bob", "cat", quorum=2)
    mixed = [vote("ann", Approve("d", "{}")), vote("bob")]
    assert tally([rule], mixed).standing is VoteResult.WAITING
    found = tally([rule], [*mixed, vote("cat", Approve("d", "{}"))])
    assert found.decision == Approve("d", "{}")
    assert [each.maker.name for each in found.counted] == ["ann", "cat"]


def test_which_calls_are_alike_all_who_approve_have_to_say() -> None:
    like = Approve("d", like=ApprovalClass(same=("to",)))
    other = Approve("d", like=ApprovalClass(same=("text",)))
    assert tally([asked("ann")], [vote("ann", like)]).decision == like
    for second, decision in ((like, like), (other, Approve("d")), (Approve("d"), Approve("d"))):
        votes = [vote("ann", like), vote("bob", second)]
        assert tally([asked("ann", "bob", quorum=2)], votes).decision == decision
    both = [vote("ann", like), vote("bob", like)]
    later = asked("bob", expires_s=None)
    later = structs.replace(later, rule=structs.replace(later.rule, stages=later.rule.stages * 2))
    for stage, decision in ((0, like), (1, Approve("d"))):
        rules = [asked("ann"), structs.replace(later, stage=stage)]
        assert tally(rules, both).decision == decision
    with_rejection = asked("ann", "bob", rejections=2)
    said = [vote("bob", Reject("d")), vote("ann", like)]
    assert tally([with_rejection], said).decision == like


def test_all_rules_approve_the_same() -> None:
    rules = [asked("ann"), asked("bob")]
    assert tally(rules, [vote("ann")]).standing is VoteResult.WAITING
    other = [vote("ann"), vote("bob", Approve("d", "{}"))]
    assert tally(rules, other).standing is VoteResult.WAITING
    assert tally(rules, [vote("ann"), vote("bob")]).standing is VoteResult.APPROVED
    assert tally(rules, [vote("ann"), vote("bob", Reject("d"))]).standing is VoteResult.REJECTED


def test_who_is_missing_is_said_in_words() -> None:
    rules = [asked(), asked("ann", "bob", quorum=2)]
    said = [vote("ann"), vote("bob", Reject("d"))]
    assert rule_words(rules, said) == "1 of 2 approvals (ann), of ann or bob"
    assert rule_words([asked(quorum=2)]) == "0 of 2 approvals, of anybody"
    starter = replace(asked(not_by_starter=True), not_by=("ann",))
    assert rule_words([starter]) == "0 of 1 approvals, of anybody but not ann"
    unknown = asked(not_by_starter=True)
    assert rule_words([unknown]).endswith("anybody but not whoever started the run")
    assert rule_words([asked()]) == ""
