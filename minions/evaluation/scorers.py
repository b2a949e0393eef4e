"""Scorers: how well an output is what a case expects, from 0 to 1. They are pure and ask nobody."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from attrs import field, frozen

from minions.data.errors import MinionsError
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.data.patterns import search
from minions.data.schema import JsonSchema, SchemaValidator
from minions.evaluation.cases import NOT_GIVEN, TRUTH_WORDS, Case, CaseRow, NotGiven
from minions.recipe.expressions.template import Condition
from minions.recipe.expressions.values import PathPart

Parts: TypeAlias = tuple[PathPart, ...]
"""A path as its keys and indexes; () is the whole."""
ROOTS: Final = ("output", "expected", "inputs")
"""The names that a condition may read."""
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

    @property
    def output_paths(self) -> Sequence[Parts]:
        """Paths of the output that it reads; an output that cannot have them is never passed."""
        return ()

    @property
    def expected_paths(self) -> Sequence[Parts]:
        """Paths of what is expected that every case must have."""
        return ()

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
        is_text: Whether a wanted text may stand for another value, as in CSV where nothing is
            known of the output: `true`, `2.5`.
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
        return isinstance(actual, bool) and TRUTH_WORDS.get(text.strip().casefold()) is actual


def parts_of_path(path: str) -> Parts:
    """The keys and indexes of a path: `items.0.name`."""
    return tuple(path.split(".")) if path else ()


def value_at(value: JsonValue, path: str) -> JsonValue | NotGiven:
    """The value under a path of keys and indexes: `items.0.name`; NOT_GIVEN where there is none.

    A key that has the dots itself counts first.
    """
    found = value
    parts = path.split(".") if path else []
    for at, part in enumerate(parts):
        if isinstance(found, Mapping):
            rest = ".".join(parts[at:])
            if rest in found:
                return found[rest]
            if part not in found:
                return NOT_GIVEN
            found = found[part]
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return NOT_GIVEN
    return found


def _compare_path(case: Case, output: JsonValue, path: str) -> str | None:
    """Why the value under a path is not what is expected; None: it is.

    A null that is expected may also be missing in the output.
    """
    wanted, actual = value_at(case.wanted, path), value_at(output, path)
    if isinstance(wanted, NotGiven):
        return (
            f"neither the output nor what is expected has '{path}'"
            if isinstance(actual, NotGiven)
            else f"what is expected does not say '{path}'"
        )
    if isinstance(actual, NotGiven):
        return None if wanted is None else f"the output has no '{path}', and not {_short(wanted)}"
    if is_same(actual, wanted, is_text=case.is_text):
        return None
    return f"{_short(actual)} is not {_short(wanted)}"


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

    @property
    def output_paths(self) -> Sequence[Parts]:
        return _below(self.of)

    @property
    def expected_paths(self) -> Sequence[Parts]:
        return _below(self.of)

    def score(self, case: Case, output: JsonValue) -> Score:
        wrong = _compare_path(case, output, self.of)
        return self._score(float(wrong is None), wrong or "")


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

    @property
    def output_paths(self) -> Sequence[Parts]:
        return [parts_of_path(name) for name in self.names]

    @property
    def expected_paths(self) -> Sequence[Parts]:
        return [parts_of_path(name) for name in self.names]

    def compared(self, case: Case) -> Sequence[str]:
        """The paths that are compared in a case; an empty one is the whole."""
        return self.names or case.expected_fields or ("",)

    def score(self, case: Case, output: JsonValue) -> Score:
        paths = self.compared(case)
        wrong = [
            f"{path}: {why}" if path else why
            for path in paths
            if (why := _compare_path(case, output, path)) is not None
        ]
        return self._score(1 - len(wrong) / len(paths), "; ".join(wrong))


@frozen(kw_only=True)
class Matches(Scorer):
    """The text of the output, or under a path of it, has a match of a pattern."""

    pattern: str
    of: str = ""
    label: str | None = None
    """Its name; None: made of what it says."""

    @property
    def name(self) -> str:
        return self.label or f"regex {self.of}".rstrip()

    @property
    def output_paths(self) -> Sequence[Parts]:
        return _below(self.of)

    def score(self, case: Case, output: JsonValue) -> Score:
        found = value_at(output, self.of)
        if isinstance(found, NotGiven):
            return self._score(0.0, _lacks(self.of))
        if found is None:
            return self._score(0.0, "it is null, which is no text")
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
    label: str | None = None
    """Its name; None: made of what it says."""

    @property
    def name(self) -> str:
        return self.label or f"number {self.of}".rstrip()

    @property
    def needs_expected(self) -> bool:
        return True

    @property
    def output_paths(self) -> Sequence[Parts]:
        return _below(self.of)

    @property
    def expected_paths(self) -> Sequence[Parts]:
        return _below(self.of)

    def score(self, case: Case, output: JsonValue) -> Score:
        found, told = value_at(output, self.of), value_at(case.wanted, self.of)
        if isinstance(found, NotGiven):
            return self._score(0.0, _lacks(self.of))
        if isinstance(told, NotGiven):
            return self._score(0.0, f"what is expected does not say '{self.of}'")
        actual, wanted = _number(found, is_text=True), _number(told, is_text=True)
        if actual is None or wanted is None:
            return self._score(0.0, f"no two numbers: {_short(found)} against {_short(told)}")
        most = self.within * abs(wanted) if self.is_share else self.within
        right = abs(actual - wanted) <= most
        return self._score(float(right), f"{actual:g} is not within {most:g} of {wanted:g}")


@frozen(kw_only=True)
class Schema(Scorer):
    """The output, or the value under a path of it, fits a JSON Schema."""

    validator: SchemaValidator
    of: str = ""
    label: str | None = None
    """Its name; None: made of what it says."""

    @property
    def name(self) -> str:
        return self.label or f"schema {self.of}".rstrip()

    @property
    def output_paths(self) -> Sequence[Parts]:
        return _below(self.of)

    def score(self, case: Case, output: JsonValue) -> Score:
        found = value_at(output, self.of)
        if isinstance(found, NotGiven):
            return self._score(0.0, _lacks(self.of))
        errors = self.validator.errors(found)
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
    label: str | None = None
    """Its name; None: made of what it says."""

    @property
    def name(self) -> str:
        return self.label or f"holds {self.text}"[:80]

    @property
    def output_paths(self) -> Sequence[Parts]:
        return list(self._paths("output"))

    @property
    def expected_paths(self) -> Sequence[Parts]:
        return list(self._paths("expected", is_needed=True))

    @property
    def input_names(self) -> Sequence[str]:
        """The inputs that it reads."""
        return [str(path[0]) for path in self._paths("inputs")]

    def _paths(self, root: str, *, is_needed: bool = False) -> Iterator[Parts]:
        """What it reads below a root.

        Args:
            is_needed: Only what it reads always, and what may not be missing.
        """
        for each in self.condition.references:
            may_be_missing = each.is_guarded or each.is_conditional
            if each.path[0] == root and len(each.path) > 1 and not (is_needed and may_be_missing):
                yield each.path[1:]

    def score(self, case: Case, output: JsonValue) -> Score:
        values = {"output": output, "expected": case.wanted, "inputs": case.plain_inputs}
        try:
            right = self.condition.holds(values)
        except MinionsError as error:
            return self._score(0.0, error.message)
        return self._score(float(right), f"it does not hold; the output is {_short(output)}")


def _below(path: str) -> Sequence[Parts]:
    return [parts_of_path(path)] if path else []


def _lacks(path: str) -> str:
    return f"the output has no '{path}'"


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


# --- evaluation suites ---------------------------------------------------------------------------


@frozen(kw_only=True)
class GradedBy:
    """A model grades the output by a rubric, from 0 to 1."""

    rubric: str
    """What a good output is, in words."""
    model: str | None = None
    """`provider/name`; None: the configured one."""
    at_least: float = 0.7
    """The grade from which it passes."""

    @property
    def name(self) -> str:
        """Unique in an evaluation."""
        return f"graded {self.rubric}"[:80]


@frozen(kw_only=True)
class ToolScorer:
    """A registered tool scores the output: Python of the operator's.

    It is called with `output`, `expected` and `inputs`, and returns true or false, a number from 0
    to 1, or `{score, reason}`.
    """

    tool: str

    @property
    def name(self) -> str:
        """Unique in an evaluation."""
        return f"tool {self.tool}"


AnyScorer: TypeAlias = Scorer | GradedBy | ToolScorer


@frozen(kw_only=True)
class Suite:
    """An evaluation as its author wrote it; what a command says wins."""

    file: str
    """Where it was read; for messages."""
    folder: Path
    """Where its relative paths start."""
    recipe: str | None = None
    """Path or id of the recipe; None: the command names it."""
    against: tuple[str, ...] = ()
    """Further recipes, or versions of it, that are asked the same."""
    data: str | None = None
    """A file of cases; None: `rows` has them."""
    rows: tuple[CaseRow, ...] = ()
    models: tuple[str, ...] = ()
    """`provider/name` each; empty: the recipe's own."""
    samples: int = 1
    """How often each case is asked."""
    inputs: Mapping[str, JsonValue] = field(factory=dict)
    """Inputs of every case that does not give them itself."""
    scorers: tuple[AnyScorer, ...] = ()
    """Empty: the expected fields must be right."""
    at_least: float | None = None
    """The pass rate that each variant must reach; None: any will do."""
