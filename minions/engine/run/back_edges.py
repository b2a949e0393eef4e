"""Back edges (`on_error: {goto: …}`): a failure leads back to an earlier step, boundedly often."""

from __future__ import annotations

from typing import Final

from minions.contracts.executions import StepExecution, StepStatus
from minions.contracts.journal.facts import BackEdge, StepWithdrawn
from minions.contracts.steps import Step
from minions.engine.compile.build import BuiltRecipe
from minions.engine.compile.selection import ChosenSteps
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.iterations import Feedback
from minions.engine.run.scheduler import BackEdges
from minions.engine.step.outcome import CUT_OFF
from minions.recipe.control_flow import OnError

WITHDRAWN: Final = "the run went back before somebody decided"
"""Why a step that waited counts no more."""


class RecipeBackEdges(BackEdges):
    """Those of one recipe in one run.

    A failure is planned as a back edge when it happens; the fact is recorded only after the steps
    that the edge leads over are withdrawn, so that after a crash between the two nobody is asked
    to decide about a call that will not be made.
    """

    def __init__(
        self, context: AgentContext, built: BuiltRecipe, chosen: ChosenSteps | None
    ) -> None:
        """Begin without any failure.

        Args:
            chosen: The steps that run: no edge leads to another one. None: all run.
        """
        self._context = context
        self._built = built
        self._chosen = chosen
        self.waiting: list[StepExecution[object]] = []
        """Executions that wait for a person's decision."""
        self.readable: set[str] = set()
        """Ids of failed loops whose results later steps read."""
        self._counts: dict[str, int] = {}
        """How often each step's edge was followed since the run began or was retried."""
        self._planned: dict[str, BackEdge] = {}
        """By the id of the step that failed just now."""

    def plan(self, step: Step[object], execution: StepExecution[object]) -> bool:
        """Whether the step's failure leads back; if so, later steps read it as feedback."""
        rule, error = self._built.control(step.id).on_error, execution.error
        if rule.goto is None or error is None or error.code in CUT_OFF:
            return False
        context, replay = self._context, self._context.scope.replay
        visit = context.step_manager.visits(step.id)
        key = context.scope.base_key(step.id, visit)
        before, retried_at = None, 0
        if replay is not None:
            before, retried_at = replay.back_edges(key), replay.retried_at
        # Edges that were followed before a retry do not count against the retry's own.
        is_past = before is not None and before.position < retried_at
        times = self._counts.get(step.id, 0)
        if times >= rule.max_times and not is_past:
            return False
        if self._chosen is not None and rule.goto not in self._chosen.runs:
            return False
        if not is_past:
            self._counts[step.id] = times + 1
        feedback = Feedback(
            step_id=step.id,
            to=rule.goto,
            code=error.code,
            message=error.message,
            attempt=times + 1 if before is None else before.attempt,
        )
        self._planned[step.id] = self._fact(feedback)
        context.step_manager.take_back_failure()
        context.run_values.give_feedback(feedback)
        return True

    def _fact(self, feedback: Feedback) -> BackEdge:
        scope = self._context.scope
        return BackEdge(
            step=feedback.step_id,
            to=scope.path_of(feedback.to),
            code=feedback.code,
            message=feedback.message,
            attempt=feedback.attempt,
            step_id=scope.path_of(feedback.step_id),
        )

    def target(self, step: Step[object]) -> str | None:
        """The `goto` of its `on_error`, where that is planned."""
        return self._built.control(step.id).on_error.goto if step.id in self._planned else None

    def leaves_results(self, step: Step[object]) -> bool:
        """Whether it is a loop whose failure the recipe allows."""
        return step.id in self.readable

    def is_passable(self, step: Step[object]) -> bool:
        """Whether its `on_error` is `continue`."""
        return self._built.control(step.id).on_error.action is OnError.CONTINUE

    async def withdraw(self, step: Step[object]) -> None:
        """Nobody reads its result any more, and nobody is asked to decide about it."""
        scope = self._context.scope
        self.readable.discard(step.id)
        for execution in [each for each in self.waiting if each.step_id == step.id]:
            self.waiting.remove(execution)
            withdrawn = StepWithdrawn(
                step_id=scope.path_of(step.id), status=StepStatus.SKIPPED.value, reason=WITHDRAWN
            )
            await scope.recorder.record(execution.id.removeprefix(f"{scope.run_id}/"), withdrawn)
        self._context.run_values.withdraw(step.id, self._built.control(step.id).save_as)

    async def follow(self, step: Step[object]) -> None:
        """Record the edge that the step's failure was planned as."""
        edge, context = self._planned.pop(step.id), self._context
        key = context.scope.execution_key(step.id, context.step_manager.visits(step.id))
        await context.scope.recorder.record(f"{key}/goto", edge)
        target = self._built.control(step.id).on_error.goto
        context.scope.log.info("went_back", step_id=step.id, to=target)
