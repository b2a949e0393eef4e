"""Steps: from nodes to drafts, while faults are collected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import evolve

from minions.contracts.durations import seconds_of
from minions.contracts.errors import UsageError
from minions.contracts.schema import JsonSchema, SchemaValidator
from minions.recipe.catalog import Catalog
from minions.recipe.checks.references import TEXT_OUTPUT
from minions.recipe.drafts import (
    GoalParts,
    RecipeDraft,
    StepDraft,
    TemplateUse,
    read_condition,
    read_templates,
)
from minions.recipe.language import step_keys
from minions.recipe.language.step_keys import KINDS
from minions.recipe.model import (
    OnError,
)
from minions.recipe.reading.goals import check_memory, read_goal
from minions.recipe.reading.settings import read_limits, read_model, read_retry
from minions.recipe.text.key_types import Table
from minions.recipe.text.nodes import Entry, MappingNode, Node, ScalarNode, SequenceNode, to_plain
from minions.recipe.text.schemas import read_output_schema, schema_of_example, shape_of_values
from minions.recipe.text.sections import Report, Section, read_section, suggestion

__all__ = ["read_step"]

_TABLES: Final[Mapping[str, Table]] = {
    kind: step_keys.STEP.plus(table) for kind, table in KINDS.items()
}
_OF_KINDS: Final = [(key, table) for table in reversed(KINDS.values()) for key in table.keys]
_ANY_KIND: Final = Table(
    "a step",
    (
        *step_keys.STEP.keys,
        *{key.name: evolve(key, is_required=False) for key, _ in _OF_KINDS}.values(),
    ),
)
"""Of a step without one clear kind, so that one fault about it is enough."""
_OWNERS: Final = {
    **{key.name: table.name for key, table in _OF_KINDS},
    "cache": "goal, tool, analyze and recipe steps",
}
"""Of a key that several kinds have, the first."""
_LATER_KINDS: Final = ("plan",)
_TEMPLATE_KEYS: Final = (
    "goal",
    "system_prompt",
    "params",
    "params_template",
    "set",
    "analyze",
    "context",
    "input",
    "message",
    "with",
    "ask",
)
_ANALYZE_TOOL: Final = "llm_analyze"
"""A tool of this name is a kind of step, in the older form of recipes."""


def read_step(
    node: Node, index: int, catalog: Catalog, recipe: RecipeDraft, report: Report
) -> StepDraft:
    """One step of `recipe`, as far as it can be read."""
    retry, mode = recipe.retry, recipe.mode
    kind = _kind_of(node, report)
    section = read_section(node, _TABLES[kind] if kind else _ANY_KIND, report, _OWNERS)
    step = StepDraft(
        id=section.text("id") or f"<step {index + 1}>", index=index, kind=kind, section=section
    )
    step.limits = read_limits(section.node("limits"), report, is_of_step=True)
    step.outer_templates = read_condition(section.scalar("when"), report)
    templates: list[TemplateUse] = []
    for name in _TEMPLATE_KEYS:
        templates.extend(read_templates(section.node(name), report))
    if kind == "goal":
        check_memory(section, mode, report)
        step.goal = read_goal(section, catalog, report, templates)
        step.output = TEXT_OUTPUT if step.goal.schema is None else step.goal.schema
    elif kind == "analyze":
        step.goal = _analysis_parts(section, catalog, report)
        step.output = TEXT_OUTPUT if step.goal.schema is None else step.goal.schema
    elif kind == "assert":
        step.conditions = _conditions(section, report, templates)
    elif kind == "ask":
        _read_question(step, report)
    elif kind == "code":
        report(
            section.place_of("code").fault(
                "no-sandbox",
                "this code will be refused until there is a sandbox",
                help="register a tool or a Step that does the same",
                is_warning=True,
            )
        )
    elif kind == "set" and (values := section.mapping("set")) is not None:
        step.output = shape_of_values(values)
    step.templates = tuple(templates)
    step.retry = read_retry(section.node("retry"), retry, report)
    _read_while(step, report)
    _read_on_error(step, report)
    _read_route(step, report)
    _read_loop(step, report)
    return step


def _read_while(step: StepDraft, report: Report) -> None:
    """The condition under which the step is done again."""
    section = step.section
    node = section.scalar("while")
    step.has_while = node is not None or "while" in section.refused
    if not step.has_while:
        for name in ("max_iterations", "allow_repeats"):
            if (extra := section.node(name)) is not None:
                report(extra.place.fault("missing-key", f"'{name}' belongs to a step with 'while'"))
        return
    step.repeat_templates = read_condition(node, report)
    if section.node("loop") is not None:
        message = "a step is done for each item or as long as a condition holds, not both"
        report(section.place_of("while").fault("kind-conflict", message))


def _read_route(step: StepDraft, report: Report) -> None:
    """What decides where the run goes on."""
    section = step.section
    route, tool = section.node("route"), section.node("decision_tool")
    if isinstance(tool, MappingNode):
        step.decision = read_section(tool, step_keys.DECISION_TOOL, report)
    elif tool is not None:
        entries = {"tool": section.entries["decision_tool"]}
        step.decision = Section(whole=tool, entries=entries)
    params = step.decision.node("params") if step.decision is not None else None
    step.route_templates = (*read_templates(route, report), *read_templates(params, report))
    if route is not None and tool is not None:
        message = "'route' and 'decision_tool' both say which step comes next"
        report(section.place_of("route").fault("kind-conflict", message, help="keep one of them"))


def _read_on_error(step: StepDraft, report: Report) -> None:
    """A word, or where to go back to."""
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


def _read_loop(step: StepDraft, report: Report) -> None:
    """What the step is done for; its output is then that of all items."""
    section = step.section
    node = section.node("loop")
    step.has_loop = node is not None or "loop" in section.refused
    if not step.has_loop:
        for name in ("aggregate", "max_parallel"):
            if (extra := section.node(name)) is not None:
                report(extra.place.fault("missing-key", f"'{name}' belongs to a step with 'loop'"))
        return
    templates = read_templates(node, report)
    step.outer_templates = (*step.outer_templates, *templates)
    if isinstance(node, ScalarNode) and not templates:
        report(
            node.place.fault(
                "bad-value",
                "'loop' is a text, which is no list",
                help="write a template that gives one, such as '{{ step.items }}', or the list",
            )
        )
    step.output = _of_all_items(step.output, aggregate=section.plain("aggregate") is True)


def _of_all_items(item: JsonSchema, *, aggregate: bool) -> JsonSchema:
    results: JsonSchema = {"type": "array", "items": item}
    if aggregate:
        return results
    counts = {name: {"type": "integer"} for name in ("total", "successful", "failed")}
    error: JsonSchema = {
        "type": "object",
        "properties": {"index": {"type": "integer"}, "error": {"type": "object"}},
        "additionalProperties": False,
    }
    errors: JsonSchema = {"type": "array", "items": error}
    return {
        "type": "object",
        "properties": {"results": results, "errors": errors, **counts},
        "additionalProperties": False,
    }


def _kind_of(node: Node, report: Report) -> str | None:
    if not isinstance(node, MappingNode):
        return None
    found = [entry for entry in node.entries if entry.key in KINDS]
    if any(_is_analyze_tool(entry) for entry in found):
        found = [entry for entry in found if entry.key != "analyze"]
        if len(found) == 1:
            return "analyze"
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


def _is_analyze_tool(entry: Entry) -> bool:
    value = entry.value
    return entry.key == "tool" and isinstance(value, ScalarNode) and value.value == _ANALYZE_TOOL


# --- analyze and assert steps ----------------------------------------------------------------


def _analysis_parts(section: Section, catalog: Catalog, report: Report) -> GoalParts:
    """Its output and its model; the rest are templates."""
    example, output = section.mapping("output_format"), section.mapping("output")
    schema = None
    is_declared = any(
        section.node(name) is not None or name in section.refused
        for name in ("output", "output_format")
    )
    if example is not None and output is not None:
        message = "the answer is described twice, by 'output' and by 'output_format'"
        report(section.place_of("output_format").fault("kind-conflict", message))
    elif output is not None:
        schema = read_output_schema(output, report)
    elif example is not None:
        schema = schema_of_example(to_plain(example))
    if section.text("analyze") is None and not section.text("description"):
        report(
            section.place.fault(
                "missing-key",
                "nothing says what is to be found out",
                help="write it behind 'analyze:' or 'description:'",
            )
        )
    model = section.node("model")
    return GoalParts(
        schema={} if schema is None and is_declared else schema,
        model=read_model(model, catalog, report) if model is not None else None,
    )


def _conditions(section: Section, report: Report, templates: list[TemplateUse]) -> tuple[str, ...]:
    node = section.node("assert")
    nodes = node.items if isinstance(node, SequenceNode) else [node] if node is not None else []
    for item in nodes:
        if isinstance(item, ScalarNode) and isinstance(item.value, str):
            templates.extend(read_condition(item, report))
        else:
            report(item.place.fault("wrong-type", "a condition is a text such as 'a == 1'"))
    return tuple(str(item.value) for item in nodes if isinstance(item, ScalarNode))


# --- ask steps ---------------------------------------------------------------------------------


def _read_question(step: StepDraft, report: Report) -> None:
    """Its form, which is its output; a default has to fit it."""
    section = step.section
    if not (section.text("ask") or "?").strip():
        message = "'ask' is empty: nobody can answer that"
        report(section.place_of("ask").fault("bad-value", message, help="write the question"))
    form = section.mapping("form")
    schema = read_output_schema(form, report) if form is not None else None
    is_declared = form is not None or "form" in section.refused
    step.goal = GoalParts(schema={} if schema is None and is_declared else schema)
    step.output = TEXT_OUTPUT if step.goal.schema is None else step.goal.schema
    if (timeout := section.scalar("timeout")) is not None:
        try:
            step.waits_s = seconds_of(str(timeout.value))
        except UsageError as error:
            report(timeout.place.fault("bad-value", error.message.rstrip(".")))
    default = section.node("default")
    if default is None:
        return
    for problem in SchemaValidator(step.output).errors(to_plain(default)) if step.output else ():
        message = f"the default is no answer that fits: {problem}"
        report(default.place.fault("bad-value", message))
