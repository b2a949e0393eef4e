"""Drafts: a recipe between its text and its values, on which checks work while faults are
collected; and the paths through a graph of steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import attrs
from msgspec import Struct, field

from minions.contracts.completion import CompletionCriteria
from minions.contracts.instructions import HistoryWindow
from minions.contracts.retry_config import NOTHING_STATED, RetryConfig
from minions.contracts.steps import ToolSearch
from minions.contracts.tools import ToolSpec
from minions.data.errors import Fault
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.recipe.examples import Example, ExampleBounds, ExampleSource
from minions.recipe.expressions.template import Templates
from minions.recipe.expressions.terms import Term
from minions.recipe.expressions.values import Reference, TemplateError, nearest
from minions.recipe.model import (
    AgentRecipe,
    ContextPart,
    ExecutionMode,
    InputSpec,
    MessageSpec,
    Permissions,
    RecipeTest,
    ScheduleSpec,
    ToolsetUse,
    WatchSpec,
)
from minions.recipe.model_config import ModelConfig
from minions.recipe.text.nodes import MappingNode, Node, Place, ScalarNode, SequenceNode
from minions.recipe.text.sections import Report, Section


def _as_edges(following: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, following))


@attrs.define(slots=False, eq=False)
class GraphPaths(FieldsRepr):
    """All paths from the first step; each question costs at most one traversal of the edges."""

    following: tuple[tuple[int, ...], ...] = attrs.field(converter=_as_edges)
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


TEXT_OUTPUT: Final[JsonSchema] = {"type": "string"}
"""The output of a step that answers with text and declares no output. Compared by identity."""


class TemplateUse(Struct, frozen=True, kw_only=True, eq=False):
    """A string with templates, and what it reads."""

    node: ScalarNode
    references: tuple[Reference, ...]
    term: Term | None = None
    """The expression, if the string consists of one expression only."""

    def place_of(self, reference: Reference | None) -> Place:
        """The place of that reference in the recipe's text; None: that of the whole string."""
        if reference is None:
            return self.node.place
        return self.node.part(reference.offset, len(reference.text))


class GoalParts(Struct, frozen=True, kw_only=True):
    """The parts of a goal step, already as values."""

    context: tuple[ContextPart, ...] = ()
    messages: tuple[MessageSpec, ...] = ()
    schema: JsonSchema | None = None
    """The declared output as a full JSON Schema."""
    artifacts: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    question: str = ""
    """What the step asks, with which examples are rendered; a template."""
    examples: tuple[Example, ...] = ()
    examples_from: ExampleSource | None = None
    nearest: ExampleBounds | None = None
    """Within which bounds those nearest to a question are shown; None: all are."""
    completion: CompletionCriteria | None = None
    links: tuple[str, ...] = ()
    model: ModelConfig | None = None
    history: HistoryWindow | None = None


