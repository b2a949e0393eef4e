"""The rule about untrusted text: a warning, or under `strict` an error, where it can reach a tool
that writes, sends or spends without an approval.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minions.contracts.tools import ToolSpec
from minions.recipe.catalog import Catalog
from minions.recipe.checks.carried_text import carried_references
from minions.recipe.checks.flows import Flow, find_flows
from minions.recipe.checks.untrusted_text import UntrustedText
from minions.recipe.drafts import RecipeDraft, StepDraft
from minions.recipe.examples import ExampleStepSpec
from minions.recipe.model import AgentRecipe
from minions.recipe.text.sections import Report
from minions.recipe.tool_specs import tool_specs


def check_untrusted_flows(
    draft: RecipeDraft, recipe: AgentRecipe, catalog: Catalog, report: Report
) -> None:
    """Report each tool that untrusted text can reach, with one path to it, where it first does.

    Args:
        recipe: The recipe that was made of the draft.
    """
    _check_system_prompt(draft, recipe, report)
    known: dict[int, Mapping[str, ToolSpec]] = {}

    def tools_of(inner: AgentRecipe) -> Mapping[str, ToolSpec]:
        if id(inner) not in known:
            known[id(inner)] = tool_specs(inner, catalog)
        return known[id(inner)]

    ids = [step.id for step in recipe.steps]
    steps = dict(zip(ids, draft.steps, strict=True))
    by_step: dict[str, list[Flow]] = {}
    for flow in find_flows(recipe, tools_of, in_full=catalog.is_strict_in_full):
        by_step.setdefault(flow.path[-1].step, []).append(flow)
    # A stored run's recipe, which is plain data, has to stay runnable.
    is_error = (recipe.strict or bool(catalog.strict)) and draft.is_text
    by_tool: dict[tuple[str, ...], list[str]] = {}
    for path, flows in by_step.items():
        by_tool.setdefault((flows[0].tool, *_private(flows)), []).append(path)
    for first, *others in by_tool.values():
        step = steps[first.partition("/")[0]]
        _report(step, by_step[first], others, report, catalog, is_warning=not is_error)
    _check_recorded_examples(draft, recipe, catalog, report, is_warning=not is_error)


def _check_recorded_examples(
    draft: RecipeDraft, recipe: AgentRecipe, catalog: Catalog, report: Report, *, is_warning: bool
) -> None:
    """Report steps to whose prompt recorded runs would add what strangers wrote in other runs."""
    for step, known in zip(recipe.steps, draft.steps, strict=True):
        if not isinstance(step, ExampleStepSpec) or step.recorded_examples is None:
            continue
        untrusted = UntrustedText(recipe, catalog)
        question = recipe.templates.compile(step.example_question)
        if any(untrusted.is_in(step, term) for term in question.terms()):
            report(
                known.section.place_of("examples").fault(
                    "untrusted-examples",
                    f"examples from recorded runs would show what strangers wrote: the goal of "
                    f"{known.title} reads untrusted text, and stands in them without a border",
                    help="mark only runs whose inputs you have read, or choose the examples with "
                    "`minions learn`, which shows them",
                    is_warning=is_warning,
                )
            )


def _check_system_prompt(draft: RecipeDraft, recipe: AgentRecipe, report: Report) -> None:
    """Report a system prompt of the whole recipe that reads an untrusted input."""
    references = carried_references(recipe.system_prompt, recipe.templates)
    paths = [reference.path for reference in references]
    read = {path[1:2] for path in paths if path[0] == "inputs"}  # () stands for all of them
    for name, spec in recipe.inputs.items():
        if spec.is_untrusted and ((name,) in read or () in read):
            report(
                draft.section.place_of("system_prompt").fault(
                    "untrusted-system-text",
                    f"the system prompt reads the untrusted input '{name}'",
                    help="read it in the goal of a step, where it stands within a border",
                )
            )


def _private(flows: list[Flow]) -> list[str]:
    """Names of what the tools could send."""
    return list(dict.fromkeys(name for flow in flows for name in flow.private))


def _report(
    step: StepDraft,
    flows: list[Flow],
    others_too: list[str],
    report: Report,
    catalog: Catalog,
    *,
    is_warning: bool,
) -> None:
    first, *others = flows
    more = [flow.tool for flow in others if flow.tool != first.tool]
    also = f", and so to {', '.join(more)}" if more else ""
    same = f"; the same in {_some(others_too)}" if others_too else ""
    private = _private(flows)
    within = f"; it could send what {', '.join(private)} holds" if private else ""
    place = step.section.place_of(step.kind or "id")
    report(
        place.fault(
            "untrusted-flow",
            f"untrusted text can reach '{first.tool}' without an approval: "
            f"{first.words}{also}{within}{same}",
            help=f"set permissions: {{requires_approval: [{first.tool}]}}{_or_else(catalog)}",
            is_warning=is_warning,
        )
    )


def _or_else(catalog: Catalog) -> str:
    """What else makes the text harmless, for people."""
    if catalog.is_strict_in_full:
        return (
            "; where the operator is strict in full, no question, no schema of numbers or lists, "
            "and no 'reads: trusted' of the recipe counts"
        )
    return (
        ", let an ask step show the text and 'when' read its answer, or declare the source "
        "'reads: trusted'"
    )


_MOST_NAMED: Final = 5


def _some(paths: list[str]) -> str:
    more = len(paths) - _MOST_NAMED
    named = ", ".join(paths[:_MOST_NAMED])
    return f"{named} and {more} more" if more > 0 else named
