"""A step's texts and feedback with untrusted values between borders, in no system message."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from attrs import frozen

from minions.contracts.border_names import border_in, border_words
from minions.contracts.context import RunContext
from minions.contracts.messages import Message, MessageRole, user
from minions.data.json_values import JsonValue
from minions.engine.compile.recipe_step import WrittenStep, as_text, feedback_of
from minions.recipe.expressions.template import Template
from minions.recipe.expressions.terms import Term

IsUntrusted: TypeAlias = Callable[[Term], bool]
"""Whether the value of an expression may hold text that a stranger wrote."""
RoleTexts: TypeAlias = Sequence[tuple[MessageRole, Template]]


def plain_texts(texts: RoleTexts, values: Mapping[str, JsonValue]) -> list[Message]:
    """The messages with values as the templates write them."""
    return [
        Message(role=role, content=as_text(template.render(values))) for role, template in texts
    ]


@frozen(kw_only=True)
class MarkedTexts:
    """The messages of a step, and the border around untrusted values in them."""

    messages: list[Message]
    border: str | None
    """The name of the border; None: no value is untrusted."""

    @classmethod
    def of(
        cls,
        texts: RoleTexts,
        values: Mapping[str, JsonValue],
        is_untrusted: IsUntrusted,
        seed: str,
        more: Sequence[str] = (),
    ) -> MarkedTexts:
        """Render the texts.

        Args:
            seed: As for `border_of`.
            more: Further texts of the prompt, which the border must not occur in.
        """
        from minions.engine.compile.borders import border_of, within

        if not any(is_untrusted(term) for _, template in texts for term in template.terms()):
            return cls(messages=plain_texts(texts, values), border=None)
        marks = _Marks(is_untrusted)
        for role, template in texts:  # first with no border, to learn all texts
            marks.text(role, template, values)
        marks.border = border_of(seed, [*marks.seen, *more])
        marks.moved.clear()
        messages = [
            Message(role=role, content=marks.text(role, template, values))
            for role, template in texts
        ]
        data = [user(within(marks.border, each)) for each in marks.moved]
        first = sum(role is MessageRole.SYSTEM for role, _ in texts)
        return cls(messages=[*messages[:first], *data, *messages[first:]], border=marks.border)


class _Marks:
    """Writes untrusted values within the border, and keeps those of system texts for later."""

    def __init__(self, is_untrusted: IsUntrusted) -> None:
        self._is_untrusted = is_untrusted
        self.border = "data"
        self.seen: list[str] = []
        self.moved: list[str] = []
        """Values that a system text reads: they follow in a message of their own."""

    def text(self, role: MessageRole, template: Template, values: Mapping[str, JsonValue]) -> str:
        from minions.engine.compile.borders import as_text_data, within

        is_system = role is MessageRole.SYSTEM

        def mark(term: Term, value: JsonValue) -> str:
            if not isinstance(value, str | list | tuple | Mapping) or not self._is_untrusted(term):
                return as_text(value)
            data = as_text_data(value)
            self.seen.append(data)
            if is_system:
                self.moved.append(data)
                return f"(the text in <{self.border}> tags, number {len(self.moved)})"
            is_line = "\n" not in data
            return (
                f"<{self.border}>{data}</{self.border}>" if is_line else within(self.border, data)
            )

        text = template.marked(values, mark)
        self.seen.append(text)
        return text


def feedback_data(view: RunContext, step: WrittenStep[object]) -> list[str]:
    """The failure as a prompt shows it within its border; empty: nothing led back."""
    from minions.engine.compile.borders import as_text_data

    feedback = feedback_of(view, step)
    return [] if feedback is None else [as_text_data(feedback["message"])]


def with_marked_feedback(
    messages: Sequence[Message], view: RunContext, step: WrittenStep[object]
) -> list[Message]:
    """The messages, then the failure that led back to the step.

    Args:
        messages: If they have a border, it is none that `feedback_data` holds.
    """
    from minions.engine.compile.borders import as_text_data, border_of, within

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
