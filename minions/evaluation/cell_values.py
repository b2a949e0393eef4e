"""Cells of a table as the values that they stand for: `true` and `2.5` are texts in CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.data.json_values import JsonValue, dumps, parse_json
from minions.data.schema import JsonSchema
from minions.recipe.checks.shapes import Shape, find_dead_end, kind_names, kind_of

TRUTH_WORDS: Final[Mapping[str, bool]] = {"true": True, "yes": True, "false": False, "no": False}
"""Texts for true and false, in lower case."""
_SHOWN: Final = 60
"""Characters of a cell in a message."""


class CellError(ValueError):
    """A cell stands for nothing that the output can have; the message says what that is."""


@frozen
class _Read:
    """What one schema makes of a cell."""

    value: JsonValue = None
    refused: str | None = None
    """What is possible instead; None: the value is."""


def cell_value(text: str, path: str, outputs: Iterable[JsonSchema]) -> JsonValue:
    """The value that a cell stands for at a path of the output.

    A text stays one where the output may have a text, or nothing is known of it; `null` is null
    where the output may have that.

    Args:
        path: `items.0.name`; empty: the whole.
        outputs: What is known of the outputs of the recipes that are asked; the first that can have
            such a value counts.
    Raises:
        CellError: No output can have what the cell says.
    """
    tried = [each for schema in outputs if (each := _read(text, path, schema)) is not None]
    fitting = [each for each in tried if each.refused is None]
    if tried and not fitting:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise CellError(f"{dumps(shown)} was read, and the output has {tried[0].refused} there.")
    return fitting[0].value if fitting else text


def _read(text: str, path: str, schema: JsonSchema) -> _Read | None:
    """None: this output never has the path."""
    shape = Shape.of(schema)
    parts = tuple(path.split(".")) if path else ()
    if path in shape.names():
        parts = (path,)
    if find_dead_end(shape, parts) is not None:
        return None
    found = shape.at(parts)
    choices = found.choices()
    if choices is not None:
        return _of_choices(text, choices)
    kinds = found.kinds()
    return _Read(text) if kinds is None else _of_kinds(text, kinds)


def _of_choices(text: str, choices: Sequence[JsonValue]) -> _Read:
    if text in choices:
        return _Read(text)
    others = [each for each in choices if not isinstance(each, str)]
    for choice in others:
        read = _of_kinds(text, frozenset((kind_of(choice),)))
        if read.refused is None and read.value == choice:
            return _Read(choice)
    # Of a wrong word, scorers that compare it say which words there are; others may take it.
    if len(others) < len(choices):
        return _Read(text)
    return _Read(refused=f"one of {dumps(list(choices))}")


def _of_kinds(text: str, kinds: frozenset[str]) -> _Read:
    word = text.strip()
    if "null" in kinds and word == "null":
        return _Read(None)
    if "string" in kinds:
        return _Read(text)
    if "boolean" in kinds and word.casefold() in TRUTH_WORDS:
        return _Read(TRUTH_WORDS[word.casefold()])
    try:
        value = parse_json(word)
    except ValueError:
        return _Read(refused=kind_names(kinds))
    if isinstance(value, float) and value.is_integer() and "number" not in kinds:
        value = int(value)
    kind = kind_of(value)
    fits = kind in kinds or (kind == "integer" and "number" in kinds)
    return _Read(value) if fits else _Read(refused=kind_names(kinds))
