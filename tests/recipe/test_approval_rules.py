"""`requires_approval` with deciders, expiry and what follows: read, and refused with the reason."""

from __future__ import annotations

import pytest

from builders import fake_tool
from minions.contracts.approvals import ApprovalRule, ApprovalStage
from minions.contracts.tools import Effect
from minions.data.errors import RecipeError
from minions.engine.compile.extensions import Extensions
from minions.recipe.model import CallRule, Permissions
from minions.recipe.reading.load import load_recipe_text

CATALOG = Extensions(
    tools=[
        fake_tool(
            "pay",
            dict,
            effect=Effect.ONCE,
            parameters={"type": "object", "properties": {"amount": {"type": "number"}}},
        )
    ]
).catalog()


def permissions_of(entry: str) -> Permissions:
    text = (
        "id: pays\n"
        f"permissions:\n  allow_write: true\n  requires_approval:\n    - {entry}\n"
        "steps: [{id: pay, tool: pay, params: {amount: 5}}]\n"
    )
    return load_recipe_text(text, "/recipes/pays.yaml", CATALOG).permissions


def faults_of(entry: str) -> str:
    with pytest.raises(RecipeError) as caught:
        permissions_of(entry)
    return "\n".join(f"{each.code}: {each.message} {each.help}" for each in caught.value.faults)


def test_a_rule_says_who_decides_how_many_and_what_follows() -> None:
    read = permissions_of(
        "{tool: pay, when: args.amount > 1, deciders: [ann, 'role:finance'], quorum: 2, "
        "expires: 2h, rejections: 2, not_by_starter: true, then: {ask: [boss], expires: 90s}}"
    )
    stages = (
        ApprovalStage(deciders=("ann", "role:finance"), quorum=2, expires_s=7200),
        ApprovalStage(deciders=("boss",), expires_s=90),
    )
    rule = ApprovalRule(stages=stages, rejections=2, not_by_starter=True)
    assert read.approval_rules == (CallRule(tools=("pay",), when="args.amount > 1", rule=rule),)
    assert read.approval_when == {"pay": ("args.amount > 1",)}
    assert read.requires_approval == ()


def test_without_a_condition_each_call_waits() -> None:
    read = permissions_of("{tool: pay, expires: 60, then: {ask: [boss]}}")
    assert read.requires_approval == ("pay",)
    (rule,) = read.approval_rules
    assert [each.expires_s for each in rule.rule.stages] == [60, 60]


def test_an_entry_that_says_nothing_of_deciders_has_no_rule() -> None:
    assert permissions_of("{tool: pay}") == Permissions(
        allow_write=True, requires_approval=("pay",)
    )


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("{tool: pya, quorum: 2}", "unknown-tool: unknown tool 'pya'"),
        ("{tool: pay, deciders: [ann], quorum: 2}", "'quorum' is 2, and only 1 person decides"),
        ("{tool: pay, deciders: [ann, bob], rejections: 3}", "'rejections' is 3, and only 2"),
        ("{tool: pay, deciders: []}", "'deciders' names persons"),
        ("{tool: pay, deciders: ['role:']}", "'deciders' names persons"),
        ("{tool: pay, expires: soon}", "'soon' is not a duration"),
        ("{tool: pay, then: reject}", "nothing expires"),
        ("{tool: pay, expires: 1h, then: wait}", "'then' is `reject` or"),
        ("{tool: pay, expires: 1h, then: {quorum: 2}}", "missing-key"),
        ("{tool: pay, expires: 1h, then: {ask: [ann], quorum: 2}}", "'quorum' is 2"),
        ("{tool: pay, decider: [ann]}", "unknown-key"),
    ],
)
def test_what_is_wrong_is_named(entry: str, problem: str) -> None:
    assert problem in faults_of(entry)


def test_a_quorum_of_a_role_is_not_counted() -> None:
    (rule,) = permissions_of("{tool: pay, deciders: ['role:finance'], quorum: 3}").approval_rules
    assert rule.rule.stages[0].quorum == 3


def test_a_rule_of_a_call_that_needs_no_approval_is_refused() -> None:
    with pytest.raises(ValueError, match="which needs no approval"):
        Permissions(approval_rules=(CallRule(tools=("pay",), rule=ApprovalRule()),))
