"""Reads steps into drafts while faults are collected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import evolve
from msgspec.structs import replace

from minions.data.schema import JsonSchema
from minions.recipe.catalog import Catalog
from minions.recipe.drafts import (
    RecipeDraft,
    StepDraft,
    TemplateUse,
    read_condition,
    read_templates,
)
from minions.recipe.expressions.template import Templates, has_templates
from minions.recipe.kinds.code_kind import CODE
from minions.recipe.kinds.goal_kind import GOAL
from minions.recipe.kinds.kind import CommonKeys, KindReader, StepKind, given_mapping
from minions.recipe.kinds.kind_registry import KINDS, STEP_KINDS
from minions.recipe.kinds.tool_kind import ToolSpecStep
from minions.recipe.language import step_keys
from minions.recipe.model import (
    DecisionToolSpec,
    LoopSpec,
    OnError,
    OnErrorSpec,
    OnItemError,
    StepSpec,
    Where,
    WhileSpec,
)
from minions.recipe.reading.recipe_settings import read_limits, read_model, read_retry
from minions.recipe.text.key_types import CACHE_KEY, Table
from minions.recipe.text.nodes import Entry, MappingNode, Node, ScalarNode, SequenceNode
from minions.recipe.text.sections import Report, Section, foreign_keys, read_section, suggestion

_TABLES: Final[Mapping[str, Table]] = {
    kind.name: step_keys.STEP.plus(kind.table) for kind in STEP_KINDS
}
_OF_KINDS: Final = [
    (key, kind.table)
    for kind in reversed(STEP_KINDS)
    for key in kind.table.keys
    if key.name == kind.name or key.name not in KINDS
]
"""The keys of all kinds; one that names a kind is that of this kind, whatever it is to others."""
_ANY_KIND: Final = Table(
    "a step",
    (
        *step_keys.STEP.keys,
        *{key.name: replace(key, is_required=False) for key, _ in _OF_KINDS}.values(),
    ),
)
"""The keys of a step without a single kind: the missing kind is then the only fault reported."""
_CACHED_KINDS: Final = [kind.name for kind in STEP_KINDS if CACHE_KEY in kind.table.keys]
_OWNERS: Final = {
    **{key.name: table.name for key, table in _OF_KINDS},
    CACHE_KEY.name: f"{', '.join(_CACHED_KINDS[:-1])} and {_CACHED_KINDS[-1]} steps",
}
"""For each key of a kind, the name of the kind that owns it, for messages."""
_LATER_KINDS: Final = ("plan",)
_ALL_TEMPLATES: Final = tuple(dict.fromkeys(name for kind in STEP_KINDS for name in kind.templates))


def read_step(
    node: Node, index: int, catalog: Catalog, recipe: RecipeDraft, report: Report
) -> StepDraft:
    """Read one step of `recipe`, as far as possible."""
    retry, mode = recipe.retry, recipe.mode
    kind = _kind_of(node, report)
    section = read_section(node, _TABLES[kind] if kind else _ANY_KIND, report, _OWNERS)
    step = StepDraft(
        id=section.text("id") or f"<step {index + 1}>", index=index, kind=kind, section=section
    )
    step.limits = read_limits(section.node("limits"), report, is_of_step=True)
    step.outer_templates = read_condition(section.scalar("when"), report, recipe.templates)
    templates: list[TemplateUse] = []
    for name in KINDS[kind].templates if kind else _ALL_TEMPLATES:
        templates.extend(read_templates(section.node(name), report, recipe.templates))
    if kind is not None:
        reader = KindReader(
            catalog=catalog,
            mode=mode,
            read_model=lambda model: read_model(model, catalog, report),
            templates=templates,
            recipe_templates=recipe.templates,
            report=report,
        )
        KINDS[kind].read(step, reader)
    step.templates = tuple(templates)
    step.retry = read_retry(section.node("retry"), retry, report)
    _read_while(step, report, recipe.templates)
    _read_on_error(step, report)
    _read_route(step, report, recipe.templates)
    _read_loop(step, report, recipe.templates)
    return step


def _read_while(step: StepDraft, report: Report, compiled: Templates) -> None:
    """Read the `while` loop of a step."""
    section = step.section
    node = section.scalar("while")
    step.has_while = node is not None or "while" in section.refused
    if not step.has_while:
        for name in ("max_iterations", "allow_repeats"):
            if (extra := section.node(name)) is not None:
                report(extra.place.fault("missing-key", f"'{name}' belongs to a step with 'while'"))
        return
    step.repeat_templates = read_condition(node, report, compiled)
    if section.node("loop") is not None:
        message = "a step is done for each item or as long as a condition holds, not both"
        report(section.place_of("while").fault("kind-conflict", message))
    set_output(step, step.output)


def _read_route(step: StepDraft, report: Report, compiled: Templates) -> None:
    """Read what decides about the next step."""
    section = step.section
    route, tool = section.node("route"), section.node("decision_tool")
    if isinstance(tool, MappingNode):
        step.decision = read_section(tool, step_keys.DECISION_TOOL, report)
    elif tool is not None:
        entries = {"tool": section.entries["decision_tool"]}
        step.decision = Section(whole=tool, entries=entries)
    params = step.decision.node("params") if step.decision is not None else None
    step.route_templates = (
        *read_templates(route, report, compiled),
        *read_templates(params, report, compiled),
    )
    if route is not None and tool is not None:
        message = "'route' and 'decision_tool' both say which step comes next"
        report(section.place_of("route").fault("kind-conflict", message, help="keep one of them"))


def _read_on_error(step: StepDraft, report: Report) -> None:
    """Read `on_error`: a word, or the target of a back edge."""
    section = step.section
    node = section.node("on_error")
    if isinstance(node, MappingNode):
        step.goto = read_section(node, step_keys.ON_ERROR, report).scalar("goto")
    elif isinstance(node, ScalarNode) and node.value not in (OnError.FAIL, OnError.CONTINUE):
        report(
            node.place.fault(
                "bad-value",
                f"'on_error' cannot be '{node.value}'",
                label=suggestion(str(node.value), ("fail", "continue")),
                help="choices are: fail, continue, {goto: STEP}",
            )
        )
    if node is not None and section.plain("optional") is True:
        message = "'optional' and 'on_error' both say what a failure does"
        report(node.place.fault("kind-conflict", message, help="keep one of the two"))


def _read_loop(step: StepDraft, report: Report, compiled: Templates) -> None:
    """Read the `loop` of a step; the step's output becomes that of all items."""
    section = step.section
    node = section.node("loop")
    step.has_loop = node is not None or "loop" in section.refused
    if not step.has_loop:
        for name in ("aggregate", "max_parallel", "on_item_error", "min_successful"):
            if name == "aggregate" and section.node("while") is not None:
                continue
            if (extra := section.node(name)) is not None:
                report(extra.place.fault("missing-key", f"'{name}' belongs to a step with 'loop'"))
        return
    templates = read_templates(node, report, compiled)
    step.outer_templates = (*step.outer_templates, *templates)
    if isinstance(node, ScalarNode) and not templates and not has_templates(node.value):
        report(
            node.place.fault(
                "bad-value",
                "'loop' is a text, not a list",
                help="write a template that gives one, such as '{{ step.items }}', or the list",
            )
        )
    _read_item_errors(section, node, report)
    set_output(step, step.output)


