"""The parameters of a tool as they are sent to a model: the same
meaning, in a form any server accepts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema

_NULL: Final[JsonValue] = {"type": "null"}
_DEFINITIONS: Final = ("$defs", "definitions")
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


_ANNOTATIONS: Final = frozenset(("default", "deprecated", "description", "examples", "title"))
_MOST_NODES: Final = 1_000
"""Schemas that inlining may write: definitions that name each other twice grow as powers of two."""


def sent_parameters(schema: JsonSchema) -> dict[str, JsonValue]:
    """The schema with one type per property, and with optional properties as their plain type.

    References to definitions are replaced by what they name, unless one leads back to itself: some
    servers do not resolve them, and the model is not shown what they name.

    Chat templates of local models treat `type` as a text; servers with such a template refuse every
    request with `{"type": ["integer", "null"]}`. An optional property need not accept null as well:
    leaving it out means the same. Arguments are validated by the schema as declared, so that a null
    is still accepted.
    """
    return _rewritten(_inline_schema(schema), drops_null=True)


def _rewritten(schema: JsonSchema, *, drops_null: bool) -> dict[str, JsonValue]:
    """See `sent_parameters`; without `drops_null` only lists of types are rewritten."""
    sent: dict[str, JsonValue] = {}
    for keyword, value in schema.items():
        if keyword == "properties" and isinstance(value, Mapping):
            needed = schema.get("required") if drops_null else list(value)
            sent[keyword] = _properties(value, needed, drops_null=drops_null)
        elif keyword in _SCHEMAS_BY_NAME and isinstance(value, Mapping):
            sent[keyword] = {name: _rewrite_part(each, drops_null) for name, each in value.items()}
        elif keyword in _LISTS_OF_SCHEMAS and isinstance(value, list | tuple):
            sent[keyword] = [_rewrite_part(each, drops_null) for each in value]
        elif keyword in _SCHEMAS:
            sent[keyword] = _rewrite_part(value, drops_null)
        else:
            sent[keyword] = _rewrite_part(value, False) if keyword in _TESTS else value
    return _without_type_list(sent)


def _rewrite_part(schema: JsonValue, drops_null: bool) -> JsonValue:  # handed on
    return _rewritten(schema, drops_null=drops_null) if isinstance(schema, Mapping) else schema


def _properties(
    properties: Mapping[str, JsonValue], required: JsonValue, *, drops_null: bool
) -> dict[str, JsonValue]:
    needed = required if isinstance(required, list | tuple) else ()
    return {
        name: _rewrite_part(each if name in needed else _without_null(each), drops_null)
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


# --- references ----------------------------------------------------------------------------------


class _NotInlinedError(Exception):
    """A reference cannot be replaced by what it names."""


def _inline_schema(schema: JsonSchema) -> JsonSchema:
    """The schema without references; as it is where one of them has to stay."""
    if not any(keyword in schema for keyword in _DEFINITIONS):
        return schema
    own = {name: each for name, each in schema.items() if name not in _DEFINITIONS}
    try:
        return _ReferenceInliner(schema).of(own, ())
    except _NotInlinedError:
        return schema


class _ReferenceInliner:
    """Replaces the references of one schema."""

    def __init__(self, schema: JsonSchema) -> None:
        self._root = schema
        self._left = _MOST_NODES

    def of(self, schema: JsonSchema, within: tuple[str, ...]) -> dict[str, JsonValue]:
        """The schema without references.

        Args:
            within: The references that lead here.
        Raises:
            _NotInlinedError: One leads back to itself or elsewhere, or the schema grows too large.
        """
        self._left -= 1
        if self._left < 0 or "$id" in schema:
            raise _NotInlinedError
        reference = schema.get("$ref")
        if reference is not None:
            beside = {name: each for name, each in schema.items() if name != "$ref"}
            return {**self._resolve_reference(reference, beside, within), **beside}
        return {keyword: self._keyword(keyword, each, within) for keyword, each in schema.items()}

    def _resolve_reference(
        self, reference: JsonValue, beside: JsonSchema, within: tuple[str, ...]
    ) -> dict[str, JsonValue]:
        _, _, path = str(reference).partition("#/")
        keyword, _, name = path.partition("/")
        named = self._root.get(keyword) if keyword in _DEFINITIONS else None
        found = named.get(name) if isinstance(named, Mapping) else None
        if path in within or not isinstance(found, Mapping) or not _ANNOTATIONS.issuperset(beside):
            raise _NotInlinedError
        return self.of(found, (*within, path))

    def _keyword(self, keyword: str, value: JsonValue, within: tuple[str, ...]) -> JsonValue:
        if keyword in (*_SCHEMAS_BY_NAME, "properties") and isinstance(value, Mapping):
            return {name: self._each(one, within) for name, one in value.items()}
        if keyword in _LISTS_OF_SCHEMAS and isinstance(value, list | tuple):
            return [self._each(one, within) for one in value]
        return self._each(value, within) if keyword in (*_SCHEMAS, *_TESTS) else value

    def _each(self, schema: JsonValue, within: tuple[str, ...]) -> JsonValue:
        return self.of(schema, within) if isinstance(schema, Mapping) else schema
