"""Whether what a case expects can be an output at all: a misspelt field would fail every answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from minions.contracts.errors import did_you_mean
from minions.contracts.json_values import JsonValue, dumps, json_type, parse_json
from minions.contracts.schema import JsonSchema
from minions.evaluation.cases import Case
from minions.evaluation.scorers import Exact, Fields, Scorer, is_same, value_at

__all__ = ["why_never"]

_SHOWN: Final = 200
"""Characters of a value in a message."""


def why_never(schema: JsonSchema, case: Case, scorer: Scorer) -> str | None:
    """Why no output of that schema has what the case expects; None: one may have.

    Only what is certain counts: null stands for a member that is missing, and of a schema that
    allows other members nothing is known.

    Args:
        schema: What is known of the output; {}: nothing.
    """
    if not case.has_expected:
        return None
    wrong = (_why(schema, path, case) for path in _paths(case, scorer))
    return next((each for each in wrong if each is not None), None)


def _paths(case: Case, scorer: Scorer) -> Sequence[str]:
    """The paths whose values are compared as a whole."""
    if isinstance(scorer, Exact):
        return (scorer.of,)
    if not isinstance(scorer, Fields):
        return ()
    return scorer.names or (tuple(case.wanted) if isinstance(case.wanted, Mapping) else ("",))


def _why(schema: JsonSchema, path: str, case: Case) -> str | None:
    wanted = value_at(case.wanted, path)
    if wanted is None and path:
        return None
    node: JsonValue = schema
    for part in path.split(".") if path else ():
        members = node.get("properties") if isinstance(node, Mapping) else None
        if not isinstance(node, Mapping) or not isinstance(members, Mapping):
            return None
        if part not in members:
            if node.get("additionalProperties") is not False:
                return None
            near = did_you_mean(part, members)
            return f"it expects '{path}', and the output has only {_listed(members)}.{near}"
        node = members[part]
    return _why_value(node, wanted, path, case)


def _why_value(node: JsonValue, wanted: JsonValue, path: str, case: Case) -> str | None:
    if not isinstance(node, Mapping):
        return None
    of = f" of '{path}'" if path else ""
    values = node.get("enum")
    if isinstance(values, list):
        if any(is_same(each, wanted, is_text=case.is_text) for each in values):
            return None
        words = [each for each in values if isinstance(each, str)]
        near = did_you_mean(wanted, words) if isinstance(wanted, str) else ""
        return f"it expects {_short(wanted)}{of}, which can only be one of {_short(values)}.{near}"
    types = node.get("type")
    names = types if isinstance(types, list) else [types]
    if None in names or _fits(wanted, names):
        return None
    if case.is_text and isinstance(wanted, str) and _text_fits(wanted, names):
        return None
    return (
        f"it expects {_short(wanted)}{of}, which is of type {json_type(wanted)} and can only be "
        f"{' or '.join(map(str, names))}."
    )


def _fits(wanted: JsonValue, names: Sequence[JsonValue]) -> bool:
    if isinstance(wanted, bool) or not isinstance(wanted, int | float):
        return json_type(wanted) in names
    return "number" in names or ("integer" in names and float(wanted).is_integer())


def _text_fits(wanted: str, names: Sequence[JsonValue]) -> bool:
    """Whether a text of a table may stand for a value of these types, as `is_same` has it."""
    try:
        return _fits(parse_json(wanted.strip()), names)
    except ValueError:
        return "boolean" in names and any(
            is_same(each, wanted, is_text=True) for each in (True, False)
        )


def _listed(members: Mapping[str, JsonValue]) -> str:
    return ", ".join(f"'{name}'" for name in members) or "no field"


def _short(value: JsonValue) -> str:
    text = dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
