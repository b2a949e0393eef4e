"""The nested recipes of a recipe as one JSON value, which is stored with its runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from attrs import frozen

from minions.data.errors import NotFoundError, near_names
from minions.data.json_values import JsonValue
from minions.recipe.catalog import FoundRecipe
from minions.recipe.kinds.recipe import RecipeSpec
from minions.recipe.model import AgentRecipe


def bundle_of(recipe: AgentRecipe) -> dict[str, JsonValue]:
    """The nested recipes by name, each as `{document, directory, recipes}`; {} where there are
    none.

    Recipes made by code have no text: on resume they must be registered again.
    """
    bundle: dict[str, JsonValue] = {}
    for step in recipe.steps:
        if not isinstance(step, RecipeSpec) or step.recipe.document is None:
            continue
        inner = step.recipe
        bundle[step.name] = {
            "document": dict(step.recipe.document),
            "directory": inner.directory,
            "recipes": bundle_of(inner),
        }
    return bundle


@frozen
class BundledRecipes:
    """Looks up nested recipes in a stored bundle; no file is read."""

    bundle: Mapping[str, JsonValue]

    def __call__(self, name: str, directory: str | None) -> FoundRecipe:
        """The recipe of that name.

        Raises:
            NotFoundError: The bundle has none of that name.
        """
        found = cast("Mapping[str, JsonValue] | None", self.bundle.get(name))
        if found is None:
            raise NotFoundError(
                f"There is no recipe '{name}' in the recipes that are stored with the run.",
                code="recipe-not-found",
                suggestions=near_names(name, self.bundle),
            )
        return FoundRecipe(
            identity=name,
            file=f"<recipe {name}>",
            document=cast("Mapping[str, JsonValue]", found["document"]),
            directory=cast("str | None", found["directory"]),
            recipes=BundledRecipes(cast("Mapping[str, JsonValue]", found["recipes"])),
        )
