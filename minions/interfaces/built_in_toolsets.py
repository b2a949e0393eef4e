"""The toolsets that come along, each made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final, TypeAlias

from minions.contracts.tools import Toolset

__all__ = ["BuiltInToolsets"]


Now: TypeAlias = Callable[[], datetime]


class BuiltInToolsets(Mapping[str, Toolset]):
    """By name. Making one takes milliseconds that a recipe without it need not wait for."""

    def __init__(self, now: Now) -> None:
        self._now = now
        self._made: dict[str, Toolset] = {}

    def __getitem__(self, name: str) -> Toolset:
        if name not in self._made:
            self._made[name] = _MAKERS[name](self._now)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in _MAKERS

    def __iter__(self) -> Iterator[str]:
        return iter(_MAKERS)

    def __len__(self) -> int:
        return len(_MAKERS)


def _files(_: Now) -> Toolset:
    from minions.adapters.tools.files import files_toolset

    return files_toolset()


def _time(now: Now) -> Toolset:
    from minions.adapters.tools.time import time_toolset

    return time_toolset(now)


def _http(_: Now) -> Toolset:
    from minions.adapters.tools.http import http_toolset

    return http_toolset()


def _data(_: Now) -> Toolset:
    from minions.adapters.tools.data import data_toolset

    return data_toolset()


_MAKERS: Final[Mapping[str, Callable[[Now], Toolset]]] = MappingProxyType(
    {"files": _files, "time": _time, "http": _http, "data": _data}
)
