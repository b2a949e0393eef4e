"""Sessions, their messages with what is known about each, and the memory of conversations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime

import attrs
from attrs import field, frozen

from minions.contracts.messages import (
    Attachment,
    Message,
    MessageRole,
    ProviderData,
    ToolCallRequest,
    as_role,
)
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue


@frozen(kw_only=True)
class StepMetrics(FieldsRepr):
    """Tokens, cost and time of one message; None where it does not apply or was not counted."""

    duration_ms: float | None = None
    first_token_latency_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    """Part of `input_tokens`."""
    cost_usd: float | None = None
    """None means unknown, never free."""
    model_name: str | None = None
    provider: str | None = None
    waited_ms: float | None = None
    """How long the call waited for its turn at the server; not part of `duration_ms`."""
    cached_from: str | None = None
    """The run whose recorded answer this is; None: the model was asked."""
    batch: str | None = None
    """The provider's id of the batch that it was answered in; None: the call was made alone."""
    confidence: float | None = None
    """The probability of the least probable value of the answer; None: it was not asked for."""
    least_sure_of: str | None = None
    """The JSON pointer of that value."""
    tool_exec_time_ms: float | None = None
    """How long the tool took; set on results of tool calls."""

    @classmethod
    def of(cls, values: Mapping[str, JsonValue]) -> StepMetrics:
        """The metrics of a recorded row; unknown members are ignored."""
        known = {name: values[name] for name in _METRICS if values.get(name) is not None}
        return cls(**known)  # type: ignore[arg-type]  # rows hold what this class wrote

    def to_json(self) -> dict[str, JsonValue]:
        """The metrics that are set."""
        values = ((name, getattr(self, name)) for name in _METRICS)
        return {name: value for name, value in values if value is not None}


_METRICS = tuple(attribute.name for attribute in attrs.fields(StepMetrics))


def _as_calls(
    calls: Iterable[ToolCallRequest | Mapping[str, JsonValue]] | None,
) -> tuple[ToolCallRequest, ...]:
    """Calls as a tuple, also from the provider's form `{id, type, function: {name, arguments}}`."""
    return tuple(
        call if isinstance(call, ToolCallRequest) else ToolCallRequest.from_message_dict(call)
        for call in calls or ()
    )


@frozen(kw_only=True)
class SessionStep(FieldsRepr):
    """One message of a session in the provider's form, with its place, time and metrics."""

    session_id: str
    role: MessageRole = field(converter=as_role)
    content: str | None = None
    tool_calls: tuple[ToolCallRequest, ...] = field(default=(), converter=_as_calls)
    """Only on assistant messages."""
    tool_call_id: str | None = None
    """Only on tool messages: which call this answers."""
    name: str | None = None
    sequence: int = 0
    """From 1, contiguous in its session. 0: not (yet) a part of the session's conversation."""
    id: str = ""
    """The message's id; where it is empty, one is generated when the message is stored."""
    run_id: str = ""
    metrics: StepMetrics = field(factory=StepMetrics)
    created_at: datetime | None = None
    """When it was stored, in UTC; None: not stored yet."""
    is_truncated: bool = False
    """Whether the answer was cut off at its token limit."""
    reasoning: str | None = None
    """What the model thought aloud before its answer; sent to no model."""
    provider_data: ProviderData | None = field(default=None, repr=False)
    """Goes back to the model that gave it, and nowhere else."""
    attachments: tuple[Attachment, ...] = ()
    """Images and files that are read before the text. Only on messages of a user."""

    @property
    def message(self) -> Message:
        """The message without the rest."""
        return Message(
            role=self.role,
            content=self.content,
            tool_calls=self.tool_calls,
            tool_call_id=self.tool_call_id,
            name=self.name,
            reasoning=self.reasoning,
            provider_data=self.provider_data,
            attachments=self.attachments,
        )

    def is_user_step(self) -> bool:
        """Whether it is a user's message."""
        return self.role is MessageRole.USER

    def is_assistant_step(self) -> bool:
        """Whether it is a model's answer."""
        return self.role is MessageRole.ASSISTANT

    def is_tool_step(self) -> bool:
        """Whether it is the result of a tool call."""
        return self.role is MessageRole.TOOL

    def has_tool_calls(self) -> bool:
        """Whether it is a model's answer with tool calls."""
        return self.is_assistant_step() and bool(self.tool_calls)

    def to_message_dict(self) -> dict[str, JsonValue]:
        """The provider's form: without metadata and without fields that are None."""
        return self.message.to_message_dict()

    def to_json(self) -> dict[str, JsonValue]:
        """All fields that are set; `sequence` is absent where it is 0."""
        result: dict[str, JsonValue] = {"session_id": self.session_id}
        if self.id:
            result["id"] = self.id
        if self.run_id:
            result["run_id"] = self.run_id
        if self.sequence:
            result["sequence"] = self.sequence
        result |= self.to_message_dict()
        if metrics := self.metrics.to_json():
            result["metrics"] = metrics
        if self.created_at is not None:
            result["created_at"] = self.created_at.isoformat()
        if self.is_truncated:
            result["is_truncated"] = True
        if self.reasoning is not None:
            result["reasoning"] = self.reasoning
        return result


@frozen(kw_only=True)
class Session(FieldsRepr):
    """A session: a conversation, or a container for runs, and where it was forked from."""

    id: str
    """`ses_…`."""
    recipe: str | None = None
    """The recipe that a turn runs; None: none was named, or its runs were of several recipes."""
    name: str | None = None
    inputs: Mapping[str, JsonValue] = field(factory=dict)
    """Inputs of each turn, in addition to the message."""
    created_at: datetime
    """When the session was made, in UTC."""
    updated_at: datetime
    """When its last run started or ended, or when it was made; UTC."""
    parent_session_id: str | None = None
    forked_at_sequence: int | None = None
    """Sequence of the parent's last message that it starts with; None: not forked."""
    last_run_id: str | None = None
    status: str | None = None
    """State of its last run, one of `RunState`; None: it has no run."""
    user: str | None = None
    """The label of the user to whom it belongs; None: it is the operator's."""
    project: str | None = None
    """The folder of the project in which it was made; None: not known."""

    def to_json(self) -> dict[str, JsonValue]:
        """The fields that are not None."""
        values = {each.name: getattr(self, each.name) for each in attrs.fields(Session)}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in values.items()
            if value is not None
        }


class AgentHooks:
    """Callbacks of an application around the turns of a `StepRunner`;
    by default they do nothing.
    """

    async def on_run_start(self, session_id: str, run_id: str, query: str | None) -> None:
        """Called before the first event of a turn.

        Args:
            query: The turn's message; None: the turn continues the conversation without a new
                message.
        """

    async def on_run_end(self, session_id: str, run_id: str, response: JsonValue) -> None:
        """Called when the turn completed with `response`."""

    async def on_error(self, session_id: str, run_id: str, error: Mapping[str, JsonValue]) -> None:
        """Called when the turn failed; `error` has `code` and `message`."""


@frozen(kw_only=True)
class MemorySnapshot(FieldsRepr):
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