def set_output(step: StepDraft, output: JsonSchema) -> None:
    """Say what is known of the step's output.

    Args:
        output: What its kind gives, once for each item where it has a loop.
    """
    section = step.section
    step.output = output
    if step.has_loop:
        is_list = section.plain("aggregate") is True
        step.output = _of_all_items(output, aggregate=is_list, has_gaps=_may_have_gaps(section))
    elif step.has_while and section.plain("aggregate") is True:
        step.attempt_output = output
        step.output = {"type": "array", "items": output}


def _read_item_errors(section: Section, loop: Node | None, report: Report) -> None:
    """Read what becomes of failed items."""
    node = section.scalar("on_item_error")
    if node is not None and node.value not in tuple(OnItemError):
        report(
            node.place.fault(
                "bad-value",
                f"'on_item_error' is {node.value!r}",
                label=suggestion(str(node.value), tuple(OnItemError)),
                help=f"choices are: {', '.join(OnItemError)}",
            )
        )
    least = section.node("min_successful")
    if least is None:
        return
    if section.text("on_item_error") != OnItemError.COLLECT:
        message = "'min_successful' belongs to a loop with 'on_item_error: collect'"
        report(least.place.fault("missing-key", message))
    count = section.plain("min_successful")
    if isinstance(loop, SequenceNode) and isinstance(count, int) and count > len(loop.items):
        message = f"'min_successful' is {count}, more than the list is long ({len(loop.items)})"
        report(least.place.fault("bad-value", message))


