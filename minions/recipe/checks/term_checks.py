"""Checks inside of expressions: the types that filters and operators take, values that may be
missing or null where they are read, the names of tests, and what stands for one of a few values.
Members that can never exist are reported in `references`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from minions.data.json_values import JsonValue, dumps
from minions.recipe.checks.narrowing import Condition, Narrowings, absence_of, terms_of
from minions.recipe.checks.shapes import Shape, find_dead_end, find_gaps, kind_names
from minions.recipe.checks.sources import TEXT, Sources, applied_filter, member_path
from minions.recipe.drafts import RecipeDraft, StepDraft, TemplateUse
from minions.recipe.expressions.terms import (
    Binary,
    Choice,
    Comparison,
    DefaultFilter,
    DefinedTest,
    DictTerm,
    FilterTerm,
    ListTerm,
    Literal,
    Logic,
    Negation,
    Path,
    Slice,
    Subscript,
    Term,
)
from minions.recipe.expressions.values import PathPart, path_text, short_path
from minions.recipe.text.nodes import Place
from minions.recipe.text.sections import Report, suggestion

if TYPE_CHECKING:
    from minions.recipe.expressions.filters import Filter

_TESTS_OF_EQUAL: Final = frozenset({"eq", "equalto", "ne", "in"})
_WITH_TESTS: Final = {"select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}
"""Filters that take the name of a test, and which of their arguments it is."""


_OF_TEXT: Final = frozenset({"string"})
_OF_NUMBERS: Final = frozenset({"integer", "number"})
_OF_LISTS: Final = frozenset({"array"})
_CUT: Final = frozenset({"array", "string"})
_HOLDERS: Final = frozenset({"array", "object", "string"})
_FAMILIES: Final = (_OF_NUMBERS, _OF_TEXT, _OF_LISTS)
_TWO: Final = {"+": "two numbers, two texts or two lists"}
_ORDERS: Final = ("<", "<=", ">", ">=")
_NULL: Final = frozenset({"null"})


def check_terms(
    draft: RecipeDraft, sources: Sources, narrowings: Narrowings, report: Report
) -> None:
    """Report what no expression of the recipe can find, take or equal, and warn of what may be
    missing or null where it is read.
    """
    for step in draft.steps:
        for use in step.all_templates:
            _Uses(sources, use, step, report, narrowings).check()
    for use in draft.output_templates:
        _Uses(sources, use, None, report, narrowings).check()


class _Uses(Struct, frozen=True):
    sources: Sources
    use: TemplateUse
    reader: StepDraft | None
    report: Report
    narrowings: Narrowings

    def check(self) -> None:
        for term in terms_of(self.use, self.sources.templates):
            self._check(term, (), is_guarded=False)

    def _check(self, term: Term, before: tuple[Condition, ...], *, is_guarded: bool) -> None:
        """Check an expression and its parts.

        Args:
            before: What was found true or false before this part is evaluated.
            is_guarded: Whether something stands in where the value is missing.
        """
        if isinstance(term, Path) and not is_guarded:
            rooted = self.sources.rooted(term.reference, self.reader)
            if rooted is not None and not self._is_its_own(term):
                known, start = rooted
                self._check_gaps(term, known.shape, term.reference.path, start, before)
        elif isinstance(term, FilterTerm):
            self._check_applied(term, before, is_guarded=is_guarded)
        elif isinstance(term, Subscript):
            self._check_subscript(term, before, is_guarded=is_guarded)
        elif isinstance(term, Comparison):
            sides = (term.first, *(side for _, side in term.others))
            for (left, right), (name, _) in zip(pairwise(sides), term.others, strict=True):
                self._check_comparison(left, name, right, before)
        elif isinstance(term, Binary):
            left = term.first
            for name, right in term.others:
                self._check_pair(left, name, right, before)
                left = Binary(left, ((name, right),))
        elif isinstance(term, Negation):
            self._takes(term.operand, _OF_NUMBERS, "'-'", before)
        elif isinstance(term, Slice):
            self._takes(term.base, _CUT, "a slice", before)
        for part, holds, is_safe in _parts_of(term):
            self._check(part, (*before, *holds), is_guarded=is_guarded or is_safe)

    def _is_its_own(self, term: Path) -> bool:
        """Whether it reads what the step itself gave at its last attempt."""
        reader = self.reader
        return reader is not None and term.reference.step_name in (reader.id, reader.save_as)

    # --- what may be missing -----------------------------------------------------------------

    def _check_gaps(
        self,
        term: Term,
        shape: Shape,
        path: tuple[PathPart, ...],
        start: int,
        before: tuple[Condition, ...],
    ) -> None:
        """Warn of the first part of the path that may be missing where it is read."""
        for gap in find_gaps(shape, path[start:]):
            here = path[: start + gap.depth]
            known = self.narrowings.where(self.use, self.reader, before)
            if known.is_solid(here) if gap.is_null else known.is_present(here):
                continue
            if find_dead_end(shape, path[start:]) is not None:
                return  # which was reported
            name = path_text(here)
            message = f"'{name}' may be missing: its type does not require it"
            if gap.is_null:
                message = f"'{name}' may be null, which has no '{path[len(here)]!s:.60}'"
            fault = absence_of(self._place_of(term), name, message, is_null=gap.is_null)
            if gap.is_told:
                self.narrowings.tell(self.reader, name, fault, self.report)
            else:
                self.narrowings.note_unchecked(name, fault)
            return

    def _place_of(self, term: Term) -> Place:
        return self.use.place_of(next(term.references(), None))

    # --- what filters and operators take ------------------------------------------------------

    def _takes(
        self,
        term: Term,
        kinds: frozenset[str],
        owner: str,
        before: tuple[Condition, ...],
        wanted: str = "",
    ) -> None:
        """Check a value that has to be of one of these types."""
        shape = self._shape(term)
        given = shape.kinds()
        if given is None:
            return
        why = f"{owner} takes {wanted or kind_names(kinds)}"
        if not given & kinds:
            self._report_mismatch(term, why, shape)
            return
        if given >= _NULL and not kinds >= _NULL:
            self._check_null(term, why, before)
        others = given - kinds - _NULL
        if others - (_OF_NUMBERS if kinds & _OF_NUMBERS else _NULL):
            self._check_others(term, why, others, before)

    def _check_others(
        self, term: Term, why: str, others: frozenset[str], before: tuple[Condition, ...]
    ) -> None:
        """Warn of a value that may have another type, unless a condition has asked which."""
        if isinstance(term, Path):
            known = self.narrowings.where(self.use, self.reader, before)
            if short_path(term.reference.path) in known.tested:
                return
        message = f"{why}, but {_named(term)} may be {kind_names(others)}"
        self.report(self._place_of(term).fault("type-mismatch", message, is_warning=True))

    def _check_null(self, term: Term, why: str, before: tuple[Condition, ...]) -> None:
        if self.narrowings.is_solid(term, self.use, self.reader, before):
            return
        name = path_text(term.reference.path) if isinstance(term, Path) else "this"
        message = f"{_named(term)} may be null: {why}"
        fault = absence_of(self._place_of(term), name, message)
        self.narrowings.tell(self.reader, name, fault, self.report)

    def _report_mismatch(self, term: Term, why: str, shape: Shape) -> None:
        message = f"{why}, but {_named(term)} is {shape.in_words()}"
        self.report(self._place_of(term).fault("type-mismatch", message))

    def _check_applied(
        self, term: FilterTerm, before: tuple[Condition, ...], *, is_guarded: bool
    ) -> None:
        owner = f"'{term.name}'"
        if (types := term.built_in) is not None:
            self._check_filter(term)
            if types.takes is not None:
                self._takes(term.base, types.takes, owner, before)
            for argument, kind in zip(term.arguments, types.arguments, strict=False):
                self._takes(argument, frozenset({kind}) | _NULL, f"an argument of {owner}", before)
            self._check_items(term, types, before, is_guarded=is_guarded)
        elif term.is_test:
            from minions.recipe.expressions.filters import TESTS_TAKE

            if (kinds := TESTS_TAKE.get(term.name)) is not None:
                self._takes(term.base, kinds, owner, before)
            if term.name in _TESTS_OF_EQUAL and term.arguments:
                self._check_choice(term.base, term.arguments[0])

    def _check_items(
        self, term: FilterTerm, types: Filter, before: tuple[Condition, ...], *, is_guarded: bool
    ) -> None:
        """Check what a filter does with each item of a list."""
        base = self._shape(term.base)
        if base.kinds() is None:
            return
        items, path = base.items() if base.kinds() == _OF_LISTS else TEXT, member_path(term)
        if path and not is_guarded:
            self._check_gaps(term, items, ("an item", *path), 1, before)
        applied = applied_filter(term)
        wanted = applied.takes if applied is not None else types.takes_items
        kinds = items.at(path).kinds()
        if wanted is None or kinds is None:
            return
        name = applied.name if applied is not None else term.name
        if not kinds & wanted:
            message = f"'{name}' takes {kind_names(wanted)} as an item"
            self._report_mismatch(term.base, message, base)
        elif kinds >= _NULL:
            named = f"an item of {_named(term.base)}"
            fault = self._place_of(term.base).fault(
                "may-be-missing",
                f"{named} may be null: '{name}' takes {kind_names(wanted)}",
                help=f"leave these out first: | select | {term.name}",
                is_warning=True,
            )
            self.narrowings.tell(self.reader, named, fault, self.report)

    def _check_subscript(
        self, term: Subscript, before: tuple[Condition, ...], *, is_guarded: bool
    ) -> None:
        if isinstance(term.base, DictTerm):
            self._check_keys(term.base, term.key)
        elif (path := member_path(term)) and not is_guarded:
            self._check_gaps(term, self._shape(term.base), ("this value", *path), 1, before)

    def _check_comparison(
        self, left: Term, name: str, right: Term, before: tuple[Condition, ...]
    ) -> None:
        if name in _ORDERS:
            self._check_pair(left, name, right, before)
            return
        self._check_choice(left, right)
        self._check_choice(right, left)
        if name in ("in", "not in"):
            self._takes(right, _HOLDERS, f"'{name}'", before)
            if self._shape(right).kinds() == _OF_TEXT:
                self._takes(left, _OF_TEXT, f"'{name}' a text", before)
            return
        one, other = self._shape(left), self._shape(right)
        kinds = (one.kinds() or _NULL, other.kinds() or _NULL)
        if not any(each >= _NULL for each in kinds) and not _widened(kinds[0]) & _widened(kinds[1]):
            told, second = (left, right) if not isinstance(left, Literal) else (right, left)
            self._report_mismatch(
                told,
                f"this is never equal: {_named(second)} is {self._shape(second).in_words()}",
                self._shape(told),
            )

    def _check_pair(
        self, left: Term, name: str, right: Term, before: tuple[Condition, ...]
    ) -> None:
        """Check the two values of an operator that takes two of a kind."""
        if name == "~":
            return
        families = _FAMILIES if name == "+" else _FAMILIES[: 2 if name in _ORDERS else 1]
        kinds = frozenset[str]().union(*families)
        words = "two numbers, two texts or two lists" if name == "+" else "two numbers or two texts"
        words = words if name in _TWO or name in _ORDERS else "numbers"
        shapes = self._shape(left), self._shape(right)
        given = [shape.kinds() for shape in shapes]
        for side, known in zip((left, right), given, strict=True):
            self._takes(side, kinds, f"'{name}'", before, words)
            if known is not None and not known & kinds:
                return
        one, other = given
        if one is None or other is None:
            return
        if not any(one & family and other & family for family in families):
            named = f"{_named(left)} is {shapes[0].in_words()}"
            self._report_mismatch(right, f"'{name}' takes {words}: {named}", shapes[1])
        elif sum(bool((one | other) & family) for family in families) > 1:
            message = f"'{name}' takes {words}: {_named(left)} is {shapes[0].in_words()}, and "
            message += f"{_named(right)} is {shapes[1].in_words()}"
            self.report(self._place_of(right).fault("type-mismatch", message, is_warning=True))

    def _check_filter(self, term: FilterTerm) -> None:
        at = _WITH_TESTS.get(term.name)
        name = term.arguments[at] if at is not None and len(term.arguments) > at else None
        if not isinstance(name, Literal) or not isinstance(name.literal, str):
            return
        from minions.recipe.expressions.filters import TESTS

        path = member_path(term)
        if name.literal not in TESTS:
            names = tuple(sorted(TESTS))
            self.report(
                self._place(name.literal).fault(
                    "bad-template",
                    f"there is no test '{name.literal:.40}'",
                    label=suggestion(name.literal, names),
                    help=f"tests are: {', '.join(names)}",
                )
            )
        elif name.literal in _TESTS_OF_EQUAL and path:
            for other in term.arguments[2:3]:
                owner = f"'{'.'.join(map(str, path))}'"
                self._compare(self._shape(term.base).items().at(path), other, owner)

    def _check_keys(self, base: DictTerm, key: Term) -> None:
        """Check the keys of a mapping that is written there and read by one of a few values."""
        choices = self._shape(key).choices()
        for name, _ in base.entries if choices is not None else ():
            if choices is not None and name not in choices:
                self._no_choice(name, choices, "the key of this mapping")

    def _check_choice(self, value: Term, other: Term) -> None:
        if not isinstance(other, Literal | ListTerm) or isinstance(value, Literal | ListTerm):
            return
        self._compare(self._shape(value), other, _named(value))

    def _compare(self, shape: Shape, other: Term, owner: str) -> None:
        choices = shape.choices()
        if choices is None:
            return
        for each in other.items if isinstance(other, ListTerm) else (other,):
            if isinstance(each, Literal) and each.literal not in choices:
                self._no_choice(each.literal, choices, owner)

    def _no_choice(self, wrong: JsonValue, choices: tuple[JsonValue, ...], owner: str) -> None:
        if not isinstance(wrong, str):
            return
        texts = tuple(each for each in choices if isinstance(each, str))
        fault = self._place(wrong).fault(
            "bad-value",
            f"{owner} is never '{wrong:.60}'",
            label=suggestion(wrong, texts),
            help=f"choices are: {', '.join(texts)}",
        )
        self.report(fault)

    def _shape(self, term: Term) -> Shape:
        return self.sources.shape_of_term(term, self.reader)

    def _place(self, word: str) -> Place:
        """Where the word stands in the text: terms do not know it."""
        node = self.use.node
        text = f"{node.value}"
        for quoted in _spellings(word):
            if (at := text.find(quoted)) >= 0:
                return node.part(at + quoted.find(word), len(word))
        return node.place


def _spellings(word: str) -> Iterator[str]:
    yield from (f"'{word}'", f'"{word}"', f".{word}", word)


def _widened(kinds: frozenset[str]) -> frozenset[str]:
    return kinds | {"number"} if "integer" in kinds else kinds


def _parts_of(term: Term) -> Iterator[tuple[Term, tuple[Condition, ...], bool]]:
    """The parts of an expression, each with the conditions under which it is evaluated, and whether
    something stands in where it is missing.
    """
    if isinstance(term, Logic):
        for at, operand in enumerate(term.operands):
            yield operand, tuple((each, term.is_and) for each in term.operands[:at]), False
    elif isinstance(term, Choice):
        yield term.condition, (), False
        yield term.yes, ((term.condition, True),), False
        yield term.no, ((term.condition, False),), False
    else:
        is_base = isinstance(term, DefaultFilter | DefinedTest)
        for at, part in enumerate(term.parts()):
            yield part, (), is_base and at == 0


def _named(term: Term) -> str:
    if isinstance(term, Path):
        return f"'{path_text(term.reference.path)}'"
    return dumps(term.literal) if isinstance(term, Literal) else "this value"
