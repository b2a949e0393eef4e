"""Model calls and tool calls: requests, responses, failures, and the model that answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from attrs import field, frozen

from minions.contracts.instructions import (
    OutputFailure,
    OutputInstructions,
    OutputMode,
    OutputRequest,
    OutputRung,
)
from minions.contracts.messages import (
    NO_MESSAGES,
    NO_USAGE,
    Conversation,
    Message,
    TokenUsage,
    ToolCallRequest,
    as_conversation,
)
from minions.contracts.model_endpoints import (
    CacheRetention,
    ModelEndpoint,
    PromptCacheRules,
    RateLimits,
)
from minions.contracts.redaction import Redacted
from minions.contracts.tools import ToolSpec
from minions.data.errors import CONTEXT_EXCEEDED, FailureInfo
from minions.data.failure_categories import FailureCategory, category_of
from minions.data.field_repr import FieldsRepr
from minions.data.json_values import JsonValue

if TYPE_CHECKING:
    from returns.result import Result

    from minions.contracts.prompt_caches import PromptCache

T = TypeVar("T")


# --- what is asked of a model -------------------------------------------------------------


@frozen(kw_only=True)
class ModelOptions(FieldsRepr):
    """Sampling parameters and time limits of one call; None leaves the value to the provider."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    context_tokens: int | None = None
    """The most tokens of a prompt that the model takes; None: as listed for the model."""
    seed: int | None = None
    reasoning_effort: str | None = None
    """How much the model thinks: `low`, `medium`, `high` or another word of its server."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer where the model writes one of them."""
    extra: Mapping[str, JsonValue] = field(factory=dict, hash=False)
    """Further fields of the request, as the server names them."""
    timeout_s: float = 120.0
    """Seconds for the whole call, from the request to the last byte of the answer."""
    min_confidence: float | None = None
    """The least `Confidence.probability` with which the model's output is taken, above 0 and at
    most 1; below it, or where it is not known, the next model is asked, and without one the step
    fails. None: outputs are taken as they are.
    """
    cache: bool = False
    """Whether an answer that was given before to the same request is taken from the run's cache."""
    idle_timeout_s: float = 60.0
    """Seconds without a byte after which a streamed answer counts as stalled."""


def _as_specs(specs: Iterable[ToolSpec]) -> tuple[ToolSpec, ...]:
    return tuple(specs)


@frozen
class Prompt(FieldsRepr):
    """Everything that one model call sends."""

    messages: Conversation = field(default=NO_MESSAGES, converter=as_conversation)
    """Oldest first."""
    options: ModelOptions = field(factory=ModelOptions)
    instructions: OutputInstructions[object] | None = None
    """The declared output, described in the prompt whether or not the answer is constrained."""
    tools: tuple[ToolSpec, ...] = field(default=(), kw_only=True, converter=_as_specs)
    searches_tools: bool = field(default=False, kw_only=True)
    """Whether the model finds tools by `find_tools`, and those among `tools` that its results name
    were found so: a server that loads tools later is told so.
    """
    output_request: OutputRequest | None = field(default=None, kw_only=True)
    """The constraining part of the request; None: the answer is free text."""
    stored_prefix: str | None = field(default=None, kw_only=True)
    """The name under which the server keeps the beginning of the prompt, which is then not sent;
    None: the whole prompt is sent."""
    folds_system: bool = field(default=False, kw_only=True)
    """Whether the text of system messages begins the first user message: the model's chat template
    takes none.
    """
    leaves_out_form: bool = field(default=False, kw_only=True)
    """Whether the description of the output is not sent: the server holds the answer to its schema,
    and examples show it.
    """

    @property
    def is_judged(self) -> bool:
        """Whether the server is asked how sure the model is of its output."""
        form = self.instructions
        is_asked = self.options.min_confidence is not None
        return is_asked and form is not None and not form.takes_text


@frozen
class Confidence(FieldsRepr):
    """How sure a model was of one value of an answer in JSON: of the least probable one."""

    probability: float
    """The product of the probabilities of the value's tokens, 0 to 1."""
    at: str
    """The value's JSON pointer; empty: the answer is a single value."""


