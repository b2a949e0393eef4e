"""Information flow: paths on which untrusted text can reach a tool that writes, sends or spends.

Untrusted is what a tool reads that is not declared trusted, and an input that says so. It passes
through templates, models, loops, shared conversations and nested recipes, and by deciding whether
and how often a step runs. Each sink is named once, with a path to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import evolve
from msgspec import Struct, structs

from minions.contracts.steps import Step
from minions.contracts.tools import CALLER_TOOLS, Reads, ToolSpec
from minions.data.errors import did_you_mean
from minions.recipe.catalog import Catalog
from minions.recipe.checks.shapes import Shape
from minions.recipe.checks.sources import carried_by, carried_references, is_closed
from minions.recipe.checks.text_edges import (
    CONTROL,
    DECISION,
    ENDORSED_OUTPUT,
    WORK,
    Edge,
    Follow,
    Names,
    Source,
    StepReads,
    text_edges,
)
from minions.recipe.drafts import RecipeDraft, StepDraft
from minions.recipe.examples import ExampleStepSpec
from minions.recipe.expressions.terms import Term
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import AgentRecipe, OperatorRules, StepSpec, UntrustedRule
from minions.recipe.model_config import ModelConfig
from minions.recipe.permissions import PrivateReaders, Rights, tool_specs
from minions.recipe.text.sections import Report

ToolsOf: TypeAlias = Callable[[AgentRecipe], Mapping[str, ToolSpec]]
"""The tools of a recipe, by full name."""


class FlowNode(Struct, frozen=True):
    """A place that untrusted text passes."""

    step: str
    """The step, as `outer/inner` in a nested recipe; `inputs.name` for an input."""
    what: str
    """The tool that is called, else the kind of the step."""
    private: str | None = None
    """The toolset whose private data is read there; None: what is read is not private."""
    recipe_input: str | None = None
    """The recipe's input that the text comes from; None: it does not begin with one."""
    is_undeclared: bool = False
    """Whether the tool that is called does not say what it reads."""

    def __str__(self) -> str:
        return f"{self.step} ({self.what})"

    def within(self, outer: str) -> FlowNode:
        """The same place, seen from the recipe around its own."""
        return structs.replace(self, step=f"{outer}/{self.step}", recipe_input=None)


class Flow(Struct, frozen=True, kw_only=True):
    """Untrusted text that can reach a tool with an effect, without an approval between."""

    path: tuple[FlowNode, ...]
    """From where the text is read to the tool."""
    private: tuple[str, ...] = ()
    """Private data and secrets that are within reach there, and so could be sent away."""

    toolset: str
    """The toolset of the tool at its end."""
    is_private: bool = False
    """Whether it is private data that passes, to a tool that gives its arguments to others."""
    rule: UntrustedRule
    """What a run does with such a call; where the text begins with a tool that does not say what it
    reads, it is made."""

    @property
    def tool(self) -> str:
        """The tool that the text reaches."""
        return self.path[-1].what

    @property
    def words(self) -> str:
        """The path on one line."""
        return " -> ".join(map(str, self.path))


_SHOWN: Final = 5
"""Nodes of a long path that are shown at its start, and at its end."""


class _Trace(Struct, frozen=True):
    """A path from its end; paths share their beginnings."""

    node: FlowNode
    before: _Trace | None
    length: int
    start: tuple[FlowNode, ...]
    """The first nodes."""
    private: tuple[FlowNode, ...]
    """The first node of each toolset whose private data was read on the path."""

    @classmethod
    def to(cls, node: FlowNode, before: _Trace | None = None) -> _Trace:
        """A path to that node, after the nodes of another one."""
        length, start = (before.length, before.start) if before is not None else (0, ())
        private = before.private if before is not None else ()
        if node.private is not None and all(node.private != each.private for each in private):
            private = (*private, node)
        start = (*start, node) if length < _SHOWN else start
        return cls(node, before, length + 1, start, private)

    def path(self) -> tuple[FlowNode, ...]:
        """The nodes from the first one on; of a long path its start and its end."""
        found: list[FlowNode] = []
        at: _Trace | None = self
        most = 2 * _SHOWN + 1
        while at is not None and len(found) < (most if self.length <= most else _SHOWN):
            found.append(at.node)
            at = at.before
        end = tuple(reversed(found))
        if self.length <= most:
            return end
        return (*self.start, FlowNode("…", f"{self.length - 2 * _SHOWN} more"), *end)


class _Found(Struct, frozen=True):
    """What is known of a recipe with certain untrusted inputs."""

    flows: tuple[Flow, ...]
    output: tuple[FlowNode, ...] | None
    """A path to its output; None: no untrusted text reaches it."""


