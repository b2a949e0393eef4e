"""The current step of a run in its graph, and the choice of the next one."""

from __future__ import annotations

from typing import Final

from minions.contracts.call_executors import ToolCallExecutorFactory
from minions.contracts.graph import StepGraph
from minions.contracts.steps import Step
from minions.engine.context.agent_context import AgentContext
from minions.engine.context.progress import StepProgress
from minions.engine.step.next_step import NextStepChain

_USUAL_CHAIN: Final = NextStepChain()


class StepManager(StepProgress):
    """Knows the current step and chooses the next one; only an `AgentExecutor` moves it."""

    def __init__(self, graph: StepGraph, *, next_step_chain: NextStepChain | None = None) -> None:
        super().__init__(graph)
        self._chain = next_step_chain or _USUAL_CHAIN

    async def advance_to_next_step(
        self, context: AgentContext, tool_call_executor_factory: ToolCallExecutorFactory
    ) -> Step[object] | None:
        """Choose the successor of the step that just COMPLETED, was SKIPPED, or failed optionally.

        Called by `AgentExecutor`, once per step.
        """
        current = self.current_step
        if current is None:
            return None
        candidates = self.graph.possible_next_steps(current)
        execution = self.latest(current.id)
        chosen = await self._chain.select(
            current, candidates, execution, context, tool_call_executor_factory
        )
        self.set_current_step(chosen)
        return chosen
