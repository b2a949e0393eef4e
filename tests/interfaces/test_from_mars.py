"""The step executor of the MARS document runs as it is written there: each of its examples, with
other imports alone."""

from __future__ import annotations

import asyncio
import logging
import textwrap
import time
import typing
import urllib.error
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from email.message import Message as Headers
from typing import Any, Final, cast

import pytest

from builders import deterministic_services
from minions import guide
from minions.adapters.sandboxes.python_sandboxes import ProcessSandbox
from minions.contracts.agent_errors import AgentStepError, SecurityError
from minions.contracts.errors import StepFailedError, UsageError
from minions.engine.agents.steps import ExecutionStep, StepType
from minions.engine.context.agent_memory import AgentMemory, AgentMessage
from minions.guide import AgentSandbox, AgentStepExecutor
from minions.recipes import RetryConfig

# --- the examples, word for word ----------------------------------------------------------------

PREPARE_MEMORY: Final = '''\
def _prepare_agent_memory(
    self,
    base_memory: AgentMemory,
    request: Any,
    metadata: Dict[str, Any]
) -> AgentMemory:
    """Prepare memory for agent execution."""
    # Clone base memory to avoid mutations
    agent_memory = base_memory.copy()

    # Add execution context
    if metadata.get("from_agent"):
        context_msg = f"Request from {metadata['from_agent']}: {request}"
        agent_memory.add_message(
            Message(role="system", content=context_msg)
        )

    # Add any tool results
    if metadata.get("tool_results"):
        for result in metadata["tool_results"]:
            agent_memory.add_tool_result(result)

    return agent_memory
'''
EXTRACT: Final = '''\
def _extract_response(
    self,
    agent_result: Any
) -> Dict[str, Any]:
    """Extract structured response from agent result."""
    if isinstance(agent_result, dict):
        return agent_result
    elif isinstance(agent_result, Message):
        return {
            "content": agent_result.content,
            "role": agent_result.role,
            "metadata": agent_result.metadata
        }
    elif hasattr(agent_result, "dict"):
        return agent_result.dict()
    else:
        return {"content": str(agent_result)}
'''
TOOL_CALLS: Final = '''\
async def execute_tool_calls(
    self,
    tool_calls: List[Dict[str, Any]],
    context: Optional[Dict[str, Any]] = None
) -> List[Dict[str, Any]]:
    """
    Execute multiple tool calls in parallel.

    Returns list of tool results with:
    - tool_name: Name of the tool
    - result: Tool execution result
    - error: Error message if failed
    - execution_time: Time taken
    """
    tasks = []
    for tool_call in tool_calls:
        task = self._execute_single_tool(tool_call, context)
        tasks.append(task)

    results = await asyncio.gather(*tasks, return_exceptions=True)
    return self._format_tool_results(tool_calls, results)
'''
REGISTER: Final = '''\
def register_tool(
    self,
    tool_name: str,
    tool_func: Callable,
    validation_schema: Optional[Dict] = None
):
    """Register a tool for execution."""
    self._tool_registry[tool_name] = {
        "func": tool_func,
        "schema": validation_schema,
        "is_async": asyncio.iscoroutinefunction(tool_func)
    }
'''
WITH_RETRY: Final = '''\
async def _execute_with_retry(
    self,
    func: Callable,
    *args,
    **kwargs
) -> Any:
    """Execute function with exponential backoff retry."""
    attempt = 0
    last_error = None

    while attempt < self.retry_config.max_attempts:
        try:
            return await func(*args, **kwargs)
        except self.retry_config.retryable_exceptions as e:
            last_error = e
            attempt += 1

            if attempt >= self.retry_config.max_attempts:
                raise

            # Calculate delay with jitter
            delay = self._calculate_backoff_delay(attempt)
            logger.warning(
                f"Attempt {attempt} failed: {e}. "
                f"Retrying in {delay:.2f}s..."
            )
            await asyncio.sleep(delay)

    raise last_error
'''
SHOULD_RETRY: Final = '''\
def _should_retry(
    self,
    error: Exception,
    attempt: int
) -> bool:
    """Determine if error is retryable."""
    # Don't retry on programming errors
    if isinstance(error, (SyntaxError, TypeError, AttributeError)):
        return False

    # Don't retry on explicit failures
    if isinstance(error, ValidationError):
        return False

    # Check if error is in retryable list
    return isinstance(error, self.retry_config.retryable_exceptions)
'''
PARALLEL: Final = '''\
async def execute_parallel_steps(
    self,
    steps: List[ExecutionStep],
    memory: AgentMemory,
    context: Dict[str, Any]
) -> List[Dict[str, Any]]:
    """
    Execute multiple steps in parallel.

    Useful for parallel agent invocations or
    multiple tool executions.
    """
    tasks = []

    for step in steps:
        if step.step_type == StepType.AGENT:
            task = self.execute_agent_step(
                agent_name=step.agent_name,
                request=step.request,
                memory=memory.copy(),  # Isolated memory
                metadata=step.metadata
            )
        elif step.step_type == StepType.TOOL:
            task = self.execute_tool_calls(
                tool_calls=step.tool_calls,
                context=context
            )
        else:
            continue

        tasks.append(task)

    results = await asyncio.gather(*tasks, return_exceptions=True)
    return self._process_parallel_results(steps, results)
'''
ERRORS: Final = '''\
async def _handle_execution_error(
    self,
    error: Exception,
    agent_name: str,
    context: Dict[str, Any]
) -> Dict[str, Any]:
    """Handle different types of execution errors."""

    if isinstance(error, AgentNotFoundError):
        return {
            "error": f"Agent '{agent_name}' not found",
            "error_type": "agent_not_found",
            "suggestions": self._suggest_similar_agents(agent_name)
        }

    elif isinstance(error, TimeoutError):
        return {
            "error": f"Agent '{agent_name}' timed out",
            "error_type": "timeout",
            "timeout_seconds": context.get("timeout", 30)
        }

    elif isinstance(error, MemoryError):
        return {
            "error": "Memory limit exceeded",
            "error_type": "resource_limit",
            "memory_usage": self._get_memory_usage()
        }

    else:
        # Unknown error - log and return generic
        logger.error(f"Unexpected error: {error}", exc_info=True)
        return {
            "error": "Internal execution error",
            "error_type": "internal_error",
            "details": str(error) if self._debug_mode else None
        }
'''
BRANCH: Final = """\
# In BranchExecutor
step_result = await self.step_executor.execute_agent_step(
    agent_name=current_agent,
    request=request,
    memory=branch_memory,
    metadata={
        "branch_id": branch.id,
        "step_number": step_count,
        "from_agent": previous_agent
    }
)
"""
VALIDATION: Final = """\
# Execute step and validate response
result = await step_executor.execute_agent_step(
    agent_name="Planner",
    request="Create execution plan",
    memory=memory
)

# Validate the response
validation_result = await validator.validate(
    result,
    expected_format={"next_action": str, "plan": list}
)
"""
CACHED: Final = """\
class CachedStepExecutor(StepExecutor):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._cache = LRUCache(maxsize=100)

    async def execute_agent_step(
        self,
        agent_name: str,
        request: Any,
        memory: AgentMemory,
        metadata: Optional[Dict[str, Any]] = None
    ) -> Dict[str, Any]:
        # Generate cache key
        cache_key = self._generate_cache_key(
            agent_name, request, memory.get_hash()
        )

        # Check cache
        if cache_key in self._cache:
            logger.debug(f"Cache hit for {agent_name}")
            return self._cache[cache_key]

        # Execute and cache
        result = await super().execute_agent_step(
            agent_name, request, memory, metadata
        )
        self._cache[cache_key] = result
        return result
"""
POOLED: Final = '''\
# Pool expensive resources
class PooledStepExecutor(StepExecutor):
    def __init__(self, *args, pool_size: int = 10, **kwargs):
        super().__init__(*args, **kwargs)
        self._executor_pool = ThreadPoolExecutor(max_workers=pool_size)

    async def execute_blocking_tool(
        self,
        tool_func: Callable,
        *args,
        **kwargs
    ) -> Any:
        """Execute blocking tool in thread pool."""
        loop = asyncio.get_event_loop()
        return await loop.run_in_executor(
            self._executor_pool,
            tool_func,
            *args,
            **kwargs
        )
'''
METRICS: Final = """\
# Track execution metrics
class MetricsStepExecutor(StepExecutor):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._metrics = {
            "total_executions": 0,
            "successful_executions": 0,
            "failed_executions": 0,
            "retry_count": 0,
            "total_execution_time": 0.0
        }

    async def execute_agent_step(self, *args, **kwargs):
        start_time = time.time()
        self._metrics["total_executions"] += 1

        try:
            result = await super().execute_agent_step(*args, **kwargs)
            self._metrics["successful_executions"] += 1
            return result
        except Exception as e:
            self._metrics["failed_executions"] += 1
            raise
        finally:
            execution_time = time.time() - start_time
            self._metrics["total_execution_time"] += execution_time
"""
REQUESTS: Final = '''\
def _validate_request(
    self,
    request: Any,
    agent_name: str
) -> None:
    """Validate request before execution."""
    # Check request size
    if len(str(request)) > self.MAX_REQUEST_SIZE:
        raise ValidationError("Request too large")

    # Check for injection attempts
    if self._contains_injection(request):
        raise SecurityError("Potential injection detected")

    # Validate against agent schema if available
    if schema := self._get_agent_schema(agent_name):
        validate_against_schema(request, schema)
'''
SANDBOX: Final = '''\
# Execute untrusted code in sandbox
async def execute_sandboxed(
    self,
    code: str,
    timeout: float = 5.0
) -> Any:
    """Execute code in isolated environment."""
    sandbox = Sandbox(
        memory_limit="100MB",
        cpu_limit=0.5,
        network_access=False
    )

    return await sandbox.execute(code, timeout=timeout)
'''

