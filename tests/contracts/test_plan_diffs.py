"""The diff of two plans gives the one from the other, and says so in words and as JSON."""

from __future__ import annotations

from typing import Final

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from minions.contracts.plan_diffs import KeyChange, PlanDiff, PlanStepChange, diff_plans
from minions.contracts.plans import FileUse, Plan, PlanStep, PlanStepType, json_object
from minions.data.json_values import dumps, parse_json

WORDS: Final = st.sampled_from(("", "write it", "STEP: x\nGOAL: y", "{{ a }}", "ä\u2028+ b: added"))
_FILES: Final = st.sampled_from(("a", "b.py", "c/d.md"))
NAMES: Final = st.lists(_FILES, max_size=2, unique=True).map(tuple)


@st.composite
def steps(draw: st.DrawFn) -> PlanStep:
    return PlanStep(
        id=draw(st.sampled_from("abcde")),
        type=draw(st.sampled_from(PlanStepType)),
        goal=draw(WORDS),
        name=draw(WORDS),
        description=draw(WORDS),
        files=tuple(map(FileUse.of, draw(NAMES))),
        dependencies=draw(NAMES),
        artifacts=draw(NAMES),
        tools=draw(NAMES),
        command=draw(st.sampled_from((None, "make test"))),
    )


PLANS: Final = st.builds(
    lambda name, description, found: Plan(
        id=f"id_{name}", name=name, description=description, steps=tuple(found)
    ),
    WORDS,
    WORDS,
    st.lists(steps(), max_size=6),
)
"""Plans of which some have faults, as several steps of one id."""
STATUSES: Final = st.dictionaries(
    st.sampled_from("abcde"), st.sampled_from(("completed", "failed", "skipped"))
)


@given(before=PLANS, after=PLANS, statuses=STATUSES)
def test_the_diff_applied_to_a_plan_gives_the_next_one(
    before: Plan, after: Plan, statuses: dict[str, str]
) -> None:
    diff = diff_plans(before, after, statuses)
    assert diff.applied_to(before) == after
    assert PlanDiff.from_json(json_object(parse_json(dumps(diff.to_json())))) == diff


@given(before=PLANS, after=PLANS)
def test_the_diff_is_empty_only_of_equal_plans(before: Plan, after: Plan) -> None:
    assert diff_plans(before, before).is_empty
    assert diff_plans(before, after).is_empty == (before == after)


@given(before=PLANS, after=PLANS, statuses=STATUSES)
def test_each_step_of_both_plans_is_told_once(
    before: Plan, after: Plan, statuses: dict[str, str]
) -> None:
    told = diff_plans(before, after, statuses).steps
    assert [each.id for each in told if each.change.stays or each.step] == [
        each.id for each in after.steps
    ]
    assert sorted(each.id for each in told if each.step is None) == sorted(
        each.id for each in before.steps
    )


@given(before=PLANS, after=PLANS, statuses=STATUSES)
def test_no_value_looks_like_a_step(before: Plan, after: Plan, statuses: dict[str, str]) -> None:
    diff = diff_plans(before, after, statuses)
    heads = [line for line in diff.to_text().splitlines() if not line.startswith(" ")]
    assert heads[0].startswith("NEW PLAN: ")
    assert len(heads) == 1 + len(diff.steps)


@given(plan=PLANS)
def test_a_plan_is_read_from_its_json(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


BEFORE: Final = Plan(
    id="Shop",
    name="Shop",
    steps=(
        PlanStep(id="items", type=PlanStepType.GENERATE, goal="Items", artifacts=("items.py",)),
        PlanStep(id="use", type=PlanStepType.MODIFY, goal="Use items", files=(FileUse(path="a"),)),
        PlanStep(id="docs", type=PlanStepType.CLEANUP, goal="Describe", dependencies=("use",)),
        PlanStep(id="tests", type=PlanStepType.VALIDATE, goal="Pass", dependencies=("use",)),
    ),
)
AFTER: Final = Plan(
    id="Rest",
    name="Rest",
    steps=(
        PlanStep(
            id="use",
            type=PlanStepType.MODIFY,
            goal="Use items\nand prices",
            dependencies=("items",),
        ),
        PlanStep(id="more", type=PlanStepType.ANALYZE, goal="Look\nagain", dependencies=("use",)),
        PlanStep(id="tests", type=PlanStepType.VALIDATE, goal="Pass", dependencies=("use",)),
    ),
)
ENDS: Final = {"items": "completed", "use": "failed", "docs": "skipped", "tests": "skipped"}


def test_the_text_says_what_became_of_each_step() -> None:
    assert diff_plans(BEFORE, AFTER, ENDS).to_text() == (
        "NEW PLAN: Rest\n"
        "  1 kept, 1 done, 1 added, 1 removed, 1 changed\n"
        "✓ items (generate): done\n"
        "~ use (modify): changed, it failed\n"
        "    GOAL:\n"
        "    - Use items\n"
        "    + Use items\n"
        "    + and prices\n"
        "    DEPENDENCIES:\n"
        "    + items\n"
        "    FILES:\n"
        "    - a\n"
        "- docs (cleanup): removed, it was skipped\n"
        "+ more (analyze): added\n"
        "    TYPE: analyze\n"
        "    DEPENDENCIES: use\n"
        "    GOAL: Look\n"
        "      again\n"
        "= tests (validate): kept, it was skipped"
    )


def test_steps_in_another_order_are_a_change_of_the_plan() -> None:
    other = evolve(BEFORE, steps=BEFORE.steps[::-1])
    diff = diff_plans(BEFORE, other)
    assert {each.change for each in diff.steps} == {PlanStepChange.KEPT}
    assert diff.changes == (
        KeyChange(
            key="order",
            before=["items", "use", "docs", "tests"],
            after=["tests", "docs", "use", "items"],
        ),
    )
    assert "    ORDER:\n    - items, use, docs, tests\n" in diff.to_text()


@pytest.mark.parametrize("told", [{}, {"name": "a", "changes": 1, "steps": []}])
def test_something_else_is_no_diff(told: dict[str, object]) -> None:
    with pytest.raises((KeyError, ValueError)):
        PlanDiff.from_json(told)  # type: ignore[arg-type]  # that is the point
