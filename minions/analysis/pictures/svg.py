"""A picture as one SVG file for light and dark pages, without external scripts or fonts."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

from attrs import frozen

from minions.analysis.pictures.picture import (
    Edge,
    Layout,
    Neighbours,
    Node,
    Picture,
    cut,
    laid_out,
    status_class,
)
from minions.recipe.kinds.kind_registry import STEP_KINDS

_BOX: Final = 224.0
"""Width of a box in pixels, the unit of all lengths here."""
_PADDING: Final = 12.0
_LINE: Final = 17.0
_BEND: Final = 10.0
_GAP: Final = 22.0
_ROW_GAP: Final = 46.0
_STRAIGHT: Final = 10.0
"""Length of the straight end of an edge, so that its arrow points at the box."""
_MARGIN: Final = 24.0
_HEAD: Final = 64.0
"""Height of title and legend."""
_LEGEND_ENTRY: Final = 76.0
_LEGEND_OF_DASHES: Final = 190.0
_ASIDE: Final = 40.0
"""Distance from a box's centre at which back edges leave and reach it."""
_TAIL: Final = 9.0
"""Height of the tail that makes a question's box a speech bubble."""


def svg(picture: Picture) -> str:
    """The SVG text. Each box has its full text as a tooltip."""
    return "\n".join(_Drawing(picture).lines()) + "\n"


@frozen(kw_only=True)
class _Band:
    """The vertical space of one row of boxes."""

    top: float
    bottom: float


