"""Checks whether the prompts of a recipe begin with what is always the same: a server's cache of
prompts ends where the first value stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from minions.recipe.drafts import RecipeDraft
from minions.recipe.examples import CHARACTERS_PER_TOKEN
from minions.recipe.expressions.template import Template, Templates
from minions.recipe.expressions.values import as_text
from minions.recipe.kinds.goal_kind import GoalSpec
from minions.recipe.model import AgentRecipe
from minions.recipe.text.nodes import Place
from minions.recipe.text.sections import Report

_LEAST_TOKENS: Final = 1_024
"""No provider keeps less of a prompt."""


def check_prompt_prefixes(draft: RecipeDraft, recipe: AgentRecipe, report: Report) -> None:
    """Warn where a value stands before texts that are the same in all runs, or for all items, and
    so long that a server would keep them.
    """
    goals = [each for each in recipe.steps if isinstance(each, GoalSpec)]
    if not goals:
        return
    prompt = recipe.templates.compile(recipe.system_prompt or "")
    if not prompt.is_constant:
        shared = min(sum(_lengths(texts)) for texts in _stable_texts(goals, recipe))
        behind = prompt.constant_lengths[1] + shared
        key = "system_prompt" if draft.section.node("system_prompt") is not None else "context"
        _warn(draft.section.place_of(key), "the system prompt", "run to run", behind, report)
        return
    drafts = {each.id: each.section for each in draft.steps}
    for step in goals:
        varies = "item to item" if step.loop is not None else "run to run"
        for key, name, behind in _broken_texts(step, recipe.templates):
            _warn(drafts[step.id].place_of(key), name, varies, behind, report)


def _stable_texts(goals: Sequence[GoalSpec], recipe: AgentRecipe) -> Iterator[list[Template]]:
    """The texts of each step that come behind the recipe's own and before the goal."""
    for step in goals:
        yield [*_context_of(step, recipe.templates), *_system_of(step, recipe.templates)]


def _context_of(step: GoalSpec, compiled: Templates) -> list[Template]:
    return [
        compiled.compile(part.text) if part.file is None else Template.of_constant(part.text)
        for part in step.context
    ]


def _system_of(step: GoalSpec, compiled: Templates) -> list[Template]:
    constant = step.examples if step.nearest is None else ()  # else they differ with the question
    examples = [f"{each.question}{as_text(each.answer)}" for each in constant]
    return [compiled.compile(step.system_prompt or ""), *map(Template.of_constant, examples)]


def _broken_texts(step: GoalSpec, compiled: Templates) -> Iterator[tuple[str, str, int]]:
    """The key and name of each text with a value, and the constant characters behind that."""
    for key, name, texts in (
        ("context", "a part of the context", _context_of(step, compiled)),
        ("system_prompt", "the system prompt", _system_of(step, compiled)),
        ("goal", "the goal", [compiled.compile(step.goal)]),
    ):
        first = next((at for at, each in enumerate(texts) if not each.is_constant), None)
        if first is not None:
            rest = texts[first + 1 :]
            yield key, name, texts[first].constant_lengths[1] + sum(_lengths(rest))


def _lengths(texts: Sequence[Template]) -> Iterator[int]:
    """The characters of each text that are always the same."""
    return (sum(each.constant_lengths) for each in texts)


def _warn(place: Place, name: str, varies: str, behind: int, report: Report) -> None:
    tokens = behind // CHARACTERS_PER_TOKEN
    if tokens >= _LEAST_TOKENS:
        report(
            place.fault(
                "late-constants",
                f"{name} reads a value that differs from {varies}, and about {tokens:,} tokens "
                "behind it do not: they are paid in full each time, for a server's cache of "
                "prompts ends at the value",
                help="write what is always the same first, and values last",
                is_warning=True,
            )
        )
