"""What a step has done so far, while it runs; its frozen picture is a `StepExecution`."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from minions.contracts.calls import ModelCall, ToolCall
from minions.contracts.context import Limits
from minions.contracts.executions import Completion, CompletionMode, StepExecution, StepStatus
from minions.contracts.messages import NO_USAGE, TokenUsage
from minions.contracts.steps import Step
from minions.data.errors import FailureInfo
from minions.data.json_values import JsonValue
from minions.engine.history.memory import READ_RESULT


class _Budget:
    """Shared by a trace and its asides."""

    __slots__ = ("model_calls", "tool_calls")

    def __init__(self) -> None:
        self.model_calls = 0
        self.tool_calls = 0


class StepTrace:
    """Grows with each call; owned by one step executor."""

    __slots__ = (
        "_budget",
        "_call_limit",
        "_calls",
        "_declares_output",
        "_id",
        "_limits",
        "_longest_result",
        "_measured",
        "_model_calls",
        "_notes",
        "_patterns",
        "_started_at",
        "_step",
        "_tool_batches",
        "_whole",
        "_within",
        "executions",
        "is_partial",
        "key",
        "mode",
        "model_calls",
        "plan",
        "step_id",
        "tool_calls",
        "waits_for",
    )  # fmt: skip

    def __init__(
        self,
        step: Step[object],
        *,
        step_id: str,
        execution_id: str,
        key: str,
        limits: Limits,
        is_code: bool,
        declares_output: bool,
        started_at: datetime,
    ) -> None:
        self.step_id = step_id
        self.key = key
        """`step/visit/iteration`: the start of every key of this execution."""
        self._step = step
        self._id = execution_id
        self._limits = limits
        self._call_limit = limits.max_model_calls_per_step
        self._declares_output = declares_output
        self._started_at = started_at
        criteria = None if is_code else step.completion_criteria
        self.mode = CompletionMode.TEXT if criteria is None else criteria.mode
        self._patterns = () if criteria is None else criteria.patterns
        self._budget = _Budget()
        self._model_calls = self._tool_batches = self._notes = 0
        self._whole: StepTrace | None = None
        self.model_calls: list[ModelCall] = []
        self.tool_calls: list[ToolCall] = []
        self._calls: list[ModelCall | ToolCall] = []
        self._longest_result = self._measured = 0
        self.waits_for: FailureInfo | None = None
        """The pending decision without which the step cannot continue; None: there is none."""
        self.executions: list[StepExecution[object]] = []
        """Executions of the steps of a recipe that is this step's work."""
        self._within: list[tuple[int, StepExecution[object]]] = []
        """Executions of agents, each with how many calls of the step's own come before its calls.
        """
        self.plan: tuple[Mapping[str, JsonValue], ...] = ()
        """How the steps of its plan ended."""
        self.is_partial = False
        """Whether such a recipe ended partial."""

    def aside(self, key: str) -> StepTrace:
        """A part with its own picture and keys, for one conversation of a Python step.

        What it does counts in the whole, too: calls and budget.
        """
        part = copy.copy(self)
        part.key = key
        part._whole = self  # noqa: SLF001  # a copy of itself
        part._model_calls = part._tool_batches = part._notes = 0  # noqa: SLF001  # likewise
        part.model_calls, part.tool_calls, part._calls = [], [], []  # noqa: SLF001  # likewise
        part._longest_result = part._measured = 0  # noqa: SLF001  # likewise
        return part

    @property
    def longest_result(self) -> int:
        """Characters of the longest result so far, of pieces of results aside."""
        for call in self.tool_calls[self._measured :]:
            if call.response is not None and call.request.name != READ_RESULT:
                self._longest_result = max(self._longest_result, len(call.response.content))
        self._measured = len(self.tool_calls)
        return self._longest_result

    @property
    def has_calls(self) -> bool:
        """Whether any model or tool call has ended."""
        return bool(self._calls)

    @property
    def attempts(self) -> int:
        """The most attempts that any one call needed."""
        most = 1
        for call in self._calls:
            if call.attempts > most:
                most = call.attempts
        return most

    @property
    def usage(self) -> TokenUsage:
        """What all model calls used."""
        total = NO_USAGE
        for call in self.model_calls:
            total += call.usage
        return total

    @property
    def calls_left(self) -> int:
        """Model calls that the budget still allows."""
        return self._call_limit - self._budget.model_calls

    def reserve_tool_calls(self, wanted: int) -> int:
        """How many of the tool calls that a model asks for may be made; takes them off the budget.

        What an answer may ask for is limited, and what the step may.
        """
        limits = self._limits
        left = max(0, limits.max_tool_calls_per_step - self._budget.tool_calls)
        given = min(wanted, limits.max_tool_calls_per_answer, left)
        self._budget.tool_calls += given
        return given

    def reserve_model_key(self, phase: str) -> str:
        """The key of the next model call, counted over all phases; takes it off the budget."""
        self._budget.model_calls += 1
        self._model_calls += 1
        return f"{self.key}/{phase}/{self._model_calls}"

    def reserve_tool_key(self) -> str:
        """The key of the next batch of tool calls."""
        self._tool_batches += 1
        return f"{self.key}/tool/{self._tool_batches}"

    def reserve_note_key(self) -> str:
        """The key of the next change to a conversation that is no answer."""
        self._notes += 1
        return f"{self.key}/note/{self._notes}"

    def add_model_call(self, call: ModelCall) -> None:
        """Add a model call that ended, well or not."""
        if self._whole is not None:
            self._whole.add_model_call(call)
        self.model_calls.append(call)
        self._calls.append(call)

    def add_tool_calls(self, calls: tuple[ToolCall, ...]) -> None:
        """Add the tool calls of a batch that ended, in the order of the request."""
        if self._whole is not None:
            self._whole.add_tool_calls(calls)
        self.tool_calls.extend(calls)
        self._calls.extend(calls)

    def wait(self, failure: FailureInfo) -> None:
        """Stop the step until somebody decides."""
        if self._whole is not None:
            self._whole.wait(failure)
        self.waits_for = self.waits_for or failure

    def add_executions(self, executions: Iterable[StepExecution[object]]) -> None:
        """The steps of a recipe that ended; their calls are this step's, but not its budget's."""
        for each in executions:
            self.executions.append(each)
            self.model_calls.extend(each.model_calls)
            self.tool_calls.extend(each.tool_calls)
            self._calls.extend(each.calls)

    def add_agent_executions(self, executions: Iterable[StepExecution[object]]) -> None:
        """The steps of agents that the step's newest answer ran.

        Links judge a step by its own calls. Where it has ended, theirs stand before that answer:
        the newest answer of a step is its own.
        """
        if self._whole is not None:
            self._whole.add_agent_executions(executions)
            return
        at = len(self._calls)
        while at > 0 and self.model_calls and self._calls[at - 1] is not self.model_calls[-1]:
            at -= 1
        at -= bool(self.model_calls)
        for each in executions:
            self.executions.append(each)
            self._within.append((at, each))

    def picture(
        self,
        status: StepStatus = StepStatus.IN_PROGRESS,
        *,
        completed_at: datetime | None = None,
        duration_ms: float = 0.0,
        output: object = None,
        error: FailureInfo | None = None,
        completion: Completion | None = None,
        cached_from: str | None = None,
        sandbox: str | None = None,
    ) -> StepExecution[object]:
        """The step as it is now: for a completion link, or, with its status, for good."""
        calls = tuple(self._calls)
        models, tools = tuple(self.model_calls), tuple(self.tool_calls)
        if self._within and status is not StepStatus.IN_PROGRESS:
            calls = tuple(self._calls_with_agents())
            models = tuple(each for each in calls if isinstance(each, ModelCall))
            tools = tuple(each for each in calls if isinstance(each, ToolCall))
        return StepExecution(
            id=self._id,
            step_id=self.step_id,
            status=status,
            reason=error.message if error is not None else None,
            output=output,
            error=error,
            completion=completion,
            model_calls=models,
            tool_calls=tools,
            calls=calls,
            steps=tuple(self.executions),
            started_at=self._started_at,
            completed_at=completed_at,
            duration_ms=duration_ms,
            optional=self._step.is_optional,
            model_call_limit=self._call_limit,
            completion_mode=self.mode,
            completion_patterns=self._patterns,
            declares_output=self._declares_output,
            plan=self.plan,
            is_partial=self.is_partial and status is StepStatus.COMPLETED,
            cached_from=cached_from,
            sandbox=sandbox,
        )

    def _calls_with_agents(self) -> Iterator[ModelCall | ToolCall]:
        """The step's own calls, and those of its agents before the answer that ran them."""
        before: dict[int, list[ModelCall | ToolCall]] = {}
        for at, each in self._within:
            before.setdefault(at, []).extend(each.calls)
        for at, call in enumerate(self._calls):
            yield from before.pop(at, ())
            yield call
        for calls in before.values():
            yield from calls
