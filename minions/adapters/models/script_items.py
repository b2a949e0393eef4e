"""The items of a script: answers of a `ScriptedModel`, in order or by the prompt they match."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from attrs import frozen

from minions.contracts.calls import ModelCallResponse, ModelFailure, Prompt
from minions.contracts.messages import Message, ToolCallRequest
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue, dumps

GoodAnswer: TypeAlias = (
    str
    | Message
    | ModelCallResponse
    | ToolCallRequest
    | Sequence[ToolCallRequest]
    | Mapping[str, JsonValue]
)
Answer: TypeAlias = GoodAnswer | ModelFailure | BaseException
"""A text, a message, a whole response, a failure, tool calls, or a mapping that is sent as JSON
text.

An exception becomes a failure (retryable for TimeoutError and ConnectionError); one that is not an
`Exception`, such as CancelledError, is raised.
"""

AnswerFunction: TypeAlias = Callable[[Prompt], Answer | Awaitable[Answer]]


def tool_request(
    name: str,
    arguments: Mapping[str, JsonValue] | str | None = None,
    *,
    id: str | None = None,  # noqa: A002  # as the field of a ToolCallRequest is called
) -> ToolCallRequest:
    """A tool call for a script.

    Args:
        arguments: JSON text is sent as it is, valid or not; None sends `{}`.
        id: None: the model generates one when it answers.
    """
    text = arguments if isinstance(arguments, str) else dumps(arguments or {})
    return ToolCallRequest(id=id or "", name=name, arguments=text)


@frozen(kw_only=True)
class ScriptItem(FieldsRepr):
    """One answer of a script file."""

    answer: Answer
    match: str | None = None
    """A text that the prompt must contain; None: any prompt."""
