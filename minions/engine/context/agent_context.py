"""A run while it goes on: who runs, and what is known so far."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, TypeAlias, cast

from attrs import frozen

from minions.contracts.context import Limits, RunContext
from minions.contracts.errors import FailureInfo
from minions.contracts.executions import RunWarning, StepExecution, StepStatus
from minions.contracts.facts import WarningRecorded
from minions.contracts.journal import JournalEntry
from minions.contracts.json_values import JsonValue
from minions.contracts.memory import ModelMemory
from minions.contracts.messages import Message
from minions.contracts.secrets import InputValue, Secrets
from minions.contracts.steps import PythonStep, Step
from minions.contracts.tools import Toolbox, ToolSpec
from minions.engine.context.iterations import Feedback
from minions.engine.context.progress import StepProgress
from minions.engine.context.scope import Scope
from minions.engine.history.conversation import LiveConversation
from minions.engine.history.events import EventStream
from minions.engine.history.recorder import Recorder
from minions.engine.history.replay import OpenCall, Replay
from minions.engine.services.budget import RunBudget
from minions.engine.services.secrets import declared_secrets
from minions.engine.services.services import Services
from minions.recipe.model import AgentRecipe, ModelConfig
from minions.recipe.permissions import ALLOW_WRITE, Rights

__all__ = ["Agent", "AgentContext", "NestedResult", "RecipeRunner", "TellSteps"]


@frozen
class Agent:
    """A recipe with an identity."""

    recipe: AgentRecipe

    @property
    def id(self) -> str:
        """The recipe's."""
        return self.recipe.id


_WHOLE_RUN: Final = Scope()


_RESERVED: Final = ("inputs", "steps", "run", "feedback")
"""Roots of `values` that a step of the same id must not hide; `steps.<id>.output` still works."""


