"""Facts of the log as plain values, masked at any depth."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Set
from datetime import date
from typing import Final

from minions.app.settings.masking import masked
from minions.data.errors import words_of
from minions.data.json_values import JsonValue

_SECRET_NAME: Final = re.compile(
    r"(?:^|[_-])(?:api[_-]?key|authorization|cookie|credentials?|passw(?:or)?d|secret|token)$",
    re.IGNORECASE,
)
"""Names of facts whose values are never written; counts of tokens have another name."""
_MASK: Final = "[masked]"
_DEEPEST: Final = 8
_MOST_ITEMS: Final = 200
_LONGEST: Final = 20_000
"""Characters of one text."""
_LARGEST: Final = 10**18
"""A larger whole number is written as a text: few readers keep it exactly."""


def plain_facts(facts: Mapping[str, object]) -> dict[str, JsonValue]:
    """The facts as JSON values; what is no JSON becomes a text."""
    return {_text(name): _fact(name, value, 0) for name, value in facts.items()}


def json_line(facts: Mapping[str, JsonValue]) -> str:
    """One JSON object on one line, in ASCII."""
    return json.dumps(facts, allow_nan=False)


def text_line(facts: Mapping[str, JsonValue]) -> str:
    """`key=value`, with quotes where a value has blanks or line breaks."""
    return " ".join(f"{name}={_shown(value)}" for name, value in facts.items())


def _shown(value: JsonValue) -> str:
    if isinstance(value, str) and re.fullmatch(r"[!#-~]+", value):
        return value
    return json.dumps(value, allow_nan=False)


def _fact(name: object, value: object, depth: int) -> JsonValue:
    if isinstance(name, str) and _SECRET_NAME.search(name) and value is not None:
        return _MASK
    return _plain(value, depth)


def _plain(value: object, depth: int) -> JsonValue:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return (
            int(value) if abs(value) < _LARGEST else f"a whole number of {value.bit_length()} bits"
        )
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if depth >= _DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        pairs = list(value.items())[:_MOST_ITEMS]
        return {_name(name): _fact(name, each, depth + 1) for name, each in pairs}
    if isinstance(value, list | tuple | Set):
        return [_plain(each, depth + 1) for each in list(value)[:_MOST_ITEMS]]
    return _text(_words(value))


def _name(name: object) -> str:
    return _text(name if isinstance(name, str) else _words(name))


def _words(value: object) -> str:
    if isinstance(value, BaseException):
        return words_of(value)
    if isinstance(value, date):
        return value.isoformat()
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  # a stranger's __repr__ may raise anything
        return f"({type(value).__name__}: its text cannot be shown)"


def _text(text: str) -> str:
    shown = masked(str(text))
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
