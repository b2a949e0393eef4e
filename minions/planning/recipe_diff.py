"""The change of a recipe's text, as people read it."""

from __future__ import annotations

import difflib

__all__ = ["recipe_diff"]


def recipe_diff(before: str, after: str, name: str) -> str:
    """The change as a unified diff; empty: there is none.

    Args:
        before: The text of a recipe.
        name: The name of the file.
    """
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="")
    return "\n".join(lines)
