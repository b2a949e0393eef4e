"""The layout of a picture: rows, the order in each row, and the paths of edges between rows.

Rows by longest path, at most `MOST_IN_A_ROW` steps each; order by barycentres (Sugiyama's method).
The layout of a picture is always the same. Independent of pixels.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from minions.analysis.pictures.picture import Picture

MOST_IN_A_ROW: Final = 6
"""Steps in one row; further ones move one row down, so that a picture stays readable."""
_MOST_BENDS: Final = 5_000
"""Bends of all edges together. With more, edges are drawn straight:
nobody could follow them anyway.
"""
_SWEEPS: Final = 6


@frozen(kw_only=True)
class Layout:
    """Rows of items: the steps with their indices in the picture, followed
    by the bends of long edges.
    """

    rows: tuple[tuple[int, ...], ...]
    """Items from top to bottom, each row from left to right."""
    paths: tuple[tuple[int, ...], ...]
    """For each edge the items that it passes, including its ends."""
    steps: int
    """Number of items that are steps."""

    def is_step(self, item: int) -> bool:
        """Whether the item is a step, not a bend."""
        return item < self.steps


def laid_out(picture: Picture) -> Layout:
    """Compute rows, bends and order."""
    depths = _depths(picture)
    paths = _paths(picture, depths)
    rows: list[list[int]] = [[] for _ in range(max(depths, default=-1) + 1)]
    for item, depth in enumerate(depths):
        rows[depth].append(item)
    return Layout(
        rows=_ordered(rows, Neighbours(paths, depths)),
        paths=tuple(paths),
        steps=len(picture.nodes),
    )


def rows_of(picture: Picture) -> tuple[tuple[int, ...], ...]:
    """The steps by row; steps in one row do not depend on each other."""
    layout = laid_out(picture)
    return tuple(tuple(filter(layout.is_step, row)) for row in layout.rows)


class Neighbours:
    """The items in the rows right above and right below that an item is connected to."""

    def __init__(self, paths: Sequence[Sequence[int]], depths: Sequence[int]) -> None:
        self.above: dict[int, list[int]] = {}
        self.below: dict[int, list[int]] = {}
        for path in paths:
            for one, other in itertools.pairwise(path):
                upper, lower = sorted((one, other), key=depths.__getitem__)
                if depths[lower] - depths[upper] == 1:
                    self.above.setdefault(lower, []).append(upper)
                    self.below.setdefault(upper, []).append(lower)
        self.both = {
            item: [*self.above.get(item, ()), *self.below.get(item, ())]
            for item in (*self.above, *self.below)
        }


# --- rows -------------------------------------------------------------------------------------


def _depths(picture: Picture) -> list[int]:
    """The row of each step: below all steps that it depends on, where there is room."""
    count = len(picture.nodes)
    forward = _without_cycles(count, picture)
    waits = [0] * count
    following: list[list[int]] = [[] for _ in range(count)]
    for start, end in forward:
        waits[end] += 1
        following[start].append(end)
    depths, taken = [0] * count, dict[int, int]()
    ready = [(0, step) for step in range(count) if waits[step] == 0]
    while ready:
        depth, step = heapq.heappop(ready)
        while taken.get(depth, 0) >= MOST_IN_A_ROW:
            depth += 1
        depths[step], taken[depth] = depth, taken.get(depth, 0) + 1
        for other in following[step]:
            waits[other] -= 1
            depths[other] = max(depths[other], depth + 1)
            if waits[other] == 0:
                heapq.heappush(ready, (depths[other], other))
    return depths


def _without_cycles(count: int, picture: Picture) -> list[tuple[int, int]]:
    """The edges without back edges and without those that close a cycle of transitions."""
    following: list[list[int]] = [[] for _ in range(count)]
    for edge in picture.edges:
        if edge.back is None:
            following[edge.start].append(edge.end)
    forward: list[tuple[int, int]] = []
    state = [0] * count  # 0 not seen, 1 on the way, 2 done
    for root in range(count):
        if state[root]:
            continue
        state[root] = 1
        way = [(root, iter(following[root]))]
        while way:
            step, rest = way[-1]
            other = next(rest, None)
            if other is None:
                state[step] = 2
                way.pop()
            elif state[other] != 1:
                forward.append((step, other))
                if state[other] == 0:
                    state[other] = 1
                    way.append((other, iter(following[other])))
    return forward


def _paths(picture: Picture, depths: list[int]) -> list[tuple[int, ...]]:
    """The paths of all edges, with one bend in each row that an edge crosses;
    appends the bends to `depths`.
    """
    crossed = sum(abs(depths[edge.end] - depths[edge.start]) - 1 for edge in picture.edges)
    paths: list[tuple[int, ...]] = []
    for edge in picture.edges:
        above, below = depths[edge.start], depths[edge.end]
        step = 1 if above < below else -1
        between = range(above + step, below, step) if crossed <= _MOST_BENDS else ()
        bends = range(len(depths), len(depths) + len(between))
        depths.extend(between)
        paths.append((edge.start, *bends, edge.end))
    return paths


# --- order ------------------------------------------------------------------------------------


def _ordered(rows: list[list[int]], joined: Neighbours) -> tuple[tuple[int, ...], ...]:
    best, fewest = [list(row) for row in rows], _crossings(rows, joined)
    for sweep in range(_SWEEPS):
        if fewest == 0:
            break
        if sweep % 2 == 0:
            for upper, row in itertools.pairwise(rows):
                _sort(row, upper, joined.above)
        else:
            for lower, row in itertools.pairwise(reversed(rows)):
                _sort(row, lower, joined.below)
        crossings = _crossings(rows, joined)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return tuple(tuple(row) for row in best)


def _sort(row: list[int], other: Sequence[int], joined: Mapping[int, Sequence[int]]) -> None:
    """Sort a row by the median of the neighbours in the other row; items without
    neighbours keep about their place.
    """
    places = {item: (at + 0.5) / len(other) for at, item in enumerate(other)}
    own = {item: (at + 0.5) / len(row) for at, item in enumerate(row)}

    def middle(item: int) -> float:
        neighbours = joined.get(item, ())
        if not neighbours:
            return own[item]
        return sum(places[neighbour] for neighbour in neighbours) / len(neighbours)

    row.sort(key=middle)


def _crossings(rows: Sequence[Sequence[int]], joined: Neighbours) -> int:
    """Number of crossings between the edges of two neighbouring rows."""
    count = 0
    for upper, lower in itertools.pairwise(rows):
        places = {item: at for at, item in enumerate(lower)}
        seen: list[int] = []  # where earlier lines end, sorted
        for item in upper:
            ends = [places[other] for other in joined.below.get(item, ())]
            count += sum(len(seen) - bisect.bisect_right(seen, end) for end in ends)
            for end in ends:
                bisect.insort(seen, end)
    return count