def find_flows(
    recipe: AgentRecipe,
    tools_of: ToolsOf,
    *,
    in_full: bool = False,
    operator: OperatorRules | None = None,
) -> tuple[Flow, ...]:
    """The flows of a recipe and of its nested recipes, in the order of the steps.

    The time it takes grows with the number of steps, edges and nested recipes.

    Args:
        in_full: Whether what a recipe says makes no text harmless, as in `Follow.ALL`.
        operator: What counts beside what recipes say; None: nothing does.
    """
    follow = _followed(in_full=in_full)
    inputs = _declared_inputs(recipe)
    rights = Rights.of(recipe, operator=operator)
    found = _Walk(recipe, tools_of, rights, inputs, follow).found().flows
    if not _reads_private(recipe, tools_of):
        return found
    inputs = _declared_inputs(recipe, of_private=True)
    readers = PrivateReaders.of(recipe, operator, in_full=in_full)
    private = _Walk(recipe, tools_of, rights, inputs, Follow.ALL, readers=readers)
    return (*found, *private.found().flows)


def _followed(*, in_full: bool) -> Follow:
    return Follow.ALL if in_full else Follow.INFLUENCE


def _reads_private(recipe: AgentRecipe, tools_of: ToolsOf) -> bool:
    """Whether a tool of the recipe, or of one within it, reads private data."""
    if _declared_inputs(recipe, of_private=True) or any(
        tool.reads is Reads.PRIVATE for tool in tools_of(recipe).values()
    ):
        return True
    specs = [step for step in recipe.steps if isinstance(step, StepSpec)]
    return any(
        step.own_source is not None
        or (step.inner is not None and _reads_private(step.inner, tools_of))
        for step in specs
    )


class WordPaths(Struct, frozen=True):
    """The ways on which strangers' words can pass through a recipe. Its runs follow those that were
    taken: what no way leads to is never asked about.
    """

    reached: frozenset[Source]
    """The steps whose output may hold such words, by index, and such inputs, by name."""
    into: Mapping[tuple[int, str], Sequence[Source]]
    """Those of them from which words come, by the step and slot that they reach. What decides about
    a step reaches its work and its decision, too; of a question and of a recipe only that does.
    """
    output: Sequence[Source]
    """Those whose words the output of the recipe may hold."""
    private: frozenset[Source] = frozenset()
    """The steps whose output may hold private data, by index."""

    def sources(self, at: int, slot: str) -> Sequence[Source]:
        """From where words come to that slot of a step; empty: from nowhere."""
        return self.into.get((at, slot), ())

    @classmethod
    def of(cls, recipe: AgentRecipe, tools_of: ToolsOf, *, in_full: bool = False) -> WordPaths:
        """The ways through a recipe, from its untrusted inputs and the tools that it may call.

        Args:
            in_full: As for `find_flows`.
        """
        inputs = frozenset(
            name for name, spec in recipe.inputs.items() if spec.is_untrusted or spec.is_influenced
        )
        rights = Rights.of(recipe)
        ways = _Walk(recipe, tools_of, rights, inputs, _followed(in_full=in_full)).ways()
        if not _reads_private(recipe, tools_of):
            return ways
        own = _declared_inputs(recipe, of_private=True)
        readers = PrivateReaders.of(recipe)
        walk = _Walk(recipe, tools_of, rights, own, Follow.ALL, readers=readers)
        return structs.replace(ways, private=walk.reached())

    @classmethod
    def of_code(cls, steps: int, tools: Iterable[ToolSpec]) -> WordPaths | None:
        """The ways through steps made by code, each of which may read every other one; None: no
        tool is said to give such words.
        """
        if not any(tool.reads in _SAID for tool in tools):
            return None
        places = range(steps)
        into = {(at, WORK): [each for each in places if each != at] for at in places}
        return cls(frozenset(places), into, tuple(places), frozenset(places))


