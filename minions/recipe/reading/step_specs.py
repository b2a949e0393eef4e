"""Builds the specs of steps from drafts without faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from minions.recipe.control_flow import (
    DecisionToolSpec,
    LoopSpec,
    OnError,
    OnErrorSpec,
    OnItemError,
    WhileSpec,
)
from minions.recipe.drafts import RecipeDraft, StepDraft
from minions.recipe.kinds.kind import CommonKeys, given_mapping
from minions.recipe.kinds.registry import KINDS
from minions.recipe.kinds.tool import ToolSpecStep
from minions.recipe.model import StepSpec, Where
from minions.recipe.text.sections import Section


def build_steps(draft: RecipeDraft) -> list[StepSpec]:
    """The specs of the steps of a draft without faults."""
    specs = [_built(step, draft.steps) for step in draft.steps]
    if not draft.is_older:
        return specs
    return [
        evolve(spec, is_older=True) if isinstance(spec, ToolSpecStep) else spec for spec in specs
    ]


def _built(step: StepDraft, steps: Sequence[StepDraft]) -> StepSpec:
    assert step.kind is not None  # noqa: S101  # a step without a kind is a fault
    return KINDS[step.kind].build(step, _common(step, steps))


def _loop(section: Section) -> LoopSpec | None:
    if section.node("loop") is None:
        return None
    most, least = section.plain("max_parallel", 1), section.plain("min_successful", 1)
    return LoopSpec(
        over=section.plain("loop"),
        aggregate=section.plain("aggregate") is True,
        max_parallel=most if isinstance(most, int) else 1,
        most_queued=most if isinstance(most, int) and section.node("max_parallel") else None,
        on_item_error=OnItemError(section.text("on_item_error") or OnItemError.FAIL),
        min_successful=least if isinstance(least, int) else 1,
    )


def _repeat(section: Section) -> WhileSpec | None:
    condition = section.text("while")
    if condition is None:
        return None
    most = section.plain("max_iterations", WhileSpec(condition="").max_iterations)
    return WhileSpec(
        condition=condition,
        max_iterations=most if isinstance(most, int) else 1,
        allow_repeats=section.plain("allow_repeats") is True,
    )


def _decision_tool(section: Section | None) -> DecisionToolSpec | None:
    if section is None:
        return None
    return DecisionToolSpec(
        tool=section.text("tool") or "", params=given_mapping(section, "params")
    )


def _on_error(section: Section) -> OnErrorSpec:
    value = section.plain("on_error")
    if isinstance(value, Mapping):
        most = value.get("max", OnErrorSpec().max_times)
        return OnErrorSpec(
            action=OnError.GOTO,
            goto=str(value["goto"]),
            max_times=most if isinstance(most, int) else 1,
        )
    return OnErrorSpec(action=OnError(str(value)) if value is not None else OnError.FAIL)


def _seconds(section: Section, name: str) -> float | None:
    value = section.plain(name)
    return value if isinstance(value, int | float) else None


def _common(step: StepDraft, steps: Sequence[StepDraft]) -> CommonKeys:
    section = step.section
    when = section.plain("when")
    place = section.place
    return CommonKeys(
        id=step.id,
        description=section.text("description") or "",
        depends_on=tuple(steps[index].id for index in step.depends_on),
        declared=tuple(steps[index].id for index in step.declared),
        after=tuple(steps[index].id for index in step.after),
        when=None if when is None else str(when).lower() if isinstance(when, bool) else str(when),
        loop=_loop(section),
        repeat=_repeat(section),
        on_error=_on_error(section),
        route=section.text("route"),
        decision_tool=_decision_tool(step.decision),
        save_as=step.save_as,
        optional=section.plain("optional") is True,
        timeout_s=_seconds(section, "timeout_s"),
        cache=section.plain("cache") is True,
        idle_timeout_s=_seconds(section, "idle_timeout_s"),
        retry=step.retry,
        distribute=section.plain("distribute") is True,
        limits=step.limits,
        metadata=given_mapping(section, "metadata"),
        where=Where(place.source.file, place.line, place.column),
    )
