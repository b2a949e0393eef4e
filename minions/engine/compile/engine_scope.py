"""The scope of the engine's own steps, which may also run recipes and ask people."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from attrs import frozen

from minions.contracts.executions import StepExecution
from minions.contracts.file_changes import RollbackReport
from minions.contracts.journal.facts import PlanLookup
from minions.contracts.plan_diffs import PlanDiff, PlanProposal
from minions.contracts.sandbox import ProgramAnswer
from minions.contracts.steps import StepScope
from minions.data.errors import FailureInfo
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue
from minions.data.schema import JsonSchema
from minions.engine.compile.opening_rights import MadeOf
from minions.recipe.expressions.values import Reference
from minions.recipe.kinds.plan_kind import KeptPlan, PlanFit
from minions.recipe.model import AgentRecipe
from minions.recipe.model_config import ModelConfig

T = TypeVar("T")


@frozen
class Default(FieldsRepr):
    """The answer that counts when nobody answers in time."""

    value: JsonValue = None
    is_given: bool = False


@frozen(kw_only=True)
class NestedOutcome(FieldsRepr):
    """How a recipe ended that ran within a step."""

    output: object
    error: FailureInfo | None
    """Why it failed; None: it completed."""
    executions: tuple[StepExecution[object], ...]
    """The executions of its steps, in order of their end."""


class ProgramCalls(ABC):
    """The calls of tools that the programs of one step make, in the order in which they come."""

    names: tuple[str, ...]
    """The functions of the tools that may be called, as `function_name` names them."""
    begun_at: datetime
    """When the step began, the same in each execution of the run."""
    seed: str
    """Where random numbers begin, the same in each execution of the run."""
    made: Sequence[tuple[str, str]]
    """Name and arguments, shortened, of each call so far."""

    @abstractmethod
    async def call(self, name: str, arguments: Mapping[str, JsonValue]) -> ProgramAnswer:
        """Carry out the next call, or replay it; what fails in it is for the program.

        Raises:
            StepFailedError: A decision is pending; it is one call too many (`too-many-tool-calls`);
                or it is not the call that was recorded at this place (`code-diverged`).
        """

    @abstractmethod
    def check_end(self) -> None:
        """Return if all recorded calls came.

        Raises:
            StepFailedError: `code-diverged`.
        """


async def render_beside(
    scope: StepScope, references: Sequence[Reference], work: Callable[[], T]
) -> T:
    """As `EngineScope.beside`; at once in any other scope."""
    return await scope.beside(references, work) if isinstance(scope, EngineScope) else work()


class EngineScope(StepScope):
    """A step scope that also runs recipes and asks people."""

    @abstractmethod
    async def beside(self, references: Sequence[Reference], work: Callable[[], T]) -> T:
        """What `work()` gives, which reads these values: in a thread where they are large.

        Raises:
            Exception: Whatever `work` raises.
        """

    @abstractmethod
    async def call_filled_tool(
        self, name: str, arguments: Mapping[str, JsonValue], filled: Sequence[str]
    ) -> JsonValue:
        """As `call_tool`, with arguments of which a model made some.

        Args:
            filled: The names of the parameters that a model filled in.
        Raises:
            StepFailedError: As of `call_tool`.
        """

    @abstractmethod
    def program_calls(self, names: Sequence[str], *, by_model: bool) -> ProgramCalls:
        """The calls of the step's programs.

        Args:
            names: Of the tools that they may call.
            by_model: Whether a model wrote them: then no argument names a secret.
        """

    @abstractmethod
    async def run_recipe(
        self, recipe: AgentRecipe, inputs: Mapping[str, JsonValue], made_of: MadeOf
    ) -> object:
        """Run the recipe of the step, and return its output.

        Args:
            made_of: By input: the inputs of the step's recipe that its value is made of.
        Raises:
            UsageError: An input that the recipe does not take.
            StepFailedError: The recipe failed.
        """

    @abstractmethod
    async def try_recipe(
        self,
        recipe: AgentRecipe,
        inputs: Mapping[str, JsonValue],
        place: str,
        *,
        model: ModelConfig | None,
        made_of: MadeOf,
        tell: Callable[[Sequence[StepExecution[object]]], None] | None = None,
    ) -> NestedOutcome:
        """Run a recipe, and return how it ended.

        Args:
            tell: Is given the executions of its steps, also where this raises.
            made_of: As of `run_recipe`.
            place: Unique in the step, and the same when the step is entered again.
            model: Over the model settings of the step's recipe; None: those.
        Raises:
            UsageError: An input that the recipe does not take.
            StepFailedError: A decision is pending, or a limit of the run is reached.
        """

    @abstractmethod
    def show_plan(self, steps: Sequence[Mapping[str, JsonValue]]) -> None:
        """Put the steps of the plan into the execution of this step, as `StepExecution.plan`."""

    @abstractmethod
    async def roll_back(self, places: Sequence[str]) -> Sequence[RollbackReport]:
        """Take the files back that recipes changed which ran at these places, in this order.

        Raises:
            EnvironmentRefusedError: `undo-unavailable`; nobody restores files here.
        """

    @abstractmethod
    async def ask_person(
        self,
        text: str,
        *,
        form: JsonSchema | None,
        default: Default,
        timeout_s: float | None,
        place: str = "ask",
        plan: PlanProposal | None = None,
    ) -> JsonValue:
        """Ask a person, and return the answer.

        Args:
            form: JSON Schema of the answer; None: text.
            default: Counts if nobody answers in time.
            timeout_s: How long to wait, in seconds; None: without a limit.
            place: Unique in the step, where it asks several questions.
            plan: The plan that the question is about; None: it is about something else.
        Raises:
            StepFailedError: There is no answer yet (`needs-decision`), or none came in time
                (`ask-timeout`).
        """

    @abstractmethod
    async def look_up_plan(
        self,
        task: str,
        tool: str,
        fit: Callable[[KeptPlan], PlanFit],
        *,
        place: str,
    ) -> PlanLookup:
        """Look for a plan of an earlier run of the recipe, by the same user and in the same
        project, and record what came of it: the same when the step is entered again.

        Args:
            tool: As `RecipePlanner.checking_tool`.
            fit: Called on a thread with one plan after the other, until one serves the task.
            place: Unique in the step.
        Raises:
            JournalError: The journal cannot be read, or refuses the fact.
        """

    @abstractmethod
    async def refuse_plan(self, text: str, *, place: str) -> None:
        """Record, for people, why a plan that was found is not used after all."""

    @abstractmethod
    async def record_new_plan(self, diff: PlanDiff, *, place: str) -> None:
        """Record that a plan takes the place of one that failed, where nobody is asked.

        Args:
            place: Unique in the step, and the same when the step is entered again.
        """