class _Walk:
    """Follows untrusted text through one recipe."""

    def __init__(
        self,
        recipe: AgentRecipe,
        tools_of: ToolsOf,
        rights: Rights,
        inputs: frozenset[str],
        follow: Follow,
        *,
        readers: PrivateReaders | None = None,
        outer_model: ModelConfig | None = None,
    ) -> None:
        """Nothing is followed yet.

        Args:
            inputs: The untrusted ones; `CONTROL` where such text decides whether the recipe runs.
            readers: Follow private data to tools that give their arguments to others, and to models
                other than these, instead of untrusted text to tools with an effect; None: do not.
            outer_model: The model of the recipe around it; None: there is none.
        """
        self._recipe = recipe
        self._templates = recipe.templates
        self._follow = follow
        self._readers = readers
        self._of_private = readers is not None
        self._model = outer_model.overlaid(recipe.model) if outer_model else recipe.model
        self._tools_of = tools_of
        self._rights = rights
        self._inputs = inputs
        self._tools = tools_of(recipe)
        self._edges = text_edges(recipe, self._tools, follow)
        self._arrived: list[dict[str, _Trace]] = [{} for _ in recipe.steps]
        self._out: list[_Trace | None] = [None for _ in recipe.steps]
        self._pending: deque[tuple[Source, _Trace]] = deque()
        self._nested: dict[tuple[int, frozenset[str]], _Found] = {}

    def found(self) -> _Found:
        """What untrusted text reaches."""
        self.reached()
        flows = [flow for at in range(len(self._recipe.steps)) for flow in self._flows(at)]
        output = self._output()
        return _Found(tuple(flows), output.path() if output is not None else None)

    def reached(self) -> frozenset[Source]:
        """Propagate all untrusted text; the steps whose output it is in."""
        for name in sorted(self._inputs):
            trace = _Trace.to(_input_node(name, is_private=self._of_private))
            self._pending.append((name, trace))
            if name == CONTROL:
                for arrived in self._arrived:
                    arrived[CONTROL] = trace
        for at in range(len(self._recipe.steps)):
            self._update(at)
        while self._pending:
            source, trace = self._pending.popleft()
            for edge in self._edges.get(source, ()):
                self._arrive(edge, trace)
        return frozenset(at for at, trace in enumerate(self._out) if trace is not None)

    def ways(self) -> WordPaths:
        """The edges that untrusted text can pass, by where they lead."""
        reached = self.reached() | self._inputs
        into: dict[tuple[int, str], list[Source]] = {}
        for source, edges in self._edges.items():
            for edge in edges if source in reached else ():
                into.setdefault(edge, []).append(source)
        for at, step in enumerate(self._recipe.steps):
            deciding = into.get((at, CONTROL), [])
            if isinstance(step, StepSpec) and (step.inner is not None or _is_question(step)):
                into[at, WORK] = deciding
            elif deciding:
                for slot in (WORK, DECISION):
                    into[at, slot] = [*into.get((at, slot), ()), *deciding]
        output = [
            source for source in Names(self._recipe, self._follow).output() if source in reached
        ]
        return WordPaths(reached, into, output)

    def _arrive(self, edge: Edge, trace: _Trace) -> None:
        slots = self._arrived[edge.reader]
        if edge.slot not in slots:
            if edge.slot == CONTROL:
                step = self._recipe.steps[edge.reader]
                trace = _Trace.to(FlowNode(step.id, _WHETHER), trace)
            slots[edge.slot] = trace
            self._update(edge.reader)

    def _update(self, at: int) -> None:
        """Find out whether the step's output is untrusted now."""
        if self._out[at] is None and (trace := self._output_of(at)) is not None:
            self._out[at] = trace
            self._pending.append((at, trace))

    def _output_of(self, at: int) -> _Trace | None:
        step = self._recipe.steps[at]
        if isinstance(step, StepSpec) and _is_question(step):
            return self._arrived[at].get(CONTROL)
        if isinstance(step, StepSpec) and step.inner is not None:
            return self._arrived[at].get(CONTROL) or self._nested_output(at, step, step.inner)
        entering = self._entering(at)
        called = step.called_tools if isinstance(step, StepSpec) else ()
        if entering is not None and not called:
            return _Trace.to(FlowNode(step.id, _kind(step)), entering)
        for tool in self._specs(called):
            if self._is_source(tool) or entering is not None:
                return _Trace.to(_read(step, tool), entering)
        own = step.own_source if isinstance(step, StepSpec) else None
        return _Trace.to(_read(step, own)) if own is not None and self._is_source(own) else None

    def _entering(self, at: int) -> _Trace | None:
        """Untrusted text that the step works on: from other steps, else from a tool that it offers
        to its model.
        """
        return self._reaching(at) or next((trace for _, trace in self._offered_sources(at)), None)

    def _reaching(self, at: int) -> _Trace | None:
        """Untrusted text from other steps that the step works on, or that decides about it."""
        return self._arrived[at].get(WORK) or self._arrived[at].get(CONTROL)

    def _offered_sources(self, at: int) -> Iterator[tuple[ToolSpec, _Trace]]:
        step = self._recipe.steps[at]
        for tool in self._offered(step):
            if self._is_source(tool):
                yield tool, _Trace.to(_read(step, tool))

    def _offered(self, step: StepSpec | Step[object]) -> Iterator[ToolSpec]:
        """The tools that the step offers to its model; one stands for all those of a caller."""
        yield from self._specs(_find_offered(step))
        if isinstance(step, StepSpec) and step.offers_caller_tools:
            yield CALLER_TOOLS

    def _is_source(self, tool: ToolSpec) -> bool:
        return tool.reads is Reads.PRIVATE if self._of_private else tool.is_untrusted

    def _specs(self, names: Sequence[str]) -> Iterator[ToolSpec]:
        """The tools of these names that may be called."""
        for name in names:
            tool = self._tools.get(name)
            if tool is not None and self._rights.allows(tool):
                yield tool

    # --- sinks --------------------------------------------------------------------------------

    def _flows(self, at: int) -> Iterator[Flow]:
        step = self._recipe.steps[at]
        if isinstance(step, StepSpec) and step.inner is not None:
            for flow in self._nested_found(at, step.inner).flows:
                yield self._around(at, step, flow)
        elif isinstance(step, StepSpec) and step.called_tools:
            yield from self._find_reached(at, step, step.called_tools, self._reaching(at))
        else:
            yield from self._offered_flows(at, step)
        if isinstance(step, StepSpec) and step.carries_out_plans:
            yield from self._planned_flows(at, step)
        if isinstance(step, StepSpec) and step.decision_tool is not None:
            named = (step.decision_tool.tool,)
            arrived = self._arrived[at].get(DECISION) or self._arrived[at].get(CONTROL)
            yield from self._find_reached(at, step, named, arrived)
        if self._readers is not None:
            yield from self._model_flows(at, step, self._readers)

    def _model_flows(
        self, at: int, step: StepSpec | Step[object], readers: PrivateReaders
    ) -> Iterator[Flow]:
        """The flows of private data into prompts of models of other parties."""
        trace = self._entering(at) or self._arrived[at].get(DECISION)
        config = self._asked_model(step) if trace is not None else None
        named: set[str] = set()
        for each in (config, *config.others) if config is not None else ():
            rule = readers.rule(each, self._rights)
            if rule is not UntrustedRule.ALLOW and each.name not in named:
                named.add(each.name or "")
                end = _Trace.to(FlowNode(step.id, f"{_MODEL}{each.name}"), trace)
                private = tuple(node.what for node in end.private)
                yield Flow(
                    path=end.path(), private=private, toolset=_MODEL, is_private=True, rule=rule
                )

    def _asked_model(self, step: StepSpec | Step[object]) -> ModelConfig | None:
        """The model that the step asks; None: it asks none."""
        if not isinstance(step, StepSpec):
            return self._model
        if step.asks_model or (isinstance(step, ToolSpecStep) and step.fill):
            own = step.own_model
            return self._model if own is None else self._model.overlaid(own)
        route = step.route
        is_chosen = route is not None and not self._templates.compile(route).is_whole
        return self._model if is_chosen else None

    def _find_reached(
        self, at: int, step: StepSpec, names: Sequence[str], trace: _Trace | None
    ) -> Iterator[Flow]:
        """The flows into tools that the step calls itself, with untrusted arguments."""
        for tool in self._specs(names) if trace is not None else ():
            if self._is_sink(tool):
                node = FlowNode(step.id, tool.name)
                within = _secrets(self._recipe, step)
                yield from self._told(_flow(_Trace.to(node, trace), tool, within, self._rights))

    def _offered_flows(self, at: int, step: StepSpec | Step[object]) -> Iterator[Flow]:
        """The flows into tools that a model may call, after it was shown untrusted text."""
        offered = list(self._offered(step))
        arrived = self._reaching(at)
        own = list(self._offered_sources(at))
        nodes = [FlowNode(step.id, tool.name, _private(tool)) for tool in offered]
        for tool in offered:
            trace = arrived or next((each for other, each in own if _feeds(other, tool)), None)
            if trace is not None and self._is_sink(tool):
                told = _Trace.to(FlowNode(step.id, _kind(step)), trace)
                node = FlowNode(step.id, tool.name)
                yield from self._told(_flow(_Trace.to(node, told), tool, nodes, self._rights))

    def _told(self, flow: Flow) -> Iterator[Flow]:
        """The flow; none where data goes back to the toolset that read them."""
        if not self._of_private:
            yield flow
        elif flow.private:
            yield structs.replace(flow, is_private=True)

    def _planned_flows(self, at: int, step: StepSpec) -> Iterator[Flow]:
        """The flow into what a plan writes and runs, which a model makes of untrusted text."""
        trace = self._entering(at)
        if trace is not None and self._rights.may_write and not self._of_private:
            node = FlowNode(step.id, step.kind)
            yield _flow(_Trace.to(node, trace), ToolSpec(name=step.kind), (), self._rights)

    def _is_sink(self, tool: ToolSpec) -> bool:
        """Whether it writes, sends or spends, and nobody is asked before; of private data: whether
        it only gives its arguments to others.
        """
        takes_effect = self._rights.takes_effect(tool)
        is_sink = tool.is_asking_others and not takes_effect if self._of_private else takes_effect
        return is_sink and not self._rights.needs_approval(tool)

    # --- nested recipes -----------------------------------------------------------------------

    def _nested_found(self, at: int, inner: AgentRecipe) -> _Found:
        """What the nested recipe does with the inputs that are untrusted so far; worked out once
        for all steps that run it with the same ones.
        """
        arrived = frozenset(name for name in self._arrived[at] if name != DECISION)
        inputs = arrived | _declared_inputs(inner, of_private=self._of_private)
        key = (id(inner), inputs)
        if key not in self._nested:
            rights = self._rights.within(inner)
            walk = _Walk(
                inner,
                self._tools_of,
                rights,
                inputs,
                self._follow,
                readers=self._readers,
                outer_model=self._model,
            )
            self._nested[key] = walk.found()
        return self._nested[key]

    def _nested_output(self, at: int, step: StepSpec, inner: AgentRecipe) -> _Trace | None:
        path = self._nested_found(at, inner).output
        return self._splice(at, step, path) if path is not None else None

    def _splice(self, at: int, step: StepSpec, path: Sequence[FlowNode]) -> _Trace:
        """A path of the nested recipe as one of this recipe."""
        first = path[0].recipe_input
        if first not in self._arrived[at]:  # the recipe itself says that it is untrusted
            first = None
        trace: _Trace | None = None
        if first is not None:
            trace = _Trace.to(FlowNode(step.id, step.kind), self._arrived[at][first])
        for node in path[1:] if first is not None else path:
            trace = _Trace.to(node.within(step.id), trace)
        assert trace is not None  # noqa: S101  # a path is never empty
        return trace

    def _around(self, at: int, step: StepSpec, flow: Flow) -> Flow:
        trace = self._splice(at, step, flow.path)
        private = (*_private_within(trace.private, flow.toolset), *flow.private)
        rule = UntrustedRule.ALLOW if trace.start[0].is_undeclared else flow.rule
        known = tuple(dict.fromkeys(private))
        return structs.replace(flow, path=trace.path(), private=known, rule=rule)

    def _output(self) -> _Trace | None:
        """Untrusted text in the output of the recipe."""
        for source in Names(self._recipe, self._follow).output():
            if isinstance(source, int) and self._out[source] is not None:
                return self._out[source]
            if isinstance(source, str) and source in self._inputs:
                return _Trace.to(_input_node(source, is_private=self._of_private))
        return None


