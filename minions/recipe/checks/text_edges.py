"""Where the text of one step can reach another one: by templates, appended outputs, a shared
conversation, feedback.

A way on which a person approved what passes is not among them: an `ask` step shows the value, and
the reader runs only by its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

from minions.contracts.steps import Step
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue
from minions.recipe.checks.shapes import ANYTHING, Shape
from minions.recipe.checks.sources import carried_references, may_hold_text
from minions.recipe.control_flow import OnError
from minions.recipe.expressions.template import Templates
from minions.recipe.expressions.terms import Path
from minions.recipe.expressions.values import Reference, TemplateError
from minions.recipe.graph_paths import GraphPaths
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe, ExecutionMode, OnFailure, StepSpec

Source: TypeAlias = "int | str"
"""Where text comes from: a step, by its index, or an input of the recipe, by its name."""

WORK: Final = ""
"""The slot of what a step works on."""
DECISION: Final = " decision"
"""The slot of the arguments of a `decision_tool`; no input is called so."""


class Edge(NamedTuple):
    """Text that reaches a step."""

    reader: int
    slot: str
    """What it becomes there: `WORK`, `DECISION`, or the name of a nested recipe's input."""


class _Read(NamedTuple):
    """What a reference reads."""

    source: Source
    shape: Shape


class Names:
    """The steps and inputs of a recipe by the names that templates use."""

    def __init__(self, recipe: AgentRecipe) -> None:
        self.recipe = recipe
        self.ids = {step.id: at for at, step in enumerate(recipe.steps)}
        self._saved: dict[str, list[int]] = {}
        for at, step in enumerate(recipe.steps):
            if isinstance(step, StepSpec) and step.save_as is not None:
                self._saved.setdefault(step.save_as, []).append(at)

    def read(self, reference: Reference) -> Iterator[_Read]:
        """What a reference reads, apart from `loop`; a step's status is no text."""
        path = reference.path
        if path[0] == "inputs":
            yield from self._inputs(path)
            return
        is_full = path[0] == "steps"
        if is_full and (len(path) < 3 or path[2] == "status"):
            return
        name, rest = reference.step_name, path[3:] if is_full else path[1:]
        found = [self.ids[name]] if name in self.ids else self._saved.get(name, [])
        for at in found:
            shape = ANYTHING if is_full and path[2] != "output" else self._shape(at).at(rest)
            yield _Read(at, shape)

    def sources(self, references: Iterable[Reference]) -> Iterator[Source]:
        """The steps and inputs that these references read, whatever they take from them."""
        for reference in references:
            yield from (each.source for each in self.read(reference))

    def _inputs(self, path: tuple[str | int, ...]) -> Iterator[_Read]:
        names = [str(path[1])] if len(path) > 1 else list(self.recipe.inputs)
        for name in names:
            if (spec := self.recipe.inputs.get(name)) is not None:
                yield _Read(name, Shape.of(spec.schema).at(path[2:]))

    def _shape(self, at: int) -> Shape:
        step = self.recipe.steps[at]
        if not isinstance(step, StepSpec) or step.loop is not None:
            return ANYTHING
        return Shape.of(step.declared_output or {})


def text_edges(
    recipe: AgentRecipe, tools: Mapping[str, ToolSpec], *, in_full: bool = False
) -> Mapping[Source, Sequence[Edge]]:
    """For each step and input, the steps that its text reaches directly without an approval.

    Args:
        tools: The tools of the recipe, by full name.
        in_full: Whether no question of the recipe is an approval, since its author chose what a
            person is asked and what comes of the answer; and numbers and lists count as text.
    """
    names = Names(recipe)
    approvals = None if in_full else Approvals.of(recipe, names.sources)
    edges: dict[Source, dict[Edge, None]] = {}
    for source, edge in _edges(recipe, names, tools, in_full=in_full):
        if approvals is None or not approvals.cut(source, edge.reader):
            edges.setdefault(source, {})[edge] = None
    return {source: tuple(found) for source, found in edges.items()}


def _edges(
    recipe: AgentRecipe, names: Names, tools: Mapping[str, ToolSpec], *, in_full: bool
) -> Iterator[tuple[Source, Edge]]:
    for at, step in enumerate(recipe.steps):
        if isinstance(step, StepSpec):
            for source, slot in StepReads(names, step, tools, in_full).all():
                yield source, Edge(at, slot)
            if step.on_error.action is OnError.GOTO and step.on_error.goto in names.ids:
                yield at, Edge(names.ids[step.on_error.goto], WORK)
    yield from _list_shared(recipe)


def _list_shared(recipe: AgentRecipe) -> Iterator[tuple[Source, Edge]]:
    """What steps with a shared conversation read of each other: each of all, in this turn of a
    session or in the next one. A step made by code may read every other one; in sequence, each of
    those before it.
    """
    sharing = [at for at, step in enumerate(recipe.steps) if _shares(step)]
    pairs = list(pairwise(sharing))
    in_order = recipe.graph is None and recipe.execution_mode is ExecutionMode.SEQUENTIAL
    is_written = any(isinstance(recipe.steps[at], StepSpec) for at in sharing)
    if (is_written or not in_order) and len(sharing) > 1:
        pairs.append((sharing[-1], sharing[0]))  # a ring: each is reached from each
    for before, after in pairs:
        yield before, Edge(after, WORK)


