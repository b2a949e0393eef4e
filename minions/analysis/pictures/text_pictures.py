"""A picture as text: for Mermaid, as an outline for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from minions.analysis.pictures.picture import Node, Picture, cut, rows_of, status_class
from minions.data.json_values import JsonValue
from minions.recipe.kinds.kind_registry import KINDS, STEP_KINDS

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


# --- a picture as plain data, for programs that draw it themselves -------------------------------


def picture_to_json(picture: Picture) -> dict[str, JsonValue]:
    """`{"recipe", "nodes": [{"id", "kind", "label", "notes", "status"}], "edges": [{"from", "to",
    "dashed", "back"}], "layers": [[id]]}`; layers from top to bottom.
    """
    ids = [node.id for node in picture.nodes]
    return {
        "recipe": picture.title,
        "nodes": [
            {
                "id": node.id,
                "kind": node.kind,
                "label": node.label,
                "notes": list(node.notes),
                "status": node.status,
            }
            for node in picture.nodes
        ],
        "edges": [
            {
                "from": ids[edge.start],
                "to": ids[edge.end],
                "dashed": edge.is_dashed,
                "back": edge.back,
            }
            for edge in picture.edges
        ],
        "layers": [[ids[step] for step in row] for row in rows_of(picture)],
    }


# --- a picture as plain text, for terminals and mail ---------------------------------------------


_WIDTH: Final = 98
_MOST_LEVELS: Final = 12
"""Depth at which a branch continues at the left margin."""
_MOST_OF_A_LABEL: Final = 40


def outline(picture: Picture) -> str:
    """The tree in ASCII: each step once, below the latest of the steps that it depends on."""
    return "".join(f"{line}\n" for line in _Outline(picture).lines())


class _Outline:
    def __init__(self, picture: Picture) -> None:
        self._nodes = picture.nodes
        count = len(picture.nodes)
        depths = {step: depth for depth, row in enumerate(rows_of(picture)) for step in row}
        self._before: list[list[int]] = [[] for _ in range(count)]
        self._weak = {(edge.start, edge.end) for edge in picture.edges if edge.is_dashed}
        for edge in picture.edges:
            if edge.back is None:  # the notes name the back edges
                self._before[edge.end].append(edge.start)
        self._children: list[list[int]] = [[] for _ in range(count)]
        self._roots: list[int] = []
        for step in sorted(range(count), key=lambda step: (depths[step], step)):
            above = [other for other in self._before[step] if depths[other] < depths[step]]
            latest = max(above, key=lambda other: (depths[other], other), default=None)
            (self._roots if latest is None else self._children[latest]).append(step)

    def lines(self) -> Iterator[str]:
        for root in self._roots:  # `_branch` appends to the list while it is iterated
            yield from self._branch(root, "", None)

    def _branch(self, step: int, indent: str, parent: int | None) -> Iterator[str]:
        """The step and its descendants. An only child is placed below
        its parent, not to the right.
        """
        yield self._line(indent, step, parent)
        children = self._children[step]
        below = self._hanging(indent)
        while len(children) == 1:
            yield f"{below} v"
            parent, step = step, children[0]
            yield self._line(below, step, parent)
            children = self._children[step]
        if len(below) >= 3 * _MOST_LEVELS:
            self._roots += children
            return
        for child in children:
            mark = "`- " if child == children[-1] else "|- "
            yield from self._branch(child, f"{below} {mark}", step)

    @staticmethod
    def _hanging(indent: str) -> str:
        """The left margin of the lines below a step."""
        if indent.endswith("|- "):
            return f"{indent[:-3]}|  "
        return f"{indent[:-3]}   " if indent else ""

    def _line(self, indent: str, step: int, parent: int | None) -> str:
        node = self._nodes[step]
        what = f"{node.kind} {cut(node.label, _MOST_OF_A_LABEL, '...')}".rstrip()
        status = [f"[{node.status}]"] if node.status is not None else []
        named = " ".join((f"{step + 1} {node.id}:", *status, what))
        parts = (named, *self._waits(step, parent), *node.notes)
        return indent + cut("; ".join(parts), _WIDTH - len(indent), "...")

    def _waits(self, step: int, parent: int | None) -> Iterator[str]:
        """The dependencies of a step that the tree's lines do not show."""
        before = self._before[step]
        others = [
            str(other + 1)
            for other in before
            if other != parent and (other, step) not in self._weak
        ]
        weak = [str(other + 1) for other in before if (other, step) in self._weak]
        if others:
            yield f"{'after' if parent is None else 'also after'} {', '.join(others)}"
        if weak:
            yield f"however {', '.join(weak)} ended"
