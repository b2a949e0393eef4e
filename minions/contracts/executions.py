"""What came out of a step and of a run, verdicts on whether a step is done, and addresses of
executions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar, cast

from attrs import field, frozen
from msgspec import Struct

from minions.contracts.calls import ModelCall, ModelCallResponse, ToolCall
from minions.contracts.instructions import T_co
from minions.contracts.messages import TokenUsage
from minions.data.errors import (
    FailureInfo,
    MinionsError,
    NotFoundError,
    StepFailedError,
    near_names,
)
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue


def item_address(step: str, index: int | None) -> str:
    """The address of an iteration of a step; of the step as a whole if `index` is None."""
    return step if index is None else f"{step}[{index}]"


def address_of(key: str) -> str:
    """The address of the execution to which the work with that key belongs."""
    *outer, own = key.split("~")
    own_step, _, own_rest = own.partition("/")
    iteration = own_rest.partition("/")[2].partition("/")[0]
    parts = [*zip(outer[::3], outer[2::3], strict=True), (own_step, iteration)]
    return "/".join(_name(step, iteration) for step, iteration in parts)


def _name(step: str, iteration: str) -> str:
    """`iteration` may be followed by `#place` of a call in code, and `@generation`."""
    number = iteration.partition("#")[0].partition("@")[0]
    return item_address(step, int(number) - 1 if number.isdecimal() and number != "0" else None)


def around(address: str) -> Iterator[str]:
    """The address, then each that it is an iteration of or within: `a[1]/b`, `a[1]`, `a`."""
    cut = len(address)
    while cut > 0:
        yield address[:cut]
        cut = max(address.rfind(sign, 0, cut) for sign in "/[")


def is_within(address: str, outer: str) -> bool:
    """Whether `address` is `outer`, an iteration of it, or within one of these."""
    return outer in around(address)


class Verdict(StrEnum):
    """The three verdicts of a completion link."""

    COMPLETE = "complete"
    FAILED = "failed"
    UNDECIDED = "undecided"


@frozen
class Completion(FieldsRepr):
    """A verdict with its reason, its evidence and the link that gave it."""

    COMPLETE: ClassVar[Completion]
    UNDECIDED: ClassVar[Completion]

    verdict: Verdict
    reason: str = ""
    """Why, for a person; of a FAILED verdict, the error message of the step."""
    evidence: str | None = None
    """The words or the result that decided; None: nothing to quote."""
    code: str = "not-complete"
    """Error code of the step; used only if FAILED."""
    next_step_id: str | None = None
    """The step that the model asked to run next; honoured where the graph has that edge."""
    decided_by: str | None = None
    """Name of the link; set by the chain."""

    @classmethod
    def complete(cls, reason: str = "", *, evidence: str | None = None) -> Completion:
        """The step is done; a declared output is validated next."""
        return cls(Verdict.COMPLETE, reason, evidence)

    @classmethod
    def failed(cls, reason: str, *, code: str = "not-complete") -> Completion:
        """The step is not done and cannot be completed."""
        return cls(Verdict.FAILED, reason, code=code)


Completion.COMPLETE = Completion(Verdict.COMPLETE)
Completion.UNDECIDED = Completion(Verdict.UNDECIDED)


class CompletionMode(StrEnum):
    """What completes a step when no other link decides."""

    TEXT = "text"
    """An answer without tool calls."""
    STRUCTURED = "structured"
    """An answer without tool calls that fits the declared output."""
    SIGNAL = "signal"
    """Only a completion link: an instruction, a pattern, a tool's result. The Java guide's loop."""


if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    OutputT = TypeVarWithDefault("OutputT", default=JsonValue)
else:
    OutputT = TypeVar("OutputT")
"""The class that a caller wants for a run's output. The default is for type checkers: without a
class it is plain JSON."""


class StepStatus(StrEnum):
    """The status of a step."""

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
    """Completed, although optional steps failed."""
    LIMIT_REACHED = "limit_reached"
    NEEDS_DECISION = "needs_decision"
    CANCELLED = "cancelled"


class RunState(StrEnum):
    """The state of a run, under the one name that commands, the HTTP API, events and the web
    page use.

    The members of `RunStatus`, and five for runs without a recorded end.
    """

    QUEUED = "queued"
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
    RunState.QUEUED: "it waits in a queue until a worker executes it",
    RunState.RUNNING: "a process executes it",
    RunState.INTERRUPTED: "its process died before an end was recorded; it can be resumed",
    RunState.COMPLETED: "it completed with an output",
    RunState.PARTIAL: "it completed, although optional steps failed",
    RunState.FAILED: "a step failed; it can be retried",
    RunState.LIMIT_REACHED: "a limit on calls, time or cost stopped it; it can be resumed",
    RunState.NEEDS_DECISION: (
        "it waits for an approval, an answer, or a decision about a call in doubt"
    ),
    RunState.CANCELLED: "it was cancelled; it can be resumed",
    RunState.REJECTED: "it never started: its recipe has faults",
    RunState.UNREADABLE: "the entry of its start, of a resume or of its end is damaged",
}
"""The meaning of each state, for documents and help texts."""

RUN_STATE_SCHEMA: Final[Mapping[str, JsonValue]] = {
    "type": "string",
    "enum": [state.value for state in RUN_STATES],
    "description": "; ".join(f"`{state.value}`: {words}" for state, words in RUN_STATES.items()),
}
"""JSON Schema of a run's state, with the meaning of each value."""

