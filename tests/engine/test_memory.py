"""Conversations against the simplest thing that could be right: whole copies. A-30."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from minions.contracts.messages import (
    Attachment,
    Conversation,
    Message,
    ToolCallRequest,
    assistant,
    tool_result,
    user,
)
from minions.contracts.session_views import MemorySnapshot
from minions.data.errors import StaleSnapshotError
from minions.engine.history.memory import ConversationMemory

PICTURE = Attachment(media_type="image/png", digest="d", size=1)
CONVERSATIONS = st.sampled_from(["one", "two"])


class MemoryAgainstCopies(RuleBasedStateMachine):
    """A mark is a copy of the messages, void once an older one was restored over it."""

    marks = Bundle("marks")

    @initialize()
    def start(self) -> None:
        self.memory = ConversationMemory()
        self.messages: dict[str, list[Message]] = {"one": [], "two": []}
        self.copies: dict[int, list[Message]] = {}
        self.ages: dict[str, list[int]] = {"one": [], "two": []}
        """Of each conversation the marks that still hold, with the number of changes before."""
        self.changes: dict[str, int] = {"one": 0, "two": 0}
        self.taken: list[tuple[MemorySnapshot, str, int]] = []
        self.count = 0

    def _text(self) -> str:
        self.count += 1
        return f"message {self.count}"

    @rule(conversation=CONVERSATIONS, kind=st.sampled_from(["prompt", "answer", "tool"]))
    def append(self, conversation: str, kind: str) -> None:
        text = self._text()
        asked = ToolCallRequest(id="c", name="look", arguments=text)
        message = assistant(text, tool_calls=[asked][: self.count % 2])
        if kind == "prompt":
            self.memory.save_prompt(conversation, [user(text), message])
            self.messages[conversation].append(user(text))
            self.changes[conversation] += 1
        elif kind == "answer":
            self.memory.save_chat_response(conversation, message)
        else:
            message = tool_result(text, tool_call_id="c")
            self.memory.save_tool_response(conversation, message)
        self.messages[conversation].append(message)
        self.changes[conversation] += 1

    @rule(conversation=CONVERSATIONS, data=st.data())
    def replace(self, conversation: str, data: st.DataObject) -> None:
        messages = self.messages[conversation]
        index = data.draw(st.integers(-2, len(messages) + 1))
        message = evolve(user(self._text()), attachments=(PICTURE,))
        if 0 <= index < len(messages):
            self.memory.replace_message(conversation, index, message)
            messages[index] = message
            self.changes[conversation] += 1
        else:
            with pytest.raises(IndexError):
                self.memory.replace_message(conversation, index, message)

    @rule(target=marks, conversation=CONVERSATIONS)
    def take(self, conversation: str) -> int:
        mark = len(self.taken)
        snapshot = self.memory.take_snapshot(conversation)
        self.taken.append((snapshot, conversation, self.changes[conversation]))
        self.copies[mark] = list(self.messages[conversation])
        return mark

    @rule(mark=marks)
    def restore(self, mark: int) -> None:
        snapshot, conversation, changes = self.taken[mark]
        if mark not in self.copies:
            with pytest.raises(StaleSnapshotError):
                self.memory.restore_snapshot(snapshot)
            return
        self.memory.restore_snapshot(snapshot)
        self.messages[conversation] = list(self.copies[mark])
        self.changes[conversation] = changes
        for other, (_, where, changes_then) in enumerate(self.taken):
            if where == conversation and changes_then > changes:
                self.copies.pop(other, None)

    @rule(mark=consumes(marks))
    def restore_twice(self, mark: int) -> None:
        self.restore(mark)
        self.restore(mark)

    @precondition(lambda self: len(self.messages["one"]) > 0)
    @rule()
    def what_was_read_stays_as_it_was(self) -> None:
        before = self.memory.prompt_messages("one")
        copy = list(before)
        self.append("one", "answer")
        assert list(before) == copy

    @invariant()
    def memory_holds_what_the_copies_say(self) -> None:
        for conversation, messages in self.messages.items():
            held = self.memory.prompt_messages(conversation)
            assert held == tuple(messages)
            counted, again = Conversation.of(held), Conversation.of(messages)
            assert counted.characters == again.characters
            assert (counted.texts, counted.attached) == (again.texts, again.attached)


MemoryAgainstCopies.TestCase.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None
)
TestMemoryAgainstCopies = MemoryAgainstCopies.TestCase


def test_restore_undoes_appends_and_edits_exactly() -> None:
    """A-30."""
    memory = ConversationMemory()
    memory.save_prompt("c", [user("one"), user("two")])
    mark = memory.take_snapshot("c")
    memory.replace_message("c", 0, user("ONE"))
    memory.save_chat_response("c", assistant("three"))
    memory.replace_message("c", 2, assistant("THREE"))
    memory.restore_snapshot(mark)
    assert memory.prompt_messages("c") == (user("one"), user("two"))
    memory.restore_snapshot(mark)
    assert memory.prompt_messages("c") == (user("one"), user("two"))


def test_an_edit_before_the_mark_stays() -> None:
    """A-30."""
    memory = ConversationMemory()
    memory.save_prompt("c", [user("one")])
    memory.replace_message("c", 0, user("ONE"))
    mark = memory.take_snapshot("c")
    memory.save_chat_response("c", assistant("two"))
    memory.restore_snapshot(mark)
    assert memory.prompt_messages("c") == (user("ONE"),)


def test_other_conversations_are_untouched_by_a_restore() -> None:
    """A-30."""
    memory = ConversationMemory()
    mark = memory.take_snapshot("c")
    memory.save_prompt("c", [user("mine")])
    memory.save_prompt("other", [user("theirs")])
    memory.restore_snapshot(mark)
    assert memory.prompt_messages("c") == ()
    assert memory.prompt_messages("other") == (user("theirs"),)


def test_a_mark_over_which_an_older_one_was_restored_is_void() -> None:
    """A-30: though as many messages stand there again."""
    memory = ConversationMemory()
    old = memory.take_snapshot("c")
    memory.save_prompt("c", [user("one")])
    young = memory.take_snapshot("c")
    memory.restore_snapshot(old)
    memory.save_prompt("c", [user("another one")])
    with pytest.raises(StaleSnapshotError, match="Take a new one"):
        memory.restore_snapshot(young)
    assert memory.prompt_messages("c") == (user("another one"),)
    memory.restore_snapshot(old)
    assert memory.prompt_messages("c") == ()


def test_an_unknown_conversation_is_an_empty_one() -> None:
    """A-30."""
    memory = ConversationMemory()
    assert memory.prompt_messages("nobody") == ()
    memory.restore_snapshot(memory.take_snapshot("nobody"))
    with pytest.raises(IndexError):
        memory.replace_message("nobody", 0, user("x"))