@frozen(kw_only=True)
class ModelCapabilities(FieldsRepr):
    """What the server of a model supports."""

    output_mode: OutputMode | None = OutputMode.JSON_SCHEMA
    """How to constrain an answer to a schema; None: the schema is only described in the prompt."""
    tools_with_schema: bool = False
    """Whether tools and a schema may be sent together. Off by default: several
    servers drop tool calls then.
    """
    takes_images: bool = True
    """Whether messages may have images; False: such a prompt fails before it is sent."""
    takes_strict: bool = True
    """Whether `strict` may be sent with a schema that satisfies its rules."""
    context_tokens: int | None = None
    """The most tokens of a prompt that it takes; None: as listed for the model, else unknown."""
    fallback_modes: tuple[OutputMode, ...] | None = None
    """How to constrain answers where the server refuses `output_mode`, best first; None: the modes
    after it, from `json_schema` over `json` and `tools` to words alone.
    """
    takes_batches: bool = True
    """Whether its server is asked for batches, where models of its form can be."""
    takes_system: bool = True
    """Whether system messages may be sent; else their text begins the first user message."""
    takes_tools: bool = True
    """Whether the model is shown the tools of a request; else it is asked which tool, and then for
    the arguments, each held to a schema.
    """
    binds: bool | None = None
    """Whether answers were measured to keep to `output_mode`; None: it is not known."""
    output_rungs: tuple[OutputRung, ...] | None = None
    """What is done with an answer that is not the output; None: a repair, and more only where
    answers are not held to a form.
    """
    prompt_cache: PromptCacheRules | None = None
    """Whose rules the server's cache of prompts follows; None: those of its provider, if they are
    known."""
    prompt_cache_retention: CacheRetention = CacheRetention.SHORT
    """For how long it is asked to keep beginnings of prompts."""
    defers_tools: bool = False
    """Whether the server loads tools later, at the place of the conversation where they were found,
    so that the start of the prompt stays in its cache. Off where that is not known.
    """
    is_mode_declared: bool = False
    """Whether a person has chosen `output_mode`: then no measurement changes it."""
    is_together_declared: bool = False
    """Whether a person has chosen `tools_with_schema`."""

    @property
    def modes(self) -> tuple[OutputMode, ...]:
        """The ways to constrain answers, in the order in which they are tried."""
        if self.output_mode is None:
            return ()
        order = tuple(_MODES[_MODES.index(self.output_mode) + 1 :])
        return (self.output_mode, *(order if self.fallback_modes is None else self.fallback_modes))


_MODES: Final = (OutputMode.JSON_SCHEMA, OutputMode.JSON, OutputMode.TOOLS, OutputMode.MD_JSON)


# --- what comes back -----------------------------------------------------------------------


@frozen(kw_only=True)
class StepCompletionInstruction(FieldsRepr):
    """What the model itself reports about completion of the step."""

    is_complete: bool = False
    is_more_calls_needed: bool = False
    next_step_id: str | None = None
    failure_reason: str | None = None
    is_non_recoverable: bool = False


@frozen(kw_only=True)
class ModelCallResponse(FieldsRepr):
    """One answer of a model."""

    message: Message
    usage: TokenUsage = NO_USAGE
    finish_reason: str | None = None
    model_name: str | None = None
    """The model's name as the server reported it; None: not reported."""
    provider: str | None = None
    first_token_latency_ms: float | None = None
    completion_instruction: StepCompletionInstruction | None = None
    rate_limits: RateLimits | None = None
    """What the server said of its own limits; None: nothing. It is not recorded."""
    cached_from: str | None = None
    """The run whose recorded answer this is; None: the model was asked."""
    batch: str | None = None
    """The provider's id of the batch that it was answered in; None: the call was made alone."""
    redacted: tuple[Redacted, ...] = ()
    """What was replaced by placeholders in the request."""
    confidence: Confidence | None = None
    """None: it was not asked for, or the server told no probabilities of the answer's values."""

    @property
    def text(self) -> str | None:
        """The text of the answer; None when it holds tool calls only."""
        return self.message.content

    @property
    def tool_calls(self) -> tuple[ToolCallRequest, ...]:
        """The requested tool calls, in the order of the answer."""
        return self.message.tool_calls


@frozen(kw_only=True)
class ToolCallResponse(FieldsRepr):
    """The result of one tool call."""

    content: str
    """The text that the model reads."""
    value: JsonValue = None
    """The result as JSON, for templates."""
    is_error: bool = False
    """Whether the tool reported an error; `content` then tells the model what to correct."""


