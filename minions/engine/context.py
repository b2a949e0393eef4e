"""A run while it goes on: who runs, what is known so far, and each step's view of it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from attrs import field, frozen

from minions.contracts.calls import ChatModel, DeltaSink, ModelDelta
from minions.contracts.completion import CompletionLink
from minions.contracts.context import Limits, RunContext
from minions.contracts.errors import FailureInfo
from minions.contracts.events import StepDelta
from minions.contracts.executions import StepExecution, StepStatus, Warned
from minions.contracts.journal import JournalEntry
from minions.contracts.json_values import JsonValue
from minions.contracts.memory import ModelMemory
from minions.contracts.messages import Message
from minions.contracts.retry import RetryConfig
from minions.contracts.schema import JsonSchema
from minions.contracts.secrets import InputValue, Secrets
from minions.contracts.steps import PythonStep, Step, StepScope
from minions.contracts.tools import Toolbox, Toolset, ToolSpec
from minions.engine.budget import Ledger
from minions.engine.event_stream import EventStream
from minions.engine.recorder import Recorder
from minions.engine.replay import OpenCall, Replay
from minions.engine.secrets import declared_secrets
from minions.engine.services import Services
from minions.engine.used_steps import parameters_of
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe, ModelConfig

if TYPE_CHECKING:
    from minions.engine.step_manager import StepManager

__all__ = [
    "Agent",
    "AgentContext",
    "Attempt",
    "Default",
    "EngineScope",
    "Extensions",
    "Feedback",
    "LoopItem",
    "ModelSource",
    "NestedResult",
    "RecipeRunner",
    "Scope",
    "StepView",
    "Turn",
]

ModelSource: TypeAlias = Callable[[ModelConfig], ChatModel]
"""Gives the model that a configuration names; the same object for the same configuration."""


@frozen
class Agent:
    """A recipe with an identity."""

    recipe: AgentRecipe

    @property
    def id(self) -> str:
        """The recipe's."""
        return self.recipe.id


@frozen(kw_only=True)
class Extensions:
    """What the operator brought: named things that recipes may use."""

    toolsets: Mapping[str, Toolset] = field(factory=dict)
    tools: Toolbox = field(factory=Toolbox)
    links: Mapping[str, CompletionLink] = field(factory=dict)
    models: Mapping[str, ChatModel] = field(factory=dict)
    """Models by their full name, such as `scripted/demo`."""
    recipes: Mapping[str, AgentRecipe] = field(factory=dict)
    """Recipes made by code, which steps may name."""
    steps: Mapping[str, type[Step[object]]] = field(factory=dict)
    """`Step` classes, which steps may use; made with `id` and what `with` gives."""

    def catalog(self) -> Catalog:
        """What recipes may name, for the static checks."""
        return Catalog(
            toolsets=self.toolsets,
            tools={tool.spec.name: tool.spec for tool in self.tools},
            links=frozenset(self.links),
            models=frozenset(self.models),
            recipes=self.recipes,
            steps={name: parameters_of(kind) for name, kind in self.steps.items()},
        )


@frozen(kw_only=True)
class Scope:
    """Where a recipe stands in its run."""

    keys: str = ""
    """Before each of its steps' keys: `outer>1>0>`."""
    path: str = ""
    """Before each of its steps' names: `outer/`."""


_WHOLE_RUN: Final = Scope()


class RecipeRunner(ABC):
    """Runs recipes as steps of a run."""

    @abstractmethod
    async def run(
        self, recipe: AgentRecipe, inputs: Mapping[str, InputValue], view: StepView, key: str
    ) -> NestedResult:
        """One recipe, to its end.

        Args:
            inputs: Not checked yet.
            key: Of the execution that it is the work of.
        Raises:
            UsageError: It was given what it does not take, or names what is not there.
        """

    @abstractmethod
    def find(self, name: str) -> AgentRecipe:
        """The recipe of that name, for steps made by code.

        Raises:
            NotFoundError: There is none.
        """


class EngineScope(StepScope):
    """What the engine's own steps may do beside what everybody's may."""

    @abstractmethod
    async def run_recipe(self, recipe: AgentRecipe, inputs: Mapping[str, JsonValue]) -> object:
        """The recipe that the step is; its output.

        Raises:
            UsageError: Inputs that it does not take.
            StepFailedError: It failed.
        """

    @abstractmethod
    async def ask_person(
        self, text: str, *, form: JsonSchema | None, default: Default, timeout_s: float | None
    ) -> JsonValue:
        """What somebody answers.

        Raises:
            StepFailedError: Nobody did: yet (`needs-decision`), or in time (`ask-timeout`).
        """


@frozen
class Default:
    """A value for when nobody says one."""

    value: JsonValue = None
    is_given: bool = False


@frozen(kw_only=True)
class NestedResult:
    """What a recipe gave that was a step of a run."""

    output: object
    error: FailureInfo | None
    executions: tuple[StepExecution[object], ...]


_RESERVED: Final = ("inputs", "steps", "run", "feedback")
"""Roots of `values` that a step of the same id must not hide; `steps.<id>.output` still works."""


