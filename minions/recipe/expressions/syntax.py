"""The parser of expressions: Jinja's expressions without calls.

Statements and comments are in `template`, evaluation in `terms`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeVar

from msgspec import Struct

from minions.data.json_values import JsonValue
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
    Not,
    Path,
    Slice,
    Subscript,
    Term,
)
from minions.recipe.expressions.values import PathPart, Reference, TemplateError, nearest

if TYPE_CHECKING:
    from minions.recipe.expressions.operators import Function

_T = TypeVar("_T")

MAX_DEPTH: Final = 30
"""Levels of nesting: each takes several frames of the stack."""

_PLAIN_PATH: Final = re.compile(
    r"\s*([A-Za-z_][A-Za-z0-9_]*(?:\.(?:[A-Za-z_][A-Za-z0-9_]*|[0-9]{1,9}))*)\s*\}\}"
)
_NOT_THERE: Final[Mapping[str, tuple[str, str]]] = {
    "(": ("calls are not supported", "use a filter, such as 'items|length'"),
    "**": ("there is no operator '**'", "write it as a product"),
    "=": ("'=' cannot assign here", "'==' compares"),
}


_METER: Final = Literal(None)
"""Stands for the meter, the first argument of every filter."""


class ParsedExpression(Struct, frozen=True):
    """An expression and where it ends in the text."""

    term: Term
    end: int
    """The offset just after it: of the closing braces, or the end of the text."""


def parse_expression(text: str, start: int = 0, *, in_braces: bool = False) -> ParsedExpression:
    """Parse the expression at `start`, up to `}}` or to the end of `text`.

    Raises:
        TemplateError: It is not an expression; the offset counts from the start of `text`.
    """
    plain = _PLAIN_PATH.match(text, start) if in_braces else None
    if plain is not None and (term := _plain_path(plain)) is not None:
        return ParsedExpression(term, plain.end() - 2)
    tokens, end = tokens_of(text, start, in_braces=in_braces)
    return ParsedExpression(_Parser(text, tokens).whole(), end)


def _plain_path(match: re.Match[str]) -> Path | None:
    """The path in the common case of a bare path, in a tenth of the time;
    None where a word is reserved.
    """
    names = match.group(1).split(".")
    if names[0] in KEYWORDS or names[0] in CONSTANTS:
        return None
    path = tuple(int(name) if name.isdigit() else name for name in names)
    return Path(Reference(path=path, text=match.group(1), offset=match.start(1)))


class _Parser:
    """Recursive descent, one method per precedence level of operators, weakest first."""

    def __init__(self, text: str, tokens: list[Token]) -> None:
        self._text = text
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    # --- moving along --------------------------------------------------------------------

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._next
        self._at += 1
        return token

    def _accept(self, *texts: str) -> str | None:
        token = self._tokens[self._at]
        if token.text in texts and token.kind in ("operator", "name"):
            self._at += 1
            return token.text
        return None

    def _expect(self, text: str) -> None:
        if self._accept(text) is None:
            self._fail(f"expected '{text}'")

    def _fail(self, expected: str, hint: str | None = None) -> NoReturn:
        token = self._next
        found = f"'{token.text:.40}' stands there" if token.text else "the expression ends there"
        raise TemplateError(
            f"{expected}, but {found}",
            hint=hint,
            offset=token.offset,
            length=max(1, len(token.text)),
        )

    # --- the ranks ------------------------------------------------------------------------

    def whole(self) -> Term:
        if self._next.kind == "end":
            raise TemplateError("an expression is missing", offset=max(0, self._next.offset - 1))
        term = self._choice()
        if self._next.kind != "end":
            self._refuse_rest()
        return term

    def _refuse_rest(self) -> NoReturn:
        token = self._next
        if token.text in _NOT_THERE:
            problem, hint = _NOT_THERE[token.text]
            raise TemplateError(problem, hint=hint, offset=token.offset, length=len(token.text))
        self._fail("expected an operator, a filter or the end")

    def _choice(self) -> Term:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TemplateError(f"nested deeper than {MAX_DEPTH} levels", offset=self._next.offset)
        term = self._logic("or", self._conjunction)
        if self._accept("if"):
            condition = self._logic("or", self._conjunction)
            if self._accept("else") is None:
                self._fail("an 'if' needs its 'else' here")
            term = Choice(condition, term, self._choice())
        self._depth -= 1
        return term

    def _conjunction(self) -> Term:
        return self._logic("and", self._parse_not)

    def _logic(self, word: str, operand: Callable[[], Term]) -> Term:
        operands = [operand()]
        while self._accept(word):
            operands.append(operand())
        return operands[0] if len(operands) == 1 else Logic(word == "and", tuple(operands))

    def _parse_not(self) -> Term:
        count = 0
        while self._accept("not"):
            count += 1
        term = self._comparison()
        if count:
            term = Not(term)
        return Not(term) if count and count % 2 == 0 else term

    def _comparison(self) -> Term:
        first = self._sum()
        others: list[tuple[str, Term]] = []
        while (name := self._comparison_sign()) is not None:
            others.append((name, self._sum()))
        return Comparison(first, tuple(others)) if others else first

    def _comparison_sign(self) -> str | None:
        if self._next.text == "not" and self._tokens[self._at + 1].text == "in":
            self._at += 2
            return "not in"
        return self._accept("==", "!=", "<", "<=", ">", ">=", "in")

    def _sum(self) -> Term:
        return self._binary(("+", "-"), self._concatenation)

    def _concatenation(self) -> Term:
        return self._binary(("~",), self._product)

    def _product(self) -> Term:
        return self._binary(("*", "/", "//", "%"), self._parse_sign)

    def _binary(self, signs: tuple[str, ...], operand: Callable[[], Term]) -> Term:
        first = operand()
        others: list[tuple[str, Term]] = []
        while (sign := self._accept(*signs)) is not None:
            others.append((sign, operand()))
        return Binary(first, tuple(others)) if others else first

    def _parse_sign(self) -> Term:
        is_negative = False
        while (sign := self._accept("-", "+")) is not None:
            is_negative ^= sign == "-"
        term = self._parse_filters(self._postfix())
        return Negation(term) if is_negative else term

    # --- a value with what follows it ---------------------------------------------------------

    def _postfix(self) -> Term:
        if self._next.kind != "name" or self._next.text in RESERVED_WORDS:
            return self._suffixes(self._primary())
        return self._path()

    def _path(self) -> Term:
        start = self._take()
        path: list[PathPart] = [start.text]
        end = start.offset + len(start.text)
        while (part := self._known_part()) is not None:
            path.append(part)
            last = self._tokens[self._at - 1]
            end = last.offset + len(last.text)
        text = self._text[start.offset : end]
        reference = Reference(path=tuple(path), text=text, offset=start.offset)
        return self._suffixes(Path(reference))

    def _known_part(self) -> PathPart | None:
        """The part of a path `.name`, `.0`, `[0]`, `[-1]` or `['key']`; None where none follows."""
        if self._next.text not in (".", "["):
            return None
        ahead = self._tokens[self._at : self._at + 4]
        texts = [token.text for token in ahead]
        if texts[0] == ".":
            return self._member()
        if len(ahead) < 3:
            return None
        kind = ahead[1].kind
        if texts[2] == "]" and (kind == "text" or (kind == "number" and texts[1].isdigit())):
            self._at += 3
            return text_of(ahead[1]) if kind == "text" else whole_number(ahead[1])
        is_negative = texts[1] == "-" and texts[2].isdigit() and texts[3:] == ["]"]
        if is_negative:
            self._at += 4
            return -whole_number(ahead[2])
        return None

    def _member(self) -> PathPart:
        self._expect(".")
        token = self._next
        is_index = token.kind == "number" and token.text.isdigit()
        if not is_index and token.kind != "name":
            self._fail("expected a name or an index after '.'")
        self._at += 1
        return whole_number(token) if token.kind == "number" else token.text

    def _suffixes(self, term: Term) -> Term:
        while True:
            if self._next.text == "." and self._next.kind == "operator":
                term = Subscript(term, Literal(self._member()))
            elif self._accept("["):
                term = self._subscript(term)
            elif self._next.text == "(":
                self._refuse_rest()
            else:
                return term

    def _subscript(self, base: Term) -> Term:
        start: Term = Literal(None) if self._next.text == ":" else self._choice()
        if self._accept(":") is None:
            self._expect("]")
            return Subscript(base, start)
        stop: Term = Literal(None) if self._next.text == "]" else self._choice()
        self._expect("]")
        return Slice(base, start, stop)

    def _parse_filters(self, term: Term) -> Term:
        while True:
            if self._accept("|"):
                term = self._suffixes(self._filter(term))
            elif self._accept("is"):
                term = self._test(term)
            else:
                return term

    def _filter(self, base: Term) -> Term:
        from minions.recipe.expressions.filters import FILTERS

        token = self._name_of("filter")
        arguments, keywords = self._arguments()
        if token.text in ("default", "d"):
            bound = _bind_arguments(_default_arguments, token, (base, *arguments), keywords)
            values = dict(bound.arguments)
            return DefaultFilter(
                base,
                values.get("value", Literal("")),
                values.get("boolean", Literal(False)),
            )
        function = _function(FILTERS, token, "filter", "default")
        _bind_arguments(function, token, (_METER, base, *arguments), keywords)
        return FilterTerm(base, token.text, function, arguments, tuple(keywords.items()))

    def _test(self, base: Term) -> Term:
        from minions.recipe.expressions.filters import TESTS

        is_wanted = self._accept("not") is None
        token = self._name_of("test")
        if token.text in ("defined", "undefined"):
            return DefinedTest(base, (token.text == "defined") is is_wanted)
        arguments, keywords = self._test_arguments()
        function = _function(TESTS, token, "test", "defined")
        _bind_arguments(function, token, (_METER, base, *arguments), keywords)
        term = FilterTerm(base, token.text, function, arguments, tuple(keywords.items()))
        return term if is_wanted else Not(term)

    def _name_of(self, kind: str) -> Token:
        if self._next.kind != "name":
            is_or = self._next.text == "|"
            self._fail(f"expected the name of a {kind}", "write `or`" if is_or else None)
        return self._take()

    def _test_arguments(self) -> tuple[tuple[Term, ...], dict[str, Term]]:
        """The arguments of a test: in parentheses, or one bare value as in `is divisibleby 3`."""
        token = self._next
        if token.kind in ("number", "text") or token.text == "[":
            return (self._postfix(),), {}
        return self._arguments()

    def _arguments(self) -> tuple[tuple[Term, ...], dict[str, Term]]:
        arguments: list[Term] = []
        keywords: dict[str, Term] = {}
        if self._accept("(") is None:
            return (), {}
        while self._accept(")") is None:
            if arguments or keywords:
                self._expect(",")
            following = self._tokens[self._at + 1 : self._at + 2]
            if self._next.kind == "name" and following and following[0].text == "=":
                name = self._take().text
                self._expect("=")
                keywords[name] = self._choice()
            else:
                arguments.append(self._choice())
        return tuple(arguments), keywords

    # --- literals -------------------------------------------------------------------------------

    def _primary(self) -> Term:
        token = self._next
        if token.kind == "text":
            self._at += 1
            return Literal(text_of(token))
        if token.kind == "number":
            self._at += 1
            return Literal(number_of(token))
        if token.kind == "name" and token.text in CONSTANTS:
            self._at += 1
            return Literal(CONSTANTS[token.text])
        if self._accept("("):
            term = self._choice()
            self._expect(")")
            return term
        if self._accept("["):
            return ListTerm(self._items("]", self._choice))
        if self._accept("{"):
            return DictTerm(self._items("}", self._entry))
        return self._fail("expected a value")

    def _items(self, end: str, item: Callable[[], _T]) -> tuple[_T, ...]:
        items: list[_T] = []
        while self._accept(end) is None:
            if items:
                self._expect(",")
                if self._accept(end):
                    break
            items.append(item())
        return tuple(items)

    def _entry(self) -> tuple[str, Term]:
        if self._next.kind != "text":
            self._fail("expected a quoted key")
        key = text_of(self._take())
        self._expect(":")
        return key, self._choice()


def _function(functions: Mapping[str, Function], token: Token, kind: str, extra: str) -> Function:
    found = functions.get(token.text)
    if found is None:
        names = (*functions, extra)
        close = nearest(token.text, names)
        near = f"did you mean '{close}'? " if close else ""
        raise TemplateError(
            f"there is no {kind} '{token.text:.40}'",
            hint=f"{near}{kind}s are: {', '.join(sorted(names))}",
            offset=token.offset,
            length=len(token.text),
        )
    return found


def _default_arguments(base: JsonValue, value: JsonValue = "", boolean: JsonValue = False) -> None:
    """The signature of `default`, for checks of its arguments; `DefaultFilter` evaluates it."""


@functools.cache  # signatures of module-level functions, no data
def _signature(function: Callable[..., object]) -> inspect.Signature:
    return inspect.signature(function)


def _bind_arguments(
    function: Callable[..., object],
    token: Token,
    arguments: tuple[Term, ...],
    keywords: dict[str, Term],
) -> inspect.BoundArguments:
    """The arguments by parameter name.

    Raises:
        TemplateError: They do not fit the function's signature.
    """
    try:
        return _signature(function).bind(*arguments, **keywords)
    except (TypeError, ValueError) as error:
        names = [name for name in _signature(function).parameters if name not in ("meter", "value")]
        wrong = next((name for name in keywords if name not in names), None)
        near = nearest(wrong, names) if wrong is not None else None
        raise TemplateError(
            f"'{token.text}' cannot be used so: {error}",
            hint=f"did you mean '{near}'?" if near else None,
            offset=token.offset,
            length=len(token.text),
        ) from error


# --- the tokens of an expression, and the values of those that are constants ---------------------


MAX_TOKENS: Final = 400
"""Tokens of one expression. Deep nesting and long chains would exhaust the stack."""
_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<number>[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)
      | (?P<name>[^\W\d]\w*)
      | (?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
      | (?P<operator>==|!=|<=|>=|//|\*\*|[-+*/%~<>=|.,:()\[\]{}])
      | (?P<end>\Z))""",
    re.VERBOSE | re.DOTALL,
)
_INDEX: Final = re.compile(r"[0-9]+")
CONSTANTS: Final[Mapping[str, None | bool]] = {
    "true": True,
    "True": True,
    "false": False,
    "False": False,
    "none": None,
    "None": None,
    "null": None,
}
"""Names of constants, in the spellings of JSON and Python."""
KEYWORDS: Final = frozenset({"and", "else", "if", "in", "is", "not", "or"})
RESERVED_WORDS: Final = frozenset({*CONSTANTS, *KEYWORDS})
WORDS: Final = tuple(sorted(RESERVED_WORDS))
"""Words that cannot be names."""
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "'": "'", '"': '"', "\\": "\\", "/": "/"}
_LONGEST_NUMBER: Final = 300
"""Digits: converting a text to a number takes quadratic time."""


