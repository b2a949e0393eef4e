"""What of one step can reach another one: by templates, appended outputs, a shared conversation,
feedback; by what decides whether and how often a step runs.

A way on which a person approved what passes is not among them: an `ask` step shows the value, and
the reader runs only by its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from itertools import islice, pairwise, product
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

from minions.contracts.steps import Step
from minions.contracts.tools import ToolSpec
from minions.data.errors import MinionsError
from minions.data.json_values import JsonValue
from minions.recipe.checks.shapes import ANYTHING, Shape
from minions.recipe.checks.sources import carried_references, may_hold_text
from minions.recipe.drafts import GraphPaths
from minions.recipe.expressions.template import Templates
from minions.recipe.expressions.terms import Logic, Not, Path, Term
from minions.recipe.expressions.values import Meter, Reference, TemplateError
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe, ExecutionMode, OnError, OnFailure, StepSpec

Source: TypeAlias = "int | str"
"""Where text comes from: a step, by its index, or an input of the recipe, by its name."""

WORK: Final = ""
"""The slot of what a step works on."""
DECISION: Final = " decision"
"""The slot of the arguments of a `decision_tool`; no input is called so."""
CONTROL: Final = " control"
"""The slot of what decides whether and how often a step runs."""
ARGUMENT: Final = " argument "
"""Before the name of a parameter: the slot of one argument of the call that a `tool` step makes.
What reaches one reaches its `WORK`, too."""
ENDORSED_OUTPUT: Final = "output"


class Follow(Enum):
    """What counts as coming from a text."""

    WORDS = 1
    """Its words themselves: what a prompt puts within borders."""
    INFLUENCE = 2
    """Whatever depends on it, also a number and a choice, apart from what the recipe endorses."""
    ALL = 3
    """As `INFLUENCE`; no endorsement counts, and no question of the recipe is an approval, since
    its author chose what a person is asked and what comes of the answer."""


class Edge(NamedTuple):
    """Text that reaches a step."""

    reader: int
    slot: str
    """What it becomes there: `WORK`, `DECISION`, or the name of a nested recipe's input."""


_STATUS: Final = Shape.of({"enum": ["completed", "failed", "skipped"]})


class Read(NamedTuple):
    """What a reference reads."""

    source: Source
    shape: Shape
    is_endorsed: bool = False


class Names:
    """The steps and inputs of a recipe by the names that templates use."""

    def __init__(self, recipe: AgentRecipe, follow: Follow = Follow.WORDS) -> None:
        self.recipe = recipe
        self.templates = recipe.templates
        self._inputs = recipe.inputs
        self.follow = follow
        self.ids = {step.id: at for at, step in enumerate(recipe.steps)}
        self._saved: dict[str, list[int]] = {}
        self._going_back: list[int] = []
        """The steps whose errors others read as `feedback`."""
        for at, step in enumerate(recipe.steps):
            if isinstance(step, StepSpec) and step.save_as is not None:
                self._saved.setdefault(step.save_as, []).append(at)
            if isinstance(step, StepSpec) and step.on_error.action is OnError.GOTO:
                self._going_back.append(at)

    def read(self, reference: Reference) -> Iterator[Read]:
        """What a reference reads, apart from `loop`."""
        path = reference.path
        if path[0] == "inputs":
            yield from self._read_inputs(path)
            return
        if path[0] == "feedback":
            yield from (Read(at, ANYTHING) for at in self._going_back)
            return
        is_full = path[0] == "steps"
        name, rest = reference.step_name, path[3:] if is_full else path[1:]
        part = path[2] if is_full and len(path) > 2 else "" if is_full else "output"
        found = [self.ids[name]] if name in self.ids else self._saved.get(name, [])
        for at in found:
            if part == "output":
                yield Read(at, self._shape(at).at(rest), self.is_endorsed(at, rest))
            else:
                shape = _STATUS if part == "status" else ANYTHING
                yield Read(at, shape, part == "status" and self.is_endorsed(at))

    def is_endorsed(self, at: int, rest: Sequence[str | int] = ()) -> bool:
        """Whether the recipe says that this part of a step's output is harmless, whatever it is
        made of: a closed answer.
        """
        step = self.recipe.steps[at]
        said = step.endorse if isinstance(step, StepSpec) else ()
        return bool(said) and (
            ENDORSED_OUTPUT in said or (bool(rest) and f"{ENDORSED_OUTPUT}.{rest[0]}" in said)
        )

    def sources(self, references: Iterable[Reference]) -> Iterator[Source]:
        """The steps and inputs that these references read, whatever they take from them."""
        for reference in references:
            yield from (each.source for each in self.read(reference))

    @cached_property
    def paths(self) -> GraphPaths | None:
        """Those of a recipe with a transition graph."""
        graph = self.recipe.graph
        return GraphPaths.of(list(self.ids), graph) if isinstance(graph, Mapping) else None

    @cached_property
    def _dependents(self) -> Mapping[str, Sequence[int]]:
        found: dict[str, list[int]] = {}
        for at, step in enumerate(self.recipe.steps):
            for name in (*step.depends_on, *step.after) if isinstance(step, StepSpec) else ():
                found.setdefault(name, []).append(at)
        return found

    def needing(self, target: int) -> Iterator[int]:
        """The steps that run once more where that one does."""
        again, pending = {target}, [target]
        while pending:
            for at in self._dependents.get(self.recipe.steps[pending.pop()].id, ()):
                if at not in again:
                    again.add(at)
                    pending.append(at)
                    yield at

    def carried(self, value: JsonValue) -> Iterable[Reference]:
        """The references of a value's templates of which something is in the rendered one."""
        if self.follow is Follow.WORDS:
            return carried_references(value, self.templates)
        try:
            return self.templates.compile(value).references
        except TemplateError:  # reported where the recipe was read
            return ()

    def is_harmless(self, read: Read) -> bool:
        """Whether nothing that is followed is in what was read."""
        if self.follow is Follow.WORDS:
            return not may_hold_text(read.shape.node)
        return read.is_endorsed and self.follow is not Follow.ALL

    def output(self) -> Iterator[Source]:
        """Of what the output of the recipe is made; where it declares none, any step may be the
        last one that ended.
        """
        if self.recipe.output is None:
            for at in reversed(range(len(self.recipe.steps))):
                if not self.is_harmless(Read(at, ANYTHING, self.is_endorsed(at))):
                    yield at
            return
        for reference in self.carried(self.recipe.output):
            for read in self.read(reference):
                if not self.is_harmless(read):
                    yield read.source

    def _read_inputs(self, path: tuple[str | int, ...]) -> Iterator[Read]:
        names = [str(path[1])] if len(path) > 1 else list(self._inputs)
        for name in names:
            if (spec := self._inputs.get(name)) is not None:
                yield Read(name, Shape.of(spec.schema).at(path[2:]))

    def _shape(self, at: int) -> Shape:
        step = self.recipe.steps[at]
        if not isinstance(step, StepSpec) or step.loop is not None:
            return ANYTHING
        return Shape.of(step.declared_output or {})


