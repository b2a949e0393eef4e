"""Whether a path into a value of known schema can exist; only what is certain counts."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from minions.contracts.json_values import JsonValue
from minions.contracts.schema import JsonSchema
from minions.recipe.values import PathPart

__all__ = ["DeadEnd", "find_dead_end"]

_OPEN_KEYWORDS = ("anyOf", "oneOf", "allOf", "if", "not", "$dynamicRef", "patternProperties")
_LEAVES = frozenset({"string", "number", "integer", "boolean", "null"})
_NAMES = {"array": "a list", "object": "a mapping", "string": "text", "integer": "a whole number"}


@frozen(kw_only=True)
class DeadEnd:
    """Where a path leaves what the schema allows."""

    depth: int
    """How many parts can be followed."""
    reason: str
    names: tuple[str, ...] = ()
    """The keys that exist there."""


def find_dead_end(schema: JsonSchema, path: tuple[PathPart, ...]) -> DeadEnd | None:
    """The first part of `path` that can never exist in a value of `schema`; None if all may."""
    node: JsonValue = schema
    for depth, part in enumerate(path):
        node = _followed(node, schema)
        if not isinstance(node, Mapping) or any(key in node for key in _OPEN_KEYWORDS):
            return None
        step = _step(node, part)
        if isinstance(step, str):
            properties = node.get("properties")
            names = tuple(properties) if isinstance(properties, Mapping) else ()
            return DeadEnd(depth=depth, reason=step, names=names)
        node = step
    return None


def _followed(node: JsonValue, root: JsonSchema) -> JsonValue:
    """Behind local references; a chain that goes on too long is given up."""
    for _ in range(20):
        reference = node.get("$ref") if isinstance(node, Mapping) else None
        if not isinstance(reference, str):
            return node
        node = root
        for part in reference.removeprefix("#").strip("/").split("/"):
            if part:
                node = node.get(part) if isinstance(node, Mapping) else None
    return None


def _step(node: Mapping[str, JsonValue], part: PathPart) -> JsonValue:
    """The schema of that member, or the reason as text why there is none."""
    kind = node.get("type")
    if kind in _LEAVES:
        return f"it is {_NAMES.get(str(kind), f'a {kind}')}, which has no members"
    if kind == "array":
        is_index = isinstance(part, int) or part.isdigit()
        return node.get("items", {}) if is_index else "it is a list, whose items have numbers"
    if kind != "object":
        return {}
    properties = node.get("properties")
    if isinstance(properties, Mapping) and str(part) in properties:
        return properties[str(part)]
    if node.get("additionalProperties") is False:
        return f"it has no '{part!s:.60}'"
    return {}
