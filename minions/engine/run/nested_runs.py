"""A recipe as a step of a run: its own values, tools and memory; the run's journal and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import evolve

from minions.contracts.call_executors import ModelCallExecutorFactory, ToolCallExecutorFactory
from minions.contracts.calls import ChatModel
from minions.contracts.errors import NEEDS_DECISION, FailureInfo, MinionsError
from minions.contracts.executions import RunStatus
from minions.contracts.json_values import JsonValue
from minions.contracts.secrets import InputValue
from minions.engine.compile.extensions import ModelSource
from minions.engine.compile.preparation import Preparation, rendered
from minions.engine.context.agent_context import AgentContext, NestedResult, RecipeRunner, TellSteps
from minions.engine.context.scope import Scope
from minions.engine.history.keys import scope_of
from minions.engine.history.memory import ConversationMemory
from minions.engine.run.routes import Routes
from minions.engine.run.run_models import RunModels
from minions.engine.run.run_output import RunOutput
from minions.engine.run.run_steps import RunSteps
from minions.engine.run.walk import RecipeWalk, WalkEnd
from minions.engine.step.step_manager import StepManager
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe

__all__ = ["RecipeRuns"]


class RecipeRuns(RecipeRunner):
    """Of one executor; two runs share nothing through it."""

    def __init__(
        self,
        preparation: Preparation,
        *,
        models: ModelSource,
        loaded: dict[tuple[int, bool], ChatModel],
        find: Callable[[str], AgentRecipe],
        model_call_executor_factory: ModelCallExecutorFactory | None,
        tool_call_executor_factory: ToolCallExecutorFactory,
    ) -> None:
        """Configure, as an `AgentExecutor` is.

        Args:
            loaded: Models that need no more loading; shared by the runs of one executor.
        """
        self._preparation = preparation
        self._models = models
        self._loaded = loaded
        self._find = find
        self._model_factory = model_call_executor_factory
        self._tool_factory = tool_call_executor_factory

    def find(self, name: str) -> AgentRecipe:
        """The executor's own."""
        return self._find(name)

    async def run(
        self,
        recipe: AgentRecipe,
        inputs: Mapping[str, InputValue],
        context: AgentContext,
        path: str,
        key: str,
        tell: TellSteps,
    ) -> NestedResult:
        """To its end; what failed in it is the error of the result."""
        inner, manager = self._context(recipe, inputs, context, path, key)
        try:
            return await self._run(inner, manager)
        finally:
            tell(manager.step_executions)

    async def _run(self, context: AgentContext, manager: StepManager) -> NestedResult:
        recipe = context.recipe
        built = self._preparation.built(recipe, context.tools)
        models = RunModels(context, built, self._models, self._model_factory, self._loaded)
        steps = RunSteps(context, built, models, self._tool_factory)
        routes = Routes(context, built, models, self._tool_factory)
        walk = RecipeWalk(context, manager, built, steps, routes, self._tool_factory)
        end, output = await _walked(walk, context), None
        if end.error is None:
            try:
                output = RunOutput(context, built, None, None).get()
            except MinionsError as problem:
                info = evolve(problem.info(), message=f"The recipe's output: {problem}")
                end = WalkEnd(status=RunStatus.FAILED, error=info)
        manager.set_workflow_complete()
        await walk.record_what_never_started(end)
        return NestedResult(output=output, error=_failure(recipe, context, end))

    def _context(
        self,
        recipe: AgentRecipe,
        inputs: Mapping[str, InputValue],
        outer: AgentContext,
        path: str,
        key: str,
    ) -> tuple[AgentContext, StepManager]:
        checked = resolve_inputs(recipe, inputs, from_text=False, base=Path.cwd())
        known: dict[str, JsonValue] = {
            "inputs": dict(checked),
            "run": {"id": outer.run_id, "session_id": outer.session_id},
        }
        tools = self._preparation.open_tools(recipe, known, outer.secrets)
        built = self._preparation.built(recipe, tools)
        manager = StepManager(built.graph)
        inner = outer.nested(
            recipe,
            manager,
            ConversationMemory(),
            tools=tools,
            inputs=checked,
            scope=Scope(keys=scope_of(key), path=f"{path}/"),
            system_prompt=rendered(built.system_prompt, known),
            goal=rendered(built.goal, known),
        )
        return inner, manager


async def _walked(walk: RecipeWalk, context: AgentContext) -> WalkEnd:
    """Within the recipe's own time, if it has one."""
    timeout_s = context.limits.timeout_s
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            await walk.walk()
    except TimeoutError:
        if not deadline.expired():
            raise
        message = f"It did not end within {timeout_s:g} s (its limit timeout_s)."
        info = FailureInfo(code="recipe-limit-reached", message=message)
        return WalkEnd(status=RunStatus.FAILED, error=info)
    return walk.end()


def _failure(recipe: AgentRecipe, context: AgentContext, end: WalkEnd) -> FailureInfo | None:
    """What went wrong, as the failure of the step that the recipe is."""
    error = end.error
    if error is None:
        return None
    if error.code == NEEDS_DECISION:
        return error
    if end.status is RunStatus.LIMIT_REACHED:
        if not context.budget.is_own:
            return error  # the run's own limit: the step is cut off, not failed
        return evolve(error, code="recipe-limit-reached", where=None)
    where = context.path_of(error.where) if error.where is not None else None
    return evolve(error, message=f"In the recipe '{recipe.id}': {error.message}", where=where)
