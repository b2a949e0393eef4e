"""What a run shows while it goes on. One closed union; JSON, SSE and the terminal share it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final, TypeAlias

import attrs
from attrs import field, frozen

from minions.contracts.executions import RUN_STATE_SCHEMA, RunState
from minions.contracts.json_values import JsonValue
from minions.contracts.sessions import SessionStep

__all__ = [
    "AttemptFailed",
    "LimitReached",
    "RunCompleted",
    "RunEvent",
    "RunFailed",
    "RunStarted",
    "StepCompleted",
    "StepDelta",
    "StepDeltaEvent",
    "StepEvent",
    "StepEventType",
    "StepFinished",
    "StepStarted",
    "StepWaiting",
    "ToolFinished",
    "ToolStarted",
    "event_to_json",
]

_STATE: Final = {"schema": RUN_STATE_SCHEMA}


@frozen(kw_only=True)
class _Event:
    type: ClassVar[str]

    run_id: str
    session_id: str
    timestamp: datetime
    """UTC."""
    position: int | None = None
    """In the journal; None for what is shown but not stored."""


@frozen(kw_only=True)
class RunStarted(_Event):
    """The first event of a run."""

    type: ClassVar[str] = "run_started"
    recipe: str
    status: str = field(default=RunState.RUNNING.value, metadata=_STATE)
    """One of `RunState`, as in the last event of the run."""
    model_name: str | None
    """Which model will answer; None when the recipe asks none."""
    data: Mapping[str, JsonValue] = field(factory=dict)
    """`query`: the inputs."""


@frozen(kw_only=True)
class StepStarted(_Event):
    """A step of the recipe begins."""

    type: ClassVar[str] = "step_started"
    step_id: str
    index: int | None = None
    """Of a loop: for which item, from 0; None: the step as a whole."""


@frozen(kw_only=True)
class StepDelta:
    """A piece of a streamed answer."""

    content: str | None = None
    """To append."""
    tool_calls: tuple[Mapping[str, JsonValue], ...] = ()
    """Fragments in the provider's form; `index` tells which call one belongs to."""

    def to_json(self) -> dict[str, JsonValue]:
        """What there is."""
        result: dict[str, JsonValue] = {}
        if self.content is not None:
            result["content"] = self.content
        if self.tool_calls:
            result["tool_calls"] = [dict(fragment) for fragment in self.tool_calls]
        return result


@frozen(kw_only=True)
class StepDeltaEvent(_Event):
    """A piece of a streamed answer arrived. Best effort: never stored."""

    type: ClassVar[str] = "step_delta"
    step_id: str
    delta: StepDelta


@frozen(kw_only=True)
class StepCompleted(_Event):
    """A message of a conversation was recorded."""

    type: ClassVar[str] = "step_completed"
    step_id: str
    snapshot: SessionStep
    """The whole message; its `sequence` is 0 where the step is no part of the conversation."""


@frozen(kw_only=True)
class ToolStarted(_Event):
    """A tool call was recorded and begins."""

    type: ClassVar[str] = "tool_started"
    step_id: str
    call_id: str
    tool: str
    arguments: JsonValue


@frozen(kw_only=True)
class ToolFinished(_Event):
    """A tool call ended, well or not."""

    type: ClassVar[str] = "tool_finished"
    step_id: str
    call_id: str
    tool: str
    duration_ms: float
    error: Mapping[str, JsonValue] | None = None


@frozen(kw_only=True)
class AttemptFailed(_Event):
    """An attempt failed and another follows. Not stored on its own."""

    type: ClassVar[str] = "retrying"
    step_id: str
    what: str
    """`model` or the tool's name."""
    attempt: int
    """The one that failed, from 1."""
    delay_s: float
    error: Mapping[str, JsonValue]


@frozen(kw_only=True)
class StepFinished(_Event):
    """A step of the recipe ended."""

    type: ClassVar[str] = "step_finished"
    step_id: str
    status: str
    reason: str | None = None
    error: Mapping[str, JsonValue] | None = None
    usage: Mapping[str, JsonValue] = field(factory=dict)
    duration_ms: float = 0.0
    model_calls: int = 0
    tool_calls: int = 0
    attempts: int = 1
    index: int | None = None
    """Of a loop: for which item, from 0; None: the step as a whole."""
    cached_from: str | None = None
    """The run that did the work, where an earlier one did."""
    pinned_from: str | None = None
    """Where the output of a step that was not asked for comes from."""


@frozen(kw_only=True)
class StepWaiting(_Event):
    """A step needs a person: an approval, or an answer."""

    type: ClassVar[str] = "waiting"
    step_id: str
    key: str
    """Of the decision: `minions approve RUN KEY`, `minions answer RUN KEY VALUE`."""
    what: str
    """`approval` or `answer`."""
    data: Mapping[str, JsonValue] = field(factory=dict)
    """`tool`, `arguments`, `digest`; or `question` and `form`."""


@frozen(kw_only=True)
class LimitReached(_Event):
    """The run's ledger is spent; nothing new starts."""

    type: ClassVar[str] = "limit_reached"
    limit: str
    message: str


@frozen(kw_only=True)
class RunCompleted(_Event):
    """The last event of a run that did what it should."""

    type: ClassVar[str] = "run_completed"
    status: str = field(metadata=_STATE)
    """One of `RunState`."""
    data: Mapping[str, JsonValue] = field(factory=dict)
    """`response` and `metrics`."""


@frozen(kw_only=True)
class RunFailed(_Event):
    """The last event of a run that did not."""

    type: ClassVar[str] = "run_failed"
    status: str = field(metadata=_STATE)
    """One of `RunState`."""
    data: Mapping[str, JsonValue] = field(factory=dict)
    """`error` with `code` and `message`."""


RunEvent: TypeAlias = (
    RunStarted
    | StepStarted
    | StepDeltaEvent
    | StepCompleted
    | ToolStarted
    | ToolFinished
    | AttemptFailed
    | StepFinished
    | StepWaiting
    | LimitReached
    | RunCompleted
    | RunFailed
)
"""Anything that a run shows while it goes on; a closed union, told apart by class or `type`."""

StepEvent: TypeAlias = RunEvent
"""The same, as conversations call it."""


class StepEventType(StrEnum):
    """The `type` of each event."""

    RUN_STARTED = "run_started"
    STEP_STARTED = "step_started"
    STEP_DELTA = "step_delta"
    STEP_COMPLETED = "step_completed"
    TOOL_STARTED = "tool_started"
    TOOL_FINISHED = "tool_finished"
    RETRYING = "retrying"
    STEP_FINISHED = "step_finished"
    WAITING = "waiting"
    LIMIT_REACHED = "limit_reached"
    RUN_COMPLETED = "run_completed"
    RUN_FAILED = "run_failed"


def event_to_json(event: RunEvent) -> dict[str, JsonValue]:
    """`type` first, then the fields; what is None is absent."""
    result: dict[str, JsonValue] = {"type": event.type}
    for attribute in attrs.fields(type(event)):
        value = getattr(event, attribute.name)
        if isinstance(value, datetime):
            value = value.isoformat()
        elif isinstance(value, StepDelta | SessionStep):
            value = value.to_json()
        if value is not None:
            result[attribute.name] = _known(attribute.name, value)
    return result


def _known(name: str, value: JsonValue) -> JsonValue:
    """Numbers and errors without what is None; what a model or tool gave is left as it is."""
    if not isinstance(value, Mapping):
        return value
    if name in ("usage", "error", "metrics"):
        return {key: each for key, each in value.items() if each is not None}
    if name == "data":
        return {key: _known(key, each) for key, each in value.items()}
    return value
