"""What a step has done so far, while it runs; its frozen picture is a `StepExecution`."""

from __future__ import annotations

import copy
from datetime import datetime

from attrs import evolve

from minions.contracts.calls import ModelCall, ToolCall
from minions.contracts.completion import Completion, CompletionMode
from minions.contracts.context import Limits
from minions.contracts.errors import FailureInfo
from minions.contracts.executions import StepExecution, StepStatus
from minions.contracts.steps import Step

__all__ = ["StepTrace"]


class _Budget:
    """Shared by a trace and its asides."""

    def __init__(self) -> None:
        self.model_calls = 0


class StepTrace:
    """Grows with each call; owned by one step executor."""

    def __init__(
        self,
        step: Step[object],
        *,
        execution_id: str,
        key: str,
        limits: Limits,
        mode: CompletionMode,
        declares_output: bool,
        started_at: datetime,
    ) -> None:
        self.key = key
        """`step/visit/iteration`: the start of every key of this execution."""
        self._blank: StepExecution[object] = StepExecution(
            id=execution_id,
            step_id=step.id,
            optional=step.is_optional,
            model_call_limit=limits.max_model_calls_per_step,
            completion_mode=mode,
            completion_patterns=step.completion_criteria.patterns,
            declares_output=declares_output,
            started_at=started_at,
        )
        self._budget = _Budget()
        self._model_calls = self._tool_batches = self._notes = 0
        self._whole: StepTrace | None = None
        self.model_calls: list[ModelCall] = []
        self.tool_calls: list[ToolCall] = []
        self._calls: list[ModelCall | ToolCall] = []

    def aside(self, key: str) -> StepTrace:
        """A part with its own picture and keys, for one conversation of a Python step.

        What it does counts in the whole, too: calls and budget.
        """
        part = copy.copy(self)
        part.key = key
        part._whole = self  # noqa: SLF001  # a copy of itself
        part.model_calls, part.tool_calls, part._calls = [], [], []  # noqa: SLF001  # likewise
        return part

    @property
    def calls_left(self) -> int:
        """Model calls that the budget still allows."""
        return self._blank.model_call_limit - self._budget.model_calls

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
        """It ended, well or not."""
        if self._whole is not None:
            self._whole.add_model_call(call)
        self.model_calls.append(call)
        self._calls.append(call)

    def add_tool_calls(self, calls: tuple[ToolCall, ...]) -> None:
        """A batch ended; request order."""
        if self._whole is not None:
            self._whole.add_tool_calls(calls)
        self.tool_calls.extend(calls)
        self._calls.extend(calls)

    def picture(self) -> StepExecution[object]:
        """The step as a completion link sees it now."""
        return evolve(
            self._blank,
            model_calls=tuple(self.model_calls),
            tool_calls=tuple(self.tool_calls),
            calls=tuple(self._calls),
        )

    def ended(
        self,
        status: StepStatus,
        *,
        completed_at: datetime,
        duration_ms: float,
        output: object = None,
        error: FailureInfo | None = None,
        completion: Completion | None = None,
    ) -> StepExecution[object]:
        """The step for good."""
        return evolve(
            self.picture(),
            status=status,
            output=output,
            error=error,
            reason=error.message if error else None,
            completion=completion,
            completed_at=completed_at,
            duration_ms=duration_ms,
        )