_FOREIGN: Final = (
    ("&&", "write `and`"),
    ("!", "write `not`"),
    ("?", "write `A if CONDITION else B`"),
)
"""What to write for signs of other languages."""


class Token(NamedTuple):
    """One token of an expression."""

    kind: str
    """`number`, `name`, `text`, `operator` or `end`."""
    text: str
    offset: int
    """Where it starts in the text, in characters."""


def tokens_of(text: str, start: int, *, in_braces: bool) -> tuple[list[Token], int]:
    """The tokens, the last one of kind `end`, and the offset just after the expression."""
    tokens: list[Token] = []
    open_brackets: list[str] = []
    position = start
    while True:
        token = _token(text, position, after_dot=bool(tokens) and tokens[-1].text == ".")
        if token.kind == "end":
            break
        if in_braces and not open_brackets and text.startswith("}}", token.offset):
            return [*tokens, Token("end", "", token.offset)], token.offset
        position = token.offset + len(token.text)
        tokens.append(token)
        if len(tokens) > MAX_TOKENS:
            raise TemplateError(
                f"an expression may have {MAX_TOKENS} words and signs",
                hint="split it with a 'set' step",
                offset=start,
            )
        if token.text in _CLOSING:
            open_brackets.append(token.text)
        elif token.text in (")", "]", "}") and open_brackets:
            open_brackets.pop()  # the parser checks whether the brackets match
    if in_braces:
        raise TemplateError(
            "'{{' is not closed with '}}'",
            hint="write {{ '{{' }} where the braces themselves are meant",
            offset=max(0, start - 2),
            length=2,
        )
    return [*tokens, Token("end", "", len(text))], len(text)


