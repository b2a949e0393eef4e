"""Agent steps and tool calls in parallel: aligned results, own timeouts, join policies."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import deterministic_services
from minions.contracts.messages import user
from minions.data.errors import ToolError, UsageError
from minions.engine.agents.agent_step_executor import AgentStepExecutor
from minions.engine.agents.agents import AgentLike
from minions.engine.agents.parallel_steps import ExecutionStep, JoinPolicy, StepType
from minions.engine.context.agent_memory import AgentMemory

CANCELLED: list[str] = []


async def fine(request: object, memory: AgentMemory) -> str:
    memory.add_message(user("mine"))
    return f"fine {len(memory)}"


async def fails(request: object) -> None:
    raise LookupError("x")


async def hangs(request: object) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        CANCELLED.append(str(request))
        raise


@pytest.fixture
def executor() -> AgentStepExecutor:
    CANCELLED.clear()
    agents: dict[str, AgentLike] = {"fine": fine, "fails": fails, "hangs": hangs}
    return AgentStepExecutor(agents, services=deterministic_services())


def agent_step(name: str, **rest: Any) -> ExecutionStep:
    return ExecutionStep(step_type=StepType.AGENT, agent_name=name, request=name, **rest)


def kinds(results: Sequence[dict[str, Any]]) -> list[str | None]:
    return [result["error_type"] if result.get("error") else None for result in results]


async def test_results_are_aligned_and_no_sibling_is_cancelled(executor: AgentStepExecutor) -> None:
    """A-46."""

    async def broken() -> None:
        raise LookupError("x")

    executor.register_tool("broken", broken)
    executor.register_tool("one", lambda: 1)
    calls = [{"name": "one"}, {"name": "broken"}]
    steps = [
        agent_step("fine"),
        ExecutionStep(step_type=StepType.TOOL, tool_calls=calls),
        ExecutionStep(step_type="dance"),
        ExecutionStep(step_type="tool", tool_calls=calls[:1]),
        agent_step("fails"),
        agent_step("fine"),
    ]
    memory = AgentMemory([user("before")])
    results = await executor.execute_parallel_steps(steps, memory, {})
    assert kinds(results) == [None, "tool_error", "unknown_step", None, "internal_error", None]
    assert [result["result"] for result in results[1]["tool_results"]] == [1, None]
    assert (results[0]["content"], results[5]["content"]) == ("fine 2", "fine 2")
    assert len(memory) == 1
    assert not results.is_joined


async def test_each_step_has_its_own_timeout(executor: AgentStepExecutor) -> None:
    """A-46, A-40: of the step, else of its metadata, else of the context."""
    steps = [
        agent_step("hangs"),
        agent_step("hangs", timeout=0.02),
        agent_step("hangs", metadata={"timeout": 0.03}),
        agent_step("fine"),
    ]
    results = await executor.execute_parallel_steps(steps, AgentMemory(), {"timeout": 0.01})
    assert kinds(results) == ["timeout", "timeout", "timeout", None]
    assert [result.get("timeout_seconds") for result in results] == [0.01, 0.02, 0.03, None]


async def test_branch_and_step_are_those_of_the_context_unless_a_step_has_its_own(
    executor: AgentStepExecutor,
) -> None:
    steps = [agent_step("fine"), agent_step("fine", metadata={"branch_id": "own"})]
    context = {"branch_id": "b", "step_number": 2}
    results = await executor.execute_parallel_steps(steps, AgentMemory(), context)
    assert [(each["branch_id"], each["step_number"]) for each in results] == [("b", 2), ("own", 2)]


async def test_a_refused_request_is_the_result_of_its_step_alone() -> None:
    """A-46, A-47."""

    class Mine(AgentStepExecutor):
        async def execute_agent_step(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            if kwargs["agent_name"] == "hangs":
                raise ZeroDivisionError  # a fault of the override itself
            return await super().execute_agent_step(*args, **kwargs)

    executor = Mine({"fine": fine}, injection_check=lambda request: request == "bad")
    steps = [
        ExecutionStep(step_type="agent", agent_name="fine", request="bad"),
        agent_step("hangs"),
        agent_step("fine"),
    ]
    for raises in (False, True):
        executor.raise_on_error = raises
        results = await executor.execute_parallel_steps(steps, AgentMemory(), {})
        assert kinds(results) == ["security_error", "internal_error", None]


@pytest.mark.parametrize(
    ("join", "names", "shown", "is_joined"),
    [
        ("any", ("hangs", "fine", "hangs"), ["cancelled", None, "cancelled"], True),
        ("majority", ("fine", "hangs", "fine"), [None, "cancelled", None], True),
        (0.6, ("fine", "hangs", "fine", "fine", "fails"), None, True),
        ("any", ("fails", "fails"), ["internal_error"] * 2, False),
        ("majority", ("fine", "fails"), [None, "internal_error"], False),
        ("all", ("fine", "fine"), [None, None], True),
    ],
)
async def test_the_rest_is_cancelled_once_enough_have_succeeded(
    executor: AgentStepExecutor,
    join: str | float,
    names: Sequence[str],
    shown: Sequence[str | None] | None,
    is_joined: bool,
) -> None:
    """A-46: under `any`, `majority` and a ratio; results stay aligned."""
    steps = [agent_step(name) for name in names]
    results = await executor.execute_parallel_steps(steps, AgentMemory(), {}, join=join)
    assert (len(results), results.is_joined) == (len(steps), is_joined)
    if shown is not None:
        assert kinds(results) == shown
    assert len(CANCELLED) == list(names).count("hangs")


@given(st.integers(0, 50), st.floats(0, 1))
def test_a_join_policy_needs_at_least_one_and_at_most_all(count: int, ratio: float) -> None:
    for policy in (JoinPolicy.of("all"), JoinPolicy.of("any"), JoinPolicy.of(ratio)):
        assert min(1, count) <= policy.needed(count) <= count
    assert JoinPolicy.of("all").needed(count) == count
    majority = JoinPolicy.of("majority").needed(count)
    assert majority * 2 > count or count == 0


@pytest.mark.parametrize("wrong", ["most", 2.0, -0.1])
async def test_an_unknown_join_policy_is_refused_before_anything_runs(
    executor: AgentStepExecutor, wrong: str | float
) -> None:
    with pytest.raises(UsageError) as caught:
        await executor.execute_parallel_steps([agent_step("fine")], AgentMemory(), {}, join=wrong)
    assert (caught.value.error_code, executor.metrics.total_executions) == ("bad-join", 0)


async def test_no_steps_give_no_results(executor: AgentStepExecutor) -> None:
    results = await executor.execute_parallel_steps([], AgentMemory(), {})
    assert (list(results), results.is_joined) == ([], True)


async def test_cancelling_the_whole_cancels_every_step(executor: AgentStepExecutor) -> None:
    """A-33."""
    steps = [agent_step("hangs"), agent_step("hangs")]
    task = asyncio.ensure_future(executor.execute_parallel_steps(steps, AgentMemory(), {}))
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(CANCELLED) == 2


# --- any mixture ----------------------------------------------------------------------------------

FAILURES: Sequence[type[Exception]] = (
    *(LookupError, TypeError, MemoryError, TimeoutError, ConnectionError, OSError, ToolError),
)


async def raises(request: object, memory: AgentMemory) -> str:
    """Raises what the request says, or answers."""
    memory.add_message(user("noise"))
    await asyncio.sleep(0)
    if isinstance(request, int):
        raise FAILURES[request]("x")
    return "fine"


KINDS = st.sampled_from([*range(len(FAILURES)), "fine", "dance", "nobody", "broken", "tool"])


def mixed_step(kind: int | str) -> ExecutionStep:
    if kind == "dance":
        return ExecutionStep(step_type="dance")
    if kind in ("broken", "tool"):
        return ExecutionStep(step_type=StepType.TOOL, tool_calls=[{"name": kind}] * 2)
    name = "nobody" if kind == "nobody" else "raises"
    return ExecutionStep(step_type=StepType.AGENT, agent_name=name, request=kind)


@settings(deadline=None)
@given(
    st.lists(KINDS, max_size=12), st.sampled_from(["all", "any", "majority", 0.3]), st.booleans()
)
def test_any_mixture_ends_with_typed_and_aligned_results(
    kinds_: list[int | str], join: str | float, raise_on_error: bool
) -> None:
    """A-46, A-49: each result is of its step, the counts add up, and the memory stays."""
    services, memory = deterministic_services(), AgentMemory([user("before")])
    executor = AgentStepExecutor(
        {"raises": raises}, services=services, raise_on_error=raise_on_error
    )
    executor.register_tool("tool", mixed_step)
    steps = [mixed_step(kind) for kind in kinds_]
    results = asyncio.run(executor.execute_parallel_steps(steps, memory, {}, join=join))
    assert (len(results), len(memory)) == (len(steps), 1)
    for kind, result in zip(kinds_, results, strict=True):
        is_fine = result.get("error") is None
        assert is_fine or result["error_type"] != "cancelled" or results.is_joined
        assert not is_fine or kind == "fine"
        assert is_fine or (result["error_type"] and result["category"])
        assert kind != "dance" or result["error_type"] in ("unknown_step", "cancelled")
    counts = executor.metrics
    assert counts.total_executions == counts.successful_executions + counts.failed_executions
    assert counts.total_executions <= sum(
        kind not in ("dance", "broken", "tool") for kind in kinds_
    )
