"""The messages of each conversation, with the way back after a failed call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from attrs import frozen

from minions.contracts.messages import Message

__all__ = ["MemorySnapshot", "ModelMemory"]


@frozen(kw_only=True)
class MemorySnapshot:
    """An opaque mark: a position in one conversation, not a copy of it."""

    conversation_id: str
    position: int
    stamp: int
    """Tells marks apart whose stretch of the conversation was rewritten since."""


class ModelMemory(ABC):
    """Conversations by id; an unknown id is an empty conversation, not an error."""

    @abstractmethod
    def prompt_messages(self, conversation_id: str) -> tuple[Message, ...]:
        """What the next prompt of this conversation holds, oldest first."""

    @abstractmethod
    def save_prompt(self, conversation_id: str, messages: Iterable[Message]) -> None:
        """Append what was put to the model."""

    @abstractmethod
    def save_chat_response(self, conversation_id: str, message: Message) -> None:
        """Append what the model said."""

    @abstractmethod
    def save_tool_response(self, conversation_id: str, message: Message) -> None:
        """Append the answer to one tool call."""

    @abstractmethod
    def replace_message(self, conversation_id: str, index: int, message: Message) -> None:
        """Edit an existing message, counted from 0; a later restore undoes it.

        Raises:
            IndexError: There is no such message.
        """

    @abstractmethod
    def take_snapshot(self, conversation_id: str) -> MemorySnapshot:
        """Mark the present state. Cheap: a position, not a copy of the messages."""

    @abstractmethod
    def restore_snapshot(self, snapshot: MemorySnapshot) -> None:
        """Forget everything since `snapshot`, exactly, and any number of times.

        Raises:
            StaleSnapshotError: An older mark was restored in between.
        """