class AgentContext(RunContext):
    """One run. Made afresh for each, so two runs never share anything."""

    def __init__(
        self,
        agent: Agent,
        step_manager: StepProgress,
        memory: ModelMemory,
        *,
        services: Services | None = None,
        tools: Toolbox | None = None,
        inputs: Mapping[str, JsonValue] | None = None,
        run_id: str | None = None,
        session_id: str | None = None,
        events: EventStream | None = None,
        system_prompt: str | None = None,
        goal: str | None = None,
        replay: Replay | None = None,
        secrets: Secrets | None = None,
        parent: AgentContext | None = None,
        scope: Scope | None = None,
    ) -> None:
        """Prepare a run, or one recipe within a run.

        Args:
            parent: The run that a recipe is part of: its ids, journal, limits and secrets count.
            scope: Where in that run the recipe stands.
            system_prompt: The agent's, rendered; None: the recipe's as it stands.
            goal: Likewise.
            replay: What the run did before; None: it is new.
            secrets: Those that the inputs refer to; None: they are resolved now.
        Raises:
        MetadataError: The recipe's limits have a wrong name or type.
        """
        self.agent = agent
        self.system_prompt = system_prompt or agent.recipe.system_prompt
        self.goal = goal or agent.recipe.goal
        self.step_manager = step_manager
        self.services = services or Services()
        self.metadata_values: dict[str, object] = dict(agent.recipe.limits)
        self._read_limits()  # refused now rather than in the run
        self.parent = parent
        self.scope = scope or _WHOLE_RUN
        self.rights: Rights = (
            Rights.of(agent.recipe) if parent is None else parent.rights.within(agent.recipe)
        )
        self.budget: RunBudget = RunBudget(
            lambda: self.limits, parent=parent.budget if parent else None
        )
        self.events = events or EventStream()
        self.replay = replay
        self.warnings: list[RunWarning] = list(replay.warnings) if replay else []
        self.recipe_runner: RecipeRunner | None = None
        """Runs a recipe as a step; None: this context is used without an executor."""
        self._open_calls: tuple[OpenCall, ...] = ()
        self._deadline: asyncio.Timeout | None = None
        self._memory = memory
        self._tools = tools or Toolbox()
        self._inputs = dict(inputs or {})
        self._secrets = (
            declared_secrets(agent.recipe, self._inputs, self.services.secrets)
            if secrets is None
            else secrets
        )
        self._run_id = run_id or self.services.ids("run")
        self._session_id = session_id or self.services.ids("ses")
        self.recorder: Recorder = (
            parent.recorder
            if parent is not None
            else Recorder(
                self.services,
                self.events,
                session_id=self._session_id,
                run_id=self._run_id,
                replay=replay,
            )
        )
        self.conversation: tuple[Message, ...] = ()
        """What was said in this run in the steps that share one conversation."""
        self.live_conversation: LiveConversation | None = None
        """The session's conversation, for the run's own steps that share it."""
        self._steps: dict[str, JsonValue] = {}
        self._feedback: Feedback | None = None
        self._values: dict[str, JsonValue] = {
            "feedback": None,
            "inputs": self._inputs,
            "steps": self._steps,
            "run": {"id": self._run_id, "session_id": self._session_id},
        }

    def nested(
        self,
        recipe: AgentRecipe,
        step_manager: StepProgress,
        memory: ModelMemory,
        *,
        tools: Toolbox,
        inputs: Mapping[str, JsonValue],
        scope: Scope,
        system_prompt: str | None,
        goal: str | None,
    ) -> AgentContext:
        """Of a recipe that is a step of this run: its own values and memory, the run's journal."""
        inner = AgentContext(
            Agent(recipe),
            step_manager,
            memory,
            services=self.services,
            tools=tools,
            inputs=inputs,
            run_id=self._run_id,
            session_id=self._session_id,
            events=self.events,
            system_prompt=system_prompt,
            goal=goal,
            replay=self.replay,
            secrets=self._secrets,
            parent=self,
            scope=scope,
        )
        inner.recipe_runner = self.recipe_runner
        inner.warnings = self.warnings
        return inner

    @property
    def open_calls(self) -> tuple[OpenCall, ...]:
        """Calls in doubt: while there are any, nothing is begun, and what is recorded is told."""
        return self._open_calls if self.parent is None else self.parent.open_calls

    @open_calls.setter
    def open_calls(self, calls: tuple[OpenCall, ...]) -> None:
        self._open_calls = calls

    @property
    def base_model(self) -> ModelConfig:
        """The recipe's, over that of the run it is part of."""
        own = self.recipe.model
        return own if self.parent is None else self.parent.base_model.overlaid(own)

    @property
    def deadline(self) -> asyncio.Timeout | None:
        """Of the whole run's own time; None: it has begun no clock."""
        return self._deadline if self.parent is None else self.parent.deadline

    @deadline.setter
    def deadline(self, deadline: asyncio.Timeout | None) -> None:
        self._deadline = deadline

    @property
    def run_id(self) -> str:
        """`run_…`."""
        return self._run_id

    @property
    def session_id(self) -> str:
        """`ses_…`."""
        return self._session_id

    @property
    def is_out_of_time(self) -> bool:
        """Whether the run's own timeout is what cancels its steps."""
        return self.deadline is not None and self.deadline.expired()

    def check_time(self) -> None:
        """Tell the ledger that the time is over: code that swallowed its cancellation goes on."""
        if self.is_out_of_time:
            self.budget.run_out_of_time()

    @property
    def recipe(self) -> AgentRecipe:
        """The agent's."""
        return self.agent.recipe

    @property
    def inputs(self) -> Mapping[str, JsonValue]:
        """Checked, with defaults."""
        return self._inputs

    @property
    def values(self) -> Mapping[str, JsonValue]:
        """What templates may name so far."""
        return self._values

    @property
    def metadata(self) -> dict[str, object]:
        """Limits and what the application likes; a step reads it when it starts."""
        return self.metadata_values

    @property
    def limits(self) -> Limits:
        """The agent's own, from `metadata` as it is now.

        Raises:
            MetadataError: A limit of a wrong name or type.
        """
        if self._limits_seen != self.metadata_values:
            self._read_limits()
        return self._limits

    def _read_limits(self) -> None:
        """Anew when the metadata have changed: reading costs as much as a small step."""
        self._limits = Limits.from_metadata(self.metadata_values)
        self._limits_seen = dict(self.metadata_values)

    @property
    def tools(self) -> Toolbox:
        """Every tool of the run."""
        return self._tools

    @property
    def memory(self) -> ModelMemory:
        """The conversations."""
        return self._memory

    @property
    def may_write(self) -> bool:
        """The recipe's permission; a recipe within another has no more than that one."""
        return self.rights.may_write

    def now(self) -> datetime:
        """By the clock of the run's services."""
        return self.services.clock.now()

    async def sleep(self, seconds: float) -> None:
        """As the run's services wait."""
        await self.services.sleep(seconds)

    def refusal(self, tool: ToolSpec) -> str | None:
        """What the recipe says of that tool alone counts over what it says of all writes."""
        missing = self.rights.missing(tool)
        if missing is None:
            return None
        # A tool may itself be called `write`: what is forbidden of it alone stays forbidden.
        said = super().refusal(tool) if missing == ALLOW_WRITE else None
        return said or (
            f"The recipe does not allow the tool '{tool.name}' (permissions: {missing})."
        )

    def needs_approval(self, tool: str) -> bool:
        """Whether somebody has to consent to each call of it."""
        found = self._tools.find(tool)
        return found is not None and self.rights.needs_approval(found.spec)

    def execution_key(self, step_id: str, visit: int, iteration: int = 0) -> str:
        """`step/visit/iteration` of that execution, with `@generation` where it is a later try."""
        base = self.base_key(step_id, visit, iteration)
        return base if self.replay is None else self.replay.key_of(base)

    def base_key(self, step_id: str, visit: int, iteration: int = 0) -> str:
        """`step/visit/iteration`, after the place of the recipe in its run."""
        return f"{self.scope.keys}{step_id}/{visit}/{iteration}"

    def path_of(self, step_id: str) -> str:
        """The step's name in the whole run: `step`, or `outer/step` in a recipe within it."""
        return f"{self.scope.path}{step_id}"

    def recorded(self, kind: str, key: str) -> JournalEntry | None:
        """How that work ended in an earlier execution of the run."""
        return None if self.replay is None else self.replay.find(kind, key)

    @property
    def secrets(self) -> Secrets:
        """Of the recipe's secret inputs."""
        return self._secrets

    async def warn(self, code: str, message: str) -> None:
        """Record something odd that does not stop the run, once, and show it in the result."""
        warned = RunWarning(code=code, message=message)
        if warned in self.warnings:
            return
        self.warnings.append(warned)
        self.services.log.warning(code.replace("-", "_"), message=message)
        key = f"warning/{len(self.warnings)}"
        await self.recorder.record(key, WarningRecorded(code=code, message=message))

    @property
    def feedback(self) -> Feedback | None:
        """Why steps run again just now; None: they do not."""
        return self._feedback

    @feedback.setter
    def feedback(self, feedback: Feedback | None) -> None:
        self._feedback = feedback
        self._values["feedback"] = feedback.to_json() if feedback is not None else None

    def withdraw_result(self, step_id: str, save_as: str | None = None) -> None:
        """Nobody can read any more what the step left: it runs again."""
        for name in (step_id, save_as):
            if name is not None and name not in _RESERVED:
                self._values.pop(name, None)
        self._steps.pop(step_id, None)

    def publish_result(
        self,
        step: Step[object],
        status: StepStatus,
        output: JsonValue,
        save_as: str | None = None,
        error: FailureInfo | None = None,
    ) -> None:
        """Let later steps read what a step left."""
        if status is not StepStatus.COMPLETED:
            told = dict(error.to_json()) if error is not None else None
            before = cast("Mapping[str, JsonValue]", self._steps.get(step.id) or {})
            self._steps[step.id] = {"status": status.value, "error": told}
            if status is StepStatus.SKIPPED and "output" in before:
                # In a graph it may have run before: its newest output is that one.
                self._steps[step.id] = {**before, "status": status.value, "error": None}
            elif status is StepStatus.FAILED and step.id not in _RESERVED:
                self._values.pop(step.id, None)
            return
        step_id = step.id
        if self._secrets and not isinstance(step, PythonStep):
            output = self._secrets.disarm(output)  # a model's words must not move a secret
        self._steps[step_id] = {"status": "completed", "output": output, "error": None}
        if step_id not in _RESERVED:
            self._values[step_id] = output
        if save_as is not None:
            self._values[save_as] = output


TellSteps: TypeAlias = Callable[[Iterable[StepExecution[object]]], None]
"""Takes the steps of a recipe that ended."""


@frozen(kw_only=True)
class NestedResult:
    """What a recipe gave that was a step of a run."""

    output: object
    error: FailureInfo | None


class RecipeRunner(ABC):
    """Runs recipes as steps of a run."""

    @abstractmethod
    async def run(
        self,
        recipe: AgentRecipe,
        inputs: Mapping[str, InputValue],
        context: AgentContext,
        path: str,
        key: str,
        tell: TellSteps,
    ) -> NestedResult:
        """One recipe, to its end.

        Args:
            inputs: Not checked yet.
            key: Of the execution that it is the work of.
            tell: Is called once with its steps, also when it is cut off.
        Raises:
            UsageError: It was given what it does not take, or names what is not there.
        """

    @abstractmethod
    def find(self, name: str) -> AgentRecipe:
        """The recipe of that name, for steps made by code.

        Raises:
            NotFoundError: There is none.
        """
