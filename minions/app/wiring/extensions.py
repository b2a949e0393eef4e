"""Everything that recipes may name: built-in tools and toolsets, and the operator's own."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from minions.adapters.stores.state_store import MemoryState, StateStore
from minions.adapters.tools.date_time import date_time_tools
from minions.adapters.tools.state import state_tools
from minions.app.wiring.built_in_recipes import BuiltInRecipes
from minions.app.wiring.built_in_sandboxes import BuiltInSandboxes
from minions.app.wiring.built_in_toolsets import BuiltInToolsets
from minions.contracts.tools import Toolbox, Toolset
from minions.recipe.catalog import Catalog

if TYPE_CHECKING:  # `validate` needs no engine
    from minions.engine.compile.extensions import Extensions
    from minions.recipe.model import AgentRecipe

__all__ = [
    "built_in_extensions",
    "built_in_recipes",
    "built_in_tools",
    "built_in_toolsets",
    "extended",
    "joined_toolsets",
]


def built_in_toolsets() -> Mapping[str, Toolset]:
    """The built-in toolsets by name; nothing is opened."""
    return BuiltInToolsets(lambda: datetime.now(UTC))


def built_in_tools(state: StateStore | None = None) -> Toolbox:
    """The tools that every recipe may use without naming their toolset; nothing is opened.

    Args:
        state: The store of `saveState`; None: in memory.
    """
    tools = (*state_tools(state or MemoryState()), *date_time_tools(lambda: datetime.now(UTC)))
    return Toolbox(tools)


def built_in_recipes() -> Mapping[str, AgentRecipe]:
    """The built-in recipes by name; none is read yet."""
    toolsets = built_in_toolsets()

    def catalog() -> Catalog:
        return Catalog(
            toolsets=toolsets, tools={tool.spec.name: tool.spec for tool in built_in_tools()}
        )

    return BuiltInRecipes(catalog)


def built_in_extensions(
    state: StateStore | None = None, servers: Mapping[str, Toolset] | None = None
) -> Extensions:
    """The built-in tools, toolsets, recipes and sandboxes; nothing is opened.

    Args:
        state: As for `built_in_tools`.
        servers: Toolsets of MCP servers; None: recipes can name none.
    """
    from minions.engine.compile.extensions import Extensions
    from minions.planning.built_in_planner import BuiltInPlanner

    toolsets = built_in_toolsets()
    return Extensions(
        toolsets=joined_toolsets(servers, toolsets),
        tools=built_in_tools(state),
        recipes=built_in_recipes(),
        sandboxes=BuiltInSandboxes(),
        planner=BuiltInPlanner(toolsets),
    )


def joined_toolsets(
    first: Mapping[str, Toolset] | None, second: Mapping[str, Toolset]
) -> Mapping[str, Toolset]:
    """Both in one mapping, none of them made; if both have a name, the first counts."""
    if first is None:
        return second
    # A ChainMap may be written to; nobody does.
    return ChainMap(cast("dict[str, Toolset]", first), cast("dict[str, Toolset]", second))


def extended(base: Extensions, own: Extensions) -> Extensions:
    """Both in one value; if both have a name, that of `own` counts."""
    from minions.engine.compile.extensions import Extensions

    kept = tuple(tool for tool in base.tools if tool.spec.name not in own.tools)
    return Extensions(
        toolsets=joined_toolsets(own.toolsets or None, base.toolsets),
        tools=own.tools.plus(kept),
        links={**base.links, **own.links},
        models={**base.models, **own.models},
        recipes=ChainMap(dict(own.recipes), cast("dict[str, AgentRecipe]", base.recipes)),
        steps={**base.steps, **own.steps},
        sandboxes={**base.sandboxes, **own.sandboxes} if own.sandboxes else base.sandboxes,
        planner=own.planner or base.planner,
        agents=own.agents or base.agents,
    )