def _is_question(step: StepSpec) -> bool:
    return step.asks_person and not step.asks_model


_WHETHER: Final = "whether it runs"
_MODEL: Final = "model "


def _input_node(name: str, *, is_private: bool) -> FlowNode:
    what, private = ("private input", "inputs") if is_private else ("untrusted input", None)
    return FlowNode(f"inputs.{name}", what, private, recipe_input=name)


def _declared_inputs(recipe: AgentRecipe, *, of_private: bool = False) -> frozenset[str]:
    """The inputs that the recipe itself declares untrusted, or private."""
    declared = recipe.inputs.items()
    if of_private:
        return frozenset(name for name, spec in declared if spec.is_private)
    return frozenset(name for name, spec in declared if spec.is_untrusted)


def _feeds(source: ToolSpec, sink: ToolSpec) -> bool:
    """Whether results of the one may lead a model to call the other: a tool that does not say what
    it reads is not taken for its own source, nor a toolset whose changes stay where it reads.
    """
    if sink.is_local and toolset_of(source) == toolset_of(sink):
        return False
    return source.name != sink.name or source.reads is not Reads.UNDECLARED


def _find_offered(step: StepSpec | Step[object]) -> Sequence[str]:
    return step.offered_tools if isinstance(step, StepSpec) else tuple(sorted(step.available_tools))


