"""Paths through a transition graph: what can be reached, and without passing which steps.

Steps are indices; a run starts at step 0. Independent of templates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from attrs import define, field


def _as_edges(following: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, following))


@define(slots=False, eq=False)
class GraphPaths:
    """All paths from the first step; each question costs at most one traversal of the edges."""

    following: tuple[tuple[int, ...], ...] = field(converter=_as_edges)
    """For each step, those that may come right after it."""

    @classmethod
    def of(cls, ids: Sequence[str], graph: Mapping[str, Sequence[str]]) -> GraphPaths:
        """The paths of a recipe's graph; `ids` are its steps in list order."""
        places = {step_id: place for place, step_id in enumerate(ids)}
        return cls([places[other] for other in graph.get(step_id, ())] for step_id in ids)

    @cached_property
    def ends(self) -> frozenset[int]:
        """Steps without a successor."""
        return frozenset(step for step, others in enumerate(self.following) if not others)

    @cached_property
    def reached(self) -> frozenset[int]:
        """Steps that can be reached."""
        return frozenset(self._parents(0, ()))

    def after(self, step: int) -> frozenset[int]:
        """Steps that may run after that step; includes the step itself if it lies on a cycle."""
        found: set[int] = set()
        pending = list(self.following[step])
        while pending:
            other = pending.pop()
            if other not in found:
                found.add(other)
                pending.extend(self.following[other])
        return frozenset(found)

    def way(self, to: Collection[int], around: Collection[int] = ()) -> tuple[int, ...] | None:
        """A shortest path from the first step to one of `to` that passes none of `around`.

        The target itself may be one of `around`. None: there is no such path.
        """
        parents = self._parents(0, around)
        end = next((step for step in parents if step in to), None)
        if end is None:
            return None
        way = [end]
        while (step := parents[way[-1]]) is not None:
            way.append(step)
        return tuple(reversed(way))

    @cached_property
    def circle(self) -> tuple[int, ...] | None:
        """The steps of a cycle, the first one again at the end; None: the graph has no cycle."""
        done: set[int] = set()
        path, places = [0], {0: 0}
        pending = [iter(self.following[0])]
        while pending:
            step = next(pending[-1], None)
            if step is None:
                pending.pop()
                left = path.pop()
                del places[left]
                done.add(left)
            elif step in places:
                return (*path[places[step] :], step)
            elif step not in done:
                places[step] = len(path)
                path.append(step)
                pending.append(iter(self.following[step]))
        return None

    def most_visits(self, step: int, most_steps: int) -> int:
        """How often a run of `most_steps` steps can visit that step, at most."""
        first = self.way([step])
        if first is None or len(first) > most_steps:
            return 0
        length = self._round(step)
        return 1 if length is None else 1 + (most_steps - len(first)) // length

    def _round(self, step: int) -> int | None:
        """Length of the shortest cycle through that step; None: there is none."""
        lengths = [self._distance(other, step) for other in self.following[step]]
        return min((length + 1 for length in lengths if length is not None), default=None)

    def _distance(self, start: int, end: int) -> int | None:
        parents = self._parents(start, ())
        if end not in parents:
            return None
        count, step = 0, parents[end]
        while step is not None:
            count, step = count + 1, parents[step]
        return count

    def _parents(self, start: int, around: Collection[int]) -> dict[int, int | None]:
        """Each reached step with its predecessor, nearest first."""
        parents: dict[int, int | None] = {start: None}
        pending = deque([start])
        while pending:
            step = pending.popleft()
            for other in self.following[step] if step not in around else ():
                if other not in parents:
                    parents[other] = step
                    pending.append(other)
        return parents