def text_edges(
    recipe: AgentRecipe, tools: Mapping[str, ToolSpec], follow: Follow
) -> Mapping[Source, Sequence[Edge]]:
    """For each step and input, the steps that it reaches directly without an approval.

    Args:
        tools: The tools of the recipe, by full name.
    """
    names = Names(recipe, follow)
    approvals = None if follow is Follow.ALL else Approvals.of(recipe, names.sources)
    edges: dict[Source, dict[Edge, None]] = {}
    for source, edge in _edges(names, tools):
        if approvals is None or not approvals.cut(source, edge.reader):
            edges.setdefault(source, {})[edge] = None
    return {source: tuple(found) for source, found in edges.items()}


def _edges(names: Names, tools: Mapping[str, ToolSpec]) -> Iterator[tuple[Source, Edge]]:
    recipe = names.recipe
    for at, step in enumerate(recipe.steps):
        if isinstance(step, StepSpec):
            reads = StepReads(names, step, tools)
            for source, slot in reads.all():
                yield source, Edge(at, slot)
            if step.on_error.action is OnError.GOTO and step.on_error.goto in names.ids:
                yield at, Edge(names.ids[step.on_error.goto], WORK)
            if recipe.on_surprise is not None and step.id != recipe.on_surprise:
                yield at, Edge(names.ids[recipe.on_surprise], WORK)  # it reads the error
            if names.follow is not Follow.WORDS:
                yield from _control_edges(at, reads)
    yield from _list_shared(recipe)


def _control_edges(at: int, reads: StepReads) -> Iterator[tuple[Source, Edge]]:
    """What decides whether and how often a step runs, and others after it."""
    names, step, paths = reads.names, reads.step, reads.names.paths
    for source in reads.control():
        yield source, Edge(at, CONTROL)
    target = names.ids.get(step.on_error.goto or "")
    if target is not None:
        again = names.needing(target) if paths is None else paths.after(target)
        yield from ((at, Edge(other, CONTROL)) for other in {target, *again})
    if paths is not None and len(paths.following[at]) > 1:
        chosen = _chosen(paths, at)
        for source in reads.route():
            yield from ((source, Edge(other, CONTROL)) for other in chosen)


def _chosen(paths: GraphPaths, at: int) -> Sequence[int]:
    """The steps of a transition graph that a choice after one of them decides about: those that
    some run passes after it and another one does not, or passes more often.
    """
    after = paths.after(at)
    return [each for each in sorted(after) if at in after or _may_end_without(paths, at, each)]