def _kind(step: StepSpec | Step[object]) -> str:
    return step.kind if isinstance(step, StepSpec) else type(step).__name__


def _read(step: StepSpec | Step[object], tool: ToolSpec) -> FlowNode:
    """The place where a step reads what a tool gives."""
    is_undeclared = tool.reads is Reads.UNDECLARED
    return FlowNode(step.id, tool.name, _private(tool), is_undeclared=is_undeclared)


def _flow(trace: _Trace, tool: ToolSpec, within: Sequence[FlowNode], rights: Rights) -> Flow:
    """The flow of that path.

    Args:
        within: Further places whose data is within reach at its end.
    """
    private = _private_within((*trace.private, *within), toolset_of(tool))
    rule = UntrustedRule.ALLOW if trace.start[0].is_undeclared else rights.untrusted_of(tool)
    return Flow(path=trace.path(), private=tuple(private), toolset=toolset_of(tool), rule=rule)


def _private_within(nodes: Sequence[FlowNode], toolset: str) -> Iterator[str]:
    """What is private at these places; to write back where it was read sends it nowhere."""
    found = (each.what for each in nodes if each.private not in (None, toolset))
    yield from dict.fromkeys(found)


def _private(tool: ToolSpec) -> str | None:
    return toolset_of(tool) if tool.reads is Reads.PRIVATE else None


