"""What a recipe needs, may do, and uses at most. Values, no texts.

The bounds hold for a run that is not resumed or retried, whatever a model answers. They include
nested recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from attrs import field, frozen

from minions.analysis.bounds import (
    AnyStep,
    AskingRecipe,
    Bound,
    KnowModel,
    Place,
    RecipeBound,
    Reviews,
    Spending,
    StepBound,
    StepCallBounds,
    StepKinds,
    nothing_known,
    recipe_bound,
    spending,
)
from minions.contracts.tools import ToolSpec
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.data.texts import write_duration
from minions.recipe.checks.flows import Flow, find_flows
from minions.recipe.kinds.plan_kind import PlanSpec
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.model import (
    MOST_ROUTING_CALLS,
    AgentRecipe,
    CallRule,
    ExecutionMode,
    OperatorRules,
    StepSpec,
    UntrustedRule,
)
from minions.recipe.model_config import ModelConfig


@frozen(kw_only=True)
class InputUse:
    """One input of the recipe."""

    name: str
    type: str
    """The type in words: `string`, `integer or null`, `any` and so on."""
    is_required: bool
    is_secret: bool
    default: JsonValue = None
    description: str = ""


@frozen(kw_only=True)
class ToolUse:
    """A tool that some step calls, or offers to its model."""

    name: str
    effect: str
    writes: bool
    """Whether it declares a write."""
    steps: tuple[str, ...]
    """The steps, as `outer/inner` in a nested recipe, without those of `after_surprise`."""
    after_surprise: tuple[str, ...] = ()
    """Steps that use it only where another one failed for what it was given or got."""
    denied_in: tuple[str, ...] = ()
    """Steps that may not call it."""
    needs_approval_in: tuple[str, ...] = ()
    """Steps in which every call of it needs approval."""


@frozen(kw_only=True)
class RightsUse:
    """The rights of a recipe at its place."""

    path: str
    """The step that runs the recipe; "" for the outermost recipe."""
    recipe: str
    may_write: bool
    """Whether tools that declare a write may be called, apart from permissions for single tools."""
    allowed: tuple[str, ...] = ()
    """Tools of its steps that write and may be called although `may_write` is False."""
    refused: tuple[str, ...] = ()
    """Tools of its steps that may not be called."""
    needs_approval: tuple[str, ...] = ()
    """Tools of its steps of which every call needs approval."""
    approval_when: tuple[str, ...] = ()
    """Calls that need approval where a condition is true, as `tool when condition`."""
    approval_rules: tuple[str, ...] = ()
    """Who decides about calls that need approval, and until when, as
    `tool: 2 of ann or bob within 2 h, then rejected`."""
    policies: tuple[str, ...] = ()
    """Calls that are made although strangers' words may be in them, as `tool when condition`."""
    private_models: tuple[str, ...] = ()
    """Models beside the run's own in whose prompts private data may be."""
    opens_config: tuple[str, ...] = ()
    """What may be written although it configures tools outside, as `toolset or step: pattern`."""
    opens_secrets: tuple[str, ...] = ()
    """What may be used although it is taken for a secret, as `toolset or step: pattern`."""


@frozen(kw_only=True)
class ModelUse:
    """A model and the steps that call it."""

    name: str | None
    """`provider/model`; None: the configured model."""
    steps: tuple[str, ...] = ()
    """Steps that always call it."""
    fills_in: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """Tool steps that call it to fill in these parameters; none: in a recipe of the older format,
    for those whose template turns out to have no value."""


@frozen(kw_only=True)
class Question:
    """A question to a person; the run may wait for the answer."""

    step: str
    text: str
    """The question as written, with templates."""
    form: JsonSchema | None
    """JSON Schema of the answer; None: any text."""
    timeout_s: float | None
    """Seconds to wait for an answer; None: without limit."""
    default: JsonValue = None
    has_default: bool = False


@frozen(kw_only=True)
class ClassUse:
    """A registered `Step` class that steps of the recipe run."""

    name: str
    is_code: bool
    """Whether Python code decides which calls it makes; else it is a model loop."""
    steps: tuple[str, ...]


