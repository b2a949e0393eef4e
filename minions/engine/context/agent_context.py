"""The context of one recipe in one run: who runs, and what is known so far."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TypeAlias

from attrs import Factory, field, frozen

from minions.contracts.context import Limits, RunContext
from minions.contracts.executions import RunWarning, StepExecution
from minions.contracts.journal.facts import WarningRecorded
from minions.contracts.memory import ModelMemory
from minions.contracts.retry import RetryConfig
from minions.contracts.runtime import BlockingCalls
from minions.contracts.secrets import InputValue, Secrets
from minions.contracts.tools import Toolbox, ToolSpec
from minions.data.errors import FailureInfo
from minions.data.json_values import JsonValue
from minions.engine.compile.named_agents import NamedAgents
from minions.engine.compile.opening_rights import MadeOf
from minions.engine.context.progress import StepProgress
from minions.engine.context.run_progress import RunProgress
from minions.engine.context.run_values import RunValues
from minions.engine.context.scope import RunScope
from minions.recipe.model import AgentRecipe
from minions.recipe.permissions import ALLOW_WRITE


@frozen
class Agent:
    """A recipe with an identity, and its prompts as one run reads them."""

    recipe: AgentRecipe
    system_prompt: str | None = field(
        kw_only=True, default=Factory(lambda self: self.recipe.system_prompt, takes_self=True)
    )
    """Rendered; by default the recipe's as it stands."""
    goal: str | None = field(
        kw_only=True, default=Factory(lambda self: self.recipe.goal, takes_self=True)
    )
    """Rendered; by default the recipe's as it stands."""

    @property
    def id(self) -> str:
        """The recipe's id."""
        return self.recipe.id


