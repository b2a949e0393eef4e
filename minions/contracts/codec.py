"""One converter between contracts and JSON: strict, closed to unknown keys, no coercion."""

from __future__ import annotations

import datetime
import functools
import pathlib
from typing import TYPE_CHECKING, TypeVar

from minions.contracts.json_values import JsonValue

if TYPE_CHECKING:
    from cattrs import Converter

__all__ = ["decode", "encode"]

T = TypeVar("T")


def encode(value: object) -> JsonValue:
    """`value` as JSON: attrs classes, dataclasses, enums, dates, paths and containers of these.

    Raises:
        TypeError: Something that JSON cannot say; the message names its type.
    """
    return _plain(_converter().unstructure(value))


def _plain(value: object) -> JsonValue:
    """Check, and turn tuples and sets into lists."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise TypeError(f"{value} is not a JSON number")
        return value
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=str)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is not JSON")


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    raise TypeError(f"{key!r} is not a string; JSON object keys are")


def decode(value: JsonValue, target: type[T]) -> T:
    """`value` as `target`.

    Raises:
        ValueError: One line per place that does not fit.
    """
    from cattrs import transform_error

    try:
        return _converter().structure(value, target)
    except Exception as error:  # cattrs groups errors of any class per place
        raise ValueError("; ".join(transform_error(error, path="$"))) from error


@functools.cache  # a converter holds compiled functions per class, no data
def _converter() -> Converter:
    from cattrs import Converter

    converter = Converter(forbid_extra_keys=True, omit_if_default=False)
    for kind in (str, int, bool):
        converter.register_structure_hook(kind, functools.partial(_exactly, kind))
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(datetime.datetime, _from_iso)
    converter.register_unstructure_hook(datetime.datetime, _to_iso)
    converter.register_structure_hook(pathlib.Path, lambda value, _: pathlib.Path(value))
    converter.register_unstructure_hook(pathlib.Path, str)
    return converter


def _exactly(kind: type[T], value: object, _: object) -> T:
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {type(value).__name__} {value!r}")
    return value


def _number(value: object, _: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {type(value).__name__} {value!r}")
    return float(value)


def _from_iso(value: object, _: object) -> datetime.datetime:
    if not isinstance(value, str):
        raise ValueError(f"expected an ISO 8601 time, got {value!r}")
    return datetime.datetime.fromisoformat(value)


def _to_iso(value: datetime.datetime) -> str:
    return value.isoformat()
