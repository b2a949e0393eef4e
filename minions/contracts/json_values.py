"""JSON as a type, and the one JSON value inside a model's text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

__all__ = ["JsonValue", "dumps", "find_json_value"]

if TYPE_CHECKING:
    JsonValue: TypeAlias = (
        None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
    )
else:
    JsonValue = object  # so that hints can be read anywhere: a recursive alias cannot
"""What YAML, tools, models and the journal exchange."""


def _refused(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    """A float that JSON can say again; `1e999` would be infinite."""
    value = float(text)
    return value if value - value == 0 else _refused(text)


_DECODER = json.JSONDecoder(parse_constant=_refused, parse_float=_finite)


def dumps(value: JsonValue) -> str:
    """Compact JSON text; refuses NaN and infinities.

    Raises:
        ValueError: A float that JSON cannot say.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def find_json_value(text: str) -> JsonValue:
    """The one JSON value in `text`: bare, in a code fence, or with prose around it.

    The whole text wins; then the largest object or array that stands in it, so that a
    small `{}` in the prose before does not hide the answer. Braces inside strings do not count.

    Raises:
        ValueError: There is none; the message says what stands there instead.
    """
    stripped = text.strip()
    if not stripped:
        raise ValueError("the text is empty; a JSON value was expected")
    try:
        value: JsonValue = _DECODER.decode(stripped)
    except (ValueError, RecursionError):
        pass
    else:
        return value
    found = list(_embedded_values(stripped))
    if not found:
        start = stripped[:80].replace("\n", " ")
        raise ValueError(f"no JSON object or array in the text that starts with {start!r}")
    return max(found, key=lambda item: item[0])[1]


_MOST_ATTEMPTS = 200
"""Openings tried before giving up: prose full of braces must not cost quadratic time."""


def _embedded_values(text: str) -> Iterator[tuple[int, JsonValue]]:
    """Each top-level object or array with its length in characters, in order."""
    position = 0
    for _ in range(_MOST_ATTEMPTS):
        openings = [at for at in (text.find("{", position), text.find("[", position)) if at >= 0]
        if not openings:
            return
        start = min(openings)
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            position = start + 1
        else:
            yield end - start, value
            position = end
