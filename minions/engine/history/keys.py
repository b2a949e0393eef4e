"""Keys of work: where in a run something stands, and what of that can be read off the key.

`step/visit/iteration`; before it the same of each recipe around, with `~` for `/`
(`each~1~2~say/1/0`); behind it what the execution did (`…/model/1`). `@generation` marks a later
try of the execution.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

__all__ = [
    "RESERVED_SIGNS",
    "base_key",
    "enclosing",
    "execution_key",
    "head_of",
    "outermost",
    "path_of",
    "scope_of",
    "step_of",
]

_WITHIN: Final = "~"
RESERVED_SIGNS: Final = "/~"
"""No step's id may hold them."""


def execution_key(key: str) -> str:
    """`step/visit/iteration` of any key below it, with its `@generation`."""
    parts = key.split("/", 3)
    if len(parts) < 3:
        return key
    return "/".join((*parts[:2], parts[2].partition("#")[0]))


def base_key(key: str) -> str:
    """Without `@generation`, which only the last part has."""
    head, slash, iteration = key.rpartition("/")
    return f"{head}{slash}{iteration.partition('@')[0]}"


def scope_of(key: str) -> str:
    """What stands before the keys of a recipe that is the work of the execution `key`.

    Without the generation: what ended well in an execution that failed stays.
    """
    return f"{base_key(key).replace('/', _WITHIN)}{_WITHIN}"


def outermost(key: str) -> str:
    """The id of the run's own step that the work of `key` belongs to."""
    return key.partition(_WITHIN)[0].partition("/")[0]


def step_of(key: str) -> str:
    """The step's id, with what stands before it where that is a step within another."""
    return key.partition("/")[0]


def head_of(base: str) -> str:
    """`step/visit`: what all turns of one visit have in common."""
    return base.rpartition("/")[0]


def enclosing(base: str) -> Iterator[str]:
    """Bases of the executions that it is within, the outermost first."""
    *outer, _ = base.split(_WITHIN)
    before = ""
    for step, visit, iteration in zip(outer[::3], outer[1::3], outer[2::3], strict=True):
        yield f"{before}{step}/{visit}/{iteration.partition('#')[0]}"
        before += f"{_WITHIN.join((step, visit, iteration))}{_WITHIN}"


def path_of(base: str) -> str:
    """The ids of the steps alone: `outer/inner`."""
    *outer, own = base.split(_WITHIN)
    return "/".join((*outer[::3], own.partition("/")[0]))
