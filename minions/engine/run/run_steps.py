"""Runs the steps of a recipe: condition, limits, replay, execution, end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar, cast

from msgspec import UNSET

from minions.contracts.context import ModelCallExecutorFactory, ToolCallExecutorFactory
from minions.contracts.executions import CompletionMode, StepExecution, StepStatus
from minions.contracts.journal.facts import StepFailed, StepFinished, StepSkipped
from minions.contracts.steps import Step
from minions.data.codec import encode
from minions.data.errors import FailureInfo, MinionsError
from minions.data.failure_categories import FailureCategory
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue
from minions.data.texts import shell_word
from minions.engine.compile.build import BuiltRecipe, StepControl
from minions.engine.compile.kinds.set import SetStep
from minions.engine.compile.recipe_step import Replayable, WrittenStep
from minions.engine.compile.selection import NOT_ASKED_FOR, ChosenSteps
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.run_progress import Feedback, Iteration, LoopItem
from minions.engine.run.run_models import RunModels
from minions.engine.run.scheduler import WITHDRAWN, RecipeBackEdges, Skip
from minions.engine.services.event_loop import beside, breathe
from minions.engine.step.executor import StepExecutor, would_repeat
from minions.engine.step.work import record_unexecuted
from minions.recipe.expressions.values import Meter, Reference
from minions.recipe.model import OnError

if TYPE_CHECKING:
    from minions.contracts.tracing import StepSubject
    from minions.engine.history.step_rows import StepRows
    from minions.engine.run.child_runs import ChildRuns
    from minions.engine.step.cache import StepCaching
    from minions.engine.step.iteration.loop import StepLoop
    from minions.engine.step.iteration.while_loop import StepWhile

T = TypeVar("T")

WHEN_IS_FALSE: Final = "its condition `when` is false"
"""Why a step is skipped by its own condition."""


class RunSteps:
    """Runs a step when the walk comes to it, unless an earlier execution of the run ended it."""

    def __init__(
        self,
        context: AgentContext,
        built: BuiltRecipe,
        models: RunModels,
        tool_call_executor_factory: ToolCallExecutorFactory,
        *,
        chosen: ChosenSteps | None = None,
        children: Callable[[], ChildRuns] | None = None,
    ) -> None:
        """Take what was prepared.

        Args:
            chosen: The steps that run, with what the others gave before; None: all run.
            children: Prepares the runs of items of distributed steps; None: nothing is distributed.
        """
        self._context = context
        self._values = context.run_values
        self._step_manager = context.step_manager
        self._progress = context.progress
        self._budget = context.progress.budget
        self._scope = context.scope
        self._services = context.scope.services
        self._beside = context.scope.services.beside
        self._built = built
        self._controls = built.controls
        self._models = models
        self._tool_factory = tool_call_executor_factory
        self._chosen = chosen
        self._item = _item_of(chosen)
        self._children = children
        self._keys_asked: set[str] = set()
        """In the cache, by the steps so far."""
        self._has_redone = False
        """Whether a step was run: after that, code that cannot tell its inputs is not reused."""
        self._newest_end = 0
        """Position of the newest replayed end: code that began before did not see it."""
        self.failed: StepExecution[object] | None = None
        self.surprise: StepExecution[object] | None = None
        """The first step that failed for what it got, where `on_surprise` names another one."""
        """The first required step that FAILED."""
        self.back_edges: RecipeBackEdges = RecipeBackEdges(context, built, chosen)

    @property
    def waiting(self) -> Sequence[StepExecution[object]]:
        """Executions that wait for a person's decision."""
        return self.back_edges.waiting

    def may_start(self) -> bool:
        """Whether the run's limits leave room for one more step."""
        self._progress.check_time()
        return self._budget.may_start_step()

    def is_brief(self, step: Step[object]) -> bool:
        """Whether it only binds values, once: then it needs no executor and no task."""
        if type(step) is not SetStep:
            return False
        control = self._controls.get(step.id)
        return control is None or not control.has_iterations

    def has_ended_before(self, step: Step[object]) -> bool:
        """Whether an earlier execution of the run recorded its end."""
        return self._recorded_end(step) is not None

    async def run(self, step: Step[object]) -> StepStatus:
        """One step with its condition; its result becomes readable for the others."""
        context = self._context
        control = self._built.control(step.id)
        if self._chosen is not None and step.id not in self._chosen.runs:
            return await self._leave_out(step, self._chosen)
        if control.when is not None and not await self._holds(step):
            is_unread = self._step_manager.has_failed(step.id)
            return StepStatus.FAILED if is_unread else StepStatus.SKIPPED
        if self._scope.replay is not None and (rows := self._recorded_end(step)) is not None:
            bound = rows.computed
            if type(step) is SetStep and bound is not None and not control.has_iterations:
                is_unchanged = partial(would_repeat, step, context, rows)
                if self._may_reuse(step, rows, is_unchanged):
                    return await self._rebind(step, bound, rows, control)
            else:
                recorded = self._recorded_executor(step)
                if recorded.is_withdrawn:
                    return await self._tell_withdrawn(step, recorded)
                if control.has_iterations or not recorded.has_recorded_end:
                    return await self._execute(step, control)  # its parts are told again
                knows = recorded.was_cached or not step.is_code or isinstance(step, Replayable)
                if self._may_reuse(step, rows, recorded.is_unchanged if knows else None):
                    return await self._reuse(step, recorded)
        if self._progress.open_calls:
            await self.skip(step, self._waiting(step))
            return StepStatus.SKIPPED
        budget = self._budget
        if not self.may_start():
            await self.skip(step, Skip(f"the {budget.whose} limit {budget.reached} is reached"))
            return StepStatus.SKIPPED
        if type(step) is SetStep and not control.has_iterations and await self._bind(step, control):
            budget.count_step()
            return StepStatus.COMPLETED
        return await self._execute(step, control)

    def _waiting(self, step: Step[object]) -> Skip:
        """Why no step begins while a call of the run is in doubt."""
        path = self._scope.path_of(step.id)
        is_own = any(call.step_id == path for call in self._progress.open_calls)
        return Skip("one of its calls is in doubt" if is_own else "the run waits for a decision")

    async def _tell_withdrawn(
        self, step: Step[object], recorded: StepExecutor[object]
    ) -> StepStatus:
        """It waited until the run went back, which it is about to do again."""
        now = self._context.now()
        execution: StepExecution[object] = StepExecution(
            id=f"{self._context.run_id}/{recorded.key}",
            step_id=step.id,
            status=StepStatus.IN_PROGRESS,
            reason=WITHDRAWN,
            started_at=now,
        )
        self._step_manager.record(execution)
        return StepStatus.IN_PROGRESS

    async def _leave_out(self, step: Step[object], chosen: ChosenSteps) -> StepStatus:
        """End a step that was not asked for: with its pinned output, or skipped."""
        if step.id not in chosen.pinned:
            await self.skip(step, Skip(NOT_ASKED_FOR))
            return StepStatus.SKIPPED
        output = chosen.pinned[step.id]
        if (words := self._context.words) is not None:
            words.assume(step.id, "a pinned output")
        pinned = StepFinished(
            step_id=self._scope.path_of(step.id),
            status=StepStatus.COMPLETED.value,
            output=output,
            pinned_from=chosen.pinned_from,
        )
        execution = await record_unexecuted(
            self._context, step, self._next_key(step), pinned, output=output
        )
        return await self._told(step, execution, output, self._built.control(step.id))

    async def _execute(self, step: Step[object], control: StepControl) -> StepStatus:
        """Run it, with all that surrounds it."""
        recorder = self._scope.recorder
        before = recorder.stored
        if step.caches and self._services.cache is None:
            await self._warn_without_cache(step)
        self._budget.count_step()
        if control.distribute and self._is_distributed(step):
            status = await self._run_distributed(step, control)
        elif control.has_iterations:
            status = await self._run_iterations(step, control)
        else:
            executor = self._executor(step, await self._models_for(step), self._item)
            execution = await executor.execute()
            if self._item is not None:  # executors of items leave it to the loop
                self._step_manager.record(execution)
            status = await self._told(step, execution, executor.output_json, control)
        self._has_redone |= recorder.stored > before
        return status

    async def _warn_without_cache(self, step: Step[object]) -> None:
        await self._context.warn(
            "no-cache",
            f"Step '{self._scope.path_of(step.id)}' says `cache: true`, and this run was "
            "given no cache (`Services(cache=…)`): it is done each time.",
        )

    def _caching(self, step: Step[object]) -> StepCaching:
        """The step's cache; also without `cache: true`, as its recorded end may be a cached one."""
        from minions.engine.step.cache import StepCaching

        cache = self._services.cache if step.caches else None
        return StepCaching(
            cache=cache, models=lambda: self._models.facts(step), asked=self._keys_asked
        )

    async def _models_for(self, step: Step[object]) -> ModelCallExecutorFactory:
        return self._models.of_code() if step.is_code else await self._models.ready(step)

    def _noted(self, execution: StepExecution[object]) -> StepExecution[object]:
        """Of a child run: executors of items leave it to the loop to tell the manager."""
        if self._item is not None:
            self._step_manager.record(execution)
        return execution

    def _is_distributed(self, step: Step[object]) -> bool:
        """Whether its items are, or were, runs of their own; what began within the run stays there.

        In a recipe that is a step nothing is distributed: the step may be a child run itself.
        """
        scope = self._scope
        if not scope.is_whole_run or self._children is None:
            return False
        was = scope.replay.was_distributed(self._base(step)) if scope.replay is not None else None
        return was is True or (was is None and scope.services.children is not None)

    async def _run_distributed(self, step: Step[object], control: StepControl) -> StepStatus:
        from minions.engine.run.distributed_loop import DistributedLoop

        context = self._context
        if self._services.children is None:
            await self._record_end(step, StepStatus.FAILED, error=_needs_workers(step, context))
            return StepStatus.FAILED
        assert self._children is not None  # noqa: S101  # `_is_distributed` looked
        if context.words is not None:
            context.words.assume(step.id, "runs of items")
        models = await self._models_for(step)
        loop = DistributedLoop(
            cast("WrittenStep[object]", step),
            control.loop,
            context,
            lambda turn: self._executor(step, models, turn),
            self._may_reuse_item,
            self._children(),
        )
        execution = await self._iterated(step, loop)
        return await self._told(step, execution, loop.output_json, control)

    async def _run_iterations(self, step: Step[object], control: StepControl) -> StepStatus:
        from minions.engine.step.iteration.loop import StepLoop
        from minions.engine.step.iteration.while_loop import StepWhile

        models = await self._models_for(step)

        def make(turn: Iteration) -> StepExecutor[object]:
            return self._executor(step, models, turn)

        iterations: StepLoop | StepWhile
        if control.repeat is not None:
            iterations = StepWhile(
                step,
                control.repeat,
                self._context,
                make,
                self._may_reuse_item,
                save_as=control.save_as,
            )
        else:
            assert control.loop is not None  # noqa: S101  # one of the two: see `has_iterations`
            iterations = StepLoop(step, control.loop, self._context, make, self._may_reuse_item)
        execution = await self._iterated(step, iterations)
        return await self._told(step, execution, iterations.output_json, control)

    async def _iterated(
        self, step: Step[object], iterations: StepLoop | StepWhile
    ) -> StepExecution[object]:
        tracer = self._services.tracer
        if tracer is None:
            return await iterations.execute()
        with tracer.step(self._subject(step)) as span:
            execution = await iterations.execute()
            span.end(execution.status, execution.error)
        return execution

    async def _told(
        self,
        step: Step[object],
        execution: StepExecution[object],
        output: JsonValue,
        control: StepControl,
    ) -> StepStatus:
        """Publish the result for later steps, or plan the back edge of a failure."""
        status = execution.status
        if status is StepStatus.FAILED and not self._leaves_results(step, execution, control):
            output = None
        values = self._values
        has_large = output is not None and is_large(output)
        publish = partial(
            values.publish,
            step,
            status,
            output,
            control.save_as,
            execution.error,
            with_artifacts=control.gives_artifacts,
            has_large=has_large,
        )
        if has_large:
            await self._beside.run(publish)
        else:
            publish()
        if status is StepStatus.FAILED and self.back_edges.plan(step, execution):
            return status
        if values.feedback is not None:
            values.end_feedback(step.id)
        if status is not StepStatus.COMPLETED:
            self._note_failure(execution)
        return status

    def _leaves_results(
        self, step: Step[object], execution: StepExecution[object], control: StepControl
    ) -> bool:
        """Whether later steps read the results of a failed loop: the recipe allows its failure."""
        from minions.engine.step.iteration.loop import LOOP_FAILED

        may_fail = step.is_optional or control.on_error.action is OnError.CONTINUE
        is_told = execution.error is not None and execution.error.code == LOOP_FAILED
        if may_fail and is_told and control.loop is not None:
            self.back_edges.keep_results(step)
            return True
        return False

    def _subject(self, step: Step[object]) -> StepSubject:
        from minions.contracts.tracing import StepSubject

        context, path = self._context, self._scope.path_of(step.id)
        return StepSubject(
            run_id=context.run_id, session_id=context.session_id, step_id=path, address=path
        )

    async def _bind(self, step: SetStep, control: StepControl) -> bool:
        """A `set` step without any of an executor's parts; False: it needs one to say why not."""
        context, step_id = self._context, step.id
        scope, values = self._scope, self._values
        if values.has_large and values.reads_much(step.references):
            return False  # an executor does it beside the event loop
        try:
            output = encode(step.bind(context.values))
        except (MinionsError, TypeError):
            return False
        path, status = f"{scope.path}{step_id}", StepStatus.COMPLETED
        bound = StepFinished(step_id=path, status=status._value_, output=output)
        await record_unexecuted(
            context, step, self._next_key(step), bound, output=output, mode=CompletionMode.TEXT
        )
        values.publish(
            step, status, output, control.save_as, with_artifacts=control.gives_artifacts
        )
        if scope.services.has_log:
            scope.log_of(path, path).info("step_finished", status=status._value_)
        scope.services.metrics.step_ended(status._value_, None, 0.0)
        if (tracer := scope.services.tracer) is not None:
            with tracer.step(self._subject(step)) as span:  # what it takes is not worth a time
                span.end(status)
        self._has_redone = True
        return True

    def _executor(
        self,
        step: Step[object],
        models: ModelCallExecutorFactory,
        item: Iteration | None = None,
    ) -> StepExecutor[object]:
        if step.id in self._built.used:
            step = _bound_step(step, self._context, item)

        replay, options = self._scope.replay, self._models.options(step)
        caching = self._caching(step) if replay is not None or step.caches else None
        while True:
            executor = StepExecutor(
                step,
                self._context,
                models,
                self._tool_factory,
                options=options,
                item=item,
                caching=caching,
            )
            if replay is None or not replay.checks_inputs or not executor.is_begun_otherwise():
                return executor
            replay.forget(executor.base)

    # --- what an earlier execution did ------------------------------------------------------------

    def _recorded_end(self, step: Step[object]) -> StepRows | None:
        """The entries of this visit as far as they still count; None: it has not ended before."""
        replay = self._scope.replay
        rows = None if replay is None else replay.execution(self._base(step))
        return None if rows is None or rows.ended is None else rows

    def _recorded_executor(self, step: Step[object]) -> StepExecutor[object]:
        """The executor of a step that has ended before."""
        models = self._models.of_code() if step.is_code else self._models.of(step)
        return self._executor(step, models, self._item)

    def _base(self, step: Step[object]) -> str:
        visit = self._step_manager.visits(step.id) + 1
        iteration = 0 if self._item is None else self._item.index + 1
        return self._scope.base_key(step.id, visit, iteration)

    def _next_key(self, step: Step[object]) -> str:
        """The key of the step's next execution."""
        return self._scope.execution_key(step.id, self._step_manager.visits(step.id) + 1)

    def _may_reuse(
        self, step: Step[object], rows: StepRows, is_unchanged: Callable[[], bool] | None
    ) -> bool:
        """Whether the recorded end is replayed; a step whose work or inputs changed runs again.

        Args:
            is_unchanged: Whether the step would do again what the rows say; None: it cannot tell.
        """
        replay = self._scope.replay
        assert replay is not None  # noqa: S101  # asked only of what has a recorded end
        if not replay.checks_inputs:
            return True
        is_same = is_unchanged() if is_unchanged is not None else not self._is_outdated(rows)
        if not is_same:
            replay.forget(self._base(step))
        return is_same

    def _is_outdated(self, rows: StepRows) -> bool:
        """Whether something before the step was done again since it began."""
        return self._has_redone or rows.rows[0].position < self._newest_end

    def _may_reuse_item(self, executor: StepExecutor[object]) -> bool:
        """As `_may_reuse`, for one iteration."""
        replay = self._scope.replay
        assert replay is not None  # noqa: S101  # asked only of what has a recorded end
        if not replay.checks_inputs or executor.is_unchanged():
            return True
        replay.forget(executor.base)
        return False

    async def _reuse(self, step: Step[object], executor: StepExecutor[object]) -> StepStatus:
        rows = executor.rows
        assert rows is not None and rows.ended is not None  # noqa: S101, PT018  # it has that end
        self._newest_end = max(self._newest_end, rows.ended.position)
        execution = self._noted(executor.recorded())
        self._budget.count_step()
        control = self._built.control(step.id)
        return await self._told(step, execution, executor.output_json, control)

    async def _rebind(
        self, step: SetStep, bound: StepFinished, rows: StepRows, control: StepControl
    ) -> StepStatus:
        """As `_reuse`, without any of an executor's parts."""
        ended = rows.ended
        assert ended is not None  # noqa: S101  # `bound` is its fact
        if ended.position > self._newest_end:
            self._newest_end = ended.position
        output = None if bound.output is UNSET else bound.output
        execution = await record_unexecuted(
            self._context,
            step,
            rows.key,
            bound,
            output=output,
            mode=CompletionMode.TEXT,
            recorded=ended,
        )
        self._budget.count_step()
        return await self._told(step, execution, output, control)

    async def _holds(self, step: Step[object]) -> bool:
        """Whether `when` is true; a condition that cannot be read fails the step."""
        condition = self._built.control(step.id).when
        assert condition is not None  # noqa: S101  # asked only where there is one
        try:
            holds = await self._computed(
                condition.references,
                partial(condition.holds, self._context.values, meter := Meter()),
            )
            if meter.is_long:
                await breathe()
        except MinionsError as error:
            await self._record_end(step, StepStatus.FAILED, error=error.info())
            return False
        if not holds:
            await self.skip(step, Skip(WHEN_IS_FALSE))
        return holds

    async def _computed(self, references: Sequence[Reference], work: Callable[[], T]) -> T:
        """What `work()` gives, which reads these values."""
        is_long = self._values.reads_much(references)
        return await beside(self._beside, is_long, work)

    async def skip(self, step: Step[object], skip: Skip) -> None:
        """Record that it was passed over, and why."""
        chosen, reason = self._chosen, skip.reason
        if chosen is not None and step.id not in {*chosen.runs, *chosen.pinned}:
            reason = chosen.reason(step.id)
        await self._record_end(step, StepStatus.SKIPPED, reason=reason)

    async def _record_end(
        self,
        step: Step[object],
        status: StepStatus,
        *,
        reason: str | None = None,
        error: FailureInfo | None = None,
    ) -> None:
        """The end of a step that was skipped, or failed before anything of it ran."""
        path = self._scope.path_of(step.id)
        ended: StepSkipped | StepFailed = StepSkipped(
            step_id=path, status=status.value, reason=reason
        )
        if error is not None:
            ended = StepFailed(
                step_id=path, status=status.value, error=error.to_json(), reason=error.message
            )
        execution = await record_unexecuted(
            self._context, step, self._base(step), ended, error=error
        )
        self._values.publish(step, status, None, error=error)
        self._note_failure(execution)

    def _note_failure(self, execution: StepExecution[object]) -> None:
        if execution.status is StepStatus.IN_PROGRESS:
            self.back_edges.add_waiting(execution)
        is_failure = execution.status is StepStatus.FAILED and not execution.optional
        if is_failure and self._surprises(execution):
            return
        if is_failure and self.failed is None:
            self.failed = execution

    def _surprises(self, execution: StepExecution[object]) -> bool:
        """Whether another step does what is left, because this one failed for what it got."""
        context, error = self._context, execution.error
        step_id = context.recipe.on_surprise
        if step_id is None or error is None or execution.step_id == step_id:
            return False
        if self.failed is not None or error.category not in _SURPRISES:
            return False
        context.step_manager.take_back_failure()
        if context.words is not None:
            context.words.keep(execution.step_id)
        if self.surprise is None:
            self.surprise = execution
            context.run_values.give_feedback(
                Feedback(
                    step_id=execution.step_id,
                    to=step_id,
                    code=error.code,
                    message=error.message,
                    attempt=1,
                )
            )
        return True


