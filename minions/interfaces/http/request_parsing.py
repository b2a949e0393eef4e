"""Parses bodies and queries strictly: no coercion, no unknown keys, and every fault is reported."""

from __future__ import annotations

import functools
import re
from collections.abc import Hashable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, TypeVar, cast
from urllib.parse import parse_qsl

from minions.data.codec import decode
from minions.data.errors import UsageError, did_you_mean, near_names
from minions.data.hint_schemas import schema_of
from minions.data.json_parts import encoded_parts
from minions.data.json_values import JsonValue, dumps, json_type, parse_json
from minions.data.schema import SchemaValidator
from minions.interfaces.http.problems import RefusedError

T = TypeVar("T")

_WHOLE: Final = re.compile(r"-?[0-9]{1,30}")
"""A whole number in an address; the schema says which are too large."""


def read_body(data: bytes, media_type: str, kind: type[T]) -> T:
    """The body as `kind`; an empty one is `{}`.

    Raises:
        RefusedError: It is no JSON (400), or has another media type (415).
        UsageError: Keys are unknown or missing, or values do not fit.
    """
    if not data.strip():
        return _fitted({}, kind, "The body")
    if media_type.partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            "not-json",
            f"The body is of type {media_type[:80]!r}; send 'Content-Type: application/json'.",
        )
    value = _parsed(data)
    if not isinstance(value, Mapping):
        raise UsageError(
            f"The body is JSON of type {json_type(value)}; an object was expected.",
            code="bad-body",
        )
    return _fitted(value, kind, "The body")


_DEEPEST: Final = 100
"""The deepest nesting of a body: functions that walk it later are recursive."""


def _parsed(data: bytes) -> JsonValue:
    try:
        value = parse_json(data.decode(), unique_keys=True, in_parts=True)
        if _is_deeper(value, _DEEPEST):
            raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
    except ValueError as error:
        raise RefusedError(
            HTTPStatus.BAD_REQUEST, "bad-json", f"The body is not JSON: {error}."
        ) from error
    return value


def _is_deeper(value: JsonValue, levels: int) -> bool:
    if levels == 0:
        return True
    if isinstance(value, Mapping):
        return any(_is_deeper(each, levels - 1) for each in value.values())
    return isinstance(value, list) and any(_is_deeper(each, levels - 1) for each in value)


def read_query(query: bytes, kind: type[T]) -> T:
    """The query of an address as `kind`, whose fields are texts, whole numbers, or None.

    Raises:
        UsageError: Names are unknown, missing or repeated, or values do not fit.
    """
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    numbers = _numbers(cast("Hashable", kind))
    values: dict[str, JsonValue] = {}
    for name, text in pairs:
        if name in values:
            raise UsageError(f"The query gives '{name}' twice.", code="bad-query")
        is_number = name in numbers and _WHOLE.fullmatch(text) is not None
        values[name] = int(text) if is_number else text
    return _fitted(values, kind, "The query")


def _fitted(value: Mapping[str, JsonValue], kind: type[T], what: str) -> T:
    validator, names = _validator(cast("Hashable", kind))
    code = "bad-query" if "query" in what else "bad-body"
    unknown = [name for name in value if name not in names]
    problems = [
        f"{what} has the unknown key '{_short(name)}'.{did_you_mean(name, names)}"
        for name in unknown
    ]
    numbers = _numbers(cast("Hashable", kind))
    known = {
        name: _as_whole(each) if name in numbers else each
        for name, each in value.items()
        if name in names
    }
    problems += [f"{what} does not fit: {line}" for line in validator.errors(known)]
    if not problems and _has_half_character(known):
        problems.append(f"{what} holds half a character (a lone surrogate).")
    if problems:
        if unknown:
            problems.append(f"Keys are: {', '.join(names) or 'none'}.")
        near = [each for name in unknown for each in near_names(name, names, limit=1)]
        raise UsageError("\n".join(problems), code=code, suggestions=near)
    try:
        return decode(known, kind)
    except ValueError as error:
        raise UsageError(f"{what} does not fit: {error}", code=code) from error


def _as_whole(value: JsonValue) -> JsonValue:
    """1.0 as 1: for JSON Schema both are the same whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _short(name: str) -> str:
    """The name cut to a length that can be shown, with lone surrogates escaped."""
    return name[:80].encode("utf-8", "backslashreplace").decode()


def _has_half_character(value: JsonValue) -> bool:
    try:
        for part in encoded_parts(value, dumps):
            part.encode()
    except UnicodeEncodeError:
        return True
    return False


@functools.cache  # compiled once per class of contracts; holds no data
def _validator(kind: Hashable) -> tuple[SchemaValidator, Sequence[str]]:
    schema = schema_of(kind)
    return SchemaValidator(schema), tuple(cast("Mapping[str, object]", schema["properties"]))


@functools.cache  # as above
def _numbers(kind: Hashable) -> frozenset[str]:
    properties = cast("Mapping[str, Mapping[str, JsonValue]]", schema_of(kind)["properties"])
    return frozenset(name for name, each in properties.items() if "integer" in str(each))
