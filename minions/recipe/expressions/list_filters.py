"""Filters of lists: parts of them, their order, and one value of all items."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from minions.data.json_values import JsonValue
from minions.recipe.expressions.operands import OF_ITEM, expect_number, expect_text, items_of
from minions.recipe.expressions.values import (
    Meter,
    MissingValueError,
    as_text,
    check_size,
    is_container,
    is_list,
    resolve,
    size_of,
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
