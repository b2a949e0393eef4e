"""What came out: of one step, and of a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, Generic, cast

from attrs import field, frozen

from minions.contracts.calls import ModelCall, ModelCallResponse, ToolCall
from minions.contracts.errors import (
    FailureInfo,
    MinionsError,
    NotFoundError,
    StepFailedError,
    near_names,
)
from minions.contracts.instructions import T_co
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import TokenUsage
from minions.contracts.verdicts import Completion, CompletionMode

__all__ = [
    "OPEN_STATES",
    "RUN_STATES",
    "RUN_STATE_SCHEMA",
    "AgentExecutionError",
    "AgentResult",
    "RunState",
    "RunStatus",
    "RunWarning",
    "StepExecution",
    "StepStatus",
]


class StepStatus(StrEnum):
    """Where a step stands."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


class RunStatus(StrEnum):
    """How a run ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    PARTIAL = "partial"
    """Only optional steps failed."""
    LIMIT_REACHED = "limit_reached"
    NEEDS_DECISION = "needs_decision"
    CANCELLED = "cancelled"


class RunState(StrEnum):
    """Where a run stands: the one name that commands, the HTTP API, events and the page give it.

    Those of `RunStatus`, and four of runs of which no end can be told.
    """

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    COMPLETED = RunStatus.COMPLETED.value
    PARTIAL = RunStatus.PARTIAL.value
    FAILED = RunStatus.FAILED.value
    LIMIT_REACHED = RunStatus.LIMIT_REACHED.value
    NEEDS_DECISION = RunStatus.NEEDS_DECISION.value
    CANCELLED = RunStatus.CANCELLED.value
    REJECTED = "rejected"
    UNREADABLE = "unreadable"


RUN_STATES: Final[Mapping[RunState, str]] = {
    RunState.RUNNING: "a process executes it",
    RunState.INTERRUPTED: "its process died before an end was recorded; it can be resumed",
    RunState.COMPLETED: "it came to its output",
    RunState.PARTIAL: "it came to its output, and optional steps failed",
    RunState.FAILED: "a step failed; it can be retried",
    RunState.LIMIT_REACHED: "a limit on calls, time or cost stopped it; it can be resumed",
    RunState.NEEDS_DECISION: "it waits for an approval, an answer, or a word on a call in doubt",
    RunState.CANCELLED: "somebody stopped it; it can be resumed",
    RunState.REJECTED: "it never began: its recipe has faults",
    RunState.UNREADABLE: "the entry of its start, of a resume or of its end is damaged",
}
"""What each state means, for documents and help texts."""

RUN_STATE_SCHEMA: Final[Mapping[str, JsonValue]] = {
    "type": "string",
    "enum": [state.value for state in RUN_STATES],
    "description": "; ".join(f"`{state.value}`: {words}" for state, words in RUN_STATES.items()),
}
"""The JSON Schema of a run's state, with the meaning of each."""

OPEN_STATES: Final = frozenset({RunState.RUNNING, RunState.INTERRUPTED})
"""States of runs that began and whose end is not recorded."""


@frozen(kw_only=True)
class RunWarning:
    """Something odd that did not stop the work; recorded and shown."""

    code: str
    message: str


