"""The graph of a recipe's steps, and the part of it that a run executes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Final

import msgspec
from attrs import field, frozen
from msgspec import Struct
from msgspec.structs import replace

from minions.contracts.journal.facts import RecordedItem, RecordedPart
from minions.contracts.journal.journal import Journal
from minions.contracts.steps import Step, StepGraph
from minions.data.errors import (
    GraphError,
    NotFoundError,
    UsageError,
    did_you_mean,
    near_hint,
    near_names,
)
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, as_object, dumps
from minions.data.texts import shell_word
from minions.engine.history.keys import RESERVED_SIGNS
from minions.recipe.model import AgentRecipe, StepSpec


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
    for sign in RESERVED_SIGNS:
        if sign in step_id:
            raise GraphError(
                f"The step id '{step_id}' holds a '{sign}', which separates keys of a run."
            )


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
        self._next = {
            source: tuple([self._steps[self._index[target]] for target in targets])
            for source, targets in edges.items()
        }

    def possible_next_steps(self, step: Step[object]) -> tuple[Step[object], ...]:
        """The successors of a step, in the order of its edges."""
        return self._next.get(step.id, ())


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
        after, reads = after or {}, reads or {}
        for position, step in enumerate(self._steps):
            step_id = step.id
            needs = self._indices(step_id, depends_on.get(step_id))
            later = self._indices(step_id, after.get(step_id))
            read = self._indices(step_id, reads.get(step_id))
            waits = tuple(dict.fromkeys((*needs, *later))) if later else needs
            self._needs.append(needs)
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

    def _indices(self, step_id: str, others: Sequence[str] | None) -> tuple[int, ...]:
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


NOT_ASKED_FOR: Final = "not asked for"
"""Why a step is skipped that is not in the part that runs."""


@frozen(kw_only=True)
class RunPart(FieldsRepr):
    """Which steps of a recipe run. The outputs that they need of other steps are pinned."""

    first: str | None = None
    """Run this step and all that depend on it."""
    until: str | None = None
    """Run this step and all that it needs."""
    only: str | None = None
    """Run this step alone."""
    pinned: Mapping[str, JsonValue] = field(factory=dict)
    """By step id, the outputs of steps that are needed and do not run."""
    passed_over: tuple[str, ...] = ()
    """Ids of steps that are needed and were skipped by their condition."""
    pinned_from: str = "caller"
    """The run that the pinned outputs come from; `caller`: they were given as arguments."""


class ChildItem(Struct, frozen=True, kw_only=True):
    """What a child run executes of its one step."""

    index: int | None = None
    """The index of the item in its loop, from 0; None: the step has no loop."""
    value: JsonValue = None
    """What templates read as `loop.item`."""


class ChosenSteps(Struct, frozen=True, kw_only=True):
    """A `RunPart` resolved for one recipe; stored with the run, which keeps it for good."""

    runs: frozenset[str]
    pinned: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    """Of a child run: what templates read as `steps`."""
    passed_over: frozenset[str] = frozenset()
    pinned_from: str = "caller"
    item: ChildItem | None = None
    """Of a child run, whose one step it is; None: it is no child run."""
    pinned_blob: str | None = None
    """Digest of the blob with `pinned`, where it is stored already."""

    def reason(self, step_id: str) -> str:
        """Why a step is skipped that neither runs nor is pinned."""
        if step_id in self.passed_over:
            return f"its condition `when` was false in {self.pinned_from}"
        return NOT_ASKED_FOR

    async def stored(self, journal: Journal) -> RecordedPart:
        """The record for the run's start; the outputs are stored as a blob."""
        item = self.item
        return RecordedPart(
            runs=sorted(self.runs),
            passed_over=sorted(self.passed_over),
            pinned_from=self.pinned_from,
            pinned=self.pinned_blob or await self.store_pins(journal),
            item=RecordedItem(index=item.index, value=item.value) if item is not None else None,
        )

    async def store_pins(self, journal: Journal) -> str:
        """Store `pinned`; returns the digest of the blob."""
        return await journal.put_blob(dumps(self.pinned).encode("utf-8", "surrogatepass"))

    @classmethod
    async def load(cls, part: RecordedPart | None, journal: Journal) -> ChosenSteps | None:
        """Read the record that `stored` made; None: the whole recipe runs."""
        from minions.engine.views.lookup import json_of_blob

        if part is None:
            return None
        pinned, item = await json_of_blob(journal, part.pinned), part.item
        return cls(
            runs=frozenset(part.runs),
            passed_over=frozenset(part.passed_over),
            pinned_from=part.pinned_from,
            pinned=as_object(pinned),
            item=ChildItem(index=item.index, value=item.value) if item is not None else None,
            pinned_blob=part.pinned,
        )


def choose_steps(recipe: AgentRecipe, part: RunPart) -> ChosenSteps:
    """Resolve the steps of a part; pins are not checked.

    Raises:
        NotFoundError: The recipe has no step of that name.
        UsageError: Its steps are no dependency graph, or no step is left to run.
    """
    specs = specs_of_parts(recipe)
    names = [name for name in (part.first, part.until, part.only) if name is not None]
    for name in names:
        _check_known(recipe, name)
    if part.only is not None and len(names) > 1:
        raise UsageError(
            "`only` selects one step and cannot be combined with another bound.", code="part"
        )
    runs = {part.only} if part.only is not None else _between(specs, part)
    if not runs:
        raise UsageError(
            f"No step of recipe '{recipe.id}' depends on '{part.first}' and is needed by "
            f"'{part.until}': there is nothing to run.",
            code="empty-part",
        )
    _check_conversation(specs, runs)
    return ChosenSteps(runs=frozenset(runs), pinned_from=part.pinned_from)


