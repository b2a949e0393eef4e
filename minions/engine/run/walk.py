"""One recipe from its first step to its last: the whole of a run, or one of its steps."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from attrs import evolve, frozen

from minions.contracts.call_executors import ToolCallExecutorFactory
from minions.contracts.executions import RunStatus, StepExecution, StepStatus
from minions.contracts.steps import Step
from minions.data.errors import NEEDS_DECISION, FailureInfo, StepFailedError
from minions.data.work_slices import WorkSlices
from minions.engine.calls.decisions import doubt
from minions.engine.compile.build import BuiltRecipe
from minions.engine.compile.graph import DependencyStepGraph
from minions.engine.context.agent_context import AgentContext
from minions.engine.run.routes import Routes
from minions.engine.run.run_steps import RunSteps
from minions.engine.run.scheduler import DependencyWalk, Skip
from minions.engine.services.services import room_for_more
from minions.engine.step.outcome import all_waiting
from minions.engine.step.step_manager import StepManager
from minions.recipe.model import ExecutionMode, OnFailure

_DEFAULT_BOUND: Final = 100
"""Steps of a run whose graph may repeat steps and whose recipe sets no `max_steps`."""
_STEPS: Final = 8
"""Steps after which others work, also where none of them waits for anything."""


@frozen(kw_only=True)
class WalkEnd:
    """The end of a walk."""

    status: RunStatus
    error: FailureInfo | None = None


class RecipeWalk:
    """Walks once. Steps know how they run; the walk knows which one is next."""

    def __init__(
        self,
        context: AgentContext,
        manager: StepManager,
        built: BuiltRecipe,
        steps: RunSteps,
        routes: Routes,
        tool_call_executor_factory: ToolCallExecutorFactory,
    ) -> None:
        """Take what was prepared."""
        self._context = context
        self._manager = manager
        self._routes = routes
        self._built = built
        self._steps = steps
        self._tool_factory = tool_call_executor_factory
        self._problem: FailureInfo | None = None
        self._choice_waits_for: FailureInfo | None = None
        """The decision without which a tool may not say what comes next."""
        self._has_returned = False
        """Whether a failure led back: then steps run again, boundedly."""

    async def walk(self) -> None:
        """Run steps until no further one may start.

        Raises:
            JournalError: A fact could not be stored.
        """
        graph = self._built.graph
        if not isinstance(graph, DependencyStepGraph):
            await self._walk_transitions()
            return
        recipe = self._context.recipe
        is_parallel = recipe.execution_mode is ExecutionMode.PARALLEL
        walk = DependencyWalk(
            graph,
            run=self._steps.run,
            skip=self._steps.skip,
            stop_reason=self._stop_reason,
            back_edges=self._steps.back_edges,
            is_brief=self._steps.is_brief,
            max_parallel=recipe.max_parallel if is_parallel else 1,
            room=partial(room_for_more, self._context.scope.services),
        )
        await walk.walk()

    async def _walk_transitions(self) -> None:
        manager, limits, slices = self._manager, self._context.limits, WorkSlices(_STEPS)
        bound = limits.max_steps or (_DEFAULT_BOUND if limits.allow_repeated_steps else None)
        skipped = 0  # they count: a circle of steps that are all skipped would have no end
        while (step := manager.current_step) is not None:
            if self._context.progress.open_calls and not self._steps.has_ended_before(step):
                return
            if manager.visits(step.id) and not (limits.allow_repeated_steps or self._has_returned):
                self._problem = _repeated(step.id)
                return
            if bound is not None and self._context.progress.budget.steps + skipped >= bound:
                self._context.progress.budget.stop_at("max_steps", bound)
                return
            if not self._steps.may_start():
                return
            if slices.is_over():  # steps may take no time, and others wait: a timeout, a person
                await asyncio.sleep(0)
            status = await self._steps.run(step)
            if status is StepStatus.IN_PROGRESS:
                return
            skipped += status is StepStatus.SKIPPED
            edges = self._steps.back_edges
            if status is StepStatus.FAILED and (target := edges.target(step)) is not None:
                await edges.follow(step)
                manager.set_current_step(target)
                self._has_returned = True
                continue
            if self._steps.failed is not None:
                return
            if self._context.progress.open_calls and self._is_choice_in_doubt(step):
                return
            if not await self._advance(step):
                return

    async def _advance(self, step: Step[object]) -> bool:
        """Choose the next step by the `route` of the last one, else by the next-step chain.

        Returns:
            False where the route leads nowhere: the run has failed, the step has not.
        """
        context, manager = self._context, self._manager
        try:
            has_route = self._built.control(step.id).route is not None
            chosen = await self._routes.choose(step) if has_route else None
            if chosen is not None:
                manager.set_current_step(chosen)
            else:
                await manager.advance_to_next_step(context, self._tool_factory)
        except StepFailedError as error:
            if error.failure.code == NEEDS_DECISION:
                self._choice_waits_for = error.failure
            elif not context.progress.budget.has_refused:
                self._problem = error.failure
            return False
        return True

    def _is_choice_in_doubt(self, step: Step[object]) -> bool:
        """Whether the call that names what follows `step` waits for a decision."""
        context = self._context
        key = context.scope.execution_key(step.id, context.step_manager.visits(step.id))
        return any(call.key.startswith(f"{key}/decide/") for call in context.progress.open_calls)

    def _stop_reason(self, step: Step[object]) -> str | None:
        """Why the step may not start; what ended before the failure is replayed."""
        failed = self._steps.failed
        is_stopped = failed is not None and self._context.recipe.on_failure is OnFailure.STOP
        if failed is not None and is_stopped and not self._steps.has_ended_before(step):
            return f"the run stopped: step '{failed.step_id}' failed"
        return None

    def end(self) -> WalkEnd:
        """How it ended, after the walk or whatever broke it off."""
        budget = self._context.progress.budget
        open_calls = self._context.progress.open_calls
        # A recipe that is a step is replayed only where it had ended: nothing of it is in doubt.
        if open_calls and self._context.scope.is_whole_run:
            error = doubt(open_calls, self._context.run_id)
            return WalkEnd(status=RunStatus.NEEDS_DECISION, error=error)
        if self._problem is not None:
            return WalkEnd(status=RunStatus.FAILED, error=self._problem)
        if budget.has_refused:
            return WalkEnd(status=RunStatus.LIMIT_REACHED, error=budget.failure())
        goes_on = self._context.recipe.on_failure is OnFailure.CONTINUE
        is_waiting = goes_on and bool(self._steps.waiting)
        if self._steps.failed is not None and not is_waiting:
            return WalkEnd(status=RunStatus.FAILED, error=_step_failure(self._steps.failed))
        if self._steps.waiting or self._choice_waits_for is not None:
            return WalkEnd(status=RunStatus.NEEDS_DECISION, error=self._waiting_failure())
        if self._context.step_manager.has_failures:
            return WalkEnd(status=RunStatus.PARTIAL)
        return WalkEnd(status=RunStatus.COMPLETED)

    def _waiting_failure(self) -> FailureInfo:
        """All that the recipe waits for; the run adds the commands that decide it."""
        found = (*(each.error for each in self._steps.waiting), self._choice_waits_for)
        return all_waiting(error for error in found if error is not None)

    async def record_what_never_started(self, end: WalkEnd) -> None:
        """Steps that the run's time or a cancellation kept from starting: passed over, and why."""
        graph, manager = self._built.graph, self._context.step_manager
        if end.error is None or not isinstance(graph, DependencyStepGraph):
            return
        why = f"the run ended before: {end.error.code}"
        if end.error.code == NEEDS_DECISION:
            why = "the run waits for a person"
        for step in graph.steps:
            if manager.latest(step.id) is None:
                await self._steps.skip(step, Skip(why))


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