class StepDraft(Struct, kw_only=True, eq=False):
    """One step with everything that could be read of it."""

    id: str
    """The id; a placeholder such as `<step 3>` where the recipe states none."""
    index: int
    kind: str | None
    section: Section
    templates: tuple[TemplateUse, ...] = ()
    output: JsonSchema = field(default_factory=dict)
    """What is known of the output, as JSON Schema; {}: nothing."""
    goal: GoalParts = field(default_factory=GoalParts)
    limits: Mapping[str, JsonValue] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()
    """The conditions of an assert step."""
    tools: tuple[str, ...] = ()
    """Full names of the tools of a goal step."""
    tool_search: ToolSearch = field(default_factory=ToolSearch)
    """How its model comes to them."""
    depends_on: tuple[int, ...] = ()
    declared: tuple[int, ...] = ()
    """Indices of the steps that `depends_on` names explicitly."""
    after: tuple[int, ...] = ()
    outer_templates: tuple[TemplateUse, ...] = ()
    """Templates of `when` and `loop`, which are evaluated before there is an item."""
    has_loop: bool = False
    retry: RetryConfig | None = None
    has_while: bool = False
    attempt_output: JsonSchema | None = None
    """What is known of one attempt of a `while` whose output is the list of all; None: `output`."""
    repeat_templates: tuple[TemplateUse, ...] = ()
    """Templates of `while`, which are evaluated after each attempt."""
    goto: ScalarNode | None = None
    """The target of the back edge in `on_error`."""
    route_templates: tuple[TemplateUse, ...] = ()
    """Templates of `route` and `decision_tool`, which are evaluated after the step has ended."""
    decision: Section | None = None
    """The `decision_tool` of the step."""
    waits_s: float | None = None
    """Timeout of an ask step in seconds; None: none."""
    recipe: AgentRecipe | None = None
    """The recipe that a recipe step runs."""

    @property
    def condition(self) -> Term | None:
        """The expression of `when`, if it could be parsed."""
        node = self.section.node("when")
        if node is None:
            return None
        return next((use.term for use in self.outer_templates if use.node is node), None)

    @property
    def asserted(self) -> list[Term]:
        """The conditions of an `assert` step, those that could be parsed."""
        node = self.section.node("assert")
        nodes = node.items if isinstance(node, SequenceNode) else (node,)
        wanted = {id(item) for item in nodes if isinstance(item, ScalarNode)}
        return [
            use.term for use in self.templates if use.term is not None and id(use.node) in wanted
        ]

    @property
    def artifacts(self) -> JsonSchema:
        """JSON Schema of its artifacts; each item of a loop has to give the declared ones."""
        from minions.recipe.artifacts import artifacts_schema

        return artifacts_schema(() if self.has_loop else self.goal.artifacts)

    @property
    def is_named(self) -> bool:
        """Whether `id` is stated by the recipe."""
        return self.section.text("id") is not None

    @property
    def all_templates(self) -> tuple[TemplateUse, ...]:
        """All templates of the step."""
        return (
            *self.outer_templates,
            *self.templates,
            *self.repeat_templates,
            *self.route_templates,
        )

    @property
    def title(self) -> str:
        """The step's name in messages."""
        return f"'{self.id}'" if self.is_named else f"step {self.index + 1}"

    @property
    def lost_names(self) -> tuple[str, ...]:
        """Names that other steps may refer to this one by, although they
        are invalid and were reported.
        """
        nodes = map(self.section.refused_node, ("id", "save_as"))
        return tuple(str(node.value) for node in nodes if isinstance(node, ScalarNode))

    @property
    def save_as(self) -> str | None:
        """The step's second name."""
        return self.section.text("save_as")

    @property
    def place(self) -> Place:
        """The place of the step's id, or of the whole step."""
        return self.section.place_of("id")


