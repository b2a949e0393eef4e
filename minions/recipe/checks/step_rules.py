"""Checks of single steps: their ids and names, `cache`, `distribute`, and back edges."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from minions.contracts.tools import Effect, ToolSpec
from minions.data.errors import Fault
from minions.recipe.catalog import Catalog
from minions.recipe.drafts import RecipeDraft, StepDraft, TemplateUse, is_lost_name
from minions.recipe.expressions.syntax import WORDS
from minions.recipe.kinds.kind_registry import KINDS
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.text.nodes import MappingNode, Node, Place, ScalarNode, SequenceNode
from minions.recipe.text.sections import Report, suggestion


def check_caching(draft: RecipeDraft, catalog: Catalog, report: Report) -> None:
    """Report cached steps that have side effects, which would be
    missing when the output is cached.
    """
    for step in draft.steps:
        if step.section.plain("cache") is not True:
            continue
        problems = list(dict.fromkeys(_cache_problems(draft, step, catalog)))
        if problems:
            report(
                step.section.place_of("cache").fault(
                    "cache-skips-effect",
                    f"step {step.title} cannot be cached: {'; '.join(problems)}",
                    help="leave out 'cache', or declare a tool pure that changes nothing",
                )
            )


def _cache_problems(draft: RecipeDraft, step: StepDraft, catalog: Catalog) -> Iterator[str]:
    kind = KINDS[step.kind] if step.kind is not None else None
    if kind is not None:
        yield from kind.cache_problems(step)
        for name in kind.tool_names(step):
            yield from _of_tool(draft.find_tool(name))
    if step.recipe is not None:
        yield from _of_recipe(step.recipe, catalog)


def _of_tool(spec: ToolSpec | None) -> Iterator[str]:
    """Why the tool's calls may not be cached.

    Args:
        spec: None: the name is unknown, which was reported already.
    """
    if spec is not None and spec.effect is not Effect.PURE:
        yield f"the tool '{spec.name}' is not declared pure (it is {spec.effect.value})"


def _of_recipe(recipe: AgentRecipe, catalog: Catalog) -> Iterator[str]:
    if recipe.document is None:
        yield f"the recipe '{recipe.id}' was made by code, whose changes cannot be detected"
        return
    for step in recipe.steps:
        if not isinstance(step, StepSpec):
            continue
        if step.inner is not None:
            yield from _of_recipe(step.inner, catalog)
        if step.asks_person:
            yield f"step '{step.id}' of the recipe '{recipe.id}' asks a person"
        if step.offers_caller_tools:
            yield f"step '{step.id}' of the recipe '{recipe.id}' calls tools of whoever asks"
        for name in (*step.called_tools, *step.offered_tools):
            yield from _of_tool(_spec(name, recipe, catalog))


def _spec(name: str, recipe: AgentRecipe, catalog: Catalog) -> ToolSpec | None:
    """The spec of the tool that has that name in the recipe; None: there is no such tool."""
    for use in recipe.tools:
        toolset = catalog.toolsets.get(use.name)
        prefix = f"{use.prefix or use.name}__"
        if toolset is None or not name.startswith(prefix):
            continue
        for spec in toolset.specs:
            if spec.name == name.removeprefix(prefix):
                return spec
    return catalog.tools.get(name)


# --- checks of steps with `distribute ------------------------------------------------------------


_OF_THE_RUN: Final = {
    "run": "a child run has an id of its own",
    "feedback": "a child run is told no failure of another step",
}
"""Names that mean something else in a child run, and why."""


class _Problem(Struct, frozen=True):
    """Why the items of a step cannot be runs of their own."""

    message: str
    help: str
    place: Place | None = None
    """Where it stands; None: at the key `distribute`."""


def check_distribution(draft: RecipeDraft, report: Report) -> None:
    """Report distributed steps whose items cannot be executed as runs of their own."""
    for step in draft.steps:
        if step.section.plain("distribute") is not True:
            continue
        for problem in _distribution_problems(draft, step):
            place = problem.place or step.section.place_of("distribute")
            message = f"step {step.title} cannot be distributed: {problem.message}"
            report(place.fault("bad-distribution", message, help=problem.help))


def _distribution_problems(draft: RecipeDraft, step: StepDraft) -> Iterator[_Problem]:
    if step.has_while:
        yield _Problem(
            "an attempt of its 'while' reads those before it",
            "leave out 'distribute', or distribute a 'recipe' step that has the 'while' inside",
        )
    elif not step.has_loop and step.kind != "recipe":
        yield _Problem(
            "it has no items", "add a 'loop', or leave out 'distribute'; a 'recipe' needs no loop"
        )
    if draft.has_graph:
        yield _Problem(
            "the recipe is a graph of transitions, which runs as a whole",
            "leave out 'graph' and say 'depends_on', or put the graph into a nested recipe",
        )
    if step.section.text("memory") == "conversation":
        yield _Problem(
            "its items share one conversation (memory: conversation)",
            "leave out 'memory', so that each item has a conversation of its own",
        )
    if step.tool_search.caller or (step.recipe is not None and step.recipe.offers_caller_tools):
        yield _Problem(
            "whoever asks is told of one run, and each item would call its tools in another",
            "leave out 'caller' under 'tools', or 'distribute'",
        )
    saved = {other.save_as for other in draft.steps} | {other.id for other in draft.steps}
    for use in step.templates:
        yield from _foreign_names(use, saved)


def _foreign_names(use: TemplateUse, saved: set[str | None]) -> Iterator[_Problem]:
    for reference in use.references:
        root = str(reference.path[0])
        if root in _OF_THE_RUN and root not in saved:
            yield _Problem(
                f"it reads '{root}', and {_OF_THE_RUN[root]}",
                "read it in a 'set' step before, and the output of that step here",
                use.place_of(reference),
            )


# --- the step for what was never seen ---------------------------------------------------------


def surprise_step(draft: RecipeDraft) -> str | None:
    """The step that `on_surprise` names; None: it names none."""
    name = draft.section.text("on_surprise")
    return None if name in (None, NO_SURPRISE) else name


NO_SURPRISE: Final = "fail"
"""The `on_surprise` of a recipe that has no step for it."""


def link_surprise(draft: RecipeDraft) -> None:
    """Let all other steps end, or be skipped, before the one that `on_surprise` names."""
    for step in draft.steps:
        if step.is_named and step.id == surprise_step(draft):
            others = (each.index for each in draft.steps if each is not step)
            step.after = tuple(each for each in others if each not in step.depends_on)


def check_surprise(draft: RecipeDraft, report: Report) -> None:
    """Report an `on_surprise` that names no step, and a step that cannot be the one."""
    name = surprise_step(draft)
    if name is None:
        return
    place = draft.section.place_of("on_surprise")
    ids = tuple(step.id for step in draft.steps if step.is_named)
    found = next((step for step in draft.steps if step.is_named and step.id == name), None)
    if found is None:
        if not is_lost_name(draft, name):
            message = f"unknown step '{name:.60}' in on_surprise"
            label = suggestion(name, (*ids, NO_SURPRISE))
            help_ = f"steps are: {', '.join(ids)}; 'fail': there is none"
            report(place.fault("unknown-step", message, label=label, help=help_))
        return
    for problem, help_ in _surprise_problems(draft, found):
        report(place.fault("bad-surprise", f"on_surprise: {problem}", help=help_))


def _surprise_problems(draft: RecipeDraft, found: StepDraft) -> Iterator[tuple[str, str]]:
    if draft.has_graph:
        yield "a recipe with 'graph' has no step for it", "lead there with 'route' or 'on_error'"
        return
    if found is not draft.steps[-1]:
        yield f"{found.title} is not the last step", "write it behind all others"
    for index in found.depends_on:
        other = draft.steps[index]
        yield (
            f"{found.title} needs '{other.id}', which may not have run then",
            f"read it with a default: {{{{ {other.id} | default(null) }}}}",
        )
    if found.has_loop or found.has_while or found.goto is not None:
        yield f"{found.title} is repeated", "take a step without 'loop', 'while' and 'goto'"


# --- checks of back edges ------------------------------------------------------------------------


def check_returns(draft: RecipeDraft, report: Report) -> None:
    """Report targets that are not a step, or not one that the failing step depends on."""
    if not any(step.goto is not None for step in draft.steps):
        return
    ids = {step.id: step for step in draft.steps if step.is_named}
    for step in draft.steps:
        if step.goto is not None:
            _check(draft, step, str(step.goto.value), ids, report)


def _check(
    draft: RecipeDraft, step: StepDraft, name: str, ids: Mapping[str, StepDraft], report: Report
) -> None:
    assert step.goto is not None  # noqa: S101  # asked only of steps that have one
    target = ids.get(name)
    if target is None:
        if not is_lost_name(draft, name):
            fault = step.goto.place.fault(
                "unknown-step",
                f"unknown step '{name:.60}' in on_error",
                label=suggestion(name, tuple(ids)),
                help=f"steps are: {', '.join(ids)}",
            )
            report(fault)
        return
    if "graph" in draft.section.entries or target is step or _rests_on(draft, step, target):
        return
    report(
        step.goto.place.fault(
            "bad-goto",
            f"{step.title} does not depend on '{name}': running it again would change nothing",
            help=f"list '{name}' under its depends_on, or take a step that it depends on",
        )
    )


def _rests_on(draft: RecipeDraft, step: StepDraft, target: StepDraft) -> bool:
    seen = {step.index}
    pending = [step]
    while pending:
        each = pending.pop()
        for index in (*each.depends_on, *each.after):
            if index == target.index:
                return True
            if index not in seen:
                seen.add(index)
                pending.append(draft.steps[index])
    return False


# --- checks of ids and `save_as` names -----------------------------------------------------------


RESERVED: Final = ("inputs", "steps", "loop", "run", "env")
"""Roots of template expressions, which no step may have as its name."""


def check_names(draft: RecipeDraft, report: Report) -> None:
    """Report duplicate ids, reserved names, and `save_as` names that hide a step."""
    inputs = draft.section.mapping("inputs")
    for entry in inputs.entries if inputs else ():
        if entry.key in WORDS:
            report(
                _make_reserved_fault(
                    entry.key_node.place, f"an input cannot be called '{entry.key}'"
                )
            )
    first: dict[str, StepDraft] = {}
    for step in draft.steps:
        if step.section.node("id") is None:
            continue
        if step.id in (*RESERVED, *WORDS):
            message = f"a step cannot be called '{step.id}'"
            report(_make_reserved_fault(step.place, message, is_root=step.id in RESERVED))
        if (other := first.setdefault(step.id, step)) is not step:
            report(
                step.place.fault(
                    "duplicate-id",
                    f"two steps are called '{step.id}'",
                    label=f"first given at line {other.place.line}",
                    help="ids are unique; rename one of the two",
                )
            )
    for step in draft.steps:
        _check_save_as(step, first, report)


def _check_save_as(step: StepDraft, by_id: dict[str, StepDraft], report: Report) -> None:
    name = step.save_as
    if name is None:
        return
    place = step.section.place_of("save_as")
    if name in (*RESERVED, *WORDS):
        report(_make_reserved_fault(place, f"save_as cannot be '{name}'", is_root=name in RESERVED))
    elif name in by_id and by_id[name] is not step:
        report(
            place.fault(
                "name-clash",
                f"save_as '{name}' is also the id of a step",
                label=f"that step is at line {by_id[name].place.line}",
                help="a name in a template must mean one thing; rename one of the two",
            )
        )


def _make_reserved_fault(place: Place, message: str, *, is_root: bool = False) -> Fault:
    if is_root:
        hint = f"templates use these names themselves: {', '.join(RESERVED)}"
    else:
        hint = f"these are words of expressions: {', '.join(WORDS)}"
    return place.fault("reserved-name", message, help=hint)


def check_unused_names(draft: RecipeDraft, used: frozenset[str], report: Report) -> None:
    """Warn about every `save_as` name that nothing reads.

    Args:
        used: Every name that a template or `depends_on` mentions.
    """
    faulty = {*RESERVED, *WORDS, *(step.id for step in draft.steps)}
    for step in draft.steps:
        name = step.save_as
        if name is not None and name not in used and name not in faulty:
            report(
                step.section.place_of("save_as").fault(
                    "unused-save-as",
                    f"nothing reads '{name}'",
                    help="remove save_as, or read it in a template",
                    is_warning=True,
                )
            )


_FOREIGN: Final = re.compile(
    r"(?<![\w{$])(?:\$?\{[ ]?(?P<braced>[^\W\d]\w{0,99}(?:\.\w{1,99}){0,9})[ ]?\}(?!\})"
    r"|\$(?P<bare>[^\W\d]\w{0,99}(?:\.[^\W\d]\w{0,99}){0,9}))"
)
"""A name as templates of other tools write it: `{inputs.t}`, `${inputs.t}`, `$t`."""
_EXPRESSION: Final = re.compile(r"\{\{[^{}]{0,2000}(?:\{[^{}]{0,200}\}[^{}]{0,2000})?\}\}")
_OF_MODELS: Final = ("goal", "analyze", "context", "system_prompt", "messages", "ask", "route")
"""Keys whose texts a model or a person reads."""


def check_foreign_templates(draft: RecipeDraft, report: Report) -> None:
    """Warn of templates of other tools in texts for models: these read them as they stand."""
    inputs = draft.section.mapping("inputs")
    own = {entry.key for entry in inputs.entries} if inputs else set()
    steps = {name for step in draft.steps for name in (step.id, step.save_as) if name}
    texts: list[ScalarNode] = []
    for section in (draft.section, *(step.section for step in draft.steps)):
        texts += [node for name in _OF_MODELS for node in _texts_in(section.node(name))]
    for node in texts:
        said = f"{node.value}"
        if "{" not in said and "$" not in said:
            continue
        for found in _FOREIGN.finditer(_EXPRESSION.sub(lambda each: " " * len(each[0]), said)):
            path = found["braced"] or found["bare"]
            root, _, rest = path.partition(".")
            is_input = root == "inputs" and rest.split(".")[0] in own
            if not (is_input or root in own or root in steps or (root == "loop" and rest)):
                continue
            meant = f"inputs.{path}" if root in own and root not in steps else path
            report(
                node.part(found.start(), len(found[0])).fault(
                    "foreign-template",
                    f"'{found[0]:.80}' is no template: it is sent as it stands",
                    help=f"write {{{{ {meant} }}}}",
                    is_warning=True,
                )
            )


def _texts_in(node: Node | None) -> Iterator[ScalarNode]:
    if isinstance(node, ScalarNode) and isinstance(node.value, str):
        yield node
    elif isinstance(node, SequenceNode):
        for item in node.items:
            yield from _texts_in(item)
    elif isinstance(node, MappingNode):
        for entry in node.entries:
            yield from _texts_in(entry.value)


def check_choices_without_graph(draft: RecipeDraft, report: Report) -> None:
    """Report what chooses among next steps in a recipe without transitions."""
    for step in draft.steps:
        for name in ("route", "decision_tool"):
            if (entry := step.section.entries.get(name)) is not None:
                report(
                    entry.key_node.place.fault(
                        "no-choice",
                        f"'{name}' chooses among several next steps, but the recipe has no 'graph'",
                        help=f"write graph: {{{step.id}: [one, other]}} beside 'steps', or use "
                        "'when'",
                    )
                )
