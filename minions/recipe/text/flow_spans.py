"""Where a list or mapping in brackets ends: nodes only know where it begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from minions.recipe.text.nodes import Node, Span

if TYPE_CHECKING:
    import yaml


def whole_span(text: str, node: Node) -> Span:
    """The lines and columns of a node in that text, its closing bracket included.

    Args:
        text: What the node was read from. Where the library does not read all of it, such as half
            a character, it is the span that the node has.
    """
    import yaml

    try:
        return _whole_span(text, node)
    except yaml.YAMLError:  # the recipe reader takes more than the library
        return node.span


def _whole_span(text: str, node: Node) -> Span:
    import yaml

    start, depth = node.span[:2], 0
    for event in yaml.parse(text, Loader=yaml.CBaseLoader):
        if depth == 0 and not _begins(event, start):
            continue
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth == 0:
            end = cast("yaml.Mark", event.end_mark)
            return (*start, end.line, end.column)
    return node.span


def _begins(event: yaml.Event, start: tuple[int, int]) -> bool:
    import yaml

    if not isinstance(event, yaml.CollectionStartEvent | yaml.ScalarEvent):
        return False
    mark = cast("yaml.Mark", event.start_mark)
    return (mark.line, mark.column) == start
