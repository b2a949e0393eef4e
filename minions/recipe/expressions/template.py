"""Templates and conditions: compiled once, rendered often, with their references known
beforehand.

Rendered text is never rendered again. Expressions are parsed in `syntax` and evaluated in `terms`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from minions.data.json_values import JsonValue
from minions.recipe.expressions.syntax import parse_expression
from minions.recipe.expressions.terms import Literal, Path, Term
from minions.recipe.expressions.values import (
    MAX_TEXT,
    Meter,
    Reference,
    Scope,
    TemplateError,
    as_text,
    check_size,
    check_weight,
)

MAX_DEPTH: Final = 100
_UNUSED: Final = Meter()
"""For constants and paths, which take no operations."""
_MARK: Final = re.compile(r"\{\{|\}\}|\{%|\{#")
_ATOMS: Final = frozenset((bool, int, float, type(None)))


class _Part(Struct, frozen=True, gc=False):
    """A node of a template's value."""

    def render(self, scope: Scope, meter: Meter) -> JsonValue:
        """The node's value in that scope."""
        raise NotImplementedError

    def terms(self) -> Iterator[Term]:
        """The expressions in the node."""
        raise NotImplementedError


class _Constant(_Part, frozen=True):
    value: JsonValue

    def render(self, scope: Scope, meter: Meter) -> JsonValue:
        return self.value

    def terms(self) -> Iterator[Term]:
        return iter(())


class _Native(_Part, frozen=True):
    """A string that consists of one expression: its value keeps its JSON type."""

    term: Term

    def render(self, scope: Scope, meter: Meter) -> JsonValue:
        return self.term.value(scope, meter)

    def terms(self) -> Iterator[Term]:
        yield self.term


class _Text(_Part, frozen=True):
    """A text with expressions in it."""

    pieces: tuple[str | Term, ...]

    def render(self, scope: Scope, meter: Meter) -> JsonValue:
        texts = []
        size = 0
        for piece in self.pieces:
            if type(piece) is str:
                text = piece
            else:
                value = piece.value(scope, meter)  # type: ignore[union-attr]  # a term
                text = value if type(value) is str else as_text(value, meter)
            size += len(text)
            if size > MAX_TEXT:
                check_size(size)
            texts.append(text)
        return "".join(texts)

    def terms(self) -> Iterator[Term]:
        return (piece for piece in self.pieces if not isinstance(piece, str))


class _Mapping(_Part, frozen=True):
    entries: tuple[tuple[str, _Part], ...]

    def render(self, scope: Scope, meter: Meter) -> JsonValue:
        return {key: part.render(scope, meter) for key, part in self.entries}

    def terms(self) -> Iterator[Term]:
        for _, part in self.entries:
            yield from part.terms()


class _List(_Part, frozen=True):
    items: tuple[_Part, ...]

    def render(self, scope: Scope, meter: Meter) -> JsonValue:
        return [part.render(scope, meter) for part in self.items]

    def terms(self) -> Iterator[Term]:
        for part in self.items:
            yield from part.terms()


