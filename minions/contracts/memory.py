"""The messages of each conversation, with snapshots for the return after a failed call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from attrs import frozen

from minions.contracts.messages import Message


@frozen(kw_only=True)
class MemorySnapshot:
    """An opaque mark of a position in one conversation; not a copy of it."""

    conversation_id: str
    position: int
    stamp: int
    """Distinguishes snapshots of one position if messages before it were replaced in between."""


class ModelMemory(ABC):
    """Conversations by id; an unknown id is an empty conversation, not an error."""

    @abstractmethod
    def prompt_messages(self, conversation_id: str) -> tuple[Message, ...]:
        """What the next prompt of this conversation holds, oldest first."""

    @abstractmethod
    def save_prompt(self, conversation_id: str, messages: Iterable[Message]) -> None:
        """Append messages that are sent to the model."""

    @abstractmethod
    def save_chat_response(self, conversation_id: str, message: Message) -> None:
        """Append the model's answer."""

    @abstractmethod
    def save_tool_response(self, conversation_id: str, message: Message) -> None:
        """Append the result of one tool call."""

    @abstractmethod
    def replace_message(self, conversation_id: str, index: int, message: Message) -> None:
        """Replace the message at `index`, counted from 0; restoring an earlier snapshot undoes
        it.

        Raises:
            IndexError: There is no such message.
        """

    @abstractmethod
    def take_snapshot(self, conversation_id: str) -> MemorySnapshot:
        """Mark the present position. Cheap: nothing is copied."""

    @abstractmethod
    def restore_snapshot(self, snapshot: MemorySnapshot) -> None:
        """Return the conversation exactly to `snapshot`; may be repeated.

        Raises:
            StaleSnapshotError: An older snapshot was restored in between.
        """
