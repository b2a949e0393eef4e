"""Public modules with lazy names: each name is imported when it is first used."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping

__all__ = ["home_of", "lazy_names"]


def home_of(homes: Mapping[str, Iterable[str]]) -> Mapping[str, str]:
    """The module that defines each name."""
    return {name: home for home, names in homes.items() for name in names}


def lazy_names(
    module: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a public module.

    Args:
        module: Name of the public module.
        homes: The module that defines each of its names.
    """

    def find(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        value: object = getattr(importlib.import_module(home), name)
        setattr(sys.modules[module], name, value)  # the next look finds it at once
        return value

    return find, lambda: sorted(homes)
