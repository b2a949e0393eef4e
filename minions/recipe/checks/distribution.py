"""Checks of steps with `distribute: true`: items may read nothing that only the run itself has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from minions.recipe.drafts import RecipeDraft, StepDraft, TemplateUse
from minions.recipe.text.nodes import Place
from minions.recipe.text.sections import Report

_OF_THE_RUN: Final = {
    "run": "a child run has an id of its own",
    "feedback": "a child run is told no failure of another step",
}
"""Names that mean something else in a child run, and why."""


class _Problem(Struct, frozen=True):
    """Why the items of a step cannot be runs of their own."""

    message: str
    help: str
    place: Place | None = None
    """Where it stands; None: at the key `distribute`."""


def check_distribution(draft: RecipeDraft, report: Report) -> None:
    """Report distributed steps whose items cannot be executed as runs of their own."""
    for step in draft.steps:
        if step.section.plain("distribute") is not True:
            continue
        for problem in _problems(draft, step):
            place = problem.place or step.section.place_of("distribute")
            message = f"step {step.title} cannot be distributed: {problem.message}"
            report(place.fault("bad-distribution", message, help=problem.help))


def _problems(draft: RecipeDraft, step: StepDraft) -> Iterator[_Problem]:
    if step.has_while:
        yield _Problem(
            "an attempt of its 'while' reads those before it",
            "leave out 'distribute', or distribute a 'recipe' step that has the 'while' inside",
        )
    elif not step.has_loop and step.kind != "recipe":
        yield _Problem(
            "it has no items", "add a 'loop', or leave out 'distribute'; a 'recipe' needs no loop"
        )
    if draft.has_graph:
        yield _Problem(
            "the recipe is a graph of transitions, which runs as a whole",
            "leave out 'graph' and say 'depends_on', or put the graph into a nested recipe",
        )
    if step.section.text("memory") == "conversation":
        yield _Problem(
            "its items share one conversation (memory: conversation)",
            "leave out 'memory', so that each item has a conversation of its own",
        )
    saved = {other.save_as for other in draft.steps} | {other.id for other in draft.steps}
    for use in step.templates:
        yield from _foreign_names(use, saved)


def _foreign_names(use: TemplateUse, saved: set[str | None]) -> Iterator[_Problem]:
    for reference in use.references:
        root = str(reference.path[0])
        if root in _OF_THE_RUN and root not in saved:
            yield _Problem(
                f"it reads '{root}', and {_OF_THE_RUN[root]}",
                "read it in a 'set' step before, and the output of that step here",
                use.place_of(reference),
            )