@frozen(kw_only=True)
class ModelFailure(FieldsRepr):
    """Why a model call has no answer."""

    code: str
    """`model-unreachable`, `model-timeout`, `rate-limited`, `auth-rejected`, `bad-request`,
    `empty-response`, `malformed-response`, `output-truncated`, `output-rejected`,
    `template-refused`, `no-tool-call`, `context-exceeded`, `refused`, `content-filtered` …"""
    message: str
    is_retryable: bool = False
    retry_after_s: float | None = None
    """Seconds that a retry waits; 0: none. None: as long as the recipe's `retry` says."""
    usage: TokenUsage = NO_USAGE
    """Tokens that the failed call used nevertheless, as far as the server reported them."""
    suggestions: tuple[str, ...] = ()
    text: str | None = None
    """Of `output-truncated` the text before the cut; None: there is none, or tools were called."""
    has_begun_call: bool = False
    """Of `output-truncated`, whether a tool call had begun before the cut."""
    begun_call: ToolCallRequest | None = None
    """Of `output-truncated` the only call that had begun, as far as its arguments came."""
    status: int | None = None
    """The HTTP status of the answer; None: there was none, or the error came inside a 200."""
    rate_limits: RateLimits | None = None
    """What the server said of its own limits; None: nothing. It is not recorded."""

    @property
    def category(self) -> FailureCategory:
        """What kind of failure it is."""
        unlisted = FailureCategory.TRANSIENT if self.is_retryable else FailureCategory.TERMINAL
        return category_of(self.code, unlisted=unlisted)

    def info(self) -> FailureInfo:
        """The failure as results and rows hold it."""
        return _info(self)


def context_exceeded(message: str) -> ModelFailure:
    """The failure of a call whose prompt is too long, with what can be done about it."""
    return ModelFailure(
        code=CONTEXT_EXCEEDED,
        message=message,
        suggestions=(
            "bound the conversation of the step: `history: {max_tokens: N, strategy: drop}`",
            "see what the prompt holds: `minions explain RECIPE`",
            "use a model with a longer context",
        ),
    )


@frozen(kw_only=True)
class ToolFailure(FieldsRepr):
    """Why a tool call has no result."""

    code: str
    """`unknown-tool`, `bad-arguments`, `tool-error`, `tool-failed`, `tool-timeout`,
    `permission-denied`, `tool-result-too-large`, `tool-result-not-json` …"""
    message: str
    is_retryable: bool = False
    is_mendable: bool = False
    """Whether the model can correct it: `message` is then sent to the
    model whatever the step's policy.
    """
    suggestions: tuple[str, ...] = ()

    @property
    def category(self) -> FailureCategory:
        """What kind of failure it is; of a code of the tool's own `tool`."""
        return category_of(self.code, unlisted=FailureCategory.TOOL)

    def info(self) -> FailureInfo:
        """The failure as results and rows hold it."""
        return _info(self)


def _info(failure: ModelFailure | ToolFailure) -> FailureInfo:
    """The failure of a call as the failure of its step; the category of its own code stays."""
    category = failure.category
    return FailureInfo(
        code=failure.code,
        message=failure.message,
        suggestions=failure.suggestions,
        category=category if category is not category_of(failure.code) else None,
    )


Failure: TypeAlias = ModelFailure | ToolFailure | OutputFailure


# --- calls as they stand in a step's record --------------------------------------------------


class CallOrigin(StrEnum):
    """Who wrote the arguments of a tool call: decides whether secrets are put into them."""

    MODEL = "model"
    """A model. Markers of secrets stay as they are, for the text may come from anybody."""
    STEP = "step"
    """The recipe or application code. Markers of secrets are replaced by their values."""


class CallStatus(StrEnum):
    """The state of a model call or tool call."""

    PENDING = "pending"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"


@frozen(kw_only=True)
class PromptLayout(FieldsRepr):
    """Which messages of a prompt the step began with, and which of those were said before it."""

    opening: int = 0
    """Messages of the step's first prompt, which begin each later one."""
    history: frozenset[Message] = frozenset()
    """Messages among them that earlier steps and turns said."""
    memo: dict[str, tuple[object, Mapping[str, int]]] = field(
        factory=dict, init=False, eq=False, repr=False
    )
    """Characters by section of what is the same in each prompt, with what they were counted of."""


