"""Which tools a recipe can reach, as specs: nothing is opened, no engine is needed."""

from __future__ import annotations

from collections.abc import Mapping

from minions.contracts.tools import ToolSpec
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe

__all__ = ["tool_specs"]


def tool_specs(recipe: AgentRecipe, catalog: Catalog) -> Mapping[str, ToolSpec]:
    """By full name: those of the toolsets that the recipe asks for, and the registered ones."""
    specs = dict(catalog.tools)
    for use in recipe.tools:
        toolset = catalog.toolsets.get(use.name)
        named = toolset.specs_under(use.prefix) if toolset is not None else ()
        specs.update({spec.name: spec for spec in named})
    return specs
