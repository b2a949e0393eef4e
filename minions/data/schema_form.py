"""A quick yes for schemas that are valid by the metaschema, without loading a validator.

It knows the words of which most schemas consist, and says yes only where the metaschema of draft
2020-12 does, too. Whatever it does not know is left to the metaschema, which also words the errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from minions.data.json_values import JsonValue

_DEEPEST: Final = 64
"""Levels of a schema."""
_REFERENCE: Final = re.compile(r"#[/$\w.~-]*", re.ASCII)
_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})


def is_plain_schema(schema: JsonValue, depth: int = 0) -> bool:
    """Whether it is a valid schema for sure, if its patterns are: these are not looked at."""
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return False
    return all(_is_plain(word, item, depth + 1) for word, item in schema.items())


def _is_plain(word: str, item: JsonValue, depth: int) -> bool:
    """Whether a word of a schema is known, and what it says is valid."""
    if word in _ONE:
        return is_plain_schema(item, depth)
    if word in _LISTED:
        return isinstance(item, list) and bool(item) and _are_plain(item, depth)
    if word in _NAMED:
        return isinstance(item, Mapping) and _are_plain(item.values(), depth)
    return word in _SAYS_NOTHING or ((check := _WORDS.get(word)) is not None and check(item))


def _are_plain(schemas: Iterable[JsonValue], depth: int) -> bool:
    return all(is_plain_schema(each, depth) for each in schemas)


def _is_type(item: JsonValue) -> bool:
    if isinstance(item, list):
        return bool(item) and _are_names(item) and _TYPES.issuperset(item)
    return isinstance(item, str) and item in _TYPES


def _are_names(item: JsonValue) -> bool:
    if not isinstance(item, list):
        return False
    texts = {each for each in item if isinstance(each, str)}
    return len(texts) == len(item)


def _is_reference(item: JsonValue) -> bool:
    return isinstance(item, str) and _REFERENCE.fullmatch(item) is not None


def _is_text(item: JsonValue) -> bool:
    return isinstance(item, str)


def _is_list(item: JsonValue) -> bool:
    return isinstance(item, list)


def _is_number(item: JsonValue) -> bool:
    return isinstance(item, int | float) and not isinstance(item, bool)


def _is_count(item: JsonValue) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0


def _is_flag(item: JsonValue) -> bool:
    return isinstance(item, bool)


_SAYS_NOTHING: Final = frozenset({"const", "default"})
"""Words whose values may be anything."""
_ONE: Final = frozenset(
    {"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
)
_LISTED: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED: Final = frozenset({"$defs", "definitions", "properties"})
_WORDS: Final[Mapping[str, Callable[[JsonValue], bool]]] = {
    "type": _is_type,
    "required": _are_names,
    "$ref": _is_reference,
    **dict.fromkeys(("title", "description", "format", "pattern", "$comment"), _is_text),
    **dict.fromkeys(("enum", "examples"), _is_list),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
        _is_count,
    ),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _is_flag),
}
