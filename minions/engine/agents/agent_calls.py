"""Agent steps: one request to one agent, with its memory, retries, timeout and error result."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar, cast

from attrs import evolve, frozen, mutable

from minions.contracts.agent_errors import AgentStepError, SecurityError, StepResult
from minions.contracts.executions import AgentResult
from minions.contracts.messages import MessageRole, assistant, user
from minions.data.errors import words_of
from minions.data.json_values import JsonValue
from minions.engine.agents.agents import call_agent, fingerprint_of
from minions.engine.agents.metrics import ExecutionMetrics
from minions.engine.agents.result_cache import cache_key
from minions.engine.agents.results import category_of
from minions.engine.agents.step_hooks import StepHooks
from minions.engine.agents.tool_calls import seconds_in
from minions.engine.context.agent_memory import AgentMemory, as_request_text
from minions.engine.services.retry import is_being_cancelled
from minions.engine.sessions.recipe_agent import RecipeAgent

__all__ = ["AgentCalls"]

F = TypeVar("F", bound=Callable[..., Awaitable[StepResult]])

_STEP: Final = "execute_agent_step"
_ECHOED: Final = ("branch_id", "step_number")
"""The metadata that a result repeats."""


@mutable
class _Attempts:
    """How often the agent of one step was called, and the models of its run were again."""

    count: int = 0

    def add_retries(self, result: AgentResult[JsonValue]) -> None:
        """Count the attempts at model calls of a run, the first of each call aside."""
        calls = (call for each in result.executions for call in each.model_calls)
        self.count += sum(max(0, call.attempts - 1) for call in calls)


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
            self._counts.add(is_success=is_success, attempts=attempts.count, seconds=seconds)

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
            self._services.log.info("agent_result_cached", agent=agent_name)
            return copy.deepcopy(self._results[key])
        agent = self.agent_registry.get(agent_name)
        if isinstance(agent, RecipeAgent):
            agent = evolve(agent, retry=self._own_retry, on_result=attempts.add_retries)
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
        self._services.log.info("agent_step_finished", agent=agent_name, **_echo(given))
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
        self._services.log.warning("agent_step_failed", reason=words_of(error), **facts)
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
            self._services.log.info("agent_result_not_cached", reason=words_of(error))


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
