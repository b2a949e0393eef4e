"""Upper bounds of how often a recipe's steps run, and of the calls that takes. Values, no
texts.

A step with `loop` items or `while` attempts counts that many times; the steps of a nested recipe
count as often as the step that runs it. `on_error: {goto: T, max: n}` of a step F takes the back
edge at most n times, however often F runs. Each time T and all that depends on T run again, but
nothing that can start only after F has completed. So a step runs 1 + the sum of the n of all such F
times: those of overlapping back edges add up, those of nested recipes multiply.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
from attrs import evolve, field, frozen

from minions.contracts.context import Limits
from minions.contracts.messages import TokenUsage
from minions.contracts.prompt_caches import PromptCache
from minions.contracts.retry_config import RetryConfig
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue, dumps
from minions.recipe.drafts import GraphPaths
from minions.recipe.kinds.goal_kind import ProgramSpec
from minions.recipe.model import MOST_ROUTING_CALLS, AgentRecipe, Reviewer, StepSpec
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
class Reviews:
    """The reviews of a step's calls by one recipe."""

    place: Place
    """That of the recipe."""
    bound: RecipeBound
    """The bounds of one review."""
    times: Bound
    """How many there are in one run of the step's recipe."""
    at_once: int
    """How many there may be at the same time in one iteration."""


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
    reviews: tuple[Reviews, ...] = ()
    """What recipes spend that review its calls, which `model_calls` counts, too."""
    own_calls: Bound = field(default=Bound())
    """Its model calls without those of reviews."""


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
        templates = self.recipe.templates
        return not templates.compile(step.route).is_whole

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
        if isinstance(step, ProgramSpec):  # each answer is a program
            most = min(most, 1 + step.max_repairs)
        model_calls = Bound(known=most if place.asks(step) else 0)
        tool_calls = _tool_calls(step, limits)
    routing = Bound(known=MOST_ROUTING_CALLS if place.asks_where_to_go(step) else 0)
    count = Bound(known=visits)
    own_calls = model_calls.times(iterations).plus(routing).times(count)
    reviews = tuple(_reviews(place, step, limits, iterations.times(count)))
    reviewed = (each.bound.model_calls.times(each.times) for each in reviews)
    return StepBound(
        id=step.id,
        model_calls=functools.reduce(Bound.plus, reviewed, own_calls),
        tool_calls=tool_calls.times(iterations).plus(_decision(place, step)).times(count),
        visits=visits,
        iterations=iterations,
        inner=inner,
        reviews=reviews,
        own_calls=own_calls,
    )


def _reviews(place: Place, step: AnyStep, limits: Limits, iterations: Bound) -> Iterator[Reviews]:
    """The reviews of the step's calls, by each recipe that reviews one: each call once, however
    often it is tried.

    Args:
        iterations: Those of the step in one run of its recipe.
    """
    made, found = dict[str, int](), dict[str, Reviewer]()
    own = step.called_tools if isinstance(step, StepSpec) else ()
    by_model = _offered_calls(step, limits)
    offered = set[str]()
    for name in place.called(step):
        for reviewed_by, reviewer in place.rights.reviewers(place.tools[name]).items():
            found[reviewed_by] = reviewer
            if name in own or not _offers(step, name):
                made[reviewed_by] = made.get(reviewed_by, 0) + 1
            elif reviewed_by not in offered:
                offered.add(reviewed_by)
                made[reviewed_by] = made.get(reviewed_by, 0) + by_model
    for name, reviewer in found.items():
        recipe = reviewer.bounded
        inside = Place(
            recipe=recipe,
            tools_of=place.tools_of,
            kinds=place.kinds,
            path=f"{place.path}{step.id}/",
            base_model=place.base_model.overlaid(recipe.model),
            retry=recipe.retry.over(place.retry_of(step)),
            rights=place.rights.within(recipe),
        )
        at_once = min(made[name], limits.max_tool_calls_per_answer)
        times = Bound(known=made[name]).times(iterations)
        bound = recipe_bound(inside)
        yield Reviews(place=inside, bound=bound, times=times, at_once=at_once)


def _offers(step: AnyStep, tool: str) -> bool:
    return tool in (step.offered_tools if isinstance(step, StepSpec) else step.available_tools)


def _tool_calls(step: AnyStep, limits: Limits) -> Bound:
    if isinstance(step, StepSpec) and step.called_tools:
        return Bound(known=len(step.called_tools) * (1 + limits.max_tool_call_retries))
    if isinstance(step, StepSpec):
        may_call = bool(step.offered_tools) or step.registered_class is not None
        may_call = may_call or step.offers_caller_tools
    else:
        may_call = bool(step.available_tools)
    if may_call:
        return Bound(known=_offered_calls(step, limits) * (1 + limits.max_tool_call_retries))
    return Bound()