# --- how they are run -----------------------------------------------------------------------------

Kind = type[AgentStepExecutor]


def names() -> dict[str, object]:
    """What the examples import: the words of the document, and what they stand for here."""
    return {
        **{name: getattr(guide, name) for name in guide.__all__},
        "StepExecutor": AgentStepExecutor,
        "Message": AgentMessage,
        "Sandbox": AgentSandbox,
        "asyncio": asyncio,
        "time": time,
        "ThreadPoolExecutor": ThreadPoolExecutor,
        "Any": Any,
        "Dict": dict,
        "List": list,
        "Optional": typing.Optional,
        "Callable": Callable,
        "logger": logging.getLogger("mars"),
    }


def class_of(code: str, name: str) -> Kind:
    """The class that an example defines."""
    known = names()
    exec(code, known)
    return cast("Kind", known[name])


def with_method(code: str) -> Kind:
    """An executor with the one method that an example defines."""
    return class_of(f"class Mine(StepExecutor):\n{textwrap.indent(code, '    ')}", "Mine")


async def variables_of(code: str, **known: object) -> Mapping[str, Any]:  # Any: of the example
    """What the variables of an example that awaits are at its end."""
    space = names() | known
    exec(f"async def example():\n{textwrap.indent(code, '    ')}    return locals()", space)
    example = cast("Callable[[], Any]", space["example"])
    return cast("Mapping[str, Any]", await example())


