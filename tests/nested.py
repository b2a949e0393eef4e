"""Recipes that name other recipes, given as documents by name."""

from __future__ import annotations

from collections.abc import Mapping

from minions.contracts.tools import Tool
from minions.data.errors import NotFoundError
from minions.data.json_values import JsonValue
from minions.recipe.catalog import Catalog, FindRecipe, FoundRecipe
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import recipe_from_document

__all__ = ["Document", "among", "loaded"]

Document = dict[str, JsonValue]


def among(recipes: Mapping[str, Document]) -> FindRecipe:
    """Finds recipes by name."""

    def find(name: str, directory: str | None) -> FoundRecipe:
        if name not in recipes:
            raise NotFoundError(f"There is no recipe '{name}'.")
        return FoundRecipe(identity=name, file=f"{name}.yaml", document=recipes[name])

    return find


def loaded(
    document: Document, recipes: Mapping[str, Document], tools: list[Tool] | None = None
) -> AgentRecipe:
    """A recipe that may name the others."""
    catalog = Catalog(
        tools={tool.spec.name: tool.spec for tool in tools or []}, find_recipe=among(recipes)
    )
    names = [tool.spec.name for tool in tools or []]
    return recipe_from_document({"id": "recipe", "tools": names, **document}, catalog)