def _secrets(recipe: AgentRecipe, step: StepSpec) -> Sequence[FlowNode]:
    """The secret inputs among the arguments of a call."""
    if not any(spec.is_secret for spec in recipe.inputs.values()):
        return ()
    read = carried_references(list(step.sources), recipe.templates)
    paths = [reference.path for reference in read]
    names = [str(path[1]) for path in paths if path[0] == "inputs" and len(path) > 1]
    known = recipe.inputs
    secret = [name for name in names if name in known and known[name].is_secret]
    return [FlowNode(step.id, f"inputs.{name}", "secrets") for name in secret]


def toolset_of(tool: ToolSpec) -> str:
    """The toolset of a tool; the name itself for a registered one."""
    return (tool.origin or tool.name).partition("__")[0]


# --- which expressions of a step's texts hold untrusted text -------------------------------------


class UntrustedText:
    """The untrusted steps and inputs of one recipe."""

    def __init__(self, recipe: AgentRecipe, catalog: Catalog) -> None:
        """Find them; quick for a recipe that names no untrusted tool and no untrusted input."""
        self._tools = tool_specs(recipe, catalog)

        def tools_of(one: AgentRecipe) -> Mapping[str, ToolSpec]:
            return _declared(tool_specs(one, catalog))

        self.paths: WordPaths | None = (
            WordPaths.of(recipe, tools_of, in_full=catalog.is_strict_in_full)
            if any(map(self._may_begin, recipe.steps)) or _has_untrusted_input(recipe)
            else None
        )
        """The ways of such text; None: no tool and no input is declared so."""
        self._found = frozenset[Source]()
        """The steps and inputs that hold its very words."""
        if self.paths is not None:
            inputs = _declared_inputs(recipe)
            walk = _Walk(recipe, tools_of, Rights.of(recipe), inputs, Follow.WORDS)
            self._found = walk.reached() | inputs
        self._names = Names(recipe)
        self._ids = self._names.ids
        self._known: dict[tuple[str, int], tuple[Term, bool]] = {}
        """What was found of each expression, by its step and identity; the recipe decides it."""

    def __bool__(self) -> bool:
        return bool(self._found)

    def is_in(self, step: StepSpec, term: Term) -> bool:
        """Whether the value of an expression in the step's texts may hold untrusted text."""
        if not self._found:
            return False
        key = step.id, id(term)
        if key not in self._known:
            self._known[key] = term, self._holds(step, term)
        return self._known[key][1]

    def _holds(self, step: StepSpec, term: Term) -> bool:
        references = tuple(carried_by(term))
        if any(each.path[0] == "feedback" for each in references):
            return True  # the message of an error may hold what a tool read
        reads = StepReads(self._names, step, self._tools)
        return any(source in self._found for source in reads.sources(references))

    def influences(self, step_id: str, name: str) -> bool:
        """Whether untrusted text may influence what a step gives its recipe under that name."""
        at = self._ids[step_id]
        return self.paths is not None and (at, name) in self.paths.into

    def is_of(self, step_id: str) -> bool:
        """Whether the output of that step may hold untrusted text."""
        return self._ids.get(step_id) in self._found

    def _may_begin(self, step: object) -> bool:
        if not isinstance(step, StepSpec):
            return False
        named = (*step.called_tools, *step.offered_tools)
        found = (self._tools[name].reads for name in named if name in self._tools)
        is_own = step.inner is not None or step.own_source is not None
        return is_own or step.offers_caller_tools or any(each in _SAID for each in found)