class Planner:
    """An agent that raises the given errors first, and remembers its memories."""

    def __init__(self, *failures: Exception, answer: object = "fine") -> None:
        self.failures = list(failures)
        self.answer = answer
        self.memories: list[AgentMemory] = []

    async def run_step(self, request: object, memory: AgentMemory) -> object:
        self.memories.append(memory)
        if self.failures:
            raise self.failures.pop(0)
        return self.answer


def made(kind: Kind, agent: Planner, **options: Any) -> Any:  # Any: the examples have no types
    return kind({"Planner": agent}, services=deterministic_services(), **options)


async def ask(executor: Any, request: object = "Go.", **metadata: object) -> dict[str, Any]:
    result = await executor.execute_agent_step("Planner", request, AgentMemory(), metadata)
    return cast("dict[str, Any]", result)


# --- configuration --------------------------------------------------------------------------------


def test_the_configuration_has_the_fields_and_defaults_of_the_document() -> None:
    config = RetryConfig(
        max_attempts=3,
        initial_delay=1.0,
        max_delay=60.0,
        exponential_base=2.0,
        jitter=True,
        retryable_exceptions=(TimeoutError, ConnectionError, urllib.error.HTTPError),
    )
    executor = AgentStepExecutor({}, config)
    assert executor.retry_config == config
    assert AgentStepExecutor({}).retry_config.retryable_exceptions == (
        TimeoutError,
        ConnectionError,
    )


