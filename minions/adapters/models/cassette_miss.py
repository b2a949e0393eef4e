"""The difference between a request and the recorded one that is most like it."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from minions.adapters.models.cassette_file import CassetteCall
from minions.adapters.models.cassette_request import request_lines

__all__ = ["difference", "most_like"]

_MOST_COMPARED: Final = 400
"""Lines of each side, behind those that are equal: comparing takes their square at worst."""
_MOST_SHOWN: Final = 60
"""Lines of a diff."""
_LONGEST_SHOWN: Final = 400
"""Characters of a line."""


def most_like(lines: Sequence[str], calls: Iterable[CassetteCall]) -> CassetteCall | None:
    """The call whose request has most lines in common with these; None: there is no call.

    Of several the first.
    """
    asked = Counter(lines)
    best, best_share = None, -1.0
    for call in calls:
        own = Counter(request_lines(call.model, call.request))
        share = 2 * (asked & own).total() / max(1, asked.total() + own.total())
        if share > best_share:
            best, best_share = call, share
    return best


def difference(recorded: Sequence[str], asked: Sequence[str]) -> str:
    """A unified diff of requests as lines; of a long one the beginning."""
    begin = _common(recorded, asked)
    first = max(0, begin - 2)
    before = [_shortened(line) for line in recorded[first : begin + _MOST_COMPARED]]
    after = [_shortened(line) for line in asked[first : begin + _MOST_COMPARED]]
    lines = list(difflib.unified_diff(before, after, "recorded", "asked", lineterm="", n=2))
    left = len(lines) - _MOST_SHOWN
    return "\n".join([*lines[:_MOST_SHOWN], *([f"… ({left} more lines)"] if left > 0 else [])])


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The number of lines with which both begin."""
    pairs = zip(one, other, strict=False)
    return next(
        (at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other))
    )


def _shortened(line: str) -> str:
    return line if len(line) <= _LONGEST_SHOWN else f"{line[:_LONGEST_SHOWN]}…"