def _offered_calls(step: AnyStep, limits: Limits) -> int:
    """Most calls of tools that a step offers, retries aside."""
    most = limits.max_tool_calls_per_step
    if isinstance(step, StepSpec) and step.needs_sandbox:  # no answers: a program makes them
        return most
    return min(limits.max_model_calls_per_step * limits.max_tool_calls_per_answer, most)


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
        return _count_returns(ids, returns, GraphPaths.of(ids, _dependents(specs)))
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


def _count_returns(
    ids: Sequence[str], returns: Sequence[_Return], paths: GraphPaths
) -> dict[str, int]:
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


# --- upper bounds of the tokens and US dollars of a recipe's model calls -------------------------


@frozen(kw_only=True)
class KnownModel:
    """What is known about a model before it is called."""

    name: str | None
    """`provider/model`; None: the configured model."""
    context_tokens: int | None = None
    """The longest prompt in tokens; None: not known."""
    cost_usd: Callable[[TokenUsage], float | None] = lambda _: None
    """The price of a usage in US dollars; None: the price is not known."""
    cache: PromptCache | None = None
    """How its server keeps beginnings of prompts; None: it is not known."""


KnowModel: TypeAlias = Callable[[ModelConfig], KnownModel]


def nothing_known(config: ModelConfig) -> KnownModel:
    """A model of which neither context length nor price is known."""
    return KnownModel(name=config.name)


@frozen(kw_only=True)
class StepCallBounds:
    """The model calls of one step."""

    config: ModelConfig
    calls: int | None
    """Upper bound of logical calls; None: there is none."""
    unbounded: tuple[str, ...] = ()
    """Why there is no bound."""
    at_once: int | None = 1
    """Calls that may be in flight at the same time; None: not known."""
    attempts: int = 1
    """Attempts at each call."""


@frozen(kw_only=True)
class AskingRecipe:
    """The model calls of a recipe: the outermost one, or that of a step."""

    parts: Sequence[StepCallBounds | AskingRecipe]
    limits: Limits
    """The limits of one run of the recipe."""
    max_parallel: int = 1
    """Steps that are executed at the same time."""
    times: int | None = 1
    """How often the outer recipe runs it; None: not known."""
    unbounded: tuple[str, ...] = ()
    """Why that is not known."""
    at_once: int = 1
    """Runs of it that may be in flight at the same time."""


@frozen(kw_only=True)
class UpperBound:
    """An upper bound, or the reasons why there is none."""

    at_most: float | None = 0
    """The bound, including retries and the calls in flight when a limit
    is reached; None: there is none.
    """
    unbounded: tuple[str, ...] = ()
    limit: float | None = None
    """The limit of the run itself, after which no call starts; None: there is none."""

    def to_json(self) -> dict[str, JsonValue]:
        """`{"at_most": null where there is no bound, "unbounded_because":
        [reason], "limit": …}`.
        """
        return {
            "at_most": self.at_most,
            "unbounded_because": list(self.unbounded),
            "limit": self.limit,
        }


@frozen(kw_only=True)
class Spending:
    """The upper bounds of one run."""

    tokens: UpperBound
    """Input and output tokens together."""
    cost_usd: UpperBound
    calls_in_flight: int | None
    """Calls that may be in flight when a limit is reached, each as large as
    the largest call; None: not known.
    """


def spending(asked: AskingRecipe, know: KnowModel) -> Spending:
    """The upper bounds of one run of the recipe."""
    tokens = _Measure(lambda each: _tokens(each, know), lambda limits: limits.max_tokens)
    costs = _Measure(lambda each: _cost(each, know), lambda limits: limits.max_cost_usd)
    return Spending(
        tokens=tokens.most(asked), cost_usd=costs.most(asked), calls_in_flight=_in_flight(asked)
    )


@frozen(kw_only=True)
class _Use:
    """The usage of some calls together."""

    at_most: float | None
    largest: float | None
    """The largest of these calls with its retries; None: not known."""
    unbounded: tuple[str, ...] = ()


