"""Scorers: how well an output is what a case expects, from 0 to 1. They are pure and ask nobody."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

from attrs import field, frozen

from minions.contracts.errors import MinionsError
from minions.contracts.json_values import JsonValue, dumps, parse_json
from minions.contracts.patterns import search
from minions.contracts.schema import JsonSchema, SchemaValidator
from minions.evaluation.cases import Case
from minions.recipe.expressions.template import Condition

__all__ = [
    "Exact",
    "Fields",
    "Holds",
    "Matches",
    "Near",
    "Schema",
    "Score",
    "Scorer",
    "is_same",
    "value_at",
]

_SHOWN: Final = 160


@frozen(kw_only=True)
class Score:
    """What one scorer says of one output."""

    scorer: str
    value: float
    """From 0 to 1."""
    is_passed: bool
    reason: str | None = None
    """Why it did not pass; None: it did."""

    def to_json(self) -> dict[str, JsonValue]:
        """The score as JSON."""
        return {"value": self.value, "passed": self.is_passed, "reason": self.reason}


class Scorer(ABC):
    """Says how well an output is what a case expects."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Unique in an evaluation: `exact`, `number total`."""

    @property
    def needs_expected(self) -> bool:
        """Whether it can only score cases that say what is expected."""
        return False

    @abstractmethod
    def score(self, case: Case, output: JsonValue) -> Score:
        """The score of an output of a run that completed."""

    def _score(self, value: float, reason: str, *, is_passed: bool | None = None) -> Score:
        passed = value >= 1 if is_passed is None else is_passed
        return Score(
            scorer=self.name, value=value, is_passed=passed, reason=None if passed else reason
        )


def is_same(actual: JsonValue, wanted: JsonValue, *, is_text: bool = False) -> bool:
    """Whether two values are equal as JSON: 1 is 1.0, true is not 1.

    Args:
        is_text: Whether a wanted text may stand for another value, as in CSV: `true`, `2.5`.
    """
    if isinstance(actual, Mapping) and isinstance(wanted, Mapping):
        return actual.keys() == wanted.keys() and all(
            is_same(actual[key], wanted[key], is_text=is_text) for key in wanted
        )
    if isinstance(actual, list) and isinstance(wanted, list):
        return len(actual) == len(wanted) and all(
            is_same(one, other, is_text=is_text) for one, other in zip(actual, wanted, strict=True)
        )
    if is_text and isinstance(wanted, str) and not isinstance(actual, str):
        return _stands_for(wanted, actual)
    if isinstance(actual, bool) or isinstance(wanted, bool):
        return actual is wanted
    return actual == wanted


def _stands_for(text: str, actual: JsonValue) -> bool:
    try:
        return is_same(actual, parse_json(text.strip()))
    except ValueError:
        words = {"true": True, "yes": True, "false": False, "no": False}
        return isinstance(actual, bool) and words.get(text.strip().casefold()) is actual


def value_at(output: JsonValue, path: str) -> JsonValue:
    """The value under a path of keys and indexes: `items.0.name`; null where there is none."""
    found = output
    for part in path.split(".") if path else ():
        if isinstance(found, Mapping):
            found = found.get(part)
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


@frozen(kw_only=True)
class Exact(Scorer):
    """The output, or the value under a path of it, is what is expected."""

    of: str = ""

    @property
    def name(self) -> str:
        return f"exact {self.of}".rstrip()

    @property
    def needs_expected(self) -> bool:
        return True

    def score(self, case: Case, output: JsonValue) -> Score:
        wanted = value_at(case.wanted, self.of)
        actual = value_at(output, self.of)
        right = is_same(actual, wanted, is_text=case.is_text)
        return self._score(float(right), f"{_short(actual)} is not {_short(wanted)}")


