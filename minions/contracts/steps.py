"""Steps: the units of work, the graph that links them, and the cache of what they found.

Subclass `Step` for a model loop of your own, `PythonStep` for code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Final, Generic, TypeVar, get_type_hints

from attrs import Factory, field, frozen

from minions.contracts.completion import UNDECLARED, CompletionCriteria, StepCompletionChain
from minions.contracts.executions import CompletionMode
from minions.contracts.instructions import HistoryWindow, OutputInstructions, T_co
from minions.contracts.messages import Message, MessageBundle, MessageRole, ToolCallRequest
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue

if TYPE_CHECKING:
    from minions.contracts.context import RunContext
    from minions.contracts.retry_config import RetryConfig


class StepGraph(ABC):
    """An immutable graph of steps, validated when it is built.

    A *transition graph* selects one successor of the step that just ended; a *dependency graph*
    starts every step whose dependencies are done.
    """

    @property
    @abstractmethod
    def steps(self) -> tuple[Step[object], ...]:
        """All steps, in list order; never empty."""

    @abstractmethod
    def find(self, step_id: str) -> Step[object] | None:
        """The step of that id; None when there is none."""

    @abstractmethod
    def possible_next_steps(self, step: Step[object]) -> tuple[Step[object], ...]:
        """The steps that may follow `step`, in the order of the edges; empty at an end."""


U = TypeVar("U")


def _as_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


def _sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _default_criteria(output: OutputInstructions[object] | None) -> CompletionCriteria:
    return UNDECLARED if output is None else CompletionCriteria(mode=CompletionMode.STRUCTURED)


@frozen(kw_only=True)
class ToolSearch(FieldsRepr):
    """How the model of a step comes to its tools: it is offered all of them, or a few and
    `find_tools`, which finds the others by words. What it may call is the same.
    """

    is_on: bool | None = None
    """None: where there are more than 12 tools, or more than 3 with more than 2,000 tokens of texts
    together, estimated at four characters each.
    """
    always: tuple[str, ...] = field(default=(), converter=_sorted_names)
    """Names of tools that are offered from the first request on, sorted."""
    caller: bool = False
    """Whether it is also offered the tools that the caller of the run brings."""


USUAL_SEARCH: Final = ToolSearch()
"""By the number of the tools and the length of their texts."""


def _no_metadata() -> Mapping[str, object]:
    return {}


class Step(ABC, Generic[T_co]):
    """A unit of work. Everything but `id` has a default; `T_co` is the type of its output."""

    is_code: ClassVar[bool] = False
    """Whether Python code does its work, as in a `PythonStep`; else a model is asked."""

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
        """The aim of the step: part of the first prompt of this step only."""
        return None

    @property
    def system_prompt(self) -> Message | None:
        """The system message of this step only."""
        return None

    @property
    def available_tools(self) -> frozenset[str]:
        """Names of the tools that the model is offered."""
        return frozenset()

    @property
    def tool_search(self) -> ToolSearch:
        """Whether its model finds tools by `find_tools` instead of being offered all of them."""
        return USUAL_SEARCH

    @property
    def metadata(self) -> Mapping[str, object]:
        """Limits of this step (`max_model_calls_per_step` …, in both spellings)
        and values of your own.
        """
        return {}

    @property
    def completion_criteria(self) -> CompletionCriteria:
        """When the step is complete, as data; `completion_chain` takes precedence.

        Default: `structured` where `output` is declared, else `signal`: model calls continue until
        a link of the completion chain decides, or `max_model_calls_per_step` are made.
        """
        return _default_criteria(self.output)

    @property
    def completion_chain(self) -> StepCompletionChain | None:
        """A completion chain of your own; None: the default chain for `completion_criteria`."""
        return None

    @property
    def output(self) -> OutputInstructions[T_co] | None:
        """The declared output; the step completes only with a value
        that fits it. None: any text.
        """
        return None

    @property
    def decision_tool(self) -> ToolCallRequest | None:
        """With several successors: a tool call whose result names the next
        step. None: the model chooses.
        """
        return None

    @property
    def is_optional(self) -> bool:
        """Whether the run continues if the step fails."""
        return False

    @property
    def tool_failure(self) -> str:
        """What an exception left after the retries of a tool call does: `fail` the step,
        or `report` it to the model.
        """
        return "fail"

    @property
    def at_limit(self) -> str:
        """What the step does when its model calls, or the run's tokens or dollars, are used up.

        `fail`, or `answer`: one more call, without tools, answers from what there is; the output is
        then marked partial.
        """
        return "fail"

    @property
    def shares_conversation(self) -> bool:
        """Whether its prompt starts with the messages of earlier steps that
        share the conversation too.
        """
        return False

    @property
    def history(self) -> HistoryWindow | None:
        """The bound of its prompts where it shares a conversation; None: there is none, and a
        prompt that is longer than the model takes fails.
        """
        return None

    @property
    def retry(self) -> RetryConfig | None:
        """How its model and tool calls are retried; None: as the recipe says."""
        return None

    @property
    def caches(self) -> bool:
        """Whether an equal question may be answered from the step cache: `cache: true` in a
        recipe.
        """
        return False

    @property
    def version(self) -> str:
        """Version of the step's code. Change it when the code would treat
        a recorded run differently.
        """
        return "1"

    def messages(self, view: RunContext) -> Sequence[Message]:
        """The messages that open the step's prompt, after the agent's
        own system message and goal.
        """
        return [message for message in (self.system_prompt, self.goal) if message is not None]


@frozen(kw_only=True)
class DefaultStep(FieldsRepr, Step[T_co]):
    """A step built from its parts; loops until a link of its completion chain decides."""

    id: str
    bundle: MessageBundle = field(default=MessageBundle(), alias="messages")
    """The step's messages, in the order given."""
    available_tools: frozenset[str] = field(default=frozenset(), converter=_as_names)
    description: str = ""
    metadata: Mapping[str, object] = field(factory=_no_metadata)
    output: OutputInstructions[T_co] | None = None
    completion_criteria: CompletionCriteria = field(
        default=Factory(lambda step: _default_criteria(step.output), takes_self=True)
    )
    """Default: as `Step.completion_criteria`."""
    completion_chain: StepCompletionChain | None = None
    decision_tool: ToolCallRequest | None = None
    is_optional: bool = False
    tool_failure: str = "fail"
    at_limit: str = "fail"
    shares_conversation: bool = False
    history: HistoryWindow | None = None
    retry: RetryConfig | None = None
    version: str = "1"
    tool_search: ToolSearch = USUAL_SEARCH

    @property
    def goal(self) -> Message | None:
        return self.bundle.first(MessageRole.GOAL)

    @property
    def system_prompt(self) -> Message | None:
        return self.bundle.first(MessageRole.SYSTEM)

    def messages(self, view: RunContext) -> Sequence[Message]:
        return self.bundle.messages


