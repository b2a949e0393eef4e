"""Checks of constants inside of expressions: the names of tests, and what stands for one of a few
values. Members that expressions read are checked in `references`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from attrs import frozen

from minions.data.json_values import JsonValue
from minions.recipe.checks.shapes import Shape
from minions.recipe.checks.sources import Sources, member_path
from minions.recipe.drafts import RecipeDraft, StepDraft, TemplateUse
from minions.recipe.expressions.filters import FILTERS, TESTS
from minions.recipe.expressions.terms import (
    Comparison,
    DictTerm,
    FilterTerm,
    ListTerm,
    Literal,
    Path,
    Subscript,
    Term,
)
from minions.recipe.expressions.values import TemplateError, path_text
from minions.recipe.text.nodes import Place
from minions.recipe.text.sections import Report, suggestion

_EQUAL: Final = ("==", "!=", "in", "not in")
_TESTS_OF_EQUAL: Final = frozenset({"eq", "equalto", "ne", "in"})
_WITH_TESTS: Final = {"select": 0, "reject": 0, "selectattr": 1, "rejectattr": 1}
"""Filters that take the name of a test, and which of their arguments it is."""


def check_terms(draft: RecipeDraft, sources: Sources, report: Report) -> None:
    """Report what no expression of the recipe can find, and what nothing can equal."""
    for step in draft.steps:
        for use in step.all_templates:
            _Uses(sources, use, step, report).check()
    for use in draft.output_templates:
        _Uses(sources, use, None, report).check()


@frozen
class _Uses:
    sources: Sources
    use: TemplateUse
    reader: StepDraft | None
    report: Report

    def check(self) -> None:
        if self.use.term is not None:
            self._check(self.use.term)
            return
        try:
            terms = list(self.sources.templates.compile(self.use.node.value).terms())
        except TemplateError:  # reported where the recipe was read
            return
        for term in terms:
            self._check(term)

    def _check(self, term: Term) -> None:
        if isinstance(term, FilterTerm) and FILTERS.get(term.name) is term.function:
            self._check_filter(term)
        elif isinstance(term, FilterTerm) and term.name in _TESTS_OF_EQUAL and term.arguments:
            self._check_choice(term.base, term.arguments[0])
        elif isinstance(term, Subscript) and isinstance(term.base, DictTerm):
            self._check_keys(term.base, term.key)
        elif isinstance(term, Comparison):
            sides = (term.first, *(side for _, side in term.others))
            for (left, right), (name, _) in zip(pairwise(sides), term.others, strict=True):
                if name in _EQUAL:
                    self._check_choice(left, right)
                    self._check_choice(right, left)
        for part in term.parts():
            self._check(part)

    def _check_filter(self, term: FilterTerm) -> None:
        at = _WITH_TESTS.get(term.name)
        name = term.arguments[at] if at is not None and len(term.arguments) > at else None
        if not isinstance(name, Literal) or not isinstance(name.literal, str):
            return
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
        text = f"{self.use.node.value}"
        for quoted in _spellings(word):
            if (at := text.find(quoted)) >= 0:
                return self.use.node.part(at + quoted.find(word), len(word))
        return self.use.node.place


def _spellings(word: str) -> Iterator[str]:
    yield from (f"'{word}'", f'"{word}"', f".{word}", word)


def _named(term: Term) -> str:
    if isinstance(term, Path):
        return f"'{path_text(term.reference.path)}'"
    return "this value"
