"""Text within the templates and expressions of a recipe that code writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Final

__all__ = ["listed", "literal", "quoted"]

_SIGNS: Final = re.compile(r"\{\{|\}\}")


def literal(text: str) -> str:
    """The text for a template that gives just this text: a planner's words are no templates."""
    return _SIGNS.sub(lambda found: f"{{{{ '{found[0]}' }}}}", text)


def quoted(text: str) -> str:
    """A text of an expression."""
    return json.dumps(text, ensure_ascii=False)


def listed(texts: Iterable[str]) -> str:
    """A list of texts of an expression."""
    return f"[{', '.join(map(quoted, texts))}]"
