"""Text within the templates and expressions of a recipe that code writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

from minions.data.json_values import JsonValue

_BRACES: Final = re.compile(r"[{}]+[%#]?")
_MARKS: Final = re.compile(r"\{\{|\}\}|\{%|\{#")
"""What a template reads as more than text."""


def literal(text: str) -> str:
    """The text for a template that gives just this text: a planner's words are no templates.

    Braces side by side are replaced together: one that was left could begin another mark.
    """
    return _BRACES.sub(lambda found: _plain(found[0]), text)


def literals(texts: Iterable[object]) -> list[JsonValue]:
    """The texts for a list of templates."""
    return [literal(str(each)) for each in texts]


def _plain(braces: str) -> str:
    return f"{{{{ '{braces}' }}}}" if _MARKS.search(braces) else braces


def quoted(text: str) -> str:
    """A text of an expression."""
    return json.dumps(text, ensure_ascii=False)


def listed(texts: Iterable[str]) -> str:
    """A list of texts of an expression."""
    return f"[{', '.join(map(quoted, texts))}]"
