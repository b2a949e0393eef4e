"""The failure that led back to a step, as data: a tool's error may hold a stranger's text."""

from __future__ import annotations

from collections.abc import Sequence

from minions.contracts.border_names import border_in, border_words
from minions.contracts.context import RunContext
from minions.contracts.messages import Message, user
from minions.engine.compile.borders import as_text_data, border_of, within
from minions.engine.compile.recipe_step import WrittenStep, feedback_of


def feedback_data(view: RunContext, step: WrittenStep[object]) -> list[str]:
    """The failure as a prompt shows it within its border; empty: nothing led back."""
    feedback = feedback_of(view, step)
    return [] if feedback is None else [as_text_data(feedback["message"])]


def with_marked_feedback(
    messages: Sequence[Message], view: RunContext, step: WrittenStep[object]
) -> list[Message]:
    """The messages, then the failure that led back to the step.

    Args:
        messages: If they have a border, it is none that `feedback_data` holds.
    """
    feedback = feedback_of(view, step)
    if feedback is None:
        return [*messages]
    data = as_text_data(feedback["message"])
    known = border_in(messages)
    border = known or border_of(view.border_seed, [*(m.content or "" for m in messages), data])
    told = user(
        f"An earlier answer of yours was not good enough: step '{feedback['step']}', which came "
        f"after it, failed:\n{within(border, data)}\nDo it again, and do better."
    )
    return [*([] if known else [border_words(border)]), *messages, told]
