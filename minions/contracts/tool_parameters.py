"""The parameters of a tool as they are sent to a model: the same
meaning, in a form any server accepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minions.contracts.json_values import JsonValue
from minions.contracts.schema import JsonSchema

__all__ = ["sent_parameters"]

_NULL: Final[JsonValue] = {"type": "null"}
_SCHEMAS_BY_NAME: Final = (
    "$defs",
    "definitions",
    "patternProperties",
    "dependentSchemas",
    "dependencies",
)
_LISTS_OF_SCHEMAS: Final = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SCHEMAS: Final = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "items",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)


_TESTS: Final = ("if", "not")
"""Keywords with schemas that need not fit: narrowing those would accept more values, not fewer."""


def sent_parameters(schema: JsonSchema, *, drops_null: bool = True) -> dict[str, JsonValue]:
    """The schema with one type per property, and with optional properties as their plain type.

    Chat templates of local models treat `type` as a text; servers with such a template refuse every
    request with `{"type": ["integer", "null"]}`. An optional property need not accept null as well:
    leaving it out means the same. Arguments are validated by the schema as declared, so that a null
    is still accepted.

    Args:
        drops_null: Whether optional properties lose their null; False: only lists of types are
            rewritten.
    """
    sent: dict[str, JsonValue] = {}
    for keyword, value in schema.items():
        if keyword == "properties" and isinstance(value, Mapping):
            needed = schema.get("required") if drops_null else list(value)
            sent[keyword] = _properties(value, needed, drops_null=drops_null)
        elif keyword in _SCHEMAS_BY_NAME and isinstance(value, Mapping):
            sent[keyword] = {name: _sent(each, drops_null) for name, each in value.items()}
        elif keyword in _LISTS_OF_SCHEMAS and isinstance(value, list | tuple):
            sent[keyword] = [_sent(each, drops_null) for each in value]
        elif keyword in _SCHEMAS:
            sent[keyword] = _sent(value, drops_null)
        else:
            sent[keyword] = _sent(value, False) if keyword in _TESTS else value
    return _without_type_list(sent)


def _sent(schema: JsonValue, drops_null: bool) -> JsonValue:  # handed on
    return sent_parameters(schema, drops_null=drops_null) if isinstance(schema, Mapping) else schema


def _properties(
    properties: Mapping[str, JsonValue], required: JsonValue, *, drops_null: bool
) -> dict[str, JsonValue]:
    needed = required if isinstance(required, list | tuple) else ()
    return {
        name: _sent(each if name in needed else _without_null(each), drops_null)
        for name, each in properties.items()
    }


def _without_null(schema: JsonValue) -> JsonValue:
    """The schema of an optional property without `null`."""
    if not isinstance(schema, Mapping):
        return schema
    kept = {name: each for name, each in schema.items() if (name, each) != ("default", None)}
    kinds, options = kept.get("type"), kept.get("anyOf")
    if isinstance(kinds, list | tuple):
        plain = [kind for kind in kinds if kind != "null"]
        values = kept.get("enum")
        named = values if isinstance(values, list | tuple) else ()
        words = [each for each in named if each is not None]
        if plain and (words or not named):  # else it accepts null only
            kept["type"] = plain
            if words:
                kept["enum"] = words
    if isinstance(options, list | tuple) and _NULL in options:
        others = [each for each in options if each != _NULL]
        if not others:
            return schema
        if len(others) == 1 and isinstance(others[0], Mapping):
            del kept["anyOf"]
            return {**others[0], **kept}
        kept["anyOf"] = others
    return kept


def _without_type_list(schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
    kinds = schema.get("type")
    if not isinstance(kinds, list | tuple):
        return schema
    rest = {name: each for name, each in schema.items() if name != "type"}
    if len(kinds) == 1:
        return {"type": kinds[0], **rest}
    choice: list[JsonValue] = [{"type": kind} for kind in kinds]
    if "anyOf" in rest:
        both = rest.pop("allOf", [])
        earlier = both if isinstance(both, list | tuple) else []
        return {**rest, "allOf": [*earlier, {"anyOf": choice}]}
    return {"anyOf": choice, **rest}
