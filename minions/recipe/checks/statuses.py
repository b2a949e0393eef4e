"""Checks of comparisons with a step's status, which is one of a few words."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from minions.contracts.executions import StepStatus
from minions.data.json_values import JsonValue
from minions.recipe.drafts import TemplateUse
from minions.recipe.expressions.terms import Comparison, ListTerm, Literal, Path, Term
from minions.recipe.expressions.values import Reference
from minions.recipe.text.sections import Report, suggestion

__all__ = ["check_statuses"]

STATUSES: Final = tuple(
    status.value for status in (StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.SKIPPED)
)
"""The statuses that a template can read: those of steps that ended."""
_TESTS: Final = ("==", "!=", "in", "not in")


def check_statuses(use: TemplateUse, report: Report) -> None:
    """Report comparisons of a step's status with anything that no status is: they never hold."""
    if use.term is None or not any(_is_status(reference) for reference in use.references):
        return
    for reference, value in _compared(use.term):
        if value in STATUSES:
            continue
        report(
            use.place_of(reference).fault(
                "bad-value",
                f"no step has the status {value!r:.60}",
                label=suggestion(str(value).lower().replace(" ", "_"), STATUSES),
                help=f"statuses are: {', '.join(STATUSES)}",
            )
        )


def _is_status(reference: Reference) -> bool:
    return reference.path[0] == "steps" and reference.path[2:] == ("status",)


def _compared(term: Term) -> Iterator[tuple[Reference, JsonValue]]:
    """Each status with each constant that it is compared with, in the whole expression."""
    if isinstance(term, Comparison):
        sides = (term.first, *(side for _, side in term.others))
        for (left, right), (name, _) in zip(pairwise(sides), term.others, strict=True):
            if name in _TESTS:
                yield from _of_sides(left, right)
                yield from _of_sides(right, left)
    for part in term.parts():
        yield from _compared(part)


def _of_sides(one: Term, other: Term) -> Iterator[tuple[Reference, JsonValue]]:
    if not isinstance(one, Path) or not _is_status(one.reference):
        return
    for each in other.items if isinstance(other, ListTerm) else (other,):
        if isinstance(each, Literal):
            yield one.reference, each.literal
