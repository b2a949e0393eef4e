"""A JSON Schema as Anthropic's structured output takes it.

What it does not know is left out, for every answer is checked here in any case; a schema whose
meaning would change is not expressible. Source: Anthropic, Structured outputs, "JSON Schema
limitations".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema

_KEPT: Final = frozenset(
    {
        *("$ref", "type", "enum", "const", "description", "title", "required", "format"),
        *("properties", "items", "anyOf", "allOf", "oneOf", "$defs", "definitions", "minItems"),
        "additionalProperties",
    }
)
_REFUSED: Final = frozenset({"prefixItems", "patternProperties", "dependentSchemas", "$dynamicRef"})
"""Keywords that decide which members or items there are: without them the form is another one."""
_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}
)
_MOST_OPTIONAL: Final = 24
"""Members of all objects that are not required."""
_MOST_UNIONS: Final = 16
_DEEPEST: Final = 50


class _InexpressibleError(Exception):
    """The schema cannot be sent."""


def expressible_schema(schema: JsonSchema) -> dict[str, JsonValue] | None:
    """The schema without what the server refuses; None: it cannot be expressed there."""
    try:
        sent = _Writer(schema).written(schema, 0)
    except _InexpressibleError:
        return None
    nodes = list(_nodes(sent))
    optional = sum(
        len(_names(node.get("properties"))) - len(_as_list(node.get("required"))) for node in nodes
    )
    unions = sum("anyOf" in node or isinstance(node.get("type"), list) for node in nodes)
    return sent if optional <= _MOST_OPTIONAL and unions <= _MOST_UNIONS else None


class _Writer:
    def __init__(self, root: JsonSchema) -> None:
        self._root = root
        self._open: list[str] = []
        """Definitions on the way to where we are: one that occurs again is recursive."""
        self._known: set[str] = set()

    def written(self, schema: JsonValue, depth: int) -> dict[str, JsonValue]:
        if not isinstance(schema, Mapping) or depth > _DEEPEST or _REFUSED & set(schema):
            raise _InexpressibleError
        if "$ref" in schema:
            self._follow(str(schema["$ref"]), depth)
        kinds = schema.get("type")
        is_object = kinds == "object" or (isinstance(kinds, list | tuple) and "object" in kinds)
        if is_object and not (schema.get("properties") and self._is_closable(schema)):
            raise _InexpressibleError  # any members: such an object cannot be bound
        sent = {
            name: self._member(name, value, depth)
            for name, value in schema.items()
            if _is_kept(name, value)
        }
        if "oneOf" in sent:
            sent["anyOf"] = sent.pop("oneOf")
        return {**sent, "additionalProperties": False} if is_object else sent

    def _is_closable(self, schema: Mapping[str, JsonValue]) -> bool:
        return schema.get("additionalProperties", False) is False

    def _member(self, name: str, value: JsonValue, depth: int) -> JsonValue:
        if name in ("properties", "$defs", "definitions"):
            if not isinstance(value, Mapping):
                raise _InexpressibleError
            return {key: self.written(each, depth + 1) for key, each in value.items()}
        if name in ("anyOf", "allOf", "oneOf"):
            return [self.written(each, depth + 1) for each in _as_list(value)]
        if name == "items":
            return self.written(value, depth + 1)
        if name == "enum" and any(isinstance(each, Mapping | list) for each in _as_list(value)):
            raise _InexpressibleError
        return list(value) if isinstance(value, tuple) else value

    def _follow(self, reference: str, depth: int) -> None:
        """Refuse a reference that leads back to itself, or anywhere but to a definition."""
        if reference in self._known:
            return
        place, _, name = reference.rpartition("/")
        target = _names(self._root.get(place.removeprefix("#/"))).get(name)
        if reference in self._open or target is None:
            raise _InexpressibleError
        self._open.append(reference)
        self.written(target, depth + 1)
        self._open.pop()
        self._known.add(reference)


def _is_kept(name: str, value: JsonValue) -> bool:
    if name == "format":
        return value in _FORMATS
    if name == "minItems":
        return value in (0, 1)
    return name in _KEPT


def _nodes(value: JsonValue) -> Iterator[Mapping[str, JsonValue]]:
    if isinstance(value, Mapping):
        yield value
        for each in value.values():
            yield from _nodes(each)
    elif isinstance(value, list):
        for each in value:
            yield from _nodes(each)


def _names(value: JsonValue) -> Mapping[str, JsonValue]:
    return value if isinstance(value, Mapping) else {}


def _as_list(value: JsonValue) -> list[JsonValue]:
    return list(value) if isinstance(value, list | tuple) else []