@frozen
class _Measure:
    """A unit of spending: tokens or dollars."""

    of_attempt: Callable[[StepCallBounds], _Use]
    limit_of: Callable[[Limits], float | None]

    def most(self, asked: AskingRecipe) -> UpperBound:
        """The upper bound of one run."""
        use, limit = self._of_run(asked), self.limit_of(asked.limits)
        if use.at_most is not None:
            return UpperBound(at_most=use.at_most, limit=limit)
        return UpperBound(at_most=None, unbounded=tuple(dict.fromkeys(use.unbounded)), limit=limit)

    def _of_run(self, asked: AskingRecipe) -> _Use:
        """The smaller of two bounds: by the number of calls, and by the limit plus the calls
        in flight when it is reached.
        """
        parts = [self._of_part(part) for part in asked.parts if _count(part) != 0]
        largest = _if_all_known([part.largest for part in parts], max)
        bounds = [_if_all_known([part.at_most for part in parts], sum)]
        limit, in_flight = self.limit_of(asked.limits), _in_flight(asked)
        if limit is not None and largest is not None and in_flight is not None:
            bounds.append(limit + in_flight * largest)
        known = [bound for bound in bounds if bound is not None]
        reasons = tuple(reason for part in parts for reason in part.unbounded)
        return _Use(at_most=min(known, default=None), largest=largest, unbounded=reasons)

    def _of_part(self, part: StepCallBounds | AskingRecipe) -> _Use:
        """The usage of all calls of a step, or of all runs of a nested recipe."""
        if isinstance(part, AskingRecipe):
            each = self._of_run(part)
        else:
            each = _retry(self.of_attempt(part), part.attempts)
        count = _count(part)
        if count is not None and each.at_most is not None:
            return _Use(at_most=each.at_most * count, largest=each.largest)
        own = each.unbounded if each.at_most is None else ()
        return _Use(at_most=None, largest=each.largest, unbounded=(*part.unbounded, *own))


def _count(part: StepCallBounds | AskingRecipe) -> int | None:
    return part.calls if isinstance(part, StepCallBounds) else part.times


def _retry(use: _Use, attempts: int) -> _Use:
    most = None if use.at_most is None else use.at_most * attempts
    return _Use(at_most=most, largest=most, unbounded=use.unbounded)


def _if_all_known(
    numbers: Sequence[float | None], together: Callable[[list[float]], float]
) -> float | None:
    known = [number for number in numbers if number is not None]
    return together([0, *known]) if len(known) == len(numbers) else None


def _in_flight(asked: AskingRecipe) -> int | None:
    """Calls that may be in flight at the same time in one run; None: not known."""
    widths: list[int] = []
    for part in asked.parts:
        if _count(part) == 0:
            continue
        each = _in_flight(part) if isinstance(part, AskingRecipe) else 1
        if each is None or part.at_once is None:
            return None
        widths.append(each * part.at_once)
    return sum(sorted(widths, reverse=True)[: asked.max_parallel])


# --- one attempt at a call ----------------------------------------------------------------------


def _tokens(asking: StepCallBounds, know: KnowModel) -> _Use:
    return _largest([_tokens_of(each, know(each.config)) for each in _by_model(asking)])


def _by_model(asking: StepCallBounds) -> Iterator[StepCallBounds]:
    """The calls as if each of the models of the step made all of them."""
    for config in (asking.config, *asking.config.others):
        yield evolve(asking, config=config)


def _largest(uses: Sequence[_Use]) -> _Use:
    """The use that is none of them less than: which model is asked is not known before."""
    known = [each.at_most for each in uses if each.at_most is not None]
    most = max(known) if len(known) == len(uses) else None
    why = dict.fromkeys(reason for each in uses for reason in each.unbounded)
    return _Use(at_most=most, largest=most, unbounded=tuple(why))


def _tokens_of(asking: StepCallBounds, model: KnownModel) -> _Use:
    whole, unknown = _whole(asking, model)
    tokens = whole.total_tokens if whole is not None else None
    return _Use(at_most=tokens, largest=tokens, unbounded=unknown)


def _cost(asking: StepCallBounds, know: KnowModel) -> _Use:
    return _largest([_cost_of(each, know(each.config)) for each in _by_model(asking)])


def _cost_of(asking: StepCallBounds, model: KnownModel) -> _Use:
    whole, unknown = _whole(asking, model)
    price = model.cost_usd(TokenUsage(input_tokens=1, output_tokens=1))
    unpriced = () if price is not None else (f"the price of {_name(model)} is not known",)
    cost = model.cost_usd(whole) if whole is not None else None
    return _Use(at_most=cost, largest=cost, unbounded=(*unpriced, *unknown))


def _whole(asking: StepCallBounds, model: KnownModel) -> tuple[TokenUsage | None, tuple[str, ...]]:
    """The usage of the largest possible call, or the reasons why there is no bound."""
    output, context = asking.config.max_output_tokens, model.context_tokens
    if output is not None and context is not None:
        return TokenUsage(input_tokens=context, output_tokens=output), ()
    missing = [] if output is not None else ["no max_output_tokens"]
    missing += [] if context is not None else ["no known context"]
    return None, (f"{_name(model)} has {' and '.join(missing)}",)


def _name(model: KnownModel) -> str:
    return model.name or "the configured model"