async def test_an_http_error_is_tried_again_by_its_status() -> None:
    """A-31."""
    config = RetryConfig(initial_delay=0, retryable_exceptions=(urllib.error.HTTPError,))
    counts = []
    for status in (503, 404):
        agent = Planner(urllib.error.HTTPError("http://x", status, "no", Headers(), None))
        await ask(made(AgentStepExecutor, agent, retry_config=config))
        counts.append(len(agent.memories))
    assert counts == [2, 1]


# --- overridden methods ---------------------------------------------------------------------------


async def test_its_memory_preparation_is_honoured() -> None:
    agent = Planner()
    await ask(made(with_method(PREPARE_MEMORY), agent), from_agent="Boss", tool_results=[{"a": 1}])
    first, second = agent.memories[0].messages
    assert (first.role, first.content) == ("system", "Request from Boss: Go.")
    assert second.role == "user"


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ({"plan": [1]}, {"plan": [1]}),
        (
            AgentMessage(role="assistant", content="hi", metadata={"a": 1}),
            {"content": "hi", "role": "assistant", "metadata": {"a": 1}},
        ),
        (7, {"content": "7"}),
    ],
)
async def test_its_response_extraction_gives_what_ours_gives(
    answer: object, shown: Mapping[str, object]
) -> None:
    """A-43."""
    for kind in (with_method(EXTRACT), AgentStepExecutor):
        result = await ask(made(kind, Planner(answer=answer)))
        assert {name: result[name] for name in shown} == shown


async def test_its_tool_execution_and_registration_are_honoured() -> None:
    """A-44: the methods that it calls are there."""
    kind = class_of(
        f"class Mine(StepExecutor):\n{textwrap.indent(TOOL_CALLS + REGISTER, '    ')}", "Mine"
    )
    executor = made(kind, Planner())
    executor.register_tool("double", lambda n: 2 * n, {"type": "object", "required": ["n"]})
    calls = [{"name": "double", "arguments": {"n": 2}}, {"name": "double", "arguments": {}}]
    good, bad = await executor.execute_tool_calls(calls)
    assert set(good) == {"tool_name", "result", "error", "execution_time"}
    assert (good["tool_name"], good["result"], good["error"]) == ("double", 4, None)
    assert (bad["result"], bad["error_type"]) == (None, "validation_error")


async def test_its_retry_loop_is_honoured_and_its_attempts_are_counted() -> None:
    """A-49."""
    agent = Planner(TimeoutError(), ConnectionError())
    config = RetryConfig(initial_delay=0, jitter=False)
    executor = made(with_method(WITH_RETRY), agent, retry_config=config)
    assert (await ask(executor))["content"] == "fine"
    assert (len(agent.memories), executor.metrics.retry_count) == (3, 2)


async def test_its_retry_strategy_is_honoured() -> None:
    """A-31."""
    counts = []
    for error in (ConnectionError("x"), TypeError("x"), LookupError("x")):
        agent = Planner(error)
        await ask(made(with_method(SHOULD_RETRY), agent))
        counts.append(len(agent.memories))
    assert counts == [2, 1, 1]