class ToolNames(Struct, frozen=True, kw_only=True):
    """The tools that steps may name."""

    specs: Mapping[str, ToolSpec] = field(default_factory=dict)
    """Tools by full name: `files__read`, or the name of a registered tool."""
    prefixes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Full names of each toolset's tools, by the toolset's prefix."""
    is_complete: bool = True
    """False where an entry of `tools` was faulty: an unknown tool name is then not reported."""


class RecipeDraft(Struct, kw_only=True, eq=False):
    """The whole recipe, as far as it could be read."""

    section: Section
    mode: ExecutionMode = ExecutionMode.SEQUENTIAL
    inputs: Mapping[str, InputSpec] = field(default_factory=dict)
    uses: tuple[ToolsetUse, ...] = ()
    tools: ToolNames = field(default_factory=ToolNames)
    steps: tuple[StepDraft, ...] = ()
    model: ModelConfig = field(default_factory=ModelConfig)
    permissions: Permissions = field(default_factory=Permissions)
    has_faulty_permissions: bool = False
    limits: Mapping[str, JsonValue] = field(default_factory=dict)
    retain_s: float | None = None
    redact: tuple[str, ...] = ()
    retry: RetryConfig = NOTHING_STATED
    templates: Templates = field(default_factory=Templates)
    """Compiles the texts of the recipe, each once."""
    tests: tuple[RecipeTest, ...] = ()
    schedules: tuple[ScheduleSpec, ...] = ()
    watch: WatchSpec | None = None
    output_templates: tuple[TemplateUse, ...] = ()
    unchecked: dict[str, Fault] = field(default_factory=dict)
    """Values of unknown types of which a field is read, by their names."""
    output: JsonSchema = field(default_factory=dict)
    """What is known of the run's output, as JSON Schema; {}: nothing."""
    paths: GraphPaths | None = None
    """Paths through `graph`, if all of it could be read."""
    prompt_templates: tuple[TemplateUse, ...] = ()
    """Templates of the agent's system prompt and goal and of tool options,
    which may read inputs only.
    """

    @property
    def is_text(self) -> bool:
        """Whether it was read from text. Plain data may be a stored run's recipe, which has to stay
        runnable.
        """
        place = self.section.place
        return bool(place.source.lines)

    @property
    def is_older(self) -> bool:
        """Whether it is written in the older format: with `params_template`, or `llm_analyze`."""
        return any(
            "params_template" in step.section.entries or step.section.text("tool") == "llm_analyze"
            for step in self.steps
        )

    def find_tool(self, name: str) -> ToolSpec | None:
        """The tool of that full name; None: no such tool is known."""
        specs = self.tools.specs
        return specs.get(name)

    def note_unchecked(self, name: str, fault: Fault) -> None:
        """A field is read of that value, whose type is not known; the first fault stays."""
        self.unchecked.setdefault(name, fault)

    @property
    def has_graph(self) -> bool:
        """Whether the recipe has transitions, valid or not."""
        return "graph" in self.section.entries or "graph" in self.section.refused


def is_lost_name(draft: RecipeDraft, name: str) -> bool:
    """Whether the name is, or may be, that of a step whose name was reported as faulty."""
    if "steps" in draft.section.refused or any(name in step.lost_names for step in draft.steps):
        return True
    if all(step.is_named or step.lost_names for step in draft.steps):
        return False
    names = [step.id for step in draft.steps if step.is_named]
    saved = [step.save_as for step in draft.steps if step.save_as is not None]
    return nearest(name, (*names, *saved)) is None


def read_templates(
    node: Node | None, report: Report, compiled: Templates
) -> tuple[TemplateUse, ...]:
    """Every string below `node` that holds templates; faulty templates are reported."""
    if node is None:
        return ()
    uses: list[TemplateUse] = []
    pending = [node]
    while pending:
        current = pending.pop()
        if isinstance(current, MappingNode):
            pending.extend(entry.value for entry in reversed(current.entries))
        elif isinstance(current, SequenceNode):
            pending.extend(reversed(current.items))
        elif isinstance(current.value, str):
            use = _template_use(current, current.value, report, compiled)
            if use is not None:
                uses.append(use)
    return tuple(uses)


def _template_use(
    node: ScalarNode, text: str, report: Report, compiled: Templates
) -> TemplateUse | None:
    try:
        template = compiled.compile(text)
    except TemplateError as error:
        report(_template_fault(node, error))
        return None
    return (
        None
        if template.is_constant
        else TemplateUse(node=node, references=template.references, term=template.term)
    )


def read_condition(
    node: ScalarNode | None, report: Report, compiled: Templates
) -> tuple[TemplateUse, ...]:
    """The references of a `when`; a faulty condition is reported."""
    if node is None or not isinstance(node.value, str):
        return ()
    try:
        condition = compiled.compile_condition(node.value)
    except TemplateError as error:
        report(_template_fault(node, error))
        return ()
    return (TemplateUse(node=node, references=condition.references, term=condition.term),)


def _template_fault(node: ScalarNode, error: TemplateError) -> Fault:
    place = node.part(error.offset, error.length)
    return place.fault("bad-template", error.problem, help=error.hint)
