"""Sessions: conversations as steps, each a native chat message with what is known about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import attrs
from attrs import field, frozen

from minions.contracts.json_values import JsonValue
from minions.contracts.messages import Message, MessageRole, ToolCallRequest, as_role

__all__ = ["AgentHooks", "Session", "SessionStep", "StepMetrics"]


@frozen(kw_only=True)
class StepMetrics:
    """What one message took; None where it does not apply or nobody counted."""

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
    tool_exec_time_ms: float | None = None
    """Of an answer to a tool call: how long the tool took."""

    @classmethod
    def of(cls, values: Mapping[str, JsonValue]) -> StepMetrics:
        """Of a recorded row; what is no metric is left out."""
        known = {name: values[name] for name in _METRICS if values.get(name) is not None}
        return cls(**known)  # type: ignore[arg-type]  # rows hold what this class wrote

    def to_json(self) -> dict[str, JsonValue]:
        """What is known."""
        values = ((name, getattr(self, name)) for name in _METRICS)
        return {name: value for name, value in values if value is not None}


_METRICS = tuple(attribute.name for attribute in attrs.fields(StepMetrics))


def _as_calls(
    calls: Iterable[ToolCallRequest | Mapping[str, JsonValue]] | None,
) -> tuple[ToolCallRequest, ...]:
    """Also the provider's form, `{id, type, function: {name, arguments}}`; None means none."""
    return tuple(
        call if isinstance(call, ToolCallRequest) else ToolCallRequest.from_message_dict(call)
        for call in calls or ()
    )


@frozen(kw_only=True)
class SessionStep:
    """One message of a conversation: the provider's own form, and where, when and at what cost."""

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
    """Given when it is stored, where it is empty."""
    run_id: str = ""
    metrics: StepMetrics = field(factory=StepMetrics)
    created_at: datetime | None = None
    """UTC; None: not stored yet."""

    @property
    def message(self) -> Message:
        """The message alone."""
        return Message(
            role=self.role,
            content=self.content,
            tool_calls=self.tool_calls,
            tool_call_id=self.tool_call_id,
            name=self.name,
        )

    def is_user_step(self) -> bool:
        """Whether a person said it."""
        return self.role is MessageRole.USER

    def is_assistant_step(self) -> bool:
        """Whether a model said it."""
        return self.role is MessageRole.ASSISTANT

    def is_tool_step(self) -> bool:
        """Whether it is what came of a tool call."""
        return self.role is MessageRole.TOOL

    def has_tool_calls(self) -> bool:
        """Whether a model asks for tools in it."""
        return self.is_assistant_step() and bool(self.tool_calls)

    def to_message_dict(self) -> dict[str, JsonValue]:
        """The provider's form: no metadata, and nothing that is None."""
        return self.message.to_message_dict()

    def to_json(self) -> dict[str, JsonValue]:
        """Everything that is known; what is not is absent. `sequence` is absent where it is 0."""
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
        return result


@frozen(kw_only=True)
class Session:
    """A conversation, or a place for runs, and where it came from."""

    id: str
    """`ses_…`."""
    recipe: str | None = None
    """Which one a turn runs; None: none was named, or its runs were of several."""
    name: str | None = None
    inputs: Mapping[str, JsonValue] = field(factory=dict)
    """Of each turn, beside the message."""
    created_at: datetime
    """UTC."""
    updated_at: datetime
    """UTC; when its last run began or ended, or when it was made."""
    parent_session_id: str | None = None
    forked_at_sequence: int | None = None
    """Of the parent's last message that it begins with."""
    last_run_id: str | None = None
    status: str | None = None
    """That of its last run, one of `RunState`; None: there was none."""

    def to_json(self) -> dict[str, JsonValue]:
        """What is known; None is absent."""
        values = {each.name: getattr(self, each.name) for each in attrs.fields(Session)}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in values.items()
            if value is not None
        }


class AgentHooks:
    """What an application wants to do around the turns of a `StepRunner`; each does nothing."""

    async def on_run_start(self, session_id: str, run_id: str, query: str | None) -> None:
        """Before the first event of a turn; `query` is None where it goes on with what is there."""

    async def on_run_end(self, session_id: str, run_id: str, response: JsonValue) -> None:
        """The turn came to its answer."""

    async def on_error(self, session_id: str, run_id: str, error: Mapping[str, JsonValue]) -> None:
        """The turn did not: `error` has `code` and `message`."""
