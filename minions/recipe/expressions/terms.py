"""The nodes of an expression: each evaluates itself in a scope and lists what it reads.

They are parsed in `syntax`; operators are functions in `operators`, filters and tests in `filters`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from minions.data.json_values import JsonValue
from minions.recipe.expressions.values import (
    MISSING,
    EvaluationError,
    Meter,
    MissingValueError,
    PathPart,
    Reference,
    Scope,
    as_text,
    is_list,
    is_number,
    look_up,
    names_in,
    resolve,
    size_of,
    type_name,
)

if TYPE_CHECKING:
    from minions.recipe.expressions.filters import Filter


class Term(Struct, frozen=True, gc=False):
    """A node of an expression."""

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        """The value in that scope.

        Args:
            meter: Counts the operations of the whole rendering.
        Raises:
            ExpressionBudgetError: It takes too many.
            MissingValueError: A path does not exist.
            EvaluationError: A value has the wrong type.
        """
        raise NotImplementedError

    def parts(self) -> Iterator[Term]:
        """The direct sub-terms."""
        return iter(())

    def references(self) -> Iterator[Reference]:
        """Every path that evaluation may read, in the order of the text."""
        for part in self.parts():
            yield from part.references()


class Literal(Term, frozen=True):
    """A constant."""

    literal: JsonValue

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        return self.literal


class Path(Term, frozen=True):
    """A path of names and indices that are constant."""

    reference: Reference

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        """The value itself, not a copy."""
        return resolve(self.reference.path, scope)

    def references(self) -> Iterator[Reference]:
        yield self.reference


class Subscript(Term, frozen=True):
    """`base[key]` where the key is computed, or the base is not a path."""

    base: Term
    key: Term

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        base, key = self.base.value(scope, meter), self.key.value(scope, meter)
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise EvaluationError(f"A {type_name(key)} is not a key: {as_text(key):.60}.")
        found = look_up(base, key)
        if found is MISSING:
            path = (*_known_path(self.base), key)
            names = names_in(base)
            raise MissingValueError(path, depth=len(path) - 1, names=names)
        return found

    def parts(self) -> Iterator[Term]:
        yield from (self.base, self.key)


def _known_path(base: Term) -> tuple[PathPart, ...]:
    known = next(base.references(), None)
    return known.path if known else ("(value)",)


class Slice(Term, frozen=True):
    """`base[start:stop]`."""

    base: Term
    start: Term
    stop: Term

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        base = self.base.value(scope, meter)
        ends = slice(_end(self.start.value(scope, meter)), _end(self.stop.value(scope, meter)))
        meter.charge(size_of(base))
        if is_list(base):
            return list(base[ends])
        if isinstance(base, str):
            return base[ends]
        raise EvaluationError(f"Only lists and texts can be sliced, not a {type_name(base)}.")

    def parts(self) -> Iterator[Term]:
        yield from (self.base, self.start, self.stop)


def _end(value: JsonValue) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise EvaluationError(f"The ends of a slice are whole numbers, not a {type_name(value)}.")


class ListTerm(Term, frozen=True):
    """`[a, b]`."""

    items: tuple[Term, ...]

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        return [item.value(scope, meter) for item in self.items]

    def parts(self) -> Iterator[Term]:
        return iter(self.items)


class DictTerm(Term, frozen=True):
    """`{'a': b}`."""

    entries: tuple[tuple[str, Term], ...]

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        return {key: term.value(scope, meter) for key, term in self.entries}

    def parts(self) -> Iterator[Term]:
        return (term for _, term in self.entries)


class Not(Term, frozen=True):
    """`not a`."""

    operand: Term

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        """True where the operand is empty, zero, null or false."""
        return not self.operand.value(scope, meter)

    def parts(self) -> Iterator[Term]:
        yield self.operand


class Negation(Term, frozen=True):
    """`-a`."""

    operand: Term

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        operand = self.operand.value(scope, meter)
        if not is_number(operand):
            raise EvaluationError(f"'-' takes a number, not a {type_name(operand)}.")
        return -operand

    def parts(self) -> Iterator[Term]:
        yield self.operand


class Logic(Term, frozen=True):
    """`a and b and c`, or the same with `or`; the value is the deciding operand, as in Python."""

    is_and: bool
    operands: tuple[Term, ...]

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        """Operands after the deciding one are not evaluated."""
        value: JsonValue = None
        for operand in self.operands:
            value = operand.value(scope, meter)
            if bool(value) is not self.is_and:
                break
        return value

    def parts(self) -> Iterator[Term]:
        return iter(self.operands)

    def references(self) -> Iterator[Reference]:
        """References of later operands are conditional, and guarded
        by tests in earlier operands.
        """
        tested: set[str] = set()
        for number, operand in enumerate(self.operands):
            found = list(operand.references())
            yield from (_behind(reference, tested) for reference in found) if number else found
            tested.update(_find_tested(found))


class Choice(Term, frozen=True):
    """`a if condition else b`."""

    condition: Term
    yes: Term
    no: Term

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        """Only the chosen side is evaluated."""
        return (self.yes if self.condition.value(scope, meter) else self.no).value(scope, meter)

    def parts(self) -> Iterator[Term]:
        yield from (self.yes, self.condition, self.no)

    def references(self) -> Iterator[Reference]:
        """References of both sides are conditional, and guarded if the
        condition tests for that step.
        """
        has_test = bool(_find_tested(self.condition.references()))
        sides = [
            _find_guarded(side) if has_test else side.references() for side in (self.yes, self.no)
        ]
        yield from (_behind(reference, ()) for reference in sides[0])
        yield from self.condition.references()
        yield from (_behind(reference, ()) for reference in sides[1])


class Comparison(Term, frozen=True):
    """`a < b <= c`: true if every neighbouring pair is."""

    first: Term
    others: tuple[tuple[str, Term], ...]

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        from minions.recipe.expressions.operators import COMPARISONS

        left = self.first.value(scope, meter)
        for name, term in self.others:
            right = term.value(scope, meter)
            if not COMPARISONS[name](left, right, meter):
                return False
            left = right
        return True

    def parts(self) -> Iterator[Term]:
        yield self.first
        yield from (term for _, term in self.others)


class Binary(Term, frozen=True):
    """`a + b - c`: operators of one precedence, evaluated from left to right."""

    first: Term
    others: tuple[tuple[str, Term], ...]

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        """A number; or a text or list for `+` of these."""
        from minions.recipe.expressions.operators import combined

        value = self.first.value(scope, meter)
        for name, term in self.others:
            value = combined(name, value, term.value(scope, meter), meter)
        return value

    def parts(self) -> Iterator[Term]:
        yield self.first
        yield from (term for _, term in self.others)


class FilterTerm(Term, frozen=True):
    """`base|name(arguments)` or `base is name(arguments)`; its arguments
    were checked by the parser.
    """

    base: Term
    name: str
    function: Callable[..., JsonValue]
    """Called with the meter, then the values."""
    arguments: tuple[Term, ...] = ()
    keywords: tuple[tuple[str, Term], ...] = ()

    @property
    def built_in(self) -> Filter | None:
        """What the filter takes and gives; None: it is a test, or the operator's own."""
        from minions.recipe.expressions.filters import FILTER_TYPES

        found = FILTER_TYPES.get(self.name)
        return found if found is not None and found.function is self.function else None

    @property
    def is_test(self) -> bool:
        """Whether it is a test, such as `is number`."""
        from minions.recipe.expressions.filters import TESTS

        return TESTS.get(self.name) is self.function

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        base = self.base.value(scope, meter)
        arguments = [term.value(scope, meter) for term in self.arguments]
        keywords = {name: term.value(scope, meter) for name, term in self.keywords}
        try:
            return self.function(meter, base, *arguments, **keywords)
        except EvaluationError:
            raise
        except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
            # Filters are plain functions: they raise these for values of the wrong type.
            raise EvaluationError(
                f"The filter '{self.name}' cannot take this {type_name(base)}: {error}."
            ) from error

    def parts(self) -> Iterator[Term]:
        yield self.base
        yield from self.arguments
        yield from (term for _, term in self.keywords)


