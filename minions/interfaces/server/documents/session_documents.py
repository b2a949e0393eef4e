"""Bodies of requests and responses about sessions, as classes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from attrs import field, frozen

from minions.data.json_values import JsonValue
from minions.interfaces.server.documents.shared_documents import (
    MAYBE_TEXT,
    STATE,
    USER,
    JsonObject,
    number_schema,
)

_SEQUENCE: Final[Mapping[str, JsonObject]] = {
    "schema": {"type": "integer", "minimum": 1, "maximum": 9_007_199_254_740_991}
}
_MAYBE_SEQUENCE: Final[Mapping[str, JsonObject]] = {
    "schema": {"type": ["integer", "null"], "minimum": 1, "maximum": 9_007_199_254_740_991}
}


# --- requests -------------------------------------------------------------------------------------


@frozen(kw_only=True)
class NewSession:
    """A session to create."""

    recipe: str = field(metadata={"schema": {"type": "string", "minLength": 1, "maxLength": 200}})
    """The id of the recipe that each turn runs."""
    inputs: JsonObject = field(factory=dict)
    """Inputs of each turn, besides the message."""
    name: str | None = field(
        default=None, metadata={"schema": {"type": ["string", "null"], "maxLength": 200}}
    )
    user: str | None = field(default=None, metadata=USER)
    """The label of the user to whom the session belongs, such as an account's number."""


@frozen(kw_only=True)
class MessageRequest:
    """A message of the user."""

    content: str = field(metadata={"schema": {"type": "string", "minLength": 1}})
    model: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The model that answers this turn, one of the `models` of `GET /system`; None: the recipe's
    own, or the configured one."""
    user: str | None = field(default=None, metadata=USER)
    """The label of the user for whom it runs, whose daily budget it spends from; None: none."""


@frozen(kw_only=True)
class RetryRequest:
    """The first message to regenerate."""

    sequence: int = field(metadata=_SEQUENCE)
    user: str | None = field(default=None, metadata=USER)
    """As of a message; None: that of the session's last run."""


@frozen(kw_only=True)
class ForkRequest:
    """The last step that the fork has in common with its parent."""

    sequence: int = field(metadata=_SEQUENCE)
    name: str | None = field(
        default=None, metadata={"schema": {"type": ["string", "null"], "maxLength": 200}}
    )


@frozen(kw_only=True)
class SessionsPage:
    """Which part of the list of sessions to return, and a filter."""

    limit: int = field(default=100, metadata=number_schema(1, 1_000))
    offset: int = field(default=0, metadata=number_schema(0))
    text: str | None = field(default=None, metadata=MAYBE_TEXT)
    """Words, each of which is part of the name, the recipe or the id of the session."""
    project: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The folder of the project in which the session was made."""
    tree: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The id of a session: only the sessions of its fork tree, parents first."""


@frozen(kw_only=True)
class StepRange:
    """Which steps to return; both ends are included."""

    start_seq: int | None = field(default=None, metadata=_MAYBE_SEQUENCE)
    end_seq: int | None = field(default=None, metadata=_MAYBE_SEQUENCE)
    limit: int = field(
        default=100, metadata={"schema": {"type": "integer", "minimum": 1, "maximum": 1_000}}
    )


@frozen(kw_only=True)
class StepsFrom:
    """The first step to remove; all after it are removed, too."""

    start_seq: int = field(metadata=_SEQUENCE)


# --- answers --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class SessionView:
    """A session. Unknown values are absent."""

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
    """The state of its last run."""
    is_active: bool
    """Whether this process executes that run now."""
    step_count: int | None = None
    """The number of messages; only in the response about one session."""
    position: int | None = None
    """The position of its newest row, after which its events can be followed; as `step_count`."""
    project: str | None = None
    """The folder of the project in which it was made; not told to a token that sees one user's
    sessions alone."""


@frozen(kw_only=True)
class Sessions:
    """A part of the list of sessions, the newest first."""

    sessions: tuple[SessionView, ...]
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class StepView:
    """A message of a session. Unknown values are absent."""

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
    """The number of all steps of the session."""
    session_id: str


@frozen(kw_only=True)
class CutView:
    """The steps that were removed from the conversation."""

    deleted_count: int
    session_id: str
    start_seq: int


@frozen(kw_only=True)
class ForkView:
    """A new session that was forked from another one."""

    new_session_id: str
    original_session_id: str
    forked_at_sequence: int
    copied_steps: int


@frozen(kw_only=True)
class ContextView:
    """The context that a model gets of the session, and a summary."""

    session_id: str
    messages: tuple[JsonObject, ...]
    """The messages in the provider's form, oldest first."""
    summary: Mapping[str, JsonValue]
