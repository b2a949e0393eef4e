"""The operators of expressions as functions of two values: comparisons, arithmetic, joining."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from minions.data.json_values import JsonValue
from minions.recipe.expressions.values import (
    EvaluationError,
    Meter,
    as_text,
    check_size,
    is_list,
    is_number,
    is_same,
    same,
    size_of,
    type_name,
)

Compare: TypeAlias = Callable[[JsonValue, JsonValue, Meter], bool]


def _order(name: str, compare: Callable[..., bool]) -> Compare:
    def check(left: JsonValue, right: JsonValue, meter: Meter) -> bool:
        numbers = is_number(left) and is_number(right)
        if not numbers and not (isinstance(left, str) and isinstance(right, str)):
            raise EvaluationError(
                f"'{name}' compares two numbers or two texts, "
                f"not a {type_name(left)} and a {type_name(right)}."
            )
        meter.charge(1)
        return compare(left, right)

    return check


def contains(item: JsonValue, container: JsonValue, meter: Meter) -> bool:
    """`item in container`: an item of a list, a key of a mapping, or a part of a text.

    Raises:
        EvaluationError: The container is none of these.
    """
    meter.charge(size_of(container))
    if is_list(container):
        if not isinstance(item, list | tuple | Mapping):
            # The first look is C; 1 equals true there.
            return item in container and any(is_same(item, other) for other in container)
        return any(same(item, other, meter) for other in container)
    if isinstance(container, Mapping):
        return isinstance(item, str) and item in container
    if isinstance(container, str) and isinstance(item, str):
        return item in container
    raise EvaluationError(f"A {type_name(item)} cannot be 'in' a {type_name(container)}.")


COMPARISONS: Final[Mapping[str, Compare]] = {
    "==": same,
    "!=": lambda left, right, meter: not same(left, right, meter),
    "<": _order("<", operator.lt),
    "<=": _order("<=", operator.le),
    ">": _order(">", operator.gt),
    ">=": _order(">=", operator.ge),
    "in": contains,
    "not in": lambda item, container, meter: not contains(item, container, meter),
}
"""The comparisons by operator."""


_ARITHMETIC: Final[Mapping[str, Callable[[int | float, int | float], int | float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


_MOST_BITS: Final = 1_024
"""Bits of an integer that an operator computes: the range of a float."""


def combined(name: str, left: JsonValue, right: JsonValue, meter: Meter) -> JsonValue:
    """The value of `left + right`, or of `-`, `*`, `/`, `//`, `%` and `~`.

    Args:
        name: The operator.
    Raises:
        EvaluationError: It takes no such values, or the result is too large.
    """
    meter.charge(1)
    if name == "~":
        return _join(as_text(left, meter), as_text(right, meter), meter)
    if is_number(left) and is_number(right):
        return _calculate(name, left, right)
    if name == "+" and isinstance(left, str) and isinstance(right, str):
        return _join(left, right, meter)
    if name == "+" and is_list(left) and is_list(right):
        check_size(len(left) + len(right))
        meter.charge((len(left) + len(right)) // 8)
        return [*left, *right]
    hint = " ('~' joins anything as text)" if name == "+" else ""
    raise EvaluationError(
        f"'{name}' takes numbers, not a {type_name(left)} and a {type_name(right)}{hint}."
    )


def _join(left: str, right: str, meter: Meter) -> str:
    check_size(len(left) + len(right))
    meter.charge((len(left) + len(right)) // 64)
    return left + right


def _calculate(name: str, left: int | float, right: int | float) -> int | float:
    try:
        result = _ARITHMETIC[name](left, right)
    except (ZeroDivisionError, OverflowError) as error:
        raise EvaluationError(f"'{name}' cannot be carried out: {error}.") from error
    too_large = isinstance(result, int) and result.bit_length() > _MOST_BITS
    if too_large or result in (float("inf"), float("-inf")):
        raise EvaluationError(f"The result of '{name}' is too large for a number.")
    return result


# --- the values that a filter is given -----------------------------------------------------------


Function: TypeAlias = Callable[..., JsonValue]
"""A filter or a test: called with the meter, the value and the arguments in parentheses."""


OF_ITEM: Final = 2
"""Operations that an item takes for which Python does something."""


OF_LIST: Final = 16
"""Operations that a new list takes."""


def items_of(value: JsonValue, meter: Meter) -> list[JsonValue]:
    """The items, keys or characters, each charged as one that Python looks at.

    Raises:
        EvaluationError: It has none.
    """
    if isinstance(value, str | list | tuple | Mapping):
        meter.charge(OF_LIST + OF_ITEM * len(value))
    if is_list(value):
        return list(value)
    if isinstance(value, Mapping):
        return list(value)
    if isinstance(value, str):
        return list(value)
    raise EvaluationError(f"A list was expected, not a {type_name(value)}.")


def expect_text(value: JsonValue) -> str:
    """The value, which has to be text; else EvaluationError."""
    if isinstance(value, str):
        return value
    raise EvaluationError(f"Text was expected, not a {type_name(value)}.")


def expect_mapping(value: JsonValue) -> Mapping[str, JsonValue]:
    """The value, which has to be a mapping; else EvaluationError."""
    if isinstance(value, Mapping):
        return value
    raise EvaluationError(f"A mapping was expected, not a {type_name(value)}.")


def expect_number(value: JsonValue) -> int | float:
    """The value, which has to be a number; else EvaluationError."""
    if is_number(value):
        return value
    raise EvaluationError(f"A number was expected, not a {type_name(value)}.")


def expect_whole(value: JsonValue, *, most: int) -> int:
    """The value, which has to be a whole number from 0 to `most`; else EvaluationError."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
        return value
    raise EvaluationError(f"A whole number from 0 to {most} was expected, not {as_text(value)}.")


def charged(function: Function) -> Function:
    """A function of values alone, for which its values are charged."""

    @functools.wraps(function)
    def metered(meter: Meter, *values: JsonValue, **named: JsonValue) -> JsonValue:
        for value in values:
            meter.charge(size_of(value))
        return function(*values, **named)

    parameters = inspect.signature(function).parameters.values()
    meter = inspect.Parameter("meter", inspect.Parameter.POSITIONAL_ONLY)
    metered.__signature__ = inspect.Signature([meter, *parameters])  # type: ignore[attr-defined]  # read by `inspect`
    return metered


def quick(function: Callable[[JsonValue], JsonValue]) -> Function:
    """A function that does not look into its value: nothing is charged."""
    return lambda _, value: function(value)
