"""Checks of back edges: `on_error: {goto: STEP}`."""

from __future__ import annotations

from collections.abc import Mapping

from minions.recipe.drafts import RecipeDraft, StepDraft, is_lost_name
from minions.recipe.text.sections import Report, suggestion


def check_returns(draft: RecipeDraft, report: Report) -> None:
    """Report targets that are not a step, or not one that the failing step depends on."""
    if not any(step.goto is not None for step in draft.steps):
        return
    ids = {step.id: step for step in draft.steps if step.is_named}
    for step in draft.steps:
        if step.goto is not None:
            _check(draft, step, str(step.goto.value), ids, report)


def _check(
    draft: RecipeDraft, step: StepDraft, name: str, ids: Mapping[str, StepDraft], report: Report
) -> None:
    assert step.goto is not None  # noqa: S101  # asked only of steps that have one
    target = ids.get(name)
    if target is None:
        if not is_lost_name(draft, name):
            fault = step.goto.place.fault(
                "unknown-step",
                f"unknown step '{name:.60}' in on_error",
                label=suggestion(name, tuple(ids)),
                help=f"steps are: {', '.join(ids)}",
            )
            report(fault)
        return
    if "graph" in draft.section.entries or target is step or _rests_on(draft, step, target):
        return
    report(
        step.goto.place.fault(
            "bad-goto",
            f"{step.title} does not depend on '{name}': running it again would change nothing",
            help=f"list '{name}' under its depends_on, or take a step that it depends on",
        )
    )


def _rests_on(draft: RecipeDraft, step: StepDraft, target: StepDraft) -> bool:
    seen = {step.index}
    pending = [step]
    while pending:
        each = pending.pop()
        for index in (*each.depends_on, *each.after):
            if index == target.index:
                return True
            if index not in seen:
                seen.add(index)
                pending.append(draft.steps[index])
    return False