@frozen(kw_only=True)
class OperatorUse:
    """What the operator says of calls with strangers' words in the recipe."""

    untrusted: UntrustedRule | None
    """What becomes of them; None: recipes decide."""
    policies: tuple[str, ...]
    """Calls of its tools that the operator lets through, as `tool when condition`."""


@frozen(kw_only=True)
class Explanation:
    """The result of analysing one recipe."""

    recipe: str
    name: str
    """The name shown to people; empty: the id is shown."""
    description: str
    inputs: tuple[InputUse, ...]
    tools: tuple[ToolUse, ...]
    rights: RightsUse
    recipes: tuple[RightsUse, ...]
    """The rights of nested recipes, at each of their places."""
    models: tuple[ModelUse, ...]
    questions: tuple[Question, ...]
    classes: tuple[ClassUse, ...]
    operator: OperatorUse | None
    """What the operator says of calls with strangers' words, beside the recipe; None: nothing."""
    flows: tuple[Flow, ...]
    """Paths on which untrusted text can reach a tool with an effect, without an approval."""
    endorsed: tuple[str, ...]
    """By step: what counts as free of strangers' words because the recipe says so."""
    code: tuple[str, ...]
    """Steps that are Python for a sandbox."""
    caller_tools: tuple[str, ...]
    """Steps that offer their model the tools that whoever asks over HTTP brings."""
    limits: Mapping[str, JsonValue]
    """The limits of the whole run, as the recipe states them."""
    attempts_per_model_call: int
    """The largest number of attempts of any step that calls a model, else that of the recipe."""
    bound: RecipeBound
    spending: Spending
    """Upper bounds of tokens and dollars."""
    steps: tuple[StepBound, ...] = field(init=False)
    model_calls: Bound = field(init=False)
    tool_calls: Bound = field(init=False)
    allow_write: bool = field(init=False)

    @steps.default
    def _steps(self) -> tuple[StepBound, ...]:
        return self.bound.steps

    @model_calls.default
    def _model_calls(self) -> Bound:
        return self.bound.model_calls

    @tool_calls.default
    def _tool_calls(self) -> Bound:
        return self.bound.tool_calls

    @allow_write.default
    def _allow_write(self) -> bool:
        return self.rights.may_write


def explain(
    recipe: AgentRecipe,
    tools: Mapping[str, ToolSpec],
    know: KnowModel = nothing_known,
    *,
    tools_within: Callable[[AgentRecipe], Mapping[str, ToolSpec]] | None = None,
    kinds: StepKinds | None = None,
    operator: OperatorRules | None = None,
) -> Explanation:
    """Analyse a recipe whose steps are specs.

    Args:
        tools: The tools that the recipe can call, by full name.
        know: Looks up context length and price of a model.
        tools_within: Looks up the tools of a nested recipe; None: the same tools.
        kinds: Registered `Step` classes; a class that is not among them is assumed to be code.
        operator: What counts of calls with strangers' words beside what recipes say; None: nothing.
    """
    within = tools_within or (lambda _: tools)
    place = Place.of_run(recipe, lambda one: tools if one is recipe else within(one), kinds or {})
    places = list(place.with_inner())
    bound = recipe_bound(place)
    asking = ((each, step) for each, step in _steps(places) if _asks(each, step))
    attempts = [each.retry_of(step).max_attempts for each, step in asking]
    return Explanation(
        recipe=recipe.id,
        name=recipe.name,
        description=recipe.description,
        inputs=tuple(_inputs(recipe)),
        tools=tuple(_tools(places)),
        rights=_rights(place),
        recipes=tuple(_rights(each) for each in places[1:]),
        models=tuple(_models([*places, *_reviewing_places(bound)])),
        questions=tuple(_questions(places)),
        classes=tuple(_classes(places)),
        operator=_operator(places, operator) if operator and operator.judges_calls else None,
        flows=find_flows(
            recipe, lambda one: tools if one is recipe else within(one), operator=operator
        ),
        endorsed=tuple(
            f"{_path(each, step)}: {', '.join(step.endorse)}"
            for each, step in _steps(places)
            if isinstance(step, StepSpec) and step.endorse
        ),
        code=tuple(
            _path(each, step)
            for each, step in _steps(places)
            if isinstance(step, StepSpec) and step.needs_sandbox
        ),
        caller_tools=tuple(
            _path(each, step)
            for each, step in _steps(places)
            if isinstance(step, StepSpec) and step.offers_caller_tools
        ),
        limits=recipe.limits,
        attempts_per_model_call=max(attempts, default=recipe.retry.max_attempts),
        bound=bound,
        spending=spending(_asking_recipe(place, bound), know),
    )


