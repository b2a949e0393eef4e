"""What a recipe may name: handed in by the operator, so that checking touches nothing."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from minions.contracts.tools import Toolset, ToolSpec

__all__ = ["Catalog"]


def _no_toolsets() -> Mapping[str, Toolset]:
    return {}


def _no_tools() -> Mapping[str, ToolSpec]:
    return {}


@frozen(kw_only=True)
class Catalog:
    """The names that exist where the recipe is going to run."""

    toolsets: Mapping[str, Toolset] = field(factory=_no_toolsets)
    """By the name a recipe asks for: `files`."""
    tools: Mapping[str, ToolSpec] = field(factory=_no_tools)
    """The operator's registered Python tools, by name."""
    links: frozenset[str] = frozenset()
    """Registered completion links."""
    models: frozenset[str] = frozenset()
    """Registered model names that are not `provider/name`, such as scripted ones."""
