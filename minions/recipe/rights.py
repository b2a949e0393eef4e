"""Which tools a recipe may call: a recipe within another has no more rights than that one."""

from __future__ import annotations

from attrs import field, frozen

from minions.contracts.tools import ToolSpec
from minions.recipe.model import Permissions

__all__ = ["Rights"]


@frozen
class Rights:
    """Of a recipe at its place in a run."""

    permissions: tuple[Permissions, ...] = field(default=())
    """Those of the recipes around it, the outermost first, and its own."""

    def within(self, own: Permissions) -> Rights:
        """Of a recipe that is a step of this one."""
        return Rights((*self.permissions, own))

    @property
    def may_write(self) -> bool:
        """Whether tools with a declared write may run, where nothing is said of one alone."""
        return all(each.allow_write for each in self.permissions)

    def allows(self, tool: ToolSpec) -> bool:
        """Whether it may be called."""
        return all(_allows(each, tool) for each in self.permissions)

    def needs_approval(self, tool: str) -> bool:
        """Whether somebody has to consent to each call of it."""
        return any(tool in each.requires_approval for each in self.permissions)


def _allows(permissions: Permissions, tool: ToolSpec) -> bool:
    return permissions.tools.get(tool.name, permissions.allow_write or not tool.is_write)
