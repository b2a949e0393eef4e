"""The values that a filter is given: checked for their type, and charged for their size."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from minions.data.json_values import JsonValue
from minions.recipe.expressions.values import (
    EvaluationError,
    Meter,
    as_text,
    is_list,
    is_number,
    size_of,
    type_name,
)

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
