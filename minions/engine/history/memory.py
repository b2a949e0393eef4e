"""Conversations of steps in memory, with the same messages live or folded from the journal.

Of a long tool result a conversation holds the beginning, and how the model reads the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, assert_never

from minions.contracts.journal.facts import (
    BackEdge,
    BatchCallFact,
    ConversationStarted,
    DecisionFact,
    ExamplesPinned,
    Fact,
    FileChangeFact,
    FileRollbackFact,
    MarkFact,
    MessageRecorded,
    ModelCallFinished,
    ModelCallLoss,
    PlanLookup,
    PlanReplaced,
    RecipeFact,
    Rollback,
    RouteFailed,
    RouteFinished,
    RunBeginning,
    RunFinished,
    RunLimitReached,
    RunRejected,
    ScoreFact,
    SessionCut,
    SessionForked,
    SessionOpened,
    StepEnd,
    StepStarted,
    StoredPrefixFact,
    ToolCallFailed,
    ToolCallFinished,
    ToolCallInDoubt,
    ToolCallInterrupted,
    ToolCallOutcome,
    ToolCallStarted,
    UnreadableFact,
    WarningRecorded,
    given,
)
from minions.contracts.journal.journal import JournalEntry, unreadable_entry
from minions.contracts.messages import NO_MESSAGES, Conversation, Message, calls_length, tool_result
from minions.contracts.session_views import MemorySnapshot, ModelMemory
from minions.data.errors import StaleSnapshotError
from minions.data.json_values import dumps
from minions.engine.history.entry_checks import fact_in


class _Conversation:
    """A list of operations on one conversation, and the messages that result."""

    def __init__(self) -> None:
        self.operations: list[tuple[int, Message, int | None]] = []
        """Stamp, message, and the index of the message that it replaces; None: it appends."""
        self.messages: list[Message] = []
        self.next_stamp = 1
        self._edits = 0
        """Operations that replace a message."""
        self._characters = self._texts = self._attached = 0
        self._shown: Conversation | None = NO_MESSAGES
        """The messages as they were shown last; None: they have changed since."""

    def shown(self) -> Conversation:
        """The messages, with what they add up to."""
        if self._shown is None:
            self._shown = shown = Conversation(self.messages)
            shown.characters, shown.texts = self._characters, self._texts
            shown.attached = self._attached
        return self._shown

    def _count(self, message: Message, sign: int) -> None:
        text = len(message.content) if message.content else 0
        self._texts += sign * text
        calls = calls_length(message) if message.tool_calls else 0
        self._characters += sign * (text + calls)
        if message.attachments:
            self._attached += sign * len(message.attachments)
        self._shown = None

    def begin(self, messages: Conversation) -> None:
        """The first messages, which are counted."""
        self.messages = list(messages)
        self.operations = [(at, each, None) for at, each in enumerate(messages, 1)]
        self.next_stamp = len(messages) + 1
        self._characters, self._texts = messages.characters, messages.texts
        self._attached, self._shown = messages.attached, messages

    def apply(self, message: Message, replaces: int | None = None) -> None:
        self.operations.append((self.next_stamp, message, replaces))
        self.next_stamp += 1
        if replaces is None:
            self.messages.append(message)
            self._count(message, 1)
        else:
            self._show(message, replaces)

    def _show(self, message: Message, replaces: int | None) -> None:
        if replaces is None:
            self.messages.append(message)
        else:
            self._count(self.messages[replaces], -1)
            self.messages[replaces] = message
            self._edits += 1
        self._count(message, 1)

    def stamp_at(self, position: int) -> int | None:
        """The stamp of the newest operation before `position`; None: there are fewer operations."""
        if position > len(self.operations):
            return None
        return self.operations[position - 1][0] if position else 0

    def cut(self, position: int) -> None:
        removed = self.operations[position:]
        if not removed:
            return
        del self.operations[position:]
        if all(replaces is None for _, _, replaces in removed):
            del self.messages[position - self._edits :]
            for _, message, _ in removed:
                self._count(message, -1)
            return
        self.messages, self._shown = [], None
        self._characters = self._texts = self._attached = self._edits = 0
        for _, message, replaces in self.operations:
            self._show(message, replaces)


class ConversationMemory(ModelMemory):
    """Conversations in memory; a snapshot is a position in the list of operations.

    There is no lock: one event loop owns the memory.
    """

    def __init__(self) -> None:
        self._conversations: dict[str, _Conversation] = {}

    def prompt_messages(self, conversation_id: str) -> tuple[Message, ...]:
        """All messages of the conversation, oldest first."""
        conversation = self._conversations.get(conversation_id)
        return conversation.shown() if conversation else ()

    def save_prompt(self, conversation_id: str, messages: Iterable[Message]) -> None:
        """Append the messages that are put to the model."""
        conversation = self._open(conversation_id)
        if isinstance(messages, Conversation) and conversation.next_stamp == 1:
            conversation.begin(messages)
            return
        for message in messages:
            conversation.apply(message)

    def save_chat_response(self, conversation_id: str, message: Message) -> None:
        """Append the answer of the model."""
        self._open(conversation_id).apply(message)

    def save_tool_response(self, conversation_id: str, message: Message) -> None:
        """Append the result of one tool call."""
        self._open(conversation_id).apply(message)

    def replace_message(self, conversation_id: str, index: int, message: Message) -> None:
        """Replace one message; a restore to an earlier snapshot undoes it."""
        conversation = self._open(conversation_id)
        if not 0 <= index < len(conversation.messages):
            raise IndexError(f"conversation {conversation_id!r} has no message {index}")
        conversation.apply(message, index)

    def take_snapshot(self, conversation_id: str) -> MemorySnapshot:
        """Mark the present state, at constant cost."""
        conversation = self._open(conversation_id)
        position = len(conversation.operations)
        stamp = conversation.operations[-1][0] if position else 0
        return MemorySnapshot(conversation_id=conversation_id, position=position, stamp=stamp)

    def restore_snapshot(self, snapshot: MemorySnapshot) -> None:
        """Remove everything after the snapshot."""
        conversation = self._open(snapshot.conversation_id)
        if conversation.stamp_at(snapshot.position) != snapshot.stamp:
            raise StaleSnapshotError(
                f"The mark at {snapshot.position} of conversation {snapshot.conversation_id!r} is "
                "void: an older mark was restored after it was taken. Take a new one."
            )
        conversation.cut(snapshot.position)

    def _open(self, conversation_id: str) -> _Conversation:
        found = self._conversations.get(conversation_id)
        if found is None:
            found = self._conversations[conversation_id] = _Conversation()
        return found


def tool_content(call: ToolCallOutcome) -> str:
    """The text that the model reads of a recorded tool result."""
    if call.content is not None:
        return call.content
    if call.error is not None:
        return f"Error: {call.error.get('message')}"
    return dumps(given(call.value))


def memory_from(entries: Iterable[JournalEntry]) -> ConversationMemory:
    """The conversations that result from these facts."""
    memory = ConversationMemory()
    calls: dict[str, ToolCallOutcome] = {}
    for entry in entries:
        apply_entry(memory, calls, entry)
    return memory


def apply_entry(
    memory: ConversationMemory,
    calls: dict[str, ToolCallOutcome],
    entry: JournalEntry,
    *,
    history: Sequence[Message] = (),
) -> None:
    """Add to `memory` what one fact adds to a conversation.

    Args:
        calls: Tool calls that ended, by key; updated here.
        history: The messages of the session when the run began.
    """
    match fact := entry.fact:
        case StepStarted() | ConversationStarted():
            messages = list(fact.messages or ())
            if isinstance(fact, StepStarted) and fact.history is not None:
                at, count = fact.history
                messages[at:at] = history[:count]
            memory.save_prompt(fact.conversation or "", messages)
        case ModelCallFinished(message=message):
            memory.save_chat_response(conversation_of(fact), message)
        case ToolCallFinished() | ToolCallFailed():
            calls[entry.key] = fact
        case MessageRecorded():
            message = recorded_message(entry, calls.get(fact.call or ""))
            memory.save_prompt(conversation_of(fact), [message])
        case Rollback(conversation=conversation_id, position=position):
            conversation = memory._open(conversation_id)  # noqa: SLF001  # same module
            conversation.cut(position)
        case (
            RunBeginning() | RunFinished() | RunLimitReached() | RunRejected() | StepEnd()
            | ModelCallLoss() | ToolCallStarted() | ToolCallInterrupted() | ToolCallInDoubt()
            | DecisionFact() | BackEdge() | PlanLookup() | PlanReplaced() | RouteFinished()
            | RouteFailed() | WarningRecorded() | FileChangeFact() | FileRollbackFact() | MarkFact()
            | ScoreFact() | ExamplesPinned() | RecipeFact() | SessionOpened() | SessionForked()
            | SessionCut() | BatchCallFact() | UnreadableFact() | StoredPrefixFact()
        ):  # fmt: skip
            pass  # it adds no message
        case _:
            assert_never(fact)


def conversation_of(fact: Fact | UnreadableFact) -> str:
    """The id of the conversation that the fact adds to; empty: it names none."""
    match fact:
        case (
            StepStarted(conversation=named) | ConversationStarted(conversation=named)
            | ModelCallFinished(conversation=named) | MessageRecorded(conversation=named)
            | Rollback(conversation=named)
        ):  # fmt: skip
            return named or ""
        case _:
            return ""


def recorded_message(entry: JournalEntry, call: ToolCallOutcome | None) -> Message:
    """The message of a row; of a tool result the one made of the call's recorded end.

    Raises:
        JournalError: `corrupt-entry`; the row has no message, and the call has no recorded end.
    """
    if isinstance(entry.fact, ModelCallFinished):
        return entry.fact.message
    fact = fact_in(entry, MessageRecorded)
    if fact.message is not None:
        return fact.message
    if call is None:
        raise unreadable_entry(
            entry, f"no end of the tool call '{fact.call}' is recorded before it"
        )
    content, call_id = tool_content(call), fact.tool_call_id or ""
    if fact.shown is not None:
        content = shown_text(content, fact.shown, call_id)
    return tool_result(content, tool_call_id=call_id, name=fact.name)


READ_RESULT: Final = "result__read"
"""Name of the engine's own tool that reads a long result in pieces."""


def shown_text(content: str, characters: int, call_id: str) -> str:
    """The beginning of a tool result, and how to read on.

    Args:
        characters: How many of the content's characters are shown.
        call_id: The id of the tool call, by which the model refers to its result.
    """
    total = len(content)
    return (
        f"{content[:characters]}\n[The first {characters} of {total} characters. To read on, call "
        f'{READ_RESULT} with call "{call_id}" and start {characters}.]'
    )


def piece_of(content: str, start: int, characters: int) -> str:
    """A piece of a tool result, with the place from which to read on."""
    end = min(len(content), start + characters)
    rest = "the end" if end == len(content) else f"read on from start {end}"
    return f"{content[start:end]}\n[Characters {start} to {end} of {len(content)}: {rest}.]"
