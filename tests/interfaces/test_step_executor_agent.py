"""`run_step_executor` and the agent `StepExecutor`: A-98, A-99."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import evolve

from builders import fake_tool
from minions import AgentExecutionError, ScriptedModel
from minions.contracts.calls import Prompt
from minions.contracts.messages import TokenUsage
from minions.data.errors import UsageError
from minions.data.json_values import JsonValue
from minions.guide import (
    AgentMemory,
    AgentRegistry,
    AgentStepExecutor,
    Plan,
    PlanGenerator,
    PlanStep,
    PlanStepType,
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


@pytest.mark.parametrize(
    "wrong",
    [{"form": "txt"}, {"share": "outlines"}, {"max_replans": -1}, {"max_repairs": 21}],
)
async def test_a_choice_that_there_is_not_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    for make in (PlanGenerator, StepExecutorAgent):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            make(workspace=tmp_path, **wrong)
    with pytest.raises(UsageError, match=next(iter(wrong))):
        await run_step_executor(requirements="Write", workspace=tmp_path, **wrong)


LOOKING: Final[JsonValue] = {
    "name": "Look",
    "steps": [
        {"id": "find", "type": "analyze", "goal": "Find it", "tools": ["look"]},
        {"id": "write", "type": "generate", "goal": "Write", "artifacts": ["n.md"]},
        {"id": "check", "type": "validate", "goal": "Good", "dependencies": ["write"]},
    ],
}


@pytest.mark.parametrize("door", ["function", "agent"])
async def test_both_doors_take_the_same_choices(tmp_path: Path, door: str) -> None:
    """A-98: the plan as text, tools, a command, how files are shared, how often it is replanned."""
    prompts: list[str] = []

    def planned(prompt: Prompt) -> str:
        prompts.append(text_of(prompt))
        if "Write the plan in this form" in prompts[-1]:
            return PlanGenerator.read(LOOKING).to_text()
        return "Found." if "Find it" in prompts[-1] else "No."

    choices: dict[str, Any] = {
        "model_factory": ScriptedModel(planned),
        "workspace": tmp_path,
        "tools": [fake_tool("look")],
        "command": "true",
        "form": "text",
        "share": "names",
        "max_replans": 2,
    }
    work: Awaitable[object] = (
        run_step_executor(requirements="Look", **choices)
        if door == "function"
        else StepExecutorAgent(**choices).run_step("Look")
    )
    with pytest.raises(AgentExecutionError, match="The plan failed at write") as caught:
        await work
    drafts = [each for each in prompts if "Write the plan in this form" in each]
    assert len(drafts) == 3
    assert "Tests are run with: true" in drafts[0]
    assert 'Tools that a step may be given (tools): {"look"' in drafts[0]
    assert sum("Find it" in each and "Write the plan" not in each for each in prompts) == 1
    answers = [(each["id"], each["status"], each["answer"]) for each in caught.value.result.plan]
    assert answers == [
        ("find", "completed", "Found."),
        ("write", "failed", None),
        ("check", "skipped", None),
    ]


async def test_a_plan_is_made_looked_at_edited_and_run(tmp_path: Path) -> None:
    model = ScriptedModel(answer)
    generator = PlanGenerator(model_factory=model, workspace=tmp_path)
    plan = await generator.make("Write notes")
    assert isinstance(plan, Plan)
    assert (len(model.prompts), (tmp_path / "notes.md").exists()) == (1, False)
    assert str(plan).startswith("PLAN: Notes\n\nSTEP: write\nTYPE: generate\nGOAL: Write notes\n")
    assert generator.read(str(plan)) == plan
    [write, check] = plan.steps
    more = PlanStep(id="more", type=PlanStepType.ANALYZE, goal="Look", files=["notes.md:outline"])
    more = evolve(more, dependencies=["write"])
    edited = evolve(plan, steps=[evolve(write, goal="Write longer notes"), more, check])
    done = await generator.run(edited)
    assert (tmp_path / "notes.md").exists()
    assert [each["id"] for each in done.steps] == ["write", "more", "check"]
    assert "Write longer notes" in text_of(model.prompts[1])
    assert not any("You plan work" in text_of(each) for each in model.prompts[1:])


async def test_a_plan_that_was_given_is_planned_on_after_a_failure(tmp_path: Path) -> None:
    def planned(prompt: Prompt) -> str:
        text = text_of(prompt)
        if "You plan work" in text:
            rest = {"id": "w2", "type": "generate", "goal": "Afresh", "artifacts": ["notes.md"]}
            return json.dumps({"name": "Rest", "steps": [rest]})
        return "notes.md\n```\nx\n```" if "Afresh" in text else "No."

    model = ScriptedModel(planned)
    plan = PlanGenerator.read("PLAN: p\nSTEP: w\nTYPE: generate\nGOAL: g\nARTIFACTS: notes.md")
    done = await PlanGenerator(model_factory=model, workspace=tmp_path).run(plan)
    assert done.success
    [draft] = [text_of(each) for each in model.prompts if "You plan work" in text_of(each)]
    assert "STEP: w" in draft


async def test_a_plan_with_faults_is_not_run(tmp_path: Path) -> None:
    model = ScriptedModel(answer)
    plan = Plan(id="p", steps=[PlanStep(id="a", goal="g", dependencies=["b"])])
    with pytest.raises(AgentExecutionError, match="The plan that was given has faults") as caught:
        await PlanGenerator(model_factory=model, workspace=tmp_path).run(plan)
    assert caught.value.error_code == "bad-plan"
    assert model.prompts == []


@pytest.mark.parametrize("text", ["", "no plan", "{}", "PLAN: x"])
def test_a_text_without_a_plan_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="There is no plan in it"):
        PlanGenerator.read(text)


async def test_the_agent_is_listed_and_run_by_name(tmp_path: Path) -> None:
    """A-99."""
    agent = StepExecutorAgent(model_factory=ScriptedModel(answer), workspace=tmp_path)
    registry = AgentRegistry(agents={agent.name: agent})
    assert registry.list() == ("StepExecutor",)
    done = await AgentStepExecutor(registry).execute_agent_step(
        "StepExecutor", "Write notes", AgentMemory()
    )
    assert done["content"] == "write (generate): completed\ncheck (validate): completed"