class AgentContext(RunContext):
    """One recipe in one run: its scope, values and progress. Two runs never share a context."""

    def __init__(
        self,
        agent: Agent,
        step_manager: StepProgress,
        memory: ModelMemory,
        *,
        tools: Toolbox | None = None,
        inputs: Mapping[str, JsonValue] | None = None,
        scope: RunScope | None = None,
        progress: RunProgress | None = None,
        recipe_runner: RecipeRunner | None = None,
    ) -> None:
        """Prepare a run, or one recipe within a run.

        Args:
            tools: All that the run may call; None: no tool.
            inputs: Checked, with defaults.
            scope: Which run it is; None: a new one with the default services.
            progress: What earlier executions left; None: nothing is spent, nothing in doubt.
            recipe_runner: Runs a recipe as a step; None: there are no such steps.
        Raises:
            MetadataError: The recipe's limits have a wrong name or type.
        """
        self.agent = agent
        self.step_manager = step_manager
        self.scope: RunScope = scope or RunScope.of_run(agent.recipe, inputs=inputs)
        self.run_values: RunValues = RunValues(inputs or {}, self.scope.ids, self.scope.secrets)
        self.progress: RunProgress = progress or RunProgress(agent.recipe.limits)
        self.recipe_runner = recipe_runner
        self._memory = memory
        self._tools = tools or Toolbox()

    def nested(
        self,
        agent: Agent,
        step_manager: StepProgress,
        memory: ModelMemory,
        *,
        tools: Toolbox,
        inputs: Mapping[str, JsonValue],
        scope: RunScope,
    ) -> AgentContext:
        """The context of a recipe that is a step of this one: it spends this one's budget, too.

        Args:
            scope: Made by `within` of this context's.
        """
        return AgentContext(
            agent,
            step_manager,
            memory,
            tools=tools,
            inputs=inputs,
            scope=scope,
            progress=RunProgress(agent.recipe.limits, parent=self.progress),
            recipe_runner=self.recipe_runner,
        )

    @property
    def recipe(self) -> AgentRecipe:
        """The agent's recipe."""
        return self.agent.recipe

    @property
    def run_id(self) -> str:
        """`run_…`."""
        return self.scope.run_id

    @property
    def session_id(self) -> str:
        """`ses_…`."""
        return self.scope.session_id

    @property
    def inputs(self) -> Mapping[str, JsonValue]:
        """Checked, with defaults."""
        return self.run_values.inputs

    @property
    def values(self) -> Mapping[str, JsonValue]:
        """What templates may name so far."""
        return self.run_values.names

    @property
    def metadata(self) -> dict[str, object]:
        """Limits, and what the application adds; a step reads it when it starts."""
        return self.progress.metadata

    @property
    def limits(self) -> Limits:
        """The recipe's own, from `metadata` as it is now.

        Raises:
            MetadataError: A limit of a wrong name or type.
        """
        return self.progress.limits

    @property
    def tools(self) -> Toolbox:
        """All tools that the run may call."""
        return self._tools

    @property
    def memory(self) -> ModelMemory:
        """The messages of all conversations of the run."""
        return self._memory

    @property
    def secrets(self) -> Secrets:
        """Secrets that the run's inputs refer to."""
        return self.scope.secrets

    @property
    def may_write(self) -> bool:
        """Whether the recipe, and each recipe around it, allows writes."""
        return self.scope.rights.may_write

    def now(self) -> datetime:
        """By the clock of the run's services."""
        return self.scope.services.clock.now()

    async def sleep(self, seconds: float) -> None:
        """By the `sleep` of the run's services."""
        await self.scope.services.sleep(seconds)

    @property
    def blocking(self) -> BlockingCalls:
        """Calls synchronous tools: `blocking` of the run's services."""
        return self.scope.services.blocking

    @property
    def beside(self) -> BlockingCalls:
        """Compute beside the event loop: `beside` of the run's services."""
        return self.scope.services.beside

    def refusal(self, tool: ToolSpec) -> str | None:
        """A permission of that tool alone counts over `allow_write`."""
        missing = self.scope.rights.missing(tool)
        if missing is None:
            return None
        # A tool may itself be called `write`: what is forbidden of it alone stays forbidden.
        said = super().refusal(tool) if missing == ALLOW_WRITE else None
        return said or (
            f"The recipe does not allow the tool '{tool.name}' (permissions: {missing})."
        )

    def needs_approval(self, tool: str) -> bool:
        """Whether each call of that tool waits for a person's consent."""
        found = self._tools.find(tool)
        return found is not None and self.scope.rights.needs_approval(found.spec)

    async def warn(self, code: str, message: str) -> None:
        """Record something odd that does not stop the run, once, and show it in the result."""
        warning = RunWarning(code=code, message=message)
        if not self.progress.add_warning(warning):
            return
        self.scope.log.warning(code.replace("-", "_"), message=message)
        key = f"warning/{len(self.progress.warnings)}"
        await self.scope.recorder.record(key, WarningRecorded(code=code, message=message))


TellSteps: TypeAlias = Callable[[Iterable[StepExecution[object]]], None]
"""Takes the steps of a recipe that ended."""


@frozen(kw_only=True)
class NestedResult:
    """The outcome of a recipe that ran as a step."""

    output: object
    error: FailureInfo | None
    is_partial: bool = False
    """Whether it completed although optional steps, or items of its loops, failed."""


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
        made_of: MadeOf | None = None,
        *,
        retry: RetryConfig | None = None,
    ) -> NestedResult:
        """Run one recipe to its end.

        Args:
            inputs: Not checked yet.
            retry: How calls of the step that runs it are tried again; None: as those of `context`.
            key: Of the execution that it is the work of.
            tell: Is called once with its steps, also when it is cut off.
            made_of: Where its inputs come from; None: nothing is known, so that nothing counts as
                said by the recipes of a run that a caller began.
        Raises:
            UsageError: It was given what it does not take, or names what is not there.
        """

    @property
    @abstractmethod
    def agents(self) -> NamedAgents:
        """The agents that tools may run by name."""

    @abstractmethod
    def find(self, name: str) -> AgentRecipe:
        """The recipe of that name, for steps made by code.

        Raises:
            NotFoundError: There is none.
        """