async def test_its_parallel_execution_gives_aligned_results_although_it_skips_steps() -> None:
    """A-46."""
    executor = made(with_method(PARALLEL), Planner())
    steps = [
        ExecutionStep(step_type="dance"),
        ExecutionStep(step_type=StepType.AGENT, agent_name="Planner", request="Go."),
        ExecutionStep(step_type=StepType.AGENT, agent_name="Plnner", request="Go."),
    ]
    unknown, good, missing = await executor.execute_parallel_steps(steps, AgentMemory(), {})
    assert (unknown["error_type"], good["content"]) == ("unknown_step", "fine")
    assert missing["suggestions"] == ["Planner"]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (TimeoutError(), {"error": "Agent 'Planner' timed out", "timeout_seconds": 5}),
        (MemoryError(), {"error": "Memory limit exceeded", "error_type": "resource_limit"}),
        (LookupError("x"), {"error": "Internal execution error", "details": None}),
    ],
)
async def test_its_error_handling_gives_what_ours_gives(
    error: Exception, shown: Mapping[str, object]
) -> None:
    """A-40."""
    for kind in (with_method(ERRORS), AgentStepExecutor):
        config = RetryConfig(max_attempts=1)
        result = await ask(made(kind, Planner(error), retry_config=config), timeout=5)
        assert {name: result[name] for name in shown} == shown


async def test_its_error_handling_suggests_agents() -> None:
    """A-39."""
    executor = made(with_method(ERRORS), Planner())
    result = await executor.execute_agent_step("planner", "Go.", AgentMemory())
    assert (result["error_type"], result["suggestions"]) == ("agent_not_found", ["Planner"])


async def test_its_request_validation_is_honoured() -> None:
    """A-102."""
    executor = made(with_method(REQUESTS), agent := Planner(), injection_check=lambda _: True)
    with pytest.raises(SecurityError, match="injection"):
        await ask(executor)
    executor.MAX_REQUEST_SIZE = 2
    assert (await ask(executor))["error_type"] == "validation_error"
    assert agent.memories == []


def confines_code() -> bool:
    return all(probe.ok for probe in ProcessSandbox().probe())


NEEDS_SANDBOX = pytest.mark.skipif(not confines_code(), reason="this machine confines no code")


@NEEDS_SANDBOX
async def test_its_sandboxed_execution_is_honoured() -> None:
    """A-50."""
    executor = made(with_method(SANDBOX), Planner())
    assert await executor.execute_sandboxed("1 + 1") == 2


@NEEDS_SANDBOX
@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("while True: pass", "sandbox-"),
        ("'x' * 10**10", "sandbox-"),
        ("import socket; socket.socket()", "sandbox-"),
        ("open('/etc/passwd').read()", "sandbox-"),
    ],
)
async def test_code_that_loops_hoards_or_dials_out_is_stopped(code: str, failure: str) -> None:
    """A-50."""
    for executor in (made(with_method(SANDBOX), Planner()), made(AgentStepExecutor, Planner())):
        with pytest.raises(StepFailedError) as stopped:
            await executor.execute_sandboxed(code, timeout=2.0)
        assert stopped.value.error_code.startswith(failure)


def test_a_sandbox_takes_amounts_of_memory_and_no_network() -> None:
    for wrong in ("a lot", "-1MB", "1.5GB"):
        with pytest.raises(UsageError, match="no amount"):
            AgentSandbox(memory_limit=wrong)
    with pytest.raises(UsageError, match="no network"):
        AgentSandbox(network_access=True)


# --- integration ----------------------------------------------------------------------------------


async def test_a_branch_executor_passes_branch_step_and_sender() -> None:
    """A-42."""

    class Branch:
        id = "branch-1"

    class BranchExecutor:
        step_executor = made(AgentStepExecutor, Planner())

    found = await variables_of(
        BRANCH,
        self=BranchExecutor(),
        current_agent="Planner",
        request="Go.",
        branch_memory=AgentMemory(),
        branch=Branch(),
        step_count=4,
        previous_agent="Boss",
    )
    result = found["step_result"]
    assert (result["branch_id"], result["step_number"]) == ("branch-1", 4)
    assert result["memory_updates"][0] == {
        "role": "user",
        "content": "Request from Boss: Go.",
        "name": "Boss",
    }