class StepScope(ABC):
    """What a Python step may do; all of it is recorded in the journal."""

    @property
    @abstractmethod
    def context(self) -> RunContext:
        """The run: inputs, outputs of earlier steps, limits."""

    def now(self) -> datetime:
        """The time of day of the run's clock, in UTC with its zone."""
        return self.context.now()

    async def sleep(self, seconds: float) -> None:
        """Wait that many seconds; the step's timeout and cancelling the run end it at once."""
        await self.context.sleep(seconds)

    @abstractmethod
    async def call_model(self, messages: Iterable[Message] | str) -> str:
        """Make one model call in a fresh conversation; returns the text of the answer.

        Raises:
            StepFailedError: The call failed for good. Uncaught, it ends the step as FAILED.
        """

    @abstractmethod
    async def ask_model(
        self, messages: Iterable[Message] | str, output: OutputInstructions[U]
    ) -> U:
        """Make one model call with a declared output, in a fresh conversation; one repair is
        allowed.

        Raises:
            StepFailedError: As for `call_model`, or the repaired output does not fit either.
        """

    @abstractmethod
    async def call_tool(self, name: str, arguments: Mapping[str, JsonValue]) -> JsonValue:
        """Make one tool call; returns its result as JSON.

        Raises:
            StepFailedError: Unknown tool, arguments that do not fit, or the tool failed for good.
        """

    @abstractmethod
    async def call_recipe(self, name: str, inputs: Mapping[str, JsonValue]) -> JsonValue:
        """Run another recipe within this step; returns its output as JSON.

        Raises:
            NotFoundError, UsageError: No such recipe, or inputs that it does not accept.
            StepFailedError: The recipe failed.
        """


class PythonStep(Step[T_co]):
    """A step whose work is done by code."""

    is_code: ClassVar[bool] = True

    @property
    def is_instant(self) -> bool:
        """Whether the step has no side effects and takes no time: only its end is recorded."""
        return False

    @property
    def sandbox_name(self) -> str | None:
        """The sandbox that holds its code, for the record; None: it runs in this process."""
        return None

    @property
    def returned_type(self) -> object:
        """The type of the output: a resumed run converts recorded JSON to it. None: it stays JSON.

        Default: the return annotation of `run`, where it can be resolved.
        """
        try:
            hint = get_type_hints(type(self).run).get("return")
        except (NameError, TypeError):  # what it names is imported for the checker only
            return None
        return None if isinstance(hint, TypeVar) else hint

    @abstractmethod
    async def run(self, scope: StepScope) -> T_co:
        """Do the work; the return value is the step's output.

        Raises:
            Exception: Any exception ends the step as FAILED, with its text.
        """


@frozen(kw_only=True)
class CachedStep(FieldsRepr):
    """The cached output of a step that COMPLETED."""

    output: JsonValue
    run_id: str
    """The run that executed the step."""
    created_at: datetime
    """When the output was stored, in UTC."""


class StepCache(ABC):
    """Step outputs by a hash of everything they depend on; shared by runs, recipes and
    processes.

    A cache may forget any entry at any time, and a run works without it.
    """

    @abstractmethod
    async def get(self, key: str) -> CachedStep | None:
        """The entry last stored under that key; None: there is none.

        Raises:
            JournalError: The cache cannot be read now; the step is then executed.
        """

    @abstractmethod
    async def put(self, key: str, entry: CachedStep) -> None:
        """Store `entry`, replacing an earlier one.

        Args:
            key: 64 hex digits.
        Raises:
            JournalError: The cache cannot be written now; nothing was stored.
        """

    async def forget_runs(self, run_ids: Collection[str]) -> int:
        """Delete what these runs executed; returns the number of entries.

        Raises:
            JournalError: The cache cannot be written now; nothing was deleted.
        """
        return 0

    async def clear(self) -> int:
        """Delete all entries; returns their number.

        Raises:
            JournalError: The cache cannot be written now; nothing was deleted.
        """
        return 0

    async def aclose(self) -> None:
        """Close files and connections; a later call opens them again."""
