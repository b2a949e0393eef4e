"""Places in JSON values: what stands at a path, and the paths of all plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from minions.data.json_values import JsonValue


def is_equal(left: JsonValue, right: JsonValue) -> bool:
    """Whether two values are the same JSON; 12 and 12.0 are, 1 and true are not."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(is_equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(is_equal, left, right))
    return type(left) is type(right) and left == right


def keys_of(value: JsonValue) -> list[str]:
    """The keys of an object; none of anything else."""
    return list(value) if isinstance(value, Mapping) else []


def part_of(value: JsonValue, key: str) -> JsonValue:
    """The value of a key; None: there is none, or it is no object."""
    return value.get(key) if isinstance(value, Mapping) else None


def first_given(values: Sequence[JsonValue]) -> JsonValue:
    """The first that is not null."""
    return next((each for each in values if each is not None), None)


def value_at(value: JsonValue, path: Sequence[str | int]) -> JsonValue:
    """What stands at the path; None: nothing does."""
    for key in path:
        if isinstance(value, Mapping) and isinstance(key, str):
            value = value.get(key)
        elif isinstance(value, list | tuple) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            return None
    return value


def put_value(holder: JsonValue, path: Sequence[str | int], value: JsonValue) -> None:
    """Put a value in the place of what stands at the path."""
    inner, last = value_at(holder, path[:-1]), path[-1]
    match inner, last:
        case dict(), str():
            inner[last] = value
        case list(), int():
            inner[last] = value


def plain_leaves(
    value: JsonValue, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], JsonValue]]:
    """Texts, numbers and truth values within a value, with their paths."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from plain_leaves(part, (*path, key))
    elif isinstance(value, list | tuple):
        for at, part in enumerate(value):
            yield from plain_leaves(part, (*path, at))
    else:
        yield path, value
