"""Messages in the provider's form, and bundles of them."""

from __future__ import annotations

import pytest

from minions.contracts.messages import (
    Message,
    MessageBundle,
    MessageRole,
    ToolCallRequest,
    assistant,
    goal,
    system,
    tool_result,
    user,
)


def test_the_providers_form_holds_what_is_set_and_nothing_else() -> None:
    call = ToolCallRequest(id="c1", name="look", arguments='{"a": 1}')
    assert system("s").to_message_dict() == {"role": "system", "content": "s"}
    assert assistant("").to_message_dict() == {"role": "assistant", "content": ""}
    assert assistant(tool_calls=[call]).to_message_dict() == {
        "role": "assistant",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "look", "arguments": '{"a": 1}'},
            }
        ],
    }
    assert tool_result("r", tool_call_id="c1", name="look").to_message_dict() == {
        "role": "tool",
        "content": "r",
        "tool_call_id": "c1",
        "name": "look",
    }


def test_a_goal_speaks_as_the_user_and_stays_a_goal() -> None:
    assert goal("aim").role is MessageRole.GOAL
    assert goal("aim").to_message_dict() == user("aim").to_message_dict()


def test_a_role_is_read_from_its_word() -> None:
    assert Message(role="user", content="x") == user("x")
    with pytest.raises(ValueError, match="'usher' is not a valid MessageRole"):
        Message(role="usher")


def test_a_bundle_holds_its_messages_in_the_order_given() -> None:
    given = [user("1"), system("2"), goal("3"), system("4")]
    bundle = MessageBundle(given)
    assert bundle.messages == tuple(given)
    assert bundle.first(MessageRole.SYSTEM) == system("2")
    assert bundle.first(MessageRole.TOOL) is None


def test_a_bundle_from_texts_leaves_out_what_is_empty() -> None:
    assert MessageBundle.of() == MessageBundle()
    assert MessageBundle.of(user="u", system="s", goal="").messages == (system("s"), user("u"))
