"""A JSON Schema as it is sent to bind an answer: its bounds, and whether it satisfies the rules of
hosted models for `"strict": true`.

Without `strict` such a server treats the schema as a hint. With it, a server refuses a schema
outside of the rules: so in doubt the answer is no.

Source: OpenAI, Structured model outputs, "Supported schemas".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Final

from minions.contracts.instructions import SENT_ITEMS, SENT_TEXT
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema

_KEYWORDS: Final = frozenset(
    {
        *("$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum"),
        *("exclusiveMaximum", "exclusiveMinimum", "format", "items", "maxItems", "maximum"),
        *("minItems", "minimum", "multipleOf", "pattern", "properties", "required", "title"),
        "type",
    }
)
_FORMATS: Final = frozenset(
    ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid")
)
_DEEPEST: Final = 10
"""Levels of nesting."""
_MOST_PROPERTIES: Final = 5_000
_MOST_ENUM_VALUES: Final = 1_000
_MOST_CHARACTERS: Final = 120_000
"""Characters of all names of properties and definitions and of all enum values."""
_LONG_ENUM: Final = 250
"""Values of an enum above which their total length is limited, too."""
_MOST_CHARACTERS_OF_A_LONG_ENUM: Final = 15_000
_OF_OBJECTS: Final = frozenset(("properties", "required", "additionalProperties"))


_OF_ONE: Final = ("additionalProperties", "items", "contains")
_OF_SEVERAL: Final = ("anyOf", "allOf", "oneOf", "prefixItems")
_OF_NAMES: Final = ("properties", "$defs", "definitions", "patternProperties")


def bounded_schema(schema: JsonSchema) -> dict[str, JsonValue]:
    """The schema with a bound of each list, and of the texts in lists, that it sets none for.

    A strict schema keeps its texts without one: there `maxLength` is refused.
    """
    is_strict = is_strict_schema(schema)
    return _bound_node(schema, is_strict, is_item=False)


def _bound_node(
    node: Mapping[str, JsonValue], is_strict: bool, *, is_item: bool
) -> dict[str, JsonValue]:
    """As above, of a part of the schema; `is_item`: whether it describes what stands in a list."""

    def inner(each: JsonValue, name: str) -> JsonValue:
        if not isinstance(each, Mapping):
            return each
        is_in_list = is_item or name in ("items", "prefixItems", "$defs", "definitions")
        return _bound_node(each, is_strict, is_item=is_in_list)

    sent: dict[str, JsonValue] = {}
    for name, value in node.items():
        if name in _OF_ONE:
            sent[name] = inner(value, name)
        elif name in _OF_SEVERAL and isinstance(value, list | tuple):
            sent[name] = [inner(each, name) for each in value]
        elif name in _OF_NAMES and isinstance(value, Mapping):
            sent[name] = {key: inner(each, name) for key, each in value.items()}
        else:
            sent[name] = value
    said = node.get("type")
    kinds = said if isinstance(said, list | tuple) else (said,)
    if not {"enum", "const", "$ref"}.isdisjoint(node):
        return sent
    if "array" in kinds and "maxItems" not in node:
        sent["maxItems"] = max(SENT_ITEMS, _count(node.get("minItems")))
    is_free = {"maxLength", "format", "pattern"}.isdisjoint(node)
    if is_item and not is_strict and "string" in kinds and is_free:
        sent["maxLength"] = max(SENT_TEXT, _count(node.get("minLength")))
    return sent


def _count(value: JsonValue) -> int:
    return value if isinstance(value, int) else 0


def is_strict_schema(schema: JsonSchema) -> bool:
    """Whether a server in strict mode accepts the schema."""
    if schema.get("type") != "object" or "anyOf" in schema:
        return False
    nodes = list(_nodes(schema, 0))
    references = {"#", *(f"#/$defs/{name}" for name in _schemas_under(schema, "$defs"))}
    if not all(depth <= _DEEPEST and _is_allowed(node, references) for node, depth in nodes):
        return False
    names = [name for node, _ in nodes for name in _names(node)]
    values = [value for node, _ in nodes for value in _as_tuple(node.get("enum"))]
    return (
        len(names) <= _MOST_PROPERTIES
        and len(values) <= _MOST_ENUM_VALUES
        and sum(len(str(each)) for each in (*names, *values)) <= _MOST_CHARACTERS
    )


def _nodes(schema: JsonValue, depth: int) -> Iterator[tuple[Mapping[str, JsonValue], int]]:
    """Every schema in it with its depth; anything that is not a mapping
    appears as one that is refused.
    """
    if not isinstance(schema, Mapping):
        yield {"not": {}}, depth
        return
    yield schema, depth
    for keyword in ("properties", "$defs"):
        for each in _schemas_under(schema, keyword).values():
            yield from _nodes(each, depth + 1)
    for each in _as_tuple(schema.get("anyOf")):
        yield from _nodes(each, depth + 1)
    if "items" in schema:
        yield from _nodes(schema["items"], depth + 1)


def _is_allowed(node: Mapping[str, JsonValue], references: Set[str]) -> bool:
    if "$ref" in node:
        return len(node) == 1 and str(node["$ref"]) in references
    if not _KEYWORDS.issuperset(node) or not {"type", "anyOf", "enum", "const"} & set(node):
        return False
    if any(keyword in node and not _as_tuple(node[keyword]) for keyword in ("anyOf", "enum")):
        return False
    return _is_allowed_text(node) and _is_allowed_type(node)


def _is_allowed_text(node: Mapping[str, JsonValue]) -> bool:
    if "format" in node and node["format"] not in _FORMATS:
        return False
    # Servers refuse lookaround, and do not all document which other groups they refuse.
    if "(?" in str(node.get("pattern", "")):
        return False
    values = _as_tuple(node.get("enum"))
    return (
        len(values) <= _LONG_ENUM
        or sum(len(str(each)) for each in values) <= _MOST_CHARACTERS_OF_A_LONG_ENUM
    )


def _is_allowed_type(node: Mapping[str, JsonValue]) -> bool:
    kinds = node.get("type")
    kinds = kinds if isinstance(kinds, list | tuple) else (kinds,)
    if not kinds or ("array" in kinds and "items" not in node):
        return False
    return _is_closed(node) if "object" in kinds else _OF_OBJECTS.isdisjoint(node)


def _is_closed(node: Mapping[str, JsonValue]) -> bool:
    """Whether every property is required and no others are allowed."""
    properties = node.get("properties")
    return (
        node.get("additionalProperties") is False
        and isinstance(properties, Mapping)
        and set(_as_tuple(node.get("required"))) == set(properties)
    )


def _names(node: Mapping[str, JsonValue]) -> Iterator[str]:
    for keyword in ("properties", "$defs"):
        yield from _schemas_under(node, keyword)


def _schemas_under(node: Mapping[str, JsonValue], keyword: str) -> Mapping[str, JsonValue]:
    inner = node.get(keyword)
    return inner if isinstance(inner, Mapping) else {}


def _as_tuple(value: JsonValue) -> tuple[JsonValue, ...]:
    return tuple(value) if isinstance(value, list | tuple) else ()
