"""The steps of a recipe and of all its nested recipes, in one walk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from minions.contracts.steps import Step
from minions.recipe.model import AgentRecipe, StepSpec


class StepWithin(NamedTuple):
    """A step and its place in the outermost recipe."""

    path: str
    """`outer/inner`; the id alone for a step of the outermost recipe."""
    recipe: AgentRecipe
    """The recipe that the step belongs to."""
    step: StepSpec | Step[object]


def steps_within(recipe: AgentRecipe, prefix: str = "") -> Iterator[StepWithin]:
    """Each step, followed by the steps of the recipe that it runs.

    Args:
        prefix: Prepended to every path: `outer/`.
    """
    for step in recipe.steps:
        path = f"{prefix}{step.id}"
        yield StepWithin(path, recipe, step)
        if isinstance(step, StepSpec) and step.inner is not None:
            yield from steps_within(step.inner, f"{path}/")


def recipes_within(recipe: AgentRecipe) -> Iterator[AgentRecipe]:
    """The recipe itself, then its nested recipes, each as often as it is used."""
    yield recipe
    for found in steps_within(recipe):
        if isinstance(found.step, StepSpec) and found.step.inner is not None:
            yield found.step.inner
