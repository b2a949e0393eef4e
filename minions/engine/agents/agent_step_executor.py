"""`AgentStepExecutor`: agent steps, tool calls, and both in parallel."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from attrs import evolve, frozen, mutable

from minions.contracts.agent_errors import AgentStepError, SecurityError, StepResult
from minions.contracts.messages import MessageRole, assistant, user
from minions.data.errors import EnvironmentRefusedError, words_of
from minions.engine.agents.agent_tool_calls import seconds_in
from minions.engine.agents.agents import call_agent, fingerprint_of
from minions.engine.agents.parallel_steps import (
    ExecutionStep,
    JoinPolicy,
    ParallelResults,
    StepType,
)
from minions.engine.agents.results import cancelled_result, category_of
from minions.engine.agents.step_hooks import ExecutionMetrics, StepHooks, cache_key
from minions.engine.context.agent_memory import AgentMemory, as_request_text
from minions.engine.services.retry import is_being_cancelled
from minions.engine.sessions.recipe_agent import RecipeAgent

F = TypeVar("F", bound=Callable[..., Awaitable[StepResult]])

_STEP: Final = "execute_agent_step"
_ECHOED: Final = ("branch_id", "step_number")
"""The metadata that a result repeats."""


@mutable
class _Attempts:
    """How often the agent of one step was called, and again the models and tools of its run."""

    count: int = 0
    within: int = 0

    @property
    def retries(self) -> int:
        """Those beyond the first."""
        return max(0, self.count - 1) + self.within

    def add_retries(self, retries: int) -> None:
        """Count those within a run."""
        self.within += retries


@frozen
class _Answer:
    """What an agent returned, and its memory afterwards."""

    value: object
    memory: AgentMemory


def _outermost(function: F) -> F:
    """The method, which raises a failed step to a subclass that called it through `super()`, and
    gives its error result to everybody else.

    So a subclass that counts exceptions counts failures, and one that stores results stores none.
    """

    @functools.wraps(function)
    async def execute(self: AgentCalls, *args: object, **kwargs: object) -> StepResult:
        try:
            return await function(self, *args, **kwargs)
        except AgentStepError as error:
            if self.raise_on_error or getattr(type(self), _STEP) is not execute:
                raise
            return error.result

    return cast("F", execute)


class AgentCalls(StepHooks):
    """The part of an executor of agent steps that calls agents."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Let an override of `execute_agent_step` see failures as exceptions: see `_outermost`."""
        super().__init_subclass__(**kwargs)
        if _STEP in vars(cls):
            setattr(cls, _STEP, _outermost(vars(cls)[_STEP]))

    @property
    def metrics(self) -> ExecutionMetrics:
        """The counts of all agent steps so far."""
        return self._counts.metrics

    @_outermost
    async def execute_agent_step(
        self,
        agent_name: str,
        request: Any,  # Any: an agent says what it takes
        memory: AgentMemory,
        metadata: Mapping[str, object] | None = None,
    ) -> StepResult:
        """Put a request to an agent, and return its result. `memory` is not changed.

        Args:
            metadata: `from_agent`: who asks; `tool_results`: results that the agent is given as
                data; `branch_id` and `step_number`: recorded with the run and repeated in the
                result; `timeout`: seconds in place of the executor's.
        Returns:
            What `_extract_response` makes of the agent's answer, and `memory_updates`: the request
            and all new messages in the provider's form, for `memory.commit(result)`. Of a failed
            step `error`, `error_type`, `category` and the fields of that type.
        Raises:
            SecurityError: The request is too large or was refused; no agent was called.
            ValidationError: The timeout is no number; no agent was called.
            AgentStepError: The step failed, and the executor raises on errors or a subclass called
                through `super()`.
        """
        given = dict(metadata or {})
        given["timeout"] = seconds_in(given, self._timeout_s)
        clock, attempts, result = self._services.clock, _Attempts(), None
        begin = clock.monotonic()
        try:
            self._validate_request(request, agent_name)
            result = await self._answer(agent_name, request, memory, given, attempts)
        except SecurityError as error:
            if not attempts.count:  # the request was refused; else the agent raised it
                raise
            raise await self._step_error(error, agent_name, given) from error
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            raise await self._step_error(error, agent_name, given) from error
        except (Exception, SystemExit) as error:
            raise await self._step_error(error, agent_name, given) from error
        else:
            return result
        finally:
            seconds = clock.monotonic() - begin
            is_success = result is not None and result.get("error") is None
            self._counts.add(is_success=is_success, retries=attempts.retries, seconds=seconds)

    async def _answer(
        self,
        agent_name: str,
        request: object,
        memory: AgentMemory,
        given: Mapping[str, object],
        attempts: _Attempts,
    ) -> StepResult:
        key = self._key(agent_name, request, memory, given)
        if self._results is not None and key is not None and key in self._results:
            self._agent_log.info("agent_result_cached", agent=agent_name)
            return copy.deepcopy(self._results[key])
        agent = self.agent_registry.get(agent_name)
        if isinstance(agent, RecipeAgent):
            agent = evolve(agent, retry=self._own_retry, on_retries=attempts.add_retries)
        prepared = self._prepare_agent_memory(memory, request, dict(given))

        async def attempt() -> _Answer:
            attempts.count += 1
            own = prepared.copy()
            blocking = self.execute_blocking_tool
            return _Answer(await call_agent(agent, request, own, dict(given), blocking), own)

        async with asyncio.timeout(seconds_in(given, None)):
            answer: _Answer = await self._execute_with_retry(attempt)
        result = dict(self._extract_response(answer.value))
        result.setdefault("memory_updates", _updates(memory, answer.memory, request, given, result))
        result |= _echo(given)
        self._agent_log.info("agent_step_finished", agent=agent_name, **_echo(given))
        if key is not None and result.get("error") is None:
            self._keep(key, result)
        return result

    async def _step_error(
        self, error: BaseException, agent_name: str, given: Mapping[str, object]
    ) -> AgentStepError:
        cause = error if isinstance(error, Exception) else RuntimeError(words_of(error))
        result = dict(await self._handle_execution_error(cause, agent_name, dict(given)))
        result.setdefault("category", category_of(result, cause))
        result |= _echo(given)
        facts = {"agent": agent_name, "error_type": result.get("error_type"), **_echo(given)}
        self._agent_log.warning("agent_step_failed", reason=words_of(error), **facts)
        return AgentStepError(result)

    def _key(
        self, agent_name: str, request: object, memory: AgentMemory, given: Mapping[str, object]
    ) -> str | None:
        """The key of the result in the cache; None: there is no cache, or equality of two requests
        cannot be told.
        """
        if self._results is None:
            return None
        found = self.agent_registry.find(agent_name)
        tools = [
            [name, self._tool_registry[name]["schema"]] for name in sorted(self._tool_registry)
        ]
        metadata = {name: value for name, value in given.items() if name != "timeout"}
        try:
            agent = [agent_name, found.revision, fingerprint_of(found.agent)]
            return cache_key(agent, request, memory.get_hash(), metadata, tools)
        except TypeError:  # what the agent or a message says of itself is not JSON
            return None

    def _keep(self, key: str, result: StepResult) -> None:
        if self._results is None:
            return
        try:
            self._results[key] = copy.deepcopy(result)
        except Exception as error:  # noqa: BLE001  # an agent's values need not be copyable
            self._agent_log.info("agent_result_not_cached", reason=words_of(error))


