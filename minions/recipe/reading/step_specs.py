"""From drafts in which no fault was found to the specs of their steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from minions.contracts.json_values import JsonValue
from minions.contracts.retry import RetryConfig
from minions.recipe.drafts import (
    StepDraft,
)
from minions.recipe.model import (
    AnalyzeSpec,
    AskSpec,
    AssertSpec,
    CodeSpec,
    DecisionToolSpec,
    GoalSpec,
    LoopSpec,
    OnError,
    OnErrorSpec,
    RecipeSpec,
    SetSpec,
    StepSpec,
    ToolSpecStep,
    UsesSpec,
    Where,
    WhileSpec,
)
from minions.recipe.text.sections import Section

__all__ = ["build_step"]


class _Common(TypedDict):
    id: str
    description: str
    depends_on: tuple[str, ...]
    declared: tuple[str, ...]
    after: tuple[str, ...]
    when: str | None
    loop: LoopSpec | None
    repeat: WhileSpec | None
    on_error: OnErrorSpec
    route: str | None
    decision_tool: DecisionToolSpec | None
    save_as: str | None
    optional: bool
    timeout_s: float | None
    cache: bool
    idle_timeout_s: float | None
    retry: RetryConfig | None
    limits: Mapping[str, JsonValue]
    metadata: Mapping[str, JsonValue]
    where: Where


def build_step(step: StepDraft, steps: Sequence[StepDraft]) -> StepSpec:
    """The spec of a draft in which no fault was found."""
    section = step.section
    common = _common(step, steps)
    if step.kind == "goal":
        return GoalSpec(
            **common,
            goal=section.text("goal") or "",
            system_prompt=section.text("system_prompt"),
            messages=step.goal.messages,
            tools=step.tools,
            output=step.goal.schema,
            completion=step.goal.completion,
            completion_links=step.goal.links,
            tool_failure=section.text("tool_failure") or _usual_policy(section),
            memory=section.text("memory") or "isolated",
            model=step.goal.model,
        )
    if step.kind == "tool":
        return ToolSpecStep(
            **common,
            tool=section.text("tool") or "",
            params=_plain_mapping(section, "params"),
            params_template=_plain_mapping(section, "params_template"),
        )
    if step.kind == "analyze":
        return AnalyzeSpec(
            **common,
            task=section.text("analyze") or section.text("description") or "",
            context=section.text("context"),
            input=section.plain("input"),
            has_input=section.node("input") is not None,
            output=step.goal.schema,
            model=step.goal.model,
        )
    if step.kind == "assert":
        return AssertSpec(**common, conditions=step.conditions, message=section.text("message"))
    if step.kind == "ask":
        return AskSpec(
            **common,
            ask=section.text("ask") or "",
            form=step.goal.schema,
            waits_s=step.waits_s,
            default=section.plain("default"),
            has_default=section.node("default") is not None,
        )
    if step.kind == "uses":
        given = _plain_mapping(section, "with")
        return UsesSpec(**common, uses=section.text("uses") or "", given=given)
    if step.kind == "code":
        given = _plain_mapping(section, "with")
        return CodeSpec(**common, code=section.text("code") or "", given=given)
    if step.kind == "recipe" and step.recipe is not None:
        return RecipeSpec(
            **common,
            name=section.text("recipe") or "",
            recipe=step.recipe,
            given=_plain_mapping(section, "with"),
        )
    return SetSpec(**common, set=_plain_mapping(section, "set"))


def _usual_policy(section: Section) -> str:
    """In a conversation a failed tool is told to the model."""
    return "report" if section.text("memory") == "conversation" else "fail"


def _plain_mapping(section: Section, name: str) -> Mapping[str, JsonValue]:
    value = section.plain(name)
    return value if isinstance(value, Mapping) else {}


def _loop(section: Section) -> LoopSpec | None:
    if section.node("loop") is None:
        return None
    most = section.plain("max_parallel", 1)
    return LoopSpec(
        over=section.plain("loop"),
        aggregate=section.plain("aggregate") is True,
        max_parallel=most if isinstance(most, int) else 1,
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
        tool=section.text("tool") or "", params=_plain_mapping(section, "params")
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


def _common(step: StepDraft, steps: Sequence[StepDraft]) -> _Common:
    section = step.section
    when = section.plain("when")
    place = section.place
    return _Common(
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
        limits=step.limits,
        metadata=_plain_mapping(section, "metadata"),
        where=Where(place.source.file, place.line, place.column),
    )
