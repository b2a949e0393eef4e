"""Faults of texts that are not YAML: the parser's error, with its place and a hint."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from msgspec import structs

from minions.data.errors import Fault
from minions.recipe.text.nodes import Place, Source

if TYPE_CHECKING:
    import yaml


_KEY: Final = re.compile(r"[A-Za-z_][\w-]*")
_NO_COLON: Final = "could not find expected ':'"
_NO_DASH: Final = "did not find expected '-' indicator"
_NO_MAPPING: Final = "mapping values are not allowed in this context"
_SYNTAX_HINTS: Final[Mapping[str, str]] = {
    _NO_MAPPING: (
        "text that contains ': ' needs quotes, and keys of one mapping the same indentation"
    ),
    "found unexpected end of stream": "a quote or bracket is not closed",
    "did not find expected key": "check the indentation and the quotes just above",
}


def syntax_fault(error: yaml.YAMLError, source: Source) -> Fault:
    """The fault of a text that is not YAML, with a hint for the usual mistakes."""
    problem = getattr(error, "problem", None) or str(error)
    marks = [getattr(error, name, None) for name in ("problem_mark", "context_mark")]
    if "end of stream" in problem or problem == _NO_COLON:
        marks.reverse()  # where the quote was opened, not where the file ends
    mark = marks[0] or marks[1]
    if problem == _NO_MAPPING:
        mark = _key_without_colon(source, mark) or mark
        problem = _NO_COLON if mark not in marks else problem
    place = Place(source=source)
    if mark is not None:
        place = Place(source=source, line=mark.line + 1, column=mark.column + 1)
    line = source.line(place.line) or ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return place.fault(
            "bad-yaml", "a tab stands in the indentation", help="indent with spaces only"
        )
    if problem == _NO_COLON:
        return _without_colon(place, line)
    context = getattr(error, "context", None)
    hint = _SYNTAX_HINTS.get(problem)
    if problem == _NO_DASH:
        hint = f"items of one list begin at the same column; {_indentation(source, place.line)}"
    return place.fault(
        "bad-yaml", f"not YAML: {problem}{f', {context}' if context else ''}", help=hint
    )


def _key_without_colon(source: Source, mark: yaml.Mark | None) -> yaml.Mark | None:
    """Where the text that ends at `mark` starts, if a key may start there."""
    import yaml

    begin: yaml.Mark | None = None
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    with contextlib.suppress(yaml.YAMLError):
        for token in yaml.scan("\n".join(source.lines), Loader=loader):
            is_plain = isinstance(token, yaml.ScalarToken) and token.plain
            begin = cast("yaml.Mark", token.start_mark) if is_plain else begin
    if begin is None or mark is None or begin.line >= mark.line:
        return None
    before = (source.line(begin.line + 1) or "")[: begin.column]
    return begin if not before.strip(" -") else None


def _indentation(source: Source, number: int) -> str:
    """A message about the indentation of that line and its neighbours."""
    lines = source.lines
    filled = [at for at, line in enumerate(lines, start=1) if line.strip()]
    above = [at for at in filled if at < number][-2:]
    below = [at for at in filled if at > number][:1]
    told = (
        f"line {at} by {len(lines[at - 1]) - len(lines[at - 1].lstrip())}"
        for at in (*above, number, *below)
    )
    return f"indented are {', '.join(told)} spaces"


def _without_colon(place: Place, line: str) -> Fault:
    key, _, value = line[place.column - 1 :].strip().partition(" ")
    meant = f"{key}: {value}".strip()
    return structs.replace(place, length=max(1, len(line.rstrip()) - place.column + 1)).fault(
        "bad-yaml",
        "a ':' is missing: a line of a mapping is 'key: value'",
        label=f"did you mean '{meant:.60}'?" if _KEY.fullmatch(key) else None,
    )
