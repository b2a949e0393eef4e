"""Checks of ids and `save_as` names: unique, not reserved, and used."""

from __future__ import annotations

from typing import Final

from minions.contracts.errors import Fault
from minions.recipe.drafts import RecipeDraft, StepDraft
from minions.recipe.expressions.tokens import WORDS
from minions.recipe.text.nodes import Place
from minions.recipe.text.sections import Report

__all__ = ["check_names", "check_unused_names"]

RESERVED: Final = ("inputs", "steps", "loop", "run", "env")
"""Roots of template expressions, which no step may have as its name."""


def check_names(draft: RecipeDraft, report: Report) -> None:
    """Report duplicate ids, reserved names, and `save_as` names that hide a step."""
    inputs = draft.section.mapping("inputs")
    for entry in inputs.entries if inputs else ():
        if entry.key in WORDS:
            report(_reserved(entry.key_node.place, f"an input cannot be called '{entry.key}'"))
    first: dict[str, StepDraft] = {}
    for step in draft.steps:
        if step.section.node("id") is None:
            continue
        if step.id in (*RESERVED, *WORDS):
            message = f"a step cannot be called '{step.id}'"
            report(_reserved(step.place, message, is_root=step.id in RESERVED))
        if (other := first.setdefault(step.id, step)) is not step:
            report(
                step.place.fault(
                    "duplicate-id",
                    f"two steps are called '{step.id}'",
                    label=f"first given at line {other.place.line}",
                    help="ids are unique; rename one of the two",
                )
            )
    for step in draft.steps:
        _check_save_as(step, first, report)


def _check_save_as(step: StepDraft, by_id: dict[str, StepDraft], report: Report) -> None:
    name = step.save_as
    if name is None:
        return
    place = step.section.place_of("save_as")
    if name in (*RESERVED, *WORDS):
        report(_reserved(place, f"save_as cannot be '{name}'", is_root=name in RESERVED))
    elif name in by_id and by_id[name] is not step:
        report(
            place.fault(
                "name-clash",
                f"save_as '{name}' is also the id of a step",
                label=f"that step is at line {by_id[name].place.line}",
                help="a name in a template must mean one thing; rename one of the two",
            )
        )


def _reserved(place: Place, message: str, *, is_root: bool = False) -> Fault:
    if is_root:
        hint = f"templates use these names themselves: {', '.join(RESERVED)}"
    else:
        hint = f"these are words of expressions: {', '.join(WORDS)}"
    return place.fault("reserved-name", message, help=hint)


def check_unused_names(draft: RecipeDraft, used: frozenset[str], report: Report) -> None:
    """Warn about every `save_as` name that nothing reads.

    Args:
        used: Every name that a template or `depends_on` mentions.
    """
    faulty = {*RESERVED, *WORDS, *(step.id for step in draft.steps)}
    for step in draft.steps:
        name = step.save_as
        if name is not None and name not in used and name not in faulty:
            report(
                step.section.place_of("save_as").fault(
                    "unused-save-as",
                    f"nothing reads '{name}'",
                    help="remove save_as, or read it in a template",
                    is_warning=True,
                )
            )
