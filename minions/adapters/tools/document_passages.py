"""Documents as passages of lines, and what a person or model asks as a query of the index."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import frozen

_ENOUGH: Final = 400
"""Characters from which on a blank line ends a passage."""
_SHORT: Final = 120
"""Characters below which a heading does not end a passage: a title, or comments in code."""
_MOST: Final = 1_200
"""Characters at which a passage ends."""
_MOST_WORDS: Final = 32
_WORD: Final = re.compile(r"\w+")
_PHRASE: Final = re.compile(r'"[^"]*"')


@frozen(kw_only=True)
class Passage:
    """Consecutive lines of a document."""

    first: int
    """The number of its first line, from 1."""
    lines: tuple[str, ...]

    @property
    def last(self) -> int:
        """The number of its last line."""
        return self.first + len(self.lines) - 1

    @property
    def text(self) -> str:
        """Its lines, without numbers."""
        return "\n".join(self.lines)


def passages_of(text: str) -> Iterator[Passage]:
    """The passages of a document, in order. A heading begins one, and blank lines end one that is
    long enough; lines around a passage that are blank are in none. A line that is longer than a
    passage is several, each with the number of the line; any other line is in one.
    """
    begin, size = 0, 0
    lines = text.split("\n")
    for at, line in enumerate(lines):
        if len(line) > _MOST and line.strip():
            yield from _trimmed(lines[begin:at], begin)
            yield from (Passage(first=at + 1, lines=(part,)) for part in _parts(line))
            begin, size = at + 1, 0
            continue
        is_heading = line.startswith("#") and size >= _SHORT
        is_break = not line.strip() and size >= _ENOUGH
        if is_heading or is_break or (size and size + len(line) > _MOST):
            yield from _trimmed(lines[begin:at], begin)
            begin, size = at, 0
        size += len(line) + 1
    yield from _trimmed(lines[begin:], begin)


def _trimmed(lines: Sequence[str], begin: int) -> Iterator[Passage]:
    """The lines without blank ones around them; nothing if all are."""
    filled = [at for at, line in enumerate(lines) if line.strip()]
    if filled:
        first, last = filled[0], filled[-1]
        yield Passage(first=begin + first + 1, lines=tuple(lines[first : last + 1]))


def numbered(first: int, lines: Sequence[str]) -> str:
    """The lines with their numbers, to cite them by."""
    return "\n".join(f"{first + at}: {line}" for at, line in enumerate(lines))


def _parts(line: str) -> Iterator[str]:
    """A long line, split at blanks where it has some."""
    begin = 0
    while len(line) - begin > _MOST:
        blank = line.rfind(" ", begin + _MOST // 2, begin + _MOST)
        end = blank + 1 if blank >= 0 else begin + _MOST
        yield line[begin:end]
        begin = end
    yield line[begin:]


def fts_query(text: str) -> str | None:
    """What was asked as a query of SQLite: passages with any of the words, or with a phrase that
    stands in quotes. None: it has no word.

    Every word stands in quotes, so that no sign of it is an operator.
    """
    phrases = [" ".join(_WORD.findall(each)) for each in _PHRASE.findall(text)]
    words = _WORD.findall(_PHRASE.sub(" ", text))
    asked = list(dict.fromkeys(each for each in (*phrases, *words) if each))[:_MOST_WORDS]
    return " OR ".join(f'"{each}"' for each in asked) or None
