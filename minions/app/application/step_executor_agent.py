"""The step executor agent of StreetRace: plans a task, and carries the plan out in small steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from attrs import Attribute, field, frozen

from minions.app.application.application import Minions
from minions.contracts.calls import ChatModel
from minions.contracts.executions import AgentResult, StepExecution
from minions.contracts.messages import TokenUsage
from minions.contracts.plans import Plan
from minions.contracts.secrets import InputValue
from minions.contracts.tools import Tool
from minions.data.errors import UsageError, did_you_mean
from minions.data.json_values import JsonValue, as_array, as_object, as_objects
from minions.engine.services.run_services import Services
from minions.planning.plan_json import Sharing, read_plan
from minions.planning.step_executor import STEP_EXECUTOR, PlanChoices, step_executor_document
from minions.recipe.text.yaml_reader import yaml_text

ModelFactory: TypeAlias = ChatModel | str | Callable[[], ChatModel | str] | None
"""A model, its name, or a function that gives one; None: the configured one."""


def _as_tools(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    own = tuple(tools)
    given: tuple[object, ...] = own
    if wrong := [each for each in given if not isinstance(each, Tool)]:
        raise UsageError(
            f"`tools` takes tools, such as functions with @tool, not {wrong[0]!r}. Files are read "
            "and written, and tests are run, without naming a tool."
        )
    return own


def _choose_value(name: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        hint = did_you_mean(str(value), choices)
        raise UsageError(f"{name}={value!r} is none of {', '.join(choices)}.{hint}")
    return value


def _as_form(value: str) -> str:
    return _choose_value("form", value, ("structured", "text"))


def _as_sharing(value: Sharing | str) -> Sharing:
    return Sharing(_choose_value("share", value, [each.value for each in Sharing]))


def _is_count(_: object, attribute: Attribute[int], value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_AGAIN:
        raise UsageError(f"{attribute.name}={value!r} is no number from 0 to {_MOST_AGAIN}.")


_MOST_AGAIN: Final = 20


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
    """Of each step, in the order of the plan: `id`, `type`, `status`, and what there is of `files`,
    `answer` (of what analyzes or validates), `artifacts`."""
    result: AgentResult[JsonValue] | None = field(default=None, repr=False)
    """The run."""

    def __str__(self) -> str:
        """The report."""
        return self.message


@frozen(kw_only=True)
class _PlanSettings:
    """How a task is planned and carried out, without asking."""

    model_factory: ModelFactory = None
    """Answers as planner and in every step."""
    workspace: str | Path = "."
    """The folder to work in; nothing outside of it is changed."""
    system_context: str | None = None
    """What the planner and every step are told besides."""
    tools: Iterable[Tool] = field(default=(), converter=_as_tools)
    """Tools of the application, which the planner may give to steps."""
    command: str | None = None
    """The shell command that tests the work; None: the planner chooses."""
    form: str = field(default="structured", converter=_as_form)
    """How the model writes the plan: `structured`, or as `text` for weak models."""
    share: Sharing | str = field(default=Sharing.OUTLINE, converter=_as_sharing)
    """How steps see the files that earlier ones made: `names`, `outline` or `whole`."""
    max_replans: int = field(default=1, validator=_is_count)
    """How often what is left is planned again after a failure."""
    max_repairs: int = field(default=2, validator=_is_count)
    """How often a failed validation goes back to a repair."""
    rollback_on_failure: bool = False
    """Whether files are taken back to what they were when the plan fails."""
    services: Services | None = None
    """Journal, clock and others; None: real ones, with a journal in memory."""

    async def _run(
        self, requirements: str, *, given: Plan | None = None, is_run: bool = True
    ) -> AgentResult[JsonValue]:
        """Plan, and carry the plan out unless it is only made."""
        if not requirements.strip():
            raise UsageError("The requirements are empty: say what is to be done.")
        tools = tuple(self.tools)
        document = step_executor_document(
            PlanChoices(
                needs_approval=False,
                is_run=is_run,
                opens_named=False,
                command=self.command,
                form=self.form,
                share=_as_sharing(self.share),
                context=self.system_context or "",
                given=given.to_text() if given is not None else None,
                max_replans=self.max_replans,
                max_repairs=self.max_repairs,
                rolls_back=self.rollback_on_failure,
                tools=tuple(each.spec.name for each in tools),
            )
        )
        inputs: dict[str, InputValue] = {
            "requirements": requirements,
            "workspace": os.path.abspath(self.workspace),  # noqa: PTH100, ASYNC240  # not looked at
        }
        model = self.model_factory
        if callable(model) and not isinstance(model, ChatModel):
            model = model()
        async with Minions(model=model, tools=tools, services=self.services) as m:
            return await m.arun(yaml_text(document), inputs)


async def run_step_executor(
    *,
    requirements: str,
    model_factory: ModelFactory = None,
    system_context: str | None = None,
    tools: Iterable[Tool] = (),
    workspace: str | Path = ".",
    command: str | None = None,
    form: str = "structured",
    share: Sharing | str = Sharing.OUTLINE,
    max_replans: int = 1,
    max_repairs: int = 2,
    rollback_on_failure: bool = False,
    services: Services | None = None,
) -> ExecutionResult:
    """Plan the requirements and carry the plan out, without asking.

    Args:
        requirements: What is to be done.
        model_factory: Answers as planner and in every step.
        system_context: What the planner and every step are told besides.
        tools: Tools of the application, which the planner may give to steps; files are read and
            written, and tests are run for them anyway.
        workspace: The folder to work in; nothing outside of it is changed.
        command: The shell command that tests the work; None: the planner chooses.
        form: How the model writes the plan: `structured`, or as `text` for weak models.
        share: How steps see the files that earlier ones made: `names`, `outline` or `whole`.
        max_replans: How often what is left is planned again after a failure.
        max_repairs: How often a failed validation goes back to a repair.
        rollback_on_failure: Whether files are taken back to what they were when the plan fails.
        services: Journal, clock and others; None: real ones, with a journal in memory.
    Raises:
        AgentExecutionError: The plan failed; the message has the ids of the failed steps, and
            `error.result.plan` how each step ended.
        UsageError: The requirements are empty, a tool is none, or a choice is none.
        EnvironmentRefusedError: No model is configured.
    """
    settings = _PlanSettings(
        model_factory=model_factory,
        system_context=system_context,
        tools=tools,
        workspace=workspace,
        command=command,
        form=form,
        share=share,
        max_replans=max_replans,
        max_repairs=max_repairs,
        rollback_on_failure=rollback_on_failure,
        services=services,
    )
    return _report(await settings._run(requirements))  # noqa: SLF001  # of this module


def _report(result: AgentResult[JsonValue]) -> ExecutionResult:
    """The report of a completed run.

    Raises:
        AgentExecutionError: It failed.
    """
    output = result.unwrap()
    steps = as_objects(as_object(output)["steps"])
    lines = [f"{each['id']} ({each['type']}): {each['status']}" for each in steps]
    [execution] = result.executions
    return ExecutionResult(
        success=True,
        message="\n".join(lines),
        artifacts={
            str(each["id"]): tuple(map(str, as_array(each.get("artifacts") or [])))
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
class PlanGenerator(_PlanSettings):
    """Makes a plan of requirements, to be looked at, edited and run; nothing is asked."""

    async def make(self, requirements: str) -> Plan:
        """The plan of a model, without faults; nothing is carried out.

        Raises:
            AgentExecutionError: No plan without faults came.
            UsageError: The requirements are empty.
            EnvironmentRefusedError: No model is configured.
        """
        result = await self._run(requirements, is_run=False)
        made = as_object(result.unwrap())["plan"]
        return Plan.from_json(as_object(made))

    @staticmethod
    def read(answer: JsonValue, name: str = "plan") -> Plan:
        """The plan in a text or in JSON, such as one that a person edited.

        Args:
            name: The plan's name where the answer gives none.
        Raises:
            UsageError: `bad-plan`; there is none in it.
        """
        plan = read_plan(answer, name)
        if plan is None:
            raise UsageError(
                "There is no plan in it. Write PLAN, STEP, TYPE and GOAL, or JSON with `steps`, "
                "each with `id`, `type` and `goal`.",
                code="bad-plan",
            )
        return plan

    async def run(self, plan: Plan, requirements: str | None = None) -> ExecutionResult:
        """Carry a plan out; a model plans only what is left after a failure.

        Args:
            requirements: What is planned for, should it fail; None: the plan says it.
        Raises:
            AgentExecutionError: The plan has faults (`bad-plan`), or failed.
            EnvironmentRefusedError: No model is configured.
        """
        task = requirements if requirements is not None else f"Carry this plan out:\n{plan}"
        return _report(await self._run(task, given=plan))


@frozen(kw_only=True)
class StepExecutorAgent(_PlanSettings):
    """The agent `StepExecutor`: register it, and run it by name with a requirement text."""

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
        done = _report(await self._run(request))
        return {"content": done.message, "steps": [dict(each) for each in done.steps]}