@frozen(kw_only=True)
class StepCost:
    """What one step of a run uses at most, all its items, attempts and visits together."""

    bound: StepBound
    spending: Spending


def explain_steps(
    recipe: AgentRecipe,
    know: KnowModel,
    tools_of: Callable[[AgentRecipe], Mapping[str, ToolSpec]],
) -> Mapping[str, StepCost]:
    """The same bounds of each step by its id, for steps that are specs.

    Args:
        know: Looks up context length and price of a model.
        tools_of: Looks up the tools that the recipe, or one nested in it, can call.
    """
    place = Place.of_run(recipe, tools_of, {})
    bound = recipe_bound(place)

    def asked(step: AnyStep, own: StepBound) -> AskingRecipe:
        return AskingRecipe(parts=tuple(_parts_of(place, step, own)), limits=place.limits)

    return {
        own.id: StepCost(bound=own, spending=spending(asked(step, own), know))
        for step, own in zip(recipe.steps, bound.steps, strict=True)
    }


def _steps(places: Sequence[Place]) -> Iterator[tuple[Place, AnyStep]]:
    for place in places:
        for step in place.recipe.steps:
            yield place, step


def _path(place: Place, step: AnyStep) -> str:
    return f"{place.path}{step.id}"


# --- what it needs ----------------------------------------------------------------------------


def _inputs(recipe: AgentRecipe) -> Iterator[InputUse]:
    for name, spec in recipe.inputs.items():
        yield InputUse(
            name=name,
            type=_type_words(spec.schema),
            is_required=not spec.has_default,
            is_secret=spec.is_secret,
            default=spec.default,
            description=spec.description,
        )


def _type_words(schema: JsonSchema) -> str:
    kind = schema.get("type", "any")
    if isinstance(kind, list | tuple):
        return " or ".join(str(one) for one in kind)
    return "path" if schema.get("format") == "path" else str(kind)


def _tools(places: Sequence[Place]) -> Iterator[ToolUse]:
    users: dict[str, list[tuple[Place, str]]] = {}
    specs: dict[str, ToolSpec] = {}
    for place, step in _steps(places):
        for name in place.called(step):
            specs.setdefault(name, place.tools[name])
            users.setdefault(name, []).append((place, _path(place, step)))
    for name, uses in users.items():
        tool = specs[name]
        denied = [path for place, path in uses if not place.rights.allows(place.tools[name])]
        asked = [path for place, path in uses if place.rights.needs_approval(place.tools[name])]
        yield ToolUse(
            name=name,
            effect=tool.effect.value,
            writes=tool.is_write,
            steps=tuple(path for place, path in uses if not _is_last_resort(place, path)),
            after_surprise=tuple(path for place, path in uses if _is_last_resort(place, path)),
            denied_in=tuple(denied),
            needs_approval_in=tuple(path for path in asked if path not in denied),
        )


def _is_last_resort(place: Place, path: str) -> bool:
    """Whether the recipe names the step under `on_surprise`."""
    return path.rpartition("/")[2] == place.recipe.on_surprise