def _token(text: str, position: int, *, after_dot: bool) -> Token:
    match = _INDEX.match(text, position) if after_dot else None
    if match is not None:  # `a.0.1` is two indices, not the number 0.1
        return Token("number", match.group(), position)
    match = _TOKEN.match(text, position)
    if match is not None:
        kind = str(match.lastgroup)
        return Token(kind, match[kind], match.start(kind))
    position += len(text[position:]) - len(text[position:].lstrip())
    character = text[position]
    if character in "'\"":
        message = f"the text that begins with {character} is not closed"
    else:
        message = f"the character {character!r} has no meaning in an expression"
    hint = next((hint for sign, hint in _FOREIGN if text.startswith(sign, position)), None)
    raise TemplateError(message, hint=hint, offset=position)


def text_of(token: Token) -> str:
    """The value of a quoted text.

    Raises:
        TemplateError: It has an unknown escape.
    """

    def escaped(match: re.Match[str]) -> str:
        code = match.group(1)
        if len(code) == 5 and not 0xD800 <= int(code[1:], 16) <= 0xDFFF:
            return chr(int(code[1:], 16))
        if code in _ESCAPES:
            return _ESCAPES[code]
        raise TemplateError(
            f"the escape '\\{code}' is not known", offset=token.offset + match.start() + 1, length=2
        )

    return _ESCAPE.sub(escaped, token.text[1:-1])


def number_of(token: Token) -> int | float:
    """The value of a number.

    Raises:
        TemplateError: It is too large.
    """
    if token.text.isdigit():
        return whole_number(token)
    number = float(token.text)
    if number == float("inf"):
        raise TemplateError("this number is too large", offset=token.offset, length=len(token.text))
    return number


def whole_number(token: Token) -> int:
    """The value of a whole number.

    Raises:
        TemplateError: It has too many digits.
    """
    if len(token.text) > _LONGEST_NUMBER:
        raise TemplateError(
            f"a number may have {_LONGEST_NUMBER} digits",
            offset=token.offset,
            length=len(token.text),
        )
    return int(token.text)
