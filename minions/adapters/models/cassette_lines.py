"""The lines of a cassette as values: their members and types, checked while they are decoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, cast

from msgspec import Meta, Struct, structs
from msgspec.json import Decoder

from minions.contracts.calls import (
    Confidence,
    ModelCallResponse,
    ModelDelta,
    ModelFailure,
    StepCompletionInstruction,
)
from minions.contracts.messages import (
    Message,
    MessageRole,
    ProviderData,
    TokenUsage,
    ToolCallRequest,
)
from minions.data.json_values import JsonValue

_MOST_TOKENS: Final = 10**9


class _Usage(Struct, forbid_unknown_fields=True, frozen=True):
    """Tokens of a call, as a line holds them."""

    input_tokens: Annotated[int, Meta(ge=0, le=_MOST_TOKENS)] = 0
    output_tokens: Annotated[int, Meta(ge=0, le=_MOST_TOKENS)] = 0
    cached_tokens: Annotated[int, Meta(ge=0, le=_MOST_TOKENS)] = 0
    cost_usd: float | None = None
    """What the call cost when it was recorded; a replay costs nothing."""

    def value(self) -> TokenUsage:
        """The tokens, at no cost."""
        return TokenUsage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            cost_usd=0.0,
        )


class _ToolCall(Struct, forbid_unknown_fields=True, frozen=True):
    """A tool call, as a line holds it."""

    id: str
    name: str
    arguments: str = "{}"


class _ProviderData(Struct, forbid_unknown_fields=True, frozen=True):
    """What goes back to a provider, as a line holds it."""

    source: str
    content: str


class _Message(Struct, forbid_unknown_fields=True, frozen=True):
    """An answer of a model, as a line holds it: no other role can be replayed."""

    role: Literal["assistant"]
    content: str | None = None
    tool_calls: list[_ToolCall] = []
    name: str | None = None
    reasoning: str | None = None
    provider_data: _ProviderData | None = None

    def value(self) -> Message:
        """The message."""
        kept = self.provider_data
        return Message(
            role=MessageRole.ASSISTANT,
            content=self.content,
            tool_calls=tuple(
                ToolCallRequest(id=call.id, name=call.name, arguments=call.arguments)
                for call in self.tool_calls
            ),
            name=self.name,
            reasoning=self.reasoning,
            provider_data=ProviderData(source=kept.source, content=kept.content) if kept else None,
        )


class _Instruction(Struct, forbid_unknown_fields=True, frozen=True):
    """What a model said of completion, as a line holds it."""

    is_complete: bool = False
    is_more_calls_needed: bool = False
    next_step_id: str | None = None
    failure_reason: str | None = None
    is_non_recoverable: bool = False

    def value(self) -> StepCompletionInstruction:
        """The instruction."""
        return StepCompletionInstruction(**structs.asdict(self))


class _Response(Struct, forbid_unknown_fields=True, frozen=True):
    """An answer, as a line holds it."""

    message: _Message
    usage: _Usage = _Usage()
    finish_reason: str | None = None
    model_name: str | None = None
    completion_instruction: _Instruction | None = None
    confidence: tuple[float, str] | None = None

    def value(self) -> ModelCallResponse:
        """The answer as the engine takes it."""
        said = self.completion_instruction
        return ModelCallResponse(
            message=self.message.value(),
            usage=self.usage.value(),
            finish_reason=self.finish_reason,
            model_name=self.model_name,
            provider="replay",
            completion_instruction=said.value() if said is not None else None,
            confidence=None if self.confidence is None else Confidence(*self.confidence),
        )


class _BegunCall(Struct, forbid_unknown_fields=True, frozen=True):
    """A tool call that was cut off, as a line holds it."""

    id: str
    name: str
    arguments: str

    def value(self) -> ToolCallRequest:
        """The call as a failure holds it."""
        return ToolCallRequest(id=self.id, name=self.name, arguments=self.arguments)


class _Failure(Struct, forbid_unknown_fields=True, frozen=True):
    """A failure, as a line holds it."""

    code: str
    message: str
    is_retryable: bool = False
    usage: _Usage = _Usage()
    suggestions: tuple[str, ...] = ()
    text: str | None = None
    has_begun_call: bool = False
    begun_call: _BegunCall | None = None
    status: int | None = None

    def value(self) -> ModelFailure:
        """The failure as the engine takes it: a retry waits no time, since no server is asked."""
        return ModelFailure(
            code=self.code,
            message=self.message,
            is_retryable=self.is_retryable,
            retry_after_s=0.0 if self.is_retryable else None,
            usage=self.usage.value(),
            suggestions=self.suggestions,
            text=self.text,
            has_begun_call=self.has_begun_call,
            begun_call=self.begun_call.value() if self.begun_call is not None else None,
            status=self.status,
        )


class _Piece(Struct, forbid_unknown_fields=True, frozen=True):
    """A fragment of a streamed answer that is no text, as a line holds it."""

    reasoning: str | None = None
    tool_call: dict[str, object] | None = None


class CassetteLine(Struct, forbid_unknown_fields=True, frozen=True):
    """Any line of a cassette."""

    cassette: int | None = None
    recording: int | None = None
    call: int | None = None
    model: str | None = None
    base_url: str | None = None
    capabilities: dict[str, object] = {}
    request: dict[str, object] = {}
    pieces: list[str | _Piece] = []
    response: _Response | None = None
    failure: _Failure | None = None

    def outcome(self) -> ModelCallResponse | ModelFailure:
        """The answer or failure of a call.

        Raises:
            ValueError: It has neither, or both.
        """
        if self.response is not None and self.failure is None:
            return self.response.value()
        if self.failure is not None and self.response is None:
            return self.failure.value()
        raise ValueError("a call has either `response` or `failure`")

    def deltas(self) -> tuple[ModelDelta, ...]:
        """The fragments of a streamed answer."""
        return tuple(_delta(each) for each in self.pieces)


def _delta(piece: str | _Piece) -> ModelDelta:
    if isinstance(piece, str):
        return ModelDelta(content=piece)
    call = cast("Mapping[str, JsonValue] | None", piece.tool_call)
    return ModelDelta(reasoning=piece.reasoning, tool_call=call)


_LINES: Final = Decoder(CassetteLine)


def decode_line(data: bytes) -> CassetteLine:
    """The line.

    Raises:
        MsgspecError, RecursionError: It is no line of a cassette.
    """
    return _LINES.decode(data)
