"""What is known of values at a place of a recipe: which paths exist there, and are not null, as
conditions before it say, and what was read without a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Self, TypeAlias

import msgspec
from msgspec import Struct, structs
from msgspec import field as struct_field

from minions.data.errors import Fault
from minions.data.json_values import JsonValue
from minions.recipe.checks.references import AllReadings, Readings
from minions.recipe.drafts import RecipeDraft, StepDraft, TemplateUse
from minions.recipe.expressions.template import Templates
from minions.recipe.expressions.terms import (
    Binary,
    Choice,
    Comparison,
    DefaultFilter,
    DefinedTest,
    FilterTerm,
    Literal,
    Logic,
    Negation,
    Not,
    Path,
    Slice,
    Subscript,
    Term,
)
from minions.recipe.expressions.values import (
    EvaluationError,
    Meter,
    MissingValueError,
    PathPart,
    TemplateError,
    short_path,
)
from minions.recipe.model import ExecutionMode
from minions.recipe.text.nodes import Place
from minions.recipe.text.sections import Report

Condition: TypeAlias = tuple[Term, bool | None]
"""An expression that was evaluated, and whether its value is true; None: that is not known."""
_EQUAL: Final = ("==", "!=")
_NULL_TESTS: Final = ("none", "null")
_ABOUT_TYPES: Final = ("boolean", "float", "integer", "mapping", "number", "sequence", "string")
_LATER: Final = "loop"
"""The root of what is another value at each place."""


class Known(Struct, frozen=True):
    """Paths, in their short form, of which something is known."""

    present: set[tuple[PathPart, ...]] = struct_field(default_factory=set)
    """Those that exist."""
    solid: set[tuple[PathPart, ...]] = struct_field(default_factory=set)
    """Those that exist and are not null."""
    tested: set[tuple[PathPart, ...]] = struct_field(default_factory=set)
    """Those of which it was found out what type they have."""

    @classmethod
    def of(cls, conditions: Iterable[Condition]) -> Self:
        """What follows from conditions."""
        known = cls()
        for term, is_true in conditions:
            known.learn(term, is_true=is_true)
        return known

    def is_present(self, path: tuple[PathPart, ...]) -> bool:
        """Whether that path exists."""
        path = short_path(path)
        return any(each[: len(path)] == path for each in (*self.present, *self.solid))

    def is_solid(self, path: tuple[PathPart, ...]) -> bool:
        """Whether that path exists and is not null: as one does of which a member exists."""
        path = short_path(path)
        if path in self.solid:
            return True
        longer = (each for each in (*self.present, *self.solid) if len(each) > len(path))
        return any(each[: len(path)] == path for each in longer)

    def add(self, other: Known) -> None:
        """Add what is known elsewhere, but for the items of a loop."""
        self.present.update(each for each in other.present if each[0] != _LATER)
        self.solid.update(each for each in other.solid if each[0] != _LATER)
        self.tested.update(each for each in other.tested if each[0] != _LATER)

    def learn(self, term: Term, *, is_true: bool | None) -> None:
        """Add what follows from the evaluation of an expression, which did not fail.

        Args:
            is_true: Whether its value is true; None: that is not known.
        """
        if isinstance(term, Path):
            self._read(term, is_solid=is_true is True)
        elif isinstance(term, DefinedTest):
            if is_true is term.is_wanted:
                self.learn(term.base, is_true=None)
        elif isinstance(term, Not):
            self.learn(term.operand, is_true=None if is_true is None else not is_true)
        elif isinstance(term, Logic):
            self._learn_operands(term, is_true)
        elif isinstance(term, Choice):
            self.learn(term.condition, is_true=None)
        elif isinstance(term, DefaultFilter):
            if is_true is not None:
                self._learn_replaced(term, is_true)
        elif isinstance(term, FilterTerm):
            self._learn_filter(term, is_true)
        elif isinstance(term, Comparison):
            self._learn_comparison(term, is_true)
        else:
            self._learn_parts(term)

    def _read(self, term: Term, *, is_solid: bool) -> None:
        if isinstance(term, Path):
            (self.solid if is_solid else self.present).add(short_path(term.reference.path))

    def _learn_parts(self, term: Term) -> None:
        for part in term.parts():
            self.learn(part, is_true=None)
            self._read(part, is_solid=isinstance(term, Binary | Negation))
        if isinstance(term, Slice | Subscript):
            self._read(term.base, is_solid=True)

    def _learn_operands(self, term: Logic, is_true: bool | None) -> None:
        if is_true is term.is_and:  # each of them has been evaluated, and was no other
            for operand in term.operands:
                self.learn(operand, is_true=is_true)
        else:
            self.learn(term.operands[0], is_true=None)

    def _learn_filter(self, term: FilterTerm, is_true: bool | None) -> None:
        for part in term.parts():
            self.learn(part, is_true=None)
        if term.is_test:
            is_of_type = term.name in _ABOUT_TYPES and is_true is True
            is_no_null = term.name in _NULL_TESTS and is_true is False
            self._read(term.base, is_solid=is_no_null or is_of_type)
            if is_of_type and isinstance(term.base, Path):
                self.tested.add(short_path(term.base.reference.path))
        elif (types := term.built_in) is not None:
            self._read(term.base, is_solid=types.takes is not None)
        if is_true is not None:
            self._learn_replaced(term, is_true)

    def _learn_comparison(self, term: Comparison, is_true: bool | None) -> None:
        name, right = term.others[0]
        for side in (term.first, right):
            self.learn(side, is_true=None)
            self._read(side, is_solid=name[0] in "<>")
        if name in ("in", "not in"):
            self._read(right, is_solid=True)
        if is_true is None or len(term.others) > 1:
            return
        self._learn_replaced(term, is_true)
        for one, other in ((term.first, right), (right, term.first)):
            if name in _EQUAL and isinstance(other, Literal):
                is_same = is_true is (name == "==")
                self._read(one, is_solid=is_same is (other.literal is not None))

    def _learn_replaced(self, term: Term, is_true: bool) -> None:
        """Learn that a value exists, where the condition were not so if its default stood there."""
        for default in _defaults_in(term):
            if _truth_of(_replaced(term, default, default.other)) is (not is_true):
                self.learn(default.base, is_true=None)
                of_null = _truth_of(_replaced(term, default, Literal(None)))
                self._read(default.base, is_solid=of_null is not is_true)


def _defaults_in(term: Term) -> Iterator[DefaultFilter]:
    if isinstance(term, DefaultFilter):
        yield term
        return
    for part in term.parts():
        yield from _defaults_in(part)


def _replaced(term: Term, default: DefaultFilter, by: Term) -> Term:
    """The expression with another one in the place of a value and its default."""
    if term is default:
        return by
    if isinstance(term, Comparison):
        others = tuple((name, _replaced(each, default, by)) for name, each in term.others)
        return structs.replace(term, first=_replaced(term.first, default, by), others=others)
    if isinstance(term, FilterTerm):
        return structs.replace(term, base=_replaced(term.base, default, by))
    return term


def _truth_of(term: Term) -> bool | None:
    """Whether a constant expression is true; None: it is none, or cannot be evaluated."""
    if next(term.references(), None) is not None:
        return None
    try:
        value: JsonValue = term.value({}, Meter())
    except (EvaluationError, MissingValueError):
        return None
    return bool(value)


# --- where each step runs ------------------------------------------------------------------------


class Narrowings(Struct, frozen=True):
    """What is known of values where each step runs; worked out where something may be missing."""

    draft: RecipeDraft
    readings: AllReadings
    known: dict[int, Known] = msgspec.field(default_factory=dict)
    told: set[tuple[int | None, str]] = msgspec.field(default_factory=set)
    """Values of which a step was told that they may be missing: one mistake, one warning."""

    def at(self, use: TemplateUse, reader: StepDraft | None) -> Known:
        """What is known where that template is rendered."""
        if reader is None:
            return self._after(self.readings.output)
        known = Known()
        if reader.condition is not None and use.node is not reader.section.node("when"):
            known.learn(reader.condition, is_true=True)
        if any(use is each for each in reader.repeat_templates):  # after an attempt
            known.solid.add((_LATER, "last"))
        if not self.draft.has_graph:  # a value may be another one when the step runs again
            known.add(self._after(self.readings.steps[reader.index]))
            known.add(self._asserted_before(reader.index))
        return known

    def _after(self, reading: Readings) -> Known:
        """What is known once all steps have completed that are read."""
        found = Known()
        for index in (*reading.needed, *reading.declared) if not self.draft.has_graph else ():
            found.add(self._of(index))
        return found

    def _of(self, index: int) -> Known:
        """What is known once that step has completed: what it read exists."""
        if index not in self.known:
            step = self.draft.steps[index]
            self.known[index] = Known()  # a cycle was reported
            found = self._after(self.readings.steps[index])
            for use in step.outer_templates if step.has_loop else step.all_templates:
                for term in terms_of(use, self.draft.templates):
                    found.learn(term, is_true=True if term is step.condition else None)
            self.known[index] = found
        return self.known[index]

    def _asserted_before(self, index: int) -> Known:
        """What `assert` steps made sure of that always run before it."""
        found = Known()
        if self.draft.mode is not ExecutionMode.SEQUENTIAL:
            return found
        for step in self.draft.steps[:index]:
            if step.kind == "assert" and not step.has_loop and step.condition is None:
                conditions = [(term, True) for term in step.asserted]
                found.add(Known.of(conditions))
        return found

    def is_solid(
        self, term: Term, use: TemplateUse, reader: StepDraft | None, before: Sequence[Condition]
    ) -> bool:
        """Whether the value of an expression, which may be null elsewhere, is not null there."""
        if not isinstance(term, Path):
            return False
        return self.where(use, reader, before).is_solid(term.reference.path)

    def where(
        self, use: TemplateUse, reader: StepDraft | None, before: Sequence[Condition]
    ) -> Known:
        """What is known at a place within an expression, before which others were evaluated."""
        known = self.at(use, reader)
        for term, is_true in before:
            known.learn(term, is_true=is_true)
        return known

    def note_unchecked(self, name: str, fault: Fault) -> None:
        """Nothing says whether a field of that value may be missing; the first fault stays."""
        self.draft.note_unchecked(name, fault)

    def tell(self, reader: StepDraft | None, name: str, fault: Fault, report: Report) -> None:
        """Report that a value may be missing, once for each step that reads it."""
        key = (reader.index if reader is not None else None, name)
        if key not in self.told:
            self.told.add(key)
            report(fault)


def absence_of(place: Place, name: str, message: str, *, is_null: bool = True) -> Fault:
    """The warning about a value that may be null, or missing, with what to write instead."""
    return place.fault(
        "may-be-missing",
        message,
        help=f"say what stands there then: {name} | default('…'{', true' * is_null}); or do "
        f"this only when: {name} {'!= none' if is_null else 'is defined'}",
        is_warning=True,
    )


def terms_of(use: TemplateUse, templates: Templates) -> tuple[Term, ...]:
    """The expressions of a template."""
    if use.term is not None:
        return (use.term,)
    try:
        return tuple(templates.compile(use.node.value).terms())
    except TemplateError:  # reported where the recipe was read
        return ()