class _Drawing:
    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._layout = laid_out(picture)
        self._texts = [list(_texts(number, node)) for number, node in enumerate(picture.nodes, 1)]
        self._middles = [_MARGIN + place for place in middles(self._layout, self._width_of, _GAP)]
        self._bands = list(self._stack(self._layout))
        self._row_of = {item: at for at, row in enumerate(self._layout.rows) for item in row}

    def _width_of(self, item: int) -> float:
        return _BOX if self._layout.is_step(item) else _BEND

    def _height_of(self, step: int) -> float:
        return 2 * _PADDING + _LINE * len(self._texts[step]) - 5

    def _stack(self, layout: Layout) -> Iterator[_Band]:
        top = _MARGIN + _HEAD
        for row in layout.rows:
            height = max((self._height_of(item) for item in row if layout.is_step(item)), default=0)
            yield _Band(top=top, bottom=top + height)
            top += height + _ROW_GAP

    # --- the file -----------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        right = max((x + self._width_of(at) / 2 for at, x in enumerate(self._middles)), default=0)
        width = max(right, self._legend_width()) + _MARGIN
        height = (self._bands[-1].bottom if self._bands else _HEAD) + _MARGIN
        title = escape(cut(self._picture.title, 200))
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="minions-steps" role="img" '
            f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
        )
        yield f"<title>Steps of {title}</title>"
        yield f"<style>{_STYLE}</style>"
        yield (
            '<defs><marker id="minions-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
            '<path class="head" d="M0 0.5 8 4 0 7.5Z"/></marker>'
            '<marker id="minions-back" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
            '<path class="head back" d="M0 0.5 8 4 0 7.5Z"/></marker></defs>'
        )
        yield f'<rect class="page" width="{width:.0f}" height="{height:.0f}"/>'
        yield f'<text class="name" x="{_MARGIN:.0f}" y="38">{title}</text>'
        yield from self._legend()
        for edge, path in zip(self._picture.edges, self._layout.paths, strict=True):
            yield self._line(edge, path)
        for step in range(len(self._picture.nodes)):
            yield from self._box(step)
        yield "</svg>"

    def _legend_width(self) -> float:
        title = _width(cut(self._picture.title, 200)) * 1.5
        kinds = len(self._kinds()) * _LEGEND_ENTRY
        return _MARGIN + max(title, kinds + len(self._kinds_of_lines()) * _LEGEND_OF_DASHES)

    def _kinds(self) -> list[str]:
        shown = {node.kind for node in self._picture.nodes}
        return [kind.name for kind in STEP_KINDS if kind.name in shown]

    def _kinds_of_lines(self) -> list[tuple[str, str]]:
        """CSS class and caption of the kinds of edges that the legend explains."""
        edges = self._picture.edges
        kinds = (
            [("dashed", "however that step ended")] if any(edge.is_dashed for edge in edges) else []
        )
        return [*kinds, ("back", "back edge: runs again")] if any(e.back for e in edges) else kinds

    def _legend(self) -> Iterator[str]:
        left = _MARGIN
        for kind in self._kinds():
            yield f'<circle class="bar {kind}" cx="{left + 5:.0f}" cy="60" r="5"/>'
            yield f'<text class="note" x="{left + 15:.0f}" y="64">{kind}</text>'
            left += _LEGEND_ENTRY
        for name, words in self._kinds_of_lines():
            yield f'<path class="edge {name}" d="M{left:.0f} 60h26"/>'
            yield f'<text class="note" x="{left + 33:.0f}" y="64">{words}</text>'
            left += _LEGEND_OF_DASHES

    # --- edges --------------------------------------------------------------------------------

    def _line(self, edge: Edge, path: Sequence[int]) -> str:
        name = " back" if edge.back else " dashed" if edge.is_dashed else ""
        arrow = "back" if edge.back else "arrow"
        if edge.start == edge.end:
            shape = self._loop(edge)
        elif self._row_of[edge.start] == self._row_of[edge.end]:
            shape = self._arch(edge)
        else:
            shape = self._curve(path, _ASIDE if edge.back else 0.0)
        return f'<path class="edge{name}" d="{shape}" marker-end="url(#minions-{arrow})"/>'

    def _curve(self, path: Sequence[int], aside: float) -> str:
        """The path of an edge: vertical beside the boxes of each row, curved only between rows."""
        goes_down = self._row_of[path[0]] < self._row_of[path[-1]]
        ends = {path[0]: aside, path[-1]: aside}
        x, y = self._middles[path[0]] + aside, self._side(path[0], is_lower=goes_down)
        drawn = [f"M{x:.1f} {y:.1f}"]
        for item, following in itertools.pairwise(path):
            band, other = self._bands[self._row_of[item]], self._bands[self._row_of[following]]
            start, end = (band.bottom, other.top) if goes_down else (band.top, other.bottom)
            end += -_STRAIGHT if goes_down else _STRAIGHT
            to, middle = self._middles[following] + ends.get(following, 0.0), (start + end) / 2
            drawn.append(f"V{start:.1f}")
            drawn.append(f"C{x:.1f} {middle:.1f} {to:.1f} {middle:.1f} {to:.1f} {end:.1f}")
            x = to
        drawn.append(f"V{self._side(path[-1], is_lower=not goes_down):.1f}")
        return "".join(drawn)

    def _side(self, step: int, *, is_lower: bool) -> float:
        """The y coordinate at which edges leave or reach the box. All boxes of
        a row are aligned at the top.
        """
        top = self._bands[self._row_of[step]].top
        return top + self._height_of(step) if is_lower else top

    def _arch(self, edge: Edge) -> str:
        """The path of an edge between two boxes of one row: an arch above them."""
        start, end = self._middles[edge.start] + _ASIDE, self._middles[edge.end] + _ASIDE
        y = self._side(edge.start, is_lower=False)
        return f"M{start:.1f} {y:.1f}c0 -30 {end - start:.1f} -30 {end - start:.1f} 0"

    def _loop(self, edge: Edge) -> str:
        x = self._middles[edge.start] + _BOX / 2 - 30
        y = self._side(edge.start, is_lower=False)
        return f"M{x:.1f} {y:.1f}c0 -20 20 -20 20 0"

    # --- boxes --------------------------------------------------------------------------------

    def _box(self, step: int) -> Iterator[str]:
        node = self._picture.nodes[step]
        left = self._middles[step] - _BOX / 2
        top, height = self._side(step, is_lower=False), self._height_of(step)
        ended = f": {node.status}" if node.status is not None else ""
        whole = (f"{step + 1} {node.id}{ended}", f"{node.kind}: {node.label}", *node.notes)
        name = node.kind if node.status is None else f"{node.kind} {status_class(node.status)}"
        yield f'<g class="{name}"><title>{escape(_printable(chr(10).join(whole)))}</title>'
        if node.kind == "recipe":  # a second box behind it: there are steps inside
            yield (
                f'<rect class="behind" x="{left + 4:.1f}" y="{top + 4:.1f}" width="{_BOX:.1f}" '
                f'height="{height:.1f}" rx="7"/>'
            )
        yield (
            f'<rect class="box" x="{left:.1f}" y="{top:.1f}" width="{_BOX:.1f}" '
            f'height="{height:.1f}" rx="{14 if node.kind == "ask" else 7}"/>'
        )
        if node.kind == "ask":
            x, y = left + 26, top + height - 0.8
            yield f'<path class="box" d="M{x:.1f} {y:.1f}v{_TAIL:.1f}l14 {-_TAIL:.1f}"/>'
        yield f'<path class="bar" d="M{left + 4:.1f} {top + 8:.1f}v{height - 16:.1f}"/>'
        kinds = ("id", "label") if node.label else ("id",)
        for at, text in enumerate(self._texts[step]):
            kind = kinds[at] if at < len(kinds) else "note"
            if node.status is not None and at == len(self._texts[step]) - 1:
                kind = "status"
            x, y = left + _PADDING, top + _PADDING + 8 + at * _LINE
            yield f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
        yield "</g>"


