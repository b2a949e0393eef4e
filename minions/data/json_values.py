"""JSON as a type, and the extraction of a JSON value from a model's text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from json.encoder import c_make_encoder, encode_basestring, encode_basestring_ascii  # type: ignore[attr-defined]  # typeshed leaves these out
from typing import TYPE_CHECKING, Final, TypeAlias

from minions.data.json_parts import LONG_TEXT, decode_in_parts, encoded_parts, raw_decode_in_parts

if TYPE_CHECKING:
    JsonValue: TypeAlias = (
        None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
    )
else:
    JsonValue = object  # so that hints can be read anywhere: a recursive alias cannot
"""JSON as YAML files, tools, models and the journal exchange it."""


class _NoNumberError(ValueError):
    """Valid JSON except for a number outside of JSON's range."""


def _refuse_number(name: str) -> float:
    raise _NoNumberError(f"{name} is not a number that JSON can express")


def _finite(text: str) -> float:
    """A finite float; `1e999` would become infinite, which JSON cannot express."""
    value = float(text)
    return value if value - value == 0 else _refuse_number(text)


def _unique(pairs: Sequence[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    entries: dict[str, JsonValue] = {}
    for key, value in pairs:
        if key in entries:
            raise ValueError(f"the key {key!r} is given twice")
        entries[key] = value
    return entries


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_DECODER = json.JSONDecoder(parse_constant=_refuse_number, parse_float=_finite)
_STRICT_DECODER = json.JSONDecoder(
    parse_constant=_refuse_number, parse_float=_finite, object_pairs_hook=_unique
)
_TYPES: Final[Sequence[tuple[str, type | tuple[type, ...]]]] = (
    ("null", type(None)),
    ("boolean", bool),
    ("number", (int, float)),
    ("string", str),
    ("array", (list, tuple)),
    ("object", Mapping),
)


def encoder_of(form: json.JSONEncoder) -> Callable[[object], str]:
    """`form.encode` for texts without line breaks of lists and objects, which makes what encodes
    them in C once and not for each of them. A value that holds itself is a `RecursionError`.
    """
    if c_make_encoder is None:
        return form.encode
    encode = c_make_encoder(
        None,
        form.default,
        encode_basestring_ascii if form.ensure_ascii else encode_basestring,
        None,
        form.key_separator,
        form.item_separator,
        form.sort_keys,
        form.skipkeys,
        form.allow_nan,
    )
    return lambda value: "".join(encode(value, 0))


def dumps(value: JsonValue) -> str:
    """Compact JSON text.

    Raises:
        ValueError: It holds NaN or an infinite number.
    """
    return _ENCODER.encode(value)


def dumps_in_parts(value: JsonValue) -> str:
    """As `dumps`, for a value of any size in a thread beside an event loop: others work meanwhile.

    Raises:
        ValueError: It holds NaN or an infinite number.
    """
    return "".join(encoded_parts(value, _ENCODER.encode))


def parse_json(text: str, *, unique_keys: bool = False, in_parts: bool = False) -> JsonValue:
    """Parse JSON text.

    Args:
        unique_keys: Refuse an object that has a key twice; else the last one counts.
        in_parts: In a thread beside an event loop: others work meanwhile.
    Raises:
        ValueError: It is not JSON, is nested too deep, or has a number outside of JSON's range.
    """
    decoder = _STRICT_DECODER if unique_keys else _DECODER
    try:
        value: JsonValue = (
            decode_in_parts(text, decoder)
            if in_parts and len(text) >= LONG_TEXT
            else decoder.decode(text)
        )
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    return _shallow(value, text)


_DEEPEST: Final = 300
"""Levels of nesting: whatever copies, checks or stores a value takes several frames for each."""


def _shallow(value: JsonValue, text: str) -> JsonValue:
    """The value of that text.

    Raises:
        ValueError: It is nested too deep to be worked with.
    """
    if text.count("[") + text.count("{") <= _DEEPEST:
        return value
    level, depth = [value], 0
    while level := [inner for each in level for inner in _within(each)]:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"it is nested too deep: over {_DEEPEST} levels")
    return value


def _within(value: JsonValue) -> Iterable[JsonValue]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def json_type(value: object) -> str:
    """JSON's name of the value's type: `object`, `array`, `string`, `number`, `boolean`,
    `null`.

    The name of the class for a value that is not JSON.
    """
    for word, kinds in _TYPES:
        if isinstance(value, kinds):
            return word
    return type(value).__name__


def find_json_value(text: str) -> JsonValue:
    """The one JSON value in `text`: bare, in a code fence, or with prose around it.

    The whole text is tried first; then the largest object or array in it is taken, so that a small
    `{}` in the prose does not hide the answer. Braces inside strings do not count.

    Raises:
        ValueError: There is none, and the message shows the text instead; or it is nested too deep.
    """
    stripped = text.strip()
    if not stripped:
        raise ValueError("the text is empty; a JSON value was expected")
    is_long = len(stripped) >= LONG_TEXT
    try:
        value: JsonValue = (
            decode_in_parts(stripped, _DECODER) if is_long else _DECODER.decode(stripped)
        )
    except _NoNumberError:
        if stripped[0] in "{[":
            raise
    except (ValueError, RecursionError):
        pass
    else:
        return _shallow(value, stripped)
    refusals: list[_NoNumberError] = []
    found = list(_embedded_values(stripped, refusals))
    if not found:
        if refusals:
            raise refusals[0]
        start = stripped[:80].replace("\n", " ")
        raise ValueError(f"no JSON object or array in the text that starts with {start!r}")
    return _shallow(max(found, key=lambda item: item[0])[1], stripped)


_MOST_ATTEMPTS = 200
"""Opening brackets that are tried: a text full of braces must not cost quadratic time."""


_TOO_DEEP = 500
"""Characters that are passed over of a text that is nested too deep: what is left of it is, too."""


def _embedded_values(text: str, refusals: list[_NoNumberError]) -> Iterator[tuple[int, JsonValue]]:
    """Each top-level object or array in the text with its length in characters, in order.

    Args:
        refusals: Collects objects and arrays that only a number made invalid.
    """
    position = 0
    for _ in range(_MOST_ATTEMPTS):
        openings = [at for at in (text.find("{", position), text.find("[", position)) if at >= 0]
        if not openings:
            return
        start = min(openings)
        try:
            value, end = raw_decode_in_parts(text, start, _DECODER)
        except RecursionError:
            position = start + _TOO_DEEP
        except ValueError as error:
            if isinstance(error, _NoNumberError):
                refusals.append(error)
            position = start + 1
        else:
            yield end - start, value
            position = end


_MARKS: Final = re.compile(r'[{}\[\]"\\]')


def most_values(text: bytes) -> int:
    """How many values a JSON text holds at the most: its commas, brackets and braces are counted,
    those in texts, too. Takes a moment where parsing it would take much memory.
    """
    return 1 + sum(map(text.count, (b",", b"[", b"{")))


def is_unfinished_json(text: str) -> bool:
    """Whether a text begins as a JSON object or array, also in a code fence, and stops before its
    end: it was cut off, and nothing is wrong with its form.
    """
    start = text.lstrip()
    if start.startswith("```"):
        start = start.partition("\n")[2].lstrip()
    if not start.startswith(("{", "[")):
        return False
    depth, is_text, escaped_at = 0, False, -1
    for mark in _MARKS.finditer(start):
        if is_text:
            if mark[0] == "\\" and mark.start() != escaped_at:
                escaped_at = mark.end()
            elif mark[0] == '"' and mark.start() != escaped_at:
                is_text = False
        elif mark[0] == '"':
            is_text = True
        elif mark[0] != "\\":
            depth += 1 if mark[0] in "{[" else -1
            if depth == 0:
                return False
    return True


def texts_in(value: JsonValue) -> Iterator[str]:
    """The texts in a value, in order; names of members are none."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from texts_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from texts_in(each)


# --- values whose shape is known -----------------------------------------------------------------


def as_object(value: object) -> Mapping[str, JsonValue]:
    """The value, which is an object.

    Raises:
        TypeError: It is something else.
    """
    if isinstance(value, Mapping):
        return value
    raise _wrong_shape(value, "an object")


def as_objects(value: object) -> Sequence[Mapping[str, JsonValue]]:
    """The value, which is an array of objects; as with `as_object`."""
    return [as_object(each) for each in as_array(value)]


def as_object_of_objects(value: object) -> Mapping[str, Mapping[str, JsonValue]]:
    """The value, which is an object of objects; as with `as_object`."""
    return {name: as_object(each) for name, each in as_object(value).items()}


def as_object_of_texts(value: object) -> Mapping[str, str]:
    """The value, which is an object of strings; as with `as_object`."""
    return {name: as_text(each) for name, each in as_object(value).items()}


def as_text(value: object) -> str:
    """The value, which is a string; as with `as_object`."""
    if isinstance(value, str):
        return value
    raise _wrong_shape(value, "a string")


def as_texts(value: object) -> Sequence[str]:
    """The value, which is an array of strings; as with `as_object`."""
    return [as_text(each) for each in as_array(value)]


def as_count(value: object) -> int:
    """The value, which is a number, without its fraction; as with `as_object`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return int(value)
    raise _wrong_shape(value, "a number")


def as_array(value: object) -> Sequence[JsonValue]:
    """The value, which is an array; as with `as_object`."""
    if isinstance(value, (list, tuple)):
        return value
    raise _wrong_shape(value, "an array")


def _wrong_shape(value: object, wanted: str) -> TypeError:
    return TypeError(f"JSON of {json_type(value)} where {wanted} belongs")
