"""The events of a run: one closed union, which JSON, SSE and the terminal share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from typing import ClassVar, Final, TypeAlias

import attrs
from attrs import Factory, field, frozen

from minions.contracts.executions import RUN_STATE_SCHEMA, RunState
from minions.contracts.session_views import SessionStep
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue

_STATE: Final = {"schema": RUN_STATE_SCHEMA}


@frozen(kw_only=True)
class _Event(FieldsRepr):
    type: ClassVar[str]

    run_id: str
    session_id: str
    timestamp: datetime
    """When the event happened, in UTC."""
    position: int | None = None
    """Position of the event's journal entry; None for events that are not stored."""


@frozen(kw_only=True)
class _StepEvent(_Event):
    step_id: str
    address: str = field(default=Factory(attrgetter("step_id"), takes_self=True))
    """The address of the execution, `sub[1]/each[2]`: the step with its item or attempt, and the
    steps around it."""


@frozen(kw_only=True)
class RunStarted(_Event):
    """The first event of a run."""

    type: ClassVar[str] = "run_started"
    recipe: str
    status: str = field(default=RunState.RUNNING.value, metadata=_STATE)
    """One of `RunState`, as in the last event of the run."""
    model_name: str | None
    """The models that the run will call; None when the recipe calls none."""
    data: Mapping[str, JsonValue] = field(factory=dict)
    """`query`: the run's inputs."""


@frozen(kw_only=True)
class StepStarted(_StepEvent):
    """A step of the recipe begins."""

    type: ClassVar[str] = "step_started"
    index: int | None = None
    """In a loop: the item's index from 0; None: the step as a whole."""
    total: int | None = None
    """Of a loop as a whole: the number of its items; None: it is no loop."""


@frozen(kw_only=True)
class StepDelta(FieldsRepr):
    """A fragment of a streamed answer."""

    content: str | None = None
    """Text to append to what was received so far."""
    tool_calls: tuple[Mapping[str, JsonValue], ...] = ()
    """Fragments of tool calls in the provider's form; `index` tells which call one belongs to."""
    reasoning: str | None = None
    """Text to append to what the model thought aloud so far."""

    def to_json(self) -> dict[str, JsonValue]:
        """The fields that are set."""
        result: dict[str, JsonValue] = {}
        if self.content is not None:
            result["content"] = self.content
        if self.tool_calls:
            result["tool_calls"] = [dict(fragment) for fragment in self.tool_calls]
        if self.reasoning is not None:
            result["reasoning"] = self.reasoning
        return result


@frozen(kw_only=True)
class StepDeltaEvent(_StepEvent):
    """A fragment of a streamed answer arrived. Never stored, and may be dropped."""

    type: ClassVar[str] = "step_delta"
    delta: StepDelta


@frozen(kw_only=True)
class StepCompleted(_StepEvent):
    """A message of a conversation was recorded."""

    type: ClassVar[str] = "step_completed"
    snapshot: SessionStep
    """The whole message; its `sequence` is 0 where it is not part of the session's conversation."""


@frozen(kw_only=True)
class ToolStarted(_StepEvent):
    """A tool call was recorded and starts."""

    type: ClassVar[str] = "tool_started"
    call_id: str
    tool: str
    arguments: JsonValue


@frozen(kw_only=True)
class ToolFinished(_StepEvent):
    """A tool call ended, with a result or an error."""

    type: ClassVar[str] = "tool_finished"
    call_id: str
    tool: str
    duration_ms: float
    error: Mapping[str, JsonValue] | None = None


@frozen(kw_only=True)
class ToolProgress(_StepEvent):
    """A tool says how far its call is; it is not stored."""

    type: ClassVar[str] = "tool_progress"
    tool: str
    call: str
    """The key of the call in its run."""
    progress: float
    """How much is done."""
    total: float | None = None
    """How much there is to do; None: unknown."""
    message: str | None = None
    """What is being done, in words of the tool."""


@frozen(kw_only=True)
class AttemptFailed(_StepEvent):
    """An attempt at a call failed and will be retried. Not stored on its own."""

    type: ClassVar[str] = "retrying"
    what: str
    """`model` or the tool's name."""
    attempt: int
    """Number of the failed attempt, from 1."""
    delay_s: float
    error: Mapping[str, JsonValue]


@frozen(kw_only=True)
class ServerWait(_StepEvent):
    """A model call waits because its server is not asked for a while. Not stored on its own."""

    type: ClassVar[str] = "server_wait"
    model: str
    """The model as `provider/name`."""
    server: str
    """Scheme, host and port."""
    until: datetime
    """When the server is asked again at the earliest, in UTC."""


@frozen(kw_only=True)
class OutputChecked(_StepEvent):
    """An answer was checked against the output that its step declares. Not stored on its own."""

    type: ClassVar[str] = "output_checked"
    rung: str
    """How the answer was asked for: `answer` (free), `constrained`, `json`, `tools`, `prompt`,
    `repair`, `fields`, `split` or `tier`."""
    model: str
    """The model as `provider/name`; `own`: an application carries out the calls."""
    is_valid: bool
    confidence: float | None = None
    """The probability of the least probable value of the answer; None: it was not asked for."""
    reason: str | None = None
    """Why it is not the output; None: it is."""
    usage: Mapping[str, JsonValue] = field(factory=dict)
    """Tokens and cost of the call."""


@frozen(kw_only=True)
class ModelReplaced(_StepEvent):
    """The server of a model failed, and another model is asked instead. Not stored on its own."""

    type: ClassVar[str] = "model_replaced"
    failed: str
    """The model whose server failed, as `provider/name`."""
    instead: str
    """The model that is asked now."""
    code: str
    """The code of the failure."""
    cooldown_s: float
    """Seconds for which the one that failed is not asked by steps that have another one."""


