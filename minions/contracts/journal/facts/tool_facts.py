"""Facts of tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import UNSET, UnsetType

from minions.contracts.journal.facts.shape import FactOfStep, Object
from minions.data.json_values import JsonValue


class ToolCallFact(FactOfStep, frozen=True, kw_only=True):
    """A fact about a tool call."""

    kind: ClassVar[str] = "tool_call"

    call_id: str | None = None
    """The provider's id of the call."""
    tool: str
    pending: str | None = None
    """Where the session holds this call, if an earlier run left it without a result."""


class ToolCallStarted(ToolCallFact, frozen=True, kw_only=True):
    """The tool is about to be called. Committed before the call: from
    here on it may have had its effect.
    """

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "started"

    arguments: str
    """JSON text."""
    effect: str | None = None
    """The declared effect of a tool whose call a rollback does not undo. None: it changes nothing,
    or records what it changes; or an older version recorded the call.
    """
    filled: Sequence[str] | None = None
    """The parameters that a model filled in, of the call of a tool step; None: none."""


class ToolCallOutcome(ToolCallFact, frozen=True, kw_only=True):
    """A tool call ended, with a result or without."""

    attempts: int | None = None
    duration_ms: float | None = None
    content: str | None = None
    """The text that a model reads, where it differs from the text of `value`."""
    value: JsonValue | UnsetType = UNSET
    error: Object | None = None
    arguments: str | None = None
    """JSON text; set where no `ToolCallStarted` holds it."""
    filled: Sequence[str] | None = None
    """As of `ToolCallStarted`; set where none holds it."""
    decided: str | None = None
    """Text form of the decision by which a person settled the call."""


class ToolCallFinished(ToolCallOutcome, frozen=True, kw_only=True):
    """The tool returned a result, or an error that the model reads."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "finished"


class ToolCallFailed(ToolCallOutcome, frozen=True, kw_only=True):
    """The call failed for good."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "failed"


class ToolCallInterrupted(ToolCallOutcome, frozen=True, kw_only=True):
    """The call was cancelled; the tool may have had its effect."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "interrupted"


class ToolCallInDoubt(ToolCallFact, frozen=True, kw_only=True):
    """The call started, its end is unknown and it is not safe to repeat: a person has to decide."""

    kind: ClassVar[str] = "tool_call"
    state: ClassVar[str] = "in_doubt"

    arguments: str
