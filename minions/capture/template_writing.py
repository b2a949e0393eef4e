"""How names, values and texts are written in the templates of a captured recipe, and read again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from minions.data.json_values import JsonValue, dumps
from minions.recipe.expressions.syntax import CONSTANTS, KEYWORDS

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_METHODS: Final = frozenset({"items", "keys", "values"})
_SIGN: Final = re.compile(r"\{+(?=[%#]|\}\}|\Z)|\{{2,}|\}\}|%\}|#\}")
"""What a template would not take as text; braces at the end may stand before an expression."""
_EXPRESSION: Final = re.compile(r"\{\{ ((?:'(?:[^'\\]|\\.)*'|[^' ]| (?!\}\}))*) \}\}", re.DOTALL)
_QUOTED: Final = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL)


def step_name(text: str) -> str:
    """A name of a step, or of an input, made of any text."""
    words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+(?![a-z])", text)
    name = "_".join(words).lower() or "value"
    return f"n_{name}" if name[0].isdigit() or name in KEYWORDS or name in CONSTANTS else name


def member(text: str, key: str) -> str:
    """The expression of a key of what another expression gives."""
    if _NAME.match(key) and key not in KEYWORDS and key not in _METHODS:
        return f"{text}.{key}"
    return f"{text}[{quoted(key)}]"


def literal_template(text: str) -> str:
    """The template that gives the text as it is."""
    return joined_template([(text, False)])


def joined_template(parts: Sequence[tuple[str, bool]]) -> str:
    """The template of texts and expressions, one after another.

    Args:
        parts: Each with whether it is an expression.
    """
    written = [
        f"{{{{ {part} }}}}"
        if is_expression
        else _SIGN.sub(lambda sign: f"{{{{ {quoted(sign.group())} }}}}", part)
        for part, is_expression in parts
    ]
    template = "".join(written)
    if _EXPRESSION.fullmatch(template.strip()) and template != template.strip():
        # Blanks around one expression are no text: it gives its value.
        return f"{{{{ {' ~ '.join(part if is_it else quoted(part) for part, is_it in parts)} }}}}"
    return template


def template_parts(template: str) -> Iterator[tuple[str, bool]]:
    """The parts of a template as captures write it: text, and whether it is an expression."""
    at, text = 0, ""
    for match in _EXPRESSION.finditer(template):
        text += template[at : match.start()]
        at = match.end()
        sign = _QUOTED.fullmatch(match.group(1))
        if sign is not None:
            text += re.sub(r"\\(.)", _unescaped, sign.group(1), flags=re.DOTALL)
            continue
        if text:
            yield text, False
        text = ""
        yield match.group(1), True
    text += template[at:]
    if text:
        yield text, False


def _unescaped(escape: re.Match[str]) -> str:
    return "\n" if escape.group(1) == "n" else escape.group(1)


def as_expression(template: str) -> str:
    """A template of text or of one expression as one expression."""
    alone = _EXPRESSION.fullmatch(template.strip())
    if alone is not None:
        return alone.group(1)
    pieces = [
        part if is_expression else quoted(part) for part, is_expression in template_parts(template)
    ]
    return f"({' ~ '.join(pieces)})" if len(pieces) > 1 else "".join(pieces) or quoted("")


def quoted(text: str) -> str:
    """The text as an expression writes it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


def constant_words(template: str) -> str:
    """What a template's text says besides the values that it reads."""
    return " ".join(part for part, is_expression in template_parts(template) if not is_expression)


def text_of(value: JsonValue) -> str:
    """The value as a template writes it into a text."""
    return value if isinstance(value, str) else dumps(value)


def literal(value: JsonValue) -> str:
    """The value as an expression writes it."""
    return quoted(value) if isinstance(value, str) else dumps(value)


def literal_templates(value: JsonValue) -> JsonValue:
    """The value as a recipe writes it: braces of a constant are no template."""
    if isinstance(value, str):
        return literal_template(value)
    if isinstance(value, Mapping):
        return {key: literal_templates(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [literal_templates(part) for part in value]
    return value
