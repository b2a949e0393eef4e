"""Members of JSON documents that a server sent: each may be missing or have another type."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final, cast

from minions.adapters.models.answer_assembly import MalformedAnswerError
from minions.data.json_values import JsonValue, as_count, dumps

_MOST_TOKENS: Final = 10**9
"""A count above this is none."""
_MOST_QUOTED: Final = 2_000
"""Characters of a value that an error quotes, before it is cut."""


def text_in(document: Mapping[str, object], name: str) -> str:
    """The text under that name; empty where there is none."""
    value = document.get(name)
    return value if isinstance(value, str) else ""


def count_in(document: Mapping[str, object], name: str) -> int:
    """The count under that name; 0 where there is none that can be one."""
    value = document.get(name)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS
    return as_count(value) if is_count else 0


def mapping_in(document: Mapping[str, object], name: str) -> Mapping[str, object]:
    """The object under that name; empty where there is none."""
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def mappings_in(document: Mapping[str, object], name: str) -> Iterator[Mapping[str, object]]:
    """The objects of the list under that name; none where it is missing or null.

    Raises:
        MalformedAnswerError: It is no list, or holds something else.
    """
    values = document.get(name)
    if values is None:
        return
    if not isinstance(values, list):
        raise MalformedAnswerError(f"`{name}` is {_quote_value(values)}, not a list")
    for index, value in enumerate(values):
        if not isinstance(value, dict):
            raise MalformedAnswerError(f"`{name}[{index}]` is {_quote_value(value)}, not an object")
        yield value


def json_text(value: object) -> str:
    """A value of an answer, which was parsed from JSON, as JSON text."""
    return dumps(cast("JsonValue", value))


def _quote_value(value: object) -> str:
    return json.dumps(value, default=str)[:_MOST_QUOTED]
