"""What a recipe needs, what it may do, and what it uses at most. Values, no words.

The bounds hold for a run that is not resumed or retried, whatever a model answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
from attrs import field, frozen

from minions.contracts.context import Limits
from minions.contracts.json_values import JsonValue, dumps
from minions.contracts.schema import JsonSchema
from minions.contracts.tools import ToolSpec
from minions.interfaces.spending import Asking, KnowModel, Spending, nothing_known, spending
from minions.recipe.expressions import Reference, Template, compile_template
from minions.recipe.model import (
    MOST_ROUTING_CALLS,
    AgentRecipe,
    AnalyzeSpec,
    ExecutionMode,
    GoalSpec,
    ModelConfig,
    StepSpec,
    ToolSpecStep,
)
from minions.recipe.ways import Ways

__all__ = ["Bound", "Explanation", "InputUse", "ModelUse", "StepBound", "ToolUse", "explain"]


@frozen(kw_only=True)
class InputUse:
    """One input."""

    name: str
    type: str
    """`string`, `integer or null`, `any` …"""
    is_required: bool
    is_secret: bool
    default: JsonValue = None
    description: str = ""


@frozen(kw_only=True)
class ToolUse:
    """One tool that some step calls, or lets a model call."""

    name: str
    effect: str
    writes: bool
    """A declared write."""
    steps: tuple[str, ...]


@frozen(kw_only=True)
class ModelUse:
    """One model and the steps that ask it."""

    name: str | None
    """None: whichever is configured."""
    steps: tuple[str, ...] = ()
    """That always ask it."""
    fills_in: tuple[str, ...] = ()
    """Tool steps that ask it only where a parameter is not given or its template finds nothing."""


@frozen(kw_only=True)
class Bound:
    """At most so many, or why nobody can tell."""

    known: int = 0
    """Calls in those parts that have a bound."""
    unbounded: tuple[str, ...] = ()
    """Reasons; none: `known` is the bound of all."""

    def plus(self, other: Bound) -> Bound:
        """Of both together."""
        reasons = dict.fromkeys((*self.unbounded, *other.unbounded))
        return Bound(known=self.known + other.known, unbounded=tuple(reasons))

    def times(self, count: int) -> Bound:
        """Of as many of these."""
        return attrs.evolve(self, known=self.known * count)

    def to_json(self) -> dict[str, JsonValue]:
        """`{"at_most": null where there is no bound, "unbounded_because": [reason]}`."""
        at_most = None if self.unbounded else self.known
        return {"at_most": at_most, "unbounded_because": list(self.unbounded)}


@frozen(kw_only=True)
class StepBound:
    """Of one step, all items of its loop together."""

    id: str
    model_calls: Bound
    """Logical ones: repairs count, transport retries do not."""
    tool_calls: Bound
    """Attempts."""


@frozen(kw_only=True)
class Explanation:
    """Of one recipe."""

    recipe: str
    description: str
    inputs: tuple[InputUse, ...]
    tools: tuple[ToolUse, ...]
    allow_write: bool
    models: tuple[ModelUse, ...]
    limits: Mapping[str, JsonValue]
    """As the recipe says them, for the whole run."""
    attempts_per_model_call: int
    steps: tuple[StepBound, ...]
    spending: Spending
    """Tokens and dollars."""
    model_calls: Bound = field(init=False)
    tool_calls: Bound = field(init=False)

    @model_calls.default
    def _model_calls(self) -> Bound:
        return _sum(step.model_calls for step in self.steps)

    @tool_calls.default
    def _tool_calls(self) -> Bound:
        return _sum(step.tool_calls for step in self.steps)


def explain(
    recipe: AgentRecipe, tools: Mapping[str, ToolSpec], know: KnowModel = nothing_known
) -> Explanation:
    """Of a recipe that was read: its steps are specs.

    Args:
        tools: By full name.
        know: Context and price of the models.
    """
    specs = [step for step in recipe.steps if isinstance(step, StepSpec)]
    bounds = tuple(_bounds(recipe, specs, tools))
    return Explanation(
        recipe=recipe.id,
        description=recipe.description,
        inputs=tuple(_inputs(recipe)),
        tools=tuple(_tools(specs, tools)),
        allow_write=recipe.permissions.allow_write,
        models=tuple(_models(recipe, specs, tools)),
        limits=recipe.limits,
        attempts_per_model_call=recipe.retry.max_attempts,
        steps=bounds,
        spending=spending(
            [_asking(recipe, spec, bound) for spec, bound in zip(specs, bounds, strict=True)],
            know,
            limits=Limits.from_metadata(recipe.limits),
            attempts=recipe.retry.max_attempts,
            max_parallel=_parallel_steps(recipe),
        ),
    )


def _sum(bounds: Iterator[Bound]) -> Bound:
    total = Bound()
    for bound in bounds:
        total = total.plus(bound)
    return total


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


def _tools(specs: Sequence[StepSpec], tools: Mapping[str, ToolSpec]) -> Iterator[ToolUse]:
    users: dict[str, list[str]] = {}
    for spec in specs:
        for name in _tool_names(spec):
            users.setdefault(name, []).append(spec.id)
    for name, steps in users.items():
        tool = tools[name]
        yield ToolUse(name=name, effect=tool.effect.value, writes=tool.is_write, steps=tuple(steps))


def _tool_names(spec: StepSpec) -> Sequence[str]:
    decides = (spec.decision_tool.tool,) if spec.decision_tool is not None else ()
    if isinstance(spec, ToolSpecStep):
        return (spec.tool, *decides)
    return (*(spec.tools if isinstance(spec, GoalSpec) else ()), *decides)


def _models(
    recipe: AgentRecipe, specs: Sequence[StepSpec], tools: Mapping[str, ToolSpec]
) -> Iterator[ModelUse]:
    users: dict[str | None, list[StepSpec]] = {}
    for spec in specs:
        if _may_ask(spec, tools) or _asks_where_to_go(spec):
            users.setdefault(_model_of(recipe, spec).name, []).append(spec)
    for name, asking in users.items():
        yield ModelUse(
            name=name,
            steps=tuple(spec.id for spec in asking if not _only_fills_in(spec)),
            fills_in=tuple(spec.id for spec in asking if _only_fills_in(spec)),
        )


def _only_fills_in(spec: StepSpec) -> bool:
    return isinstance(spec, ToolSpecStep) and not _asks_where_to_go(spec)


def _asks_where_to_go(spec: StepSpec) -> bool:
    """Whether a model says which step comes next."""
    return spec.route is not None and not compile_template(spec.route).is_whole


def _model_of(recipe: AgentRecipe, spec: StepSpec) -> ModelConfig:
    own = spec.model if isinstance(spec, GoalSpec | AnalyzeSpec) else None
    return recipe.model.overlaid(own) if own is not None else recipe.model


# --- what it costs at most --------------------------------------------------------------------


def _asking(recipe: AgentRecipe, spec: StepSpec, bound: StepBound) -> Asking:
    calls = bound.model_calls
    return Asking(
        config=_model_of(recipe, spec),
        calls=None if calls.unbounded else calls.known,
        unbounded=calls.unbounded,
        at_once=spec.loop.max_parallel if spec.loop is not None else 1,
    )


def _parallel_steps(recipe: AgentRecipe) -> int:
    return recipe.max_parallel if recipe.execution_mode is ExecutionMode.PARALLEL else 1


def _bounds(
    recipe: AgentRecipe, specs: Sequence[StepSpec], tools: Mapping[str, ToolSpec]
) -> Iterator[StepBound]:
    of_run = Limits.from_metadata(recipe.limits)
    visits = _most_visits(recipe, of_run)
    for spec in specs:
        limits = Limits.of_step({**spec.metadata, **spec.limits}, base=of_run)
        asks = limits.max_model_calls_per_step if _may_ask(spec, tools) else 0
        yield StepBound(
            id=spec.id,
            model_calls=_times_items(spec, Bound(known=asks))
            .plus(_routing_calls(spec))
            .times(visits.get(spec.id, 1)),
            tool_calls=_times_items(spec, _tool_calls(spec, limits))
            .plus(_decision_calls(spec, of_run))
            .times(visits.get(spec.id, 1)),
        )


def _most_visits(recipe: AgentRecipe, of_run: Limits) -> Mapping[str, int]:
    """How often a run may come to each step; nothing said: once."""
    if not isinstance(recipe.graph, Mapping):
        return {}
    ids = [step.id for step in recipe.steps]
    ways = Ways.of(ids, recipe.graph)
    most = of_run.max_steps if of_run.max_steps and of_run.allow_repeated_steps else len(ids)
    return {step_id: ways.most_visits(place, most) for place, step_id in enumerate(ids)}


def _routing_calls(spec: StepSpec) -> Bound:
    return Bound(known=MOST_ROUTING_CALLS if _asks_where_to_go(spec) else 0)


def _decision_calls(spec: StepSpec, limits: Limits) -> Bound:
    return Bound(known=1 + limits.max_tool_call_retries if spec.decision_tool else 0)


def _may_ask(spec: StepSpec, tools: Mapping[str, ToolSpec]) -> bool:
    if isinstance(spec, ToolSpecStep):
        return _may_be_filled_in(spec, tools[spec.tool])
    return isinstance(spec, GoalSpec | AnalyzeSpec)


def _may_be_filled_in(spec: ToolSpecStep, tool: ToolSpec) -> bool:
    """Whether a required parameter is not given, or a template may come to nothing."""
    given = {**spec.params, **spec.params_template}
    required = tool.parameters.get("required")
    if isinstance(required, list | tuple) and not set(map(str, required)) <= set(given):
        return True
    return any(_may_be_missing(compile_template(value)) for value in given.values())


def _may_be_missing(template: Template) -> bool:
    return template.is_whole and not all(map(_is_certain, template.references))


def _is_certain(reference: Reference) -> bool:
    """A whole input, output or item is there when the step runs; a part of one may not be."""
    path = reference.path
    return reference.is_guarded or len(path) <= (2 if path[0] in ("inputs", "loop", "run") else 1)


def _tool_calls(spec: StepSpec, limits: Limits) -> Bound:
    if isinstance(spec, ToolSpecStep):
        return Bound(known=1 + limits.max_tool_call_retries)
    if isinstance(spec, GoalSpec) and spec.tools:
        reason = f"the model of '{spec.id}' may ask for any number of tools in one answer"
        return Bound(unbounded=(reason,))
    return Bound()


def _times_items(spec: StepSpec, once: Bound) -> Bound:
    """For all items of the step's loop."""
    if spec.loop is None or once == Bound():
        return once
    over = spec.loop.over
    if isinstance(over, list | tuple):
        return attrs.evolve(once, known=once.known * len(over))
    shown = over if isinstance(over, str) else dumps(over)
    reason = f"the loop of '{spec.id}' goes over {shown.strip()}"
    return Bound(unbounded=(*once.unbounded, reason))