class Template(Struct, frozen=True, gc=False):
    """A JSON value whose strings may hold `{{ … }}`."""

    root: _Part
    references: tuple[Reference, ...]
    """Every path that rendering may read, in the order of the text."""
    is_constant: bool
    """Whether there is nothing to fill in: `render` then returns the value as written."""
    makes_values: bool
    """Whether the result is a value that was not there before: then it is weighed."""

    @classmethod
    def of_constant(cls, text: str) -> Template:
        """A text that is no template, whatever stands in it."""
        return cls(_Constant(text), (), is_constant=True, makes_values=False)

    @classmethod
    def of_value(cls, before: str, value: str) -> Template:
        """A text, then a value which is no template itself, whatever stands in it."""
        root = _Text((before, Literal(value)))
        return cls(root, (), is_constant=False, makes_values=False)

    @property
    def term(self) -> Term | None:
        """The expression, if the value consists of one expression only."""
        return self.root.term if isinstance(self.root, _Native) else None

    def marked(self, scope: Scope, mark: Callable[[Term, JsonValue], str]) -> str:
        """The text of a string, with each value as `mark` writes it.

        Raises:
            MissingValueError, EvaluationError: As `render`.
        """
        meter, root = Meter(), self.root
        if isinstance(root, _Native):
            return mark(root.term, root.term.value(scope, meter))
        if not isinstance(root, _Text):
            return as_text(root.render(scope, meter), meter)
        pieces = root.pieces
        texts = [
            each if isinstance(each, str) else mark(each, each.value(scope, meter))
            for each in pieces
        ]
        check_size(sum(map(len, texts)))
        return "".join(texts)

    def terms(self) -> Iterator[Term]:
        """Every expression in the value, in the order of the text."""
        return self.root.terms()

    @property
    def is_whole(self) -> bool:
        """Whether the value consists of one expression only: a missing
        value is then simply missing.
        """
        return isinstance(self.root, _Native)

    @property
    def constant_lengths(self) -> tuple[int, int]:
        """Of a text the characters that are always the same before its first value, and behind."""
        if isinstance(self.root, _Constant):
            return (len(self.root.value) if isinstance(self.root.value, str) else 0, 0)
        pieces: tuple[str | Term, ...] = ()
        if isinstance(self.root, _Text):
            pieces = self.root.pieces
        lengths = [len(each) if isinstance(each, str) else -1 for each in pieces]
        first = lengths.index(-1) if -1 in lengths else len(lengths)
        return sum(lengths[:first]), sum(max(0, each) for each in lengths[first:])

    def inputs_read(self) -> frozenset[str] | None:
        """The names of the inputs that the value is made of; None: it reads something else, too, or
        all inputs at once.
        """
        paths = [each.path for each in self.references if each.path[0] != "run"]
        if any(path[0] != "inputs" or len(path) == 1 for path in paths):
            return None
        return frozenset(str(path[1]) for path in paths)

    def render(self, scope: Scope, meter: Meter | None = None) -> JsonValue:
        """The value in that scope. A string that consists of one expression keeps the
        expression's type.

        Args:
            meter: Tells afterwards how much work it was; None: nobody asks.
        Raises:
            MissingValueError: A path does not exist.
            EvaluationError: A value has the wrong type, or the text exceeds 1 MiB.
            ExpressionBudgetError: It takes too long, or makes too large a value.
        """
        if not self.makes_values:
            return self.root.render(scope, _UNUSED)
        value = self.root.render(scope, meter := meter or Meter())
        if type(value) is not str:
            check_weight(value, meter)
        return value


class Condition(Struct, frozen=True, gc=False):
    """An expression that is evaluated to true or false."""

    term: Term
    references: tuple[Reference, ...]

    def holds(self, scope: Scope, meter: Meter | None = None) -> bool:
        """Whether the expression's value is neither empty nor zero, null or false.

        Args:
            meter: Tells afterwards how much work it was; None: nobody asks.
        Raises:
            MissingValueError: A path does not exist.
            EvaluationError: A value has the wrong type.
        """
        return bool(self.term.value(scope, meter or Meter()))


def has_templates(value: JsonValue, depth: int = 0) -> bool:
    """Whether any text in `value` is a template, right or wrong; nothing is parsed."""
    if isinstance(value, str):
        return _MARK.search(value) is not None
    if isinstance(value, Mapping):
        items: Iterable[JsonValue] = value.values()
    elif isinstance(value, list | tuple):
        items = value
    else:
        return False
    return depth > MAX_DEPTH or any(has_templates(item, depth + 1) for item in items)


