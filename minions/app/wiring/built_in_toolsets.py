"""The built-in toolsets, each made when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from importlib import import_module
from typing import Final, TypeAlias, cast

from minions.contracts.tools import Toolset

__all__ = ["BuiltInToolsets"]


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