@frozen(kw_only=True)
class Fields(Scorer):
    """The share of expected fields that the output has; it passes where all are right."""

    names: tuple[str, ...] = ()
    """Paths of the fields; empty: those of the expected object."""

    @property
    def name(self) -> str:
        return "fields"

    @property
    def needs_expected(self) -> bool:
        return True

    def score(self, case: Case, output: JsonValue) -> Score:
        expected = case.wanted
        if not self.names and not (isinstance(expected, Mapping) and expected):
            right = is_same(output, expected, is_text=case.is_text)
            return self._score(float(right), f"{_short(output)} is not {_short(expected)}")
        paths = self.names or (tuple(expected) if isinstance(expected, Mapping) else ())
        wrong = [
            f"{path}: {_short(value_at(output, path))} is not {_short(value_at(expected, path))}"
            for path in paths
            if not is_same(value_at(output, path), value_at(expected, path), is_text=case.is_text)
        ]
        return self._score(1 - len(wrong) / len(paths), "; ".join(wrong))


@frozen(kw_only=True)
class Matches(Scorer):
    """The text of the output, or under a path of it, has a match of a pattern."""

    pattern: str
    of: str = ""

    @property
    def name(self) -> str:
        return f"regex {self.of}".rstrip()

    def score(self, case: Case, output: JsonValue) -> Score:
        found = value_at(output, self.of)
        text = found if isinstance(found, str) else dumps(found)
        try:
            right = search(self.pattern, text) is not None
        except TimeoutError:
            return self._score(0.0, f"looking for {self.pattern} took too long")
        return self._score(float(right), f"{_short(found)} has no match of {self.pattern}")


@frozen(kw_only=True)
class Near(Scorer):
    """The number of the output, or under a path of it, is near the expected one."""

    within: float
    """The largest difference; a share of the expected number where `is_share` is true."""
    is_share: bool = False
    of: str = ""

    @property
    def name(self) -> str:
        return f"number {self.of}".rstrip()

    @property
    def needs_expected(self) -> bool:
        return True

    def score(self, case: Case, output: JsonValue) -> Score:
        actual = _number(value_at(output, self.of), is_text=True)
        wanted = _number(value_at(case.wanted, self.of), is_text=case.is_text)
        if actual is None or wanted is None:
            told = f"{_short(value_at(output, self.of))} against {_short(case.wanted)}"
            return self._score(0.0, f"no two numbers: {told}")
        most = self.within * abs(wanted) if self.is_share else self.within
        right = abs(actual - wanted) <= most
        return self._score(float(right), f"{actual:g} is not within {most:g} of {wanted:g}")


@frozen(kw_only=True)
class Schema(Scorer):
    """The output, or the value under a path of it, fits a JSON Schema."""

    validator: SchemaValidator
    of: str = ""

    @property
    def name(self) -> str:
        return f"schema {self.of}".rstrip()

    def score(self, case: Case, output: JsonValue) -> Score:
        errors = self.validator.errors(value_at(output, self.of))
        return self._score(float(not errors), "; ".join(errors)[:_SHOWN])

    @classmethod
    def of_schema(cls, schema: JsonSchema, of: str) -> Schema:
        """The scorer of a schema that was checked."""
        return cls(validator=SchemaValidator(schema), of=of)


@frozen(kw_only=True)
class Holds(Scorer):
    """A condition over `output`, `expected` and `inputs` holds."""

    text: str
    condition: Condition = field(repr=False, eq=False)

    @property
    def name(self) -> str:
        return f"holds {self.text}"[:80]

    def score(self, case: Case, output: JsonValue) -> Score:
        values = {"output": output, "expected": case.wanted, "inputs": case.plain_inputs}
        try:
            right = self.condition.holds(values)
        except MinionsError as error:
            return self._score(0.0, error.message)
        return self._score(float(right), f"it does not hold; the output is {_short(output)}")


def _number(value: JsonValue, *, is_text: bool) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if math.isfinite(value) else None
    if is_text and isinstance(value, str):
        try:
            read = parse_json(value.strip())
        except ValueError:
            return None
        return _number(read, is_text=False)
    return None


def _short(value: JsonValue) -> str:
    text = dumps(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
