"""The tokens of an expression, and the values of those that are constants."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from minions.recipe.expressions.values import TemplateError

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
