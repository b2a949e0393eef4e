"""A picture as Mermaid text, which many sites draw from Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from minions.interfaces.pictures.picture import KINDS, Node, Picture, cut

__all__ = ["mermaid"]

_MOST_OF_A_LINE: Final = 60
_BRACKETS: Final = {
    "goal": ("(", ")"),
    "analyze": ("([", "])"),
    "tool": ("[", "]"),
    "set": ("[/", "/]"),
    "assert": ("{{", "}}"),
    "code": ("[[", "]]"),
}
_CODES: Final = str.maketrans(
    {sign: f"#{ord(sign)};" for sign in "\"#&'<>\\`;"}  # Mermaid's own way of escaping
)


def mermaid(picture: Picture) -> str:
    """A flowchart. Nodes are called `n1`, `n2` …, so that no id of a step can break it."""
    return "\n".join(_lines(picture)) + "\n"


def _lines(picture: Picture) -> Iterator[str]:
    yield "flowchart TD"
    for number, node in enumerate(picture.nodes, 1):
        opening, closing = _BRACKETS[node.kind]
        yield f'  n{number}{opening}"{_text(number, node)}"{closing}:::{node.kind}'
    for edge in picture.edges:
        arrow = "-.->" if edge.is_dashed else "-->"
        yield f"  n{edge.start + 1} {arrow} n{edge.end + 1}"
    shown = {node.kind for node in picture.nodes}
    for kind in KINDS:
        if kind in shown:
            yield f"  classDef {kind} stroke:{_COLOURS[kind]},stroke-width:2px"


def _text(number: int, node: Node) -> str:
    parts = (f"{number} · {node.id}", f"{node.kind}: {node.label}".rstrip(": "), *node.notes)
    return "<br/>".join(cut(part, _MOST_OF_A_LINE).translate(_CODES) for part in parts)


_COLOURS: Final = {
    "goal": "#7c3aed",
    "analyze": "#c026d3",
    "tool": "#0284c7",
    "set": "#64748b",
    "assert": "#d97706",
    "code": "#16a34a",
}
"""Of the outline: fills and text stay those of the page's theme, light or dark."""
