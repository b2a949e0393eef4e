"""The configuration of an executor of agent steps, its methods that a subclass may override, its
cache and its metrics.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any, Final, TypeAlias, TypeVar

from attrs import evolve, field, frozen, mutable
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.contracts.agent_errors import SecurityError, StepResult
from minions.contracts.retry_config import RetryConfig
from minions.data.codec import encode
from minions.data.errors import words_of
from minions.data.schema import JsonSchema
from minions.engine.agents.agent_tool_calls import (
    DEFAULT_TIMEOUT_S,
    ToolCalls,
    validate_against_schema,
)
from minions.engine.agents.agents import AgentLike, Sandbox
from minions.engine.agents.registry import AgentRegistry
from minions.engine.agents.results import as_result, error_result, peak_memory_bytes
from minions.engine.context.agent_memory import AgentMemory, attributed_request
from minions.engine.services.retry import is_retryable_error, with_retries
from minions.engine.services.run_services import Services

K = TypeVar("K")
V = TypeVar("V")


class LRUCache(MutableMapping[K, V]):
    """A mapping that forgets the entry which was not used for the longest time."""

    def __init__(self, maxsize: int = 100) -> None:
        """Keep at most `maxsize` entries."""
        self.maxsize = maxsize
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __getitem__(self, key: K) -> V:
        value = self._entries[key]
        self._entries.move_to_end(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self.maxsize:
            self._entries.popitem(last=False)

    def __delitem__(self, key: K) -> None:
        del self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def cache_key(*parts: object) -> str | None:
    """64 hex digits made of the parts; None: one of them is not JSON, so that equality of two
    values cannot be told.
    """
    try:
        text = json.dumps(encode(list(parts)), sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()


@frozen(kw_only=True)
class ExecutionMetrics:
    """The counts of all agent steps that an executor has ended so far."""

    total_executions: int = 0
    """Successful and failed ones; answers of the cache count as successful."""
    successful_executions: int = 0
    failed_executions: int = 0
    """Error results, refused requests and cancelled steps."""
    retry_count: int = 0
    """Attempts beyond the first one of each step, and of each call of a model or tool in its run,
    however the step ended."""
    total_execution_time: float = 0.0
    """Seconds, from the call to the result of each step."""


@mutable(eq=False)
class ExecutionCounts:
    """The metrics of an executor while it works."""

    metrics: ExecutionMetrics = field(factory=ExecutionMetrics)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def add(self, *, is_success: bool, retries: int, seconds: float) -> None:
        """Count a step that has ended."""
        with self._lock:
            now = self.metrics
            self.metrics = evolve(
                now,
                total_executions=now.total_executions + 1,
                successful_executions=now.successful_executions + is_success,
                failed_executions=now.failed_executions + (not is_success),
                retry_count=now.retry_count + retries,
                total_execution_time=now.total_execution_time + seconds,
            )


T = TypeVar("T")

ResultCache: TypeAlias = LRUCache[str, StepResult]
"""Results of agent steps by their key."""

_TRANSIENT: Final = (TimeoutError, ConnectionError)


@frozen
class _AgentFailure:
    """What an agent raised, as a failure; the methods of its executor say what follows."""

    error: Exception
    attempt: int
    hooks: StepHooks

    @property
    def is_retryable(self) -> bool:
        """Whether another attempt can help."""
        return self.hooks._should_retry(self.error, self.attempt)  # noqa: SLF001  # of this module

    @property
    def retry_after_s(self) -> float:
        """Seconds until the next attempt."""
        return self.hooks._calculate_backoff_delay(self.attempt)  # noqa: SLF001  # likewise


class StepHooks(ToolCalls):
    """The part of an executor of agent steps that says how a step is executed.

    What begins with `_` below may be overridden, and is honoured.
    """

    MAX_REQUEST_SIZE: int = 100_000
    """The longest request in characters of its text."""

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
                None: three attempts. Where a recipe and its steps state nothing of `retry`, it
                holds for the calls of its run: the keys that they state are theirs, the others
                those of this one.
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
        self._own_retry = retry_config
        """As it was given; None: it was not."""
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
        *args: object,
        **kwargs: object,
    ) -> T:
        """Call until it succeeds, cannot succeed, or `retry_config.max_attempts` were made."""
        failures = 0

        async def attempt() -> Result[T, _AgentFailure]:
            nonlocal failures
            try:
                return Success(await func(*args, **kwargs))
            except Exception as error:  # noqa: BLE001  # an agent raises anything; it is raised again
                failures += 1
                return Failure(_AgentFailure(error, failures, self))

        def on_retry(attempt: int, delay_s: float, failure: _AgentFailure) -> None:
            self._agent_log.warning(
                "agent_step_retried",
                attempt=attempt,
                delay_s=delay_s,
                reason=words_of(failure.error),
            )

        attempted = await with_retries(
            attempt,
            most=self.retry_config.max_attempts,
            config=self.retry_config,
            services=self._services,
            on_retry=on_retry,
            longest_wait_s=math.inf,
        )
        if is_successful(attempted.outcome):
            return attempted.outcome.unwrap()
        raise attempted.outcome.failure().error

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
        self, error: Exception, agent_name: str, context: Mapping[str, object]
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
