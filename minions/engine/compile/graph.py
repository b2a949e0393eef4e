"""The two kinds of step graph, which are checked when they are built."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from minions.contracts.graph import StepGraph
from minions.contracts.steps import Step
from minions.data.errors import GraphError, did_you_mean, near_names
from minions.engine.history.keys import RESERVED_SIGNS


class _CheckedSteps(StepGraph):
    """A graph of steps with unique, valid ids."""

    def __init__(self, steps: Iterable[Step[object]]) -> None:
        self._steps = tuple(steps)
        if not self._steps:
            raise GraphError("A graph needs at least one step; the list is empty.")
        self._index: dict[str, int] = {}
        for position, step in enumerate(self._steps):
            _check_id(step.id, position)
            if step.id in self._index:
                raise GraphError(f"Two steps have the id '{step.id}'. Ids are unique in a graph.")
            self._index[step.id] = position

    @property
    def steps(self) -> tuple[Step[object], ...]:
        """The steps in list order."""
        return self._steps

    def find(self, step_id: str) -> Step[object] | None:
        """The step with that id; None: there is none."""
        index = self._index.get(step_id)
        return None if index is None else self._steps[index]

    def index(self, step_id: str) -> int:
        """The position of a step in list order, from 0."""
        return self._index[step_id]

    def _check_known(self, step_id: str, role: str) -> None:
        if step_id not in self._index:
            raise GraphError(
                f"{role} '{step_id}' is no step of this graph.{did_you_mean(step_id, self._index)} "
                f"Steps are: {', '.join(self._index)}.",
                suggestions=near_names(step_id, self._index),
            )


def _check_id(step_id: object, position: int) -> None:
    if not isinstance(step_id, str) or not step_id.strip():
        raise GraphError(f"Step {position + 1} has the id {step_id!r}; a non-empty text is needed.")
    if bad := next((sign for sign in RESERVED_SIGNS if sign in step_id), None):
        raise GraphError(f"The step id '{step_id}' holds a '{bad}', which separates keys of a run.")


class DefaultStepGraph(_CheckedSteps):
    """A graph of transitions: after a step one of its successors is chosen."""

    def __init__(
        self,
        steps: Iterable[Step[object]],
        edges: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Build and check the graph.

        Args:
            steps: The first one starts.
            edges: Step id to the ids that may follow, in order of preference. None means a chain in
                list order; an empty mapping means no edges, so only the first step runs.
        Raises:
            GraphError: No steps, a duplicate id, an edge from or to an unknown id.
        """
        super().__init__(steps)
        if edges is None:
            ids = [step.id for step in self._steps]
            edges = {before: [after] for before, after in itertools.pairwise(ids)}
        for source, targets in edges.items():
            self._check_known(source, "The start of an edge,")
            for target in targets:
                self._check_known(target, f"The edge from '{source}' leads nowhere:")
        self._edges = {source: tuple(targets) for source, targets in edges.items()}

    def possible_next_steps(self, step: Step[object]) -> tuple[Step[object], ...]:
        """The successors of a step, in the order of its edges."""
        targets = self._edges.get(step.id, ())
        return tuple(self._steps[self._index[target]] for target in targets)


_NONE: Final[frozenset[int]] = frozenset()
"""Shared by all steps that read nothing."""


class DependencyStepGraph(_CheckedSteps):
    """A graph of dependencies: a step may start when all steps that it depends on have ended."""

    def __init__(
        self,
        steps: Iterable[Step[object]],
        depends_on: Mapping[str, Sequence[str]],
        after: Mapping[str, Sequence[str]] | None = None,
        *,
        reads: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Build and check the graph.

        Args:
            steps: List order breaks ties, so that the order is stable.
            depends_on: Step id to the ids whose results it needs.
            after: Step id to ids that only have to end first, however they end.
            reads: Step id to those of `depends_on` without whose output it cannot run.
        Raises:
            GraphError: No steps, a duplicate id, an unknown id, a cycle.
        """
        super().__init__(steps)
        self._needs: list[tuple[int, ...]] = []
        self._waits: list[tuple[int, ...]] = []
        self._reads: list[frozenset[int]] = []
        dependents: list[list[int]] = [[] for _ in self._steps]
        for position, step in enumerate(self._steps):
            needs = self._indices(step.id, depends_on.get(step.id, ()))
            later = self._indices(step.id, (after or {}).get(step.id, ()))
            waits = tuple(dict.fromkeys((*needs, *later)))
            self._needs.append(needs)
            read = self._indices(step.id, (reads or {}).get(step.id, ()))
            self._reads.append(frozenset(read) if read else _NONE)
            self._waits.append(waits)
            for other in waits:
                dependents[other].append(position)
        self._dependents = [tuple(each) for each in dependents]  # tuples: untracked by gc
        self._refuse_cycles()

    def only(self, among: Collection[str]) -> DependencyStepGraph:
        """The same steps; those that are not in `among` wait for nothing."""

        def ids(positions: Mapping[str, Iterable[int]]) -> Mapping[str, Sequence[str]]:
            return {
                step_id: [self._steps[other].id for other in others]
                for step_id, others in positions.items()
                if step_id in among
            }

        return DependencyStepGraph(
            self._steps,
            ids({step.id: self._needs[at] for at, step in enumerate(self._steps)}),
            ids({step.id: self._waits[at] for at, step in enumerate(self._steps)}),
            reads=ids({step.id: sorted(self._reads[at]) for at, step in enumerate(self._steps)}),
        )

    def _indices(self, step_id: str, others: Sequence[str]) -> tuple[int, ...]:
        if not others:
            return ()
        for other in others:
            self._check_known(other, f"Step '{step_id}' depends on what is not there:")
        return tuple(dict.fromkeys(self._index[other] for other in others))

    def _refuse_cycles(self) -> None:
        counts = self.wait_counts()
        ready = [position for position, count in enumerate(counts) if count == 0]
        seen = 0
        while ready:
            seen += 1
            for other in self._dependents[ready.pop()]:
                counts[other] -= 1
                if counts[other] == 0:
                    ready.append(other)
        if seen < len(self._steps):
            stuck = [at for at, count in enumerate(counts) if count > 0]
            names = " → ".join(self._steps[at].id for at in self._cycle_among(stuck))
            raise GraphError(f"These steps wait for each other in a cycle: {names}.")

    def _cycle_among(self, stuck: Sequence[int]) -> Sequence[int]:
        """One cycle, its first step again at the end. Each stuck step waits for another one."""
        path, seen, among = [stuck[0]], {stuck[0]: 0}, frozenset(stuck)
        while True:
            step = next(other for other in self._waits[path[-1]] if other in among)
            path.append(step)
            if step in seen:
                return path[seen[step] :]
            seen[step] = len(path) - 1

    def wait_counts(self) -> list[int]:
        """How many steps each one waits for, by position; a new list for the caller to change."""
        return [len(waits) for waits in self._waits]

    def needs(self, position: int) -> tuple[int, ...]:
        """Positions of the steps whose results the step needs."""
        return self._needs[position]

    def reads(self, position: int) -> frozenset[int]:
        """Positions of the steps without whose output the step cannot run."""
        return self._reads[position]

    def dependents(self, position: int) -> Sequence[int]:
        """Positions of the steps that wait for the step."""
        return self._dependents[position]

    def possible_next_steps(self, step: Step[object]) -> tuple[Step[object], ...]:
        """The steps that wait for this one."""
        return tuple(self._steps[other] for other in self._dependents[self._index[step.id]])
