"""What only goal steps have: messages, a declared output, what completes them."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from minions.contracts.completion import CompletionCriteria
from minions.contracts.errors import Fault, SchemaError
from minions.contracts.schema import check_schema
from minions.contracts.verdicts import CompletionMode
from minions.recipe.catalog import Catalog
from minions.recipe.drafts import GoalParts, TemplateUse, read_templates
from minions.recipe.language import step_keys
from minions.recipe.model import (
    ExecutionMode,
    MessageSpec,
)
from minions.recipe.reading.settings import read_model
from minions.recipe.text.nodes import Node, ScalarNode
from minions.recipe.text.schemas import read_output_schema
from minions.recipe.text.sections import Report, Section, read_section, read_texts, suggestion

__all__ = ["check_memory", "read_goal"]


def check_memory(section: Section, mode: ExecutionMode, report: Report) -> None:
    """A conversation goes from step to step."""
    node = section.node("memory")
    if node is not None and section.text("memory") == "conversation":
        if mode is ExecutionMode.PARALLEL:
            message = "one conversation cannot go on in several steps at once"
            report(node.place.fault("bad-value", message, help="use execution_mode: planned"))
        elif section.node("loop") is not None and section.plain("max_parallel", 1) != 1:
            message = "one conversation cannot go on for several items at once"
            report(node.place.fault("bad-value", message, help="leave out max_parallel"))


def read_goal(
    section: Section, catalog: Catalog, report: Report, templates: list[TemplateUse]
) -> GoalParts:
    """What is said of its output, messages, completion and model."""
    schema = None
    output = section.mapping("output")
    is_declared = output is not None or "output" in section.refused
    if output is not None:
        schema = read_output_schema(output, report)
    model = section.node("model")
    parts = GoalParts(
        messages=_messages(section.items("messages"), report, templates),
        # One that cannot be used says nothing: what reads it is no fault.
        schema={} if schema is None and is_declared else schema,
        model=read_model(model, catalog, report) if model is not None else None,
    )
    return _with_completion(parts, section, catalog, report)


def _messages(
    nodes: Sequence[Node], report: Report, templates: list[TemplateUse]
) -> tuple[MessageSpec, ...]:
    messages = []
    for node in nodes:
        faults: list[Fault] = []
        section = read_section(node, step_keys.MESSAGE, faults.append)
        said = [(role, section.scalar(role)) for role in ("system", "user")]
        said.append((section.text("role") or "", section.scalar("content")))
        given = [(role, content) for role, content in said if content is not None]
        role, content = given[0] if len(given) == 1 else ("", None)
        if role and content is not None and section.text("role") in (None, role):
            templates.extend(read_templates(content, report))
            messages.append(MessageSpec(role=role, content=str(content.value)))
        elif not faults:
            faults.append(
                node.place.fault(
                    "bad-value",
                    "a message is said once, by one role",
                    help="write {user: text}, {system: text} or {role: user, content: text}",
                )
            )
        for fault in faults:
            report(fault)
    return tuple(messages)


def _with_completion(
    parts: GoalParts, section: Section, catalog: Catalog, report: Report
) -> GoalParts:
    node = section.node("completion")
    if node is None:
        return parts
    usual = CompletionMode.TEXT if parts.schema is None else CompletionMode.STRUCTURED
    if isinstance(node, ScalarNode):
        return evolve(parts, completion=_mode(parts, node, usual, report))
    inner = read_section(node, step_keys.COMPLETION, report)
    criteria = _mode(parts, inner.scalar("mode"), usual, report)
    patterns = read_texts(inner.items("patterns"), "a pattern", report)
    for pattern in patterns:
        try:
            check_schema({"type": "string", "pattern": pattern.text})
        except SchemaError as error:
            message = error.message.removeprefix("$.pattern: ")
            report(pattern.node.place.fault("bad-value", message))
    links = read_texts(inner.items("links"), "a link's name", report)
    for link in links:
        if link.text not in catalog.links:
            known = tuple(sorted(catalog.links))
            report(
                link.node.place.fault(
                    "unknown-link",
                    f"unknown completion link '{link.text}'",
                    label=suggestion(link.text, known),
                    help=f"registered links are: {', '.join(known) or 'none'}",
                )
            )
    return evolve(
        parts,
        completion=evolve(criteria, patterns=[pattern.text for pattern in patterns]),
        links=tuple(link.text for link in links),
    )


def _mode(
    parts: GoalParts, node: ScalarNode | None, usual: CompletionMode, report: Report
) -> CompletionCriteria:
    modes = tuple(str(mode) for mode in CompletionMode)
    if node is None:
        return CompletionCriteria(mode=usual)
    if node.value not in modes:
        report(
            node.place.fault(
                "bad-value",
                f"'completion' cannot be '{node.value}'",
                label=suggestion(str(node.value), modes),
                help=f"choices are: {', '.join(modes)}",
            )
        )
        return CompletionCriteria(mode=usual)
    mode = CompletionMode(str(node.value))
    if mode is CompletionMode.STRUCTURED and parts.schema is None:
        message = "completion 'structured' needs a declared output"
        report(node.place.fault("missing-key", message, help="add output: {field: type}"))
    return CompletionCriteria(mode=mode)
