"""The converter between values and JSON: strict, refuses unknown keys, never coerces."""

from __future__ import annotations

import base64
import collections.abc
import datetime
import enum
import functools
import pathlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import attrs
from msgspec import Struct

from minions.data.hint_schemas import is_msgspec_struct, is_pydantic_model
from minions.data.json_values import JsonValue, dumps, json_type, parse_json

if TYPE_CHECKING:
    from cattrs import Converter


class Constraint(Struct, frozen=True):
    """Refuses some values of a type: `Annotated[int, Constraint(is_positive, "a number above 0")]`.

    `minions.data.codec.decode` checks it wherever the type occurs.
    """

    holds: Callable[..., bool]  # of a value of the annotated type
    """Whether a value of that type will do."""
    expected: str
    """What was expected, for messages."""


T = TypeVar("T")


def encode(value: object) -> JsonValue:
    """`value` as JSON. Takes attrs classes, dataclasses, enums, dates, paths and containers of
    these.

    Raises:
        TypeError: A part is not representable in JSON; the message names its type.
    """
    if type(value) in _ATOMS:
        return value  # type: ignore[return-value]  # one of them
    try:
        return _copy_json(value)
    except _NotPlainError:
        return _plain(_converter().unstructure(value))


class _NotPlainError(Exception):
    """A value that is not plain JSON: it needs the converter, which takes 20 ms to build."""


_ATOMS: Final = frozenset((bool, int, str, type(None)))


def _copy_json(value: object) -> JsonValue:
    """A deep copy of plain JSON; raises `_NotPlainError` for anything else."""
    if type(value) in _ATOMS:
        return value  # type: ignore[return-value]  # one of them
    if type(value) is float:
        return _plain(value)
    if type(value) is dict:
        for key in value:
            if type(key) is not str:
                raise _NotPlainError
        return {
            key: item if type(item) in _ATOMS else _copy_json(item) for key, item in value.items()
        }
    if type(value) is list:
        return [item if type(item) in _ATOMS else _copy_json(item) for item in value]
    raise _NotPlainError


def _plain(value: object) -> JsonValue:
    """The converter's result with tuples as lists; raises TypeError for what is not JSON."""
    # Most values are of just these classes: the order of these lines is speed, and an atom within
    # a container takes no call.
    if type(value) in _ATOMS:
        return value  # type: ignore[return-value]  # one of them
    if type(value) is dict:
        return {
            key if type(key) is str else _key(key): item if type(item) in _ATOMS else _plain(item)
            for key, item in value.items()
        }
    if type(value) is list:
        return [item if type(item) in _ATOMS else _plain(item) for item in value]
    if type(value) is float and _LEAST < value < _MOST:
        return value
    return _plain_of_subclass(value)


_LEAST: Final = float("-inf")
_MOST: Final = float("inf")


