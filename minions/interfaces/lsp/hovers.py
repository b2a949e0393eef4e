"""What an editor shows of what the cursor is at: types, descriptions, and what a step costs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from attrs import frozen
from msgspec import structs

from minions.analysis.bounds import Bound, UpperBound
from minions.analysis.explanation import StepCost, explain_steps
from minions.data.errors import MinionsError
from minions.data.json_values import dumps
from minions.interfaces.lsp.checked_text import CheckedText, Spot, Stretch
from minions.interfaces.lsp.completions import known_keys
from minions.interfaces.lsp.cursor import cursor_at
from minions.interfaces.lsp.mentions import (
    FIELD,
    INPUT,
    RECIPE,
    SAVED,
    STEP,
    Mention,
    mention_at,
    mentions_of,
)
from minions.interfaces.lsp.type_words import description_of, type_words
from minions.recipe.checks.shapes import Shape
from minions.recipe.drafts import RecipeDraft, StepDraft
from minions.recipe.model import AgentRecipe
from minions.recipe.permissions import tool_specs


@frozen(kw_only=True)
class Hover:
    """What is shown, in Markdown, and what it is about."""

    text: str
    stretch: Stretch


def hover_at(checked: CheckedText, spot: Spot) -> Hover | None:
    """What is known of what the cursor is at; None: nothing is."""
    mention = mention_at(checked, spot)
    if mention is not None and checked.draft is not None:
        lines = list(_of_mention(checked, checked.draft, mention))
        if lines:
            return Hover(text="\n\n".join(lines), stretch=mention.stretch)
    return _of_tool(checked, spot) or _of_key(checked, spot)


def _of_mention(checked: CheckedText, draft: RecipeDraft, mention: Mention) -> Iterator[str]:
    name = mention.name
    if name.kind == FIELD or (mention.reference is not None and name.kind in (INPUT, SAVED)):
        yield from _of_value(checked, draft, mention)
    elif name.kind == INPUT and name.path[0] in draft.inputs:
        spec = draft.inputs[name.path[0]]
        need = f"default `{dumps(spec.default)}`" if spec.has_default else "required"
        yield f"**{name.path[0]}**: input, {type_words(Shape.of(spec.schema))}, {need}"
        if spec.description:
            yield spec.description
    elif name.kind in (STEP, SAVED):
        step = _step_of(draft, mention)
        if step is not None:
            yield from _of_step(checked, step)
    elif name.kind == RECIPE:
        step = next(
            (
                each
                for each in draft.steps
                if each.recipe is not None and each.section.text("recipe") == name.path[0]
            ),
            None,
        )
        if step is not None and step.recipe is not None:
            yield from _of_recipe(step.recipe)
        return
    yield from _where(checked, mention)


def _of_value(checked: CheckedText, draft: RecipeDraft, mention: Mention) -> Iterator[str]:
    sources = checked.sources()
    path = mention.name.path
    if mention.reference is not None and sources is not None:
        parts = mention.reference.path[: mention.parts]
        reference = structs.replace(mention.reference, path=parts)
        known = sources.known(reference, mention.reader)
        shape = known.shape if known is not None else None
    elif path[0] == INPUT:
        spec = draft.inputs.get(path[1])
        shape = Shape.of(spec.schema) if spec is not None else None
        shape = _inside(shape, path[2:])
    else:
        step = next((each for each in draft.steps if each.id == path[1]), None)
        shape = _inside(Shape.of(step.output) if step is not None else None, path[2:])
    if shape is not None:
        yield f"**{path[-1]}**: {type_words(shape)}"
        if about := description_of(shape.node):
            yield about


def _inside(shape: Shape | None, path: tuple[str, ...]) -> Shape | None:
    """The shape at a path without indices: lists are passed through."""
    for part in path:
        while shape is not None and shape.kinds() == frozenset({"array"}):
            shape = shape.items()
        shape = shape.at((part,)) if shape is not None else None
    return shape


def _step_of(draft: RecipeDraft, mention: Mention) -> StepDraft | None:
    name = mention.name.path[0]
    found = [step for step in draft.steps if name in (step.id, step.save_as)]
    return found[0] if found else None


def _of_step(checked: CheckedText, step: StepDraft) -> Iterator[str]:
    yield f"**{step.id}**: {step.kind or 'a'} step, gives {type_words(Shape.of(step.output))}"
    if about := step.section.text("description"):
        yield about
    cost = _cost_of(checked, step)
    if cost is not None:
        yield cost_words(cost)


def _cost_of(checked: CheckedText, step: StepDraft) -> StepCost | None:
    """What the step uses at most; None: the recipe has faults, so that there is no bound."""
    recipe, project = checked.loaded.recipe, checked.project
    if recipe is None:
        return None
    try:
        costs = explain_steps(
            recipe, project.know, lambda inner: tool_specs(inner, project.catalog)
        )
    except (MinionsError, KeyError):  # it names what is known only where it runs
        return None
    return costs.get(step.id)


def cost_words(cost: StepCost) -> str:
    """The bounds of a step in one sentence, as `minions explain` shows those of a run."""
    bound, spent = cost.bound, cost.spending
    words = [
        f"{_bound_words(bound.model_calls)} model calls",
        f"{_bound_words(bound.tool_calls)} tool calls",
    ]
    if bound.model_calls.known or bound.model_calls.unbounded:
        words += [
            f"{_most_words(spent.tokens, '{:,.0f}')} tokens",
            _most_words(spent.cost_usd, "${:,.4f}"),
        ]
    return f"At most {', '.join(words)}"


def _bound_words(bound: Bound) -> str:
    return f"unbounded ({'; '.join(bound.unbounded)})" if bound.unbounded else str(bound.known)


def _most_words(most: UpperBound, form: str) -> str:
    if most.at_most is not None:
        return form.format(most.at_most)
    if most.limit is not None:
        return f"{form.format(most.limit)} and what calls under way then may use of"
    return f"an unknown number or price ({'; '.join(most.unbounded)}) of"


def _of_recipe(recipe: AgentRecipe) -> Iterator[str]:
    yield f"**{recipe.id}**: recipe, gives {type_words(Shape.of(recipe.known_output))}"
    if recipe.description:
        yield recipe.description
    inputs = [
        f"- `{name}`: {type_words(Shape.of(spec.schema))}{'' if spec.has_default else ', required'}"
        for name, spec in recipe.inputs.items()
    ]
    if inputs:
        yield "\n".join(inputs)


def _where(checked: CheckedText, mention: Mention) -> Iterator[str]:
    """Where it is declared, and where it is read."""
    same = [each for each in mentions_of(checked) if each.name == mention.name]
    written = [each.stretch.line + 1 for each in same if each.is_definition]
    read = sorted({each.stretch.line + 1 for each in same if not each.is_definition})
    words = [f"written in line {written[0]}"] if written else []
    if read:
        some = ", ".join(map(str, read[:_MOST_LINES]))
        words.append(f"read in line {some}{' …' if len(read) > _MOST_LINES else ''}")
    elif mention.name.kind in (STEP, INPUT):
        words.append("read nowhere")
    if words:
        yield f"*{'; '.join(words)}*"


_MOST_LINES: Final = 8
_WORD: Final = re.compile(r"[\w-]+")


def _of_tool(checked: CheckedText, spot: Spot) -> Hover | None:
    """A tool by its name, wherever that stands as a value."""
    found = _word_at(checked, spot)
    if checked.known is None or found is None:
        return None
    word, stretch = found
    tool = checked.known.tools.specs.get(word)
    if tool is None:
        return None
    lines = [f"**{tool.name}**: tool, {tool.effect.value}", tool.description]
    properties = tool.parameters.get("properties")
    names = properties if isinstance(properties, dict) else {}
    shown = [
        f"- `{name}`: {type_words(Shape(each, tool.parameters))}" for name, each in names.items()
    ]
    return Hover(
        text="\n\n".join(each for each in (*lines, "\n".join(shown)) if each), stretch=stretch
    )


def _of_key(checked: CheckedText, spot: Spot) -> Hover | None:
    """A key of the language, with what its table says of it."""
    found = _word_at(checked, spot)
    if found is None:
        return None
    word, stretch = found
    line = checked.line(spot.line)
    if not line[stretch.column + stretch.length :].lstrip("\"'").startswith(":"):
        return None
    cursor = cursor_at(checked.lines, Spot(spot.line, stretch.column + stretch.length))
    schema = known_keys(cursor).get(word) if cursor.expression is None else None
    about = description_of(schema)
    return Hover(text=f"**{word}**: {about}", stretch=stretch) if about else None


def _word_at(checked: CheckedText, spot: Spot) -> tuple[str, Stretch] | None:
    for found in _WORD.finditer(checked.line(spot.line)):
        if found.start() <= spot.column <= found.end():
            return found.group(), Stretch(spot.line, found.start(), len(found.group()))
    return None