@frozen(kw_only=True)
class StepExecution(Generic[T_co]):
    """One run of one step: every call, the verdict, the output. Frozen."""

    id: str
    step_id: str
    status: StepStatus = StepStatus.IN_PROGRESS
    reason: str | None = None
    """Why SKIPPED or FAILED, for a person."""
    output: T_co | None = None
    """Only of a COMPLETED step; fits the declared schema."""
    error: FailureInfo | None = None
    completion: Completion | None = None
    """The verdict that ended the step."""
    model_calls: tuple[ModelCall, ...] = ()
    """In order of start; the successful and the failed."""
    tool_calls: tuple[ToolCall, ...] = ()
    """In request order."""
    calls: tuple[ModelCall | ToolCall, ...] = ()
    """Both kinds, chronologically."""
    iterations: tuple[StepExecution[object], ...] = ()
    """Of a loop: one for each item, in the order of the list."""
    steps: tuple[StepExecution[object], ...] = ()
    """Of a recipe that was the step's work: its steps; their calls are among this one's."""
    warnings: tuple[RunWarning, ...] = ()
    started_at: datetime | None = None
    completed_at: datetime | None = None
    duration_ms: float = 0.0
    optional: bool = False
    model_call_limit: int = 10
    """The call budget that held."""
    completion_mode: CompletionMode = CompletionMode.SIGNAL
    completion_patterns: tuple[str, ...] = ()
    declares_output: bool = False
    cached_from: str | None = None
    """The run that did the work; None: this one."""
    pinned_from: str | None = None
    """Where the output was taken from because the step was not asked for; None: it was."""

    @property
    def is_finished(self) -> bool:
        """COMPLETED, FAILED or SKIPPED."""
        return self.status not in (StepStatus.PENDING, StepStatus.IN_PROGRESS)

    @property
    def is_complete(self) -> bool:
        """COMPLETED."""
        return self.status is StepStatus.COMPLETED

    def unwrap(self) -> T_co:
        """The output of a COMPLETED step.

        Raises:
            StepFailedError: It FAILED or was SKIPPED; the message says why.
        """
        if self.is_complete:
            return cast("T_co", self.output)
        raise StepFailedError(
            self.error
            or FailureInfo(
                code=f"step-{self.status.value.replace('_', '-')}",
                message=self.reason or f"Step '{self.step_id}' is {self.status.value}.",
                where=self.step_id,
            )
        )

    @property
    def last_response(self) -> ModelCallResponse | None:
        """The newest answer of the model."""
        return self.model_calls[-1].response if self.model_calls else None

    @property
    def last_text(self) -> str | None:
        """The newest words of the model; None when it only called tools."""
        response = self.last_response
        return response.text if response else None

    @property
    def last_tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the newest answer, carried out, in request order."""
        response = self.last_response
        count = len(response.tool_calls) if response else 0
        return self.tool_calls[-count:] if count else ()

    @property
    def usage(self) -> TokenUsage:
        """Of all model calls, failed ones too where the server counted."""
        total = TokenUsage()
        for call in self.model_calls:
            total += call.usage
        return total

    @property
    def attempts(self) -> int:
        """The most attempts that any one call of the step needed; 1 for a step without calls."""
        return max((call.attempts for call in self.calls), default=1)


@frozen(kw_only=True)
class AgentResult(Generic[T_co]):
    """Everything a run did, however it ended."""

    run_id: str
    session_id: str
    recipe_id: str
    status: RunStatus
    executions: tuple[StepExecution[object], ...] = ()
    """In order of their end; skipped steps at the point where they were passed over."""
    output: T_co | None = None
    usage: TokenUsage = field(factory=TokenUsage)
    error: FailureInfo | None = None
    model_name: str | None = None
    """Which model answered; None when no step asked one."""
    warnings: tuple[RunWarning, ...] = ()
    step_ids: Mapping[str, int] = field(factory=dict, repr=False)
    """Position of each step's latest execution."""

    def __repr__(self) -> str:
        """Short, however long the run was: asyncio shows a task's result without being asked."""
        return f"AgentResult({self.run_id}, {self.status}, {len(self.executions)} steps)"

    def step(self, step_id: str) -> StepExecution[object]:
        """The latest execution of that step.

        Raises:
            NotFoundError: No such step ran or was skipped.
        """
        index = self.step_ids.get(step_id)
        if index is None:
            near = near_names(step_id, self.step_ids)
            raise NotFoundError(
                f"This run has no step '{step_id}'. Steps are: {', '.join(self.step_ids)}.",
                code="unknown-step",
                suggestions=near,
            )
        return self.executions[index]

    def unwrap(self) -> T_co:
        """The output of a run that COMPLETED (or is PARTIAL).

        Raises:
            AgentExecutionError: Any other end; `error.result` is this result.
        """
        if self.status in (RunStatus.COMPLETED, RunStatus.PARTIAL):
            return cast("T_co", self.output)
        text = self.error.message if self.error else f"run {self.run_id}: {self.status.value}"
        code = self.error.code if self.error else None
        raise AgentExecutionError(text, result=self, code=code)


class AgentExecutionError(MinionsError):
    """A run did not complete; raised by `AgentResult.unwrap()` alone."""

    code = "agent-execution"

    def __init__(self, message: str, *, result: AgentResult[object], code: str | None) -> None:
        super().__init__(message, code=code)
        self.result = result
