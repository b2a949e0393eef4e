"""Filters and tests of expressions: functions of JSON values, with a bounded cost."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from minions.contracts.json_values import JsonValue
from minions.recipe.expressions.terms import COMPARISONS, contains
from minions.recipe.expressions.values import (
    EvaluationError,
    MissingValueError,
    as_text,
    capped,
    check_size,
    is_list,
    is_number,
    is_same,
    resolve,
    type_name,
)

__all__ = ["FILTERS", "TESTS", "TYPES_GIVEN", "Function"]

Function: TypeAlias = Callable[..., JsonValue]


def _list(value: JsonValue) -> list[JsonValue]:
    if is_list(value):
        return list(value)
    if isinstance(value, Mapping):
        return list(value)
    if isinstance(value, str):
        return list(value)
    raise EvaluationError(f"A list was expected, not a {type_name(value)}.")


def _text(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    raise EvaluationError(f"Text was expected, not a {type_name(value)}.")


def _mapping(value: JsonValue) -> Mapping[str, JsonValue]:
    if isinstance(value, Mapping):
        return value
    raise EvaluationError(f"A mapping was expected, not a {type_name(value)}.")


def _number(value: JsonValue) -> int | float:
    if is_number(value):
        return value
    raise EvaluationError(f"A number was expected, not a {type_name(value)}.")


def _whole(value: JsonValue, *, most: int) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    raise EvaluationError(f"A whole number from 0 to {most} was expected, not {as_text(value)}.")


# --- of any value -----------------------------------------------------------------------------


def length(value: JsonValue) -> JsonValue:
    """Characters, items or keys."""
    if isinstance(value, str | list | tuple | Mapping):
        return len(value)
    raise EvaluationError(f"A {type_name(value)} has no length.")


def truth(value: JsonValue) -> JsonValue:
    """False for what is empty, zero, null or false."""
    return bool(value)


def to_json(value: JsonValue, indent: JsonValue = None) -> JsonValue:
    """JSON text; `indent` in blanks."""
    if indent is None:
        return (
            as_text(value) if not isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        )
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=_whole(indent, most=8))
    return capped(text)


def to_integer(value: JsonValue) -> JsonValue:
    """A whole number; a fraction is cut off."""
    if isinstance(value, str) and len(value) > 300:
        raise EvaluationError("A text of more than 300 characters is not a number.")
    if isinstance(value, bool | int | float | str):
        return int(value)
    raise EvaluationError(f"A {type_name(value)} is not a number.")


def to_float(value: JsonValue) -> JsonValue:
    """A number with a fraction."""
    if not isinstance(value, bool | int | float | str):
        raise EvaluationError(f"A {type_name(value)} is not a number.")
    result = float(value)
    if result != result or result in (float("inf"), float("-inf")):
        raise EvaluationError(f"{as_text(value):.40} is not a number that JSON can express.")
    return result


# --- of text ----------------------------------------------------------------------------------


def title(value: JsonValue) -> JsonValue:
    """Each word with a capital."""
    return _text(value).title()


def replace(value: JsonValue, old: JsonValue, new: JsonValue) -> JsonValue:
    """Every `old` as `new`."""
    text, old, new = _text(value), _text(old), _text(new)
    check_size(len(text) + text.count(old) * (len(new) - len(old)))
    return text.replace(old, new)


def split(value: JsonValue, separator: JsonValue = None) -> JsonValue:
    """The parts between `separator`; between blanks where none is given."""
    return [*_text(value).split(None if separator is None else _text(separator))]


def truncate(value: JsonValue, length: JsonValue = 255, end: JsonValue = "…") -> JsonValue:
    """At most `length` characters, `end` included where something was cut."""
    text, most, end = _text(value), _whole(length, most=1_048_576), _text(end)
    return text if len(text) <= most else text[: max(0, most - len(end))] + end[:most]


def indent(value: JsonValue, width: JsonValue = 4, first: JsonValue = False) -> JsonValue:
    """Lines after the first moved right, empty ones not; the first too where `first` is true."""
    blanks = " " * _whole(width, most=80)
    lines = _text(value).split("\n")
    check_size(len(_text(value)) + len(lines) * len(blanks))
    moved = [
        blanks + line if line and (first or index) else line for index, line in enumerate(lines)
    ]
    return "\n".join(moved)


# --- of lists ---------------------------------------------------------------------------------


def join(value: JsonValue, separator: JsonValue = "", attribute: JsonValue = None) -> JsonValue:
    """The items as one text."""
    between = _text(separator)
    items = (
        _list(value) if attribute is None else [_member(item, attribute) for item in _list(value)]
    )
    texts = []
    size = 0
    for item in items:
        texts.append(as_text(item))
        size += len(texts[-1]) + len(between)
        check_size(size - len(between))
    return between.join(texts)


def first(value: JsonValue) -> JsonValue:
    """The first item or character."""
    items = _list(value)
    if not items:
        raise MissingValueError(("list", "first"), depth=1, names=())
    return items[0]


def last(value: JsonValue) -> JsonValue:
    """The last item or character."""
    items = _list(value)
    if not items:
        raise MissingValueError(("list", "last"), depth=1, names=())
    return items[-1]


def reverse(value: JsonValue) -> JsonValue:
    """The other way round."""
    return value[::-1] if isinstance(value, str) else _list(value)[::-1]


def sort(value: JsonValue, reverse: JsonValue = False, attribute: JsonValue = None) -> JsonValue:
    """Numbers or texts in order, or mappings by one of their keys."""
    return sorted(_list(value), key=_order_by(attribute), reverse=bool(reverse))


def lowest(value: JsonValue, attribute: JsonValue = None) -> JsonValue:
    """The smallest item."""
    return min(_list(value), key=_order_by(attribute))


def highest(value: JsonValue, attribute: JsonValue = None) -> JsonValue:
    """The largest item."""
    return max(_list(value), key=_order_by(attribute))


def total(value: JsonValue, attribute: JsonValue = None) -> JsonValue:
    """All numbers added up."""
    items = _list(value)
    return sum(_number(item if attribute is None else _member(item, attribute)) for item in items)


def flatten(value: JsonValue) -> JsonValue:
    """The items of the lists in a list; one level, in order."""
    items: list[JsonValue] = []
    for item in _list(value):
        items.extend(_list(item) if is_list(item) else [item])
        check_size(len(items))
    return items


def unique(value: JsonValue) -> JsonValue:
    """Each item once, where it stood first."""
    seen: dict[str, JsonValue] = {}
    for item in _list(value):
        seen.setdefault(json.dumps(item, sort_keys=True), item)
    return list(seen.values())


def mapped(value: JsonValue, filter: JsonValue = None, attribute: JsonValue = None) -> JsonValue:  # noqa: A002  # Jinja's own name for it
    """`map('upper')`, or `map(attribute='name')` of a list of mappings."""
    if attribute is not None:
        return [_member(item, attribute) for item in _list(value)]
    function = _named(FILTERS, filter, "filter")
    return [function(item) for item in _list(value)]


def selected(
    value: JsonValue, test: JsonValue = None, argument: JsonValue = None, *, wanted: bool = True
) -> JsonValue:
    """The items that pass a test; without one, those that are not empty."""
    check = _check(test, argument)
    return [item for item in _list(value) if check(item) is wanted]


def selected_by(
    value: JsonValue,
    attribute: JsonValue,
    test: JsonValue = None,
    argument: JsonValue = None,
    *,
    wanted: bool = True,
) -> JsonValue:
    """The mappings whose `attribute` passes a test."""
    check = _check(test, argument)
    return [item for item in _list(value) if check(_member(item, attribute)) is wanted]


def _check(test: JsonValue, argument: JsonValue) -> Callable[[JsonValue], bool]:
    if test is None:
        return bool
    function = _named(TESTS, test, "test")
    if argument is None:
        return lambda item: bool(function(item))
    return lambda item: bool(function(item, argument))


def _named(functions: Mapping[str, Function], name: JsonValue, kind: str) -> Function:
    if not isinstance(name, str) or name not in functions:
        raise EvaluationError(f"There is no {kind} {as_text(name):.40}.")
    return functions[name]


def _member(item: JsonValue, attribute: JsonValue) -> JsonValue:
    return resolve(("item", *as_text(attribute).split(".")), {"item": item})


def _order_by(
    attribute: JsonValue,
) -> Callable[[JsonValue], Any]:  # Any: numbers or texts, as `sorted` checks
    if attribute is None:
        return lambda item: item
    return lambda item: _member(item, attribute)


# --- of mappings ------------------------------------------------------------------------------


def items(value: JsonValue) -> JsonValue:
    """Pairs of key and value."""
    return [[key, item] for key, item in _mapping(value).items()]


class Filter(NamedTuple):
    """One filter of the expression language."""

    name: str
    function: Function
    """Called with the value and the arguments in parentheses."""
    gives: str | None = None
    """The JSON type of the result; None: it depends on the arguments."""


_FILTERS: Final = (
    Filter("abs", lambda value: abs(_number(value))),
    Filter("bool", truth, gives="boolean"),
    Filter("capitalize", lambda value: _text(value).capitalize(), gives="string"),
    Filter("count", length, gives="integer"),
    Filter("first", first),
    Filter("flatten", flatten, gives="array"),
    Filter("float", to_float, gives="number"),
    Filter("indent", indent, gives="string"),
    Filter("int", to_integer, gives="integer"),
    Filter("items", items, gives="array"),
    Filter("join", join, gives="string"),
    Filter("keys", lambda value: list(_mapping(value)), gives="array"),
    Filter("last", last),
    Filter("length", length, gives="integer"),
    Filter("lines", lambda value: [*_text(value).splitlines()], gives="array"),
    Filter("list", _list, gives="array"),
    Filter("lower", lambda value: _text(value).lower(), gives="string"),
    Filter("map", mapped, gives="array"),
    Filter("max", highest),
    Filter("min", lowest),
    Filter("reject", functools.partial(selected, wanted=False), gives="array"),
    Filter("rejectattr", functools.partial(selected_by, wanted=False), gives="array"),
    Filter("replace", replace, gives="string"),
    Filter("reverse", reverse),
    Filter("round", lambda value, precision=0: round(_number(value), _whole(precision, most=20))),
    Filter("select", selected, gives="array"),
    Filter("selectattr", selected_by, gives="array"),
    Filter("sort", sort, gives="array"),
    Filter("split", split, gives="array"),
    Filter("string", as_text, gives="string"),
    Filter("sum", total),
    Filter("title", title, gives="string"),
    Filter("tojson", to_json, gives="string"),
    Filter("trim", lambda value: _text(value).strip(), gives="string"),
    Filter("truncate", truncate, gives="string"),
    Filter("unique", unique, gives="array"),
    Filter("upper", lambda value: _text(value).upper(), gives="string"),
    Filter("values", lambda value: list(_mapping(value).values()), gives="array"),
)
"""A new filter is one line here. `default` is missing on purpose: it has to see missing values."""

FILTERS: Final[Mapping[str, Function]] = {each.name: each.function for each in _FILTERS}
"""The filters by name."""
TYPES_GIVEN: Final[Mapping[str, str]] = {
    each.name: each.gives for each in _FILTERS if each.gives is not None
}
"""The JSON types of results by the filter's name."""


def _compares(name: str) -> Function:
    return COMPARISONS[name]


TESTS: Final[Mapping[str, Function]] = {
    "boolean": lambda value: isinstance(value, bool),
    "divisibleby": lambda value, number: _number(value) % _number(number) == 0,
    "endingwith": lambda value, end: _text(value).endswith(_text(end)),
    "eq": is_same,
    "equalto": is_same,
    "even": lambda value: _number(value) % 2 == 0,
    "false": lambda value: value is False,
    "float": lambda value: isinstance(value, float),
    "ge": _compares(">="),
    "gt": _compares(">"),
    "in": contains,
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "le": _compares("<="),
    "lt": _compares("<"),
    "mapping": lambda value: isinstance(value, Mapping),
    "ne": _compares("!="),
    "none": lambda value: value is None,
    "null": lambda value: value is None,
    "number": is_number,
    "odd": lambda value: _number(value) % 2 == 1,
    "sequence": is_list,
    "startingwith": lambda value, start: _text(value).startswith(_text(start)),
    "string": lambda value: isinstance(value, str),
    "true": lambda value: value is True,
}
