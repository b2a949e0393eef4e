"""Contexts that were made or edited by hand: what no model takes, and what is only odd."""

from __future__ import annotations

import pytest

from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.engine.sessions.session_context import messages_from_context, validate_context

CALL: dict[str, JsonValue] = {
    "role": "assistant",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    ],
}
ANSWER: dict[str, JsonValue] = {"role": "tool", "content": "seen", "tool_call_id": "c1"}


def test_messages_come_back_from_a_context_as_they_went_into_it() -> None:
    context: list[dict[str, JsonValue]] = [{"role": "user", "content": "Look!"}, CALL, ANSWER]
    messages = messages_from_context(context)
    assert [message.to_message_dict() for message in messages] == context
    assert validate_context(context) == ()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"content": "x"}, "'role' of a message is one of"),
        ({"role": "robot", "content": "x"}, "not 'robot'"),
        ({"role": "user", "content": 5}, "'content' of a message is a text, not int"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "A tool call is"),
        ({"role": "assistant", "tool_calls": "look"}, "is a list of objects"),
        ({"role": "tool", "content": "x"}, "without 'tool_call_id'"),
    ],
)
def test_what_no_model_takes_is_refused_with_its_place(
    message: dict[str, JsonValue], words: str
) -> None:
    """A-75."""
    with pytest.raises(UsageError) as caught:
        validate_context([{"role": "user", "content": "Hi"}, message])
    assert caught.value.error_code == "bad-message"
    assert "Message 1 of the context" in str(caught.value)
    assert words in str(caught.value)


def test_what_is_only_odd_is_told() -> None:
    assert validate_context([ANSWER]) == ("message 0 answers 'c1', which nothing called",)
    assert validate_context([CALL]) == ("the call 'c1' of 'look' has no answer",)
