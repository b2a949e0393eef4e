"""Everything that recipes may name: built-in tools and toolsets, and the operator's own."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from minions.adapters.stores.state_store import MemoryState, StateStore
from minions.adapters.tools.date_time import date_time_tools
from minions.adapters.tools.state import state_tools
from minions.app.wiring.built_in_recipes import BuiltInRecipes
from minions.app.wiring.built_in_sandboxes import BuiltInSandboxes
from minions.contracts.tools import Toolbox, Toolset
from minions.recipe.catalog import Catalog

if TYPE_CHECKING:
    from minions.engine.compile.extensions import Extensions
    from minions.recipe.model import AgentRecipe


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


# --- the built-in toolsets, each made when it is first needed ------------------------------------


Now: TypeAlias = Callable[[], datetime]


class BuiltInToolsets(Mapping[str, Toolset]):
    """The built-in toolsets by name. Each is made on first use, since that takes milliseconds."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._made: dict[str, Toolset] = {}

    def __getitem__(self, name: str) -> Toolset:
        if name not in self._made:
            if name not in _TOOLSETS:
                raise KeyError(name)
            own = {"plans": self._plans, "documents": self._documents}.get(name)
            self._made[name] = self._adapter(name) if own is None else own()
        return self._made[name]

    def _adapter(self, name: str) -> Toolset:
        module = import_module(f"minions.adapters.tools.{name}")
        return cast("Toolset", module.built_in(self._now))

    def _documents(self) -> Toolset:
        from minions.adapters.tools.documents import documents_toolset
        from minions.app.settings.user_folders import user_cache_folder

        return documents_toolset(self._now, user_cache_folder() / "documents")

    def _plans(self) -> Toolset:
        from minions.planning.plan_tools import plans_toolset
        from minions.recipe.catalog import Catalog

        return plans_toolset(lambda: Catalog(toolsets=self))

    def __contains__(self, name: object) -> bool:
        return name in _TOOLSETS

    def __iter__(self) -> Iterator[str]:
        return iter(_TOOLSETS)

    def __len__(self) -> int:
        return len(_TOOLSETS)


_TOOLSETS: Final = (
    "files",
    "documents",
    "time",
    "http",
    "data",
    "shell",
    "git",
    "plans",
    "agents",
)
"""A new toolset is one line here: the name of its module in `adapters/tools`, which has a function
`built_in`. `plans` makes recipes, and so belongs to planning; `documents` is told where the user's
cache is."""
