"""What a recipe may name: handed in by the operator, so that checking touches nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from attrs import field, frozen

from minions.contracts.json_values import JsonValue
from minions.contracts.schema import JsonSchema
from minions.contracts.tools import Toolset, ToolSpec

if TYPE_CHECKING:
    from minions.recipe.model import AgentRecipe

__all__ = ["Catalog", "FindRecipe", "FoundRecipe"]


def _no_toolsets() -> Mapping[str, Toolset]:
    return {}


def _no_tools() -> Mapping[str, ToolSpec]:
    return {}


@frozen(kw_only=True)
class FoundRecipe:
    """A recipe that a step names: found, not checked yet. It has a text, or a document."""

    identity: str
    """The same for the same recipe, however it is named: it shows cycles."""
    file: str
    """For messages."""
    text: bytes | None = None
    document: Mapping[str, JsonValue] | None = None
    directory: str | None = None
    """Where its own relative paths start."""
    recipes: FindRecipe | None = None
    """Finds those that it names itself; None: the same as before."""


FindRecipe: TypeAlias = Callable[[str, str | None], FoundRecipe]
"""A name and the naming recipe's directory to the recipe; raises NotFoundError."""


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
    recipes: Mapping[str, AgentRecipe] = field(factory=dict)
    """Registered recipes, made by code."""
    steps: Mapping[str, JsonSchema] = field(factory=dict)
    """Registered `Step` classes by name: what `with` may give them, as JSON Schema."""
    recipe_folders: tuple[Path, ...] = ()
    """The server's: recipes name files beneath these and the project; none: see `NamedFiles`."""
    find_recipe: FindRecipe | None = None
    """Finds recipes that steps name; None: among files."""