@frozen(kw_only=True)
class ModelCall(FieldsRepr):
    """One logical model call. A repair is a call of its own; a transport retry is an attempt."""

    key: str
    """Unique in the run: `step/visit/iteration/phase/turn`."""
    prompt: Prompt
    phase: str = "model"
    """`model`, `final` (constrained), `repair` or `summary`."""
    summarises: int | None = None
    """Of a summary: how many of the oldest messages of the conversation it is of."""
    is_of_session: bool = False
    """Whether later runs of the session may use the summary: they know just these messages."""
    output_mode: str | None = None
    """How the answer was constrained, as an `OutputMode` or `text` (not at all), where that is not
    what the model's declared capabilities say.
    """
    tier: int | None = None
    """The index of the model among those of the step; None: the first."""
    layout: PromptLayout = field(factory=PromptLayout)
    status: CallStatus = CallStatus.PENDING
    response: ModelCallResponse | None = None
    failure: ModelFailure | None = None
    retried_usage: TokenUsage = NO_USAGE
    """Tokens of failed attempts that were retried, as far as the server reported them."""
    attempts: int = 0
    started_at: datetime | None = None
    completed_at: datetime | None = None

    @property
    def usage(self) -> TokenUsage:
        """Tokens of all attempts; of failed ones as far as the server reported them."""
        last = self.response.usage if self.response is not None else NO_USAGE
        if self.failure is None and self.retried_usage is NO_USAGE:  # as usual
            return last
        failed = self.failure.usage if self.failure is not None else NO_USAGE
        return self.retried_usage + last + failed


@frozen(kw_only=True)
class ToolCall(FieldsRepr):
    """One tool call, with its state and result."""

    key: str
    """Unique in the run: `step/visit/iteration/phase/turn/index`."""
    request: ToolCallRequest
    origin: CallOrigin = CallOrigin.MODEL
    effect_key: str | None = None
    """The idempotency key of a call that an earlier run started; None:
    derived from this call's own key.
    """
    filled: tuple[str, ...] = ()
    """Of the call of a tool step: the parameters that a model filled in."""
    status: CallStatus = CallStatus.PENDING
    response: ToolCallResponse | None = None
    failure: ToolFailure | None = None
    attempts: int = 0
    started_at: datetime | None = None
    completed_at: datetime | None = None

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.request.name


# --- who carries them out ----------------------------------------------------------------------


@frozen(kw_only=True)
class ModelDelta(FieldsRepr):
    """A fragment of a streamed answer: shown while the call runs, never stored."""

    content: str | None = None
    tool_call: Mapping[str, JsonValue] | None = None
    """A fragment of a tool call in the provider's form, with its `index`."""
    reasoning: str | None = None
    """A fragment of what the model thinks aloud."""


DeltaSink: TypeAlias = Callable[[ModelDelta], None]
"""Receives each fragment of a streamed answer; must return at once."""


class ChatModel(ABC):
    """A model that answers prompts: the one class that a provider adapter has to implement."""

    @property
    def name(self) -> str:
        """`provider/model`; shown in every run that uses the model."""
        return type(self).__name__

    @property
    def base_url(self) -> str | None:
        """Base URL of the server, which may decide the price; None: the
        provider's own, or no server.
        """
        return None

    @property
    def endpoint(self) -> ModelEndpoint | None:
        """The server whose limits its calls share with those of other models; None: it has none,
        and calls never wait for one another.
        """
        return None

    @property
    def capabilities(self) -> ModelCapabilities:
        """What the model's server supports."""
        return ModelCapabilities()

    @property
    def prompt_cache(self) -> PromptCache | None:
        """How its server keeps the beginnings of prompts; None: it is not known, or there is no
        server.
        """
        return None

    @property
    def output_parser(self) -> OutputParser | None:
        """How declared outputs are asked of its server, where `Services` name no parser of their
        own; None: in the words of the prompt alone.
        """
        return None

    @abstractmethod
    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """Send one request and return its answer. Never retries: retries are the engine's task.

        Args:
            on_delta: Called with each fragment while the answer arrives; None: do not stream.
        """

    def recall(self, prompt: Prompt) -> None:
        """A recorded answer is replayed in place of the call with this prompt.

        Only a model whose answers depend on the number of calls (a script) has to know.
        """

    async def warm_up(self) -> None:
        """Load what the first call needs, without blocking the event loop.

        Awaited before the timeout of the first step that calls this model starts.
        """

    async def aclose(self) -> None:
        """Close connections. Called once, after the last run."""


class OutputParser(ABC):
    """Builds the part of a request that constrains the answer, and parses answers by the schema."""

    async def warm_up(self, mode: OutputMode) -> None:
        """Load what the first `request` in that mode needs, without blocking the event loop."""

    @abstractmethod
    def request(
        self, instructions: OutputInstructions[T], mode: OutputMode
    ) -> OutputRequest | None:
        """The part to merge into a request; None where this parser cannot constrain the answer."""

    @abstractmethod
    def parse(
        self,
        instructions: OutputInstructions[T],
        response: ModelCallResponse,
        mode: OutputMode | None,
    ) -> Result[T, OutputFailure]:
        """Parse an answer into the declared type.

        Args:
            mode: How the answer was constrained; None: it was not, so the JSON is searched in the
                text.
        """