@pytest.mark.parametrize(
    ("answer", "errors"),
    [
        ({"next_action": "write", "plan": ["a"]}, ()),
        ({"plan": "a"}, ("next_action: it is missing; str was expected", "plan: list was")),
    ],
)
async def test_a_response_is_validated(answer: object, errors: tuple[str, ...]) -> None:
    """A-102."""
    known = {"memory": AgentMemory(), "validator": guide.ResponseValidator()}
    executor = made(AgentStepExecutor, Planner(answer=answer))
    found = (await variables_of(VALIDATION, step_executor=executor, **known))["validation_result"]
    assert bool(found) is (not errors)
    assert len(found.errors) == len(errors)
    assert all(text.startswith(start) for text, start in zip(found.errors, errors, strict=True))


# --- subclasses -----------------------------------------------------------------------------------


async def test_its_cached_executor_keeps_successes_and_no_failures() -> None:
    """A-101."""
    agent = Planner(LookupError("x"))
    executor = made(class_of(CACHED, "CachedStepExecutor"), agent)
    results = [await ask(executor) for _ in range(3)]
    assert [result.get("content") for result in results] == [None, "fine", "fine"]
    assert (results[0]["error_type"], len(agent.memories)) == ("internal_error", 2)


async def test_its_pooled_executor_calls_blocking_tools_on_its_own_pool() -> None:
    """A-101, A-44: also the tools that are registered, with arguments by name."""
    executor = made(class_of(POOLED, "PooledStepExecutor"), Planner(), pool_size=1)
    executor.register_tool("double", lambda n: 2 * n)
    try:
        assert await executor.execute_blocking_tool(max, 1, 2) == 2
        [result] = await executor.execute_tool_calls([{"name": "double", "arguments": {"n": 4}}])
    finally:
        executor._executor_pool.shutdown()
    assert result["result"] == 8


async def test_its_metrics_count_failures_as_failures() -> None:
    """A-101, A-49: although the caller is given their error results."""
    agent = Planner(LookupError("x"))
    executor = made(class_of(METRICS, "MetricsStepExecutor"), agent)
    failed, fine = await ask(executor), await ask(executor)
    assert (failed["error_type"], fine["content"]) == ("internal_error", "fine")
    assert {**executor._metrics, "total_execution_time": 0} == {
        "total_executions": 2,
        "successful_executions": 1,
        "failed_executions": 1,
        "retry_count": 0,
        "total_execution_time": 0,
    }


async def test_the_subclasses_can_be_combined() -> None:
    """A-101: each layer is reached through `super()`."""
    code = f"{CACHED}\n{METRICS}\nclass Both(CachedStepExecutor, MetricsStepExecutor):\n    pass\n"
    executor = made(class_of(code, "Both"), Planner(LookupError("x")))
    results = [await ask(executor) for _ in range(3)]
    assert [result.get("error_type") for result in results] == ["internal_error", None, None]
    counts = executor._metrics
    assert (counts["total_executions"], counts["failed_executions"]) == (2, 1)


@pytest.mark.parametrize("example", [CACHED, METRICS, ""])
async def test_a_failure_is_raised_on_demand(example: str) -> None:
    """A-101."""
    name = {CACHED: "CachedStepExecutor", METRICS: "MetricsStepExecutor"}.get(example)
    kind = class_of(example, name) if name is not None else AgentStepExecutor
    error = LookupError("x")
    executor = made(kind, Planner(error), raise_on_error=True)
    with pytest.raises(AgentStepError) as caught:
        await ask(executor)
    assert caught.value.result["error_type"] == "internal_error"
    assert caught.value.__cause__ is error
