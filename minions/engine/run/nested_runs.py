"""A recipe as a step of a run: its own values, tools and memory; the run's journal and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import evolve

from minions.contracts.executions import RunStatus
from minions.contracts.secrets import InputValue
from minions.data.errors import NEEDS_DECISION, FailureInfo, MinionsError
from minions.data.json_values import JsonValue
from minions.data.patterns import match_beside_loop
from minions.engine.compile.build import BuiltRecipe
from minions.engine.compile.named_agents import NamedAgents
from minions.engine.compile.opening_rights import MadeOf
from minions.engine.context.agent_context import AgentContext, NestedResult, RecipeRunner, TellSteps
from minions.engine.history.keys import scope_of
from minions.engine.history.memory import ConversationMemory
from minions.engine.run.assembly import RunWiring
from minions.engine.run.run_output import RunOutput
from minions.engine.run.walk import RecipeWalk, WalkEnd
from minions.engine.step.step_manager import StepManager
from minions.recipe.inputs import resolve_inputs
from minions.recipe.model import AgentRecipe


class NestedRuns(RecipeRunner):
    """Runs the nested recipes of one executor; it holds no state of a run."""

    def __init__(
        self, wiring: RunWiring, find: Callable[[str], AgentRecipe], agents: NamedAgents
    ) -> None:
        """Take what the executor's own runs have.

        Args:
            find: An id to its recipe; raises NotFoundError.
            agents: What tools may run by name.
        """
        self._wiring = wiring
        self._find = find
        self._agents = agents

    @property
    def agents(self) -> NamedAgents:
        """The agents of the executor."""
        return self._agents

    def find(self, name: str) -> AgentRecipe:
        """The recipe that the executor knows by that name."""
        return self._find(name)

    async def run(
        self,
        recipe: AgentRecipe,
        inputs: Mapping[str, InputValue],
        context: AgentContext,
        path: str,
        key: str,
        tell: TellSteps,
        made_of: MadeOf | None = None,
    ) -> NestedResult:
        """To its end; what failed in it is the error of the result."""
        await context.scope.examples.pin(recipe)  # else of a recipe that is made in the run
        checked = await match_beside_loop(
            lambda: resolve_inputs(recipe, inputs, from_text=False, base=Path.cwd())
        )
        inner, manager, built = self._context(recipe, checked, context, path, key, made_of)
        try:
            return await self._run(inner, manager, built)
        finally:
            tell(manager.step_executions)

    async def _run(
        self, context: AgentContext, manager: StepManager, built: BuiltRecipe
    ) -> NestedResult:
        recipe = context.recipe
        walk = self._wiring.walk(context, manager, built).walk
        end, output = await _walked(walk, context), None
        if end.error is None:
            try:
                output = RunOutput(context, built, None, None).get()
            except MinionsError as problem:
                info = evolve(problem.info(), message=f"The recipe's output: {problem}")
                end = WalkEnd(status=RunStatus.FAILED, error=info)
        manager.set_workflow_complete()
        await walk.record_what_never_started(end)
        return NestedResult(
            output=output,
            error=_failure(recipe, context, end),
            is_partial=end.status is RunStatus.PARTIAL,
        )

    def _context(
        self,
        recipe: AgentRecipe,
        checked: Mapping[str, JsonValue],
        outer: AgentContext,
        path: str,
        key: str,
        made_of: MadeOf | None,
    ) -> tuple[AgentContext, StepManager, BuiltRecipe]:
        scope = outer.scope.within(
            recipe, keys=scope_of(key), path=f"{path}/", inputs=checked, made_of=made_of
        )
        opened = self._wiring.opened(recipe, checked, scope)
        chain = self._wiring.next_step_chain
        manager = StepManager(opened.built.graph, next_step_chain=chain)
        inner = outer.nested(
            opened.agent(recipe),
            manager,
            ConversationMemory(),
            tools=opened.tools,
            inputs=checked,
            scope=scope,
        )
        return inner, manager, opened.built


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
        if not context.progress.budget.is_own:
            return error  # the run's own limit: the step is cut off, not failed
        return evolve(error, code="recipe-limit-reached", where=None)
    where = error.where
    if where is not None and "/" not in where:  # else from further within, and whole already
        where = context.scope.path_of(where)
    return evolve(error, message=f"In the recipe '{recipe.id}': {error.message}", where=where)
