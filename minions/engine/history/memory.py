"""Conversations, live or folded from the journal: both come to the same messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from minions.contracts.codec import decode
from minions.contracts.errors import StaleSnapshotError
from minions.contracts.journal import JournalEntry
from minions.contracts.json_values import JsonValue, dumps
from minions.contracts.memory import MemorySnapshot, ModelMemory
from minions.contracts.messages import Message, tool_result

__all__ = ["ConversationMemory", "apply_entry", "memory_from", "tool_content"]


class _Conversation:
    """Operations in order; the messages are what they amount to."""

    def __init__(self) -> None:
        self.operations: list[tuple[int, Message, int | None]] = []
        """Stamp, message, and the index it replaces; None appends."""
        self.messages: list[Message] = []
        self.next_stamp = 1

    def apply(self, message: Message, replaces: int | None = None) -> None:
        self.operations.append((self.next_stamp, message, replaces))
        self.next_stamp += 1
        self._show(message, replaces)

    def _show(self, message: Message, replaces: int | None) -> None:
        if replaces is None:
            self.messages.append(message)
        else:
            self.messages[replaces] = message

    def stamp_at(self, position: int) -> int | None:
        """Of the newest operation before `position`; None where there are fewer."""
        if position > len(self.operations):
            return None
        return self.operations[position - 1][0] if position else 0

    def cut(self, position: int) -> None:
        edited = any(replaces is not None for _, _, replaces in self.operations[position:])
        del self.operations[position:]
        if not edited:
            del self.messages[position - self._edits() :]
            return
        self.messages = []
        for _, message, replaces in self.operations:
            self._show(message, replaces)

    def _edits(self) -> int:
        return sum(1 for _, _, replaces in self.operations if replaces is not None)


class ConversationMemory(ModelMemory):
    """In memory; a mark is a position in the list of operations. No lock: one loop owns it."""

    def __init__(self) -> None:
        self._conversations: dict[str, _Conversation] = {}

    def prompt_messages(self, conversation_id: str) -> tuple[Message, ...]:
        """All messages of the conversation."""
        conversation = self._conversations.get(conversation_id)
        return tuple(conversation.messages) if conversation else ()

    def save_prompt(self, conversation_id: str, messages: Iterable[Message]) -> None:
        """Append what is put to the model."""
        conversation = self._open(conversation_id)
        for message in messages:
            conversation.apply(message)

    def save_chat_response(self, conversation_id: str, message: Message) -> None:
        """Append what the model said."""
        self._open(conversation_id).apply(message)

    def save_tool_response(self, conversation_id: str, message: Message) -> None:
        """Append the answer to one tool call."""
        self._open(conversation_id).apply(message)

    def replace_message(self, conversation_id: str, index: int, message: Message) -> None:
        """Edit; a restore to an earlier mark undoes it."""
        conversation = self._open(conversation_id)
        if not 0 <= index < len(conversation.messages):
            raise IndexError(f"conversation {conversation_id!r} has no message {index}")
        conversation.apply(message, index)

    def take_snapshot(self, conversation_id: str) -> MemorySnapshot:
        """Constant cost."""
        conversation = self._open(conversation_id)
        position = len(conversation.operations)
        stamp = conversation.stamp_at(position) or 0
        return MemorySnapshot(conversation_id=conversation_id, position=position, stamp=stamp)

    def restore_snapshot(self, snapshot: MemorySnapshot) -> None:
        """Cut back to the mark."""
        conversation = self._open(snapshot.conversation_id)
        if conversation.stamp_at(snapshot.position) != snapshot.stamp:
            raise StaleSnapshotError(
                f"The mark at {snapshot.position} of conversation {snapshot.conversation_id!r} is "
                "void: an older mark was restored after it was taken. Take a new one."
            )
        conversation.cut(snapshot.position)

    def _open(self, conversation_id: str) -> _Conversation:
        return self._conversations.setdefault(conversation_id, _Conversation())


def tool_content(body: Mapping[str, JsonValue]) -> str:
    """What the model reads of a recorded tool result."""
    if "content" in body:
        return cast(str, body["content"])
    error = cast("Mapping[str, JsonValue] | None", body.get("error"))
    if error is not None:
        return f"Error: {error['message']}"
    return dumps(body.get("value"))


def memory_from(entries: Iterable[JournalEntry]) -> ConversationMemory:
    """The conversations that these facts amount to."""
    memory = ConversationMemory()
    contents: dict[str, str] = {}
    for entry in entries:
        apply_entry(memory, contents, entry)
    return memory


def apply_entry(
    memory: ConversationMemory,
    contents: dict[str, str],
    entry: JournalEntry,
    *,
    history: Sequence[Message] = (),
) -> None:
    """What one fact adds.

    Args:
        history: What the session's conversation held when the run began.
        contents: Tool results by key that no message has named yet; kept up to date here.
    """
    body = entry.body
    conversation_id = cast(str, body.get("conversation", ""))
    match entry.kind, entry.state:
        case "step" | "conversation", "started":
            prompt = cast("list[JsonValue]", body.get("messages", []))
            messages = [decode(item, Message) for item in prompt]
            at, count = cast("Sequence[int]", body.get("history") or (0, 0))
            messages[at:at] = history[:count]
            memory.save_prompt(conversation_id, messages)
        case "model_call", "finished":
            memory.save_chat_response(conversation_id, decode(body["message"], Message))
        case "tool_call", "finished" | "failed":
            contents[entry.key] = tool_content(body)
        case "message", _:
            memory.save_prompt(conversation_id, [_recorded_message(body, contents)])
        case "rollback", _:
            conversation = memory._open(conversation_id)  # noqa: SLF001  # same module
            conversation.cut(cast(int, body["position"]))
        case _:
            pass


def _recorded_message(body: Mapping[str, JsonValue], contents: Mapping[str, str]) -> Message:
    if "message" in body:
        return decode(body["message"], Message)
    return tool_result(
        contents[cast(str, body["call"])],
        tool_call_id=cast(str, body["tool_call_id"]),
        name=cast("str | None", body.get("name")),
    )
