"""A step that is done for each item of a list: in order or several at a time, all of them tried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from minions.contracts.errors import FailureInfo, MinionsError
from minions.contracts.executions import StepExecution, StepStatus
from minions.contracts.json_values import JsonValue, json_type
from minions.contracts.messages import TokenUsage
from minions.contracts.steps import Step
from minions.engine.build import LoopControl
from minions.engine.context import AgentContext, LoopItem
from minions.engine.step_executor import CUT_OFF, StepExecutor

__all__ = ["StepLoop"]

MakeExecutor: TypeAlias = Callable[[LoopItem], StepExecutor[object]]
"""The executor of one iteration."""
MayReuse: TypeAlias = Callable[[StepExecutor[object]], bool]
"""Whether what an earlier leg of the run recorded of it stands."""

_MOST_SHOWN = 5


class StepLoop:
    """One loop, once. Its own rows stand at iteration 0, those of the items at 1, 2, 3."""

    def __init__(
        self,
        step: Step[object],
        control: LoopControl,
        context: AgentContext,
        make_executor: MakeExecutor,
        may_reuse: MayReuse,
    ) -> None:
        self._step = step
        self._control = control
        self._context = context
        self._make_executor = make_executor
        self._may_reuse = may_reuse
        visit = context.step_manager.visits(step.id) + 1
        self._key = context.execution_key(step.id, visit)
        self._clock = context.services.clock
        self._started_at = self._clock.now()
        self._begin = self._clock.monotonic()
        self.output_json: JsonValue = None
        """What later steps read."""

    async def execute(self) -> StepExecution[object]:
        """All items; COMPLETED when every one is, else FAILED with what went wrong where.

        Raises:
            JournalError: A fact could not be stored.
            CancelledError: Passes through, after the loop was recorded as cut off.
        """
        try:
            items = self._items()
        except MinionsError as problem:
            return await self._end((), problem.info())
        body: dict[str, JsonValue] = {"step_id": self._step.id, "total": len(items)}
        await self._context.recorder.record("step", self._key, "started", body)
        done: list[StepExecution[object] | None] = [None] * len(items)
        outputs: list[JsonValue] = [None] * len(items)
        try:
            await self._do_all(items, done, outputs)
        except asyncio.CancelledError:
            await self._end(_present(done), _cut_off(self._step.id, self._context))
            raise
        executions = _present(done)
        error = self._failure(executions, len(items))
        if error is None or error.code == "loop-failed":
            self.output_json = self._output(executions, outputs)
        return await self._end(executions, error)

    def _items(self) -> list[JsonValue]:
        """The list, now.

        Raises:
            MinionsError: The template cannot be filled, or gives something else.
        """
        value = self._control.over.render(self._context.values)
        if isinstance(value, list):
            return value
        raise MinionsError(
            f"The loop of step '{self._step.id}' goes over a JSON {json_type(value)}, not over a "
            f"list. Name the list itself in `loop`.{_lists_in(value)}",
            code="loop-not-a-list",
        )

    async def _do_all(
        self,
        items: Sequence[JsonValue],
        done: list[StepExecution[object] | None],
        outputs: list[JsonValue],
    ) -> None:
        waiting = iter(enumerate(items))

        async def work() -> None:
            for index, value in waiting:
                executor = self._make_executor(item := LoopItem(value=value, index=index))
                if not (executor.has_recorded_end or self._may_go_on()):
                    return
                done[index], outputs[index] = await self._one(item, executor)

        workers = min(self._control.max_parallel, len(items))
        if workers <= 1:
            await work()
            return
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(work())

    async def _one(
        self, item: LoopItem, executor: StepExecutor[object]
    ) -> tuple[StepExecution[object], JsonValue]:
        if executor.has_recorded_end:
            if self._may_reuse(executor):
                return executor.recorded(), executor.output_json
            executor = self._make_executor(item)  # it begins anew
        execution = await executor.execute()
        return execution, executor.output_json

    def _may_go_on(self) -> bool:
        self._context.check_time()
        return self._context.ledger.reached is None

    # --- what came out ------------------------------------------------------------------------

    def _failure(
        self, executions: Sequence[StepExecution[object]], total: int
    ) -> FailureInfo | None:
        ledger = self._context.ledger
        cut_off = [each for each in executions if each.error and each.error.code in CUT_OFF]
        if len(executions) < total or cut_off:
            ledger.has_refused = True
            return ledger.failure()
        failed = [at for at, each in enumerate(executions) if each.status is StepStatus.FAILED]
        if not failed:
            return None
        words = [f"item {at}: {_message(executions[at])}" for at in failed[:_MOST_SHOWN]]
        more = f" … and {len(failed) - _MOST_SHOWN} more" if len(failed) > _MOST_SHOWN else ""
        return FailureInfo(
            code="loop-failed",
            message=f"{len(failed)} of {total} items of step '{self._step.id}' failed: "
            f"{'; '.join(words)}{more}. The others are kept.",
            where=self._step.id,
        )

    def _output(
        self, executions: Sequence[StepExecution[object]], outputs: Sequence[JsonValue]
    ) -> JsonValue:
        good = [
            outputs[at] for at, each in enumerate(executions) if each.status is StepStatus.COMPLETED
        ]
        if self._control.aggregate:
            return good
        errors: list[JsonValue] = [
            {"index": at, "error": dict(each.error.to_json()) if each.error else None}
            for at, each in enumerate(executions)
            if each.status is StepStatus.FAILED
        ]
        return {
            "results": good,
            "errors": errors,
            "total": len(executions),
            "successful": len(good),
            "failed": len(errors),
        }

    async def _end(
        self, executions: tuple[StepExecution[object], ...], error: FailureInfo | None
    ) -> StepExecution[object]:
        calls = tuple(call for each in executions for call in each.calls)
        usage = sum((each.usage for each in executions), TokenUsage())
        status = StepStatus.COMPLETED if error is None else StepStatus.FAILED
        duration_ms = round((self._clock.monotonic() - self._begin) * 1000, 3)
        model_calls = tuple(call for each in executions for call in each.model_calls)
        tool_calls = tuple(call for each in executions for call in each.tool_calls)
        body: dict[str, JsonValue] = {
            "step_id": self._step.id,
            "status": status.value,
            "duration_ms": duration_ms,
            "total": len(executions),
        }
        if calls:
            body["usage"] = usage.to_json()
            body["model_calls"] = len(model_calls)
            body["tool_calls"] = len(tool_calls)
            body["attempts"] = max(each.attempts for each in executions)
        if error is not None:
            body["error"] = dict(error.to_json())
            body["reason"] = error.message
        if self.output_json is not None:
            body["output"] = self.output_json
        entry = await self._context.recorder.record("step", self._key, _state(error), body)
        execution: StepExecution[object] = StepExecution(
            id=f"{self._context.run_id}/{self._key}",
            step_id=self._step.id,
            status=status,
            reason=error.message if error is not None else None,
            output=self._typed_output(executions) if error is None else None,
            error=error,
            model_calls=model_calls,
            tool_calls=tool_calls,
            calls=calls,
            iterations=executions,
            optional=self._step.is_optional,
            started_at=self._started_at,
            completed_at=entry.at,
            duration_ms=duration_ms,
        )
        self._context.step_manager.record(execution)
        return execution

    def _typed_output(self, executions: Sequence[StepExecution[object]]) -> object:
        """As the steps gave it: an aggregated loop of typed outputs is a list of those."""
        if self._control.aggregate:
            return [each.output for each in executions]
        return {**cast("dict[str, object]", self.output_json)}


def _present(
    done: Sequence[StepExecution[object] | None],
) -> tuple[StepExecution[object], ...]:
    return tuple(each for each in done if each is not None)


def _state(error: FailureInfo | None) -> str:
    if error is None:
        return "finished"
    return "interrupted" if error.code in CUT_OFF else "failed"


def _cut_off(step_id: str, context: AgentContext) -> FailureInfo:
    if context.is_out_of_time:
        context.ledger.run_out_of_time()
        return context.ledger.failure()
    return FailureInfo(code="cancelled", message=f"Step '{step_id}' was cancelled.")


def _message(execution: StepExecution[object]) -> str:
    error = execution.error
    return error.message if error is not None else execution.reason or "it failed"


def _lists_in(value: JsonValue) -> str:
    """Where in a mapping the lists are: most often the wrapper was named."""
    if not isinstance(value, dict):
        return ""
    names = [name for name, item in value.items() if isinstance(item, list)]
    return f" There is one at '.{names[0]}'." if names else ""
