"""What requests about runs and decisions bring and what their answers hold, as values."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from attrs import field, frozen

from minions.contracts.json_values import JsonValue
from minions.interfaces.server.documents.common import (
    MAYBE_TEXT,
    STATE,
    JsonObject,
    number_schema,
    text_schema,
)
from minions.interfaces.server.http.problems import FaultView

__all__ = [
    "ApprovalView",
    "Approvals",
    "CancelView",
    "DecisionRequest",
    "Links",
    "MessageOfRun",
    "NoteOfRun",
    "RunAccepted",
    "RunRequest",
    "RunRow",
    "RunView",
    "Runs",
    "RunsPage",
    "StepOfRun",
]


@frozen(kw_only=True)
class RunsPage:
    """A part of the list of runs."""

    limit: int = field(default=100, metadata=number_schema(1, 1_000))
    offset: int = field(default=0, metadata=number_schema(0))
    recipe: str | None = field(default=None, metadata=MAYBE_TEXT)
    status: str | None = field(default=None, metadata=STATE)
    session: str | None = field(default=None, metadata=MAYBE_TEXT)
    text: str | None = field(default=None, metadata=MAYBE_TEXT)
    """Words, each in the recipe, the model, the state, or the id of the run or its session."""


# --- runs -----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class RunRequest:
    """A run that shall begin."""

    recipe: str | None = field(default=None, metadata=MAYBE_TEXT)
    """The id of a stored one."""
    recipe_text: str | None = field(default=None, metadata=text_schema(500_000, "null"))
    """YAML instead of a stored recipe, where the operator allows it."""
    inputs: JsonObject = field(factory=dict)
    session: str | None = field(default=None, metadata=MAYBE_TEXT)
    """Of which it is to be a part; None: a new one."""


@frozen(kw_only=True)
class Links:
    """Where more is to be had."""

    run: str
    events: str
    cancel: str
    session: str


@frozen(kw_only=True)
class RunAccepted:
    """A run that goes on by itself."""

    run_id: str
    session_id: str
    status: str = field(metadata=STATE)
    """One of `RunState`, as in every answer about the run."""
    links: Links


@frozen(kw_only=True)
class CancelView:
    """A run that was told to stop."""

    run_id: str
    status: str = field(metadata=STATE)
    """`running` until it has stopped; `cancelled` where another process had it or nobody did."""


@frozen(kw_only=True)
class RunRow:
    """One run of the list."""

    run_id: str
    session_id: str
    recipe: str
    status: str = field(metadata=STATE)
    is_active: bool
    """Whether it goes on in this process."""
    model: str | None
    started_at: datetime
    finished_at: datetime | None
    usage: JsonObject
    problem: str | None = None
    """Of an unreadable run: which entry is damaged, and how."""


@frozen(kw_only=True)
class Runs:
    """A part of the runs, the newest first."""

    runs: tuple[RunRow, ...]
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class StepOfRun:
    """One step of a run."""

    id: str
    status: str
    reason: str | None
    output: JsonValue
    is_waiting: bool
    kept_as: str | None
    """`pinned` or `cached`, where its output is that of another run."""
    facts: JsonObject
    """Usage, counts, duration, error."""
    position: int


@frozen(kw_only=True)
class MessageOfRun:
    """A message of a step, as the model's provider saw it."""

    step_id: str
    message: JsonObject


@frozen(kw_only=True)
class NoteOfRun:
    """What happened between the steps."""

    kind: str
    step_id: str
    state: str
    facts: JsonObject
    position: int


@frozen(kw_only=True)
class ApprovalView:
    """A decision that a run waits for."""

    id: str
    """For `POST /approvals/{id}`."""
    run_id: str
    session_id: str
    recipe: str
    key: str
    step_id: str
    what: Literal["approval", "answer", "doubt", "unreadable"]
    """`doubt`: a call was cut off and may have had its effect. `unreadable`: an entry of the run is
    damaged, so that nobody can tell what it waits for; `words` says which."""
    words: str
    """For a person."""
    tool: str | None = None
    arguments: str | None = None
    """JSON text."""
    digest: str | None = None
    """Of tool and arguments: consent is to exactly these."""
    question: str | None = None
    form: JsonObject | None = None
    """JSON Schema of the answer; None: any text."""
    default: JsonValue = None


@frozen(kw_only=True)
class RunView:
    """One run with everything that is known."""

    run_id: str
    session_id: str
    recipe: str
    status: str = field(metadata=STATE)
    is_active: bool
    model: str | None
    started_at: datetime
    finished_at: datetime | None
    usage: JsonObject
    inputs: JsonValue
    output: JsonValue
    error: JsonValue
    steps: tuple[StepOfRun, ...]
    messages: tuple[MessageOfRun, ...]
    notes: tuple[NoteOfRun, ...]
    faults: tuple[FaultView, ...]
    waiting: tuple[ApprovalView, ...]
    links: Links


# --- decisions ------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Approvals:
    """A part of what waits, the newest run first."""

    approvals: tuple[ApprovalView, ...]
    total: int
    limit: int
    offset: int


@frozen(kw_only=True)
class DecisionRequest:
    """What somebody says of it."""

    decision: Literal["approve", "reject", "answer", "redo", "done", "fail"]
    """Of an approval the first two; of a call in doubt the last three."""
    digest: str | None = field(default=None, metadata=MAYBE_TEXT)
    """As it was shown; needed to approve or reject."""
    value: JsonValue = None
    """The answer; of a call that is `done` what it gave."""
