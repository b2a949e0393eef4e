"""Brings the indentation of a recipe's text into one form. Only blanks are changed: every text,
comment and quote stays, and a text whose meaning would change is left as it is.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Sequence
from typing import Final

from minions.data.json_values import dumps
from minions.recipe.text.nodes import MappingNode, Node, SequenceNode, to_plain
from minions.recipe.text.yaml_reader import read_document

_STEP: Final = 2
"""Columns by which each level is indented; lists are indented beneath their key."""
_STRANGE_BREAKS: Final = re.compile(r"\r(?!\n)|[\x85\u2028\u2029]")
_DASHES: Final = re.compile(r"(?:-[ ]+)+(?=[^ ])")
_MOST_PASSES: Final = 4
_LINES_BACK: Final = 200
"""Lines before a comment that are looked at."""


def formatted(text: str, file: str = "<recipe>") -> str:
    """The text with its usual indentation, without blanks at the ends of lines and with one line
    end at its own end. Formatting it again changes nothing.

    Raises:
        RecipeError: It is not YAML; `faults` says where.
    """
    meaning = _meaning(text, file)
    if _STRANGE_BREAKS.search(text):
        return text
    for lay_out in (_indent_text, _strip_lines):
        found = text
        for _ in range(_MOST_PASSES):
            before, found = found, lay_out(found, file)
            if _meaning(found, file) != meaning or _words(found) != _words(text):
                break
            if found == before:
                return found
    return text


def _meaning(text: str, file: str) -> str:
    return dumps(to_plain(read_document(text, file)))


def _words(text: str) -> list[str]:
    """The lines without the blanks that may be changed."""
    return [_DASHES.sub(_one_blank, line.strip()) for line in text.splitlines() if line.strip()]


def _one_blank(found: re.Match[str]) -> str:
    return "- " * found.group().count("-")


class _UnusualError(Exception):
    """A form that is left as it is: anchors, tags, a dash on a line of its own."""


class _Lines:
    """The lines of a text with the columns at which they are to begin."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.columns: dict[int, int] = {}
        """By line: where what begins there is to stand."""
        self.moved: dict[int, int] = {}
        """By line that continues a value: by how many columns it moves with its beginning."""
        self.kept: set[int] = set()
        """Lines whose blanks at the end may belong to a text."""

    def begin(self, line: int, column: int, wanted: int) -> None:
        """Note where a key or dash is to stand, if it is the first on its line."""
        if not self.lines[line][:column].strip():
            self.columns[line] = wanted

    def continue_with(self, node: Node, first: int, by: int) -> None:
        """Note that the further lines of a value move as the line on which its key stands."""
        last, end = node.span[2:]
        if last > first and end == 0:
            last -= 1
        is_collection = isinstance(node, MappingNode | SequenceNode)
        if is_collection:
            last = max(last, _last_line(node))
        for line in range(first + 1, last + 1):
            self.moved[line] = by
            self.kept.add(line)
        if last > node.span[0]:
            self.kept.add(node.span[0])


def _last_line(node: Node) -> int:
    """The last line of a collection in brackets, at least."""
    last, pending = node.span[2], [node]
    while pending:
        part = pending.pop()
        last = max(last, part.span[2])
        if isinstance(part, MappingNode):
            for entry in part.entries:
                last = max(last, entry.span[2])
                pending.append(entry.value)
        elif isinstance(part, SequenceNode):
            pending.extend(part.items)
    return last


def _indent_text(text: str, file: str) -> str:
    body = text.removeprefix("\ufeff")
    mark = text[: len(text) - len(body)]
    newline = "\r\n" if "\r\n" in body else "\n"
    lines = body.replace("\r\n", "\n").split("\n")
    found = _Lines(lines)
    node = read_document("\n".join(lines), file)
    try:
        _place(found, node, 0)
    except _UnusualError:
        return _strip_lines(text, file)
    return mark + newline.join(_laid_out(found)).rstrip("\r\n") + newline


def _place(found: _Lines, node: Node, wanted: int) -> None:
    """Note where the parts of a block are to stand."""
    first, column = node.span[:2]
    if isinstance(node, MappingNode) and not _is_in_brackets(found, node):
        for entry in node.entries:
            line, at = entry.span[:2]
            if at != column:
                raise _UnusualError
            found.begin(line, at, wanted)
            _place_value(found, entry.value, line, wanted - at, wanted + _STEP)
    elif isinstance(node, SequenceNode) and not _is_in_brackets(found, node):
        for item in node.items:
            line = item.span[0]
            if not found.lines[line].startswith("-", column):
                raise _UnusualError
            found.begin(line, column, wanted)
            _place_value(found, item, line, wanted - column, wanted + _STEP)
    else:
        found.continue_with(node, first, 0)


def _place_value(found: _Lines, node: Node, line: int, by: int, wanted: int) -> None:
    """Note the same of what stands under a key or a dash."""
    text = found.lines[node.span[0]] if node.span[0] < len(found.lines) else ""
    if text.startswith(("&", "*", "!", "?"), node.span[1]) or node.span[0] < line:
        raise _UnusualError
    is_block = isinstance(node, MappingNode | SequenceNode) and not _is_in_brackets(found, node)
    if is_block:
        _place(found, node, wanted)
    else:
        found.continue_with(node, line, by)


def _is_in_brackets(found: _Lines, node: Node) -> bool:
    line, column = node.span[:2]
    text = found.lines[line] if line < len(found.lines) else ""
    if text.startswith(("&", "!", "?"), column):
        raise _UnusualError
    return text.startswith(("{", "["), column)


def _laid_out(found: _Lines) -> list[str]:
    """The lines at their columns; comments go with the line that they stand above."""
    result: list[str] = []
    begun = sorted(found.columns)
    for number, line in enumerate(found.lines):
        rest = line.lstrip(" ")
        old = len(line) - len(rest)
        if number in found.columns:
            rest = _DASHES.sub(_one_blank, rest) if rest.startswith("-") else rest
            end = rest if number in found.kept else rest.rstrip()
            result.append(" " * found.columns[number] + end)
        elif number in found.moved:
            by = found.moved[number]
            result.append(" " * max(0, old + by) + rest if rest.strip() else line)
        elif not rest.strip():
            result.append("")
        else:
            result.append(" " * _column_of_comment(found, begun, number, old) + rest.rstrip())
    return result


def _column_of_comment(found: _Lines, begun: Sequence[int], number: int, old: int) -> int:
    """Where a comment is to stand: as the next line, or a line before it, that stood as it did."""
    at = bisect.bisect(begun, number)
    near = (*begun[at : at + 1], *reversed(begun[max(0, at - _LINES_BACK) : at]))
    for line in near:
        if _indent(found.lines[line]) == old:
            return found.columns[line]
    if not near:
        return old
    return max(0, old + found.columns[near[0]] - _indent(found.lines[near[0]]))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _strip_lines(text: str, _: str) -> str:
    """The text without blanks at the ends of its lines: of a form whose indentation is left."""
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.replace("\r\n", "\n").split("\n")
    return newline.join(line.rstrip(" \t") for line in lines).rstrip("\r\n") + newline
