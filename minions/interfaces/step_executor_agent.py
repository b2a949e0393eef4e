"""The step executor agent of StreetRace: plans a task, and carries the plan out in small steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias, cast

from attrs import evolve, field, frozen

from minions.contracts.calls import ChatModel
from minions.contracts.errors import UsageError
from minions.contracts.executions import AgentResult, StepExecution
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import TokenUsage
from minions.contracts.secrets import InputValue
from minions.contracts.tools import Tool
from minions.engine.services.services import Services
from minions.interfaces.application import Minions
from minions.planning.plan_form import Sharing
from minions.planning.step_executor import STEP_EXECUTOR, PlanChoices, step_executor_document
from minions.recipe.text.yaml_writer import yaml_text

__all__ = ["ExecutionResult", "StepExecutorAgent", "run_step_executor"]

ModelFactory: TypeAlias = ChatModel | str | Callable[[], ChatModel | str] | None
"""A model, its name, or a function that gives one; None: the configured one."""


@frozen(kw_only=True)
class ExecutionResult:
    """What a plan did. As text it is `message`."""

    success: bool
    message: str
    """The report: each step of the plan with its status."""
    artifacts: Mapping[str, tuple[str, ...]] = field(factory=dict)
    """Files that each completed step made, by the id of the step."""
    token_usage: TokenUsage = field(factory=TokenUsage)
    """The sum over all steps, planning included."""
    execution_time: float = 0.0
    """How long the plan took, in seconds."""
    steps: tuple[Mapping[str, JsonValue], ...] = ()
    """Id, type and status of each step, in the order of the plan."""
    result: AgentResult[JsonValue] | None = field(default=None, repr=False)
    """The run."""

    def __str__(self) -> str:
        """The report."""
        return self.message


async def run_step_executor(
    *,
    requirements: str,
    model_factory: ModelFactory = None,
    system_context: str | None = None,
    tools: Iterable[Tool] = (),
    workspace: str | Path = ".",
    command: str | None = None,
    share: Sharing | str = Sharing.OUTLINE,
    max_replans: int = 1,
    rollback_on_failure: bool = False,
    services: Services | None = None,
) -> ExecutionResult:
    """Plan the requirements and carry the plan out, without asking.

    Args:
        requirements: What is to be done.
        model_factory: Answers as planner and in every step.
        system_context: What every step is told besides its own.
        tools: Tools of the application, which the planner may give to steps; files are read and
            written, and tests are run for them anyway.
        workspace: The folder to work in; nothing outside of it is changed.
        command: The shell command that tests the work; None: the planner chooses.
        share: How steps see the files that earlier ones made: `names`, `outline` or `whole`.
        max_replans: How often what is left is planned again after a failure.
        rollback_on_failure: Whether files are taken back to what they were when the plan fails.
        services: Journal, clock and others; None: real ones, with a journal in memory.
    Raises:
        AgentExecutionError: The plan failed; the message has the ids of the failed steps.
        UsageError: The requirements are empty, or a tool is none.
        EnvironmentRefusedError: No model is configured.
    """
    if not requirements.strip():
        raise UsageError("run_step_executor(requirements=…) is empty: say what is to be done.")
    choices = PlanChoices(
        needs_approval=False,
        command=command,
        share=Sharing(share),
        context=system_context or "",
        max_replans=max_replans,
        rolls_back=rollback_on_failure,
    )
    given = model_factory
    model = given() if callable(given) and not isinstance(given, ChatModel) else given
    own = tuple(tools)
    given_tools: tuple[object, ...] = own
    if wrong := [each for each in given_tools if not isinstance(each, Tool)]:
        raise UsageError(
            f"run_step_executor(tools=…) takes tools, such as functions with @tool, not "
            f"{wrong[0]!r}. Files are read and written, and tests are run, without naming a tool."
        )
    document = step_executor_document(evolve(choices, tools=tuple(each.spec.name for each in own)))
    inputs: dict[str, InputValue] = {
        "requirements": requirements,
        "workspace": os.path.abspath(workspace),  # noqa: PTH100, ASYNC240  # nothing is looked at
    }
    async with Minions(model=model, tools=own, services=services) as m:
        return _report(await m.arun(yaml_text(document), inputs))


def _report(result: AgentResult[JsonValue]) -> ExecutionResult:
    """The report of a completed run.

    Raises:
        AgentExecutionError: It failed.
    """
    output = result.unwrap()
    steps = cast("list[Mapping[str, JsonValue]]", cast("Mapping[str, JsonValue]", output)["steps"])
    lines = [f"{each['id']} ({each['type']}): {each['status']}" for each in steps]
    [execution] = result.executions
    return ExecutionResult(
        success=True,
        message="\n".join(lines),
        artifacts={
            str(each["id"]): tuple(map(str, cast("list[JsonValue]", each.get("artifacts") or [])))
            for each in steps
        },
        token_usage=result.usage,
        execution_time=_seconds(execution),
        steps=tuple(steps),
        result=result,
    )


def _seconds(execution: StepExecution[object]) -> float:
    return execution.duration_ms / 1_000


@frozen(kw_only=True)
class StepExecutorAgent:
    """The agent `StepExecutor`: register it, and run it by name with a requirement text."""

    model_factory: ModelFactory = None
    workspace: str | Path = "."
    system_context: str | None = None
    services: Services | None = None

    @property
    def name(self) -> str:
        """`StepExecutor`."""
        return STEP_EXECUTOR

    @property
    def description(self) -> str:
        """One sentence for lists of agents."""
        return "Plans a task on a folder, and carries the plan out in small steps."

    async def run_step(self, request: str) -> dict[str, JsonValue]:
        """Carry out the requirements.

        Raises:
            AgentExecutionError: The plan failed.
        """
        done = await run_step_executor(
            requirements=request,
            model_factory=self.model_factory,
            system_context=self.system_context,
            workspace=self.workspace,
            services=self.services,
        )
        return {"content": done.message, "steps": [dict(each) for each in done.steps]}