def _check_conversation(specs: Sequence[StepSpec], runs: Collection[str]) -> None:
    """Refuse a part that needs messages of steps outside it: a conversation cannot be pinned."""
    sharing = [spec.id for spec in specs if _shares_conversation(spec)]
    for at, step_id in enumerate(sharing):
        if step_id in runs and (missing := [each for each in sharing[:at] if each not in runs]):
            raise UsageError(
                f"Step '{step_id}' continues the conversation of step '{missing[-1]}' "
                "(memory: conversation), which is not in the part that runs, and a conversation "
                "cannot be pinned. Run the whole recipe, or from the first of them on.",
                code="no-conversation",
            )


def _shares_conversation(spec: StepSpec) -> bool:
    return spec.shares_conversation


def specs_of_parts(recipe: AgentRecipe) -> Sequence[StepSpec]:
    """The steps of a recipe that can run in parts.

    Raises:
        UsageError: `no-parts`; they are no dependency graph.
    """
    specs = [step for step in recipe.steps if isinstance(step, StepSpec)]
    if len(specs) < len(recipe.steps) or recipe.graph is not None:
        raise UsageError(
            f"Recipe '{recipe.id}' is a graph of transitions: which step comes next is known only "
            "in the run, so it has no parts. Run it as a whole.",
            code="no-parts",
        )
    return specs


def _check_known(recipe: AgentRecipe, name: str) -> None:
    ids = [step.id for step in recipe.steps]
    if name not in ids:
        near = near_names(name, ids)
        hint = near_hint(near)
        raise NotFoundError(
            f"Recipe '{recipe.id}' has no step '{name}'.{hint} Steps are: {', '.join(ids)}.",
            code="unknown-step",
            suggestions=near,
        )


def _between(specs: Sequence[StepSpec], part: RunPart) -> set[str]:
    """`first` and the steps after it, `until` and the steps before it, or the steps in both."""
    waits = {spec.id: {*spec.depends_on, *spec.after} for spec in specs}
    order = list(TopologicalSorter(waits).static_order())
    after = set(waits) if part.first is None else {part.first}
    for step_id in order:
        if waits[step_id] & after:
            after.add(step_id)
    before = set(waits) if part.until is None else {part.until}
    for step_id in reversed(order):
        if step_id in before:
            before |= waits[step_id]
    return after & before


class _Needs(Struct, frozen=True, kw_only=True):
    """Steps outside a part that steps within it read, in the order of the recipe."""

    required: tuple[str, ...]
    """Dependencies of steps in the part."""
    welcome: tuple[str, ...]
    """Steps that only have to end first: the part can run without them."""


def needed_steps(recipe: AgentRecipe, chosen: ChosenSteps) -> _Needs:
    """The steps outside the chosen ones that these wait for."""
    running = [s for s in recipe.steps if isinstance(s, StepSpec) and s.id in chosen.runs]
    required = {other for spec in running for other in spec.depends_on} - chosen.runs
    welcome = {other for spec in running for other in spec.after} - chosen.runs - required
    ids = [step.id for step in recipe.steps]
    return _Needs(
        required=tuple(step_id for step_id in ids if step_id in required),
        welcome=tuple(step_id for step_id in ids if step_id in welcome),
    )


def with_pins(recipe: AgentRecipe, chosen: ChosenSteps, part: RunPart) -> ChosenSteps:
    """The chosen steps with the pins that they need.

    Raises:
        UsageError: `nothing-pinned`; a needed output is missing.
    """
    needs = needed_steps(recipe, chosen)
    known = {*part.pinned, *part.passed_over}
    missing = [step_id for step_id in needs.required if step_id not in known]
    if missing:
        raise missing_pins(recipe.id, missing, "nothing was pinned")
    wanted = {*needs.required, *needs.welcome}
    return replace(
        chosen,
        pinned={step_id: part.pinned[step_id] for step_id in part.pinned if step_id in wanted},
        passed_over=frozenset(part.passed_over) & wanted,
    )


def missing_pins(recipe_id: str, missing: Sequence[str], why: str) -> UsageError:
    """The error for steps whose output is needed and missing.

    Args:
        recipe_id: The id, or the name that the caller used, for the command in the message.
        why: Why the outputs are missing.
    """
    names = ", ".join(f"'{step_id}'" for step_id in missing)
    how = (
        f"minions run {shell_word(recipe_id)} --until {shell_word(missing[0])}"
        if len(missing) == 1
        else None
    )
    return UsageError(
        f"The output of {'step' if len(missing) == 1 else 'the steps'} {names} is needed, which "
        f"is not in the part that runs: {why}. Run {'it' if how else 'them'} first: "
        f"`{how or f'minions run {shell_word(recipe_id)}'}`.",
        code="nothing-pinned",
    )
