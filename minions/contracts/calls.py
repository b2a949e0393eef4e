"""Model calls and tool calls: what is asked, what comes back, who carries them out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from attrs import field, frozen

from minions.contracts.errors import FailureInfo
from minions.contracts.instructions import (
    OutputFailure,
    OutputInstructions,
    OutputMode,
    OutputRequest,
)
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import Message, TokenUsage, ToolCallRequest, as_messages
from minions.contracts.tools import ToolSpec

if TYPE_CHECKING:
    from returns.result import Result

__all__ = [
    "CallOrigin",
    "CallStatus",
    "ChatModel",
    "DeltaSink",
    "Failure",
    "ModelCall",
    "ModelCallResponse",
    "ModelCapabilities",
    "ModelDelta",
    "ModelFailure",
    "ModelOptions",
    "OutputFailure",
    "OutputInstructions",
    "OutputMode",
    "OutputParser",
    "OutputRequest",
    "Prompt",
    "StepCompletionInstruction",
    "ToolCall",
    "ToolCallResponse",
    "ToolFailure",
]

T = TypeVar("T")


# --- what is asked of a model -------------------------------------------------------------


@frozen(kw_only=True)
class ModelOptions:
    """Sampling and time limits of one call; None leaves it to the provider."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    timeout_s: float = 120.0
    """The whole call, first byte to last."""
    idle_timeout_s: float = 60.0
    """Longest silence while the answer comes in."""


