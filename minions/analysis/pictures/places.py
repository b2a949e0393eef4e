"""Horizontal positions of a layout's items: near the items
they are connected to, without overlap.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from minions.analysis.pictures.layout import Layout, Neighbours

__all__ = ["middles"]

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
