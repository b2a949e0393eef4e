"""The run as steps, executors, tools and completion links see it, its limits, and the executors of
calls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

import attrs
from attrs import field, frozen
from attrs.validators import ge, gt, optional

from minions.contracts.secrets import Secrets
from minions.data.errors import MetadataError, near_names
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from returns.result import Result

    from minions.contracts.calls import (
        ChatModel,
        DeltaSink,
        ModelCall,
        ModelCallResponse,
        ModelFailure,
        Prompt,
        ToolCall,
        ToolCallResponse,
        ToolFailure,
    )
    from minions.contracts.file_changes import ChangeRecorder
    from minions.contracts.retry_config import RetryConfig
    from minions.contracts.runtime import BlockingCalls
    from minions.contracts.session_views import ModelMemory
    from minions.contracts.tools import (
        AgentCalls,
        ReportProgress,
        StoreBlob,
        Toolbox,
        ToolQuestions,
        ToolSpec,
    )


@frozen(kw_only=True)
class Limits(FieldsRepr):
    """The limits of a step and of a run. Read once per step from `AgentContext.metadata`."""

    max_model_calls_per_step: int = field(default=10, validator=ge(1))
    """Logical model calls of one step: repairs count, transport retries do not."""
    max_tool_calls_per_answer: int = field(default=100, validator=ge(1))
    """Tool calls of one answer that are made; the model is told of the others."""
    max_tool_calls_per_step: int = field(default=500, validator=ge(1))
    """Tool calls of one step that are made, of all its answers together."""
    max_tool_call_retries: int = field(default=2, validator=ge(0))
    """Extra attempts per tool call; 0 means one attempt."""
    sequential_tool_calls: bool = False
    """Execute the tool calls of one answer one after the other instead of in parallel."""
    allow_repeated_steps: bool = False
    """Whether a transition graph may execute a step more than once; needs `max_steps`."""
    max_steps: int | None = field(default=None, validator=optional(ge(1)))
    """Step executions of the whole run; None: unlimited."""
    max_model_calls: int | None = field(default=None, validator=optional(ge(1)))
    """Logical model calls of the whole run; None: unlimited."""
    max_tokens: int | None = field(default=None, validator=optional(ge(1)))
    """Tokens of the whole run, input and output together; None: unlimited."""
    max_cost_usd: float | None = field(default=None, validator=optional(gt(0)))
    """US dollars of the whole run; None: unlimited. With a limit, a model without
    a known price is not called.
    """
    timeout_s: float | None = field(default=None, validator=optional(gt(0)))
    """Seconds of wall time: of the run in the run's limits, of the
    step in a step's; None: unlimited.
    """
    tool_timeout_s: float = field(default=120.0, validator=gt(0))
    """Seconds of wall time for one attempt at a tool call."""
    max_tool_result_bytes: int = field(default=1_048_576, validator=ge(1))
    """UTF-8 bytes of a tool result as JSON; a longer one is an error."""
    max_tool_result_characters: int = field(default=40_000, validator=ge(100))
    """Characters of a tool result that a model reads at once; it reads the rest in pieces."""

    @classmethod
    def of_step(cls, metadata: Mapping[str, object], *, base: Limits) -> Limits:
        """The limits of one step: those among `metadata` over `base`.

        Raises:
            MetadataError: As for `from_metadata`, or a limit that only a whole run can have.
        """
        if not metadata:
            return base
        for key in metadata:
            if snake_case(key) in _OF_RUNS:
                raise MetadataError(
                    f"A step's metadata gives '{key}', which limits a whole run. Put it into the "
                    "recipe's `limits` or the context's metadata."
                )
        return cls.from_metadata(metadata, base=base)

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object], *, base: Limits | None = None) -> Limits:
        """The limits among `metadata` over `base`. camelCase keys work too; other keys are
        ignored.

        Raises:
            MetadataError: A limit of the wrong type or range, a limit given in both spellings, or a
                key that is nearly a limit's name.
        """
        if not metadata:
            return base or _DEFAULTS
        items, kinds = tuple(metadata.items()), tuple(map(type, metadata.values()))
        read = _known_limits if _NUMBERS.issuperset(kinds) else _limits_among
        return read(items, kinds, base or _DEFAULTS)


_DEFAULTS: Final = Limits()
_NUMBERS: Final = frozenset((bool, int, float, type(None)))
"""The types of values of limits; what else stands in the metadata is not kept here."""


def _limits_among(
    items: tuple[tuple[str, object], ...], _kinds: tuple[type, ...], base: Limits
) -> Limits:
    """The limits among these metadata over `base`.

    Args:
        _kinds: The types of the values, which tell `True` from `1` where the answer is kept.
    """
    changes: dict[str, object] = {}
    for key, value in items:
        name = snake_case(key)
        if name not in _LIMIT_KINDS:
            _refuse_near_miss(key, name)
            continue
        if name in changes:
            raise MetadataError(f"metadata gives '{name}' twice, as '{key}' too. Keep one.")
        changes[name] = _checked_limit(key, name, value)
    try:
        return attrs.evolve(base, **changes)  # type: ignore[arg-type]  # checked by _checked_limit
    except ValueError as error:
        raise MetadataError(f"metadata: {error}.") from error


_known_limits: Final = lru_cache(maxsize=256)(_limits_among)
"""Every run and step of a recipe reads the same few."""
_OF_RUNS: Final = (
    "max_steps",
    "max_model_calls",
    "max_tokens",
    "max_cost_usd",
    "allow_repeated_steps",
)
_LIMIT_KINDS: Final[Mapping[str, str]] = {
    attribute.name: str(attribute.type) for attribute in attrs.fields(Limits)
}


def snake_case(name: str) -> str:
    """`maxModelCallsPerStep` → `max_model_calls_per_step`."""
    if name.islower():
        return name
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def _refuse_near_miss(key: str, name: str) -> None:
    near = near_names(name, _LIMIT_KINDS, limit=1)
    if near and name.startswith(("max_", "allow_", "sequential_")):
        raise MetadataError(
            f"metadata key '{key}' is not a limit. Did you mean '{near[0]}'?", suggestions=near
        )


def _checked_limit(key: str, name: str, value: object) -> object:
    kind = _LIMIT_KINDS[name]
    if value is None and "None" in kind:
        return value
    if kind.startswith("bool"):
        fits, expected = isinstance(value, bool), "true or false"
    elif kind.startswith("int"):
        fits, expected = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    else:
        fits, expected = (
            isinstance(value, int | float) and not isinstance(value, bool),
            "a number of dollars" if name.endswith("_usd") else "a number of seconds",
        )
    if not fits:
        raise MetadataError(
            f"metadata['{key}'] is {value!r} ({type(value).__name__}); {expected} was expected."
        )
    return value


AnswerLater: TypeAlias = (
    "Callable[[ChatModel, Prompt], Awaitable[Result[ModelCallResponse, ModelFailure]]]"
)
"""Gets the answer of a model to a prompt."""


class RunContext(ABC):
    """The run as a step, an executor or a tool sees it; the engine's
    `AgentContext` implements it.
    """

    retry: RetryConfig | None = None
    """How calls of the step are tried again; None: outside of a step, or by the defaults."""
    answer_later: AnswerLater | None = None
    """How the present model call is answered where it may wait for a batch of its provider; None:
    its model is asked at once."""

    @property
    @abstractmethod
    def run_id(self) -> str:
        """The run's id, `run_…`."""

    @property
    def border_seed(self) -> str:
        """What the borders of data in prompts are made from; here the run's id."""
        return self.run_id

    has_older_borders: bool = False
    """Whether prompts are as earlier versions wrote them: to find what they recorded."""

    @property
    @abstractmethod
    def session_id(self) -> str:
        """The session's id, `ses_…`, which runs of one conversation share."""

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, JsonValue]:
        """The run's inputs: validated, with defaults filled in."""

    @property
    @abstractmethod
    def values(self) -> Mapping[str, JsonValue]:
        """The names that templates may use: `inputs`, and outputs of ended
        steps by id and `save_as`.
        """

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """The limits in force: the step's over the run's over the defaults."""

    @property
    @abstractmethod
    def metadata(self) -> Mapping[str, object]:
        """The metadata that the application attached to the run."""

    @property
    @abstractmethod
    def tools(self) -> Toolbox:
        """All tools of the run; a step may be allowed fewer."""

    @property
    @abstractmethod
    def memory(self) -> ModelMemory:
        """The conversations of this run."""

    @property
    def step_id(self) -> str:
        """The id of the step that this context belongs to; empty outside of a step."""
        return ""

    @property
    def may_write(self) -> bool:
        """Whether tools that declare a write may be called."""
        return False

    def now(self) -> datetime:
        """The time of day of the run's clock, in UTC with its zone."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Wait by the run's `sleep`; cancelling the step ends it at once."""
        import asyncio  # here: checking a recipe needs no event loop

        await asyncio.sleep(seconds)

    @property
    def blocking(self) -> BlockingCalls | None:
        """Calls synchronous tools beside the event loop; None: each on a thread of its own."""
        return None

    @property
    def beside(self) -> BlockingCalls | None:
        """Compute beside the event loop; None: all is computed at once."""
        return None

    def change_recorder(self, key: str) -> ChangeRecorder | None:  # for subclasses
        """Records the changes of files that the tool call of that key makes; None: they cannot be
        recorded.
        """
        return None

    @property
    def recorded_examples(self) -> Sequence[tuple[str, JsonValue]]:
        """Questions and answers of earlier runs that this step's model is shown, in order: pinned
        when the run started.
        """
        return ()

    @property
    def agents(self) -> AgentCalls | None:
        """Runs agents for the tool call that is being made; None: outside of one."""
        return None

    @property
    def questions(self) -> ToolQuestions | None:
        """Asks a person for the tool call that is being made; None: outside of one."""
        return None

    def progress_reporter(self, key: str, tool: str) -> ReportProgress | None:  # for subclasses
        """Publishes the progress of the tool call of that key; None: nobody listens."""
        return None

    @property
    def store_blob(self) -> StoreBlob | None:
        """Stores bytes with the run; None: there is no run."""
        return None

    @property
    def trace_headers(self) -> Mapping[str, str]:
        """Headers that join another process to the run's trace; empty: nothing is traced."""
        return {}

    def refusal(self, tool: ToolSpec) -> str | None:
        """Why the run may not call that tool, as a text for people; None: it may."""
        if not tool.is_write or self.may_write:
            return None
        return (
            f"The tool '{tool.name}' writes ({tool.effect.value}) and the recipe does not allow "
            "it. If it should, set `permissions: {allow_write: true}`."
        )

    @property
    def secrets(self) -> Secrets:
        """The declared secrets of the run, for the executor of tool calls."""
        return Secrets()

    @property
    def delta_sink(self) -> DeltaSink | None:
        """Where fragments of a streamed answer go; None: nobody listens,
        so answers are not streamed.
        """
        return None


class ModelCallExecutor(ABC):
    """Executes one attempt at a model call."""

    @abstractmethod
    async def execute(
        self, call: ModelCall, context: RunContext
    ) -> Result[ModelCallResponse, ModelFailure]:
        """Execute one attempt. Retries, memory and the journal are the caller's task.

        Memory is as it was before the first attempt, so every attempt sends an identical prompt.

        Returns:
            The answer, or a failure as a value; only cancellation raises.
        """


class ToolCallExecutor(ABC):
    """Executes one attempt at a tool call."""

    @abstractmethod
    async def execute(
        self, call: ToolCall, context: RunContext
    ) -> Result[ToolCallResponse, ToolFailure]:
        """Execute one attempt. Never raises for an error of the tool;
        cancellation passes through.
        """


ModelCallExecutorFactory: TypeAlias = Callable[["ModelCall", "RunContext"], ModelCallExecutor]
"""Makes the executor of one model call, given the context of the run that it belongs to."""
ToolCallExecutorFactory: TypeAlias = Callable[["ToolCall", "RunContext"], ToolCallExecutor]
"""Makes the executor of one tool call, given the context of the run that it belongs to."""
