"""`AgentStepExecutor`: agent steps, tool calls, and both in parallel."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from minions.contracts.agent_errors import AgentStepError, StepResult
from minions.data.errors import EnvironmentRefusedError
from minions.engine.agents.agent_calls import AgentCalls
from minions.engine.agents.results import cancelled_result, category_of
from minions.engine.agents.steps import ExecutionStep, JoinPolicy, ParallelResults, StepType
from minions.engine.agents.tool_calls import seconds_in
from minions.engine.context.agent_memory import AgentMemory

__all__ = ["AgentStepExecutor"]

_INHERITED = ("branch_id", "step_number")
"""What agent steps take over of the context of parallel steps."""


class AgentStepExecutor(AgentCalls):
    """Executes steps of agents and calls of tools; between two executions it keeps nothing but
    counts and, where asked for, a cache of results.

    The methods that begin with `_` may be overridden; what they return is honoured. A subclass that
    overrides `execute_agent_step` sees a failure of `super().execute_agent_step(…)` as
    `AgentStepError`, and its caller gets the error result.
    """

    async def execute_parallel_steps(
        self,
        steps: Sequence[ExecutionStep],
        memory: AgentMemory,
        context: Mapping[str, object] | None = None,
        *,
        join: JoinPolicy | str | float = "all",
    ) -> ParallelResults:
        """Execute steps together, each with a memory and a timeout of its own.

        A failed step cancels no other one. When as many steps have succeeded as the join policy
        needs, those that still run are cancelled.

        Args:
            context: Its `timeout` are the seconds for each step that has none of its own; its
                `branch_id` and `step_number` hold for agent steps without their own.
            join: `all`, `any`, `majority`, a ratio such as 0.6, or a `JoinPolicy`.
        Returns:
            As many results as steps, in their order: of an agent step as `execute_agent_step`; of a
            tool step `tool_results` and the `error` of the first call that failed. A cancelled step
            has the error type `cancelled`, one of an unknown kind `unknown_step`.
        Raises:
            UsageError: There is no such join policy (`bad-join`), or the timeout is no number.
        """
        policy, shared = JoinPolicy.of(join), dict(context or {})
        seconds_in(shared, None)  # a wrong one is refused before anything runs
        tasks = [
            asyncio.ensure_future(self._execute_parallel_step(step, memory.copy(), shared))
            for step in steps
        ]
        try:
            await _until_joined(tasks, policy)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        return ParallelResults(self._process_parallel_results(steps, ended), policy)

    async def execute_sandboxed(self, code: str, timeout: float = 5.0) -> Any:  # noqa: ASYNC109  # Any: what the code gives
        """Execute code that is not trusted, in the sandbox, within so many seconds.

        Raises:
            EnvironmentRefusedError: The executor has no sandbox; nothing was executed.
        """
        if self._sandbox is None:
            raise EnvironmentRefusedError(
                "This executor has no sandbox, and code is never executed without one. Give "
                "AgentStepExecutor(…, sandbox=…).",
                code="no-sandbox",
            )
        return await self._sandbox.execute(code, timeout)

    # --- what a subclass may override or call -------------------------------------------------

    def _process_parallel_results(
        self,
        steps: Sequence[ExecutionStep],
        results: Sequence[StepResult | list[StepResult] | BaseException],
    ) -> list[StepResult]:
        """A result for each step, in order.

        Args:
            results: One for each step, or for each step of a known kind.
        """
        rest = iter(results)
        has_all = len(results) == len(steps)
        return [
            _as_step_result(next(rest)) if has_all or _is_known(step) else _unknown(step)
            for step in steps
        ]

    async def _execute_parallel_step(
        self, step: ExecutionStep, memory: AgentMemory, context: Mapping[str, object]
    ) -> StepResult:
        """The result of one of several steps; whatever it raises becomes an error result."""
        own = {} if step.timeout is None else {"timeout": step.timeout}
        if step.step_type == StepType.TOOL:
            return _joined(await self.execute_tool_calls(step.tool_calls, {**context, **own}))
        if step.step_type != StepType.AGENT:
            return _unknown(step)
        kept = (*_INHERITED, "timeout")
        inherited = {name: context[name] for name in kept if context.get(name) is not None}
        metadata = {**inherited, **(step.metadata or {}), **own}
        try:
            return await self.execute_agent_step(
                agent_name=step.agent_name, request=step.request, memory=memory, metadata=metadata
            )
        except AgentStepError as error:
            return error.result
        except Exception as error:  # noqa: BLE001  # also of an override: it must not cancel the other steps
            return await self._handle_execution_error(error, step.agent_name, metadata)


async def _until_joined(tasks: Sequence[asyncio.Future[StepResult]], policy: JoinPolicy) -> None:
    """Wait until enough steps have succeeded, or all have ended."""
    missing, running = policy.needed(len(tasks)), len(tasks)
    is_decided = asyncio.Event()

    def count(task: asyncio.Future[StepResult]) -> None:
        nonlocal missing, running
        running -= 1
        missing -= _is_success(task)
        if missing <= 0 or not running:
            is_decided.set()

    for task in tasks:
        task.add_done_callback(count)
    if tasks:
        await is_decided.wait()


def _is_success(task: asyncio.Future[StepResult]) -> bool:
    has_result = not task.cancelled() and task.exception() is None
    return has_result and task.result().get("error") is None


def _is_known(step: ExecutionStep) -> bool:
    return step.step_type in tuple(StepType)


def _unknown(step: ExecutionStep) -> StepResult:
    result: StepResult = {
        "error": f"'{step.step_type}' is no kind of step. Kinds are: {', '.join(StepType)}.",
        "error_type": "unknown_step",
    }
    return result | {"category": category_of(result)}


def _as_step_result(result: StepResult | list[StepResult] | BaseException) -> StepResult:
    if isinstance(result, asyncio.CancelledError):
        return cancelled_result("Cancelled: enough of the parallel steps had succeeded.")
    if isinstance(result, AgentStepError):
        return result.result
    if isinstance(result, BaseException):
        return {"error": str(result), "error_type": "internal_error", "category": "internal"}
    return _joined(result) if isinstance(result, list) else result


def _joined(results: list[StepResult]) -> StepResult:
    """The results of the calls of a tool step as one result."""
    failed = next((each for each in results if each.get("error") is not None), None)
    shown: StepResult = {"tool_results": results, "error": None}
    if failed is not None:
        kept = ("error", "error_type", "category", "suggestions", "timeout_seconds", "memory_usage")
        shown |= {name: failed[name] for name in kept if name in failed}
    return shown
