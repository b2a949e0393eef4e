"""Types of values that were seen, as JSON Schema, and what tools say of their parameters."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from minions.capture.json_places import keys_of, part_of
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema


def schema_at(spec: ToolSpec | None, path: Sequence[str | int]) -> JsonSchema:
    """What the tool says of a parameter or a part of it; {}: nothing."""
    schema: JsonValue = spec.parameters if spec is not None else {}
    for key in path:
        if not isinstance(schema, Mapping):
            return {}
        schema = (
            part_of(schema.get("properties"), key) if isinstance(key, str) else schema.get("items")
        )
    return schema if isinstance(schema, Mapping) else {}


def plain_schema(
    schema: JsonSchema, values: Sequence[JsonValue], strange: Collection[str]
) -> JsonSchema:
    """What a model is told of a value: type, listed values and bounds, no words.

    Args:
        strange: Words of strangers, in lower case: values that have one are not listed.
    """
    kept = {
        key: schema[key]
        for key in ("type", "enum", "minimum", "maximum", "items", "maxLength", "pattern")
        if key in schema
    }
    if "enum" in kept:
        return kept
    texts = [each for each in values if isinstance(each, str) and re.fullmatch(r"[\w-]+", each)]
    words = sorted(set(texts))
    own = not any(
        part.lower() in strange for each in words for part in re.findall(r"[^\W\d_]+", each)
    )
    if own and len(texts) == len(values) and len(values) >= 2 * len(words) >= 4:
        return {"type": "string", "enum": list(words)}
    return kept if "type" in kept else schema_of(values)


def schema_of(values: Sequence[JsonValue]) -> JsonSchema:
    """The narrowest type of values that were seen."""
    present = [each for each in values if each is not None]
    if not present:
        return {}
    first = present[0]
    if all(isinstance(each, bool) for each in present):
        return {"type": "boolean"}
    if all(isinstance(each, int) and not isinstance(each, bool) for each in present):
        return {"type": "integer"}
    if all(isinstance(each, int | float) and not isinstance(each, bool) for each in present):
        return {"type": "number"}
    if all(isinstance(each, str) for each in present):
        return {"type": "string"}
    if isinstance(first, list | tuple):
        items = [part for each in present if isinstance(each, list | tuple) for part in each]
        return {"type": "array", "items": schema_of(items)}
    if isinstance(first, Mapping):
        keys = dict.fromkeys(key for each in present for key in keys_of(each))
        return {
            "type": "object",
            "properties": {
                key: schema_of([part_of(each, key) for each in present]) for key in keys
            },
            "required": [key for key in keys if all(key in keys_of(each) for each in present)],
        }
    return {}


def seen_schema(
    values: Sequence[JsonValue],
    words: frozenset[str],
    states: frozenset[str],
    label: str = "",
    *,
    is_item: bool = False,
) -> JsonSchema:
    """The type of values that were seen.

    Args:
        words: Names that the recipe reads, `orders[0]` where it reads the first of a list: fields
            with other names are left open.
        states: Names of fields of which other values than those seen are a surprise; empty: none.
        label: The field's own name.
        is_item: Whether it is within a list.
    """
    present = [each for each in values if each is not None]
    is_null = len(present) < len(values)
    if not present:
        return {}
    if all(isinstance(each, Mapping) for each in present):
        wanted = words | states
        keys = [
            key
            for key in dict.fromkeys(key for each in present for key in keys_of(each))
            if key in wanted or (len(states) > 0 and not is_item and _is_constant(present, key))
        ]
        if not keys:
            return {"type": "object"}
        members: dict[str, JsonValue] = {
            key: seen_schema(_parts(present, key), words, states, key, is_item=is_item)
            for key in keys
        }
        required = [key for key in keys if all(key in keys_of(each) for each in present)]
        return {"type": "object", "required": required, "properties": members}
    if all(isinstance(each, list | tuple) for each in present):
        items = [part for each in present if isinstance(each, list | tuple) for part in each]
        found: dict[str, JsonValue] = {"type": "array"}
        if items:
            found["items"] = seen_schema(items, words, states, is_item=True)
        if states and label in words and all(present):
            found["minItems"] = 1
        several = any(len(each) > 1 for each in present if isinstance(each, list | tuple))
        if f"{label}[0]" in words and not several:
            found["maxItems"] = 1  # nothing says which of several it would be
        return found
    if states and not is_null and all(isinstance(each, bool) for each in present) and not is_item:
        return {"type": "boolean", "enum": list(dict.fromkeys(present))}
    if label.lower() in states and all(_is_word(each) for each in present) and not is_null:
        return {"type": "string", "enum": sorted({str(each) for each in present})}
    kinds = list(dict.fromkeys(_kind_of(each) for each in present)) + (["null"] if is_null else [])
    if any(each in ("object", "array") for each in kinds):
        return {}
    return {"type": kinds[0] if len(kinds) == 1 else list(kinds)}


def _parts(values: Sequence[JsonValue], key: str) -> list[JsonValue]:
    return [each[key] for each in values if isinstance(each, Mapping) and key in each]


def _is_constant(values: Sequence[JsonValue], key: str) -> bool:
    """Whether a field was one truth value, each time."""
    parts = _parts(values, key)
    return all(isinstance(each, bool) and each is parts[0] for each in parts)


def _is_word(value: JsonValue) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w -]{0,39}", value) is not None


def covers(declared: JsonSchema | None, seen: JsonSchema) -> bool:
    """Whether what a tool declares of its results tells all of what was seen."""
    if declared is None or "minItems" in seen or "maxItems" in seen:
        return False
    if "enum" in seen:
        return declared.get("enum") == seen["enum"]
    properties = seen.get("properties")
    if isinstance(properties, Mapping):
        known = declared.get("properties")
        return isinstance(known, Mapping) and all(
            isinstance(inner := known.get(key), Mapping)
            and isinstance(part, Mapping)
            and covers(inner, part)
            for key, part in properties.items()
        )
    items = seen.get("items")
    if isinstance(items, Mapping) and items:
        inner = declared.get("items")
        return isinstance(inner, Mapping) and covers(inner, items)
    return bool(declared)


def _kind_of(value: JsonValue) -> str:
    match value:
        case bool():
            return "boolean"
        case int() | float():
            return "number"  # 12 may be 12.5 the next time
        case str():
            return "string"
        case Mapping():
            return "object"
        case _:
            return "array"
