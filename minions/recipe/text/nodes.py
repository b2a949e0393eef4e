"""The tree of a recipe's text: nodes that know their place in it. Parsing is in `yaml_reader`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from msgspec import Struct, structs

from minions.data.errors import Fault, RecipeError
from minions.data.json_values import JsonValue

LINE_BREAKS: Final = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
"""What ends a line by the rules of YAML."""
MAX_DEPTH: Final = 100
"""Levels of nesting."""
MAX_FAULTS: Final = 100
"""Faults of one recipe that are reported."""


class Source(Struct, frozen=True, eq=False, gc=False):
    """The text that nodes point into; without lines where the recipe came as plain data."""

    file: str = "<recipe>"
    lines: tuple[str, ...] = ()

    def line(self, number: int) -> str | None:
        """The line of that number, from 1; None: there is no such line."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else None


class Place(Struct, frozen=True, kw_only=True, eq=False):
    """The place of a node in the text; lines and columns count from 1."""

    source: Source
    line: int = 1
    column: int = 1
    end_line: int = 1
    length: int = 1
    """Characters on the first line."""

    def fault(
        self,
        code: str,
        message: str,
        *,
        label: str | None = None,
        help: str | None = None,  # noqa: A002  # the name that `Fault` gives it
        is_warning: bool = False,
    ) -> Fault:
        """A fault at this place."""
        return Fault(
            code=code,
            message=message,
            file=self.source.file,
            line=self.line,
            column=self.column,
            length=self.length,
            source_line=self.source.line(self.line),
            label=label,
            help=help,
            is_warning=is_warning,
        )


Span: TypeAlias = tuple[int, int, int, int]
"""Line and column of the start, then of the end, from 0.

Plain numbers: an object for each node would be traversed by the garbage collector again and again
while a long recipe is read.
"""
_TOP: Final[Span] = (0, 0, 0, 0)


class _NodeWithPlace(Struct, frozen=True, eq=False, gc=False):
    """A node with its place, which is computed on access because
    few nodes are ever asked for it.
    """

    source: Source
    span: Span

    @property
    def place(self) -> Place:
        """Where the node starts and ends in the text."""
        return place_between(self.source, self.span)


def place_between(source: Source, span: Span) -> Place:
    """The place of a span of the text."""
    line, column, end_line, end_column = span
    length = end_column - column
    if line != end_line:
        length = len((source.line(line + 1) or "").rstrip()) - column
    return Place(
        source=source,
        line=line + 1,
        column=column + 1,
        end_line=end_line + 1,
        length=max(1, length),
    )


class ScalarNode(_NodeWithPlace, frozen=True, eq=False):
    """One scalar value."""

    value: None | bool | int | float | str

    def part(self, offset: int, length: int) -> Place:
        """The place of `length` characters at `offset` of this text, as exactly as possible.

        Escapes and folded lines shift the text, so the same characters are searched in the source.
        """
        text = self.value if isinstance(self.value, str) else ""
        wanted = LINE_BREAKS.split(text[offset : offset + length])[0]
        if not wanted:
            return self.place
        skip = text.count(wanted, 0, offset)
        for line, column in self._occurrences(wanted):
            if skip == 0:
                return structs.replace(self.place, line=line, column=column, length=len(wanted))
            skip -= 1
        return self.place

    def _occurrences(self, wanted: str) -> Iterator[tuple[int, int]]:
        place = self.place
        for number in range(place.line, place.end_line + 1):
            line = place.source.line(number) or ""
            start = place.column - 1 if number == place.line else 0
            while (at := line.find(wanted, start)) >= 0:
                yield number, at + 1
                start = at + len(wanted)


class Entry(_NodeWithPlace, frozen=True, eq=False):
    """One key with its value; its place is that of the key."""

    key: str
    value: Node

    @property
    def key_node(self) -> ScalarNode:
        """The key as a node of its own; needed only for faults."""
        return ScalarNode(self.source, self.span, self.key)


class MappingNode(_NodeWithPlace, frozen=True, eq=False):
    """Keys and values, in the order of the text."""

    entries: tuple[Entry, ...]

    def find(self, key: str) -> Entry | None:
        """The entry of that key; None: there is none."""
        return next((entry for entry in self.entries if entry.key == key), None)


class SequenceNode(_NodeWithPlace, frozen=True, eq=False):
    """Items, in the order of the text."""

    items: tuple[Node, ...]


Node: TypeAlias = ScalarNode | MappingNode | SequenceNode


def to_plain(node: Node) -> JsonValue:
    """The node as plain data."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, SequenceNode):
        return [to_plain(item) for item in node.items]
    return {entry.key: to_plain(entry.value) for entry in node.entries}


def node_of(
    value: JsonValue, file: str = "<recipe>", *, source: Source | None = None, span: Span = _TOP
) -> Node:
    """Plain data as a tree without places, for recipes that were stored or built by a program.

    Args:
        source: The text that it was read from; None: there is none.
        span: The place of all its nodes in that text.
    Raises:
        RecipeError: It is nested too deep, or not JSON.
    """
    return _plain_node(value, source or Source(file), span, 0)


def _plain_node(value: object, source: Source, span: Span, depth: int) -> Node:
    place = place_between(source, span)
    if depth > MAX_DEPTH:
        raise RecipeError([too_deep(place)])
    if isinstance(value, Mapping):
        entries = []
        for key, item in value.items():
            if not isinstance(key, str):
                raise RecipeError([bad_key(place, repr(key))])
            node = _plain_node(item, source, span, depth + 1)
            entries.append(Entry(source, span, key, node))
        return MappingNode(source, span, tuple(entries))
    if isinstance(value, list | tuple):
        items = tuple(_plain_node(item, source, span, depth + 1) for item in value)
        return SequenceNode(source, span, items)
    if value is None or isinstance(value, bool | int | float | str):
        return ScalarNode(source, span, value)
    message = f"{type(value).__name__} is not JSON: {value!r:.80}"
    raise RecipeError([place.fault("wrong-type", message)])


def too_deep(place: Place) -> Fault:
    """The fault of a node that is nested too deep."""
    return place.fault("too-deep", f"nested deeper than {MAX_DEPTH} levels")


def bad_key(place: Place, shown: str) -> Fault:
    """The fault of a key that is not text."""
    return place.fault("bad-key", f"a key must be text, not {shown:.40}", help="quote the key")
