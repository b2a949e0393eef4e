"""`examples: {from: FILE}`: examples of a step that stand in a file of their own.

They are put into the recipe when it is loaded, so that they travel with its runs and no file is
read again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from attrs import frozen
from msgspec import structs

from minions.contracts.protected_files import is_secret
from minions.data.errors import MinionsError, NotFoundError, UsageError
from minions.data.json_values import JsonValue, dumps, parse_json
from minions.recipe.examples import (
    CHARACTERS_PER_TOKEN,
    EXAMPLES_FROM,
    MOST_EXAMPLE_TOKENS,
    MOST_EXAMPLES,
    ExampleOrigin,
)
from minions.recipe.project_folders import NamedFiles
from minions.recipe.text.nodes import (
    Entry,
    MappingNode,
    Node,
    Place,
    SequenceNode,
    Source,
    node_of,
    to_plain,
)
from minions.recipe.text.sections import Report, read_section
from minions.recipe.text.yaml_reader import read_source

Change: TypeAlias = Callable[[Node], Node]


def with_example_files(
    document: Node, home: Path, folders: tuple[Path, ...], report: Report
) -> Node:
    """The recipe with the examples of its files in place of their names; faults are reported.

    Args:
        home: The folder of the recipe, where relative paths start.
        folders: The server's folders of recipes; empty: a person named the recipe.
    """
    reader = _Reader(NamedFiles(home, folders), home, report)
    document = _with(document, "templates", lambda node: _each(node, reader))
    return _with(document, "steps", lambda node: _each(node, reader))


def _each(node: Node, reader: _Reader) -> Node:
    """The steps of a list, or the templates of a mapping, each with its examples."""
    if isinstance(node, MappingNode):
        for entry in node.entries:
            node = _with(node, entry.key, lambda each: _with(each, "examples", reader.read))
    elif isinstance(node, SequenceNode):
        items = tuple(_with(item, "examples", reader.read) for item in node.items)
        if any(new is not old for new, old in zip(items, node.items, strict=True)):
            return structs.replace(node, items=items)
    return node


def _with(node: Node, key: str, change: Change) -> Node:
    """The mapping with the value of that key changed; the node itself where nothing is."""
    entry = node.find(key) if isinstance(node, MappingNode) else None
    if entry is None or not isinstance(node, MappingNode):
        return node
    value = change(entry.value)
    if value is entry.value:
        return node
    changed: tuple[Entry, ...] = tuple(
        structs.replace(each, value=value) if each is entry else each for each in node.entries
    )
    return structs.replace(node, entries=changed)


@frozen
class _Reader:
    files: NamedFiles
    home: Path
    report: Report

    def read(self, node: Node) -> Node:
        """The examples of the file that the mapping names; another node as it is."""
        if not isinstance(node, MappingNode) or _names_no_file(node):
            return node
        section = read_section(node, EXAMPLES_FROM, self.report)
        name = section.text("from")
        found: tuple[Node, ...] = ()
        if name is not None:
            try:
                lines = self._lines(name)
            except MinionsError as error:
                place = section.place_of("from")
                code = "outside-project" if error.error_code == "outside-project" else "no-examples"
                self.report(place.fault(code, error.message.rstrip(".")))
            else:
                most = _number(section.plain("max"), MOST_EXAMPLES)
                room = _number(section.plain("max_tokens"), MOST_EXAMPLE_TOKENS)
                found = tuple(_taken(self._examples(name, lines), most, room))
        return SequenceNode(node.source, node.span, found)

    def _lines(self, name: str) -> Sequence[str]:
        path = self.home / name
        self.files.check(path, name)
        if any(is_secret(each.parts[-2:]) for each in (path, Path(os.path.realpath(path)))):
            raise UsageError(f"'{name:.200}' is taken for a secret, so it is not read")
        try:
            return read_source(path).decode("utf-8-sig").splitlines()
        except NotFoundError as error:
            raise UsageError(f"there is no file '{name:.200}' beside this recipe") from error
        except UnicodeDecodeError as error:
            raise UsageError(f"'{name:.200}' is not UTF-8: {error.reason}") from error

    def _examples(self, name: str, lines: Sequence[str]) -> Iterator[Node]:
        source = Source(name, tuple(lines))
        for number, line in enumerate(lines):
            if not line.strip():
                continue
            try:
                value: JsonValue = parse_json(line)
            except ValueError as error:
                place = Place(source=source, line=number + 1, length=max(1, len(line)))
                self.report(place.fault("bad-example", f"the line is no JSON: {error}"))
                continue
            yield node_of(value, source=source, span=(number, 0, number, len(line)))


def _names_no_file(node: MappingNode) -> bool:
    """Whether the examples are taken from tests or from recorded runs."""
    entry = node.find("from")
    return entry is not None and to_plain(entry.value) in list(ExampleOrigin)


def _number(value: JsonValue, default: int) -> int:
    return value if isinstance(value, int) else default


def _taken(examples: Iterator[Node], most: int, max_tokens: int) -> Iterator[Node]:
    """The first ones that fit, in their order."""
    room = max_tokens * CHARACTERS_PER_TOKEN
    taken = 0
    for node in examples:
        size = len(dumps(to_plain(node)))
        if taken < most and size <= room:
            taken += 1
            room -= size
            yield node
