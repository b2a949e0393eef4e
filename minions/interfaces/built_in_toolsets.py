"""The toolsets that come along, each made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from minions.contracts.runtime import Clock
from minions.contracts.tools import Toolset

__all__ = ["BuiltInToolsets"]


class BuiltInToolsets(Mapping[str, Toolset]):
    """By name. Making one takes milliseconds that a recipe without it need not wait for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._made: dict[str, Toolset] = {}

    def __getitem__(self, name: str) -> Toolset:
        if name not in self._made:
            self._made[name] = _MAKERS[name](self._clock)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in _MAKERS

    def __iter__(self) -> Iterator[str]:
        return iter(_MAKERS)

    def __len__(self) -> int:
        return len(_MAKERS)


def _files(_: Clock) -> Toolset:
    from minions.adapters.file_tools import files_toolset

    return files_toolset()


def _time(clock: Clock) -> Toolset:
    from minions.adapters.time_tools import time_toolset

    return time_toolset(clock.now)


_MAKERS: Final[Mapping[str, Callable[[Clock], Toolset]]] = MappingProxyType(
    {"files": _files, "time": _time}
)
