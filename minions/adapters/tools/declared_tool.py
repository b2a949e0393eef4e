"""Tools with an explicit spec: cheap to create, unlike tools
whose spec is read from a signature.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from minions.contracts.tools import Tool, ToolScope, ToolSpec
from minions.data.json_values import JsonValue

_Call: TypeAlias = Callable[[Mapping[str, JsonValue]], Awaitable[JsonValue]]


class DeclaredTool(Tool):
    """A tool made of a spec and a function."""

    def __init__(self, spec: ToolSpec, call: _Call) -> None:
        self._spec = spec
        self._call = call

    def __repr__(self) -> str:
        return f"<tool {self._spec.name!r}>"

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def invoke(self, arguments: Mapping[str, JsonValue], scope: ToolScope) -> object:
        return await self._call(arguments)