def _as_specs(specs: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    return tuple(specs)


@frozen
class Prompt:
    """All that one model call sends."""

    messages: tuple[Message, ...] = field(default=(), converter=as_messages)
    """Oldest first."""
    options: ModelOptions = field(factory=ModelOptions)
    instructions: OutputInstructions[object] | None = None
    """The declared output: told in words, whether or not the answer is constrained."""
    tools: tuple[ToolSpec, ...] = field(default=(), kw_only=True, converter=_as_specs)
    output_request: OutputRequest | None = field(default=None, kw_only=True)
    """Set when this answer is constrained to the schema."""


@frozen(kw_only=True)
class ModelCapabilities:
    """What a model's server can be trusted with."""

    output_mode: OutputMode | None = OutputMode.JSON_SCHEMA
    """How to constrain an answer; None: words only."""
    tools_with_schema: bool = False
    """Off by default: several servers drop tool calls when a schema is set too."""


# --- what comes back -----------------------------------------------------------------------


@frozen(kw_only=True)
class StepCompletionInstruction:
    """The model's own word on whether the step is done."""

    is_complete: bool = False
    is_more_calls_needed: bool = False
    next_step_id: str | None = None
    failure_reason: str | None = None
    is_non_recoverable: bool = False


@frozen(kw_only=True)
class ModelCallResponse:
    """One answer of a model."""

    message: Message
    usage: TokenUsage = field(factory=TokenUsage)
    finish_reason: str | None = None
    model_name: str | None = None
    """As the server named itself."""
    provider: str | None = None
    first_token_latency_ms: float | None = None
    completion_instruction: StepCompletionInstruction | None = None

    @property
    def text(self) -> str | None:
        """What the model said; None when it only called tools."""
        return self.message.content

    @property
    def tool_calls(self) -> tuple[ToolCallRequest, ...]:
        """In the order the model asked."""
        return self.message.tool_calls


@frozen(kw_only=True)
class ToolCallResponse:
    """What one tool call gave."""

    content: str
    """What the model reads."""
    value: JsonValue = None
    """The result as data, for templates."""
    is_error: bool = False
    """The content tells the model what to mend."""


@frozen(kw_only=True)
class ModelFailure:
    """Why a model call gave no answer."""

    code: str
    """`model-unreachable`, `model-timeout`, `rate-limited`, `auth-rejected`, `bad-request`,
    `empty-response`, `malformed-response`, `output-truncated`, `refused`, `content-filtered` …"""
    message: str
    is_retryable: bool = False
    retry_after_s: float | None = None
    usage: TokenUsage = field(factory=TokenUsage)
    """Paid for all the same, where the server said so."""
    suggestions: tuple[str, ...] = ()

    def info(self) -> FailureInfo:
        """The reportable form."""
        return FailureInfo(code=self.code, message=self.message, suggestions=self.suggestions)


@frozen(kw_only=True)
class ToolFailure:
    """Why a tool call gave no result."""

    code: str
    """`unknown-tool`, `bad-arguments`, `tool-error`, `tool-failed`, `tool-timeout`,
    `permission-denied`, `tool-result-too-large`, `tool-result-not-json` …"""
    message: str
    is_retryable: bool = False
    is_mendable: bool = False
    """The model can mend it, so its text goes to the model whatever the policy."""
    suggestions: tuple[str, ...] = ()

    def info(self) -> FailureInfo:
        """The reportable form."""
        return FailureInfo(code=self.code, message=self.message, suggestions=self.suggestions)


Failure: TypeAlias = ModelFailure | ToolFailure | OutputFailure


# --- calls as they stand in a step's record --------------------------------------------------


class CallOrigin(StrEnum):
    """Who wrote the arguments of a tool call."""

    MODEL = "model"
    """Nothing in them is replaced: what a model says may come from anybody."""
    STEP = "step"
    """The recipe or code of the application: markers of secrets mean the secrets."""


class CallStatus(StrEnum):
    """Where a call stands."""

    PENDING = "pending"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"


@frozen(kw_only=True)
class ModelCall:
    """One logical model call: repairs are calls of their own, transport retries are attempts."""

    key: str
    """Unique in the run: `step/visit/iteration/phase/turn`."""
    prompt: Prompt
    phase: str = "model"
    """`model`, `final` (constrained) or `repair`."""
    status: CallStatus = CallStatus.PENDING
    response: ModelCallResponse | None = None
    failure: ModelFailure | None = None
    retried_usage: TokenUsage = field(factory=TokenUsage)
    """Of failed attempts that were tried again, where the server counted."""
    attempts: int = 0
    started_at: datetime | None = None
    completed_at: datetime | None = None

    @property
    def usage(self) -> TokenUsage:
        """Of all attempts, failed ones too where the server counted."""
        last = self.response.usage if self.response is not None else TokenUsage()
        failed = self.failure.usage if self.failure is not None else TokenUsage()
        return self.retried_usage + last + failed


@frozen(kw_only=True)
class ToolCall:
    """One tool call."""

    key: str
    """Unique in the run: `step/visit/iteration/phase/turn/index`."""
    request: ToolCallRequest
    origin: CallOrigin = CallOrigin.MODEL
    effect_key: str | None = None
    """The idempotency key, where the call was begun in an earlier run; None: one of its own."""
    status: CallStatus = CallStatus.PENDING
    response: ToolCallResponse | None = None
    failure: ToolFailure | None = None
    attempts: int = 0
    started_at: datetime | None = None
    completed_at: datetime | None = None

    @property
    def name(self) -> str:
        """The tool's."""
        return self.request.name


# --- who carries them out ----------------------------------------------------------------------


@frozen(kw_only=True)
class ModelDelta:
    """A piece of a streamed answer. Best effort: shown, never stored."""

    content: str | None = None
    tool_call: Mapping[str, JsonValue] | None = None
    """A fragment as the provider sent it, with its `index`."""


DeltaSink: TypeAlias = Callable[[ModelDelta], None]
"""Takes each piece of a streamed answer; it returns at once."""


class ChatModel(ABC):
    """A model that answers prompts. The only thing a provider adapter must be."""

    @property
    def name(self) -> str:
        """`provider/model`, as it is shown in every run that uses it."""
        return type(self).__name__

    @property
    def base_url(self) -> str | None:
        """Of the server that answers, for its price; None: the provider's own, or none at all."""
        return None

    @property
    def capabilities(self) -> ModelCapabilities:
        """What its server can be trusted with."""
        return ModelCapabilities()

    @abstractmethod
    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """One request, one answer. Never retries: that is the engine's.

        Args:
            on_delta: Called with each piece while the answer comes in; None asks for no stream.
        """

    def recall(self, prompt: Prompt) -> None:
        """An answer recorded earlier stands for the call with this prompt: it is not made again.

        Only a model whose answers depend on how often it was asked needs to know.
        """

    async def warm_up(self) -> None:
        """Load what the first call needs, without holding up the event loop.

        Awaited before the clock of the first step that asks this model starts.
        """

    async def aclose(self) -> None:
        """Give back what is held open. Called once, after the last run."""


class OutputParser(ABC):
    """Builds the constraining part of a request and reads answers against the schema."""

    async def warm_up(self, mode: OutputMode) -> None:
        """Load what the first `request` in that mode needs; as `ChatModel.warm_up`."""

    @abstractmethod
    def request(
        self, instructions: OutputInstructions[T], mode: OutputMode
    ) -> OutputRequest | None:
        """The part to merge into a request; None where this parser cannot constrain."""

    @abstractmethod
    def parse(
        self,
        instructions: OutputInstructions[T],
        response: ModelCallResponse,
        mode: OutputMode | None,
    ) -> Result[T, OutputFailure]:
        """The answer as the declared type.

        Args:
            mode: How the answer was constrained; None: it was not, find the JSON in the text.
        """
