"""The five designs in one process: the same tools, the same retries, the same kind of execution."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from builders import deterministic_services, fake_tool
from minions import (
    AgentRecipe,
    AgentResult,
    ChatAgent,
    DefaultStep,
    MessageBundle,
    Minions,
    ScriptedModel,
    StepExecution,
    StepRepository,
    StepRunner,
)
from minions.adapters.models.script_items import Answer
from minions.contracts.calls import Prompt
from minions.contracts.completion import CompletionCriteria
from minions.data.json_values import JsonValue
from minions.guide import AgentMemory, AgentRegistry, AgentStepExecutor
from minions.testing import tool_request

PLAN: Final[JsonValue] = {
    "name": "Look",
    "steps": [{"id": "look", "type": "analyze", "goal": "Look", "tools": ["look"]}],
}
ACTIVITY: Final = """\
id: activity
inputs: {message: {type: string, default: ""}}
tools: [look]
steps:
  - {id: fetch, tool: look, params: {}}
  - {id: told, depends_on: [fetch], goal: "Say what was seen. {{ fetch }}"}
"""


def answer(prompt: Prompt) -> Answer:
    """Plans, looks with the tool once where it has it, then says what it saw."""
    if any("You plan work" in (message.content or "") for message in prompt.messages):
        return json.dumps(PLAN)
    has_looked = any(message.role == "tool" for message in prompt.messages)
    if prompt.tools and not has_looked:
        return tool_request("look", {})
    return "It was seen."


class Flaky:
    """A tool whose first call in each form fails as networks do."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, arguments: Mapping[str, JsonValue]) -> object:
        self.calls += 1
        if self.calls % 2:
            raise ConnectionError("the line is busy")
        return "seen"


def looked(executions: tuple[StepExecution[object], ...]) -> list[int]:
    """The attempts of each call of the tool, wherever it was made."""
    return [call.attempts for each in executions for call in each.tool_calls if call.name == "look"]


async def test_the_five_designs_share_tools_retries_and_executions(tmp_path: Path) -> None:
    """A-100."""
    flaky = Flaky()
    look, services = fake_tool("look", flaky), deterministic_services()
    model = ScriptedModel(answer)
    plan = {
        "id": "planned",
        "tools": ["look"],
        "permissions": {"allow_write": True},
        "steps": [
            {
                "id": "work",
                "plan": "Look around",
                "workspace": str(tmp_path),
                "tools": ["look"],
                "approval": "none",
            }
        ],
    }
    steps = [
        DefaultStep(
            id="step1",
            messages=MessageBundle.of(goal="Look."),
            available_tools={"look"},
            completion_criteria=CompletionCriteria(mode="text"),
        )
    ]
    async with Minions(model=model, tools=[look], services=services) as minions:
        guide = await minions.arun(AgentRecipe(id="guide", steps=steps))  # 004
        activity = await minions.arun(ACTIVITY)  # 002
        planned = await minions.arun(yaml.safe_dump(plan))  # 000
        agents = AgentStepExecutor(AgentRegistry(minions, {"Looker": minions.load(ACTIVITY)}))
        agent = await agents.execute_agent_step("Looker", "Look", AgentMemory())  # 001
    chat = ChatAgent(model=model, tools=[look])  # 003
    repository = StepRepository(services)
    runner = StepRunner(chat, repository=repository)
    turn = await (await runner.prepare_turn("ses_chat", "What is there?")).execute()

    results: list[AgentResult[JsonValue]] = [guide, activity, planned]
    assert [looked(each.executions) for each in results] == [[2], [2], [2]]
    assert agent["content"] == "It was seen."
    assert turn.output == "It was seen."
    assert looked(turn.executions) == [2]
    assert flaky.calls == 2 * 5
    assert {type(step) for each in (*results, turn) for step in each.executions} == {StepExecution}
