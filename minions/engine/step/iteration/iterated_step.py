"""A step with iterations: what a loop and a `while` have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from attrs import frozen
from msgspec import UNSET
from msgspec.structs import replace

from minions.contracts.calls import ModelCall, ToolCall
from minions.contracts.executions import StepExecution
from minions.contracts.journal.facts import StepFinished, StepStarted
from minions.contracts.journal.journal import JournalEntry
from minions.contracts.messages import TokenUsage
from minions.contracts.steps import Step
from minions.data.errors import FailureInfo
from minions.data.json_values import JsonValue
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.run_progress import Iteration
from minions.engine.services.event_loop import beside
from minions.engine.step.executor import StepExecutor
from minions.engine.step.work import end_status, step_over

MakeExecutor: TypeAlias = Callable[[Iteration], StepExecutor[object]]
"""Makes the executor of one iteration."""
MayReuse: TypeAlias = Callable[[StepExecutor[object]], bool]
"""Whether the recorded end of that iteration is replayed."""


@frozen(kw_only=True)
class _Sums:
    """What all iterations did together."""

    calls: tuple[ModelCall | ToolCall, ...]
    model_calls: tuple[ModelCall, ...]
    tool_calls: tuple[ToolCall, ...]
    usage: TokenUsage
    attempts: int

    @classmethod
    def of(cls, executions: Sequence[StepExecution[object]]) -> _Sums:
        calls = tuple(call for each in executions for call in each.calls)
        return cls(
            calls=calls,
            model_calls=tuple(call for each in executions for call in each.model_calls),
            tool_calls=tuple(call for each in executions for call in each.tool_calls),
            usage=sum((each.usage for each in executions), TokenUsage()),
            attempts=max((call.attempts for call in calls), default=0),
        )


class IteratedStep:
    """One execution. Its own facts have iteration 0 in their key, its iterations 1, 2, 3."""

    def __init__(
        self,
        step: Step[object],
        context: AgentContext,
        make_executor: MakeExecutor,
        may_reuse: MayReuse,
    ) -> None:
        self._step = step
        self._context = context
        self._progress = context.progress
        self._budget = context.progress.budget
        self._step_manager = context.step_manager
        self._values = context.run_values
        self._scope = context.scope
        self._recorder = context.scope.recorder
        self._services = context.scope.services
        self._make_executor = make_executor
        self._may_reuse = may_reuse
        visit = self._step_manager.visits(step.id) + 1
        self._key = context.scope.execution_key(step.id, visit)
        self._path = context.scope.path_of(step.id)
        self._clock = self._services.clock
        self._started_at = self._clock.now()
        self._begin = self._clock.monotonic()
        self.output_json: JsonValue = None
        """The output as JSON, for later steps."""

    async def _record_start(
        self,
        *,
        total: int | None = None,
        attempts: int | None = None,
        distributed: str | None = None,
    ) -> JournalEntry:
        begun = StepStarted(
            step_id=self._path, total=total, attempts=attempts, distributed=distributed
        )
        return await self._recorder.record(self._key, begun)

    async def _one(
        self, item: Iteration, executor: StepExecutor[object]
    ) -> tuple[StepExecution[object], JsonValue]:
        if executor.has_recorded_end:
            if self._may_reuse(executor):
                return executor.recorded(), executor.output_json
            executor = self._make_executor(item)  # it begins anew
        execution = await executor.execute()
        return execution, executor.output_json

    def _may_go_on(self) -> bool:
        self._progress.check_time()
        return not self._budget.is_spent

    async def _end(
        self,
        executions: tuple[StepExecution[object], ...],
        error: FailureInfo | None,
        output: object,
        *,
        is_partial: bool = False,
        child_usage: TokenUsage | None = None,
    ) -> StepExecution[object]:
        """Record the end of all iterations together.

        Args:
            is_partial: Whether it completed although an iteration failed, or was partial itself.
            child_usage: What child runs used; None: the iterations were executed within the run.
        """
        sums = await beside(self._services.beside, len(executions), lambda: _Sums.of(executions))
        calls, model_calls, tool_calls = sums.calls, sums.model_calls, sums.tool_calls
        usage = child_usage or sums.usage
        status = end_status(error)
        duration_ms = round((self._clock.monotonic() - self._begin) * 1000, 3)
        ended = step_over(
            error,
            step_id=self._path,
            duration_ms=duration_ms,
            total=len(executions),
            usage=usage.to_json() if calls or child_usage is not None else None,
            model_calls=len(model_calls) if calls else None,
            tool_calls=len(tool_calls) if calls else None,
            attempts=sums.attempts if calls else None,
            output=UNSET if self.output_json is None else self.output_json,
        )
        if is_partial and isinstance(ended, StepFinished):
            ended = replace(ended, partial=True)
        entry = await self._recorder.record(self._key, ended)
        execution: StepExecution[object] = StepExecution(
            id=f"{self._context.run_id}/{self._key}",
            step_id=self._step.id,
            status=status,
            reason=error.message if error is not None else None,
            output=output,
            error=error,
            model_calls=model_calls,
            tool_calls=tool_calls,
            calls=calls,
            iterations=executions,
            optional=self._step.is_optional,
            started_at=self._started_at,
            completed_at=entry.at,
            duration_ms=duration_ms,
            is_partial=is_partial,
        )
        self._step_manager.record(execution)
        return execution
