"""How two versions of a recipe differ, step by step: what a retry has to run again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Final, cast

import attrs
from msgspec import Struct

from minions.contracts.steps import PythonStep, Step
from minions.data.errors import NotFoundError, UsageError, near_names
from minions.data.json_values import JsonValue, as_array, as_object
from minions.engine.history.replay import Replay
from minions.recipe.drafts import GraphPaths
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.model_config import ModelConfig
from minions.recipe.nested_recipes import bundle_of

_FREE: Final = (
    *("description", "enabled", "limits", "max_parallel", "metadata", "name", "permissions"),
    *("redact", "restore", "retain", "retry", "schedule"),
)
"""Keys of a recipe that may change between the start of a run and its resume."""


_LOOKED_AT: Final = (
    *("steps", "inputs", "output", "goal", "system_prompt", "context", "messages"),
)
"""Keys that are compared step by step, or in the prompts that the run would send."""


def _shared(document: Mapping[str, JsonValue]) -> JsonValue:
    """The parts that any step may depend on: tools, model, templates."""
    free = (*_FREE, *_LOOKED_AT, "id", "version", "execution_mode", "on_failure")
    return {key: value for key, value in document.items() if key not in free}


def decisive_parts(document: Mapping[str, JsonValue]) -> JsonValue:
    """The recipe without the keys that may change before a resume."""
    return {key: value for key, value in document.items() if key not in _FREE}


_AROUND: Final = (
    "description",
    "depends_on",
    "declared",
    "after",
    "when",
    "save_as",
    "optional",
    "timeout_s",
    "cache",
    "route",
    "decision_tool",
    "distribute",
)
"""Keys that say when and whether a step runs: they do not make its recorded output outdated."""


def changed_steps(before: AgentRecipe, after: AgentRecipe, within: str = "") -> frozenset[str]:
    """Ids of the steps whose own work differs; whether their inputs differ shows in the run.

    Of a recipe that is a step also the steps that changed in it, as `outer/inner`: the others of
    that recipe are replayed.
    """
    old = {step.id: step for step in before.steps}
    changed: set[str] = set()
    for step in after.steps:
        was = old.get(step.id)
        if was is None or is_same_step(before, was, after, step):
            continue
        changed.add(f"{within}{step.id}")
        inner_before, inner = _inner(was), _inner(step)
        if inner_before is not None and inner is not None:
            changed |= changed_steps(inner_before, inner, f"{within}{step.id}/")
    return frozenset(changed)


def _inner(step: object) -> AgentRecipe | None:
    return step.inner if isinstance(step, StepSpec) else None


def is_same_step(
    before: AgentRecipe, old: object, after: AgentRecipe, new: object, *, with_inner: bool = True
) -> bool:
    """Whether the step of `after` does what the one of `before` did, with what it needs.

    Args:
        with_inner: Whether the recipe that it runs counts, too.
    """
    if not isinstance(old, StepSpec) or not isinstance(new, StepSpec):
        return getattr(old, "version", None) == getattr(new, "version", None)
    if type(old) is not type(new) or not is_same_json(
        _work_of(old, with_inner=with_inner), _work_of(new, with_inner=with_inner)
    ):
        return False
    uses_tools = bool(new.called_tools or new.offered_tools)
    if uses_tools and not is_same_json(_plain(before.tools), _plain(after.tools)):
        return False
    if not new.asks_model:
        return True
    own = new.own_model
    was = before.model.overlaid(old.own_model) if old.own_model else before.model
    is_now = after.model.overlaid(own) if own else after.model
    return _first_choice(was) == _first_choice(is_now)


def work_of_item(recipe: AgentRecipe, spec: StepSpec) -> JsonValue:
    """What a distributed step does with each of its items, as plain data."""
    work = as_object(_work_of(spec))
    own = {key: value for key, value in work.items() if key not in ("loop", "on_error")}
    uses_tools = bool(spec.called_tools or spec.offered_tools)
    config = recipe.model.overlaid(spec.own_model) if spec.own_model else recipe.model
    return [
        own,
        _plain(recipe.tools) if uses_tools else None,
        _plain(_first_choice(config)) if spec.asks_model else None,
    ]


def _first_choice(config: ModelConfig) -> ModelConfig:
    """The models without those that stand in for them: an answer is none the worse for that."""
    tiers = [_first_choice(each) for each in config.tiers or ()]
    return attrs.evolve(config, tiers=tuple(tiers) or None, fallbacks=None, cooldown_s=None)


def _work_of(spec: StepSpec, *, with_inner: bool = True) -> JsonValue:
    """The step's work as plain data, without what says when it runs."""
    told = {**as_object(_plain(spec))}
    if spec.own_model is not None and "model" in told:
        told["model"] = _plain(_first_choice(spec.own_model))
    if with_inner and (inner := spec.inner) is not None:
        told["recipe"] = [inner.document or dict(step_versions(inner)), bundle_of(inner)]
    return {key: value for key, value in told.items() if key not in (*_AROUND, "where")}


