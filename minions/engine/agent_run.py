"""One run of a recipe: its walk through the graph, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

import attrs
from attrs import evolve, field, frozen

from minions.contracts.calls import (
    ChatModel,
    ModelCallExecutorFactory,
    ModelOptions,
    OutputParser,
    ToolCallExecutorFactory,
)
from minions.contracts.codec import decode, encode
from minions.contracts.completion import CompletionMode
from minions.contracts.errors import FailureInfo, JournalError, MinionsError, words_of
from minions.contracts.executions import AgentResult, RunStatus, StepExecution, StepStatus
from minions.contracts.json_values import JsonValue
from minions.contracts.schema import SchemaValidator
from minions.contracts.steps import PythonStep, Step
from minions.engine.build import BuiltRecipe, SetStep, StepControl
from minions.engine.context import AgentContext, ModelSource
from minions.engine.decisions import doubt
from minions.engine.error_groups import leading_error
from minions.engine.event_stream import Listener
from minions.engine.graph import DependencyStepGraph
from minions.engine.model_calls import ModelCallExecutors, warm_up
from minions.engine.replay import KnowsItsInputs, OpenCall
from minions.engine.scheduling import DependencyWalk, Skip
from minions.engine.step_executor import StepExecutor
from minions.recipe.model import ExecutionMode, ModelConfig, OnFailure

__all__ = ["AgentRun", "GoingOn"]

_DEFAULT_BOUND = 100
"""Steps of a run whose graph may repeat steps and whose recipe sets no `max_steps`."""


@frozen(kw_only=True)
class _End:
    status: RunStatus
    error: FailureInfo | None = None


@frozen(kw_only=True)
class GoingOn:
    """How a recorded run goes on."""

    retries: bool = False
    """Whether failed steps, and those that read something else now, run again."""
    anew: frozenset[str] = frozenset()
    """Steps that run again whatever they left."""
    decisions: Mapping[str, str] = field(factory=dict)
    """What is to become of calls in doubt, by key."""
    doubt: tuple[OpenCall, ...] = ()
    """Calls that wait for a decision: nothing is done until there is one."""


class AgentRun:
    """Prepared by an `AgentExecutor`; runs once."""

    def __init__(
        self,
        context: AgentContext,
        built: BuiltRecipe,
        *,
        models: ModelSource,
        loaded: dict[tuple[int, bool], ChatModel],
        model_call_executor_factory: ModelCallExecutorFactory | None,
        tool_call_executor_factory: ToolCallExecutorFactory,
        output_class: type[object] | None,
        output_check: SchemaValidator | None,
        note: Mapping[str, JsonValue] | None = None,
        going_on: GoingOn | None = None,
        is_over: bool = False,
    ) -> None:
        """Take what was prepared.

        Args:
            loaded: Models that need no more loading; shared by the runs of one executor.
            output_check: Of what `output_class` says.
            note: What the caller wants to find again when the run goes on; stored with its start.
            going_on: How it goes on; None: it is new.
            is_over: It came to its output before: it is told again, and nothing is stored.
        """
        self._is_over = is_over
        self._note = dict(note or {})
        self._going_on = going_on
        self._has_redone = False
        """Whether a step ended otherwise than an earlier leg of the run recorded."""
        self.context = context
        self._built = built
        self._models = models
        self._own_model_factory = model_call_executor_factory
        self._tool_factory = tool_call_executor_factory
        self._output_class = output_class
        self._output_check = output_check
        self._factories: dict[ModelConfig, ModelCallExecutors] = {}
        self._loaded = loaded
        self._warm: dict[tuple[int, bool], asyncio.Future[None]] = {}
        """What is loaded or being loaded, by factory and whether answers are constrained."""
        self._option_sets: dict[ModelConfig, ModelOptions] = {}
        self._code_factory: ModelCallExecutorFactory | None = None
        self._failed: StepExecution[object] | None = None
        self._problem: FailureInfo | None = None
        self._is_cancel_wanted = False
        self._task: asyncio.Task[object] | None = None

    @property
    def run_id(self) -> str:
        """`run_…`."""
        return self.context.run_id

    @property
    def session_id(self) -> str:
        """`ses_…`."""
        return self.context.session_id

    @property
    def model_name(self) -> str | None:
        """Which models answer, as far as is known; None when none is needed."""
        names = dict.fromkeys(factory.model.name for factory in self._factories.values())
        return ", ".join(names) or None

    def listen(self, listener: Listener) -> None:
        """Hand every event from now on to `listener`."""
        self.context.events.listen(listener)

    def outlook(self) -> Iterator[str]:
        """What is kept of a recorded run and what is to be done, for a person."""
        replay = self.context.replay
        if replay is None:
            return
        kept, begun, again = [], [], []
        for step in self._built.graph.steps:
            rows = replay.execution(f"{step.id}/1/0")
            if rows is not None and rows.ended is not None:
                kept.append(step.id)
            elif rows is not None:
                begun.append(step.id)
            else:
                again.append(step.id)
        yield f"run {self.run_id} goes on"
        if_unchanged = " (where what they read is the same)" if replay.checks_inputs else ""
        for words, ids in ((f"kept{if_unchanged}", kept), ("half done", begun), ("to do", again)):
            if ids:
                yield f"  {words}: {_few(ids)}"

    def cancel(self) -> None:
        """Stop as soon as may be; `execute` then returns a CANCELLED result."""
        if self._task is not None and not self._is_cancel_wanted:
            self._task.cancel()
        self._is_cancel_wanted = True

    # --- models ---------------------------------------------------------------------------

    def model_factory_for(self, step: Step[object]) -> ModelCallExecutorFactory:
        """How this step's model is called; made once per configuration.

        Raises:
            EnvironmentRefusedError: No model is configured, or its key is missing.
        """
        if self._own_model_factory is not None:
            return self._own_model_factory
        return self._executors(self._model_config(step))

    def require_model(self, config: ModelConfig) -> None:
        """Make sure before the run that there is one.

        Raises:
            EnvironmentRefusedError: No model is configured, or its key is missing.
        """
        if self._own_model_factory is None:
            self._executors(config)

    def _executors(self, config: ModelConfig) -> ModelCallExecutors:
        factory = self._factories.get(config)
        if factory is None:
            factory = self._factories[config] = ModelCallExecutors(self._models(config))
        return factory

    def _model_config(self, step: Step[object]) -> ModelConfig:
        return self._built.model_config(self.context.recipe, step.id)

    # --- the run ----------------------------------------------------------------------------

    async def execute(self) -> AgentResult[object]:
        """Run to the end. Once begun, every end is a result.

        Raises:
            LeaseHeldError, JournalError: The journal refused before anything was done.
            CancelledError: The task was cancelled by somebody else; what was done is recorded.
        """
        recorder = self.context.recorder
        if not self._is_over:
            await recorder.open()
        try:
            if not self._is_over:
                await self._record_start()
            try:
                end = _CANCELLED if self._is_cancel_wanted else await self._walk_until_cancelled()
            except asyncio.CancelledError:
                await self._finish(_CANCELLED)
                raise
            return await self._finish(end)
        finally:
            await recorder.close()

    async def _walk_until_cancelled(self) -> _End:
        """The walk, in reach of `cancel` from its first moment to its last."""
        self._task = task = asyncio.current_task()
        try:
            end = await self._walk_within_time()
            if self._is_cancel_wanted:
                await asyncio.sleep(0)  # the request arrives here, not at the caller's
        except asyncio.CancelledError:
            # Our own request is used up here; any other one goes on to whoever made it.
            if task is None or not self._is_cancel_wanted or task.uncancel() > 0:
                raise
            return _CANCELLED
        else:
            return end
        finally:
            self._task = None

    async def _record_start(self) -> None:
        context = self.context
        recipe = context.recipe
        body: dict[str, JsonValue] = {
            "recipe": recipe.id,
            "version": recipe.version,
            "inputs": context.inputs,
            "model": self.model_name,
        }
        if self._note:
            body["note"] = self._note
        if self._built.document is not None:
            journal = context.services.journal
            body["document"] = await journal.put_blob(self._built.document)
            body["directory"] = recipe.directory
        else:
            body["steps"] = {step.id: step.version for step in self._built.graph.steps}
        going_on = self._going_on
        if going_on is None:
            await context.recorder.record("run", "run", "started", body)
            context.services.log.info("run_started", run_id=self.run_id, recipe=recipe.id)
            return
        body["retries"] = going_on.retries
        body["anew"] = sorted(going_on.anew)
        body["decisions"] = dict(going_on.decisions)
        await context.recorder.record("run", "run", "resumed", body)
        context.services.log.info("run_resumed", run_id=self.run_id, recipe=recipe.id)
        for call in going_on.doubt:
            facts: dict[str, JsonValue] = {
                "step_id": call.step_id,
                "tool": call.tool,
                "arguments": call.arguments,
            }
            await context.recorder.record("tool_call", call.key, "in_doubt", facts)

    async def _walk_within_time(self) -> _End:
        context = self.context
        context.deadline = deadline = asyncio.timeout(context.limits.timeout_s)
        try:
            async with deadline:
                await self._walk()
        except Exception as error:  # noqa: BLE001  # the rim of a run: once begun, every end is a result
            if not (isinstance(error, TimeoutError) and deadline.expired()):
                return _End(status=RunStatus.FAILED, error=_raised(leading_error(error)))
            context.ledger.run_out_of_time()
        return self._verdict()

    async def _walk(self) -> None:
        graph = self._built.graph
        if not isinstance(graph, DependencyStepGraph):
            await self._walk_transitions()
            return
        recipe = self.context.recipe
        is_parallel = recipe.execution_mode is ExecutionMode.PARALLEL
        walk = DependencyWalk(
            graph,
            run=self._run_step,
            skip=self._record_skip,
            stop_reason=self._stop_reason,
            max_parallel=recipe.max_parallel if is_parallel else 1,
        )
        await walk.walk()

    async def _walk_transitions(self) -> None:
        manager, limits = self.context.step_manager, self.context.limits
        bound = limits.max_steps or (_DEFAULT_BOUND if limits.allow_repeated_steps else None)
        while (step := manager.current_step) is not None:
            if self._is_waiting_for_decision and self._recorded_end(step) is None:
                return
            if manager.visits(step.id) and not limits.allow_repeated_steps:
                self._problem = _repeated(step.id)
                return
            if bound is not None and self.context.ledger.steps >= bound:
                self.context.ledger.stop_at("max_steps", bound)
                return
            if not self._may_start_step():
                return
            await self._run_step(step)
            if self._failed is not None:
                return
            await manager.advance_to_next_step(self.context, self._tool_factory)

    @property
    def _is_waiting_for_decision(self) -> bool:
        return self._going_on is not None and bool(self._going_on.doubt)

    def _stop_reason(self) -> str | None:
        """Why nothing new may start."""
        if self._failed is not None and self.context.recipe.on_failure is OnFailure.STOP:
            return f"the run stopped: step '{self._failed.step_id}' failed"
        return None

    def _may_start_step(self) -> bool:
        self.context.check_time()
        return self.context.ledger.may_start_step()

    async def _run_step(self, step: Step[object]) -> StepStatus:
        """One step with its condition; its result becomes readable for the others."""
        context = self.context
        control = self._built.control(step.id)
        if control.when is not None and not await self._holds(step):
            return StepStatus.SKIPPED if self._failed_condition(step) is None else StepStatus.FAILED
        if context.replay is not None:
            recorded = self._recorded_end(step)
            if recorded is not None and self._may_reuse(step, recorded):
                return self._reuse(step, recorded)
        if self._is_waiting_for_decision:
            await self._record_skip(step, Skip("the run waits for a decision"))
            return StepStatus.SKIPPED
        ledger = context.ledger
        if not self._may_start_step():
            await self._record_skip(step, Skip(f"the run's limit {ledger.reached} is reached"))
            return StepStatus.SKIPPED
        ledger.steps += 1
        if type(step) is SetStep and not step.has_limits and await self._bind(step, control):
            return StepStatus.COMPLETED
        is_code = isinstance(step, PythonStep)
        models = self._lazy_model() if is_code else await self._ready_models(step)
        executor = self._executor(step, models)
        execution = await executor.execute()
        self._has_redone = True
        context.publish_result(step, execution.status, executor.output_json, control.save_as)
        self._note_failure(execution)
        return execution.status

    async def _bind(self, step: SetStep, control: StepControl) -> bool:
        """A `set` step without any of an executor's parts; False: it needs one to say why not."""
        context, step_id = self.context, step.id
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
        self._has_redone = True
        return True

    def _executor(
        self, step: Step[object], models: ModelCallExecutorFactory
    ) -> StepExecutor[object]:
        return StepExecutor(
            step, self.context, models, self._tool_factory, options=self._options(step)
        )

    # --- what an earlier leg did --------------------------------------------------------------

    def _recorded_end(self, step: Step[object]) -> StepExecutor[object] | None:
        """The executor of a step that has ended before; None where it is to be run."""
        replay = self.context.replay
        if replay is None:
            return None
        base = self._base(step)
        rows = replay.execution(base)
        if rows is None or rows.ended is None:
            return None
        is_python = isinstance(step, PythonStep)
        return self._executor(
            step, self._lazy_model() if is_python else self.model_factory_for(step)
        )

    def _base(self, step: Step[object]) -> str:
        return f"{step.id}/{self.context.step_manager.visits(step.id) + 1}/0"

    def _may_reuse(self, step: Step[object], executor: StepExecutor[object]) -> bool:
        """Whether the end stands; a step that would do something else now is begun anew."""
        replay = self.context.replay
        if replay is None or not replay.checks_inputs:
            return True
        knows = not isinstance(step, PythonStep) or isinstance(step, KnowsItsInputs)
        is_same = executor.is_unchanged() if knows else not self._has_redone
        if not is_same:
            replay.forget(self._base(step))
        return is_same

    def _reuse(self, step: Step[object], executor: StepExecutor[object]) -> StepStatus:
        execution = executor.recorded()
        self.context.ledger.steps += 1
        save_as = self._built.control(step.id).save_as
        self.context.publish_result(step, execution.status, executor.output_json, save_as)
        self._note_failure(execution)
        return execution.status

    async def _ready_models(self, step: Step[object]) -> ModelCallExecutorFactory:
        """The step's way to its model, loaded before the step's clock starts."""
        factory = self.model_factory_for(step)
        constrains = step.output is not None
        if not isinstance(factory, ModelCallExecutors):
            return factory
        model = factory.model
        if (id(model), constrains) in self._loaded:
            return factory
        loading = self._warm.get((id(factory), constrains))
        if loading is None:
            parser = self.context.services.parser
            loading = asyncio.ensure_future(self._load(factory, parser, constrains=constrains))
            self._warm[id(factory), constrains] = loading
        await asyncio.shield(loading)  # parallel steps wait for the same loading
        self._loaded[id(model), constrains] = model
        return factory

    async def _load(
        self, factory: ModelCallExecutorFactory, parser: OutputParser, *, constrains: bool
    ) -> None:
        """Warm up; the run's own time stands still meanwhile."""
        loop, deadline = asyncio.get_running_loop(), self.context.deadline
        begin, end = loop.time(), deadline.when() if deadline is not None else None
        if deadline is None or end is None:
            await warm_up(factory, parser, constrains=constrains)
            return
        deadline.reschedule(None)
        try:
            await warm_up(factory, parser, constrains=constrains)
        finally:
            if not deadline.expired():
                deadline.reschedule(end + loop.time() - begin)

    def _lazy_model(self) -> ModelCallExecutorFactory:
        """A Python step's model is looked for only when it asks one."""
        if self._code_factory is None:
            base = self.context.recipe.model
            self._code_factory = self._own_model_factory or ModelCallExecutors(
                lambda: self._executors(base).model
            )
        return self._code_factory

    def _options(self, step: Step[object]) -> ModelOptions:
        config = self._model_config(step)
        options = self._option_sets.get(config)
        if options is None:
            options = self._option_sets[config] = config.options()
        return options

    async def _holds(self, step: Step[object]) -> bool:
        """Whether `when` is true; a condition that cannot be read fails the step."""
        condition = self._built.control(step.id).when
        assert condition is not None  # noqa: S101  # asked only where there is one
        try:
            holds = condition.holds(self.context.values)
        except MinionsError as error:
            await self._record_end(step, StepStatus.FAILED, error=error.info())
            return False
        if not holds:
            await self._record_skip(step, Skip("its condition `when` is false"))
        return holds

    def _failed_condition(self, step: Step[object]) -> StepExecution[object] | None:
        execution = self.context.step_manager.latest(step.id)
        return execution if execution and execution.status is StepStatus.FAILED else None

    async def _record_skip(self, step: Step[object], skip: Skip) -> None:
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
        context = self.context
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
        if is_failure and self._failed is None:
            self._failed = execution

    # --- the end ------------------------------------------------------------------------------

    def _verdict(self) -> _End:
        if self._going_on is not None and self._going_on.doubt:
            error = doubt(self._going_on.doubt, self.run_id)
            return _End(status=RunStatus.NEEDS_DECISION, error=error)
        if self._problem is not None:
            return _End(status=RunStatus.FAILED, error=self._problem)
        if self.context.ledger.has_refused:
            return _End(status=RunStatus.LIMIT_REACHED, error=self.context.ledger.failure())
        if self._failed is not None:
            return _End(status=RunStatus.FAILED, error=_step_failure(self._failed))
        if self.context.step_manager.has_failures:
            return _End(status=RunStatus.PARTIAL)
        return _End(status=RunStatus.COMPLETED)

    async def _finish(self, end: _End) -> AgentResult[object]:
        """The result, recorded. A store that fails now cannot hide what was done."""
        context = self.context
        context.step_manager.set_workflow_complete()
        end, output = self._output(end)
        try:
            if not self._is_over:
                await self._record_what_never_started(end)
                await self._record_end_of_run(end, output)
        except JournalError as error:
            end = _End(status=RunStatus.FAILED, error=end.error or error.info())
        executions = context.step_manager.step_executions
        return AgentResult(
            run_id=self.run_id,
            session_id=self.session_id,
            recipe_id=context.recipe.id,
            status=end.status,
            executions=executions,
            output=output,
            usage=context.ledger.usage,
            error=end.error,
            model_name=self.model_name,
            warnings=tuple(context.warnings),
            step_ids={execution.step_id: at for at, execution in enumerate(executions)},
        )

    async def _record_what_never_started(self, end: _End) -> None:
        """Steps that the run's time or a cancellation kept from starting: passed over, and why."""
        graph, manager = self._built.graph, self.context.step_manager
        if end.error is None or not isinstance(graph, DependencyStepGraph):
            return
        for step in graph.steps:
            if manager.latest(step.id) is None:
                await self._record_skip(step, Skip(f"the run ended before: {end.error.code}"))

    async def _record_end_of_run(self, end: _End, output: object) -> None:
        context = self.context
        if end.status is RunStatus.LIMIT_REACHED and end.error is not None:
            limit: dict[str, JsonValue] = {
                "limit": context.ledger.reached,
                "message": end.error.message,
            }
            await context.recorder.record("run", "run/limit", "limit_reached", limit)
        body: dict[str, JsonValue] = {
            "status": end.status.value,
            "output": encode(output),
            "usage": context.ledger.usage.to_json(),
            "error": dict(end.error.to_json()) if end.error else None,
        }
        await context.recorder.record("run", "run", "finished", body)
        context.services.log.info("run_finished", run_id=self.run_id, status=end.status.value)

    def _output(self, end: _End) -> tuple[_End, object]:
        """The run's result: the recipe's template, or the last completed step's output."""
        if end.status not in (RunStatus.COMPLETED, RunStatus.PARTIAL):
            return end, None
        try:
            output, is_checked = self._raw_output()
            return end, self._typed(output, is_checked=is_checked)
        except (MinionsError, ValueError) as error:
            message = f"The run's output: {error}"
            info = FailureInfo(code=getattr(error, "error_code", "invalid-output"), message=message)
            return evolve(end, status=RunStatus.FAILED, error=info), None

    def _raw_output(self) -> tuple[object, bool]:
        """The output, and whether its step declared and so checked it."""
        if self._built.output is not None:
            return self._built.output.render(self.context.values), False
        for execution in self._last_first():
            if execution.status is StepStatus.COMPLETED:
                return execution.output, execution.declares_output
        return None, False

    def _last_first(self) -> Iterator[StepExecution[object]]:
        """Of parallel steps the one written last counts, not the one that took longest."""
        manager, graph = self.context.step_manager, self._built.graph
        if not isinstance(graph, DependencyStepGraph):
            yield from reversed(manager.step_executions)
            return
        for step in reversed(graph.steps):
            if (execution := manager.latest(step.id)) is not None:
                yield execution

    def _typed(self, output: object, *, is_checked: bool) -> object:
        wanted = self._output_class
        if wanted is None:
            return output
        is_wanted = attrs.has(wanted) and isinstance(output, wanted)
        if is_wanted and is_checked:
            return output
        value = encode(output)
        if self._output_check is not None and (errors := self._output_check.errors(value)):
            raise ValueError(f"it does not fit {wanted}: {'; '.join(errors)}")
        return output if is_wanted else decode(value, wanted)


_CANCELLED = _End(
    status=RunStatus.CANCELLED,
    error=FailureInfo(code="cancelled", message="The run was cancelled; what was done is kept."),
)


def _few(ids: Sequence[str]) -> str:
    """The first ones by name, the rest as a number."""
    shown, more = ids[:8], len(ids) - 8
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _repeated(step_id: str) -> FailureInfo:
    return FailureInfo(
        code="repeated-step",
        message=f"Step '{step_id}' would run a second time and allow_repeated_steps is false. "
        "Break the cycle, or set allow_repeated_steps with max_steps.",
        where=step_id,
    )


def _step_failure(execution: StepExecution[object]) -> FailureInfo:
    error = execution.error
    if error is None:
        return FailureInfo(code="step-failed", message=f"Step '{execution.step_id}' failed.")
    return evolve(error, where=error.where or execution.step_id)


def _raised(error: BaseException) -> FailureInfo:
    if isinstance(error, MinionsError):
        return error.info()
    text = f"The run raised {words_of(error)}. What was done is kept."
    return FailureInfo(code="run-raised", message=text)