class AgentContext(RunContext):
    """One run. Made afresh for each, so two runs never share anything."""

    def __init__(
        self,
        agent: Agent,
        step_manager: StepManager,
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
        self.ledger: Ledger = Ledger(lambda: self.limits, parent=parent.ledger if parent else None)
        self.events = events or EventStream()
        self.replay = replay
        self.warnings: list[Warned] = list(replay.warnings) if replay else []
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
        """What was said in the steps that share one conversation."""
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
        step_manager: StepManager,
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
            self.ledger.run_out_of_time()

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
        return self.recipe.permissions.allow_write

    def refusal(self, tool: ToolSpec) -> str | None:
        """What the recipe says of that tool alone counts over what it says of all writes."""
        if self.parent is not None and (reason := self.parent.refusal(tool)) is not None:
            return reason
        allowed = self.recipe.permissions.tools.get(tool.name)
        if allowed is None:
            return super().refusal(tool)
        if allowed:
            return None
        return f"The recipe does not allow the tool '{tool.name}' (permissions: allow_{tool.name})."

    def needs_approval(self, tool: str) -> bool:
        """Whether somebody has to consent to each call of it."""
        own = tool in self.recipe.permissions.requires_approval
        return own or (self.parent is not None and self.parent.needs_approval(tool))

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
        """How that work ended in an earlier leg of the run."""
        return None if self.replay is None else self.replay.find(kind, key)

    @property
    def secrets(self) -> Secrets:
        """Of the recipe's secret inputs."""
        return self._secrets

    async def warn(self, code: str, message: str) -> None:
        """Record something odd that does not stop the run, once, and show it in the result."""
        warned = Warned(code=code, message=message)
        if warned in self.warnings:
            return
        self.warnings.append(warned)
        self.services.log.warning(code.replace("-", "_"), message=message)
        key = f"warning/{len(self.warnings)}"
        await self.recorder.record("warning", key, "recorded", {"code": code, "message": message})

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


@frozen(kw_only=True)
class LoopItem:
    """What one iteration of a loop is about."""

    value: JsonValue
    index: int
    """From 0."""

    @property
    def loop(self) -> JsonValue:
        """What templates read as `loop`."""
        return {"item": self.value, "index": self.index}


@frozen(kw_only=True)
class Attempt:
    """One attempt of a step that is done as long as a condition holds."""

    index: int
    """From 0."""
    outputs: tuple[JsonValue, ...] = ()
    """What the attempts before gave."""

    @property
    def loop(self) -> JsonValue:
        """What templates read as `loop`."""
        last = self.outputs[-1] if self.outputs else None
        return {"index": self.index, "last": last, "attempts": list(self.outputs)}


Turn: TypeAlias = LoopItem | Attempt
"""One of the times that a step is done."""


@frozen(kw_only=True)
class Feedback:
    """Why the run went back to an earlier step."""

    step_id: str
    """That failed."""
    to: str
    """That runs again."""
    code: str
    message: str
    attempt: int
    """From 1."""

    def to_json(self) -> dict[str, JsonValue]:
        """What templates read as `feedback`."""
        return {
            "step": self.step_id,
            "to": self.to,
            "code": self.code,
            "message": self.message,
            "attempt": self.attempt,
        }


class StepView(RunContext):
    """The run as one step sees it: its own limits, tools and conversation."""

    def __init__(
        self,
        context: AgentContext,
        *,
        step_id: str,
        key: str,
        limits: Limits,
        metadata: Mapping[str, object],
        tools: Toolbox,
        item: Turn | None = None,
        retry: RetryConfig | None = None,
    ) -> None:
        self.retry = retry or context.recipe.retry
        """How calls of the step are tried again."""
        self.context = context
        self._item = item
        self.key = key
        self.conversation_id = f"{context.run_id}/{key}"
        self._step_id = step_id
        self._limits = limits
        self._metadata = metadata
        self._tools = tools

    @property
    def run_id(self) -> str:
        """The run's."""
        return self.context.run_id

    @property
    def session_id(self) -> str:
        """The run's."""
        return self.context.session_id

    @property
    def inputs(self) -> Mapping[str, JsonValue]:
        """The run's."""
        return self.context.inputs

    @property
    def values(self) -> Mapping[str, JsonValue]:
        """The run's; in a loop also `loop.item` and `loop.index`, for this step alone."""
        if self._item is None:
            return self.context.values
        here: dict[str, JsonValue] = {"loop": self._item.loop}
        return ChainMap(here, cast("dict[str, JsonValue]", self.context.values))

    @property
    def limits(self) -> Limits:
        """The step's own over the agent's."""
        return self._limits

    @property
    def metadata(self) -> Mapping[str, object]:
        """The step's own over the agent's."""
        return self._metadata

    @property
    def tools(self) -> Toolbox:
        """Only what this step may use."""
        return self._tools

    @property
    def memory(self) -> ModelMemory:
        """The run's; this step's conversation is `conversation_id`."""
        return self.context.memory

    @property
    def step_id(self) -> str:
        """The step's, as the whole run knows it."""
        return self._step_id

    @property
    def path(self) -> str:
        """The step's, with the item that it is about: `step[2]`."""
        item = self._item
        return self._step_id if item is None else f"{self._step_id}[{item.index}]"

    @property
    def may_write(self) -> bool:
        """The run's."""
        return self.context.may_write

    def refusal(self, tool: ToolSpec) -> str | None:
        """The run's."""
        return self.context.refusal(tool)

    @property
    def secrets(self) -> Secrets:
        """The run's."""
        return self.context.secrets

    @property
    def delta_sink(self) -> DeltaSink | None:
        """Publishes pieces as `step_delta` when somebody watches."""
        return self._publish_delta if self.context.events.is_watched else None

    def _publish_delta(self, delta: ModelDelta) -> None:
        data: dict[str, JsonValue] = {}
        if delta.content is not None:
            data["content"] = delta.content
        if delta.tool_call is not None:
            data["tool_calls"] = [delta.tool_call]
        self.context.events.publish(
            StepDelta(
                run_id=self.run_id,
                session_id=self.session_id,
                timestamp=self.context.services.clock.now(),
                step_id=self._step_id,
                delta=data,
            )
        )
