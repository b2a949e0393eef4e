"""The specs of the tools that a recipe can call: no toolset is opened, no engine is needed."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from minions.contracts.tools import Reads, ToolSpec
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe


def tool_specs(recipe: AgentRecipe, catalog: Catalog) -> Mapping[str, ToolSpec]:
    """Specs by full name: tools of the toolsets that the recipe requests, and registered tools.

    `reads` of a toolset in the recipe replaces what its reading tools declare; under the strictest
    operator no recipe says that they read what can be trusted.
    """
    in_full = catalog.is_strict_in_full
    specs = dict(catalog.tools)
    for use in recipe.tools:
        toolset = catalog.toolsets.get(use.name)
        named = toolset.specs_under(use.prefix) if toolset is not None else ()
        if use.reads is not None and not (in_full and use.reads is Reads.TRUSTED):
            reads = use.reads
            named = tuple(evolve(x, reads=reads) if x.is_untrusted else x for x in named)
        specs.update({spec.name: spec for spec in named})
    return specs