def _may_end_without(paths: GraphPaths, at: int, step: int) -> bool:
    """Whether a run may end after `at` without passing `step`."""
    found, pending = {at}, [at]
    while pending:
        here = pending.pop()
        if here in paths.ends:
            return True
        for other in paths.following[here]:
            if other != step and other not in found:
                found.add(other)
                pending.append(other)
    return False


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

    @property
    def _templates(self) -> Templates:
        return self.names.templates

    def all(self) -> Iterator[tuple[Source, str]]:
        """Each source, with the slot that it reaches."""
        step = self.step
        if step.inner is not None:
            for name, value in step.inner_inputs.items():
                yield from ((source, name) for source in self._list_carried(value))
        else:
            yield from ((source, WORK) for source in self._work())
        if isinstance(step, ToolSpecStep) and self.names.follow is not Follow.WORDS:
            for name, value in step.given.items():
                yield from ((source, ARGUMENT + name) for source in self._list_carried(value))
        if step.decision_tool is not None:
            given = self._list_carried(step.decision_tool.params)
            yield from ((source, DECISION) for source in given)

    def _work(self) -> Iterator[Source]:
        yield from self._list_carried(self.step.sources)
        if self.names.follow is not Follow.WORDS:  # whether it fails
            yield from self.sources(self._conditions(self.step.checks))
        if not self.step.asks_model and not self._fills_in():
            return
        control = set(self.names.sources(self._control_references()))
        shown = (self.names.ids[each] for each in self.step.declared if each in self.names.ids)
        for at in shown:
            read = Read(at, ANYTHING, self.names.is_endorsed(at))
            if at not in control and not self.names.is_harmless(read):
                yield at

    def control(self) -> Iterator[Source]:
        """What decides whether and how often the step runs."""
        yield from self.sources(self._control_references(self._endorsed))

    def _control_references(self, endorsed: Sequence[str] = ()) -> Iterator[Reference]:
        step = self.step
        if step.when is not None and "when" not in endorsed:
            yield from self._conditions([step.when])
        if step.repeat is not None and "loop" not in endorsed:
            yield from self._conditions([step.repeat.condition])
        if step.loop is not None and "loop" not in endorsed:
            try:
                yield from self._templates.compile(step.loop.over).references
            except TemplateError:  # reported where the recipe was read
                return

    def _conditions(self, conditions: Sequence[str]) -> Iterator[Reference]:
        try:
            for condition in conditions:
                yield from self._templates.compile_condition(condition).references
        except TemplateError:  # reported where the recipe was read
            return

    def route(self) -> Iterator[Source]:
        """What decides which step comes after it in a transition graph."""
        if "route" in self._endorsed:
            return
        at = self.names.ids[self.step.id]
        route = self.step.route
        is_value = route is not None and self._templates.compile(route).is_whole
        read = Read(at, ANYTHING, self.names.is_endorsed(at))
        if not is_value and not self.names.is_harmless(read):
            yield at
        if route is not None:
            yield from self._list_carried(route)

    @property
    def _endorsed(self) -> Sequence[str]:
        return self.step.endorse if self.names.follow is not Follow.ALL else ()

    def _fills_in(self) -> bool:
        """Whether a model that is shown outputs always fills in a parameter."""
        step = self.step
        if not isinstance(step, ToolSpecStep) or step.tool not in self.tools:
            return False
        return bool(step.filled_in(self.tools[step.tool]))

    def _list_carried(self, value: JsonValue | Sequence[JsonValue]) -> Iterator[Source]:
        plain = list(value) if isinstance(value, tuple) else value
        yield from self.sources(self.names.carried(plain))

    def sources(self, references: Iterable[Reference]) -> Iterator[Source]:
        """Where that comes from which these references give the step."""
        for reference in references:
            for read in self._read(reference):
                if not self.names.is_harmless(read):
                    yield read.source

    def _read(self, reference: Reference) -> Iterator[Read]:
        step = self.step
        if reference.path[0] == "loop" and step.repeat is not None:
            yield Read(self.names.ids[step.id], ANYTHING)  # what an earlier attempt gave
        if reference.path[0] != "loop" or "loop" in self.names.ids:
            yield from self.names.read(reference)
        elif reference.path[1:2] != ("index",) and step.loop is not None:
            yield from self._items(step.loop.over, reference.path[2:])

    def _items(self, over: JsonValue, rest: tuple[str | int, ...]) -> Iterator[Read]:
        """What an item of the step's loop is taken from."""
        is_plain = isinstance(self._templates.compile(over).term, Path)
        for reference in self.names.carried(over):
            for read in self.names.read(reference):
                shape = read.shape.items().at(rest) if is_plain else ANYTHING
                yield Read(read.source, shape, read.is_endorsed)


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
    bits: Mapping[int, int] = {}
    """By step: its own question."""

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
        return cls(shown, _needs(recipe, bits, sources), bits)

    def cut(self, source: int | str, reader: int) -> bool:
        """Whether somebody saw the value of `source` and decided whether `reader` runs; or the
        source is that decision.
        """
        if not self.needs:
            return False
        own = self.bits.get(source, 0) if isinstance(source, int) else 0
        return bool((self.shown.get(source, 0) | own) & self.needs[reader])


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
    own = [_own_needs(step, bits, recipe, sources) for step in recipe.steps]
    if recipe.graph is not None:
        return _with_graph(recipe, own, bits)
    needs = own
    if recipe.execution_mode is ExecutionMode.SEQUENTIAL and recipe.on_failure is OnFailure.STOP:
        needs = list(_after_asserts(recipe, own))
    return _with_dependencies(recipe, needs)