class DefaultFilter(Term, frozen=True):
    """`base|default(other, also_empty)`: `other` where the base is missing."""

    base: Term
    other: Term
    also_empty: Term

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        """Null is not missing; with `also_empty`, an empty value is replaced too."""
        try:
            value = self.base.value(scope, meter)
        except MissingValueError:
            return self.other.value(scope, meter)
        if not value and self.also_empty.value(scope, meter):
            return self.other.value(scope, meter)
        return value

    def parts(self) -> Iterator[Term]:
        yield from (self.base, self.other, self.also_empty)

    def references(self) -> Iterator[Reference]:
        """References of the base are guarded; so are those of `other`
        that replace a step's value.
        """
        base = list(_find_guarded(self.base))
        yield from base
        if any(reference.path[0] not in _NO_STEPS for reference in base):
            yield from _find_guarded(self.other)
        else:
            yield from (_behind(reference, ()) for reference in self.other.references())
        yield from self.also_empty.references()


class DefinedTest(Term, frozen=True):
    """`base is defined`."""

    base: Term
    is_wanted: bool

    def value(self, scope: Scope, meter: Meter) -> JsonValue:
        """Whether the base exists; null exists."""
        try:
            self.base.value(scope, meter)
        except MissingValueError:
            return not self.is_wanted
        return self.is_wanted

    def parts(self) -> Iterator[Term]:
        yield self.base

    def references(self) -> Iterator[Reference]:
        """All references are guarded: the values may be missing."""
        return _find_guarded(self.base)


_NO_STEPS: Final = ("inputs", "run", "loop", "env")


def _find_guarded(term: Term) -> Iterator[Reference]:
    return (structs.replace(reference, is_guarded=True) for reference in term.references())


def _behind(reference: Reference, tested: Container[str]) -> Reference:
    """The reference, conditional now; guarded too if its step was tested before."""
    is_guarded = reference.is_guarded or reference.step_name in tested
    return structs.replace(reference, is_guarded=is_guarded, is_conditional=True)


def _find_tested(references: Iterable[Reference]) -> set[str]:
    """The steps that are tested for having left a value."""
    return {
        reference.step_name
        for reference in references
        if (reference.is_guarded or reference.is_status) and reference.path[0] not in _NO_STEPS
    }
