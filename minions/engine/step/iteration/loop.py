"""A step that is done for each item of a list: in order or several at a time, all of them tried."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, cast

from attrs import evolve, frozen

from minions.contracts.executions import StepExecution, StepStatus
from minions.contracts.flow import STARTED_TOGETHER
from minions.contracts.runtime import WorkSlices
from minions.contracts.steps import Step
from minions.data.errors import CIRCUIT_OPEN, UNREACHABLE, FailureInfo, MinionsError
from minions.data.json_values import JsonValue, json_type
from minions.engine.compile.build import LoopControl
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.run_progress import LoopItem
from minions.engine.services.event_loop import beside, breathe
from minions.engine.services.run_services import room_for_more
from minions.engine.step.iteration.iterated_step import IteratedStep, MakeExecutor, MayReuse
from minions.engine.step.work import CUT_OFF, all_waiting, cut_off, lacks_memory
from minions.recipe.expressions.values import weight_up_to

LOOP_FAILED: Final = "loop-failed"
"""Code of a loop too many of whose items failed; the results of the others are its output."""

_MOST_SHOWN = 5
_MOST_NODES: Final = 4_194_304
"""Values, and KiB of text, in all results together."""
_ITEMS: Final = 32
"""Items in a turn: some milliseconds, where they wait for nothing."""
_NO_SERVER: Final = frozenset((UNREACHABLE, CIRCUIT_OPEN))


@frozen(kw_only=True)
class _Outcome:
    """What all items came to together."""

    executions: tuple[StepExecution[object], ...]
    error: FailureInfo | None
    typed: object
    is_partial: bool


class StepLoop(IteratedStep):
    """One execution of a loop."""

    def __init__(
        self,
        step: Step[object],
        control: LoopControl,
        context: AgentContext,
        make_executor: MakeExecutor,
        may_reuse: MayReuse,
    ) -> None:
        super().__init__(step, context, make_executor, may_reuse)
        self._control = control
        self._slices = WorkSlices(_ITEMS)
        self._is_unreachable = False
        """Whether the model's server cannot be reached: then no further item starts."""
        self._is_paused = False
        """Whether an item waits until its server may be asked: then no further item starts."""
        self._total_nodes = 0
        self._is_too_large = False
        """Whether the results so far are too large together: then no further item starts."""

    async def execute(self) -> StepExecution[object]:
        """All items; COMPLETED when every one is, else FAILED with what went wrong where.

        Raises:
            JournalError: A fact could not be stored.
            CancelledError: Passes through, after the loop was recorded as cut off.
        """
        try:
            items = await self._items()
        except MinionsError as problem:
            return await self._end((), problem.info(), None)
        self._progress.loop_sizes[self._step.id] = len(items)
        await self._record_start(total=len(items))
        done: list[StepExecution[object] | None] = [None] * len(items)
        outputs: list[JsonValue] = [None] * len(items)
        try:
            await self._do_all(items, done, outputs)
        except asyncio.CancelledError:
            await self._end(_present(done), cut_off(self._step.id, self._context), None)
            raise
        outcome = await beside(
            self._services.beside,
            len(items),
            lambda: self._outcome(items, done, outputs),
        )
        return await self._end(
            outcome.executions, outcome.error, outcome.typed, is_partial=outcome.is_partial
        )

    def _outcome(
        self,
        items: Sequence[JsonValue],
        done: Sequence[StepExecution[object] | None],
        outputs: Sequence[JsonValue],
    ) -> _Outcome:
        executions = _present(done)
        error = self._failure(executions, len(items))
        if error is None or error.code == LOOP_FAILED:
            self.output_json = self._output(executions, items, outputs)
        return _Outcome(
            executions=executions,
            error=error,
            typed=self._typed_output(executions) if error is None else None,
            is_partial=error is None
            and any(not each.is_complete or each.is_partial for each in executions),
        )

    async def _items(self) -> list[JsonValue]:
        """The items, from the template as it renders now.

        Raises:
            MinionsError: The template cannot be filled, or gives something else.
        """
        over = self._control.over
        value = await beside(
            self._services.beside,
            self._values.reads_much(over.references),
            lambda: over.render(self._context.values),
        )
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
        waiting, services = iter(enumerate(items)), self._services

        async def work() -> None:
            for index, value in waiting:
                if self._slices.is_over():
                    await breathe()  # items may wait for nothing, and be replayed
                executor = self._make_executor(item := LoopItem(value=value, index=index))
                if not executor.has_ended_before:
                    await room_for_more(services)  # what has not begun takes no memory
                    if not self._may_start() and self._scope.replay is None:
                        return
                    if not self._may_start():
                        continue  # a later one may have ended before
                execution, outputs[index] = await self._one(item, executor)
                self._weigh(outputs[index])
                done[index] = execution
                self._is_unreachable |= _found_no_server(execution)
                self._note_pause(execution)

        workers = min(self._control.max_parallel, len(items))
        if workers <= 1:
            await work()
            return
        async with asyncio.TaskGroup() as group:
            for number in range(1, workers + 1):
                group.create_task(work())
                if number % STARTED_TOGETHER == 0:
                    await asyncio.sleep(0)  # so that what has begun can join the line of its server
                    await room_for_more(services)

    def _may_start(self) -> bool:
        """Whether another item starts; each would spend all its attempts on a dead server."""
        is_over = self._is_unreachable or self._is_too_large or self._is_paused
        return not is_over and self._may_go_on()

    def _note_pause(self, execution: StepExecution[object]) -> None:
        """Where an item waits for the server, so would each further one."""
        pause = self._services.pause
        is_waiting = execution.status is StepStatus.IN_PROGRESS
        self._is_paused |= is_waiting and pause is not None and pause.until is not None

    def _weigh(self, output: JsonValue) -> None:
        """The results stand together in one value, also where items share one in memory."""
        self._total_nodes += weight_up_to(output, _MOST_NODES - self._total_nodes)
        self._is_too_large = self._total_nodes >= _MOST_NODES

    # --- what came out ------------------------------------------------------------------------

    def _failure(
        self, executions: Sequence[StepExecution[object]], total: int
    ) -> FailureInfo | None:
        if self._is_too_large:
            return FailureInfo(
                code="expression-budget",
                message=f"The results of step '{self._step.id}' have more than {_MOST_NODES:,} "
                "values or as many KiB of text together. Let each item give less.",
                where=self._path,
            )
        waiting = [each for each in executions if each.status is StepStatus.IN_PROGRESS]
        if waiting:
            return all_waiting(each.error for each in waiting if each.error is not None)
        cut_off = [each for each in executions if each.error and each.error.code in CUT_OFF]
        # The first in the list, not in time: a run that is resumed knows no other order.
        unreachable = next((each.error for each in executions if _found_no_server(each)), None)
        if unreachable is not None and len(executions) < total and not cut_off:
            return self._not_started(unreachable, total - len(executions))
        if len(executions) < total or cut_off:
            self._budget.refuse()
            return self._budget.failure()
        failed = [at for at, each in enumerate(executions) if each.status is StepStatus.FAILED]
        if not failed or self._is_enough(total - len(failed)):
            return None
        words = [
            f"item {at}: {_message(executions[at]).rstrip('.')}" for at in failed[:_MOST_SHOWN]
        ]
        more = f" … and {len(failed) - _MOST_SHOWN} more" if len(failed) > _MOST_SHOWN else ""
        return FailureInfo(
            code=LOOP_FAILED,
            message=f"{self._count_words(len(failed), total)}: {'; '.join(words)}{more}. "
            "The results of the others are kept.",
            where=self._path,
        )

    def _not_started(self, failure: FailureInfo, count: int) -> FailureInfo:
        return evolve(
            failure,
            message=f"{failure.message} {count} further items of step '{self._step.id}' were not "
            "started; a retry executes them.",
            where=self._path,
        )

    def _is_enough(self, successful: int) -> bool:
        return self._control.collects and successful >= self._control.min_successful

    def _count_words(self, failed: int, total: int) -> str:
        step = f"of {total} items of step '{self._step.id}'"
        if not self._control.collects or failed == total:
            return f"{failed} {step} failed"
        return (
            f"{total - failed} {step} succeeded; min_successful is {self._control.min_successful}"
        )

    def _output(
        self,
        executions: Sequence[StepExecution[object]],
        items: Sequence[JsonValue],
        outputs: Sequence[JsonValue],
    ) -> JsonValue:
        """The results in the order of the items, null where one failed."""
        results = [
            output if each.is_complete else None
            for output, each in zip(outputs, executions, strict=True)
        ]
        if self._control.aggregate:
            return results
        errors = [
            _error_of(at, items[at], each)
            for at, each in enumerate(executions)
            if not each.is_complete
        ]
        return {
            "results": results,
            "errors": errors,
            "total": len(results),
            "successful": len(results) - len(errors),
            "failed": len(errors),
        }

    def _typed_output(self, executions: Sequence[StepExecution[object]]) -> object:
        """The typed output: with `aggregate` a list of the iterations' outputs."""
        if self._control.aggregate:
            return [each.output for each in executions]
        return {**cast("dict[str, object]", self.output_json)}


def _found_no_server(execution: StepExecution[object]) -> bool:
    """Whether no further item would be answered: no server does, or the model has no room here."""
    return execution.error is not None and (
        execution.error.code in _NO_SERVER or lacks_memory(execution)
    )


def _present(
    done: Sequence[StepExecution[object] | None],
) -> tuple[StepExecution[object], ...]:
    return tuple(each for each in done if each is not None)


def _error_of(index: int, item: JsonValue, execution: StepExecution[object]) -> JsonValue:
    code = execution.error.code if execution.error is not None else "step-failed"
    return {"index": index, "item": item, "code": code, "message": _message(execution)}


def _message(execution: StepExecution[object]) -> str:
    error = execution.error
    return error.message if error is not None else execution.reason or "it failed"


def _lists_in(value: JsonValue) -> str:
    """Where in a mapping the lists are: most often the wrapper was named."""
    if not isinstance(value, dict):
        return ""
    names = [name for name, item in value.items() if isinstance(item, list)]
    return f" There is one at '.{names[0]}'." if names else ""
