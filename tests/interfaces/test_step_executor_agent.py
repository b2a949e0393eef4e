"""`run_step_executor` and the agent `StepExecutor`: A-98, A-99."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from builders import fake_tool
from minions import AgentExecutionError, ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.errors import UsageError
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import TokenUsage
from minions.guide import (
    AgentMemory,
    AgentRegistry,
    AgentStepExecutor,
    StepExecutorAgent,
    run_step_executor,
)

PLAN: Final[JsonValue] = {
    "name": "Notes",
    "steps": [
        {"id": "write", "type": "generate", "goal": "Write notes", "artifacts": ["notes.md"]},
        {
            "id": "check",
            "type": "validate",
            "goal": "The notes are good",
            "dependencies": ["write"],
        },
    ],
}


def text_of(prompt: Prompt) -> str:
    return "\n".join(message.content or "" for message in prompt.messages)


def answer(prompt: Prompt) -> str:
    text = text_of(prompt)
    if "You plan work" in text:
        return json.dumps(PLAN)
    return "VERDICT: PASS" if "VERDICT" in text else "notes.md\n```\n# Notes\n```"


def failing(prompt: Prompt) -> str:
    return answer(prompt) if "You plan work" in text_of(prompt) else "No."


async def test_a_plan_returns_its_report(tmp_path: Path) -> None:
    """A-98."""
    model = ScriptedModel(answer)
    done = await run_step_executor(
        requirements="Write notes", model_factory=lambda: model, workspace=tmp_path
    )
    assert done.success
    assert str(done) == "write (generate): completed\ncheck (validate): completed"
    assert done.artifacts["write"] == ("notes.md",)
    assert (tmp_path / "notes.md").read_text() == "# Notes\n"
    assert done.result is not None
    [execution] = done.result.executions
    calls = [call for call in execution.model_calls if call.response is not None]
    assert len(calls) == len(model.prompts) == 3
    total = TokenUsage()
    for call in calls:
        total += call.usage
    assert done.token_usage == total


async def test_a_failed_plan_raises_with_the_ids_of_the_failed_steps(tmp_path: Path) -> None:
    """A-98."""
    with pytest.raises(AgentExecutionError, match="The plan failed at write"):
        await run_step_executor(
            requirements="Write notes", model_factory=ScriptedModel(failing), workspace=tmp_path
        )


async def test_every_step_is_told_the_system_context(tmp_path: Path) -> None:
    model = ScriptedModel(answer)
    await run_step_executor(
        requirements="Write notes",
        model_factory=model,
        system_context="Write British English.",
        workspace=tmp_path,
    )
    assert all("Write British English." in text_of(each) for each in model.prompts[1:])


async def test_the_planner_may_give_the_tools_of_the_application_to_steps(tmp_path: Path) -> None:
    plan: JsonValue = {
        "name": "Look",
        "steps": [{"id": "find", "type": "analyze", "goal": "Find it", "tools": ["look"]}],
    }

    def planned(prompt: Prompt) -> str:
        return json.dumps(plan) if "You plan work" in text_of(prompt) else "Found."

    model = ScriptedModel(planned)
    await run_step_executor(
        requirements="Find it",
        model_factory=model,
        tools=[fake_tool("look")],
        workspace=tmp_path,
    )
    assert 'Tools that a step may be given (tools): {"look"' in text_of(model.prompts[0])
    assert [each.name for each in model.prompts[1].tools] == ["look"]


async def test_empty_requirements_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="requirements"):
        await run_step_executor(requirements=" ", workspace=tmp_path)


async def test_a_name_is_no_tool(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes tools, such as functions with @tool, not 'files'"):
        await run_step_executor(
            requirements="Write",
            tools=["files"],  # type: ignore[list-item]  # what is wrong
            workspace=tmp_path,
        )


async def test_the_agent_is_listed_and_run_by_name(tmp_path: Path) -> None:
    """A-99."""
    agent = StepExecutorAgent(model_factory=ScriptedModel(answer), workspace=tmp_path)
    registry = AgentRegistry(agents={agent.name: agent})
    assert registry.list() == ("StepExecutor",)
    done = await AgentStepExecutor(registry).execute_agent_step(
        "StepExecutor", "Write notes", AgentMemory()
    )
    assert done["content"] == "write (generate): completed\ncheck (validate): completed"