_SAID = frozenset({Reads.UNTRUSTED, Reads.PRIVATE})


def _has_untrusted_input(recipe: AgentRecipe) -> bool:
    return any(spec.is_untrusted or spec.is_influenced for spec in recipe.inputs.values())


def _declared(specs: Mapping[str, ToolSpec]) -> Mapping[str, ToolSpec]:
    """The tools; those that do not say what they read count as trusted."""
    return {
        name: spec if spec.reads is not Reads.UNDECLARED else evolve(spec, reads=Reads.TRUSTED)
        for name, spec in specs.items()
    }


# --- the rule about untrusted text ---------------------------------------------------------------


def check_untrusted_flows(
    draft: RecipeDraft, recipe: AgentRecipe, catalog: Catalog, report: Report
) -> None:
    """Report each tool that untrusted text can reach, with one path to it, where it first does.

    Args:
        recipe: The recipe that was made of the draft.
    """
    _check_system_prompt(draft, recipe, report)
    for spec, step_draft in zip(recipe.steps, draft.steps, strict=True):
        if isinstance(spec, StepSpec) and spec.endorse:
            _check_endorsed(spec, step_draft, report)
    known: dict[int, Mapping[str, ToolSpec]] = {}

    def tools_of(inner: AgentRecipe) -> Mapping[str, ToolSpec]:
        if id(inner) not in known:
            known[id(inner)] = tool_specs(inner, catalog)
        return known[id(inner)]

    ids = [step.id for step in recipe.steps]
    steps = dict(zip(ids, draft.steps, strict=True))
    by_step: dict[tuple[str, bool], list[Flow]] = {}
    in_full, operator = catalog.is_strict_in_full, catalog.operator
    for flow in find_flows(recipe, tools_of, in_full=in_full, operator=operator):
        by_step.setdefault((flow.path[-1].step, flow.is_private), []).append(flow)
    # A stored run's recipe, which is plain data, has to stay runnable.
    is_error = (recipe.strict or bool(catalog.strict)) and draft.is_text
    by_tool: dict[tuple[object, ...], list[tuple[str, bool]]] = {}
    for (path, is_private), flows in by_step.items():
        about = (is_private, flows[0].tool, *_private_names(flows))
        by_tool.setdefault(about, []).append((path, is_private))
    for first, *others in by_tool.values():
        step, paths = steps[first[0].partition("/")[0]], [path for path, _ in others]
        _report(step, by_step[first], paths, report, catalog, is_warning=not is_error)
    _check_recorded_examples(draft, recipe, catalog, report, is_warning=not is_error)


def _check_recorded_examples(
    draft: RecipeDraft, recipe: AgentRecipe, catalog: Catalog, report: Report, *, is_warning: bool
) -> None:
    """Report steps to whose prompt recorded runs would add what strangers wrote in other runs."""
    for step, known in zip(recipe.steps, draft.steps, strict=True):
        if not isinstance(step, ExampleStepSpec) or step.recorded_examples is None:
            continue
        untrusted = UntrustedText(recipe, catalog)
        question = recipe.templates.compile(step.example_question)
        if any(untrusted.is_in(step, term) for term in question.terms()):
            report(
                known.section.place_of("examples").fault(
                    "untrusted-examples",
                    f"examples from recorded runs would show what strangers wrote: the goal of "
                    f"{known.title} reads untrusted text, and stands in them without a border",
                    help="mark only runs whose inputs you have read, or choose the examples with "
                    "`minions learn`, which shows them",
                    is_warning=is_warning,
                )
            )


def _check_system_prompt(draft: RecipeDraft, recipe: AgentRecipe, report: Report) -> None:
    """Report a system prompt of the whole recipe that reads an untrusted input."""
    references = carried_references(recipe.system_prompt, recipe.templates)
    paths = [reference.path for reference in references]
    read = {path[1:2] for path in paths if path[0] == "inputs"}  # () stands for all of them
    for name, spec in recipe.inputs.items():
        if spec.is_untrusted and ((name,) in read or () in read):
            report(
                draft.section.place_of(
                    "system_prompt" if draft.section.node("system_prompt") else "context"
                ).fault(
                    "untrusted-system-text",
                    f"the system prompt reads the untrusted input '{name}'",
                    help="read it in the goal of a step, where it stands within a border",
                )
            )