def _texts(number: int, node: Node) -> Iterator[str]:
    """The lines of text in a box, cut to its width."""
    room = _BOX - 2 * _PADDING
    yield _fitting(f"{number} {node.id}", room / 1.2)  # larger and bold
    if node.label:
        yield _fitting(node.label, room)
    for note in node.notes:
        yield _fitting(note, room)
    if node.status is not None:
        yield _fitting(node.status, room / 1.1)  # bold


def _fitting(text: str, room: float) -> str:
    line = cut(text, 200)
    if _width(line) <= room:
        return line
    while line and _width(line) > room - _WIDTHS["…"]:
        line = line[:-1]
    return line.rstrip() + "…"


_WIDTHS: Final[Mapping[str, float]] = {
    **dict.fromkeys("ijl.,:;|!'` ", 3.6),
    **dict.fromkeys('frt()[]{}/\\-"I', 5.0),
    **dict.fromkeys("<>=+~&#", 9.6),
    **dict.fromkeys("mwMW@%—…", 11.0),
}
_USUAL: Final = 7.0
_CAPITAL: Final = 8.2
_WIDE: Final = 12.5


def _width(text: str) -> float:
    """The approximate width of a text at 12 pixels; rather too large, because fonts differ."""
    return sum(_width_of(sign) for sign in text)


def _width_of(sign: str) -> float:
    if sign in _WIDTHS:
        return _WIDTHS[sign]
    if unicodedata.east_asian_width(sign) in "WF":
        return _WIDE
    return _CAPITAL if sign.isupper() else _USUAL


def _printable(text: str) -> str:
    """The text without characters that XML cannot represent."""
    return "".join(sign if sign.isprintable() or sign == "\n" else " " for sign in text)


# --- colours ----------------------------------------------------------------------------------


@frozen(kw_only=True)
class _Palette:
    page: str
    box: str
    ink: str
    pale: str
    line: str
    back: str
    kinds: Mapping[str, str]
    ends: Mapping[str, str]
    """Colours of boxes in a run, by the status of the step."""

    @property
    def rules(self) -> str:
        rules = {
            ".page": f"fill:{self.page}",
            ".box": f"fill:{self.box};stroke:{self.line}",
            ".edge": f"stroke:{self.line}",
            ".head": f"fill:{self.line}",
            ".behind": f"fill:{self.page}",
            ".edge.back": f"stroke:{self.back}",
            ".head.back": f"fill:{self.back}",
            ".name, .id, .label, .status": f"fill:{self.ink}",
            ".note": f"fill:{self.pale}",
        }
        for kind, colour in self.kinds.items():
            rules[f".{kind} .box, .{kind} .behind"] = f"stroke:{colour}"
            rules[f".{kind} path.bar"] = f"stroke:{colour}"
            rules[f"circle.{kind}"] = f"fill:{colour}"
        for end, colour in self.ends.items():
            rules[f".{end} .box"] = f"fill:{colour}"
        return "".join(f"{_scope(names)}{{{rule}}}\n" for names, rule in rules.items())


def _scope(names: str) -> str:
    """The style rules limited to this picture, wherever its text is embedded."""
    return ",".join(f".minions-steps {name.strip()}" for name in names.split(","))