_SURPRISES: Final = frozenset({FailureCategory.CONTRACT, FailureCategory.TOOL})
"""What a step failed for that another one may still bring to an end: no limit, no missing right and
no server that is away."""


def _bound_step(step: Step[object], context: AgentContext, item: Iteration | None) -> Step[object]:
    """A step of a registered class with the arguments of one execution."""
    from minions.engine.compile.registered_steps import UsedStep  # few recipes have one

    if type(step) is not UsedStep:  # code of such a class takes its arguments when it runs
        return step
    values = context.values
    return step.bound(values if item is None else {**values, "loop": item.loop})


def _item_of(chosen: ChosenSteps | None) -> LoopItem | None:
    """The item that a child run executes; None: it is none, or its step has no loop."""
    item = chosen.item if chosen is not None else None
    if item is None or item.index is None:
        return None
    return LoopItem(value=item.value, index=item.index)


def _needs_workers(step: Step[object], context: AgentContext) -> FailureInfo:
    return FailureInfo(
        code="needs-workers",
        message=f"The items of step '{step.id}' are runs of their own, which workers execute; this "
        "process has no queue. What they came to is kept. Let a worker continue: `minions retry "
        f"{shell_word(context.run_id)} --detach`.",
        where=context.scope.path_of(step.id),
    )
