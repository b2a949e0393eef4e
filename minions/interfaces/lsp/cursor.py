"""Where the cursor stands in a text that may not be YAML yet: found by indentation alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from attrs import field, frozen

from minions.interfaces.lsp.checked_text import Spot

_KEY: Final = re.compile(
    r"(?:\"([^\"]*)\"|'([^']*)'|([^\s\"'#{\[&*!|>%@`-][^:#{}\[\]]*?|-\w[^:]*?)):(?=\s|$)"
)
_EXPRESSION_KEYS: Final = frozenset({"when", "while", "assert", "holds"})
_MOST_LINES: Final = 20
"""Lines of one expression that are looked at."""


class _Mark(NamedTuple):
    """A key, or the dash of an item, on one line."""

    column: int
    key: str | None
    """None: an item of a list."""
    value: str = ""


@frozen(kw_only=True)
class Level:
    """A mapping or list that the cursor is inside, or whose key it is at."""

    key: str | None
    """The key under which the next level is; None: that is an item of a list."""
    siblings: Mapping[str, str] = field(factory=dict)
    """The other keys of the mapping with what stands on their lines; empty for a list."""


@frozen(kw_only=True)
class Cursor:
    """What is written before the cursor, and around it."""

    path: tuple[Level, ...]
    """From the whole recipe to the mapping or list in which something may be written."""
    siblings: Mapping[str, str] = field(factory=dict)
    """The keys that the mapping at the cursor has already."""
    word: str
    """The beginning of what is written."""
    is_key: bool
    """Whether it may be a key of a mapping."""
    is_value: bool
    """Whether it may be a value."""
    expression: str | None = None
    """The expression that the cursor is in, up to it; None: it is in none."""

    @property
    def keys(self) -> tuple[str | None, ...]:
        """The path as keys; None: an item of a list."""
        return tuple(level.key for level in self.path)


def cursor_at(lines: Sequence[str], spot: Spot) -> Cursor:
    """What the cursor is in."""
    line = lines[spot.line] if spot.line < len(lines) else ""
    before = line[: spot.column]
    marks = list(_marks(before))
    last = marks[-1] if marks else None
    if last is not None and last.key is not None:
        parent, siblings = _around(lines, spot.line, last.column)
        path = (*parent, Level(key=last.key, siblings=siblings))
        value = before[before.index(":", last.column + len(last.key)) + 1 :].lstrip()
        return _at_value(lines, spot, path, value)
    column = _column(before, last)
    parent, siblings = _around(lines, spot.line, column)
    word = before[column:]
    if word[:1] in ("{", "["):
        return _at_value(lines, spot, parent, word)
    return Cursor(
        path=parent,
        siblings=siblings,
        word=word,
        is_key=True,
        is_value=bool(parent) and parent[-1].key is None,
        expression=_expression(lines, spot, parent, word),
    )


def _at_value(lines: Sequence[str], spot: Spot, path: tuple[Level, ...], value: str) -> Cursor:
    """The cursor behind a key: in its value, which may be a mapping or list on the same line."""
    expression = _expression(lines, spot, path, value)
    inside, word = path, value
    is_key = False
    if expression is None:
        inside, word, is_key = _in_flow(path, value)
    return Cursor(
        path=inside,
        word=word.lstrip("\"'"),
        is_key=is_key,
        is_value=not is_key,
        expression=expression,
    )


_FLOW_SIGN: Final = re.compile(r"[{\[\]},]|(?<![\w-])([\w-]++):\s")


def _in_flow(path: tuple[Level, ...], value: str) -> tuple[tuple[Level, ...], str, bool]:
    """The place within `{a: [b, …`: the path, the word, and whether it is a key."""
    is_key, start = False, 0
    opened: list[tuple[tuple[Level, ...], str]] = []
    for found in _FLOW_SIGN.finditer(value):
        sign, start = found.group(), found.end()
        if sign in ("{", "["):
            opened.append((path, sign))
        elif sign in ("]", "}") and opened:
            path, is_key = opened.pop()[0], False
            continue
        if not opened:
            continue
        path, outer_sign = opened[-1]
        is_key = outer_sign == "{"
        if not is_key:
            path = (*path, Level(key=None))
        elif found[1] is not None:
            path, is_key = (*path, Level(key=found[1])), False
    return path, value[start:].lstrip(), is_key


def _expression(
    lines: Sequence[str], spot: Spot, path: tuple[Level, ...], value: str
) -> str | None:
    """The expression before the cursor: behind `{{`, or of a key that takes one."""
    before = lines[spot.line][: spot.column] if spot.line < len(lines) else ""
    above = spot.line - 1
    while above >= 0 and "{{" not in before and not any(mark.key for mark in _marks(before)):
        if spot.line - above > _MOST_LINES or not lines[above].strip():
            break
        before = f"{lines[above]}\n{before}"
        if any(mark.key for mark in _marks(lines[above])):
            break
        above -= 1
    start = before.rfind("{{")
    if start >= 0:
        return before[start + 2 :] if before.find("}}", start) < 0 else None
    named = [level.key for level in path if level.key is not None]
    if named and named[-1] in _EXPRESSION_KEYS:
        return value.lstrip("\"'")
    return None


def _column(before: str, last: _Mark | None) -> int:
    indented = len(before) - len(before.lstrip(" "))
    if last is None:
        return indented
    rest = before[last.column + 1 :]
    return last.column + 1 + len(rest) - len(rest.lstrip(" "))


def _around(
    lines: Sequence[str], number: int, column: int
) -> tuple[tuple[Level, ...], Mapping[str, str]]:
    """The path to the mapping whose keys stand at the column, and the keys that it has."""
    siblings = dict(_siblings(lines, number, column))
    levels: list[Level] = []
    wanted, is_after_item = column, False
    first = True
    for at in range(number, -1, -1):
        text = lines[at] if at < len(lines) else ""
        if at == number:
            text = text[:column]
        for mark in reversed(list(_marks(text))):
            if mark.column < wanted or (is_after_item and mark.key and mark.column == wanted):
                others = dict(_siblings(lines, at, mark.column)) if mark.key else {}
                levels.append(Level(key=mark.key, siblings=others))
                wanted, is_after_item = mark.column, mark.key is None
        if wanted == 0 and not is_after_item and not first:
            break
        first = False
    return tuple(reversed(levels)), siblings


def _siblings(lines: Sequence[str], number: int, column: int) -> Iterator[tuple[str, str]]:
    """The keys at that column of the mapping around the line."""
    for numbers in (range(number - 1, -1, -1), range(number + 1, len(lines))):
        is_up = numbers.step < 0
        if is_up and any(mark.column < column for mark in _marks(lines[number][:column])):
            continue  # the first key of an item
        for at in numbers:
            indent = len(lines[at]) - len(lines[at].lstrip())
            if not lines[at].strip() or lines[at].lstrip().startswith("#"):
                continue
            if indent < column and not is_up:
                break
            for mark in _marks(lines[at]):
                if mark.column == column and mark.key is not None:
                    yield mark.key, mark.value
            if indent < column:
                break


def _marks(line: str) -> Iterator[_Mark]:
    at = len(line) - len(line.lstrip(" "))
    while at < len(line):
        if line[at] == "-" and (at + 1 == len(line) or line[at + 1] == " "):
            yield _Mark(at, None)
            at += 1
            at += len(line[at:]) - len(line[at:].lstrip(" "))
            continue
        found = _KEY.match(line, at)
        if found is not None:
            key = next(each for each in found.groups() if each is not None)
            yield _Mark(at, key, line[found.end() :].split(" #", maxsplit=1)[0].strip())
        return
