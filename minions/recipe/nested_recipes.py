"""The nested recipes of a recipe: as one JSON value, which is stored with its runs, and as a walk
through their steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from minions.contracts.steps import Step
from minions.data.errors import NotFoundError, near_names
from minions.data.json_values import JsonValue, as_object, as_text
from minions.recipe.catalog import FoundRecipe
from minions.recipe.kinds.recipe_kind import RecipeSpec
from minions.recipe.model import AgentRecipe, StepSpec


def bundle_of(recipe: AgentRecipe) -> dict[str, JsonValue]:
    """The nested recipes by name, each as `{document, directory, recipes}`; {} where there are
    none.

    Recipes made by code have no text: on resume they must be registered again.
    """
    bundle: dict[str, JsonValue] = {}
    named = [(each.name, each.recipe) for each in recipe.steps if isinstance(each, RecipeSpec)]
    for name, inner in (*named, *reviewers_of(recipe).items()):
        if inner.document is None:
            continue
        bundle[name] = {
            "document": dict(inner.document),
            "directory": inner.directory,
            "recipes": bundle_of(inner),
        }
    return bundle


def reviewers_of(recipe: AgentRecipe) -> dict[str, AgentRecipe]:
    """The recipes that review calls of the recipe's tools, by the names that it uses."""
    return {
        each.reviewer.name: each.reviewer.recipe
        for each in recipe.permissions.approval_rules
        if each.reviewer is not None
    }


class BundledRecipes(Struct, frozen=True):
    """Looks up nested recipes in a stored bundle; no file is read."""

    bundle: Mapping[str, JsonValue]

    def __call__(self, name: str, directory: str | None) -> FoundRecipe:
        """The recipe of that name.

        Raises:
            NotFoundError: The bundle has none of that name.
        """
        found = self.bundle.get(name)
        if not isinstance(found, Mapping):
            raise NotFoundError(
                f"There is no recipe '{name}' in the recipes that are stored with the run.",
                code="recipe-not-found",
                suggestions=near_names(name, self.bundle),
            )
        return FoundRecipe(
            identity=name,
            file=f"<recipe {name}>",
            document=as_object(found["document"]),
            directory=None if found["directory"] is None else as_text(found["directory"]),
            recipes=BundledRecipes(as_object(found["recipes"])),
        )


# --- the steps of a recipe and of all its nested recipes, in one walk ----------------------------


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


def needs_sandbox(step: StepSpec | Step[object]) -> bool:
    """Whether the step is code that runs only in a sandbox."""
    return isinstance(step, StepSpec) and step.needs_sandbox


def all_steps(recipe: AgentRecipe) -> Sequence[StepSpec | Step[object]]:
    """The same steps without their places, those of nested recipes last."""
    steps = list(recipe.steps)
    for step in steps:  # which grows
        if isinstance(step, StepSpec) and (inner := step.inner) is not None:
            steps += inner.steps
    return steps


def reads_starter(recipe: AgentRecipe) -> bool:
    """Whether a rule of its approvals, or of those of a nested recipe, excludes who started it."""
    return any(
        each.rule.not_by_starter
        for inner in recipes_within(recipe)
        for each in inner.permissions.approval_rules
    )


def recipes_within(recipe: AgentRecipe) -> Iterator[AgentRecipe]:
    """The recipe itself, then its nested recipes, each as often as it is used."""
    yield recipe
    for found in steps_within(recipe):
        if isinstance(found.step, StepSpec) and found.step.inner is not None:
            yield found.step.inner
