"""Checks of the `decisions` in a recipe's tests: each names a step and has a text that fits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from minions.data.errors import Fault
from minions.recipe.drafts import RecipeDraft, StepDraft
from minions.recipe.kinds.registry import KINDS
from minions.recipe.model import AgentRecipe, StepSpec
from minions.recipe.steps_within import steps_within
from minions.recipe.text.nodes import Entry, MappingNode, ScalarNode
from minions.recipe.text.sections import Report, suggestion, type_of

_CONSENT: Final = ("approve", "reject")


def check_decisions(draft: RecipeDraft, node: MappingNode | None, report: Report) -> None:
    """Check keys (`STEP` or `STEP/STEP…`) and values (`approve`, `reject` or `answer:VALUE`)."""
    if node is None:
        return
    known = {named.path: named for named in _steps_of(draft)}
    for entry in node.entries:
        fault = _fault(entry, known.get(entry.key), tuple(known))
        if fault is not None and not _is_beyond(draft, entry.key):
            report(fault)


class _DecidableStep(Struct, frozen=True):
    """A step with the decisions that it may need."""

    path: str
    asks: bool
    calls: bool


def _steps_of(draft: RecipeDraft) -> Iterator[_DecidableStep]:
    for step in draft.steps:
        if not step.is_named:
            continue
        spec = KINDS[step.kind].spec if step.kind is not None else StepSpec
        calls = spec.calls_tools or "decision_tool" in step.section.entries
        yield _DecidableStep(step.id, spec.asks_person, calls)
        if step.recipe is not None:
            yield from _inner_steps(f"{step.id}/", step.recipe)


def _inner_steps(prefix: str, recipe: AgentRecipe) -> Iterator[_DecidableStep]:
    for path, _, step in steps_within(recipe, prefix):
        if isinstance(step, StepSpec):
            calls = step.calls_tools or step.decision_tool is not None
            yield _DecidableStep(path, step.asks_person, calls)
        else:
            yield _DecidableStep(path, asks=False, calls=True)  # code may call any tool


def _is_beyond(draft: RecipeDraft, path: str) -> bool:
    """Whether the path leads into a recipe that could not be loaded: that was reported already."""
    first, slash, _ = path.partition("/")
    return any(step.id == first and slash and _is_lost(step) for step in draft.steps)


def _is_lost(step: StepDraft) -> bool:
    return step.kind == "recipe" and step.recipe is None


def _fault(entry: Entry, step: _DecidableStep | None, known: Sequence[str]) -> Fault | None:
    if step is None:
        return entry.key_node.place.fault(
            "unknown-step",
            f"unknown step '{entry.key:.60}' in a test",
            label=suggestion(entry.key, tuple(known)),
            help=f"there are: {', '.join(known) or 'none'}",
        )
    node = entry.value
    if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
        message = f"a decision is a word, but this is {type_of(node)}"
        return node.place.fault("bad-decision", message, help=_words(step))
    mismatch = _mismatch(node.value, step)
    if mismatch is None:
        return None
    near = suggestion(node.value, _CONSENT) if node.value not in _CONSENT else None
    return node.place.fault("bad-decision", mismatch, label=near, help=_words(step))


def _mismatch(word: str, step: _DecidableStep) -> str | None:
    # Imported here: few recipes have tests with decisions, and `validate` has to start fast.
    from minions.contracts.decision_words import Answer, Approve, Reject, said_decision

    match said_decision(word):
        case Approve(None) | Reject(None) if step.asks and not step.calls:
            return f"step '{step.path}' asks a question; '{word}' is not an answer"
        case Approve(None) | Reject(None) if not step.calls:
            return f"step '{step.path}' calls no tool that needs approval"
        case Answer() if not step.asks:
            return f"step '{step.path}' asks no question"
        case Approve(None) | Reject(None) | Answer():
            return None
        case _:
            return f"'{word:.60}' is not a decision"


def _words(step: _DecidableStep) -> str:
    if step.asks:
        return "write answer:VALUE"
    if step.calls:
        return "write approve or reject"
    return "remove it: nothing waits for a decision here"
