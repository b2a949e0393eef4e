"""The command line in this process: arguments in; exit code, result and messages out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

from attrs import frozen

from minions.data.json_values import JsonValue


@frozen
class Outcome:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Mapping[str, JsonValue]:
        """The one object on standard output."""
        return cast("Mapping[str, JsonValue]", json.loads(self.out))


Cli: TypeAlias = Callable[..., Outcome]
Write: TypeAlias = Callable[[str, str], object]
