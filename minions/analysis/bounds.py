"""Upper bounds of how often a recipe's steps run, and of the calls that takes. Values, no
texts.

A step with `loop` items or `while` attempts counts that many times; the steps of a nested recipe
count as often as the step that runs it. `on_error: {goto: T, max: n}` of a step F takes the back
edge at most n times, however often F runs. Each time T and all that depends on T run again, but
nothing that can start only after F has completed. So a step runs 1 + the sum of the n of all such F
times: those of overlapping back edges add up, those of nested recipes multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
from attrs import field, frozen

from minions.contracts.context import Limits
from minions.contracts.retry import RetryConfig
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue, dumps
from minions.recipe.control_flow import MOST_ROUTING_CALLS
from minions.recipe.graph_paths import GraphPaths
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.model_config import ModelConfig
from minions.recipe.permissions import Rights

if TYPE_CHECKING:
    from minions.contracts.steps import Step


AnyStep: TypeAlias = "StepSpec | Step[object]"
StepKinds: TypeAlias = "Mapping[str, type[Step[object]]]"
"""Registered `Step` classes by name."""


@frozen(kw_only=True)
class Bound:
    """An upper bound, or the reasons why there is none."""

    known: int = 0
    """The bound of those parts that have one."""
    unbounded: tuple[str, ...] = ()
    """Why other parts have none; empty: `known` bounds all parts."""

    def plus(self, other: Bound) -> Bound:
        """The bound of both together."""
        reasons = dict.fromkeys((*self.unbounded, *other.unbounded))
        return Bound(known=self.known + other.known, unbounded=tuple(reasons))

    def times(self, count: Bound) -> Bound:
        """The bound of `count` repetitions."""
        if self == _NOTHING:
            return self
        if count.unbounded:
            reasons = dict.fromkeys((*self.unbounded, *count.unbounded))
            return Bound(unbounded=tuple(reasons))
        return attrs.evolve(self, known=self.known * count.known)

    def to_json(self) -> dict[str, JsonValue]:
        """`{"at_most": null where there is no bound, "unbounded_because": [reason]}`."""
        at_most = None if self.unbounded else self.known
        return {"at_most": at_most, "unbounded_because": list(self.unbounded)}


_NOTHING: Final = Bound()


@frozen(kw_only=True)
class StepBound:
    """The bounds of one step in one run of its recipe: all its items,
    attempts and visits together.
    """

    id: str
    model_calls: Bound
    """Logical model calls: repairs count, transport retries do not."""
    tool_calls: Bound
    """Attempts at tool calls."""
    visits: int = 1
    """How often the run may visit the step."""
    iterations: Bound = field(default=Bound(known=1))
    """Iterations at each visit."""
    inner: RecipeBound | None = None
    """The bounds of one run of the nested recipe; None: it is not a recipe step."""


@frozen(kw_only=True)
class RecipeBound:
    """The bounds of one run of a recipe."""

    steps: tuple[StepBound, ...]
    model_calls: Bound
    tool_calls: Bound


@frozen(kw_only=True)
class Place:
    """A recipe at its place: the outermost one, or one that a step of another recipe runs."""

    recipe: AgentRecipe
    tools_of: Callable[[AgentRecipe], Mapping[str, ToolSpec]]
    """Looks up the tools that a recipe can call, by full name."""
    kinds: StepKinds = field(factory=dict)
    path: str = ""
    """Prefix of the ids of its steps, such as `outer/`."""
    base_model: ModelConfig
    retry: RetryConfig
    """How calls of its steps are tried again, where a step states nothing."""
    rights: Rights
    tools: Mapping[str, ToolSpec] = field(init=False)

    @tools.default
    def _tools(self) -> Mapping[str, ToolSpec]:
        return self.tools_of(self.recipe)

    @classmethod
    def of_run(
        cls,
        recipe: AgentRecipe,
        tools_of: Callable[[AgentRecipe], Mapping[str, ToolSpec]],
        kinds: StepKinds,
    ) -> Place:
        """The place of the outermost recipe."""
        rights = Rights.of(recipe)
        return cls(
            recipe=recipe,
            tools_of=tools_of,
            kinds=kinds,
            base_model=recipe.model,
            retry=recipe.retry,
            rights=rights,
        )

    def retry_of(self, step: AnyStep) -> RetryConfig:
        """How calls of the step are tried again."""
        return self.retry if step.retry is None else step.retry.over(self.retry)

    def inside(self, step: AnyStep) -> Place | None:
        """The place of the recipe that the step runs; None: it is not a recipe step."""
        recipe = step.inner if isinstance(step, StepSpec) else None
        if recipe is None:
            return None
        return Place(
            recipe=recipe,
            tools_of=self.tools_of,
            kinds=self.kinds,
            path=f"{self.path}{step.id}/",
            base_model=self.base_model.overlaid(recipe.model),
            retry=recipe.retry.over(self.retry_of(step)),
            rights=self.rights.within(recipe),
        )

    def with_inner(self) -> Iterator[Place]:
        """This place and all places within it, in the order of the steps."""
        yield self
        for step in self.recipe.steps:
            if (inside := self.inside(step)) is not None:
                yield from inside.with_inner()

    @property
    def limits(self) -> Limits:
        """The limits of the recipe."""
        return Limits.from_metadata(self.recipe.limits)

    def limits_of(self, step: AnyStep) -> Limits:
        """The step's limits over those of the recipe."""
        own = dict(step.limits) if isinstance(step, StepSpec) else {}
        return Limits.of_step({**step.metadata, **own}, base=self.limits)

    def is_code(self, step: AnyStep) -> bool:
        """Whether Python code decides which calls the step makes."""
        from minions.contracts.steps import PythonStep

        if isinstance(step, StepSpec):
            if step.registered_class is None:
                return False
            kind = self.kinds.get(step.registered_class)
            return kind is None or issubclass(kind, PythonStep)
        return isinstance(step, PythonStep)

    def asks(self, step: AnyStep) -> bool:
        """Whether the step may call a model for its work."""
        if isinstance(step, StepSpec) and step.registered_class is None:
            return step.may_ask_model(self.tools)
        return True

    def asks_where_to_go(self, step: AnyStep) -> bool:
        """Whether a model chooses the step's successor."""
        if not isinstance(step, StepSpec) or step.route is None:
            return False
        return not self.recipe.templates.compile(step.route).is_whole

    def runs_agents(self, step: AnyStep) -> bool:
        """Whether a tool of the step runs recipes by name, which do what they do."""
        named = (self.tools.get(name) for name in self.called(step))
        return any(tool is not None and tool.is_resumable for tool in named)

    def called(self, step: AnyStep) -> tuple[str, ...]:
        """Full names of the tools that the step calls, or offers to its model, as far as known."""
        if not isinstance(step, StepSpec):
            return tuple(sorted(step.available_tools & self.tools.keys()))
        decides = (step.decision_tool.tool,) if step.decision_tool is not None else ()
        return (*step.called_tools, *step.offered_tools, *decides)


