"""A picture as Mermaid text, which many sites render in Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from minions.analysis.pictures.picture import Node, Picture, cut, status_class
from minions.recipe.kinds.registry import KINDS, STEP_KINDS

_MOST_OF_A_LINE: Final = 60
_CODES: Final = str.maketrans(
    {sign: f"#{ord(sign)};" for sign in "\"#&'<>\\`;"}  # Mermaid's own way of escaping
)


def mermaid(picture: Picture) -> str:
    """A Mermaid flowchart. Nodes are named `n1`, `n2` …, so that
    no step id can break the syntax.
    """
    return "\n".join(_lines(picture)) + "\n"


def _lines(picture: Picture) -> Iterator[str]:
    yield "flowchart TD"
    for number, node in enumerate(picture.nodes, 1):
        opening, closing = KINDS[node.kind].look.brackets
        yield f'  n{number}{opening}"{_text(number, node)}"{closing}:::{node.kind}'
    for edge in picture.edges:
        arrow = _BACK[edge.back] if edge.back else "-.->" if edge.is_dashed else "-->"
        yield f"  n{edge.start + 1} {arrow} n{edge.end + 1}"
    shown = {node.kind for node in picture.nodes}
    for kind in STEP_KINDS:
        if kind.name in shown:
            # Only the outline is coloured: fill and text follow the page's theme, light or dark.
            yield f"  classDef {kind.name} stroke:{kind.look.outline},stroke-width:2px"
    yield from _status_lines(picture)


def _status_lines(picture: Picture) -> Iterator[str]:
    """Classes that colour the boxes of a run's steps by status."""
    groups: dict[str, list[str]] = {}
    for number, node in enumerate(picture.nodes, 1):
        if node.status is not None:
            groups.setdefault(status_class(node.status), []).append(f"n{number}")
    for name, nodes in groups.items():
        yield f"  class {','.join(nodes)} {name}"
        yield f"  classDef {name} fill:{_FILLS[name]}"


def _text(number: int, node: Node) -> str:
    head = (
        f"{number} · {node.id}" if node.status is None else f"{number} · {node.id}: {node.status}"
    )
    parts = (head, f"{node.kind}: {node.label}".rstrip(": "), *node.notes)
    return "<br/>".join(cut(part, _MOST_OF_A_LINE).translate(_CODES) for part in parts)


_FILLS: Final = {
    "has-completed": "#16a34a33",
    "has-failed": "#dc262644",
    "is-waiting": "#f59e0b44",
    "is-open": "#0284c733",
    "has-not-run": "transparent",
}
"""Translucent, to suit light and dark themes."""
_BACK: Final = {"while": "-. while .->", "goto": "-. on failure .->"}