def _plain(value: object) -> JsonValue:
    """Specs as plain data, to be compared as text: for `==`, 1 equals True. Without the recipes
    that stand in them.
    """
    if isinstance(value, Struct):
        names = value.__struct_fields__
    elif attrs.has(type(value)):
        names = tuple(
            each.name for each in attrs.fields(cast("type[attrs.AttrsInstance]", type(value)))
        )
    elif isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    elif isinstance(value, tuple | list | set | frozenset):
        return [_plain(part) for part in value]
    else:
        return cast("JsonValue", value)
    parts = {name: getattr(value, name) for name in names}
    return {key: _plain(part) for key, part in parts.items() if not isinstance(part, AgentRecipe)}


def is_same_json(one: JsonValue, other: JsonValue) -> bool:
    """Whether both are the same JSON, to the type: 1, 1.0 and true differ."""
    return _text(one) == _text(other)


def _text(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def changed_documents(before: Mapping[str, JsonValue], after: AgentRecipe) -> frozenset[str]:
    """As `changed_steps`, where the recorded recipe names what is no longer registered."""
    document = after.document or {}
    ids = [step.id for step in after.steps]
    if not is_same_json(_shared(before), _shared(document)):
        return frozenset(ids)
    known = {_text(step) for step in as_array(before.get("steps") or ())}
    now = as_array(document.get("steps") or [None] * len(ids))
    return frozenset(
        step_id for step_id, step in zip(ids, now, strict=True) if _text(step) not in known
    )


def _objects(recipe: AgentRecipe) -> Sequence[Step[object]]:
    if recipe.graph is not None and not isinstance(recipe.graph, Mapping):
        return tuple(recipe.graph.steps)
    return tuple(step for step in recipe.steps if not isinstance(step, StepSpec))


def step_versions(recipe: AgentRecipe) -> dict[str, str]:
    """The version of each step by its id; specs made by code have the default, "1"."""
    if recipe.graph is not None and not isinstance(recipe.graph, Mapping):
        return {step.id: step.version for step in recipe.graph.steps}
    # A spec that was made by code has no version; the step that is built of it has the usual one.
    return {step.id: "1" if isinstance(step, StepSpec) else step.version for step in recipe.steps}


def check_outputs(recipe: AgentRecipe, replay: Replay, run_id: str) -> None:
    """Refuse Step objects whose recorded outputs do not fit what they declare now.

    Raises:
        UsageError: Naming the first; its version is what should tell.
    """
    for step in _objects(recipe):
        if isinstance(step, PythonStep) or (output := step.output) is None:
            continue
        for value in replay.outputs_of(step.id):
            try:
                output.convert(value)
            except Exception as error:  # an application's class raises anything
                raise UsageError(
                    f"What step '{step.id}' gave in run '{run_id}' does not fit what it declares "
                    f"now: {error}. Give the step another version and let it run again: "
                    "`AgentExecutor(…).retry(run_id, recipe=…)`.",
                    code="other-version",
                ) from error


def steps_from(recipe: AgentRecipe, first: str) -> frozenset[str]:
    """That step and all that come after it: by dependency, in the graph, or in list order.

    Raises:
        NotFoundError: There is no such step.
    """
    ids = list(step_versions(recipe)) or [step.id for step in recipe.steps]
    if first not in ids:
        raise NotFoundError(
            f"The recipe has no step '{first}'. Steps are: {', '.join(ids)}.",
            code="unknown-step",
            suggestions=near_names(first, ids),
        )
    specs = [step for step in recipe.steps if isinstance(step, StepSpec)]
    if not specs:
        return frozenset(ids[ids.index(first) :])
    if isinstance(recipe.graph, Mapping):
        after = GraphPaths.of(ids, recipe.graph).after(ids.index(first))
        return frozenset((first, *(ids[place] for place in after)))
    found = {first}
    for spec in _in_order(specs):
        if found.intersection((*spec.depends_on, *spec.after)):
            found.add(spec.id)
    return frozenset(found)


def _in_order(specs: Sequence[StepSpec]) -> Iterable[StepSpec]:
    """The steps in an order in which each stands behind its dependencies."""
    by_id = {spec.id: spec for spec in specs}
    needs = {spec.id: {*spec.depends_on, *spec.after} for spec in specs}
    return [by_id[step_id] for step_id in TopologicalSorter(needs).static_order()]
