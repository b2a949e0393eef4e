"""Checks of ids and `save_as` names: unique, not reserved, and used."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from minions.data.errors import Fault
from minions.recipe.drafts import RecipeDraft, StepDraft
from minions.recipe.expressions.syntax import WORDS
from minions.recipe.text.nodes import MappingNode, Node, Place, ScalarNode, SequenceNode
from minions.recipe.text.sections import Report

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
