"""Which tools a recipe may call: a recipe within another has no more rights than that one.

A recipe may open a toolset under another name. What the recipes around it say of a tool counts for
it under every name; in one recipe, two openings of a toolset have rights of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from minions.contracts.tools import ToolSpec
from minions.recipe.model import AgentRecipe, Permissions

__all__ = ["ALLOW_WRITE", "Rights"]

ALLOW_WRITE: Final = "allow_write"


class _OwnRights(Struct, frozen=True):
    """By one recipe."""

    permissions: Permissions
    toolsets: Mapping[str, str]
    """By the prefixes under which that recipe itself opens them."""

    @classmethod
    def by(cls, recipe: AgentRecipe) -> _OwnRights:
        """All that it says."""
        return cls(recipe.permissions, {use.prefix or use.name: use.name for use in recipe.tools})

    def missing(self, tool: ToolSpec, *, is_own: bool) -> str | None:
        """The permission that the tool would need; None: it has all."""
        said = self.permissions.tools
        for written in (name for name, is_allowed in said.items() if not is_allowed):
            if self._is_about(written, tool, is_own=is_own):
                return f"allow_{written}"
        if self.permissions.allow_write or not tool.is_write:
            return None
        granted = [name for name, is_allowed in said.items() if is_allowed]
        is_granted = any(self._grants(written, tool, is_own=is_own) for written in granted)
        return None if is_granted else ALLOW_WRITE

    def asks(self, tool: ToolSpec, *, is_own: bool) -> bool:
        """Whether each call of it needs consent: it is named, or the toolset that it is from."""
        return any(
            self._is_about(written, tool, is_own=is_own, with_toolset=True)
            for written in self.permissions.requires_approval
        )

    def _is_about(
        self, written: str, tool: ToolSpec, *, is_own: bool, with_toolset: bool = False
    ) -> bool:
        """Whether a restriction holds for the tool: under its name here or where it comes from."""
        origin = self._origin(written)
        if is_own and origin is not None:
            called, meant = {tool.name}, {written}
        else:
            called, meant = {tool.name, tool.origin or tool.name}, {written, origin or written}
        if not called.isdisjoint(meant):
            return True
        below = tuple(f"{name}__" for name in meant)
        return with_toolset and any(name.startswith(below) for name in called)

    def _grants(self, written: str, tool: ToolSpec, *, is_own: bool) -> bool:
        """A name that another tool has taken over gives no right to it."""
        origin = self._origin(written)
        if origin is None or is_own:
            return written in (tool.name, tool.origin)
        return origin == (tool.origin or tool.name)

    def _origin(self, written: str) -> str | None:
        """What the recipe itself opens under that name; None: it opens no such thing."""
        prefixes = [prefix for prefix in self.toolsets if f"{written}__".startswith(f"{prefix}__")]
        if not prefixes:
            return None
        longest = max(prefixes, key=len)
        return f"{self.toolsets[longest]}{written[len(longest) :]}"


class Rights(Struct, frozen=True):
    """Of a recipe at its place in a run."""

    _said: tuple[_OwnRights, ...]
    """By the recipes around it, the outermost first, and by itself."""

    @classmethod
    def of(cls, recipe: AgentRecipe) -> Rights:
        """Of the recipe that is run."""
        return cls((_OwnRights.by(recipe),))

    def within(self, recipe: AgentRecipe) -> Rights:
        """Of a recipe that is a step of this one."""
        return Rights((*self._said, _OwnRights.by(recipe)))

    @property
    def may_write(self) -> bool:
        """Whether tools with a declared write may run, where nothing is said of one alone."""
        return all(each.permissions.allow_write for each in self._said)

    def missing(self, tool: ToolSpec) -> str | None:
        """The permission that keeps the tool from being called: `allow_write`, `allow_<tool>`.

        Returns:
            As the outermost recipe that does not give it says it; None: the tool may be called.
        """
        own = self._said[-1]
        found = (each.missing(tool, is_own=each is own) for each in self._said)
        return next((name for name in found if name is not None), None)

    def allows(self, tool: ToolSpec) -> bool:
        """Whether it may be called."""
        return self.missing(tool) is None

    def needs_approval(self, tool: ToolSpec) -> bool:
        """Whether somebody has to consent to each call of it."""
        own = self._said[-1]
        return any(each.asks(tool, is_own=each is own) for each in self._said)
