"""The parts of a recipe for an editor's outline, and what it can fold."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from minions.data.errors import RecipeError
from minions.interfaces.lsp.checked_text import CheckedText, Stretch
from minions.recipe.kinds.kind_registry import KINDS
from minions.recipe.text.nodes import Entry, MappingNode, Node, ScalarNode, SequenceNode
from minions.recipe.text.yaml_reader import read_document


@frozen(kw_only=True)
class Part:
    """A part of the recipe."""

    name: str
    detail: str
    kind: str
    """`section`, `step`, `input`, `template` or `test`."""
    place: Stretch
    """Where its name stands."""
    last_line: int
    inner: tuple[Part, ...] = ()


def parts_of(checked: CheckedText) -> tuple[Part, ...]:
    """The sections of the recipe; none where it is not YAML."""
    node = _document(checked)
    if not isinstance(node, MappingNode):
        return ()
    return tuple(_section(checked, entry) for entry in node.entries)


def folds_of(checked: CheckedText) -> list[tuple[int, int]]:
    """First and last line of all that is longer than a line; of comments that are, too."""
    found = dict(_comments(checked))
    node = _document(checked)
    if node is not None:
        for first, last in _folds(checked, node):
            if last > first:
                found[first] = max(last, found.get(first, 0))
    return sorted(found.items())


def _document(checked: CheckedText) -> Node | None:
    try:
        return read_document(checked.text, str(checked.path))
    except RecipeError:
        return None


def _last_line(checked: CheckedText, node: Node) -> int:
    """The last line with something of the node: that of its last part, for blocks have no end."""
    last = first = node.span[0]
    part: Node | None = node
    while part is not None:
        line, column = part.span[2:]
        last = max(last, line - 1 if column == 0 and line > part.span[0] else line)
        if isinstance(part, MappingNode) and part.entries:
            last = max(last, part.entries[-1].span[0])
            part = part.entries[-1].value
        elif isinstance(part, SequenceNode) and part.items:
            part = part.items[-1]
        else:
            part = None
    while last > first and _is_beside(checked.line(last)):
        last -= 1
    return last


def _is_beside(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _section(checked: CheckedText, entry: Entry) -> Part:
    inner: tuple[Part, ...] = ()
    value = entry.value
    if entry.key in ("inputs", "templates") and isinstance(value, MappingNode):
        kind = entry.key[:-1]
        inner = tuple(_of_entry(checked, each, kind) for each in value.entries)
    elif entry.key in ("steps", "tests") and isinstance(value, SequenceNode):
        kind = entry.key[:-1]
        each = enumerate(value.items, start=1)
        inner = tuple(_of_item(checked, item, kind, number) for number, item in each)
    return _of_entry(checked, entry, "section", inner)


def _of_entry(checked: CheckedText, entry: Entry, kind: str, inner: tuple[Part, ...] = ()) -> Part:
    line, column, _, end = entry.span
    value = entry.value
    shown = str(value.value) if isinstance(value, ScalarNode) and value.value is not None else ""
    return Part(
        name=entry.key or "''",
        detail=shown.split("\n")[0][:60],
        kind=kind,
        place=Stretch(line, column, max(0, end - column)),
        last_line=max(line, _last_line(checked, value)),
        inner=inner,
    )


def _of_item(checked: CheckedText, item: Node, kind: str, number: int) -> Part:
    line, column = item.span[:2]
    name, detail, place = f"{kind} {number}", "", Stretch(line, column, 1)
    if isinstance(item, MappingNode):
        detail = next((each.key for each in item.entries if each.key in KINDS), "")
        entry = item.find("id" if kind == "step" else "name")
        if entry is not None and isinstance(entry.value, ScalarNode) and entry.value.value:
            name = str(entry.value.value)
            at = entry.value.place
            place = Stretch(at.line - 1, at.column - 1, at.length)
    last = max(place.line, _last_line(checked, item))
    return Part(name=name, detail=detail, kind=kind, place=place, last_line=last)


def _folds(checked: CheckedText, node: Node) -> Iterator[tuple[int, int]]:
    pending = [node]
    while pending:
        current = pending.pop()
        if isinstance(current, MappingNode):
            for entry in current.entries:
                yield entry.span[0], _last_line(checked, entry.value)
                pending.append(entry.value)
        elif isinstance(current, SequenceNode):
            for item in current.items:
                yield item.span[0], _last_line(checked, item)
                pending.append(item)


def _comments(checked: CheckedText) -> Iterator[tuple[int, int]]:
    first: int | None = None
    for number, line in enumerate((*checked.lines, "")):
        is_comment = line.lstrip().startswith("#")
        if is_comment and first is None:
            first = number
        elif not is_comment and first is not None:
            if number - first > 1:
                yield first, number - 1
            first = None
