"""The step executor of the MARS document runs as it is written there: each of its examples, with
other imports alone."""

from __future__ import annotations

import textwrap
import urllib.error
from collections.abc import Mapping
from email.message import Message as Headers
from typing import Any, Final, cast

import pytest

from builders import deterministic_services
from designs.design_document import design_text
from designs.module_examples import Kind, class_of, variables_of, with_method
from minions import guide
from minions.adapters.sandboxes.python_sandboxes import ProcessSandbox
from minions.contracts.agent_errors import AgentStepError, SecurityError
from minions.data.errors import StepFailedError, UsageError
from minions.engine.agents.parallel_steps import ExecutionStep, StepType
from minions.engine.context.agent_memory import AgentMemory, AgentMessage
from minions.guide import AgentSandbox, AgentStepExecutor
from minions.recipes import RetryConfig

# --- the examples, word for word ----------------------------------------------------------------

DOCUMENT: Final = "step_executor_module"
PREPARE_MEMORY: Final = design_text(DOCUMENT, "Memory Preparation")
EXTRACT: Final = design_text(DOCUMENT, "Response Extraction")
TOOL_CALLS: Final = design_text(DOCUMENT, "Execute Tool Calls")
REGISTER: Final = design_text(DOCUMENT, "Tool Registry")
WITH_RETRY: Final = design_text(DOCUMENT, "Exponential Backoff")
SHOULD_RETRY: Final = design_text(DOCUMENT, "Intelligent Retry Strategies")
PARALLEL: Final = design_text(DOCUMENT, "Execute Parallel Steps")
ERRORS: Final = design_text(DOCUMENT, "Categorized Error Handling")
BRANCH: Final = design_text(DOCUMENT, "With BranchExecutor")
VALIDATION: Final = design_text(DOCUMENT, "With Validation")
CACHED: Final = design_text(DOCUMENT, "Caching")
POOLED: Final = design_text(DOCUMENT, "Resource Pooling")
METRICS: Final = design_text(DOCUMENT, "Execution Metrics")
REQUESTS: Final = design_text(DOCUMENT, "Input Validation")
SANDBOX: Final = design_text(DOCUMENT, "Sandboxed Execution")

# --- how they are run -----------------------------------------------------------------------------


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
    assert len(agent.memories) == 3
    counts = executor.metrics
    assert (counts.retry_count, counts.total_executions) == (2, 1)
    assert (counts.successful_executions, counts.failed_executions) == (1, 0)


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
    ours = executor.metrics
    assert (ours.total_executions, ours.retry_count) == (2, 0)
    assert (ours.successful_executions, ours.failed_executions) == (1, 1)
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
