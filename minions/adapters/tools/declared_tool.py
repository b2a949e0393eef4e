"""Tools whose spec is written out: being there costs a run nothing, unlike reading signatures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from minions.contracts.json_values import JsonValue
from minions.contracts.tools import Tool, ToolScope, ToolSpec

__all__ = ["DeclaredTool"]

_Call: TypeAlias = Callable[[Mapping[str, JsonValue]], Awaitable[JsonValue]]


class DeclaredTool(Tool):
    """A spec and what it stands for."""

    def __init__(self, spec: ToolSpec, call: _Call) -> None:
        self._spec = spec
        self._call = call

    def __repr__(self) -> str:
        return f"<tool {self._spec.name!r}>"

    @property
    def spec(self) -> ToolSpec:
        """As it was given."""
        return self._spec

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        """What the function gives."""
        return await self._call(arguments)
