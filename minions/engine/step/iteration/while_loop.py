"""A step that is done again as long as a condition holds: bounded, and noticed when it is stuck."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from typing import cast

from minions.contracts.executions import StepExecution
from minions.contracts.steps import Step
from minions.data.errors import FailureInfo, MinionsError
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue, dumps_in_parts
from minions.engine.compile.build import WhileControl
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.run_progress import Attempt
from minions.engine.history.step_rows import EXHAUSTED, STUCK
from minions.engine.services.event_loop import beside
from minions.engine.step.iteration.iterated_step import IteratedStep, MakeExecutor, MayReuse
from minions.engine.step.work import cut_off


class StepWhile(IteratedStep):
    """One execution of a `while`: its attempts."""

    def __init__(
        self,
        step: Step[object],
        control: WhileControl,
        context: AgentContext,
        make_executor: MakeExecutor,
        may_reuse: MayReuse,
        *,
        save_as: str | None,
    ) -> None:
        super().__init__(step, context, make_executor, may_reuse)
        self._control = control
        self._names = [step.id] if save_as is None else [step.id, save_as]
        self._outputs: list[JsonValue] = []
        self._first: dict[str, int] = {}
        """Where each output was given first, by its text."""
        self._executions: list[StepExecution[object]] = []

    async def execute(self) -> StepExecution[object]:
        """COMPLETED with what the last attempt gave, or with `aggregate` all of them; FAILED when
        one failed, none was enough, or one gave what an earlier one gave.

        Raises:
            JournalError: A fact could not be stored.
            CancelledError: Passes through, after the step was recorded as cut off.
        """
        await self._record_start(attempts=self._control.max_iterations)
        try:
            error = await self._attempts()
        except asyncio.CancelledError:
            error = cut_off(self._step.id, self._context)
            await self._end(tuple(self._executions), error, None)
            raise
        typed, is_partial = None, False
        if error is None:
            last = self._executions[-1]
            self.output_json, typed, is_partial = self._outputs[-1], last.output, last.is_partial
            if self._control.aggregate:
                self.output_json = list(self._outputs)
                typed = [each.output for each in self._executions]
        return await self._end(tuple(self._executions), error, typed, is_partial=is_partial)

    async def _attempts(self) -> FailureInfo | None:
        """One after the other; why they were not enough."""
        for index in range(self._control.max_iterations):
            attempt = Attempt(index=index, outputs=self._outputs)
            await asyncio.sleep(0)  # attempts may take no time, and others wait: a timeout
            executor = self._make_executor(attempt)
            if not (executor.has_ended_before or self._may_go_on()):
                self._budget.refuse()
                return self._budget.failure()
            execution, output = await self._one(attempt, executor)
            self._executions.append(execution)
            if not execution.is_complete:
                return execution.error
            self._outputs.append(output)
            try:
                if not await self._holds(index):
                    return None
            except MinionsError as error:
                return error.info()
            if self._control.allow_repeats:
                continue
            twin = await beside(self._services.beside, is_large(output), self._twin)
            if twin is not None:
                return self._stuck(index, twin)
        return self._exhausted()

    async def _holds(self, index: int) -> bool:
        """Whether the condition asks for another attempt."""
        last = self._outputs[-1]
        attempt = Attempt(index=index, outputs=self._outputs)
        here: dict[str, JsonValue] = dict.fromkeys(self._names, last)
        here["loop"] = attempt.loop
        values = cast("dict[str, JsonValue]", self._context.values)
        steps = cast("dict[str, JsonValue]", values["steps"])
        here["steps"] = {**steps, self._step.id: {"output": last}}
        names, condition = ChainMap(here, values), self._control.condition
        is_long = self._values.reads_much(condition.references, names) or is_large(last)
        return await beside(self._services.beside, is_long, lambda: condition.holds(names))

    def _twin(self) -> int | None:
        """The earlier attempt with the same output as the last one; None: there is none."""
        last = len(self._outputs) - 1
        first = self._first.setdefault(dumps_in_parts(self._outputs[last]), last)
        return first if first < last else None

    def _stuck(self, index: int, twin: int) -> FailureInfo:
        return FailureInfo(
            code=STUCK,
            message=f"Step '{self._step.id}' is stuck: attempt {index + 1} gave the same as "
            f"attempt {twin + 1}, and '{self._control.text}' still holds. Show it what was tried "
            "(`loop.attempts`), or set allow_repeats.",
            where=self._path,
        )

    def _exhausted(self) -> FailureInfo:
        most = self._control.max_iterations
        return FailureInfo(
            code=EXHAUSTED,
            message=f"After {most} attempts of step '{self._step.id}' '{self._control.text}' still "
            "holds (max_iterations). All attempts are kept.",
            where=self._path,
        )
