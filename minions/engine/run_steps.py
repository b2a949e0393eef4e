"""The steps of one run: each with its condition, its limits, what is recorded of it, its end."""

from __future__ import annotations

from typing import cast

from minions.contracts.calls import ModelCallExecutorFactory, ToolCallExecutorFactory
from minions.contracts.codec import encode
from minions.contracts.completion import CompletionMode
from minions.contracts.errors import FailureInfo, MinionsError
from minions.contracts.executions import StepExecution, StepStatus
from minions.contracts.json_values import JsonValue
from minions.contracts.steps import PythonStep, Step
from minions.engine.build import BuiltRecipe, LoopControl, StepControl
from minions.engine.code_steps import SetStep
from minions.engine.context import AgentContext, LoopItem
from minions.engine.loops import StepLoop
from minions.engine.replay import KnowsItsInputs
from minions.engine.run_models import RunModels
from minions.engine.scheduling import Skip
from minions.engine.step_executor import StepExecutor

__all__ = ["RunSteps"]


class RunSteps:
    """Runs a step when the walk comes to it. What an earlier leg of the run ended is not run."""

    def __init__(
        self,
        context: AgentContext,
        built: BuiltRecipe,
        models: RunModels,
        tool_call_executor_factory: ToolCallExecutorFactory,
        *,
        waits_for_decision: bool,
    ) -> None:
        """Take what was prepared.

        Args:
            waits_for_decision: Nothing is begun; what is recorded is told.
        """
        self._context = context
        self._built = built
        self._models = models
        self._tool_factory = tool_call_executor_factory
        self._waits_for_decision = waits_for_decision
        self._has_redone = False
        """Whether a step was run: after that, code that cannot tell its inputs is not reused."""
        self._newest_end = 0
        """Of the recorded ends that stand: code that began before it did not see that."""
        self.failed: StepExecution[object] | None = None
        """The first required step that FAILED."""

    def may_start(self) -> bool:
        """Whether the run's limits leave room for one more step."""
        self._context.check_time()
        return self._context.ledger.may_start_step()

    def has_ended_before(self, step: Step[object]) -> bool:
        """Whether an earlier leg of the run recorded its end."""
        return self._recorded_end(step) is not None

    async def run(self, step: Step[object]) -> StepStatus:
        """One step with its condition; its result becomes readable for the others."""
        context = self._context
        control = self._built.control(step.id)
        if control.when is not None and not await self._holds(step):
            return StepStatus.SKIPPED if self._failed_condition(step) is None else StepStatus.FAILED
        if context.replay is not None:
            recorded = self._recorded_end(step)
            if recorded is not None and control.loop is not None:
                context.ledger.steps += 1
                return await self._run_loop(step, control, control.loop)  # tells its items again
            if recorded is not None and self._may_reuse(step, recorded):
                return self._reuse(step, recorded)
        if self._waits_for_decision:
            await self.skip(step, Skip("the run waits for a decision"))
            return StepStatus.SKIPPED
        ledger = context.ledger
        if not self.may_start():
            await self.skip(step, Skip(f"the run's limit {ledger.reached} is reached"))
            return StepStatus.SKIPPED
        ledger.steps += 1
        is_quick = type(step) is SetStep and not step.has_limits and control.loop is None
        if is_quick and await self._bind(cast("SetStep", step), control):
            return StepStatus.COMPLETED
        if control.loop is not None:
            return await self._run_loop(step, control, control.loop)
        executor = self._executor(step, await self._models_for(step))
        execution = await executor.execute()
        self._has_redone = True
        return self._told(step, execution, executor.output_json, control)

    async def _models_for(self, step: Step[object]) -> ModelCallExecutorFactory:
        is_code = isinstance(step, PythonStep)
        return self._models.of_code() if is_code else await self._models.ready(step)

    async def _run_loop(
        self, step: Step[object], control: StepControl, loop: LoopControl
    ) -> StepStatus:
        models = await self._models_for(step)
        executor = StepLoop(
            step,
            loop,
            self._context,
            lambda item: self._executor(step, models, item),
            self._may_reuse_item,
        )
        execution = await executor.execute()
        self._has_redone = True
        return self._told(step, execution, executor.output_json, control)

    def _told(
        self,
        step: Step[object],
        execution: StepExecution[object],
        output: JsonValue,
        control: StepControl,
    ) -> StepStatus:
        """Later steps may read it now."""
        self._context.publish_result(step, execution.status, output, control.save_as)
        self._note_failure(execution)
        return execution.status

    async def _bind(self, step: SetStep, control: StepControl) -> bool:
        """A `set` step without any of an executor's parts; False: it needs one to say why not."""
        context, step_id = self._context, step.id
        try:
            output = encode(step.bind(context.values))
        except (MinionsError, TypeError):
            return False
        status = StepStatus.COMPLETED
        key = context.execution_key(step_id, context.step_manager.visits(step_id) + 1)
        body: dict[str, JsonValue] = {"step_id": step_id, "status": "completed", "output": output}
        entry = await context.recorder.record("step", key, "finished", body)
        context.step_manager.record(
            StepExecution(
                id=f"{context.run_id}/{key}",
                step_id=step_id,
                status=status,
                output=output,
                optional=step.spec.optional,
                started_at=entry.at,
                completed_at=entry.at,
                completion_mode=CompletionMode.TEXT,
            )
        )
        context.publish_result(step, status, output, control.save_as)
        context.services.log.info("step_finished", step_id=step_id, status="completed")
        self._has_redone = True
        return True

    def _executor(
        self,
        step: Step[object],
        models: ModelCallExecutorFactory,
        item: LoopItem | None = None,
    ) -> StepExecutor[object]:
        def make() -> StepExecutor[object]:
            return StepExecutor(
                step,
                self._context,
                models,
                self._tool_factory,
                options=self._models.options(step),
                item=item,
            )

        executor, replay = make(), self._context.replay
        if replay is not None and replay.checks_inputs and executor.is_begun_otherwise():
            replay.forget(executor.base)
            executor = make()
        return executor

    # --- what an earlier leg did --------------------------------------------------------------

    def _recorded_end(self, step: Step[object]) -> StepExecutor[object] | None:
        """The executor of a step that has ended before; None where it is to be run."""
        replay = self._context.replay
        if replay is None:
            return None
        base = self._base(step)
        rows = replay.execution(base)
        if rows is None or rows.ended is None:
            return None
        is_python = isinstance(step, PythonStep)
        return self._executor(step, self._models.of_code() if is_python else self._models.of(step))

    def _base(self, step: Step[object]) -> str:
        return f"{step.id}/{self._context.step_manager.visits(step.id) + 1}/0"

    def _may_reuse(self, step: Step[object], executor: StepExecutor[object]) -> bool:
        """Whether the end stands; a step that would do something else now is begun anew."""
        replay = self._context.replay
        if replay is None or not replay.checks_inputs:
            return True
        knows = not isinstance(step, PythonStep) or isinstance(step, KnowsItsInputs)
        is_same = executor.is_unchanged() if knows else not self._is_outdated(step)
        if not is_same:
            replay.forget(self._base(step))
        return is_same

    def _is_outdated(self, step: Step[object]) -> bool:
        """Whether something before it was done again since the step began."""
        replay = self._context.replay
        rows = replay.execution(self._base(step)) if replay is not None else None
        return self._has_redone or rows is None or rows.rows[0].position < self._newest_end

    def _may_reuse_item(self, executor: StepExecutor[object]) -> bool:
        """Likewise, for one item of a loop."""
        replay = self._context.replay
        is_same = replay is None or not replay.checks_inputs or executor.is_unchanged()
        if not is_same and replay is not None:
            replay.forget(executor.base)
        return is_same

    def _reuse(self, step: Step[object], executor: StepExecutor[object]) -> StepStatus:
        replay = self._context.replay
        rows = replay.execution(self._base(step)) if replay is not None else None
        if rows is not None and rows.ended is not None:
            self._newest_end = max(self._newest_end, rows.ended.position)
        execution = executor.recorded()
        self._context.ledger.steps += 1
        control = self._built.control(step.id)
        return self._told(step, execution, executor.output_json, control)

    async def _holds(self, step: Step[object]) -> bool:
        """Whether `when` is true; a condition that cannot be read fails the step."""
        condition = self._built.control(step.id).when
        assert condition is not None  # noqa: S101  # asked only where there is one
        try:
            holds = condition.holds(self._context.values)
        except MinionsError as error:
            await self._record_end(step, StepStatus.FAILED, error=error.info())
            return False
        if not holds:
            await self.skip(step, Skip("its condition `when` is false"))
        return holds

    def _failed_condition(self, step: Step[object]) -> StepExecution[object] | None:
        execution = self._context.step_manager.latest(step.id)
        return execution if execution and execution.status is StepStatus.FAILED else None

    async def skip(self, step: Step[object], skip: Skip) -> None:
        """Record that it was passed over, and why."""
        await self._record_end(step, StepStatus.SKIPPED, reason=skip.reason)

    async def _record_end(
        self,
        step: Step[object],
        status: StepStatus,
        *,
        reason: str | None = None,
        error: FailureInfo | None = None,
    ) -> None:
        """A step that ended without being executed."""
        context = self._context
        now = context.services.clock.now()
        execution: StepExecution[object] = StepExecution(
            id=f"{context.run_id}/{self._base(step)}",
            step_id=step.id,
            status=status,
            reason=reason or (error.message if error else None),
            error=error,
            optional=step.is_optional,
            started_at=now,
            completed_at=now,
        )
        body: dict[str, JsonValue] = {"step_id": step.id, "status": status.value}
        body["reason"] = execution.reason
        if error is not None:
            body["error"] = dict(error.to_json())
        key = self._base(step)
        state = "failed" if error else "skipped"
        await context.recorder.record("step", key, state, body)
        context.step_manager.record(execution)
        context.publish_result(step, status, None)
        self._note_failure(execution)

    def _note_failure(self, execution: StepExecution[object]) -> None:
        is_failure = execution.status is StepStatus.FAILED and not execution.optional
        if is_failure and self.failed is None:
            self.failed = execution
