"""The steps of a recipe and of all recipes that are steps in it, in one walk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from minions.contracts.steps import Step
from minions.recipe.model import AgentRecipe, StepSpec

__all__ = ["StepWithin", "recipes_within", "steps_within"]


class StepWithin(NamedTuple):
    """A step where it stands."""

    path: str
    """`outer/inner`; of a step of the outermost recipe its id."""
    recipe: AgentRecipe
    """That it is a step of."""
    step: StepSpec | Step[object]


def steps_within(recipe: AgentRecipe, prefix: str = "") -> Iterator[StepWithin]:
    """Each step, followed by those of the recipe that it is.

    Args:
        prefix: Before the path of each: `outer/`.
    """
    for step in recipe.steps:
        path = f"{prefix}{step.id}"
        yield StepWithin(path, recipe, step)
        if isinstance(step, StepSpec) and step.inner is not None:
            yield from steps_within(step.inner, f"{path}/")


def recipes_within(recipe: AgentRecipe) -> Iterator[AgentRecipe]:
    """The recipe itself, then those that are steps in it, as often as they are."""
    yield recipe
    for found in steps_within(recipe):
        if isinstance(found.step, StepSpec) and found.step.inner is not None:
            yield found.step.inner
