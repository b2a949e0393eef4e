"""Keywords of JSON Schema with a bounded cost: each evaluation is counted.

The library's own may take unbounded time, or raise, for values that are crafted for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from attrs import define

from minions.contracts.json_values import JsonValue, dumps
from minions.contracts.patterns import PATTERN_TIME_S, search

if TYPE_CHECKING:
    from jsonschema import ValidationError

__all__ = ["CheckBudget", "CheckTooLongError", "bounded_keywords"]

# Any: the library's validators, and the values of its keywords, have no types.
_Check: TypeAlias = Callable[[Any, Any, Any, Any], Iterable[Any] | None]

_MOST: Final = 200_000
"""Evaluations of keywords in one check: some tenths of a second."""
_MOST_PER_VALUE: Final = 10
"""Evaluations per value in a large document; what must not happen
is a cost that doubles with each level.
"""
_EVALUATIONS_PER_ERROR: Final = 5
"""What an error costs, as it is passed up through all choices that contain it."""
_CHARACTERS_PER_EVALUATION: Final = 1_000
"""Characters of an error's message (which shows the value) that take as long as one evaluation."""
_MOST_TIMEOUTS: Final = 5
_LONGEST_NAME: Final = 200
"""Characters of a property name that the library may match by itself, without a timeout."""


class CheckTooLongError(Exception):
    """A check has exhausted its budget; never leaves `SchemaValidator`."""


