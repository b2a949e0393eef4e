"""What a fault of a recipe suggests, as a change of its text: for editors and other programs."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from minions.data.errors import Fault

_MEANT: Final = re.compile(r"did you mean (?:'([^']*)'|([^?']+(?:'[^']*'[^?']*)*))\?")
_DEFAULT: Final = re.compile(r"say what stands there then: [^|]{1,200} \| default\('…'(, true)?\)")
_WRITE: Final = re.compile(r"write '([^']+)'")
_QUOTED: Final = re.compile(r"'([^']+)'")
_CUT: Final = 60
"""Characters after which messages cut a name."""
_LONGEST_MESSAGE: Final = 2000


_ALIKE: Final = 0.5
"""How much a text that the message does not quote is like what is meant."""


class FaultFix(NamedTuple):
    """A change of one line of the recipe's text: so many characters are replaced."""

    line: int
    """Line number, from 1."""
    column: int
    """Column number in characters, from 1."""
    length: int
    """Number of characters that are replaced."""
    text: str
    """What stands there instead."""


def fix_of(fault: Fault) -> FaultFix | None:
    """The fault's suggestion as a change of its line; None: it suggests nothing that is certain."""
    if (
        fault.source_line is not None
        and (default := _DEFAULT.match((fault.help or "")[:_LONGEST_MESSAGE])) is not None
    ):
        reads = fault.source_line[fault.column - 1 : fault.column - 1 + fault.length]
        text = f"{reads} | default(''{default[1] or ''})"
        return FaultFix(fault.line, fault.column, fault.length, text)
    found = next(
        (
            each
            for part in (fault.label, fault.help)
            if part and (each := _MEANT.search(part[:_LONGEST_MESSAGE]))
        ),
        None,
    )
    if found is None and fault.label is not None:
        found = _WRITE.fullmatch(fault.label)
    groups: tuple[str | None, ...] = found.groups() if found is not None else ()
    meant = next((each for each in groups if each), "")
    if not meant or len(meant) >= _CUT or fault.source_line is None:
        return None
    start = fault.column - 1
    range_text = fault.source_line[start : start + fault.length]
    wrong = _wrong_word(fault.message, range_text, meant)
    at = _word_at(range_text, wrong)
    if at is None:
        return None
    return FaultFix(fault.line, start + at + 1, len(wrong), meant)


def _wrong_word(message: str, range_text: str, meant: str) -> str:
    """The word of the range that the message names and that looks most like what is meant."""
    import difflib

    def likeness(word: str) -> float:
        return difflib.SequenceMatcher(None, word[:_CUT].casefold(), meant.casefold()).ratio()

    quoted: list[str] = _QUOTED.findall(message)
    words = [word for word in quoted if _word_at(range_text, word) is not None]
    if not words:
        return range_text if likeness(range_text) > _ALIKE else ""
    return max(words, key=likeness)


def _word_at(text: str, word: str) -> int | None:
    """Where the word stands in the text, the last time: a path ends in what is wrong."""
    if not word:
        return None
    found = list(re.finditer(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text))
    return found[-1].start() if found else None
