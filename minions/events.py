"""All events of a run, and the stream that yields them.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from minions._lazy import home_of, lazy_names

if TYPE_CHECKING:
    from minions.app.runs.run_stream import RunStream
    from minions.contracts.run_events import (
        AttemptFailed,
        LimitReached,
        ModelReplaced,
        OutputChecked,
        PlanLookup,
        PlanReplaced,
        RunCompleted,
        RunFailed,
        RunStarted,
        RunWaiting,
        ServerWait,
        StepCompleted,
        StepDelta,
        StepDeltaEvent,
        StepEvent,
        StepEventType,
        StepFinished,
        StepStarted,
        StepWaiting,
        ToolFinished,
        ToolProgress,
        ToolStarted,
        event_to_json,
    )
    from minions.engine.history.event_stream import Listener


__all__ = [
    "AttemptFailed",
    "LimitReached",
    "Listener",
    "ModelReplaced",
    "OutputChecked",
    "PlanLookup",
    "PlanReplaced",
    "RunCompleted",
    "RunFailed",
    "RunStarted",
    "RunStream",
    "RunWaiting",
    "ServerWait",
    "StepCompleted",
    "StepDelta",
    "StepDeltaEvent",
    "StepEvent",
    "StepEventType",
    "StepFinished",
    "StepStarted",
    "StepWaiting",
    "ToolFinished",
    "ToolProgress",
    "ToolStarted",
    "event_to_json",
]

_HOMES: Final = {
    "minions.contracts.run_events": (
        "LimitReached",
        "ModelReplaced",
        "OutputChecked",
        "PlanLookup",
        "PlanReplaced",
        "AttemptFailed",
        "RunCompleted",
        "RunFailed",
        "RunStarted",
        "RunWaiting",
        "ServerWait",
        "StepCompleted",
        "StepDelta",
        "StepDeltaEvent",
        "StepEvent",
        "StepEventType",
        "StepFinished",
        "StepStarted",
        "ToolFinished",
        "ToolProgress",
        "ToolStarted",
        "StepWaiting",
        "event_to_json",
    ),
    "minions.engine.history.event_stream": ("Listener",),
    "minions.app.runs.run_stream": ("RunStream",),
}
_HOME_OF: Final = home_of(_HOMES)

if not TYPE_CHECKING:  # a checker shall find a misspelled name
    __getattr__, __dir__ = lazy_names(__name__, _HOME_OF)
