"""Texts that arrive in fragments, which may divide a character."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from attrs import define, field

_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def joined_texts(texts: Iterable[str]) -> str:
    """The texts joined; surrogate pairs that were split between fragments become one character."""
    text = "".join(texts)
    try:
        text.encode()
    except UnicodeEncodeError:
        return _PAIR.sub(
            lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text
        )
    return text


def as_reasoning(text: str | None) -> str | None:
    """Reasoning as a message holds it: None where there is nothing but blanks."""
    return text if text and not text.isspace() else None


@define
class FragmentedText:
    """One text while its fragments arrive."""

    _parts: list[str] = field(factory=list)
    _half: str = ""
    """The first half of a surrogate pair whose second half may come with the next fragment."""

    @property
    def text(self) -> str:
        """The text so far."""
        return joined_texts(self._parts)

    def add(self, fragment: str) -> str:
        """Append a fragment; returns what can be shown already."""
        self._parts.append(fragment)
        shown = self._half + fragment
        self._half = shown[-1] if "\ud800" <= shown[-1:] <= "\udbff" else ""
        return joined_texts((shown.removesuffix(self._half),))