def _may_have_gaps(section: Section) -> bool:
    """Whether later steps may read the results of a loop some of whose items failed."""
    may_fail = section.plain("optional") is True or section.text("on_error") == OnError.CONTINUE
    return may_fail or section.text("on_item_error") == OnItemError.COLLECT


def _of_all_items(item: JsonSchema, *, aggregate: bool, has_gaps: bool) -> JsonSchema:
    if has_gaps:
        item = {"anyOf": [item, {"type": "null"}]}
    results: JsonSchema = {"type": "array", "items": item}
    if aggregate:
        return results
    counts = {name: {"type": "integer"} for name in ("total", "successful", "failed")}
    text: JsonSchema = {"type": "string"}
    error = _object({"index": {"type": "integer"}, "item": {}, "code": text, "message": text})
    errors: JsonSchema = {"type": "array", "items": error}
    return _object({"results": results, "errors": errors, **counts})


def _object(properties: Mapping[str, JsonSchema]) -> JsonSchema:
    """The schema of an object that has just these members."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _kind_of(node: Node, report: Report) -> str | None:
    if not isinstance(node, MappingNode):
        return None
    found = [entry for entry in node.entries if entry.key in KINDS]
    if node.find(GOAL.name) is not None:  # there `code` is a key of it
        found = [entry for entry in found if not _is_flag(entry)]
    for kind in STEP_KINDS:  # the older spelling of a kind may stand beside the kind's own key
        others = [entry for entry in found if entry.key != kind.name]
        if len(others) == 1 and _is_alias(others[0], kind):
            return kind.name
    if len(found) == 1:
        return found[0].key
    if len(found) > 1:
        names = " and ".join(f"'{entry.key}'" for entry in found)
        report(
            found[1].key_node.place.fault(
                "kind-conflict",
                f"a step is of one kind, but this one has {names}",
                label=f"'{found[0].key}' is given at line {found[0].key_node.place.line}",
                help="make two steps of it",
            )
        )
    elif not any(node.find(name) for name in (*_LATER_KINDS, "extends")):
        kinds = tuple(KINDS)
        if any(foreign_keys(entry.key, kinds) for entry in node.entries):
            return None  # the word of another tool for a kind, which is reported as a key
        near = [suggestion(entry.key, kinds) for entry in node.entries]
        report(
            node.place.fault(
                "kind-missing",
                "this step does nothing",
                label=next((label for label in near if label), None),
                help=f"give it one of: {', '.join(kinds)}",
            )
        )
    return None


def _is_flag(entry: Entry) -> bool:
    is_bool = isinstance(entry.value, ScalarNode) and isinstance(entry.value.value, bool)
    return entry.key == CODE.name and is_bool


def _is_alias(entry: Entry, kind: StepKind) -> bool:
    value = entry.value.value if isinstance(entry.value, ScalarNode) else None
    return kind.alias is not None and (entry.key, value) == kind.alias


# --- builds the specs of steps from drafts without faults ----------------------------------------


def build_steps(draft: RecipeDraft) -> list[StepSpec]:
    """The specs of the steps of a draft without faults."""
    specs = [_build(step, draft.steps) for step in draft.steps]
    if not draft.is_older:
        return specs
    return [
        evolve(spec, is_older=True) if isinstance(spec, ToolSpecStep) else spec for spec in specs
    ]


def _build(step: StepDraft, steps: Sequence[StepDraft]) -> StepSpec:
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
        aggregate=section.plain("aggregate") is True,
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


def _endorsed_tools(section: Section) -> tuple[str, ...]:
    value = section.plain("endorse")
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),) if value else ()


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
        endorse=_endorsed_tools(section),
        timeout_s=_seconds(section, "timeout_s"),
        cache=section.plain("cache") is True,
        idle_timeout_s=_seconds(section, "idle_timeout_s"),
        retry=step.retry,
        distribute=section.plain("distribute") is True,
        limits=step.limits,
        metadata=given_mapping(section, "metadata"),
        where=Where(place.source.file, place.line, place.column),
    )
