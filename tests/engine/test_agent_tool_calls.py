"""Tool calls of the executor of agent steps: aligned results, checked arguments, own threads."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from builders import deterministic_services
from minions.adapters.tools.function_tool import tool
from minions.contracts.messages import ToolCallRequest
from minions.contracts.tools import ToolScope
from minions.data.errors import SchemaError, ToolError
from minions.data.schema import JsonSchema
from minions.engine.agents.agent_step_executor import AgentStepExecutor

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
CITY: JsonSchema = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


@pytest.fixture
def executor() -> AgentStepExecutor:
    return AgentStepExecutor({}, services=deterministic_services())


async def call(executor: AgentStepExecutor, **tool_call: object) -> dict[str, Any]:
    [result] = await executor.execute_tool_calls([tool_call])
    return result


async def test_sync_and_async_tools_run_side_by_side_and_a_sync_one_does_not_block(
    executor: AgentStepExecutor,
) -> None:
    """A-44: the sync tool waits for the async one."""
    go = threading.Event()

    def wait(*, seconds: float) -> str:
        return "sync" if go.wait(seconds) else "late"

    async def release() -> str:
        go.set()
        return "async"

    executor.register_tool("wait", wait)
    executor.register_tool("release", release)
    calls: list[dict[str, object]] = [
        {"name": "wait", "arguments": {"seconds": 20}},
        {"name": "release"},
    ]
    results = await executor.execute_tool_calls(calls)
    assert [result["result"] for result in results] == ["sync", "async"]
    assert [list(result) for result in results] == [
        ["tool_name", "result", "error", "execution_time"]
    ] * 2


async def test_a_blocking_tool_sees_the_context_of_its_caller(executor: AgentStepExecutor) -> None:
    """A-44."""
    WHO.set("Ann")
    named = await executor.execute_blocking_tool(lambda *, mark: WHO.get() + mark, mark="!")
    assert named == "Ann!"
    executor.register_tool("who", WHO.get)
    assert (await call(executor, name="who"))["result"] == "Ann"


@pytest.mark.parametrize(
    "arguments", [{}, {"city": 7}, '{"city": 7}', "{broken", [1], {"city": object()}]
)
async def test_arguments_that_do_not_fit_reach_no_tool(
    executor: AgentStepExecutor, arguments: object
) -> None:
    """A-45."""
    asked: list[object] = []
    executor.register_tool("look", asked.append, CITY)
    result = await call(executor, name="look", arguments=arguments)
    assert (result["error_type"], result["category"]) == ("validation_error", "contract")
    assert result["error"]
    assert "execution_time" in result
    assert asked == []


async def test_without_a_schema_the_signature_is_checked(executor: AgentStepExecutor) -> None:
    """A-45."""
    asked: list[object] = []

    def look(city: str) -> None:
        asked.append(city)

    executor.register_tool("look", look)
    result = await call(executor, name="look", arguments={"town": "Rome"})
    assert (result["error_type"], asked) == ("validation_error", [])


async def test_a_schema_that_is_none_is_refused_at_once(executor: AgentStepExecutor) -> None:
    with pytest.raises(SchemaError):
        executor.register_tool("look", print, {"type": "wizard"})


@pytest.mark.parametrize(
    "tool_call",
    [
        {"name": "look", "arguments": {"city": "Rome"}},
        {"tool_name": "look", "args": {"city": "Rome"}},
        {"tool": "look", "parameters": '{"city": "Rome"}'},
        {"id": "c1", "function": {"name": "look", "arguments": '{"city": "Rome"}'}},
    ],
)
async def test_calls_are_taken_in_every_usual_form(
    executor: AgentStepExecutor, tool_call: Mapping[str, Any]
) -> None:
    executor.register_tool("look", lambda city: f"in {city}", CITY)
    result = await call(executor, **tool_call)
    assert (result["result"], result["error"]) == ("in Rome", None)
    assert result.get("tool_call_id") == tool_call.get("id")


async def test_an_unknown_tool_is_an_error_with_similar_names(executor: AgentStepExecutor) -> None:
    executor.register_tool("search", len)
    result = await call(executor, name="serch")
    assert (result["error_type"], result["suggestions"]) == ("tool_not_found", ["search"])
    assert (result["tool_name"], result["category"]) == ("serch", "contract")


async def test_one_failure_leaves_its_neighbours_alone(executor: AgentStepExecutor) -> None:
    """A-46."""

    def fail() -> None:
        raise ToolError("Give a city.")

    async def leave() -> None:
        raise SystemExit(1)

    for name, function in {"fail": fail, "leave": leave, "fine": lambda: 1}.items():
        executor.register_tool(name, function)
    names = ("fail", "fine", "leave", "")
    results = await executor.execute_tool_calls([{"name": name} for name in names])
    assert [result["error_type"] if result["error"] else None for result in results] == [
        "tool_error",
        None,
        "tool_error",
        "tool_not_found",
    ]
    assert results[0]["error"] == "Give a city."


async def test_a_tool_that_takes_too_long_is_cancelled_and_others_are_not(
    executor: AgentStepExecutor,
) -> None:
    """A-40."""
    ended: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("wait")

    async def fine() -> int:
        return 1

    executor.register_tool("wait", wait)
    executor.register_tool("fine", fine)
    calls = [{"name": "wait"}, {"name": "fine"}]
    late, good = await executor.execute_tool_calls(calls, {"timeout": 0.05})
    assert (late["error_type"], late["timeout_seconds"], ended) == ("timeout", 0.05, ["wait"])
    assert good["result"] == 1


async def test_a_timeout_within_a_tool_is_not_taken_for_its_own(
    executor: AgentStepExecutor,
) -> None:
    """A-40."""

    def fail() -> None:
        raise TimeoutError("the database did not answer")

    executor.register_tool("fail", fail)
    result = await call(executor, name="fail")
    assert (result["error_type"], result["timeout_seconds"]) == ("timeout", None)
    assert "the database did not answer" in result["error"]


async def test_the_calls_of_a_model_are_taken_as_they_are(executor: AgentStepExecutor) -> None:
    executor.register_tool("look", lambda city: f"in {city}", CITY)
    request = ToolCallRequest(id="c1", name="look", arguments='{"city": "Rome"}')
    nonsense: Any = 7
    good, bad = await executor.execute_tool_calls([request, nonsense])
    assert (good["result"], good["tool_call_id"]) == ("in Rome", "c1")
    assert bad["error_type"] == "tool_not_found"


async def test_a_tool_of_a_recipe_can_be_registered(executor: AgentStepExecutor) -> None:
    """A-45: its types are its schema."""

    @tool
    def look(city: str, scope: ToolScope) -> str:
        """Look at a city."""
        return f"{city} {scope.call_id}"

    executor.register_tool("look", look)
    assert (await call(executor, name="look", arguments={"city": "Rome"}))[
        "result"
    ] == "Rome call_1"
    wrong = await call(executor, name="look", arguments={"city": 7})
    assert wrong["error_type"] == "validation_error"


async def test_too_little_memory_is_a_resource_limit(executor: AgentStepExecutor) -> None:
    """A-40."""

    def hoard() -> None:
        raise MemoryError

    executor.register_tool("hoard", hoard)
    result = await call(executor, name="hoard")
    assert (result["error_type"], result["memory_usage"] > 0) == ("resource_limit", True)


async def test_without_a_sandbox_no_code_is_executed(executor: AgentStepExecutor) -> None:
    from minions.data.errors import EnvironmentRefusedError

    with pytest.raises(EnvironmentRefusedError) as caught:
        await executor.execute_sandboxed("open('/etc/passwd')")
    assert caught.value.error_code == "no-sandbox"