class Templates:
    """The templates and conditions of one recipe: each of its texts is parsed once.

    Whoever reads, checks, analyses or builds the recipe compiles here, and it lives with the
    recipe. Only texts of the recipe are compiled, so that it never holds more than these.
    """

    def __init__(self) -> None:
        """Nothing is parsed yet."""
        self._parts: dict[str, _Part] = {}
        self._conditions: dict[str, Condition] = {}

    def compile(self, value: JsonValue) -> Template:
        """Compile the templates in all strings of `value`; keys are not templates.

        Raises:
            TemplateError: For the first string that is not a template.
        """
        root = self._compile_value(value, 0)
        if type(root) is _Constant:
            return Template(root, (), is_constant=True, makes_values=False)
        terms = list(root.terms())
        is_path = isinstance(root, _Native) and isinstance(root.term, Path)
        return Template(
            root,
            _references_of(terms),
            is_constant=not terms,
            makes_values=bool(terms) and not is_path,
        )

    def compile_condition(self, text: str) -> Condition:
        """Compile a condition such as `a == 1`, with or without `{{ }}` around it.

        Raises:
            TemplateError: It is not exactly one expression.
        """
        known = self._conditions.get(text)
        if known is None:
            known = self._conditions[text] = self._read_condition(text)
        return known

    def _read_condition(self, text: str) -> Condition:
        mark = _MARK.search(text)
        if mark is None:
            term = parse_expression(text).term
            return Condition(term, _references_of([term]))
        part = self._compile_value(text, 0)
        if isinstance(part, _Native):
            return Condition(part.term, _references_of([part.term]))
        raise TemplateError(
            "a condition is one expression, not text around it",
            hint="write 'a == 1' or '{{ a == 1 }}'",
            offset=mark.start(),
            length=2,
        )

    def _compile_value(self, value: JsonValue, depth: int) -> _Part:
        if type(value) is str or isinstance(value, str):
            if _MARK.search(value) is None:
                return _Constant(value)
            part = self._parts.get(value)
            if part is None:
                part = self._parts[value] = _compiled_text(value)
            return part
        if type(value) in _ATOMS:
            return _Constant(value)
        if depth > MAX_DEPTH:
            raise TemplateError(f"a template nested deeper than {MAX_DEPTH} levels")
        if type(value) is dict or isinstance(value, Mapping):
            entries = [
                (
                    key,
                    _Constant(item)
                    if type(item) in _ATOMS
                    else self._compile_value(item, depth + 1),
                )
                for key, item in value.items()
            ]
            for _, part in entries:
                if type(part) is not _Constant:
                    return _Mapping(tuple(entries))
            return _Constant(value)
        if isinstance(value, list | tuple):
            items = [
                _Constant(item) if type(item) in _ATOMS else self._compile_value(item, depth + 1)
                for item in value
            ]
            for part in items:
                if type(part) is not _Constant:
                    return _List(tuple(items))
            return _Constant(value)
        return _Constant(value)


def compile_template(value: JsonValue) -> Template:
    """Compile a value that is of no recipe; see `Templates.compile`."""
    return Templates().compile(value)


def compile_condition(text: str) -> Condition:
    """Compile a condition that is of no recipe; see `Templates.compile_condition`."""
    return Templates().compile_condition(text)


def _references_of(terms: Iterator[Term] | list[Term]) -> tuple[Reference, ...]:
    return tuple(reference for term in terms for reference in term.references())


def _compiled_text(text: str) -> _Part:
    pieces = tuple(_pieces(text))
    terms = [piece for piece in pieces if not isinstance(piece, str)]
    around = "".join(piece for piece in pieces if isinstance(piece, str))
    if len(terms) == 1 and not around.strip():
        return _Native(terms[0])
    return _Text(pieces)


def _pieces(text: str) -> Iterator[str | Term]:
    """The alternating texts and expressions of a string."""
    position = 0
    while (mark := _MARK.search(text, position)) is not None:
        if mark.start() > position:
            yield text[position : mark.start()]
        _check_mark(text, mark)
        parsed = parse_expression(text, mark.end(), in_braces=True)
        yield parsed.term
        position = parsed.end + 2
    if position < len(text):
        yield text[position:]


_REFUSED: Final[Mapping[str, str]] = {
    "}}": "'}}' closes nothing",
    "{%": "statements are not supported, only {{ expressions }}",
    "{#": "comments are not supported",
}


_STATEMENT: Final = re.compile(r"-?[ \t]*([a-z]{1,12})")
_STATEMENT_HINTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("if", "elif", "else", "endif"),
        "write {{ 'A' if CONDITION else 'B' }}, or `when` on the step; ",
    ),
    **dict.fromkeys(("for", "endfor"), "write {{ rows | join(', ') }}, or `loop` on the step; "),
    "set": "write a step with `set`; ",
}


def _statement_hint(text: str, at: int) -> str:
    found = _STATEMENT.match(text, at)
    return _STATEMENT_HINTS.get(found[1], "") if found is not None else ""


def _check_mark(text: str, mark: re.Match[str]) -> None:
    sign = mark.group()
    if sign in _REFUSED:
        hint = f"write {{{{ '{sign}' }}}} where the signs themselves are meant"
        if sign == "{%":
            hint = f"{_statement_hint(text, mark.end())}{hint}"
        raise TemplateError(_REFUSED[sign], hint=hint, offset=mark.start(), length=2)
    if text.startswith("-", mark.end()):
        raise TemplateError(
            "'{{-' is not supported",
            hint="put a blank before a minus sign",
            offset=mark.start(),
            length=3,
        )