def _shares(step: StepSpec | Step[object]) -> bool:
    return step.shares_conversation if isinstance(step, StepSpec) else True


class StepReads(Struct, frozen=True):
    """What the text that one step works on is made of."""

    names: Names
    step: StepSpec
    tools: Mapping[str, ToolSpec]
    in_full: bool = False
    """As the argument `in_full` of `text_edges`."""

    @property
    def _templates(self) -> Templates:
        return self.names.recipe.templates

    def all(self) -> Iterator[tuple[Source, str]]:
        """Each source, with the slot that it reaches."""
        if self.step.inner is not None:
            for name, value in self.step.inner_inputs.items():
                yield from ((source, name) for source in self._list_carried(value))
        else:
            yield from ((source, WORK) for source in self._work())
        if self.step.decision_tool is not None:
            given = self._list_carried(self.step.decision_tool.params)
            yield from ((source, DECISION) for source in given)

    def _work(self) -> Iterator[Source]:
        yield from self._list_carried(self.step.sources)
        if not self.step.asks_model and not self._fills_in():
            return
        control = set(self.names.sources(control_references(self.step, self._templates)))
        shown = (self.names.ids[each] for each in self.step.declared if each in self.names.ids)
        yield from (at for at in shown if at not in control)

    def _fills_in(self) -> bool:
        """Whether a model that is shown outputs always fills in a parameter."""
        step = self.step
        if not isinstance(step, ToolSpecStep) or step.tool not in self.tools:
            return False
        return bool(step.filled_in(self.tools[step.tool]))

    def _list_carried(self, value: JsonValue | Sequence[JsonValue]) -> Iterator[Source]:
        plain = list(value) if isinstance(value, tuple) else value
        yield from self.sources(carried_references(plain, self._templates, in_full=self.in_full))

    def sources(self, references: Iterable[Reference]) -> Iterator[Source]:
        """Where the text comes from that these references give the step."""
        for reference in references:
            for read in self._read(reference):
                if may_hold_text(read.shape.node, in_full=self.in_full):
                    yield read.source

    def _read(self, reference: Reference) -> Iterator[_Read]:
        if reference.path[0] == "loop" and self.step.repeat is not None:
            yield _Read(self.names.ids[self.step.id], ANYTHING)  # what an earlier attempt gave
        if reference.path[0] != "loop" or "loop" in self.names.ids:
            yield from self.names.read(reference)
        elif reference.path[1:2] != ("index",) and self.step.loop is not None:
            yield from self._items(self.step.loop.over, reference.path[2:])

    def _items(self, over: JsonValue, rest: tuple[str | int, ...]) -> Iterator[_Read]:
        """What an item of the step's loop is taken from."""
        is_plain = isinstance(self._templates.compile(over).term, Path)
        for reference in carried_references(over, self._templates, in_full=self.in_full):
            for read in self.names.read(reference):
                shape = read.shape.items().at(rest) if is_plain else ANYTHING
                yield _Read(read.source, shape)


def control_references(step: StepSpec, compiled: Templates) -> Iterator[Reference]:
    """What decides whether and how often a step runs."""
    conditions = (step.when, step.repeat.condition if step.repeat is not None else None)
    try:
        for condition in conditions:
            if condition is not None:
                yield from compiled.compile_condition(condition).references
        if step.loop is not None:
            yield from compiled.compile(step.loop.over).references
    except TemplateError:  # reported where the recipe was read
        return


# --- approvals by a person between steps ---------------------------------------------------------


_Sources: TypeAlias = Callable[[Iterable[Reference]], Iterable["int | str"]]
"""The steps, by index, and the inputs that references read."""

_REFUSALS: Final = frozenset({"no", "reject", "deny", "refuse", "stop", "cancel"})
"""Answers that approve nothing, as the default of a question that nobody answered in time."""
_MOST_IN_GRAPH: Final = 64
"""Steps of a transition graph that are looked at as approvals: each costs a walk of the graph."""


class Approvals(Struct, frozen=True):
    """What persons see and decide in a recipe, each `ask` step as one bit."""

    shown: Mapping[int | str, int]
    """By step and input: the questions that show its value."""
    needs: Sequence[int]
    """By step: the questions without whose answer it does not run."""

    @classmethod
    def of(cls, recipe: AgentRecipe, sources: _Sources) -> Approvals:
        """The approvals of a recipe."""
        asks = [
            at
            for at, step in enumerate(recipe.steps)
            if isinstance(step, StepSpec)
            and step.asks_person
            and not step.asks_model
            and not _approves_itself(step)
        ]
        if not asks:
            return cls({}, ())
        bits = {at: 1 << number for number, at in enumerate(asks)}
        shown: dict[int | str, int] = {}
        for at in asks:
            step = recipe.steps[at]
            assert isinstance(step, StepSpec)  # noqa: S101  # as selected
            for source in sources(carried_references(list(step.sources), recipe.templates)):
                shown[source] = shown.get(source, 0) | bits[at]
        return cls(shown, _needs(recipe, bits, sources))

    def cut(self, source: int | str, reader: int) -> bool:
        """Whether somebody saw the value of `source` and decided whether `reader` runs."""
        return bool(self.needs) and bool(self.shown.get(source, 0) & self.needs[reader])


