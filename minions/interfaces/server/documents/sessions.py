"""What requests about sessions bring and what their answers hold, as values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from attrs import field, frozen

from minions.contracts.json_values import JsonValue
from minions.interfaces.server.documents.common import MAYBE_TEXT, STATE, JsonObject, number_schema

__all__ = [
    "ContextView",
    "CutView",
    "ForkRequest",
    "ForkView",
    "MessageRequest",
    "NewSession",
    "RetryRequest",
    "SessionView",
    "Sessions",
    "SessionsPage",
    "StepRange",
    "StepView",
    "Steps",
    "StepsFrom",
]

_SEQUENCE: Final[Mapping[str, JsonObject]] = {
    "schema": {"type": "integer", "minimum": 1, "maximum": 9_007_199_254_740_991}
}
_MAYBE_SEQUENCE: Final[Mapping[str, JsonObject]] = {
    "schema": {"type": ["integer", "null"], "minimum": 1, "maximum": 9_007_199_254_740_991}
}


# --- requests -------------------------------------------------------------------------------------


@frozen(kw_only=True)
class NewSession:
    """A session that shall be."""

    recipe: str = field(metadata={"schema": {"type": "string", "minLength": 1, "maxLength": 200}})
    """The id of what each turn runs."""
    inputs: JsonObject = field(factory=dict)
    """Of each turn, beside the message."""
    name: str | None = field(
        default=None, metadata={"schema": {"type": ["string", "null"], "maxLength": 200}}
    )


@frozen(kw_only=True)
class MessageRequest:
    """What the user says."""

    content: str = field(metadata={"schema": {"type": "string", "minLength": 1}})


@frozen(kw_only=True)
class RetryRequest:
    """From where on the conversation is made anew."""

    sequence: int = field(metadata=_SEQUENCE)


@frozen(kw_only=True)
class ForkRequest:
    """The last step that the fork begins with."""

    sequence: int = field(metadata=_SEQUENCE)
    name: str | None = field(
        default=None, metadata={"schema": {"type": ["string", "null"], "maxLength": 200}}
    )


@frozen(kw_only=True)
class SessionsPage:
    """A part of the list of sessions."""

    limit: int = field(default=100, metadata=number_schema(1, 1_000))
    offset: int = field(default=0, metadata=number_schema(0))
    text: str | None = field(default=None, metadata=MAYBE_TEXT)
    """Words, each in the name, the recipe or the id of the session."""
    tree: str | None = field(default=None, metadata=MAYBE_TEXT)
    """A session: only it, those that it goes back to and their forks, parents first."""


@frozen(kw_only=True)
class StepRange:
    """Which steps; both ends included."""

    start_seq: int | None = field(default=None, metadata=_MAYBE_SEQUENCE)
    end_seq: int | None = field(default=None, metadata=_MAYBE_SEQUENCE)
    limit: int = field(
        default=100, metadata={"schema": {"type": "integer", "minimum": 1, "maximum": 1_000}}
    )


@frozen(kw_only=True)
class StepsFrom:
    """That step and all after it."""

    start_seq: int = field(metadata=_SEQUENCE)


# --- answers --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class SessionView:
    """A conversation, or a place for runs. What is not known is absent."""

    id: str
    recipe: str | None = None
    name: str | None = None
    inputs: JsonObject = field(factory=dict)
    created_at: datetime
    updated_at: datetime
    parent_session_id: str | None = None
    forked_at_sequence: int | None = None
    last_run_id: str | None = None
    status: str | None = field(default=None, metadata=STATE)
    """Of its last run."""
    is_active: bool
    """Whether that run goes on in this process."""
    step_count: int | None = None
    """Where one session is asked for."""
    position: int | None = None
    """Likewise, of its last row: its events go on behind it."""


@frozen(kw_only=True)
class Sessions:
    """A part of the sessions, the newest first."""

    sessions: tuple[SessionView, ...]
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class StepView:
    """One message of a session, with what is known about it. What is not known is absent."""

    session_id: str
    id: str | None = None
    run_id: str | None = None
    sequence: int | None = None
    role: str
    content: str | None = None
    tool_calls: tuple[JsonObject, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    metrics: JsonObject = field(factory=dict)
    created_at: datetime | None = None


@frozen(kw_only=True)
class Steps:
    """A part of the steps, in order."""

    steps: tuple[StepView, ...]
    total: int
    """Of the session."""
    session_id: str


@frozen(kw_only=True)
class CutView:
    """What was taken out of the conversation."""

    deleted_count: int
    session_id: str
    start_seq: int


@frozen(kw_only=True)
class ForkView:
    """A new session that begins like another one."""

    new_session_id: str
    original_session_id: str
    forked_at_sequence: int
    copied_steps: int


@frozen(kw_only=True)
class ContextView:
    """What a model reads of the session, and numbers about it."""

    session_id: str
    messages: tuple[JsonObject, ...]
    """In the provider's form, oldest first."""
    summary: Mapping[str, JsonValue]
