"""Facts of conversations: model calls and messages."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from msgspec import UNSET, Struct, UnsetType

from minions.contracts.calls import StepCompletionInstruction
from minions.contracts.journal.facts.shape import (
    FactOfStep,
    FactShape,
    MessageCount,
    MessageNumber,
    Object,
)
from minions.contracts.messages import Message


class ConversationStarted(FactOfStep, frozen=True, kw_only=True):
    """A conversation outside of the model loop starts: of a Python
    step, or of parameter extraction.
    """

    kind: ClassVar[str] = "conversation"
    state: ClassVar[str] = "started"

    conversation: str
    messages: tuple[Message, ...]


class ModelCallFact(FactOfStep, frozen=True, kw_only=True):
    """A model call ended, with all its attempts."""

    phase: str | None = None
    """`model`, `final`, `repair` and so on."""
    attempts: int | None = None
    retried_usage: Object | None = None
    """Tokens of failed attempts that were retried."""
    output_mode: str | None = None
    """How the answer was constrained, as an `OutputMode`, or `text`: not at all. None: as the
    model's declared capabilities say.
    """
    tier: int | None = None
    """The index of the model among those of the step; None: the first."""


class ModelCallFinished(ModelCallFact, frozen=True, kw_only=True):
    """The model answered."""

    kind: ClassVar[str] = "model_call"
    state: ClassVar[str] = "finished"

    conversation: str | None = None
    message: Message
    sequence: MessageNumber | None = None
    """Number of the message in the session; None: not part of the session's conversation."""
    metrics: Object | None = None
    finish_reason: str | None | UnsetType = UNSET
    instruction: StepCompletionInstruction | None = None
    """What the answer says about completion of the step."""
    sections: Object | None = None
    """Input tokens by section of the prompt; None: it had no text."""
    summarises: int | None = None
    """Of a summary: how many of the conversation's oldest messages it is of."""
    of_session: bool = False
    """Whether these are the oldest messages of the session."""


class ModelCallLoss(ModelCallFact, frozen=True, kw_only=True):
    """A model call ended without an answer."""

    error: Object | None = None
    usage: Object | None = None


class ModelCallFailed(ModelCallLoss, frozen=True, kw_only=True):
    """All attempts at the call failed."""

    kind: ClassVar[str] = "model_call"
    state: ClassVar[str] = "failed"


class ModelCallInterrupted(ModelCallLoss, frozen=True, kw_only=True):
    """The call was cancelled."""

    kind: ClassVar[str] = "model_call"
    state: ClassVar[str] = "interrupted"


class SavedMessage(Struct, frozen=True, kw_only=True, gc=False):
    """What an application states about a message that it stores itself."""

    id: str | None = None
    run_id: str | None = None
    created_at: str | None = None
    """ISO 8601 date and time."""

    def __post_init__(self) -> None:
        if self.created_at is not None:
            datetime.fromisoformat(self.created_at)


class MessageRecorded(FactShape, frozen=True, kw_only=True):
    """A message enters a conversation: as text, or as a reference to the result of a tool call."""

    kind: ClassVar[str] = "message"
    state: ClassVar[str] = "recorded"

    step_id: str | None = None
    conversation: str | None = None
    message: Message | None = None
    call: str | None = None
    """Key of the tool call whose result the message is; None: the text is in `message`."""
    tool_call_id: str | None = None
    name: str | None = None
    """The tool's name."""
    shown: int | None = None
    """How many characters of the call's result the message shows; None: all."""
    sequence: MessageNumber | None = None
    saved: SavedMessage | None = None
    metrics: Object | None = None
    replaces: int | None = None
    """Sequence of the message that this one replaces; None: it is appended."""

    def __post_init__(self) -> None:
        if self.message is None and self.call is None:
            raise ValueError("neither `message` nor `call` holds the message's content")


class Rollback(FactShape, frozen=True, kw_only=True):
    """Messages of a failed attempt leave the conversation, which returns to an earlier position."""

    kind: ClassVar[str] = "rollback"
    state: ClassVar[str] = "recorded"

    step_id: str | None = None
    conversation: str
    position: int
    sequence: MessageCount | None = None
