"""Agent steps: one request to one agent, with its memory, retries, timeout and error result."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

from attrs import evolve, frozen, mutable

from minions.contracts.agent_errors import AgentStepError, SecurityError, StepResult
from minions.contracts.errors import words_of
from minions.contracts.messages import MessageRole, assistant, user
from minions.contracts.retry import RetryConfig
from minions.contracts.schema import JsonSchema
from minions.engine.agents.agents import AgentLike, Sandbox, call_agent, fingerprint_of
from minions.engine.agents.metrics import ExecutionCounts, ExecutionMetrics
from minions.engine.agents.registry import AgentRegistry
from minions.engine.agents.result_cache import LRUCache, cache_key
from minions.engine.agents.results import as_result, error_result, peak_memory_bytes
from minions.engine.agents.tool_calls import (
    DEFAULT_TIMEOUT_S,
    ToolCalls,
    seconds_in,
    validate_against_schema,
)
from minions.engine.context.agent_memory import AgentMemory, as_request_text, attributed_request
from minions.engine.services.retry import is_being_cancelled, is_retryable_error
from minions.engine.services.services import Services

__all__ = ["AgentCalls", "ResultCache"]

T = TypeVar("T")

ResultCache: TypeAlias = LRUCache[str, StepResult]
"""Results of agent steps by their key."""

_ECHOED: Final = ("branch_id", "step_number")
"""The metadata that a result repeats."""
_TRANSIENT: Final = (TimeoutError, ConnectionError)


@mutable
class _Attempts:
    """How often the agent of one step was called."""

    count: int = 0


@frozen
class _Answer:
    """What an agent returned, and its memory afterwards."""

    value: object
    memory: AgentMemory


F = TypeVar("F", bound=Callable[..., Awaitable[StepResult]])


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


_STEP: Final = "execute_agent_step"


class AgentCalls(ToolCalls):
    """The part of an executor of agent steps that calls agents."""

    MAX_REQUEST_SIZE: int = 100_000
    """The longest request in characters of its text."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Let an override of `execute_agent_step` see failures as exceptions: see `_outermost`."""
        super().__init_subclass__(**kwargs)
        if _STEP in vars(cls):
            setattr(cls, _STEP, _outermost(vars(cls)[_STEP]))

    def __init__(
        self,
        agent_registry: AgentRegistry | Mapping[str, AgentLike],
        retry_config: RetryConfig | None = None,
        *,
        services: Services | None = None,
        timeout: float | None = DEFAULT_TIMEOUT_S,
        tool_timeout: float | None = DEFAULT_TIMEOUT_S,
        cache: bool | ResultCache = False,
        raise_on_error: bool = False,
        debug: bool = False,
        max_request_size: int | None = None,
        injection_check: Callable[[object], bool] | None = None,
        sandbox: Sandbox | None = None,
        pool_size: int = 10,
    ) -> None:
        """Configure; nothing of a call is kept.

        Args:
            agent_registry: The agents, or a mapping of them by name.
            retry_config: After which exceptions of an agent, and how often, it is called again;
                None: three attempts. Calls of a recipe's models and tools are retried in its run.
            services: Clock, sleep, random and log; None: those of the registry.
            timeout: Seconds of an agent step with all its attempts; None: unlimited.
            tool_timeout: Seconds of a tool call; None: unlimited.
            cache: Whether results of successful steps are kept (True: the 100 that were used last),
                or where.
            raise_on_error: Whether a failed step raises `AgentStepError` in place of its error
                result.
            debug: Whether an error result has the text of an unexpected exception as `details`.
            max_request_size: In place of `MAX_REQUEST_SIZE`, which is 100,000 characters.
            injection_check: Whether a request must be refused; None: every request is taken.
            sandbox: Executes code for `execute_sandboxed`; None: that is refused.
            pool_size: Threads for functions that block.
        """
        registry = AgentRegistry.of(agent_registry, services)
        super().__init__(services or registry.services, tool_timeout, pool_size)
        config = retry_config or RetryConfig()
        self.agent_registry = registry
        self.retry_config = evolve(
            config,
            retryable_exceptions=_TRANSIENT
            if config.retryable_exceptions is None
            else config.retryable_exceptions,
        )
        self.raise_on_error = raise_on_error
        self._timeout_s = timeout
        self._debug_mode = debug
        self._results = LRUCache(100) if cache is True else None if cache is False else cache
        self._counts = ExecutionCounts()
        self._injection_check = injection_check
        self._sandbox = sandbox
        if max_request_size is not None:
            self.MAX_REQUEST_SIZE = max_request_size

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
        except SecurityError:
            raise
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

    # --- what a subclass may override or call -------------------------------------------------

    def _prepare_agent_memory(
        self, base_memory: AgentMemory, request: object, metadata: Mapping[str, Any]
    ) -> AgentMemory:
        """The memory of the agent: a copy with the sender's request and with tool results.

        Neither becomes a system message: what another agent or a tool says is data.
        """
        memory = base_memory.copy()
        if metadata.get("from_agent"):
            memory.add_message(attributed_request(metadata["from_agent"], request))
        for result in metadata.get("tool_results") or ():
            memory.add_tool_result(result)
        return memory

    def _extract_response(self, agent_result: Any) -> StepResult:  # Any: what an agent returned
        """The result made of what the agent returned."""
        return as_result(agent_result)

    async def _execute_with_retry(
        self,
        func: Callable[..., Awaitable[T]],
        *args: Any,  # Any: whatever the function takes
        **kwargs: Any,  # Any: likewise
    ) -> T:
        """Call until it succeeds, cannot succeed, or `retry_config.max_attempts` were made."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return await func(*args, **kwargs)
            except Exception as error:
                most = self.retry_config.max_attempts
                if attempt >= most or not self._should_retry(error, attempt):
                    raise
                delay_s = self._calculate_backoff_delay(attempt)
                self._services.log.warning(
                    "agent_step_retried", attempt=attempt, delay_s=delay_s, reason=words_of(error)
                )
            await self._services.sleep(delay_s)

    def _should_retry(self, error: Exception, attempt: int) -> bool:
        """Whether another attempt can help: never after programming errors and refusals, else as
        the status of an HTTP error or `retry_config.retryable_exceptions` say.
        """
        retryable = self.retry_config.retryable_exceptions
        return is_retryable_error(error, unless_known=False, retryable=retryable)

    def _calculate_backoff_delay(self, attempt: int) -> float:
        """Seconds to wait after that many failed attempts."""
        return self.retry_config.delay_s(attempt, self._services.random())

    async def _handle_execution_error(
        self, error: Exception, agent_name: str, context: Mapping[str, Any]
    ) -> StepResult:
        """The error result of a step that raised.

        Args:
            context: The metadata of the step, with its `timeout`.
        """
        return error_result(error, agent_name, context, debug=self._debug_mode)

    def _validate_request(self, request: object, agent_name: str) -> None:
        """Check a request before anything else is done.

        Raises:
            SecurityError: It is too large, or the injection check refuses it.
            ValidationError: It does not fit the agent's schema.
        """
        size = len(request if isinstance(request, str) else str(request))
        if size > self.MAX_REQUEST_SIZE:
            raise SecurityError(
                f"The request to '{agent_name}' has {size:,} characters; at most "
                f"{self.MAX_REQUEST_SIZE:,} are taken (MAX_REQUEST_SIZE).",
                code="request-too-large",
            )
        if self._contains_injection(request):
            raise SecurityError(
                f"The request to '{agent_name}' was refused by the injection check."
            )
        if (schema := self._get_agent_schema(agent_name)) is not None:
            validate_against_schema(request, schema)

    def _contains_injection(self, request: object) -> bool:
        """Whether the request must be refused; by default what `injection_check` says."""
        return self._injection_check is not None and self._injection_check(request)

    def _get_agent_schema(self, agent_name: str) -> JsonSchema | None:
        """JSON Schema of the agent's requests; None: it takes any, or there is no such agent."""
        registry = self.agent_registry
        return registry.find(agent_name).schema if agent_name in registry else None

    def _suggest_similar_agents(self, agent_name: str) -> list[str]:
        """Up to three names of agents that look like this one."""
        return list(self.agent_registry.similar(agent_name))

    def _get_memory_usage(self) -> int:
        """The most memory that the process had so far, in bytes."""
        return peak_memory_bytes()

    def _generate_cache_key(
        self,
        agent_name: str,
        request: object,
        memory_hash: str,
        metadata: Mapping[str, object] | None = None,
    ) -> str:
        """A key for a cache of a subclass; of a request that is not JSON, one that is never equal
        to another.
        """
        key = cache_key(agent_name, request, memory_hash, dict(metadata or {}))
        return key or self._services.ids("uncached")


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
