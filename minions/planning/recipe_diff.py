"""The change of a recipe's text, as people read it and as `patch` and `git apply` take it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Final

_NO_NEWLINE: Final = "\n\\ No newline at end of file\n"
_QUOTED: Final = re.compile(r'[\x00-\x1f"\\\x7f]')
"""Characters for which a name is written in quotes, as by Git and GNU diff."""


def recipe_diff(before: str, after: str, name: str) -> str:
    """The change as a unified diff, without a newline at its end; empty: there is none.

    Line ends are those of the texts: a diff of a file with CRLF has them, too.

    Args:
        before: The text of a recipe.
        name: The name of the file.
    """
    header = _file_name(name)
    lines = difflib.unified_diff(_lines(before), _lines(after), header, header)
    whole = (line if line.endswith("\n") else line + _NO_NEWLINE for line in lines)
    return "".join(whole).removesuffix("\n")


def _lines(text: str) -> list[str]:
    """The lines with their ends. Only a newline ends one, as in programs that apply diffs."""
    found = text.split("\n")
    last = found.pop()
    return [*(f"{line}\n" for line in found), *([last] if last else [])]


def _file_name(name: str) -> str:
    """The name as it stands in a header: what follows a tab is not part of it."""
    if _QUOTED.search(name):
        return f'"{"".join(_escaped(name))}"'
    return f"{name}\t" if " " in name else name


def _escaped(name: str) -> Iterator[str]:
    for letter in name:
        if not _QUOTED.match(letter):
            yield letter
        elif letter in '"\\':
            yield f"\\{letter}"
        else:
            yield f"\\{ord(letter):03o}"
