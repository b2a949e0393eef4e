"""Types of values in words, for people: `a list of {path: text, size: a whole number}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minions.data.json_values import JsonValue, dumps
from minions.recipe.checks.shapes import Shape, find_gaps, kind_names

_MOST_FIELDS: Final = 12
_DEEPEST: Final = 4
_LONGEST_CHOICES: Final = 200


def type_words(shape: Shape, depth: int = 0) -> str:
    """The type of a value, as far as it is known."""
    choices = shape.choices()
    if choices is not None:
        words = " | ".join(value if isinstance(value, str) else dumps(value) for value in choices)
        return words[:_LONGEST_CHOICES]
    kinds = shape.kinds()
    if kinds is None:
        return "any value"
    words = kind_names(kinds)
    if depth >= _DEEPEST:
        return words
    if "object" in kinds and (names := shape.names()):
        shown = [
            f"{name}{_mark(shape, name)}: {type_words(shape.at((name,)), depth + 1)}"
            for name in names[:_MOST_FIELDS]
        ]
        more = ", …" if len(names) > _MOST_FIELDS else ""
        words = words.replace("a mapping", f"{{{', '.join(shown)}{more}}}")
    if "array" in kinds:
        inner = shape.items()
        if inner.kinds() is not None or inner.choices() is not None:
            words = words.replace("a list", f"a list of {type_words(inner, depth + 1)}")
    return words


def _mark(shape: Shape, name: str) -> str:
    """`?` at the name of a field that may be left out, as in the short form."""
    return "?" * any(not gap.is_null and gap.is_told for gap in find_gaps(shape, (name,)))


def description_of(node: JsonValue) -> str:
    """What a schema says that its value is for."""
    text = node.get("description") if isinstance(node, Mapping) else None
    return text if isinstance(text, str) else ""
