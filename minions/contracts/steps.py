"""Units of work. Subclass `Step` for a model loop of your own, `PythonStep` for code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from attrs import field, frozen

from minions.contracts.completion import CompletionCriteria, StepCompletionChain
from minions.contracts.instructions import OutputInstructions, T_co
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import Message, MessageBundle, MessageRole, ToolCallRequest
from minions.contracts.verdicts import CompletionMode

if TYPE_CHECKING:
    from minions.contracts.context import RunContext
    from minions.contracts.retry import RetryConfig

__all__ = ["DefaultStep", "PythonStep", "Step", "StepScope"]

U = TypeVar("U")


def _as_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


def _default_criteria(output: OutputInstructions[object] | None) -> CompletionCriteria:
    mode = CompletionMode.SIGNAL if output is None else CompletionMode.STRUCTURED
    return CompletionCriteria(mode=mode)


def _no_metadata() -> Mapping[str, object]:
    return {}


class Step(ABC, Generic[T_co]):
    """A unit of work: everything but `id` has a default. T_co is the type of its output."""

    @property
    @abstractmethod
    def id(self) -> str:
        """Unique in its graph."""

    @property
    def description(self) -> str:
        """For people; never sent to a model."""
        return ""

    @property
    def goal(self) -> Message | None:
        """The aim, in the first prompt of this step and nowhere else."""
        return None

    @property
    def system_prompt(self) -> Message | None:
        """How to behave, for this step only."""
        return None

    @property
    def available_tools(self) -> frozenset[str]:
        """Only these reach the model."""
        return frozenset()

    @property
    def metadata(self) -> Mapping[str, object]:
        """Limits for this step (`max_model_calls_per_step` …, both spellings) and what you like."""
        return {}

    @property
    def completion_criteria(self) -> CompletionCriteria:
        """When the step is done, as data; `completion_chain` overrules it.

        Unless you say otherwise: `structured` where `output` is declared, else `signal`.
        """
        return _default_criteria(self.output)

    @property
    def completion_chain(self) -> StepCompletionChain | None:
        """Your own chain; None: the default chain for `completion_criteria`."""
        return None

    @property
    def output(self) -> OutputInstructions[T_co] | None:
        """The declared output: the step is COMPLETED with a value that fits it, or not at all."""
        return None

    @property
    def decision_tool(self) -> ToolCallRequest | None:
        """With several successors: a tool whose result names the next step."""
        return None

    @property
    def is_optional(self) -> bool:
        """Its failure does not stop the run."""
        return False

    @property
    def tool_failure(self) -> str:
        """`fail` or `report`: what an exception left over after the retries does."""
        return "fail"

    @property
    def shares_conversation(self) -> bool:
        """Its prompt goes on with what was said in the steps before that share it, too."""
        return False

    @property
    def retry(self) -> RetryConfig | None:
        """How its model and tool calls are tried again; None: as the recipe says."""
        return None

    @property
    def version(self) -> str:
        """Change it when your code changes what a recorded run would do."""
        return "1"

    def messages(self, view: RunContext) -> Sequence[Message]:
        """What this step puts to the model first, after the agent's own prompt and goal."""
        return [message for message in (self.system_prompt, self.goal) if message is not None]


@frozen(kw_only=True)
class DefaultStep(Step[T_co]):
    """A step from its parts; loops until a link of the chain decides, as in the guide."""

    id: str
    bundle: MessageBundle = field(default=MessageBundle(), alias="messages")
    """The step's messages, in the order given."""
    available_tools: frozenset[str] = field(default=frozenset(), converter=_as_names)
    description: str = ""
    metadata: Mapping[str, object] = field(factory=_no_metadata)
    output: OutputInstructions[T_co] | None = None
    completion_criteria: CompletionCriteria = field()
    """Default: `structured` where `output` is declared, else `signal`."""
    completion_chain: StepCompletionChain | None = None
    decision_tool: ToolCallRequest | None = None
    is_optional: bool = False
    tool_failure: str = "fail"
    shares_conversation: bool = False
    retry: RetryConfig | None = None
    version: str = "1"

    @completion_criteria.default
    def _criteria(self) -> CompletionCriteria:
        return _default_criteria(self.output)

    @property
    def goal(self) -> Message | None:
        """The first GOAL message of the bundle."""
        return self.bundle.first(MessageRole.GOAL)

    @property
    def system_prompt(self) -> Message | None:
        """The first SYSTEM message of the bundle."""
        return self.bundle.first(MessageRole.SYSTEM)

    def messages(self, view: RunContext) -> Sequence[Message]:
        """The whole bundle, in the order given."""
        return self.bundle.messages


class StepScope(ABC):
    """What a Python step may do: everything it does through here is journalled."""

    @property
    @abstractmethod
    def context(self) -> RunContext:
        """The run: inputs, values of earlier steps, limits."""

    def now(self) -> datetime:
        """The time of day by the run's clock, in UTC with its zone."""
        return self.context.now()

    async def sleep(self, seconds: float) -> None:
        """Wait; the step's timeout and a cancelled run end it at once."""
        await self.context.sleep(seconds)

    @abstractmethod
    async def call_model(self, messages: Iterable[Message] | str) -> str:
        """One fresh model call; its text.

        Raises:
            StepFailedError: The call failed for good; let it pass and the step is FAILED.
        """

    @abstractmethod
    async def ask_model(
        self, messages: Iterable[Message] | str, output: OutputInstructions[U]
    ) -> U:
        """One fresh model call with a declared output; repaired once, then refused.

        Raises:
            StepFailedError: As `call_model`, or the output does not fit.
        """

    @abstractmethod
    async def call_tool(self, name: str, arguments: Mapping[str, JsonValue]) -> JsonValue:
        """One tool call; its result as data.

        Raises:
            StepFailedError: Unknown tool, arguments that do not fit, or the tool failed for good.
        """

    @abstractmethod
    async def call_recipe(self, name: str, inputs: Mapping[str, JsonValue]) -> JsonValue:
        """Another recipe, run within this step; its output as data.

        Raises:
            NotFoundError, UsageError: No such recipe, or inputs that it does not take.
            StepFailedError: It failed.
        """


class PythonStep(Step[T_co]):
    """A step whose work is code."""

    @property
    def is_instant(self) -> bool:
        """Touches nothing outside and takes no time: its end is the only row it needs."""
        return False

    @abstractmethod
    async def run(self, scope: StepScope) -> T_co:
        """Do the work; what is returned is the step's output.

        Raises:
            Exception: Anything makes the step FAILED, with its text.
        """