@frozen(kw_only=True)
class StepFinished(_StepEvent):
    """A step of the recipe ended."""

    type: ClassVar[str] = "step_finished"
    status: str
    reason: str | None = None
    error: Mapping[str, JsonValue] | None = None
    usage: Mapping[str, JsonValue] = field(factory=dict)
    duration_ms: float = 0.0
    model_calls: int = 0
    tool_calls: int = 0
    attempts: int = 1
    index: int | None = None
    """In a loop: the item's index from 0; None: the step as a whole."""
    cached_from: str | None = None
    """The run whose cached output was taken; None: the step was executed."""
    pinned_from: str | None = None
    """The run whose output was taken because the step was not selected; None: it was executed."""
    partial: bool = False
    """Whether it completed although an item of its loop failed, or a step of its recipe."""


@frozen(kw_only=True)
class StepWaiting(_StepEvent):
    """A step waits for a person: for an approval or an answer."""

    type: ClassVar[str] = "waiting"
    key: str
    """The key of the pending decision: `minions approve RUN KEY`,
    `minions answer RUN KEY VALUE`.
    """
    what: str
    """`approval` or `answer`."""
    data: Mapping[str, JsonValue] = field(factory=dict)
    """For an approval `tool`, `arguments` and `digest`; for an answer `question` and `form`, and
    `plan` where it is about one."""


@frozen(kw_only=True)
class PlanReplaced(_StepEvent):
    """A plan took the place of one that failed, and nobody was asked about it."""

    type: ClassVar[str] = "plan_replaced"
    text: str
    """What differs, in words for people."""
    diff: Mapping[str, JsonValue]
    """What differs, step by step."""


@frozen(kw_only=True)
class PlanLookup(_StepEvent):
    """A plan of an earlier run was searched for that serves the task of this one."""

    type: ClassVar[str] = "plan_lookup"
    text: str
    """What came of it, in words for people."""
    kept_run: str | None = None
    """The run whose plan is used; None: none serves the task."""


@frozen(kw_only=True)
class LimitReached(_Event):
    """A limit of the run is reached; no further work starts."""

    type: ClassVar[str] = "limit_reached"
    limit: str
    message: str


@frozen(kw_only=True)
class RunCompleted(_Event):
    """The last event of a run that completed."""

    type: ClassVar[str] = "run_completed"
    status: str = field(metadata=_STATE)
    """One of `RunState`."""
    data: Mapping[str, JsonValue] = field(factory=dict)
    """`response`: the run's output. `metrics`: its usage."""


@frozen(kw_only=True)
class RunFailed(_Event):
    """The last event of a run that ended without an output; one that waits has `run_waiting`."""

    type: ClassVar[str] = "run_failed"
    status: str = field(metadata=_STATE)
    """One of `RunState`."""
    data: Mapping[str, JsonValue] = field(factory=dict)
    """`error`, with `code` and `message`."""


@frozen(kw_only=True)
class RunWaiting(_Event):
    """The last event of an execution after which the run waits for a person; it is no failure.

    The run is resumed by the decision, and its events then begin with `run_started` again.
    """

    type: ClassVar[str] = "run_waiting"
    status: str = field(metadata=_STATE)
    """One of `RunState`: `needs_decision`."""
    data: Mapping[str, JsonValue] = field(factory=dict)
    """`decisions`: the pending decisions, each with `key`, `step_id`, `what` (`approval`, `answer`
    or `doubt`), and `tool` with its `digest` or `question`. `metrics`: the usage so far.
    """


RunEvent: TypeAlias = (
    RunStarted
    | StepStarted
    | StepDeltaEvent
    | StepCompleted
    | ToolStarted
    | ToolFinished
    | ToolProgress
    | AttemptFailed
    | ModelReplaced
    | ServerWait
    | OutputChecked
    | StepFinished
    | StepWaiting
    | PlanLookup
    | PlanReplaced
    | LimitReached
    | RunCompleted
    | RunWaiting
    | RunFailed
)
"""Any event of a run: a closed union, told apart by class or by `type`."""

StepEvent: TypeAlias = RunEvent
"""The same union under the name that sessions use for it."""


class StepEventType(StrEnum):
    """The `type` of each event."""

    RUN_STARTED = "run_started"
    STEP_STARTED = "step_started"
    STEP_DELTA = "step_delta"
    STEP_COMPLETED = "step_completed"
    TOOL_STARTED = "tool_started"
    TOOL_FINISHED = "tool_finished"
    TOOL_PROGRESS = "tool_progress"
    RETRYING = "retrying"
    MODEL_REPLACED = "model_replaced"
    SERVER_WAIT = "server_wait"
    OUTPUT_CHECKED = "output_checked"
    STEP_FINISHED = "step_finished"
    WAITING = "waiting"
    PLAN_LOOKUP = "plan_lookup"
    PLAN_REPLACED = "plan_replaced"
    LIMIT_REACHED = "limit_reached"
    RUN_COMPLETED = "run_completed"
    RUN_WAITING = "run_waiting"
    RUN_FAILED = "run_failed"


def event_to_json(event: RunEvent) -> dict[str, JsonValue]:
    """The event as JSON: `type` first, then the fields; fields that are None are absent."""
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
    """Numbers and errors without members that are None; outputs
    of models and tools stay complete.
    """
    if not isinstance(value, Mapping):
        return value
    if name in ("usage", "error", "metrics"):
        return {key: each for key, each in value.items() if each is not None}
    if name == "data":
        return {key: _known(key, each) for key, each in value.items()}
    return value