def _operator(places: Sequence[Place], rules: OperatorRules) -> OperatorUse:
    used = {
        name: place.tools[name] for place, step in _steps(places) for name in place.called(step)
    }
    conditions = ((name, rules.policies.get(x.origin or name)) for name, x in used.items())
    return OperatorUse(
        untrusted=rules.untrusted,
        policies=tuple(f"{name} when {each}" for name, each in conditions if each is not None),
    )


def _rights(place: Place) -> RightsUse:
    named = dict.fromkeys(name for step in place.recipe.steps for name in place.called(step))
    tools, rights = [place.tools[name] for name in named], place.rights
    allowed = [tool.name for tool in tools if rights.allows(tool)]
    writing = [tool.name for tool in tools if tool.is_write]
    return RightsUse(
        path=place.path.rstrip("/"),
        recipe=place.recipe.id,
        may_write=rights.may_write,
        allowed=tuple(name for name in allowed if name in writing and not rights.may_write),
        refused=tuple(name for name in named if name not in allowed),
        needs_approval=tuple(
            tool.name for tool in tools if tool.name in allowed and rights.needs_approval(tool)
        ),
        approval_when=tuple(
            f"{name} when {condition}"
            for name, conditions in place.recipe.permissions.approval_when.items()
            for condition in conditions
        ),
        approval_rules=tuple(
            f"{name}{f' when {each.when}' if each.when is not None else ''}: "
            f"{_rule_words(each, rights.approval_timeout_s)}"
            for each in place.recipe.permissions.approval_rules
            for name in each.tools
        ),
        policies=tuple(
            f"{name} when {condition}"
            for name, condition in place.recipe.permissions.policies.items()
        ),
        private_models=place.recipe.permissions.private_models,
        opens_config=tuple(_explain_openings(place.recipe, "allow_config")),
        opens_secrets=tuple(_explain_openings(place.recipe, "allow_secrets")),
    )


def _rule_words(call: CallRule, timeout_s: float | None) -> str:
    """Who decides, how many have to, until when, and what follows."""
    stages: list[str] = []
    for stage in call.rule.stages:
        whose = " or ".join(stage.deciders) or "anybody"
        expires_s = stage.expires_s if stage.expires_s is not None else timeout_s
        until = "" if expires_s is None else f" within {write_duration(expires_s)}"
        stages.append(f"{stage.quorum} of {whose}{until}")
    words = ", then ".join(stages)
    if call.rule.stages[-1].expires_s is not None or timeout_s is not None:
        words += ", then rejected"
    if call.rule.rejections > 1:
        words += f"; {call.rule.rejections} rejections reject it"
    if call.rule.not_by_starter:
        words += "; not whoever started the run"
    if call.reviewer is not None:
        words = f"reviewed by {call.reviewer.recipe.id}, {words}"
    return words


def _explain_openings(recipe: AgentRecipe, option: str) -> Iterator[str]:
    """What toolsets and plans of a recipe open that is closed otherwise."""
    for use in recipe.tools:
        names = use.options.get(option)
        for each in names if isinstance(names, list | tuple) else ():
            yield f"{use.prefix or use.name}: {each}"
    for step in recipe.steps:
        if isinstance(step, PlanSpec):
            names = step.allow_config if option == "allow_config" else step.allow_secrets
            yield from (f"{step.id}: {each}" for each in names)


def _asks(place: Place, step: AnyStep) -> bool:
    return place.asks(step) or place.asks_where_to_go(step)


def _models(places: Sequence[Place]) -> Iterator[ModelUse]:
    users: dict[str | None, list[tuple[str, tuple[str, ...] | None]]] = {}
    for place, step in _steps(places):
        if _asks(place, step):
            filled = None
            if isinstance(step, ToolSpecStep) and not place.asks_where_to_go(step):
                filled = step.filled_in(place.tools[step.tool])
            asking = users.setdefault(_model_of(place, step).name, [])
            asking.append((_path(place, step), filled))
    for name, asking in users.items():
        yield ModelUse(
            name=name,
            steps=tuple(path for path, filled in asking if filled is None),
            fills_in={path: filled for path, filled in asking if filled is not None},
        )