@define
class CheckBudget:
    """What the check of one value may still cost."""

    value: JsonValue = None
    """The value being checked; None outside of a check."""
    used: int = 0
    most: int = _MOST
    """Evaluations allowed; raised for a large value when they are exhausted."""

    def restart(self, value: JsonValue) -> None:
        """Start the check of `value`."""
        self.value, self.used, self.most = value, 0, _MOST

    def spend(self, amount: int = 1) -> None:
        """Count evaluations.

        Raises:
            CheckTooLongError: They exceed the budget of this value.
        """
        self.used += amount
        if self.used <= self.most:
            return
        # Measured only now: most checks end long before, and measuring costs time.
        self.most = max(_MOST, _MOST_PER_VALUE * _size(self.value))
        if self.used > self.most:
            raise CheckTooLongError(
                "checking it takes too long: the schema applies to it more than "
                f"{self.most:,} times"
            )

    def spend_timeout(self) -> None:
        """Count a pattern that hit its timeout.

        Raises:
            CheckTooLongError: The budget of this value is exhausted.
        """
        self.spend(self.most // _MOST_TIMEOUTS)


def _size(value: JsonValue) -> int:
    """The number of values in it, itself included."""
    size, waiting = 0, [value]
    while waiting:
        size, inner = size + 1, waiting.pop()
        if isinstance(inner, Mapping):
            waiting += inner.values()
        elif isinstance(inner, list | tuple):
            waiting += inner
    return size


def bounded_keywords(
    checks: Mapping[str, _Check], budget: CheckBudget, *, has_pattern_properties: bool
) -> dict[str, _Check]:
    """All keywords of the library, with bounded versions of those that can take unbounded time.

    Args:
        has_pattern_properties: Whether `patternProperties` occurs anywhere in the schema.
    """
    patterns = _Patterns(budget)
    own: dict[str, _Check] = {
        "pattern": patterns.pattern,
        "patternProperties": patterns.pattern_properties,
        "additionalProperties": patterns.additional_properties(checks["additionalProperties"]),
        "uniqueItems": _distinct_items,
    }
    if has_pattern_properties:
        own["unevaluatedProperties"] = _with_short_names(checks["unevaluatedProperties"])
    return {name: _counted(name, check, budget) for name, check in {**checks, **own}.items()}


def _counted(name: str, check: _Check, budget: CheckBudget) -> _Check:
    from jsonschema import ValidationError

    def counted(
        validator: object, wanted: object, instance: object, schema: object
    ) -> Iterator[ValidationError]:
        budget.used += 1  # inlined: nothing is called as often as this
        if budget.used > budget.most:
            budget.spend(0)
        try:
            for error in check(validator, wanted, instance, schema) or ():
                shown = len(error.message) // _CHARACTERS_PER_EVALUATION
                budget.spend(_EVALUATIONS_PER_ERROR + shown)
                yield error
        # Raised for integers outside of a float's range, for very long ones, and for NaN.
        except (ArithmeticError, ValueError) as error:
            yield ValidationError(f"{name!r} cannot be checked: {error}")

    return counted


@define
class _Patterns:
    """The keywords with regular expressions, matched by an engine with a timeout."""

    budget: CheckBudget

    def pattern(
        self, _validator: object, pattern: str, instance: object, _schema: object
    ) -> Iterator[ValidationError]:
        from jsonschema import ValidationError

        if not isinstance(instance, str):
            return
        try:
            if search(pattern, instance) is None:
                yield ValidationError(f"{instance!r} does not match {pattern!r}")
        except TimeoutError:
            yield self._timeout(pattern)
        except ValueError as error:
            yield ValidationError(f"{pattern!r} cannot be matched: {error}")

    def pattern_properties(
        self, validator: Any, wanted: Mapping[str, object], instance: object, _schema: object
    ) -> Iterator[ValidationError]:
        if not isinstance(instance, dict):
            return
        for (pattern, subschema), (name, value) in product(wanted.items(), instance.items()):
            self.budget.spend()
            try:
                is_match = search(pattern, name) is not None
            except TimeoutError:
                yield self._timeout(pattern)
                continue
            if is_match:
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)

    def additional_properties(self, library: _Check) -> _Check:
        """`additionalProperties`: the library's own unless the schema has patterns beside it."""

        def check(
            validator: Any, wanted: object, instance: object, schema: Mapping[str, Any]
        ) -> Iterator[ValidationError]:
            if "patternProperties" in schema and isinstance(instance, dict):
                yield from self._additional(validator, wanted, instance, schema)
            else:
                yield from library(validator, wanted, instance, schema) or ()

        return check

    def _additional(
        self,
        validator: Any,
        wanted: object,
        instance: Mapping[str, object],
        schema: Mapping[str, Any],
    ) -> Iterator[ValidationError]:
        from jsonschema import ValidationError

        named, patterns = schema.get("properties", {}), schema["patternProperties"]
        others = [name for name in instance if name not in named]
        extras = [name for name in others if not self._is_matched(name, patterns)]
        if wanted is not False:
            for name in extras:
                yield from validator.descend(instance[name], wanted, path=name)
        elif extras:
            listed = ", ".join(map(repr, sorted(extras)))
            known = ", ".join(map(repr, sorted(patterns)))
            verb = "does" if len(extras) == 1 else "do"
            yield ValidationError(f"{listed} {verb} not match any of the regexes: {known}")

    def _is_matched(self, name: str, patterns: Iterable[str]) -> bool:
        for pattern in patterns:
            self.budget.spend()
            try:
                if search(pattern, name) is not None:
                    return True
            except TimeoutError:
                self.budget.spend_timeout()
                return True  # `patternProperties` reports the timeout already
        return False

    def _timeout(self, pattern: str) -> ValidationError:
        from jsonschema import ValidationError

        self.budget.spend_timeout()
        return ValidationError(f"matching {pattern!r} took longer than {PATTERN_TIME_S} s")


def _with_short_names(library: _Check) -> _Check:
    """The library's keyword for short property names only: it matches them without a timeout."""

    def check(
        validator: Any, wanted: object, instance: object, schema: object
    ) -> Iterator[ValidationError]:
        from jsonschema import ValidationError

        longest = max(map(len, instance), default=0) if isinstance(instance, dict) else 0
        if longest > _LONGEST_NAME:
            yield ValidationError(
                f"the name of a property has {longest:,} characters; beside "
                f"'patternProperties' at most {_LONGEST_NAME} are allowed"
            )
        else:
            yield from library(validator, wanted, instance, schema) or ()

    return check


def _distinct_items(
    _validator: object, wanted: object, instance: object, _schema: object
) -> Iterator[ValidationError]:
    """`uniqueItems` in linear time; the library compares each object with each other one."""
    from jsonschema import ValidationError

    if wanted is not True or not isinstance(instance, list | tuple):
        return
    if len({dumps(_ordered(item)) for item in instance}) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _ordered(value: JsonValue) -> JsonValue:
    """A form that is the same for equal values: keys in order, 1 for 1.0."""
    if isinstance(value, Mapping):
        return {key: _ordered(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_ordered(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
