"""How many schemas apply to one value when `allOf`, `$ref` and the like are followed.

With references, a short schema may never end, or its checks may double with every line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from attrs import field, frozen

from minions.data.errors import SchemaError
from minions.data.json_values import JsonValue

__all__ = ["Expansion"]

_SCHEMA: Final = ("not", "if", "then", "else")
_LISTS: Final = ("allOf", "anyOf", "oneOf")
_REFERENCES: Final = ("$ref", "$dynamicRef")
_MOST: Final = 5_000
"""Schemas for one value: some 100 ms of validation."""
_DEEPEST: Final = 40
"""Levels of nesting: each takes several frames of the validator's stack."""


@frozen
class Expansion:
    """Counts the schemas that apply to the same value as a given schema; each is counted once."""

    resolve: Callable[[str], JsonValue]
    """Looks up the target of a local reference."""
    _known: dict[int, int] = field(factory=dict)
    """Counts by identity of the schema, which lives at least as long as this object."""

    def check(self, node: Mapping[str, JsonValue], path: str) -> None:
        """Refuse a schema whose expansion is endless or too large.

        Raises:
            SchemaError: The message names `path`.
        """
        if self._count(node, path, ()) > _MOST:
            raise SchemaError(
                f"{path}: with its references followed, more than {_MOST} schemas apply to one "
                "value. Write it with fewer references to the same schema."
            )

    def _count(self, node: JsonValue, path: str, trail: tuple[int, ...]) -> int:
        if not isinstance(node, Mapping):
            return 1
        if id(node) in trail:
            raise SchemaError(
                f"{path}: its references form a cycle for the same value, which never ends. "
                "Refer to it under 'properties' or 'items'."
            )
        if len(trail) == _DEEPEST:
            raise SchemaError(f"{path}: more than {_DEEPEST} references and choices in each other.")
        if id(node) not in self._known:
            inner = (*trail, id(node))
            counts = (self._count(each, path, inner) for each in self._applied(node))
            self._known[id(node)] = 1 + sum(counts)
        return self._known[id(node)]

    def _applied(self, node: Mapping[str, JsonValue]) -> Iterator[JsonValue]:
        for keyword, value in node.items():
            if keyword in _REFERENCES and isinstance(value, str):
                yield self.resolve(value)
            elif keyword in _SCHEMA:
                yield value
            elif keyword in _LISTS and isinstance(value, list | tuple):
                yield from value
            elif keyword == "dependentSchemas" and isinstance(value, Mapping):
                yield from value.values()
