"""Whether an output can have what a scorer reads and a case expects: a misspelt field would fail
every answer, or pass it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from minions.data.errors import did_you_mean
from minions.data.json_values import JsonValue, dumps, json_type, parse_json
from minions.data.schema import JsonSchema
from minions.evaluation.cases import Case, NotGiven
from minions.evaluation.scorers import (
    Exact,
    Fields,
    Near,
    Parts,
    Scorer,
    is_same,
    parts_of_path,
    value_at,
)
from minions.recipe.checks.shapes import Shape, find_dead_end

__all__ = ["why_never", "why_unreadable"]

_SHOWN: Final = 200
"""Characters of a value in a message."""
_NUMBERS: Final = frozenset(("number", "integer", "string"))
"""The types that a number can be read of."""


def why_unreadable(schema: JsonSchema, scorer: Scorer) -> str | None:
    """Why no output of that schema has what the scorer reads; None: one may have.

    Args:
        schema: What is known of the output; {}: nothing.
    """
    shape = Shape.of(schema)
    for path in scorer.output_paths:
        if (why := _dead_end(shape, _parts_in(shape, path))) is not None:
            return f"the scorer '{scorer.name}' reads '{_text(path)}', and {why}"
    return None


def why_never(schema: JsonSchema, case: Case, scorer: Scorer) -> str | None:
    """Why no output of that schema has what the case expects; None: one may have.

    Only what is certain counts: of a schema that allows other members nothing is known.

    Args:
        schema: What is known of the output; {}: nothing.
    """
    if not case.has_expected:
        return None
    wrong = (_why(Shape.of(schema), path, case, scorer) for path in _paths(case, scorer))
    return next((each for each in wrong if each is not None), None)


def _paths(case: Case, scorer: Scorer) -> Iterator[str]:
    """The paths whose values are compared."""
    if isinstance(scorer, Exact | Near):
        yield scorer.of
    elif isinstance(scorer, Fields):
        yield from scorer.compared(case)


def _why(shape: Shape, path: str, case: Case, scorer: Scorer) -> str | None:
    wanted = value_at(case.wanted, path)
    if isinstance(wanted, NotGiven):
        return None
    parts = _parts_in(shape, parts_of_path(path))
    if (why := _dead_end(shape, parts)) is not None:
        return f"it expects '{path}', and {why}"
    if wanted is None and path:  # a null may also be missing
        return None
    found = shape.at(parts)
    if isinstance(scorer, Near):
        return _why_no_number(found, wanted, path)
    return _why_value(found, wanted, path, case)


def _parts_in(shape: Shape, path: Parts) -> Parts:
    """The path; its end is one key where the output has a key with dots, as for `value_at`."""
    for at in range(len(path)):
        rest = ".".join(map(str, path[at:]))
        if rest in shape.at(path[:at]).names():
            return (*path[:at], rest)
    return path


def _dead_end(shape: Shape, path: Parts) -> str | None:
    """Why a value of that shape never has the path; None: it may."""
    end = find_dead_end(shape, path)
    if end is None:
        return None
    holder = f"'{_text(path[: end.depth])}'" if end.depth else "the output"
    if not end.names:
        return f"{holder} never has '{path[end.depth]}': {end.reason}."
    near = did_you_mean(str(path[end.depth]), end.names)
    known = ", ".join(f"'{name}'" for name in end.names)
    return f"{holder} has only {known}.{near}"


def _text(path: Parts) -> str:
    return ".".join(map(str, path))


def _why_no_number(shape: Shape, wanted: JsonValue, path: str) -> str | None:
    of = f" of '{path}'" if path else ""
    if not _is_number(wanted):
        return f"it expects {_short(wanted)}{of}, which is no number."
    kinds = shape.kinds()
    if kinds is None or kinds & _NUMBERS:
        return None
    return f"it expects a number{of}, which can only be {' or '.join(sorted(kinds))}."


def _is_number(value: JsonValue) -> bool:
    """Whether it is one, or a text that is one, as for the scorer `number`."""
    if isinstance(value, str):
        try:
            return not isinstance(read := parse_json(value.strip()), str) and _is_number(read)
        except ValueError:
            return False
    return isinstance(value, int | float) and not isinstance(value, bool)


def _why_value(shape: Shape, wanted: JsonValue, path: str, case: Case) -> str | None:
    of = f" of '{path}'" if path else ""
    values = shape.choices()
    if values is not None:
        if any(is_same(each, wanted, is_text=case.is_text) for each in values):
            return None
        words = [each for each in values if isinstance(each, str)]
        near = did_you_mean(wanted, words) if isinstance(wanted, str) else ""
        shown = _short(list(values))
        return f"it expects {_short(wanted)}{of}, which can only be one of {shown}.{near}"
    kinds = shape.kinds()
    if kinds is None or _fits(wanted, kinds):
        return None
    if case.is_text and isinstance(wanted, str) and _text_fits(wanted, kinds):
        return None
    return (
        f"it expects {_short(wanted)}{of}, which is of type {json_type(wanted)} and can only be "
        f"{' or '.join(sorted(kinds))}."
    )


def _fits(wanted: JsonValue, names: frozenset[str]) -> bool:
    if isinstance(wanted, bool) or not isinstance(wanted, int | float):
        return json_type(wanted) in names
    return "number" in names or ("integer" in names and float(wanted).is_integer())


def _text_fits(wanted: str, names: frozenset[str]) -> bool:
    """Whether a text of a table may stand for a value of these types, as `is_same` has it."""
    try:
        return _fits(parse_json(wanted.strip()), names)
    except ValueError:
        return "boolean" in names and any(
            is_same(each, wanted, is_text=True) for each in (True, False)
        )


def _short(value: JsonValue) -> str:
    text = dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
