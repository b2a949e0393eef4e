"""Filters and tests of expressions: functions of JSON values, with a bounded cost.

The tables of all of them. Those of lists are in `list_filters`, what they share in `operators`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from minions.data.json_values import JsonValue, parse_json
from minions.recipe.expressions.operators import (
    COMPARISONS,
    OF_ITEM,
    OF_LIST,
    Function,
    charged,
    contains,
    expect_mapping,
    expect_number,
    expect_text,
    expect_whole,
    items_of,
    quick,
)
from minions.recipe.expressions.values import (
    EvaluationError,
    Meter,
    MissingValueError,
    as_text,
    capped,
    check_size,
    is_container,
    is_list,
    is_number,
    resolve,
    size_of,
    type_name,
    weighed,
)

_OF_ENCODER: Final = 40
"""Operations that writing any value as JSON takes."""


def join(
    meter: Meter, value: JsonValue, separator: JsonValue = "", attribute: JsonValue = None
) -> JsonValue:
    """The items as one text."""
    between = expect_text(separator)
    items = members_of(value, attribute, meter)
    texts = []
    size = 0
    for item in items:
        texts.append(as_text(item, meter))
        size += len(texts[-1]) + len(between)
        check_size(size - len(between))
    return between.join(texts)


def first(meter: Meter, value: JsonValue) -> JsonValue:
    """The first item or character."""
    items = items_of(value if isinstance(value, Mapping) else _part(value, slice(0, 1)), meter)
    if not items:
        raise MissingValueError(("list", "first"), depth=1, names=())
    return items[0]


def last(meter: Meter, value: JsonValue) -> JsonValue:
    """The last item or character."""
    items = items_of(value if isinstance(value, Mapping) else _part(value, slice(-1, None)), meter)
    if not items:
        raise MissingValueError(("list", "last"), depth=1, names=())
    return items[-1]


def _part(value: JsonValue, part: slice) -> JsonValue:
    return value[part] if isinstance(value, str | list | tuple) else value


def reverse(meter: Meter, value: JsonValue) -> JsonValue:
    """The other way round."""
    meter.charge(size_of(value))
    return value[::-1] if isinstance(value, str) else items_of(value, meter)[::-1]


def sort(
    meter: Meter, value: JsonValue, reverse: JsonValue = False, attribute: JsonValue = None
) -> JsonValue:
    """Numbers or texts in order, or mappings by one of their keys."""
    items, keys = items_of(value, meter), _keys(value, attribute, meter)
    meter.charge(_weight_of(keys, meter) * len(keys).bit_length() // 4)
    order = sorted(range(len(keys)), key=keys.__getitem__, reverse=bool(reverse))
    return [items[at] for at in order]


def lowest(meter: Meter, value: JsonValue, attribute: JsonValue = None) -> JsonValue:
    """The smallest item."""
    items, keys = items_of(value, meter), _keys(value, attribute, meter)
    meter.charge(_weight_of(keys, meter))
    return items[min(range(len(keys)), key=keys.__getitem__)]


def highest(meter: Meter, value: JsonValue, attribute: JsonValue = None) -> JsonValue:
    """The largest item."""
    items, keys = items_of(value, meter), _keys(value, attribute, meter)
    meter.charge(_weight_of(keys, meter))
    return items[max(range(len(keys)), key=keys.__getitem__)]


def total(meter: Meter, value: JsonValue, attribute: JsonValue = None) -> JsonValue:
    """All numbers added up."""
    return sum(map(expect_number, members_of(value, attribute, meter)))


def flatten(meter: Meter, value: JsonValue) -> JsonValue:
    """The items of the lists in a list; one level, in order."""
    items: list[JsonValue] = []
    for item in items_of(value, meter):
        meter.charge(size_of(item) if is_list(item) else 0)
        items.extend(item if is_list(item) else [item])
        check_size(len(items))
    return items


def unique(meter: Meter, value: JsonValue) -> JsonValue:
    """Each item once, where it stood first."""
    items = items_of(value, meter)
    meter.charge(2 * weighed(items, meter).nodes)
    seen: dict[object, JsonValue] = {}
    for item in items:
        if is_container(item):
            meter.charge(_OF_ENCODER)
            seen.setdefault((json.dumps(item, sort_keys=True),), item)
        else:
            seen.setdefault((type(item), item), item)
    return list(seen.values())


def grouped(meter: Meter, value: JsonValue, attribute: JsonValue) -> JsonValue:
    """`{grouper, list}` for each value that the items hold under `attribute`, in order."""
    items, keys = items_of(value, meter), _keys(value, attribute, meter)
    meter.charge(2 * _weight_of(keys, meter) * len(keys).bit_length())
    groups: dict[JsonValue, list[JsonValue]] = {}
    for item, key in zip(items, keys, strict=True):
        if is_container(key):
            raise EvaluationError(f"Items are grouped by a text or number, not {type_name(key)}.")
        groups.setdefault(key, []).append(item)
    order: list[Any] = list(groups)  # Any: texts or numbers, as `sorted` checks
    return [{"grouper": key, "list": groups[key]} for key in sorted(order)]


def _member(item: JsonValue, path: tuple[str, ...]) -> JsonValue:
    if len(path) == 1 and type(item) is dict and path[0] in item:  # most have it
        found: JsonValue = item[path[0]]
        return found
    return resolve(("item", *path), {"item": item})


def members_of(value: JsonValue, attribute: JsonValue, meter: Meter) -> list[JsonValue]:
    """The items, or what each of them holds under `attribute`."""
    items = items_of(value, meter)
    if attribute is None:
        return items
    meter.charge(4 * OF_ITEM * len(items))
    path = tuple(as_text(attribute).split("."))
    return [_member(item, path) for item in items]


def _keys(
    value: JsonValue, attribute: JsonValue, meter: Meter
) -> list[Any]:  # Any: numbers or texts, as `sorted` checks
    return members_of(value, attribute, meter)


def _weight_of(keys: list[JsonValue], meter: Meter) -> int:
    """Operations that comparing each of the keys once may take."""
    return len(keys) if _SCALARS.issuperset(map(type, keys)) else weighed(keys, meter).nodes


_SCALARS: Final = frozenset({int, float, str, bool})


# --- of any value -----------------------------------------------------------------------------


def length(value: JsonValue) -> JsonValue:
    """Characters, items or keys."""
    if isinstance(value, str | list | tuple | Mapping):
        return len(value)
    raise EvaluationError(f"A {type_name(value)} has no length.")


def truth(value: JsonValue) -> JsonValue:
    """False for what is empty, zero, null or false."""
    return bool(value)


def to_text(meter: Meter, value: JsonValue) -> JsonValue:
    """A text as it is, everything else as JSON."""
    return as_text(value, meter)


def to_json(meter: Meter, value: JsonValue, indent: JsonValue = None) -> JsonValue:
    """JSON text; `indent` in blanks."""
    meter.charge(size_of(value))
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if indent is None:
        return as_text(value, meter)
    weight = weighed(value, meter)
    check_size(weight.nodes + weight.characters)
    meter.charge(OF_ITEM * weight.nodes)
    text = json.dumps(
        value, ensure_ascii=False, allow_nan=False, indent=expect_whole(indent, most=8)
    )
    return capped(text)


def from_json(meter: Meter, value: JsonValue) -> JsonValue:
    """The value that a text has as JSON."""
    text = expect_text(value)
    meter.charge(len(text))
    try:
        found = parse_json(text)
    except ValueError as error:
        raise EvaluationError(f"The text is no JSON: {error}.") from error
    weight = weighed(found, meter)
    meter.charge(OF_ITEM * weight.nodes)
    return found


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


def rounded(value: JsonValue, precision: JsonValue = 0) -> JsonValue:
    """A number with so many digits after the point."""
    return round(expect_number(value), expect_whole(precision, most=20))


# --- of text ----------------------------------------------------------------------------------


def lines(meter: Meter, value: JsonValue) -> JsonValue:
    """The lines, without their ends."""
    meter.charge(OF_LIST + len(expect_text(value)) // 4)
    return [*expect_text(value).splitlines()]


def title(value: JsonValue) -> JsonValue:
    """Each word with a capital."""
    return expect_text(value).title()


def replace(meter: Meter, value: JsonValue, old: JsonValue, new: JsonValue) -> JsonValue:
    """Every `old` as `new`."""
    text, old, new = expect_text(value), expect_text(old), expect_text(new)
    meter.charge(1 + len(text) // 16)
    size = len(text) + text.count(old) * (len(new) - len(old))
    check_size(size)
    meter.charge(size // 64)
    return text.replace(old, new)


def split(meter: Meter, value: JsonValue, separator: JsonValue = None) -> JsonValue:
    """The parts between `separator`; between blanks where none is given."""
    meter.charge(OF_LIST + len(expect_text(value)) // 4)
    return [*expect_text(value).split(None if separator is None else expect_text(separator))]


def truncate(value: JsonValue, length: JsonValue = 255, end: JsonValue = "…") -> JsonValue:
    """At most `length` characters, `end` included where something was cut."""
    text, most, end = expect_text(value), expect_whole(length, most=1_048_576), expect_text(end)
    return text if len(text) <= most else text[: max(0, most - len(end))] + end[:most]


def indent(
    meter: Meter, value: JsonValue, width: JsonValue = 4, first: JsonValue = False
) -> JsonValue:
    """Lines after the first moved right, empty ones not; the first too where `first` is true."""
    blanks = " " * expect_whole(width, most=80)
    lines = expect_text(value).split("\n")
    meter.charge(OF_ITEM * len(lines) + len(expect_text(value)) // 64)
    check_size(len(expect_text(value)) + len(lines) * len(blanks))
    moved = [
        blanks + line if line and (first or index) else line for index, line in enumerate(lines)
    ]
    return "\n".join(moved)


# --- of lists, by the name of a filter or a test ----------------------------------------------


def mapped(
    meter: Meter,
    value: JsonValue,
    filter: JsonValue = None,  # noqa: A002  # Jinja's own name for it
    attribute: JsonValue = None,
) -> JsonValue:
    """`map('upper')`, or `map(attribute='name')` of a list of mappings."""
    if attribute is not None:
        return members_of(value, attribute, meter)
    function = _find_function(FILTERS, filter, "filter")
    items = items_of(value, meter)
    meter.charge(OF_ITEM * len(items))
    return [function(meter, item) for item in items]


def selected(
    meter: Meter,
    value: JsonValue,
    test: JsonValue = None,
    argument: JsonValue = None,
    *,
    wanted: bool = True,
) -> JsonValue:
    """The items that pass a test; without one, those that are not empty."""
    check = _check(test, argument, meter)
    return [item for item in items_of(value, meter) if check(item) is wanted]


def selected_by(
    meter: Meter,
    value: JsonValue,
    attribute: JsonValue,
    test: JsonValue = None,
    argument: JsonValue = None,
    *,
    wanted: bool = True,
) -> JsonValue:
    """The mappings whose `attribute` passes a test."""
    check = _check(test, argument, meter)
    items, members = items_of(value, meter), members_of(value, attribute, meter)
    found = zip(items, members, strict=True)
    return [item for item, member in found if check(member) is wanted]


def _check(test: JsonValue, argument: JsonValue, meter: Meter) -> Callable[[JsonValue], bool]:
    if test is None:
        return bool
    function = _find_function(TESTS, test, "test")
    if argument is None:
        return lambda item: bool(function(meter, item))
    if function is _is_in and is_list(argument):
        return _Members(argument, meter).has
    return lambda item: bool(function(meter, item, argument))


class _Members:
    """The items of a list, for many questions: a set holds those that can be hashed."""

    def __init__(self, items: Sequence[JsonValue], meter: Meter) -> None:
        meter.charge(4 * OF_ITEM * len(items))
        self._meter = meter
        self._scalars = {_scalar(each) for each in items if not is_container(each)}
        self._containers = [each for each in items if is_container(each)]

    def has(self, item: JsonValue) -> bool:
        """Whether one of the items is the same."""
        self._meter.charge(2 * OF_ITEM)
        if is_container(item):
            return contains(item, self._containers, self._meter)
        return _scalar(item) in self._scalars


def _scalar(value: JsonValue) -> tuple[bool, JsonValue]:
    """Equal for what `is_same` finds equal: 1 equals 1.0, but not true."""
    return isinstance(value, bool), value


def _find_function(functions: Mapping[str, Function], name: JsonValue, kind: str) -> Function:
    if not isinstance(name, str) or name not in functions:
        raise EvaluationError(f"There is no {kind} {as_text(name):.40}.")
    return functions[name]


# --- of mappings ------------------------------------------------------------------------------


def items(meter: Meter, value: JsonValue) -> JsonValue:
    """Pairs of key and value."""
    meter.charge(OF_LIST * len(expect_mapping(value)))
    return [[key, item] for key, item in expect_mapping(value).items()]


class Filter(NamedTuple):
    """One filter of the expression language."""

    name: str
    function: Function
    """Called with the meter, the value and the arguments in parentheses."""
    takes: frozenset[str] | None = None
    """The JSON types of values that it can take; None: all of them."""
    gives: str | None = None
    """The JSON type of the result; None: it depends on the value, or on the arguments."""
    arguments: tuple[str, ...] = ()
    """The JSON types of the first arguments, where each takes one alone."""
    takes_items: frozenset[str] | None = None
    """The JSON types of the items that it can take, or of what `attribute` reads of each."""


_TEXT: Final = frozenset({"string"})
_NUMBER: Final = frozenset({"integer", "number"})
_MAPPING: Final = frozenset({"object"})
_ITEMS: Final = frozenset({"array", "object", "string"})
_ORDERED: Final = frozenset({"array", "boolean", "integer", "number", "string"})
_AS_NUMBER: Final = _TEXT | _NUMBER | {"boolean"}

_FILTERS: Final = (
    Filter("abs", charged(lambda value: abs(expect_number(value))), takes=_NUMBER, gives="number"),
    Filter("bool", quick(truth), gives="boolean"),
    Filter(
        "capitalize",
        charged(lambda value: expect_text(value).capitalize()),
        takes=_TEXT,
        gives="string",
    ),
    Filter("count", quick(length), takes=_ITEMS, gives="integer"),
    Filter("first", first, takes=_ITEMS),
    Filter("flatten", flatten, takes=_ITEMS, gives="array"),
    Filter("float", charged(to_float), takes=_AS_NUMBER, gives="number"),
    Filter("fromjson", from_json, takes=_TEXT),
    Filter("groupby", grouped, takes=_ITEMS, gives="array", arguments=("string",)),
    Filter("indent", indent, takes=_TEXT, gives="string", arguments=("integer",)),
    Filter("int", charged(to_integer), takes=_AS_NUMBER, gives="integer"),
    Filter("items", items, takes=_MAPPING, gives="array"),
    Filter("join", join, takes=_ITEMS, gives="string", arguments=("string",)),
    Filter(
        "keys", charged(lambda value: list(expect_mapping(value))), takes=_MAPPING, gives="array"
    ),
    Filter("last", last, takes=_ITEMS),
    Filter("length", quick(length), takes=_ITEMS, gives="integer"),
    Filter("lines", lines, takes=_TEXT, gives="array"),
    Filter("list", lambda meter, value: items_of(value, meter), takes=_ITEMS, gives="array"),
    Filter("lower", charged(lambda value: expect_text(value).lower()), takes=_TEXT, gives="string"),
    Filter("map", mapped, takes=_ITEMS, gives="array"),
    Filter("max", highest, takes=_ITEMS, takes_items=_ORDERED),
    Filter("min", lowest, takes=_ITEMS, takes_items=_ORDERED),
    Filter("reject", functools.partial(selected, wanted=False), takes=_ITEMS, gives="array"),
    Filter("rejectattr", functools.partial(selected_by, wanted=False), takes=_ITEMS, gives="array"),
    Filter("replace", replace, takes=_TEXT, gives="string", arguments=("string", "string")),
    Filter("reverse", reverse, takes=_ITEMS),
    Filter("round", charged(rounded), takes=_NUMBER, gives="number", arguments=("integer",)),
    Filter("select", selected, takes=_ITEMS, gives="array"),
    Filter("selectattr", selected_by, takes=_ITEMS, gives="array"),
    Filter("sort", sort, takes=_ITEMS, gives="array", takes_items=_ORDERED),
    Filter("split", split, takes=_TEXT, gives="array", arguments=("string",)),
    Filter("string", to_text, gives="string"),
    Filter("sum", total, takes=_ITEMS, gives="number", takes_items=_NUMBER),
    Filter("title", charged(title), takes=_TEXT, gives="string"),
    Filter("tojson", to_json, gives="string", arguments=("integer",)),
    Filter("trim", charged(lambda value: expect_text(value).strip()), takes=_TEXT, gives="string"),
    Filter(
        "truncate", charged(truncate), takes=_TEXT, gives="string", arguments=("integer", "string")
    ),
    Filter("unique", unique, takes=_ITEMS, gives="array"),
    Filter("upper", charged(lambda value: expect_text(value).upper()), takes=_TEXT, gives="string"),
    Filter(
        "values",
        charged(lambda value: list(expect_mapping(value).values())),
        takes=_MAPPING,
        gives="array",
    ),
)
"""A new filter is one line here. `default` is missing on purpose: it has to see missing values."""

FILTERS: Final[Mapping[str, Function]] = {each.name: each.function for each in _FILTERS}
"""The filters by name."""
FILTER_TYPES: Final[Mapping[str, Filter]] = {each.name: each for each in _FILTERS}
"""What each filter takes and gives, by name."""


def _compares(name: str) -> Function:
    compare = COMPARISONS[name]
    return lambda meter, value, other: compare(value, other, meter)


_is_in: Final = _compares("in")

TESTS: Final[Mapping[str, Function]] = {
    "boolean": quick(lambda value: isinstance(value, bool)),
    "divisibleby": charged(lambda value, number: expect_number(value) % expect_number(number) == 0),
    "endingwith": charged(lambda value, end: expect_text(value).endswith(expect_text(end))),
    "eq": _compares("=="),
    "equalto": _compares("=="),
    "even": charged(lambda value: expect_number(value) % 2 == 0),
    "false": quick(lambda value: value is False),
    "float": quick(lambda value: isinstance(value, float)),
    "ge": _compares(">="),
    "gt": _compares(">"),
    "in": _is_in,
    "integer": quick(lambda value: isinstance(value, int) and not isinstance(value, bool)),
    "le": _compares("<="),
    "lt": _compares("<"),
    "mapping": quick(lambda value: isinstance(value, Mapping)),
    "ne": _compares("!="),
    "none": quick(lambda value: value is None),
    "null": quick(lambda value: value is None),
    "number": quick(is_number),
    "odd": charged(lambda value: expect_number(value) % 2 == 1),
    "sequence": quick(is_list),
    "startingwith": charged(lambda value, start: expect_text(value).startswith(expect_text(start))),
    "string": quick(lambda value: isinstance(value, str)),
    "true": quick(lambda value: value is True),
}
"""The tests by name."""
TESTS_TAKE: Final[Mapping[str, frozenset[str]]] = {
    "divisibleby": _NUMBER,
    "endingwith": _TEXT,
    "even": _NUMBER,
    "odd": _NUMBER,
    "startingwith": _TEXT,
}
"""The JSON types of values that a test can take, by its name; the others take all."""