def _plain_of_subclass(value: object) -> JsonValue:
    if isinstance(value, enum.Enum):  # a StrEnum or IntEnum counts as plain for the converter
        return _plain(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not _LEAST < value < _MOST:
            raise TypeError(f"{value} is not a JSON number")
        return value
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is not JSON")


def _in_order(items: Iterable[object]) -> list[object]:
    """A set as a list in an order that is the same in every process."""
    return sorted(items, key=str)


def _key(key: object) -> str:
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return key
    raise TypeError(f"{key!r} is not a string; JSON object keys are")


def decode(value: JsonValue, target: type[T]) -> T:
    """`value` as `target`.

    Raises:
        ValueError: One line per place that does not fit.
    """
    try:
        return _converter().structure(value, target)
    except Exception as error:  # cattrs groups errors of any class per place
        from cattrs import transform_error

        lines = transform_error(error, path="$", format_exception=_words)
        raise ValueError("; ".join(lines)) from error


def _words(error: BaseException, hint: type[object] | None) -> str:
    """The message of one conversion error: our own for our hooks, else that of cattrs."""
    from cattrs.v import format_exception

    own = isinstance(error, ValueError) and str(error).startswith("expected ")
    return str(error) if own else format_exception(error, hint)


@functools.cache  # a converter holds compiled functions per class, no data
def _converter() -> Converter:
    from cattrs import Converter

    converter = Converter(
        forbid_extra_keys=True,
        omit_if_default=False,
        # Items of a set may have no hash after conversion, so the set becomes a list first.
        unstruct_collection_overrides={collections.abc.Set: _in_order},
    )
    # Registered by class: cattrs prefers its own hooks for a class, and those coerce values.
    for kind in (str, int, bool):
        converter.register_structure_hook(kind, functools.partial(_exactly, kind))
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(datetime.datetime, _from_iso)
    converter.register_unstructure_hook(datetime.datetime, _to_iso)
    converter.register_structure_hook(datetime.date, _date_from_iso)
    converter.register_unstructure_hook(datetime.date, datetime.date.isoformat)
    converter.register_structure_hook(bytes, _from_base64)
    converter.register_unstructure_hook(bytes, lambda value: base64.b64encode(value).decode())
    converter.register_structure_hook(pathlib.Path, lambda value, _: pathlib.Path(value))
    converter.register_unstructure_hook(pathlib.Path, str)
    converter.register_structure_hook_func(lambda hint: hint is object, lambda value, _: value)
    converter.register_structure_hook_func(
        is_pydantic_model, lambda value, hint: hint.model_validate_json(dumps(value), strict=True)
    )
    converter.register_unstructure_hook_func(
        is_pydantic_model, lambda value: parse_json(value.model_dump_json())
    )
    converter.register_structure_hook_func(is_msgspec_struct, _as_struct)
    converter.register_unstructure_hook_func(is_msgspec_struct, _of_struct)
    converter.register_structure_hook_func(
        lambda hint: getattr(hint, "__origin__", None) is collections.abc.Iterable,
        lambda value, hint: converter.structure(value, _list_of(hint)),
    )
    converter.register_structure_hook_factory(_is_list, _list_hook)
    converter.register_structure_hook_factory(_is_constrained, _constrained_hook)
    converter.register_structure_hook_func(
        _is_mixed_union, lambda value, hint: _first_that_fits(converter, value, hint)
    )
    return converter


def _as_struct(value: object, hint: type[T]) -> T:
    import msgspec

    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        raise ValueError(f"expected {error}") from error


def _of_struct(value: object) -> object:
    import msgspec

    return msgspec.to_builtins(value)


def _list_of(hint: object) -> type[list[object]]:
    return types.GenericAlias(list, typing.get_args(hint)[:1])  # type: ignore[return-value]  # a hint


_LISTS: Final[Mapping[object, Callable[[list[object]], object]]] = {
    list: list,
    tuple: tuple,
    collections.abc.Sequence: tuple,
    set: set,
    frozenset: frozenset,
    collections.abc.Set: frozenset,
}
"""Containers that JSON writes as an array, and what makes each of them."""


def _is_list(hint: object) -> bool:
    """Whether it is one of these containers, of any number of items of one type."""
    if typing.get_origin(hint) not in _LISTS:
        return False
    return typing.get_origin(hint) is not tuple or typing.get_args(hint)[1:] == (...,)


def _list_hook(hint: object, converter: Converter) -> Callable[[object, object], object]:
    """As cattrs has it, which would take a text for its letters and an object for its keys."""
    from cattrs.cols import list_structure_factory

    listed = _list_of(hint)
    items = list_structure_factory(listed, converter)
    make = _LISTS[typing.get_origin(hint)]

    def structure(value: object, _: object) -> object:
        if not isinstance(value, list | tuple):
            raise ValueError(f"expected array, got {_describe_type(value)}")
        return make(items(value, listed))

    return structure


def _is_constrained(hint: object) -> bool:
    return typing.get_origin(hint) is typing.Annotated and _constraint_of(hint) is not None


def _constraint_of(hint: object) -> Constraint | None:
    annotations = typing.get_args(hint)[1:]
    return next((each for each in annotations if isinstance(each, Constraint)), None)


def _constrained_hook(hint: object, converter: Converter) -> Callable[[object, object], object]:
    """As the type itself, and then the constraint."""
    kind, constraint = typing.get_args(hint)[0], _constraint_of(hint)
    assert constraint is not None  # noqa: S101  # as the predicate says
    structured = converter.get_structure_hook(kind)

    def structure(value: object, _: object) -> object:
        made = structured(value, kind)
        if not constraint.holds(made):
            raise ValueError(f"expected {constraint.expected}, got {_describe_type(value)}")
        return made

    return structure


def _is_mixed_union(hint: object) -> bool:
    """Unions that cattrs does not handle: more than `X | None`, and not only attrs classes."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return False
    members = [member for member in typing.get_args(hint) if member is not type(None)]
    return len(members) > 1 and not all(attrs.has(member) for member in members)


def _first_that_fits(converter: Converter, value: object, hint: object) -> object:
    """Structure `value` as the first member of the union that accepts it.

    A member of exactly its type is tried first: `1` for `str | int` stays a number.
    """
    members = sorted(typing.get_args(hint), key=lambda member: member is not type(value))
    for member in members:
        try:
            return converter.structure(value, member)
        except Exception:  # noqa: BLE001, S112  # cattrs raises any class; the next may fit
            continue
    raise ValueError(f"expected {hint}, got {_describe_type(value)}")


def _exactly(kind: type[T], value: object, hint: type[T]) -> T:
    if type(value) is not kind:
        raise ValueError(f"expected {_JSON_NAMES[kind]}, got {_describe_type(value)}")
    return value if hint is kind else _as_subclass(value, hint)


_JSON_NAMES: Final[Mapping[type, str]] = {str: "string", int: "integer", bool: "boolean"}


def _describe_type(value: object) -> str:
    """The value's type in JSON's terms, for messages that models read too."""
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return f"{json_type(value)} {value!r}"


def _as_subclass(value: object, hint: type[T]) -> T:
    """Structure by the hook of the base class, so that it serves every subclass (each StrEnum)."""
    make: Callable[[object], T] = hint
    return make(value)


def _number(value: object, hint: type[float]) -> float:
    if type(value) is float and hint is float:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {_describe_type(value)}")
    return float(value) if hint is float else _as_subclass(value, hint)


def _from_iso(value: object, _: object) -> datetime.datetime:
    if not isinstance(value, str):
        raise ValueError(f"expected an ISO 8601 time, got {value!r}")
    return datetime.datetime.fromisoformat(value)


def _date_from_iso(value: object, _: object) -> datetime.date:
    if not isinstance(value, str):
        raise ValueError(f"expected an ISO 8601 date, got {value!r}")
    return datetime.date.fromisoformat(value)


def _from_base64(value: object, _: object) -> bytes:
    if not isinstance(value, str):
        raise ValueError(f"expected base64 text, got {value!r}")
    return base64.b64decode(value, validate=True)


def _to_iso(value: datetime.datetime) -> str:
    return value.isoformat()
