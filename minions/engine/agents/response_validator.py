"""The check of an agent's result against an expected format."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType

from attrs import frozen

from minions.data.json_values import json_type


@frozen
class ValidationResult:
    """Whether a result has the expected format."""

    errors: tuple[str, ...] = ()
    """One text for each wrong field, which begins with its path: `plan[2]: …`."""

    @property
    def is_valid(self) -> bool:
        """Whether there are no errors."""
        return not self.errors

    def __bool__(self) -> bool:
        return self.is_valid


class ResponseValidator:
    """Checks results of agents field by field."""

    async def validate(
        self, result: Mapping[str, object], expected_format: Mapping[str, object]
    ) -> ValidationResult:
        """Compare the result with the types of its fields; further fields are allowed.

        Args:
            result: As `execute_agent_step` returns it. A field that it has not is looked up in its
                `output`, where that is a mapping.
            expected_format: For each field a class, a hint such as `list[str]` or `str | None`, or
                a mapping of the same form for a nested mapping.
        """
        if result.get("error") is not None:
            return ValidationResult((f"error: the step failed: {result['error']}",))
        output = result.get("output")
        fields = {**output, **result} if isinstance(output, Mapping) else result
        return ValidationResult(tuple(_faults(fields, expected_format, "")))


def _faults(value: object, expected: object, path: str) -> Iterator[str]:
    if isinstance(expected, Mapping):
        yield from _faults_of_fields(value, expected, path)
    elif not _fits_class(value, typing.get_origin(expected) or expected):
        yield f"{path}: {_name_of(expected)} was expected, not {_kind_of(value)}"
    else:
        yield from _faults_within(value, expected, path)


def _faults_of_fields(value: object, expected: Mapping[object, object], path: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{path}: a mapping was expected, not {_kind_of(value)}"
        return
    for name, kind in expected.items():
        place = f"{path}.{name}" if path else str(name)
        if name in value:
            yield from _faults(value[name], kind, place)
        else:
            yield f"{place}: it is missing; {_name_of(kind)} was expected"


def _faults_within(value: object, expected: object, path: str) -> Iterator[str]:
    """The faults of the items of a list or mapping with a hint of what they are."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, UnionType):
        options = [list(_faults(value, option, path)) for option in arguments]
        if all(options):
            yield f"{path}: {_name_of(expected)} was expected, not {_kind_of(value)}"
    elif origin is typing.Literal and value not in arguments:
        yield f"{path}: one of {', '.join(map(repr, arguments))} was expected, not {value!r}"
    elif isinstance(value, Mapping) and len(arguments) == 2:
        for name, item in value.items():
            yield from _faults(item, arguments[1], f"{path}.{name}")
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(arguments) == 1:
        for index, item in enumerate(value):
            yield from _faults(item, arguments[0], f"{path}[{index}]")


def _fits_class(value: object, expected: object) -> bool:
    if expected is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if expected is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if expected is list:
        return isinstance(value, list | tuple)
    if expected is None:
        return value is None
    if not isinstance(expected, type) or expected in (typing.Any, UnionType):
        return True
    return isinstance(value, expected)


def _name_of(expected: object) -> str:
    if isinstance(expected, Mapping):
        return "a mapping"
    is_plain = isinstance(expected, type) and not typing.get_args(expected)
    return str(getattr(expected, "__name__", expected)) if is_plain else str(expected)


def _kind_of(value: object) -> str:
    return f"{json_type(value)} {str(value)[:40]!r}" if value is not None else "null"
