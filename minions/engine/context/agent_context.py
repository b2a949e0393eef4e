"""The context of one recipe in one run: who runs, and the values that templates may read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import Factory, field, frozen
from msgspec import Struct

from minions.contracts.context import Limits, RunContext
from minions.contracts.executions import RunWarning, StepExecution, StepStatus
from minions.contracts.retry_config import RetryConfig
from minions.contracts.runtime import BlockingCalls
from minions.contracts.secrets import InputValue, Secrets
from minions.contracts.session_views import ModelMemory
from minions.contracts.steps import PythonStep, Step
from minions.contracts.tools import NO_TOOLS, Toolbox, ToolSpec
from minions.data.errors import FailureInfo
from minions.data.field_repr import FieldsRepr
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue
from minions.engine.compile.extensions import NamedAgents
from minions.engine.compile.opening_rights import MadeOf
from minions.engine.context.run_progress import Feedback, RunProgress, StepProgress
from minions.engine.context.scope import RunScope
from minions.recipe.expressions.values import MissingValueError, Reference, resolve
from minions.recipe.model import AgentRecipe, CallRule
from minions.recipe.permissions import ALLOW_WRITE

if TYPE_CHECKING:
    from minions.engine.context.strangers_words import StrangersWords, WordsOf

_SKIPPED: Final = StepStatus.SKIPPED.value
_RESERVED: Final = ("inputs", "steps", "run", "feedback")
"""Names that a step of the same id does not hide; `steps.<id>.output` still reads that step."""


class RunValues:
    """The names that templates may read. Each step's result is published here when it ends."""

    def __init__(
        self, inputs: Mapping[str, JsonValue], run: Mapping[str, JsonValue], secrets: Secrets
    ) -> None:
        """Begin with the inputs alone.

        Args:
            inputs: Checked, with defaults.
            run: What templates read as `run`.
            secrets: References to them are disarmed in what a model says.
        """
        self._inputs = dict(inputs)
        self.has_large: bool = bool(inputs) and is_large(self._inputs)
        """Whether any value has been large so far: only then is it looked at what a step reads."""
        self._secrets = secrets
        self._has_secrets = bool(secrets)
        self._feedback: Feedback | None = None
        self._steps: dict[str, dict[str, JsonValue]] = {}
        self._names: dict[str, JsonValue] = {
            "feedback": None,
            "inputs": self._inputs,
            "steps": self._steps,
            "run": dict(run),
        }

    @property
    def inputs(self) -> Mapping[str, JsonValue]:
        """Checked, with defaults."""
        return self._inputs

    @property
    def names(self) -> Mapping[str, JsonValue]:
        """Each name with its present value: one mapping, which changes as steps end."""
        return self._names

    @property
    def feedback(self) -> Feedback | None:
        """Why steps run again after a back edge; None: they do not."""
        return self._feedback

    def give_feedback(self, feedback: Feedback) -> None:
        """Let the steps that run again read why."""
        self._feedback, self._names["feedback"] = feedback, feedback.to_json()

    def end_feedback(self, step_id: str) -> None:
        """That step ended without a back edge: if the feedback was about it, nobody reads it."""
        if self._feedback is not None and self._feedback.step_id == step_id:
            self._feedback = self._names["feedback"] = None

    def publish(
        self,
        step: Step[object],
        status: StepStatus,
        output: JsonValue,
        save_as: str | None = None,
        error: FailureInfo | None = None,
        *,
        with_artifacts: bool = False,
        has_large: bool | None = None,
    ) -> None:
        """Let later steps read how a step ended.

        Args:
            output: Of a COMPLETED step, or of a FAILED loop whose results are readable; else None.
            save_as: A further name of the output; it may hide any other name.
            error: Why it FAILED.
            with_artifacts: Whether templates read the artifacts in the output.
            has_large: Whether the output is large; None: it is looked at.
        """
        if status is StepStatus.SKIPPED or (status is not StepStatus.COMPLETED and output is None):
            self._publish_status(step.id, status, error)
            return
        if not self.has_large:
            self.has_large = is_large(output) if has_large is None else has_large
        if self._has_secrets and not isinstance(step, PythonStep):
            output = self._secrets.disarm(output)  # a model's words must not move a secret
        failure = dict(error.to_document()) if error is not None else None
        record: dict[str, JsonValue] = {
            "status": status._value_,
            "output": output,
            "error": failure,
        }
        if with_artifacts:
            from minions.recipe.artifacts import artifacts_of

            record["artifacts"] = artifacts_of(output)
        self._steps[step.id] = record
        if step.id not in _RESERVED:
            self._names[step.id] = output
        if save_as is not None:
            self._names[save_as] = output

    def ended(self, step_id: str) -> Mapping[str, JsonValue] | None:
        """What templates read as `steps.ID`; None: the step has not ended."""
        return self._steps.get(step_id)

    def gives(self, step_id: str) -> bool:
        """Whether the step ended and others may read what it gave, or how it failed."""
        record = self._steps.get(step_id)
        return record is not None and ("output" in record or record["status"] != _SKIPPED)

    def reads_much(
        self, references: Iterable[Reference], values: Mapping[str, JsonValue] | None = None
    ) -> bool:
        """Whether what these references read is large: then nothing is computed from it at once.

        Args:
            values: What they read; None: the run's.
        """
        if not self.has_large:
            return False
        names = self._names if values is None else values
        return any(is_large(_known(each, names)) for each in references)

    def _publish_status(self, step_id: str, status: StepStatus, error: FailureInfo | None) -> None:
        before = self._steps.get(step_id) or {}
        if status is StepStatus.SKIPPED and "output" in before:
            # In a graph of transitions it may have run before: its newest output stays readable.
            self._steps[step_id] = {**before, "status": status.value, "error": None}
            return
        failure = dict(error.to_document()) if error is not None else None
        self._steps[step_id] = {"status": status.value, "error": failure}
        if status is StepStatus.FAILED and step_id not in _RESERVED:
            self._names.pop(step_id, None)

    def restore(
        self, step_id: str, record: Mapping[str, JsonValue], save_as: str | None = None
    ) -> None:
        """Let a child run read what a step of the run around it gave.

        Args:
            record: What templates read there as `steps.ID`.
            save_as: As of `publish`.
        """
        self._steps[step_id] = {**record}
        if "output" not in record:
            return
        if step_id not in _RESERVED:
            self._names[step_id] = record["output"]
        if save_as is not None:
            self._names[save_as] = record["output"]

    def withdraw(self, step_id: str, save_as: str | None = None) -> None:
        """Remove the result of a step that runs again, under each of its names."""
        for name in (step_id, save_as):
            if name is not None and name not in _RESERVED:
                self._names.pop(name, None)
        self._steps.pop(step_id, None)


