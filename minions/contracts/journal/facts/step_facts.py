"""Facts of steps."""

from __future__ import annotations

from typing import ClassVar

from msgspec import UNSET, UnsetType

from minions.contracts.journal.facts.shape import FactOfStep, Object
from minions.contracts.messages import Message
from minions.data.json_values import JsonValue


class StepFact(FactOfStep, frozen=True, kw_only=True):
    """A fact about an execution of a step as a whole."""

    kind: ClassVar[str] = "step"


class StepStarted(StepFact, frozen=True, kw_only=True):
    """An execution of a step starts."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "started"

    version: str | None = None
    index: int | None = None
    """Index of the loop's item or of the attempt of a `while`,
    from 0; None: the step as a whole.
    """
    total: int | None = None
    """Number of items of the loop."""
    attempts: int | None = None
    """The most attempts that the `while` may make."""
    distributed: str | None = None
    """The queue in which the items are runs of their own; None: they are executed within the run.
    """
    conversation: str | None = None
    messages: tuple[Message, ...] | None = None
    """The opening prompt, oldest first."""
    history: tuple[int, int] | None = None
    """Where the session's messages stand in the opening prompt: index and count."""


class StepEnd(StepFact, frozen=True, kw_only=True):
    """An execution of a step ended, or was omitted."""

    status: str


class StepOutcome(StepEnd, frozen=True, kw_only=True):
    """An execution of a step that had started ended."""

    duration_ms: float | None = None
    index: int | None = None
    total: int | None = None
    usage: Object | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    attempts: int | None = None
    error: Object | None = None
    reason: str | None = None
    output: JsonValue | UnsetType = UNSET
    """Missing where a `while` has no output; in a failed loop the outputs
    of the items that completed.
    """
    decided_by: str | None | UnsetType = UNSET
    """Name of the completion link that decided."""
    next_step_id: str | None = None
    """The step that the model asked to run next."""
    sandbox: str | None = None
    """The sandbox that held its code; None: it is none, or was not executed."""


class StepFinished(StepOutcome, frozen=True, kw_only=True):
    """The step completed with an output."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "finished"

    cached_from: str | None = None
    """The run from whose cached output this one was taken; None: the step was executed."""
    cache_key: str | None = None
    pinned_from: str | None = None
    partial: bool = False
    """Whether an item of its loop failed, or a step of the recipe that it is."""


class StepFailed(StepOutcome, frozen=True, kw_only=True):
    """The step failed for good."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "failed"

    error: Object


class StepInterrupted(StepOutcome, frozen=True, kw_only=True):
    """The step was cancelled, or waits for a person: resuming the run continues it."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "interrupted"

    error: Object


class StepOmission(StepEnd, frozen=True, kw_only=True):
    """The step was not executed."""

    reason: str | None = None


class StepSkipped(StepOmission, frozen=True, kw_only=True):
    """The step was skipped; `reason` says why."""

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "skipped"


class StepWithdrawn(StepOmission, frozen=True, kw_only=True):
    """The step waited for a person when the run took a back edge:
    its decision is no longer pending.
    """

    kind: ClassVar[str] = "step"
    state: ClassVar[str] = "withdrawn"
