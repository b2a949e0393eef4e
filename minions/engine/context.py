"""A run while it goes on: who runs, what is known so far, and each step's view of it."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from attrs import field, frozen

from minions.contracts.calls import ChatModel, DeltaSink, ModelDelta
from minions.contracts.completion import CompletionLink
from minions.contracts.context import Limits, RunContext
from minions.contracts.events import StepDelta
from minions.contracts.executions import StepStatus, Warned
from minions.contracts.journal import JournalEntry
from minions.contracts.json_values import JsonValue
from minions.contracts.memory import ModelMemory
from minions.contracts.secrets import Secrets
from minions.contracts.steps import PythonStep, Step
from minions.contracts.tools import Toolbox, Toolset
from minions.engine.budget import Ledger
from minions.engine.event_stream import EventStream
from minions.engine.recorder import Recorder
from minions.engine.replay import Replay
from minions.engine.secrets import declared_secrets
from minions.engine.services import Services
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe, ModelConfig

if TYPE_CHECKING:
    from minions.engine.step_manager import StepManager

__all__ = ["Agent", "AgentContext", "Extensions", "LoopItem", "ModelSource", "StepView"]

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

    def catalog(self) -> Catalog:
        """What recipes may name, for the static checks."""
        return Catalog(
            toolsets=self.toolsets,
            tools={tool.spec.name: tool.spec for tool in self.tools},
            links=frozenset(self.links),
            models=frozenset(self.models),
        )


_RESERVED: Final = ("inputs", "steps", "run")
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
    ) -> None:
        """Prepare a run.

        Args:
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
        self.ledger = Ledger(lambda: self.limits)
        self.events = events or EventStream()
        self.replay = replay
        self.warnings: list[Warned] = list(replay.warnings) if replay else []
        self.deadline: asyncio.Timeout | None = None
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
        self.recorder = Recorder(
            self.services,
            self.events,
            session_id=self._session_id,
            run_id=self._run_id,
            replay=replay,
        )
        self._steps: dict[str, JsonValue] = {}
        self._values: dict[str, JsonValue] = {
            "inputs": self._inputs,
            "steps": self._steps,
            "run": {"id": self._run_id, "session_id": self._session_id},
        }

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
        """The recipe's permission."""
        return self.recipe.permissions.allow_write

    def execution_key(self, step_id: str, visit: int, iteration: int = 0) -> str:
        """`step/visit/iteration` of that execution, with `@generation` where it is a later try."""
        base = f"{step_id}/{visit}/{iteration}"
        return base if self.replay is None else self.replay.key_of(base)

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

    def publish_result(
        self, step: Step[object], status: StepStatus, output: JsonValue, save_as: str | None = None
    ) -> None:
        """Let later steps read what a step left."""
        if status is not StepStatus.COMPLETED:
            self._steps[step.id] = {"status": status.value}
            return
        step_id = step.id
        if self._secrets and not isinstance(step, PythonStep):
            output = self._secrets.disarm(output)  # a model's words must not move a secret
        self._steps[step_id] = {"status": "completed", "output": output}
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
        item: LoopItem | None = None,
    ) -> None:
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
        here: dict[str, JsonValue] = {"loop": {"item": self._item.value, "index": self._item.index}}
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
        """The step's."""
        return self._step_id

    @property
    def may_write(self) -> bool:
        """The run's."""
        return self.context.may_write

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