def _check_endorsed(step: StepSpec, draft: StepDraft, report: Report) -> None:
    """Report what cannot be endorsed: what the step does not have, and an answer that is not one of
    few.
    """
    schema = Shape.of(step.declared_output or {})
    if step.declared_output is None and not step.asks_model:
        schema = Shape(draft.output, draft.output)
        if step.loop is not None:
            schema = (schema if step.loop.aggregate else schema.at(("results",))).items()
    for word in step.endorse:
        for message, help_ in _endorsement_problems(step, word, schema):
            place = draft.section.place_of("endorse")
            report(place.fault("bad-endorsement", f"{draft.title}: {message}", help=help_))


def _endorsement_problems(step: StepSpec, word: str, schema: Shape) -> Iterator[tuple[str, str]]:
    """What is wrong with one word of a step's `endorse`, and what helps.

    Args:
        schema: Of the step's output, for one item of its loop.
    """
    members = schema.node.get("properties") if isinstance(schema.node, Mapping) else None
    known = members if isinstance(members, Mapping) else {}
    fields = [f"{ENDORSED_OUTPUT}.{each}" for each in known]
    has = {
        "when": step.when is not None,
        "loop": step.loop is not None or step.repeat is not None,
        "route": step.route is not None or step.decision_tool is not None,
    }
    if word in has:
        if not has[word]:
            yield f"there is no '{word}' to endorse", "leave the word out"
    elif word != ENDORSED_OUTPUT and word not in fields:
        options = (ENDORSED_OUTPUT, *fields, *has)
        near = did_you_mean(word, options)
        yield (
            f"'{word:.60}' cannot be endorsed.{near}",
            f"what can be endorsed here: {', '.join(options)}",
        )
    elif not is_closed(schema.at(tuple(word.split(".")[1:])).node):
        yield (
            f"'{word}' is no closed answer: it may be any value",
            "give it a type of truth values, listed words (enum), or bounded whole numbers",
        )
    elif step.loop is not None and "loop" not in step.endorse:
        yield (
            "how many answers the loop gives is not endorsed",
            "endorse 'loop', too, or endorse the answer in a nested recipe",
        )


def _private_names(flows: list[Flow]) -> list[str]:
    """Names of what the tools could send."""
    return list(dict.fromkeys(name for flow in flows for name in flow.private))


def _report(
    step: StepDraft,
    flows: list[Flow],
    others_too: list[str],
    report: Report,
    catalog: Catalog,
    *,
    is_warning: bool,
) -> None:
    first, *others = flows
    more = [flow.tool for flow in others if flow.tool != first.tool]
    also = f", and so to {', '.join(more)}" if more else ""
    same = f"; the same in {_some(others_too)}" if others_too else ""
    private = _private_names(flows)
    within = f"; it could send what {', '.join(private)} holds" if private else ""
    what = f"untrusted text can reach '{first.tool}'"
    is_model = first.toolset == _MODEL
    if is_model:
        what = f"private data can reach the {first.tool}, which is another party than the run's"
    elif first.is_private:
        what = f"private data can reach '{first.tool}', which gives its arguments to others"
    place = step.section.place_of(step.kind or "id")
    is_plan = first.tool == step.kind
    asking = "" if is_plan else f"set permissions: {{requires_approval: [{first.tool}]}}, "
    if is_model:
        asking = "name it under permissions: {private_models: […]}, "
    report(
        place.fault(
            "private-flow" if first.is_private else "untrusted-flow",
            f"{what}{_BEFORE[first.rule]}: {first.words}{also}{within}{same}",
            help=f"{asking}{_or_else(catalog)}{_LET_THROUGH if is_warning else ''}",
            is_warning=is_warning,
        )
    )


_BEFORE: Final = {
    UntrustedRule.ALLOW: " without an approval",
    UntrustedRule.ASK: ", and each such call waits for an approval",
    UntrustedRule.REFUSE: ", and each such call is refused",
}


_LET_THROUGH: Final = (
    "; such calls are made unasked where a condition over the call is true, by permissions: "
    "{policies: …}, or all of them by {untrusted: allow}"
)


def _or_else(catalog: Catalog) -> str:
    """What else makes the text harmless, for people."""
    if catalog.is_strict_in_full:
        return (
            "or leave the text out: where the operator is strict in full, no question, no "
            "'endorse' and no 'reads: trusted' of the recipe counts"
        )
    return (
        "let an ask step show the text and 'when' read its answer, declare the source 'reads: "
        "trusted', or 'endorse' a closed answer"
    )


_MOST_NAMED: Final = 5


def _some(paths: list[str]) -> str:
    more = len(paths) - _MOST_NAMED
    named = ", ".join(paths[:_MOST_NAMED])
    return f"{named} and {more} more" if more > 0 else named
