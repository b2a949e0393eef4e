"""Text search in one recorded run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from attrs import frozen

from minions.contracts.journal.journal import JournalEntry
from minions.data.json_values import JsonValue
from minions.engine.views.step_details import row_address

_PART: Final = 262_144
"""Characters of a text that are searched at once."""
_OVERLAP: Final = 8_192
"""Characters that a match may have beyond that."""
_AROUND: Final = 60
"""Characters of an excerpt on each side of the text."""
_PARTS: Final[Mapping[tuple[str, str], str]] = {
    ("step", "started"): "prompt",
    ("conversation", "started"): "prompt",
    ("message", "recorded"): "prompt",
    ("model_call", "finished"): "response",
    ("tool_call", "started"): "tools",
    ("tool_call", "finished"): "tools",
    ("tool_call", "failed"): "tools",
    ("step", "finished"): "output",
}
"""The part of a step by kind and state of the row; all others are `attempts`."""
_UNSHOWN: Final = frozenset(("document", "directory", "conversation", "version", "digest", "note"))
"""Members of a body that are no words of people, models or tools."""


@frozen(kw_only=True)
class SearchHit:
    """One place where the text occurs."""

    address: str | None
    """The step or item; None: the run's inputs, output or error."""
    part: str
    """`prompt`, `response`, `tools`, `output`, `attempts`, or `run`."""
    before: str
    match: str
    """The text as it stands there."""
    after: str


def hits_in(rows: Sequence[JournalEntry], text: str, most: int) -> tuple[SearchHit, ...]:
    """The first places where the text occurs, in any case; one for each value that has it.

    Any white space in the text stands for any other.

    Args:
        rows: The current rows of a run.
    """
    words = text.split()
    if not words:
        return ()
    wanted = re.compile(r"\s+".join(map(re.escape, words)), re.IGNORECASE)
    hits = (
        _hit(row, value, match)
        for row in rows
        for value in _texts(row.body)
        if (match := _find_match(wanted, value)) is not None
    )
    return tuple(islice(hits, most))


def _find_match(wanted: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The first match; a long text is searched in parts, between which others can work."""
    for start in range(0, max(len(text), 1), _PART):
        if (match := wanted.search(text, start, start + _PART + _OVERLAP)) is not None:
            return match
    return None


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            if name not in _UNSHOWN:
                yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def _hit(row: JournalEntry, text: str, match: re.Match[str]) -> SearchHit:
    address = row_address(row)
    part = "run" if address is None else _PARTS.get((row.kind, row.state), "attempts")
    start, end = max(0, match.start() - _AROUND), match.end() + _AROUND
    return SearchHit(
        address=address,
        part=part,
        before=f"{'…' if start else ''}{text[start : match.start()]}",
        match=match[0],
        after=f"{text[match.end() : end]}{'…' if end < len(text) else ''}",
    )