def _reviewing_places(bound: RecipeBound) -> Iterator[Place]:
    """The places of recipes that review calls, wherever these are made."""
    for step in bound.steps:
        yield from (each.place for each in step.reviews)
        if step.inner is not None:
            yield from _reviewing_places(step.inner)


def _model_of(place: Place, step: AnyStep) -> ModelConfig:
    own = step.own_model if isinstance(step, StepSpec) else None
    return place.base_model.overlaid(own) if own is not None else place.base_model


def _questions(places: Sequence[Place]) -> Iterator[Question]:
    for place, step in _steps(places):
        asked = step.question if isinstance(step, StepSpec) else None
        if asked is not None:
            yield Question(
                step=_path(place, step),
                text=asked.text,
                form=asked.form,
                timeout_s=asked.timeout_s,
                default=asked.default,
                has_default=asked.has_default,
            )


def _classes(places: Sequence[Place]) -> Iterator[ClassUse]:
    users: dict[str, list[tuple[Place, AnyStep]]] = {}
    for place, step in _steps(places):
        if isinstance(step, StepSpec) and step.registered_class is not None:
            users.setdefault(step.registered_class, []).append((place, step))
    for name, uses in users.items():
        place, step = uses[0]
        paths = tuple(_path(*use) for use in uses)
        yield ClassUse(name=name, is_code=place.is_code(step), steps=paths)


# --- what it spends ---------------------------------------------------------------------------


def _asking_recipe(
    place: Place, bound: RecipeBound, own: StepBound | None = None, at_once: int = 1
) -> AskingRecipe:
    """The model calls of a recipe.

    Args:
        own: The bounds of the step that runs the recipe; None: it is the outermost recipe.
        at_once: Runs of it that may be in flight at the same time.
    """
    is_parallel = place.recipe.execution_mode is ExecutionMode.PARALLEL
    known = own is None or not own.iterations.unbounded
    return AskingRecipe(
        parts=tuple(_parts(place, bound)),
        limits=place.limits,
        max_parallel=place.recipe.max_parallel if is_parallel else 1,
        times=(own.visits * own.iterations.known if own is not None else 1) if known else None,
        unbounded=own.iterations.unbounded if own is not None else (),
        at_once=at_once,
    )


def _parts(place: Place, bound: RecipeBound) -> Iterator[StepCallBounds | AskingRecipe]:
    for step, own in zip(place.recipe.steps, bound.steps, strict=True):
        yield from _parts_of(place, step, own)


def _parts_of(
    place: Place, step: AnyStep, own: StepBound
) -> Iterator[StepCallBounds | AskingRecipe]:
    """The model calls of one step."""
    width = step.loop.max_parallel if isinstance(step, StepSpec) and step.loop else 1
    inside = place.inside(step)
    if inside is not None and own.inner is not None:
        yield _asking_recipe(inside, own.inner, own, width)
        if not place.asks_where_to_go(step):
            return
    for each in own.reviews:
        yield _reviewing_recipe(each, width)
    calls = own.own_calls if inside is None else _routing_calls(own)
    is_code = place.asks(step) and place.is_code(step)
    yield StepCallBounds(
        config=_model_of(place, step),
        calls=calls.known if not calls.unbounded else None,
        unbounded=calls.unbounded,
        at_once=None if is_code else width,
        attempts=place.retry_of(step).max_attempts,
    )


def _reviewing_recipe(reviews: Reviews, width: int) -> AskingRecipe:
    """The model calls of the reviews of a step's calls.

    Args:
        width: Iterations of the step at the same time.
    """
    times = reviews.times
    return AskingRecipe(
        parts=tuple(_parts(reviews.place, reviews.bound)),
        limits=reviews.place.limits,
        times=None if times.unbounded else times.known,
        unbounded=times.unbounded,
        at_once=reviews.at_once * width,
    )


def _routing_calls(own: StepBound) -> Bound:
    """The bound of calls by which a model chooses the successor of a recipe step."""
    return Bound(known=MOST_ROUTING_CALLS * own.visits)