OPEN_STATES: Final = frozenset({RunState.QUEUED, RunState.RUNNING, RunState.INTERRUPTED})
"""States of runs that started and have no recorded end."""


class RunWarning(Struct, frozen=True, kw_only=True):
    """Something unusual that did not stop the work; recorded and shown."""

    code: str
    message: str


@frozen(kw_only=True)
class StepExecution(FieldsRepr, Generic[T_co]):
    """One execution of a step: its calls, verdict and output. Immutable."""

    id: str
    step_id: str
    status: StepStatus = StepStatus.IN_PROGRESS
    reason: str | None = None
    """Why the step was SKIPPED or FAILED, for a person."""
    output: T_co | None = None
    """The output, which fits the declared schema; None unless the step COMPLETED."""
    error: FailureInfo | None = None
    completion: Completion | None = None
    """The verdict that ended the step."""
    model_calls: tuple[ModelCall, ...] = ()
    """All model calls, successful and failed, in order of start."""
    tool_calls: tuple[ToolCall, ...] = ()
    """All tool calls, in the order in which they were requested."""
    calls: tuple[ModelCall | ToolCall, ...] = ()
    """Model calls and tool calls together, in order of time."""
    iterations: tuple[StepExecution[object], ...] = ()
    """Executions of a loop's items, in the order of the list."""
    steps: tuple[StepExecution[object], ...] = ()
    """Executions of the steps of a nested recipe; their calls are in `calls` too."""
    warnings: tuple[RunWarning, ...] = ()
    started_at: datetime | None = None
    completed_at: datetime | None = None
    duration_ms: float = 0.0
    optional: bool = False
    model_call_limit: int = 10
    """The number of model calls that the step was allowed."""
    completion_mode: CompletionMode = CompletionMode.SIGNAL
    completion_patterns: tuple[str, ...] = ()
    declares_output: bool = False
    is_partial: bool = False
    """Whether it COMPLETED although an item of its loop failed, or a step of its recipe."""
    cached_from: str | None = None
    """The run whose cached output was taken; None: the step was executed in this run."""
    pinned_from: str | None = None
    """The run whose output was taken because the step was not selected; None: it was executed."""
    sandbox: str | None = None
    """The sandbox that held its code; None: it is none, or was not executed."""
    plan: tuple[Mapping[str, JsonValue], ...] = ()
    """Of a `plan:` step, however it ended, the steps of its plan in order: `id`, `type`, `status`,
    `files` that it wrote, `answer` of what analyzes or validates, `error`."""

    @property
    def address(self) -> str:
        """The address in its run: `outer[1]/step[2]`, as lists print it and commands accept it."""
        return address_of(self.id.partition("/")[2]) or self.step_id

    @property
    def is_finished(self) -> bool:
        """Whether the status is COMPLETED, FAILED or SKIPPED."""
        return self.status not in (StepStatus.PENDING, StepStatus.IN_PROGRESS)

    @property
    def is_complete(self) -> bool:
        """Whether the status is COMPLETED."""
        return self.status is StepStatus.COMPLETED

    def unwrap(self) -> T_co:
        """The output of a COMPLETED step.

        Raises:
            StepFailedError: The step FAILED or was SKIPPED; the message says why.
        """
        if self.is_complete:
            return cast("T_co", self.output)
        status = self.status.value
        raise StepFailedError(
            self.error
            or FailureInfo(
                code=f"step-{status.replace('_', '-')}",
                message=self.reason or f"Step '{self.step_id}' is {status}.",
                where=self.step_id,
            )
        )

    @property
    def last_response(self) -> ModelCallResponse | None:
        """The newest answer of the model; None: there is none."""
        return self.model_calls[-1].response if self.model_calls else None

    @property
    def last_text(self) -> str | None:
        """The text of the newest answer; None when it holds tool calls only."""
        response = self.last_response
        return response.text if response else None

    @property
    def last_tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls of the newest answer with their results, in request order."""
        response = self.last_response
        count = len(response.tool_calls) if response else 0
        return self.tool_calls[-count:] if count else ()

    @property
    def usage(self) -> TokenUsage:
        """Tokens of all model calls; of failed ones as far as the server reported them."""
        total = TokenUsage()
        for call in self.model_calls:
            total += call.usage
        return total

    @property
    def attempts(self) -> int:
        """The largest number of attempts that one call of the step took;
        1 for a step without calls.
        """
        return max((call.attempts for call in self.calls), default=1)


@frozen(kw_only=True)
class AgentResult(Generic[T_co]):
    """Everything a run did, however it ended."""

    run_id: str
    session_id: str
    recipe_id: str
    status: RunStatus
    executions: tuple[StepExecution[object], ...] = ()
    """Executions in order of their end; a skipped step stands where it was skipped."""
    output: T_co | None = None
    usage: TokenUsage = field(factory=TokenUsage)
    """What all model calls of the run used, also those of executions that ended before a resume or
    a retry."""
    discarded_usage: TokenUsage = field(factory=TokenUsage)
    """The part of `usage` that belongs to no execution of this result: calls of parts that a retry
    ran again, or that were not reached again before the run ended."""
    error: FailureInfo | None = None
    model_name: str | None = None
    """The models that answered; None when no step called one."""
    warnings: tuple[RunWarning, ...] = ()
    step_ids: Mapping[str, int] = field(factory=dict, repr=False)
    """Index in `executions` of each step's latest execution, by step id."""

    def __repr__(self) -> str:
        """A short form, however long the run was: asyncio logs the result of a task by its repr."""
        why = f", {self.error.code}: {self.error.message:.200}" if self.error is not None else ""
        return f"AgentResult({self.run_id}, {self.status}, {len(self.executions)} steps{why})"

    def step(self, step_id: str) -> StepExecution[object]:
        """The latest execution of that step.

        Raises:
            NotFoundError: No step of that id was executed or skipped.
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

    @property
    def plan(self) -> tuple[Mapping[str, JsonValue], ...]:
        """The steps of the plans that it carried out, as `StepExecution.plan` has them."""
        return tuple(_plans_of(self.executions))

    def unwrap(self) -> T_co:
        """The output of a run that ended COMPLETED or PARTIAL.

        Raises:
            AgentExecutionError: The run has another status; `error.result` is this result.
        """
        if self.status in (RunStatus.COMPLETED, RunStatus.PARTIAL):
            return cast("T_co", self.output)
        text = self.error.message if self.error else f"run {self.run_id}: {self.status.value}"
        code = self.error.code if self.error else None
        raise AgentExecutionError(text, result=self, code=code)


def _plans_of(executions: Iterable[StepExecution[object]]) -> Iterator[Mapping[str, JsonValue]]:
    """The plans of steps, and of those within them."""
    for each in executions:
        yield from each.plan or _plans_of((*each.iterations, *each.steps))


class AgentExecutionError(MinionsError):
    """The run did not complete; raised only by `AgentResult.unwrap()`."""

    code = "agent-execution"

    def __init__(self, message: str, *, result: AgentResult[object], code: str | None) -> None:
        super().__init__(message, code=code)
        self.result = result