def _approves_itself(step: StepSpec) -> bool:
    """Whether an approval stands where nobody answers in time."""
    question = step.question
    return question is not None and question.has_default and not _is_refusal(question.default)


def _is_refusal(value: JsonValue) -> bool:
    if isinstance(value, str):
        return value.strip().lower() in _REFUSALS
    if isinstance(value, Mapping):
        return any(map(_is_refusal, value.values()))
    return value is False or value is None


def _needs(recipe: AgentRecipe, bits: Mapping[int, int], sources: _Sources) -> list[int]:
    own = [_own_needs(step, bits, sources, recipe.templates) for step in recipe.steps]
    if recipe.graph is not None:
        return _with_graph(recipe, own, bits)
    needs = own
    if recipe.execution_mode is ExecutionMode.SEQUENTIAL and recipe.on_failure is OnFailure.STOP:
        needs = list(_after_asserts(recipe, own))
    return _with_dependencies(recipe, needs)


def _own_needs(
    step: object, bits: Mapping[int, int], sources: _Sources, compiled: Templates
) -> int:
    """The questions whose answers the step itself reads."""
    if not isinstance(step, StepSpec):
        return 0
    read = {each for each in sources(_references(step, compiled)) if isinstance(each, int)}
    return sum(bits.get(at, 0) for at in read)


def _references(step: StepSpec, compiled: Templates) -> Iterator[Reference]:
    """Everything that the step reads, also in its conditions."""
    repeat = step.repeat.condition if step.repeat is not None else None
    conditions = [step.when, repeat, *step.checks]
    values = [*step.sources, step.loop.over if step.loop is not None else None]
    try:
        for condition in conditions:
            if condition is not None:
                yield from compiled.compile_condition(condition).references
        for value in values:
            yield from compiled.compile(value).references
    except TemplateError:  # reported where the recipe was read
        return


def _after_asserts(recipe: AgentRecipe, own: Sequence[int]) -> Iterator[int]:
    """In sequence, what comes after an assertion that must hold runs only if it holds."""
    passed = 0
    for step, needs in zip(recipe.steps, own, strict=True):
        yield needs | passed
        if isinstance(step, StepSpec) and _must_hold(step):
            passed |= needs


def _must_hold(step: StepSpec) -> bool:
    is_certain = step.when is None and step.loop is None and not step.optional
    return bool(step.checks) and is_certain and step.on_error.action is OnError.FAIL


def _with_dependencies(recipe: AgentRecipe, needs: list[int]) -> list[int]:
    """A step that needs another one does not run without it either."""
    places = {step.id: at for at, step in enumerate(recipe.steps)}
    dependents: dict[int, list[int]] = {}
    for at, step in enumerate(recipe.steps):
        for name in step.depends_on if isinstance(step, StepSpec) else ():
            dependents.setdefault(places.get(name, at), []).append(at)
    pending = [at for at, mask in enumerate(needs) if mask]
    while pending:
        at = pending.pop()
        for other in dependents.get(at, ()):
            if needs[at] & ~needs[other]:
                needs[other] |= needs[at]
                pending.append(other)
    return needs


def _with_graph(recipe: AgentRecipe, own: list[int], bits: Mapping[int, int]) -> list[int]:
    """In a transition graph: the steps that are reached only through a choice after the answer, or
    through an assertion about it.
    """
    edges = recipe.graph if isinstance(recipe.graph, Mapping) else {}
    paths = GraphPaths.of([step.id for step in recipe.steps], edges)
    needs = list(own)
    for at, step in enumerate(recipe.steps):
        mask = bits.get(at, 0) if len(paths.following[at]) > 1 else 0
        if isinstance(step, StepSpec) and _must_hold(step):
            mask |= own[at]
        if mask and sum(map(bool, needs)) < _MOST_IN_GRAPH:
            for other in _behind(paths, at):
                needs[other] |= mask
    return needs


def _behind(paths: GraphPaths, step: int) -> Iterator[int]:
    """The steps that a run reaches only through that step, and not by each of its successors."""
    around = _reached_around(paths, step)
    ways = [paths.after(each) | {each} for each in paths.following[step]]
    for other in paths.reached - around - {step}:
        if len(ways) == 1 or any(other not in way for way in ways):
            yield other


def _reached_around(paths: GraphPaths, step: int) -> set[int]:
    """The steps that are reached without passing that one."""
    found = set[int]() if step == 0 else {0}
    pending = list(found)
    while pending:
        for other in paths.following[pending.pop()]:
            if other != step and other not in found:
                found.add(other)
                pending.append(other)
    return found