def _known(reference: Reference, names: Mapping[str, JsonValue]) -> JsonValue:
    """What the reference reads, as far as its path is constant; null where nothing is there."""
    try:
        return resolve(reference.path, names)
    except MissingValueError:
        return None


@frozen
class Agent(FieldsRepr):
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

    # Slots, as the contract has properties of these names, and each step reads them many times.
    __slots__ = (
        "inputs",
        "memory",
        "metadata",
        "run_id",
        "secrets",
        "session_id",
        "tools",
        "values",
    )
    run_id: str
    session_id: str
    inputs: Mapping[str, JsonValue]
    values: Mapping[str, JsonValue]
    """What templates may name so far: one mapping, which changes as steps end."""
    metadata: dict[str, object]
    """Limits, and what the application adds; a step reads it when it starts."""
    tools: Toolbox
    """All tools that the run may call."""
    memory: ModelMemory
    """The messages of all conversations of the run."""
    secrets: Secrets
    """Secrets that the run's inputs refer to."""

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
        self.recipe = agent.recipe
        self.step_manager = step_manager
        self.scope: RunScope = scope or RunScope.of_run(agent.recipe, inputs=inputs)
        self._rights = self.scope.rights
        self._services = self.scope.services
        self._clock = self._services.clock
        self.run_id = self.scope.run_id
        self.session_id = self.scope.session_id
        self.secrets = self.scope.secrets
        self.run_values: RunValues = RunValues(inputs or {}, self.scope.ids, self.secrets)
        self.inputs = self.run_values.inputs
        self.values = self.run_values.names
        self.progress: RunProgress = progress or RunProgress(agent.recipe.limits)
        self.metadata = self.progress.metadata
        self.recipe_runner = recipe_runner
        self.words: StrangersWords | None = None
        """Which strangers' words are where; None: nothing that the recipe reads has any."""
        self.memory = memory
        self.tools = NO_TOOLS if tools is None else tools

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
    def limits(self) -> Limits:
        """The recipe's own, from `metadata` as it is now.

        Raises:
            MetadataError: A limit of a wrong name or type.
        """
        return self.progress.limits

    @property
    def may_write(self) -> bool:
        """Whether the recipe, and each recipe around it, allows writes."""
        return self._rights.may_write

    def now(self) -> datetime:
        """By the clock of the run's services."""
        return self._clock.now()

    async def sleep(self, seconds: float) -> None:
        """By the `sleep` of the run's services."""
        await self._services.sleep(seconds)

    @property
    def blocking(self) -> BlockingCalls:
        """Calls synchronous tools: `blocking` of the run's services."""
        return self._services.blocking

    @property
    def beside(self) -> BlockingCalls:
        """Compute beside the event loop: `beside` of the run's services."""
        return self._services.beside

    def refusal(self, tool: ToolSpec) -> str | None:
        """A permission of that tool alone counts over `allow_write`."""
        missing = self._rights.missing(tool)
        if missing is None:
            return None
        # A tool may itself be called `write`: what is forbidden of it alone stays forbidden.
        said = super().refusal(tool) if missing == ALLOW_WRITE else None
        return said or (
            f"The recipe does not allow the tool '{tool.name}' (permissions: {missing})."
        )

    def needs_approval(self, tool: str, arguments: str) -> bool:
        """Whether a call of that tool with these arguments, as JSON text, waits for a person's
        consent.
        """
        found = self.tools.find(tool)
        return found is not None and self._rights.needs_approval(found.spec, arguments)

    def approval_rules(self, tool: str, arguments: str) -> tuple[CallRule, ...]:
        """Who may approve a call that needs approval; empty: anybody, alone."""
        found = self.tools.find(tool)
        return () if found is None else self._rights.approval_rules(found.spec, arguments)

    async def warn(self, code: str, message: str) -> None:
        """Record something odd that does not stop the run, once, and show it in the result."""
        warning = RunWarning(code=code, message=message)
        if not self.progress.add_warning(warning):
            return
        await self.scope.record_warning(warning, len(self.progress.warnings))


TellSteps: TypeAlias = Callable[[Iterable[StepExecution[object]]], None]
"""Takes the steps of a recipe that ended."""


class NestedResult(Struct, frozen=True, kw_only=True):
    """The outcome of a recipe that ran as a step."""

    output: object
    error: FailureInfo | None
    is_partial: bool = False
    """Whether it completed although optional steps, or items of its loops, failed."""
    words_of: WordsOf = ()
    """Whose words its output may hold, of those that strangers may have written."""


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
