"""JSON as a type, and the one JSON value inside a model's text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

__all__ = ["JsonValue", "dumps", "find_json_value", "json_type", "parse_json"]

if TYPE_CHECKING:
    JsonValue: TypeAlias = (
        None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
    )
else:
    JsonValue = object  # so that hints can be read anywhere: a recursive alias cannot
"""What YAML, tools, models and the journal exchange."""


class _NoNumberError(ValueError):
    """JSON but for a number that it cannot say."""


def _refused(name: str) -> float:
    raise _NoNumberError(f"{name} is no number that JSON can say")


def _finite(text: str) -> float:
    """A float that JSON can say again; `1e999` would be infinite."""
    value = float(text)
    return value if value - value == 0 else _refused(text)


def _unique(pairs: Sequence[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    entries: dict[str, JsonValue] = {}
    for key, value in pairs:
        if key in entries:
            raise ValueError(f"the key {key!r} is given twice")
        entries[key] = value
    return entries


_DECODER = json.JSONDecoder(parse_constant=_refused, parse_float=_finite)
_STRICT_DECODER = json.JSONDecoder(
    parse_constant=_refused, parse_float=_finite, object_pairs_hook=_unique
)
_TYPES: Final[Sequence[tuple[str, type | tuple[type, ...]]]] = (
    ("null", type(None)),
    ("boolean", bool),
    ("number", (int, float)),
    ("string", str),
    ("array", (list, tuple)),
    ("object", Mapping),
)


def dumps(value: JsonValue) -> str:
    """Compact JSON text; refuses NaN and infinities.

    Raises:
        ValueError: A float that JSON cannot say.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def parse_json(text: str, *, unique_keys: bool = False) -> JsonValue:
    """The JSON value that `text` is.

    Args:
        unique_keys: Refuse an object that has a key twice; else the last one counts.
    Raises:
        ValueError: Not JSON, nested too deep, or a number that JSON cannot say again.
    """
    decoder = _STRICT_DECODER if unique_keys else _DECODER
    try:
        value: JsonValue = decoder.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return value


def json_type(value: object) -> str:
    """JSON's word for what this is: `object`, `array`, `string`, `number`, `boolean`, `null`.

    Another class's own name for what is not JSON.
    """
    for word, kinds in _TYPES:
        if isinstance(value, kinds):
            return word
    return type(value).__name__


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
    except _NoNumberError:
        if stripped[0] in "{[":
            raise
    except (ValueError, RecursionError):
        pass
    else:
        return value
    refusals: list[_NoNumberError] = []
    found = list(_embedded_values(stripped, refusals))
    if not found:
        if refusals:
            raise refusals[0]
        start = stripped[:80].replace("\n", " ")
        raise ValueError(f"no JSON object or array in the text that starts with {start!r}")
    return max(found, key=lambda item: item[0])[1]


_MOST_ATTEMPTS = 200
"""Openings tried before giving up: prose full of braces must not cost quadratic time."""


def _embedded_values(text: str, refusals: list[_NoNumberError]) -> Iterator[tuple[int, JsonValue]]:
    """Each top-level object or array with its length in characters, in order.

    Args:
        refusals: Takes what would have been one but for a number.
    """
    position = 0
    for _ in range(_MOST_ATTEMPTS):
        openings = [at for at in (text.find("{", position), text.find("[", position)) if at >= 0]
        if not openings:
            return
        start = min(openings)
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            if isinstance(error, _NoNumberError):
                refusals.append(error)
            position = start + 1
        else:
            yield end - start, value
            position = end
