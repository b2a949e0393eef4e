"""Keywords of JSON Schema with a bounded cost: each evaluation is counted.

The library's own may take unbounded time, or raise, for values that are crafted for that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from attrs import define, field

from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, dumps
from minions.data.patterns import MatchTime, match_time

if TYPE_CHECKING:
    from jsonschema import ValidationError


# Any: the library's validators, and the values of its keywords, have no types.
_Check: TypeAlias = Callable[..., Iterable[Any] | None]
_Schema: TypeAlias = Mapping[str, Any]

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
_TURNING: Final = frozenset({"contains", "if", "not", "oneOf"})
"""Keywords that may take a value because something in them does not fit."""


class _Validator(Protocol):
    def descend(
        self,
        instance: object,
        schema: object,
        path: str | None = None,
        schema_path: str | None = None,
    ) -> Iterator[ValidationError]:
        """The errors of a value that a part of the schema is about."""


class NoVerdictError(Exception):
    """A check cannot say whether the value fits; never leaves `SchemaValidator`."""


@define
class CheckBudget(FieldsRepr):
    """What the check of one value may still cost."""

    value: JsonValue = None
    """The value being checked; None outside of a check."""
    used: int = 0
    most: int = _MOST
    """Evaluations allowed; raised for a large value when they are exhausted."""
    matching: MatchTime = field(factory=match_time)
    """What its patterns may still take."""
    doubts: int = 0
    """Keywords that could not be checked, and therefore count as not fulfilled."""

    def restart(self, value: JsonValue) -> None:
        """Start the check of `value`."""
        self.value, self.used, self.most, self.doubts = value, 0, _MOST, 0
        self.matching = match_time()

    def spend(self, amount: int = 1) -> None:
        """Count evaluations.

        Raises:
            NoVerdictError: They exceed the budget of this value.
        """
        self.used += amount
        if self.used <= self.most:
            return
        # Measured only now: most checks end long before, and measuring costs time.
        self.most = max(_MOST, _MOST_PER_VALUE * _size(self.value))
        if self.used > self.most:
            raise NoVerdictError(
                "checking it takes too long: the schema applies to it more than "
                f"{self.most:,} times"
            )

    def matches(self, pattern: str, text: str) -> bool:
        """Whether the text has a match.

        Raises:
            NoVerdictError: Matching takes too long. Then it must not count as no match, either,
                since a `not` around it would take the value.
        """
        try:
            return self.matching.search(pattern, text) is not None
        except TimeoutError:
            raise NoVerdictError(f"matching {_show_pattern(pattern)} takes too long") from None
        except ValueError as error:
            raise NoVerdictError(f"{_show_pattern(pattern)} cannot be matched: {error}") from error


def _show_pattern(pattern: str) -> str:
    return repr(pattern) if len(pattern) <= 200 else f"{pattern[:199]!r}…"


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
    checks: Mapping[str, _Check],
    budget: CheckBudget,
    resolve: Callable[[str], JsonValue],
    *,
    has_pattern_properties: bool,
) -> dict[str, _Check]:
    """All keywords of the library, with bounded versions of those that can take unbounded time.

    Args:
        resolve: Looks up the target of a reference.
        has_pattern_properties: Whether `patternProperties` occurs anywhere in the schema.
    """
    patterns = _Patterns(budget, resolve)
    own: dict[str, _Check] = {"pattern": patterns.pattern, "uniqueItems": _distinct_items}
    if has_pattern_properties:
        own |= {
            "patternProperties": patterns.pattern_properties,
            "additionalProperties": patterns.additional_properties(checks["additionalProperties"]),
            "unevaluatedProperties": patterns.unevaluated_properties,
        }
    return {
        name: _count_evaluations(name, check, budget) for name, check in {**checks, **own}.items()
    }


def _count_evaluations(name: str, check: _Check, budget: CheckBudget) -> _Check:
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
            budget.doubts += 1
            yield ValidationError(f"{name!r} cannot be checked: {error}")

    def turning(
        validator: object, wanted: object, instance: object, schema: object
    ) -> Iterator[ValidationError]:
        before = budget.doubts
        yield from counted(validator, wanted, instance, schema)
        if budget.doubts > before:
            raise NoVerdictError(f"{name!r} cannot be checked, since a part of it cannot")

    return turning if name in _TURNING else counted


@define
class _Patterns(FieldsRepr):
    """The keywords with regular expressions, matched within a time."""

    budget: CheckBudget
    resolve: Callable[[str], JsonValue]

    def pattern(
        self, _validator: object, pattern: str, instance: object, _schema: object
    ) -> Iterator[ValidationError]:
        from jsonschema import ValidationError

        if isinstance(instance, str) and not self.budget.matches(pattern, instance):
            yield ValidationError(f"{instance!r} does not match {pattern!r}")

    def pattern_properties(
        self, validator: _Validator, wanted: Mapping[str, object], instance: object, _schema: object
    ) -> Iterator[ValidationError]:
        if not isinstance(instance, dict):
            return
        for (pattern, subschema), (name, value) in product(wanted.items(), instance.items()):
            self.budget.spend()
            if self.budget.matches(pattern, name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)

    def additional_properties(self, library: _Check) -> _Check:
        """`additionalProperties`: the library's own unless the schema has patterns beside it."""

        def check(
            validator: _Validator, wanted: object, instance: object, schema: _Schema
        ) -> Iterator[ValidationError]:
            if "patternProperties" in schema and isinstance(instance, dict):
                yield from self._additional(validator, wanted, instance, schema)
            else:
                yield from library(validator, wanted, instance, schema) or ()

        return check

    def _additional(
        self,
        validator: _Validator,
        wanted: object,
        instance: Mapping[str, object],
        schema: _Schema,
    ) -> Iterator[ValidationError]:
        from jsonschema import ValidationError

        named, patterns = schema.get("properties", {}), schema["patternProperties"]
        others = [name for name in instance if name not in named]
        matched = self._match_names(others, patterns)
        extras = [name for name in others if name not in matched]
        if wanted is not False:
            for name in extras:
                yield from validator.descend(instance[name], wanted, path=name)
        elif extras:
            listed = ", ".join(map(repr, sorted(extras)))
            known = ", ".join(map(repr, sorted(patterns)))
            verb = "does" if len(extras) == 1 else "do"
            yield ValidationError(f"{listed} {verb} not match any of the regexes: {known}")

    def _match_names(self, names: Collection[str], patterns: Iterable[str]) -> Set[str]:
        """The names that one of the patterns matches; one after the other, so that each pattern
        is compiled only once.
        """
        left = dict.fromkeys(names)
        for pattern in patterns:
            for name in list(left):
                self.budget.spend()
                if self.budget.matches(pattern, name):
                    del left[name]
        return set(names) - left.keys()

    def unevaluated_properties(
        self, validator: _Validator, wanted: object, instance: object, schema: _Schema
    ) -> Iterator[ValidationError]:
        """As the library has it, which matches names without a time."""
        from jsonschema import ValidationError

        if not isinstance(instance, dict):
            return
        known = self._evaluated_names(validator, instance, schema)
        wrong = [name for name in instance if name not in known]
        if wrong:
            listed = ", ".join(map(repr, sorted(wrong)))
            what = "are not allowed" if wanted is False else "do not fit the schema for them"
            yield ValidationError(f"properties that nothing else describes {what}: {listed}")

    def _evaluated_names(
        self, validator: _Validator, instance: Mapping[str, object], schema: object
    ) -> frozenset[str]:
        """The names of which the schema, and what it applies to the same value, says something."""
        if not isinstance(schema, Mapping):
            return frozenset()
        self.budget.spend(len(instance))
        found = set(schema.get("properties", ()))
        for keyword in ("additionalProperties", "unevaluatedProperties"):
            if keyword in schema:
                found |= {
                    name
                    for name, value in instance.items()
                    if _fits(validator, value, schema[keyword])
                }
        patterns = schema.get("patternProperties", ())
        found |= self._match_names(instance, patterns)
        for applied in self._applied_schemas(validator, instance, schema):
            found |= self._evaluated_names(validator, instance, applied)
        return frozenset(found)

    def _applied_schemas(
        self, validator: _Validator, instance: Mapping[str, object], schema: _Schema
    ) -> Iterator[object]:
        """The schemas that this one applies to the value, and that it fits."""
        for keyword in ("$ref", "$dynamicRef"):
            if keyword in schema:
                yield self.resolve(schema[keyword])
        for name, each in schema.get("dependentSchemas", {}).items():
            if name in instance:
                yield each
        for keyword in ("allOf", "oneOf", "anyOf"):
            yield from (e for e in schema.get(keyword, ()) if _fits(validator, instance, e))
        if "if" in schema:
            holds = _fits(validator, instance, schema["if"])
            if holds:
                yield schema["if"]
            if (then := "then" if holds else "else") in schema:
                yield schema[then]


def _fits(validator: _Validator, value: object, schema: object) -> bool:
    return next(iter(validator.descend(value, schema)), None) is None


def _distinct_items(
    _validator: object, wanted: object, instance: object, _schema: object
) -> Iterator[ValidationError]:
    """`uniqueItems` in linear time; the library compares each object with each other one."""
    from jsonschema import ValidationError

    if wanted is not True or not isinstance(instance, list | tuple):
        return
    if len({dumps(_order_value(item)) for item in instance}) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _order_value(value: JsonValue) -> JsonValue:
    """A form that is the same for equal values: keys in order, 1 for 1.0."""
    if isinstance(value, Mapping):
        return {key: _order_value(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_order_value(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