def _echo(given: Mapping[str, object]) -> StepResult:
    return {name: given[name] for name in _ECHOED if given.get(name) is not None}


def _updates(
    base: AgentMemory,
    memory: AgentMemory,
    request: object,
    given: Mapping[str, object],
    result: Mapping[str, object],
) -> list[StepResult]:
    """The request, the messages that were added for and by the agent, and its answer."""
    added = list(memory.messages_after(len(base)))
    if not given.get("from_agent"):
        added.insert(0, user(as_request_text(request)))
    content = result.get("content")
    if added[-1].role is not MessageRole.ASSISTANT:
        shown = content if isinstance(content, str) else as_request_text(dict(result))
        added.append(assistant(shown))
    return [dict(message.to_message_dict()) for message in added]


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
            return _join_results(await self.execute_tool_calls(step.tool_calls, {**context, **own}))
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
    return _join_results(result) if isinstance(result, list) else result


def _join_results(results: list[StepResult]) -> StepResult:
    """The results of the calls of a tool step as one result."""
    failed = next((each for each in results if each.get("error") is not None), None)
    shown: StepResult = {"tool_results": results, "error": None}
    if failed is not None:
        kept = ("error", "error_type", "category", "suggestions", "timeout_seconds", "memory_usage")
        shown |= {name: failed[name] for name in kept if name in failed}
    return shown