def recipe_bound(place: Place) -> RecipeBound:
    """The bounds of one run of the recipe with its nested recipes, and of each step."""
    visits = _visits(place.recipe, place.limits)
    steps = tuple(_step_bound(place, step, visits.get(step.id, 1)) for step in place.recipe.steps)
    most = place.limits.max_steps
    return RecipeBound(
        steps=steps,
        model_calls=_at_most(
            _within(((step.model_calls, step.visits) for step in steps), most),
            None
            if any(map(_answers_at_limit, place.recipe.steps))
            else place.limits.max_model_calls,
        ),
        tool_calls=_within(((step.tool_calls, step.visits) for step in steps), most),
    )


def _answers_at_limit(step: AnyStep) -> bool:
    """Whether the step makes one more call when a limit is reached."""
    return getattr(step, "at_limit", "fail") == "answer"


def _at_most(bound: Bound, limit: int | None) -> Bound:
    """The bound, or the limit where that is lower or there is no bound."""
    if limit is None or (not bound.unbounded and bound.known <= limit):
        return bound
    return Bound(known=limit)


def _within(parts: Iterable[tuple[Bound, int]], max_steps: int | None) -> Bound:
    """The sum over all steps; with a limit on steps at most that
    of the costliest steps within it.
    """
    total, each = Bound(), list[int]()
    for bound, visits in parts:
        total = total.plus(bound)
        each += [bound.known // visits] * visits if visits else []
    if max_steps is None:
        return total
    dearest = sum(sorted(each, reverse=True)[:max_steps])
    return attrs.evolve(total, known=min(total.known, dearest))


def _step_bound(place: Place, step: AnyStep, visits: int) -> StepBound:
    limits, path = place.limits_of(step), f"{place.path}{step.id}"
    iterations = _iterations(step, path) if isinstance(step, StepSpec) else Bound(known=1)
    inside = place.inside(step)
    inner = recipe_bound(inside) if inside is not None else None
    if inner is not None:
        model_calls, tool_calls = inner.model_calls, inner.tool_calls
    elif isinstance(step, StepSpec) and step.makes_recipe:
        model_calls = tool_calls = Bound(unbounded=(f"the plan that '{path}' makes decides",))
    elif place.runs_agents(step):
        model_calls = tool_calls = Bound(unbounded=(f"'{path}' may run any agent",))
    elif place.asks(step) and place.is_code(step):
        model_calls = tool_calls = Bound(unbounded=(f"the code of '{path}' decides",))
    else:
        most = limits.max_model_calls_per_step + _answers_at_limit(step)
        model_calls = Bound(known=most if place.asks(step) else 0)
        tool_calls = _tool_calls(step, limits)
    routing = Bound(known=MOST_ROUTING_CALLS if place.asks_where_to_go(step) else 0)
    count = Bound(known=visits)
    return StepBound(
        id=step.id,
        model_calls=model_calls.times(iterations).plus(routing).times(count),
        tool_calls=tool_calls.times(iterations).plus(_decision(place, step)).times(count),
        visits=visits,
        iterations=iterations,
        inner=inner,
    )


def _tool_calls(step: AnyStep, limits: Limits) -> Bound:
    if isinstance(step, StepSpec) and step.called_tools:
        return Bound(known=len(step.called_tools) * (1 + limits.max_tool_call_retries))
    if isinstance(step, StepSpec):
        may_call = bool(step.offered_tools) or step.registered_class is not None
    else:
        may_call = bool(step.available_tools)
    if may_call:
        most = limits.max_model_calls_per_step * limits.max_tool_calls_per_answer
        made = min(most, limits.max_tool_calls_per_step)
        return Bound(known=made * (1 + limits.max_tool_call_retries))
    return Bound()


def _decision(place: Place, step: AnyStep) -> Bound:
    is_decided = isinstance(step, StepSpec) and step.decision_tool is not None
    return Bound(known=1 + place.limits.max_tool_call_retries if is_decided else 0)


def _iterations(spec: StepSpec, path: str) -> Bound:
    if spec.repeat is not None:
        return Bound(known=spec.repeat.max_iterations)
    if spec.loop is None:
        return Bound(known=1)
    over = spec.loop.over
    if isinstance(over, list | tuple):
        return Bound(known=len(over))
    shown = over if isinstance(over, str) else dumps(over)
    return Bound(unbounded=(f"the loop of '{path}' goes over {shown.strip()}",))


# --- visits -----------------------------------------------------------------------------------


@frozen
class _Return:
    """A back edge that a failure takes."""

    start: str
    target: str
    most: int


def _visits(recipe: AgentRecipe, limits: Limits) -> dict[str, int]:
    """How often a run may visit each step, by id."""
    specs = [step for step in recipe.steps if isinstance(step, StepSpec)]
    returns = [
        _Return(spec.id, spec.on_error.goto, spec.on_error.max_times)
        for spec in specs
        if spec.on_error.goto is not None
    ]
    ids = [step.id for step in recipe.steps]
    repeats = limits.max_steps if limits.allow_repeated_steps else None
    if not specs:
        return dict.fromkeys(ids, repeats or 1)
    if not isinstance(recipe.graph, Mapping):
        return _returned(ids, returns, GraphPaths.of(ids, _dependents(specs)))
    if repeats is None:
        paths = GraphPaths.of(ids, recipe.graph)
        reached = {ids[place] for place in paths.reached}
        counts = _passed_again(ids, returns, paths)
        return {step_id: count * (step_id in reached) for step_id, count in counts.items()}
    graph = {step_id: list(others) for step_id, others in recipe.graph.items()}
    for each in returns:
        graph.setdefault(each.start, []).append(each.target)
    paths = GraphPaths.of(ids, graph)
    return {step_id: paths.most_visits(place, repeats) for place, step_id in enumerate(ids)}


def _dependents(specs: Sequence[StepSpec]) -> dict[str, list[str]]:
    edges: dict[str, list[str]] = {}
    for spec in specs:
        for other in dict.fromkeys((*spec.depends_on, *spec.after)):
            edges.setdefault(other, []).append(spec.id)
    return edges


def _returned(ids: Sequence[str], returns: Sequence[_Return], paths: GraphPaths) -> dict[str, int]:
    """Visits in a dependency graph: each back edge repeats the steps that depend on its target."""
    places = {step_id: place for place, step_id in enumerate(ids)}
    counts = dict.fromkeys(ids, 1)
    for each in returns:
        again = paths.after(places[each.target]) | {places[each.target], places[each.start]}
        for place in again - paths.after(places[each.start]):
            counts[ids[place]] += each.most
    return counts


def _passed_again(
    ids: Sequence[str], returns: Sequence[_Return], paths: GraphPaths
) -> dict[str, int]:
    """Visits in transitions without cycles: each back edge repeats the steps
    on a path to its failing step.
    """
    places = {step_id: place for place, step_id in enumerate(ids)}
    return {
        step_id: 1
        + sum(
            each.most
            for each in returns
            if each.start == step_id or places[each.start] in paths.after(places[step_id])
        )
        for step_id in ids
    }
