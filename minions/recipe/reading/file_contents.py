"""The contents of the files that a recipe names: read with it, and stored with its runs."""

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
    MOST_EXAMPLE_TOKENS,
    MOST_EXAMPLES,
    ExampleOrigin,
    candidates_problem,
    chooses_nearest,
    read_example_section,
)
from minions.recipe.expressions.values import MAX_TEXT
from minions.recipe.recipe_files import NamedFiles
from minions.recipe.text.nodes import (
    Entry,
    MappingNode,
    Node,
    Place,
    ScalarNode,
    SequenceNode,
    Source,
    node_of,
    to_plain,
)
from minions.recipe.text.sections import Report
from minions.recipe.text.yaml_reader import read_source

Change: TypeAlias = Callable[[Node], Node]


def with_file_contents(
    document: Node, home: Path, folders: tuple[Path, ...], report: Report
) -> Node:
    """The recipe with the contents of the files that `examples` and `context` name, so that it can
    be stored with a run; faults are reported.

    Args:
        home: The folder of the recipe, where relative paths start.
        folders: The server's folders of recipes; empty: a person named the recipe.
    """
    reader = _Reader(NamedFiles(home, folders), home, report)
    document = _with(document, "context", reader.read_context)
    document = _with(document, "templates", lambda node: _each(node, reader))
    return _with(document, "steps", lambda node: _each(node, reader))


def _each(node: Node, reader: _Reader) -> Node:
    """The steps of a list, or the templates of a mapping, each with its contents."""
    if isinstance(node, MappingNode):
        for entry in node.entries:
            node = _with(node, entry.key, reader.read_step)
    elif isinstance(node, SequenceNode):
        return _with_items(node, reader.read_step)
    return node


def _with_items(node: SequenceNode, change: Change) -> Node:
    items = tuple(map(change, node.items))
    if all(new is old for new, old in zip(items, node.items, strict=True)):
        return node
    return structs.replace(node, items=items)


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

    def read_step(self, node: Node) -> Node:
        """The step, or template of steps, with the contents of its files."""
        return _with(_with(node, "examples", self._read_examples), "context", self.read_context)

    def read_context(self, node: Node) -> Node:
        """The parts of a context, those that name a file with its text."""
        return _with_items(node, self._read_part) if isinstance(node, SequenceNode) else node

    def _read_part(self, node: Node) -> Node:
        """The part with the text of its file; another node, and one with a text, as it is."""
        entry = node.find("file") if isinstance(node, MappingNode) else None
        name = to_plain(entry.value) if entry is not None else None
        if entry is None or not isinstance(node, MappingNode) or not isinstance(name, str):
            return node
        if node.find("text") is not None:  # of a recipe that is stored with a run
            return node
        try:
            text = self._text(name)
            if len(text) > MAX_TEXT:
                raise UsageError(
                    f"'{name:.200}' has {len(text):,} characters, and a text has {MAX_TEXT:,} at "
                    "the most"
                )
        except MinionsError as error:
            code = "outside-project" if error.error_code == "outside-project" else "bad-context"
            self.report(entry.value.place.fault(code, error.message.rstrip(".")))
            text = ""
        value = ScalarNode(node.source, entry.value.span, text)
        text_entry = Entry(node.source, entry.span, "text", value)
        return structs.replace(node, entries=(*node.entries, text_entry))

    def _read_examples(self, node: Node) -> Node:
        """The examples of the file that the mapping names; another node as it is."""
        if not isinstance(node, MappingNode) or _names_no_file(node):
            return node
        section = read_example_section(node, self.report)
        name, is_nearest = section.text("from"), chooses_nearest(section)
        found: tuple[Node, ...] = ()
        if name is not None:
            try:
                content = self._content(name)
                if is_nearest and (problem := candidates_problem(size=len(content))):
                    raise UsageError(problem)
                lines = _decode_text(content, name).splitlines()
            except MinionsError as error:
                place = section.place_of("from")
                code = "outside-project" if error.error_code == "outside-project" else "no-examples"
                self.report(place.fault(code, error.message.rstrip(".")))
            else:
                count = sum(bool(line.strip()) for line in lines)
                most = _number(section.plain("max"), MOST_EXAMPLES)
                room = _number(section.plain("max_tokens"), MOST_EXAMPLE_TOKENS)
                if not is_nearest:
                    found = tuple(_take_fitting(self._examples(name, lines), most, room))
                elif problem := candidates_problem(count=count):
                    self.report(section.place_of("from").fault("no-examples", problem))
                else:
                    found = tuple(self._examples(name, lines))
        items = SequenceNode(node.source, node.span, found)
        if not is_nearest:
            return items
        # As they are stored with a run: its file may be another one by then.
        kept = [each for key, each in section.entries.items() if key not in ("from", "items")]
        return structs.replace(node, entries=(Entry(node.source, node.span, "items", items), *kept))

    def _text(self, name: str) -> str:
        """The text of a file of the project.

        Raises:
            UsageError: It is elsewhere, not there, taken for a secret, or no text.
        """
        return _decode_text(self._content(name), name)

    def _content(self, name: str) -> bytes:
        """The content of a file of the project; of a long one its beginning.

        Raises:
            UsageError: It is elsewhere, not there, or taken for a secret.
        """
        path = self.home / name
        self.files.check(path, name)
        if any(is_secret(each.parts[-2:]) for each in (path, Path(os.path.realpath(path)))):
            raise UsageError(f"'{name:.200}' is taken for a secret, so it is not read")
        try:
            return read_source(path)
        except NotFoundError as error:
            raise UsageError(f"there is no file '{name:.200}' beside this recipe") from error

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


def _decode_text(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"'{name:.200}' is not UTF-8: {error.reason}") from error


def _names_no_file(node: MappingNode) -> bool:
    """Whether the examples stand in it, or are taken from tests or from recorded runs."""
    entry = node.find("from")
    return entry is None or to_plain(entry.value) in list(ExampleOrigin)


def _number(value: JsonValue, default: int) -> int:
    return value if isinstance(value, int) else default


def _take_fitting(examples: Iterator[Node], most: int, max_tokens: int) -> Iterator[Node]:
    """The first ones that fit, in their order."""
    room = max_tokens * CHARACTERS_PER_TOKEN
    taken = 0
    for node in examples:
        size = len(dumps(to_plain(node)))
        if taken < most and size <= room:
            taken += 1
            room -= size
            yield node