_LIGHT: Final = _Palette(
    page="#ffffff",
    box="#fbfbfd",
    ink="#16181d",
    pale="#5b6270",
    line="#9aa1ad",
    back="#c2410c",
    ends={
        "has-completed": "#dcfce7",
        "has-failed": "#fee2e2",
        "is-waiting": "#fef3c7",
        "is-open": "#e0f2fe",
    },
    kinds={kind.name: kind.look.light for kind in STEP_KINDS},
)
_DARK: Final = _Palette(
    page="#14161a",
    box="#1d2026",
    ink="#eceef2",
    pale="#a3aab8",
    line="#6d7482",
    back="#fb923c",
    ends={
        "has-completed": "#12351f",
        "has-failed": "#4a1717",
        "is-waiting": "#453208",
        "is-open": "#0c3347",
    },
    kinds={kind.name: kind.look.dark for kind in STEP_KINDS},
)
_STYLE: Final = (
    ".minions-steps text{font:12px system-ui,'Segoe UI',Helvetica,Arial,sans-serif}\n"
    ".minions-steps .name{font-size:18px;font-weight:600}\n"
    ".minions-steps .id{font-size:13px;font-weight:600}\n"
    ".minions-steps .edge{fill:none;stroke-width:1.3}\n"
    ".minions-steps .dashed{stroke-dasharray:5 4}\n"
    ".minions-steps .edge.back{stroke-dasharray:2 3}\n"
    ".minions-steps .status{font-weight:600}\n"
    ".minions-steps .has-not-run{opacity:.55}\n"
    ".minions-steps path.bar{stroke-width:4;stroke-linecap:round}\n"
    f"{_LIGHT.rules}@media (prefers-color-scheme:dark){{\n{_DARK.rules}}}\n"
)


# --- horizontal positions of a layout's items ----------------------------------------------------


_SWEEPS: Final = 12
_CENTRE: Final = 0.0
"""Where rows are placed at first, and where a step without connections is pulled to."""
_PULL_OF_THE_CENTRE: Final = 0.1
_PULL_OF_A_BEND: Final = 4.0
"""Weight of a bend relative to a step: long edges become straight."""


def middles(layout: Layout, width_of: Callable[[int], float], gap: float) -> list[float]:
    """The horizontal centre of each item; the left edge of the leftmost item is at 0.

    Args:
        width_of: The width of an item.
        gap: Distance between neighbours in a row.
    """
    row_of = {item: depth for depth, row in enumerate(layout.rows) for item in row}
    joined = Neighbours(layout.paths, [row_of[item] for item in range(len(row_of))])
    places = [0.0] * len(row_of)
    for row in layout.rows:
        total = sum(width_of(item) for item in row) + gap * (len(row) - 1)
        for item, offset in zip(row, _offsets(row, width_of, gap), strict=True):
            places[item] = offset - total / 2
    for sweep in range(_SWEEPS):
        wanted = (joined.above, joined.below, joined.both)[sweep % 3]
        for row in layout.rows if sweep % 2 == 0 else layout.rows[::-1]:
            _pull(row, places, wanted, layout, width_of, gap)
    left = min((places[item] - width_of(item) / 2 for item in row_of), default=0.0)
    return [place - left for place in places]


def _offsets(row: Sequence[int], width_of: Callable[[int], float], gap: float) -> list[float]:
    """The centres of a row's items packed as closely as possible, from 0."""
    steps = [(width_of(one) + width_of(other)) / 2 + gap for one, other in itertools.pairwise(row)]
    start = width_of(row[0]) / 2 if row else 0.0
    return list(itertools.accumulate(steps, initial=start))


def _pull(
    row: Sequence[int],
    places: list[float],
    joined: Mapping[int, Sequence[int]],
    layout: Layout,
    width_of: Callable[[int], float],
    gap: float,
) -> None:
    """Move the row's items towards the centre of their neighbours,
    as far as order and space allow.
    """
    offsets = _offsets(row, width_of, gap)
    wishes, weights = list[float](), list[float]()
    for item, offset in zip(row, offsets, strict=True):
        near = [places[other] for other in joined.get(item, ())]
        wishes.append((sum(near) / len(near) if near else _CENTRE) - offset)
        pull = 1.0 if layout.is_step(item) else _PULL_OF_A_BEND
        weights.append(pull if near else _PULL_OF_THE_CENTRE)
    for item, offset, place in zip(row, offsets, _rising(wishes, weights), strict=True):
        places[item] = place + offset


def _rising(wishes: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing numbers nearest to `wishes` (weighted least
    squares, by pooling neighbours).
    """
    pools: list[tuple[float, float, int]] = []  # value, weight, how many
    for wish, weight in zip(wishes, weights, strict=True):
        value, total, count = wish, weight, 1
        while pools and pools[-1][0] > value:
            other, other_weight, other_count = pools.pop()
            value = (value * total + other * other_weight) / (total + other_weight)
            total, count = total + other_weight, count + other_count
        pools.append((value, total, count))
    return [value for value, _, count in pools for _ in range(count)]
