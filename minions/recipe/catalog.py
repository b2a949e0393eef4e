"""The catalog of names that a recipe may use: handed in, so that checks need no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec import Struct

from minions.contracts.tools import Toolset, ToolSpec
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema

if TYPE_CHECKING:
    from minions.recipe.model import AgentRecipe, OperatorRules
    from minions.recipe.model_config import ModelConfig
    from minions.recipe.text.sections import Report, Section


STRICT_IN_FULL: Final = "full"
"""The strictest `strict`."""


def _no_toolsets() -> Mapping[str, Toolset]:
    return {}


def _no_tools() -> Mapping[str, ToolSpec]:
    return {}


class FoundRecipe(Struct, frozen=True, kw_only=True):
    """A recipe that a step names: located, not checked yet. It has a text, or a document."""

    identity: str
    """The same for the same recipe under any name: detects cycles."""
    file: str
    """The file's name, for messages."""
    text: bytes | None = None
    document: Mapping[str, JsonValue] | None = None
    directory: str | None = None
    """The folder that relative paths in the recipe start from."""
    recipes: FindRecipe | None = None
    """Looks up the recipes that it names in turn; None: by the same function as itself."""


FindRecipe: TypeAlias = Callable[[str, str | None], FoundRecipe]
"""Looks up a recipe by its name and the directory of the recipe that names it.

Raises:
    NotFoundError: There is no such recipe.
"""

CheckModel: TypeAlias = Callable[["ModelConfig", str], None]
"""Checks what a recipe says of a model against the operator's settings; the text is the recipe's
file. No server is asked.

Raises:
    UsageError: A run with these settings would be refused before its first call.
"""

CheckWatch: TypeAlias = Callable[
    ["Section", JsonSchema, Collection[str], "Catalog", "Report"], None
]
"""Reports what is wrong with the scorers of a recipe's `watch`, which is given first; then what is
known of the recipe's output, and the names of its inputs."""


class Catalog(Struct, frozen=True, kw_only=True):
    """The names that are available where the recipe is going to run."""

    toolsets: Mapping[str, Toolset] = msgspec.field(default_factory=_no_toolsets)
    """Toolsets by the name that recipes use: `files`."""
    tools: Mapping[str, ToolSpec] = msgspec.field(default_factory=_no_tools)
    """The operator's registered Python tools by name."""
    links: frozenset[str] = frozenset()
    """Names of registered completion links."""
    redactors: frozenset[str] | None = None
    """Kinds of personal data that something finds; None: that is not known here."""
    models: frozenset[str] = frozenset()
    """Names of registered models that are not of the form `provider/name`,
    such as scripted ones.
    """
    check_model: CheckModel | None = None
    """Checks models that are not among `models`; None: only the form of their names is checked."""
    check_watch: CheckWatch | None = None
    """Checks the scorers of a `watch`; None: only that there are some."""
    recipes: Mapping[str, AgentRecipe] = msgspec.field(default_factory=dict)
    """Registered recipes, made by code, by name."""
    steps: Mapping[str, JsonSchema] = msgspec.field(default_factory=dict)
    """JSON Schemas of the arguments (`with`) of registered `Step` classes, by name."""
    step_outputs: Mapping[str, JsonSchema] = msgspec.field(default_factory=dict)
    """JSON Schemas of the outputs of those whose type says it, by name."""
    recipe_folders: tuple[Path, ...] = ()
    """The server's folders of recipes. Recipes may name files below these and in the
    project; empty: see `NamedFiles`.
    """
    find_recipe: FindRecipe | None = None
    """Looks up recipes that steps name; None: among files."""
    takes_unlocked: bool = False
    """Whether tools of MCP servers that nobody looked at are a warning instead of an error: for
    checks alone, since nothing is known of them.
    """
    strict: bool | str = False
    """Whether every recipe is checked as if it said `strict: true`; `STRICT_IN_FULL`: and what
    recipes say themselves, by questions, `endorse` and `reads`, makes no text harmless.
    """

    operator: OperatorRules | None = None
    """What the operator says of calls with strangers' words; None: nothing."""
    roles: frozenset[str] = frozenset()
    """Roles that whoever decides about calls may have; empty: they are not known."""

    @property
    def is_strict_in_full(self) -> bool:
        """Whether only approvals of calls, and the operator's own tools, make text harmless."""
        return self.strict == STRICT_IN_FULL