def _own_needs(
    step: object, bits: Mapping[int, int], recipe: AgentRecipe, sources: _Sources
) -> int:
    """The questions to which an answer can be that the step does not run."""
    if not isinstance(step, StepSpec):
        return 0
    needs = 0
    try:
        for condition in (step.when, *step.checks):
            compiled = recipe.templates.compile_condition(condition or "true")
            for at in {each for each in sources(compiled.references) if isinstance(each, int)}:
                ask = recipe.steps[at]
                if at in bits and isinstance(ask, StepSpec) and _can_refuse(ask, compiled.term):
                    needs |= bits[at]
    except TemplateError:  # reported where the recipe was read
        return needs
    return needs


_MOST_ANSWERS: Final = 64
"""Refusing answers that are tried."""


def _can_refuse(ask: StepSpec, condition: Term) -> bool:
    """Whether the condition is false for an answer that refuses, whatever else it reads."""
    names = {name for name in (ask.id, ask.save_as) if name is not None}
    for answer in islice(_refusals(ask.declared_output or {"type": "string"}), _MOST_ANSWERS):
        whole: JsonValue = {"output": answer, "status": "completed"}
        scope: dict[str, JsonValue] = dict.fromkeys(names, answer)
        if _truth(condition, names, {**scope, "steps": {ask.id: whole}}) is False:
            return True
    return False


def _refusals(schema: JsonValue) -> Iterator[JsonValue]:
    """Answers of a form that refuse: false, zero, nothing, and words such as `no`."""
    if not isinstance(schema, Mapping):
        return
    listed = schema.get("enum")
    kind = schema.get("type")
    if isinstance(listed, list | tuple):
        yield from [each for each in listed if _is_refusal(each)] or listed
    elif kind == "object" or "properties" in schema:
        members = schema.get("properties")
        known = members if isinstance(members, Mapping) else {}
        choices = [list(islice(_refusals(each), _MOST_ANSWERS)) for each in known.values()]
        yield from (dict(zip(known, each, strict=True)) for each in product(*choices))
    elif kind == "array":
        yield []
    elif kind in ("integer", "number"):
        yield 0
    elif kind == "boolean":
        yield False
    else:
        yield from ("", *sorted(_REFUSALS))


def _truth(term: Term, names: Container[str], scope: Mapping[str, JsonValue]) -> bool | None:
    """Whether an expression is true where only these names are known; None: it depends."""
    if isinstance(term, Not):
        inner = _truth(term.operand, names, scope)
        return None if inner is None else not inner
    if isinstance(term, Logic):
        sides = {_truth(each, names, scope) for each in term.operands}
        deciding = not term.is_and
        return deciding if deciding in sides else None if None in sides else term.is_and
    if any(each.step_name not in names for each in term.references()):
        return None
    try:
        return bool(term.value(scope, Meter()))
    except MinionsError:  # then the step fails, and does nothing
        return False


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
        mask = bits.get(at, 0) if _is_chosen_by_answer(recipe, step) else 0
        if isinstance(step, StepSpec) and _must_hold(step):
            mask |= own[at]
        if mask and sum(map(bool, needs)) < _MOST_IN_GRAPH:
            for other in _behind(paths, at):
                needs[other] |= mask
    return needs


def _is_chosen_by_answer(recipe: AgentRecipe, step: StepSpec | Step[object]) -> bool:
    """Whether the answer to a question alone says which step comes after it."""
    if not isinstance(step, StepSpec) or step.route is None:
        return False
    route = recipe.templates.compile(step.route)
    is_own = all(each.step_name in (step.id, step.save_as) for each in route.references)
    return route.is_whole and bool(route.references) and is_own


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
