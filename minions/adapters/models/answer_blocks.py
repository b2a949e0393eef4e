"""An answer that is a list of blocks (texts, thoughts, tool calls), while it arrives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Final

from attrs import define, field
from returns.result import Failure, Result, Success

from minions.adapters.models.answer_assembly import MalformedAnswerError
from minions.adapters.models.chat_failures import ChatPeer
from minions.adapters.models.chat_shapes import FragmentedText, as_reasoning
from minions.adapters.models.kept_parts import KeptPart, provider_data
from minions.contracts.calls import ModelCallResponse, ModelDelta, ModelFailure
from minions.contracts.messages import (
    CUT_AT_LIMIT,
    ProviderData,
    TokenUsage,
    ToolCallRequest,
    assistant,
)
from minions.data.json_values import JsonValue

FILTERED: Final = "content_filter"
"""The finish reason of an answer that the provider withheld."""
_MOST_BLOCKS: Final = 10_000
_MOST_CALLS: Final = 1_000
_LONGEST_ID: Final = 4_096
_MOST_NAMED: Final = 8
"""Parts of an answer that a failure names."""


class BlockKind(Enum):
    """What a block of an answer holds."""

    TEXT = "text"
    THOUGHT = "thought"
    CALL = "call"
    OPAQUE = "opaque"
    """Something that only goes back to the provider."""


@define
class AnswerBlock:
    """One block; of a call `text` holds the arguments."""

    kind: BlockKind
    id: str = ""
    name: str = ""
    index: int = 0
    """Of a call: its number among the calls."""
    text: FragmentedText = field(factory=FragmentedText)
    data: dict[str, object] = field(factory=dict)
    """What the provider wants back with it."""
    is_answer: bool = False
    """Of a call: whether its arguments are the text of the answer."""
    has_text: bool = False
    """Whether anything was written to it."""


@define
class AnswerBlocks:
    """The state of one answer after what was received so far."""

    source: str
    """As `ProviderData.source`."""
    answer_tool: str | None = None
    """The tool whose arguments are the text of the answer; None: there is none."""
    finish_reason: str | None = None
    """In OpenAI's words: `stop`, `length`, `tool_calls`, `content_filter`."""
    usage: TokenUsage = field(factory=TokenUsage)
    model: str | None = None
    refusal: str | None = None
    """Why the model refused to answer; None: it did not."""
    _blocks: list[AnswerBlock] = field(factory=list)
    _calls_begun: int = 0
    _others: dict[str, None] = field(factory=dict)
    """Parts that mean nothing here, such as calls of the provider's own tools, in order."""

    def add(self, kind: BlockKind, *, call_id: str = "", name: str = "") -> AnswerBlock:
        """A further block.

        Raises:
            MalformedAnswerError: There are too many.
        """
        index = self._calls_begun
        self._calls_begun += kind is BlockKind.CALL
        if index >= _MOST_CALLS or len(self._blocks) >= _MOST_BLOCKS:
            raise MalformedAnswerError(
                f"it has more than {_MOST_CALLS} tool calls or too many parts"
            )
        is_answer = kind is BlockKind.CALL and name != "" and name == self.answer_tool
        block = AnswerBlock(
            kind=kind,
            id=call_id if len(call_id) <= _LONGEST_ID else "",
            name=name,
            index=index,
            is_answer=is_answer,
        )
        self._blocks.append(block)
        return block

    def skip(self, part: Mapping[str, object]) -> None:
        """Note a part that means nothing here: where there is no other, the failure names it."""
        words = [each for each in (part.get("type"), part.get("name")) if isinstance(each, str)]
        if not words:
            words = list(part)[:1]
        if len(self._others) < _MOST_NAMED:
            self._others[" ".join(words)[:80]] = None

    @property
    def has_calls(self) -> bool:
        """Whether tools are called, beside the one that takes the answer."""
        return any(not block.is_answer for block in self._of(BlockKind.CALL))

    @property
    def last(self) -> AnswerBlock | None:
        """The newest block; None: there is none."""
        return self._blocks[-1] if self._blocks else None

    def begun(self, block: AnswerBlock) -> Sequence[ModelDelta]:
        """What can be shown of a new call."""
        if block.kind is not BlockKind.CALL or block.is_answer:
            return ()
        return (_call_fragment(block, "", name=block.name),)

    def write(self, block: AnswerBlock, fragment: str) -> Sequence[ModelDelta]:
        """Append to a block; returns what can be shown."""
        block.has_text = block.has_text or bool(fragment)
        shown = block.text.add(fragment)
        if not shown:
            return ()
        match block.kind:
            case BlockKind.TEXT:
                return (ModelDelta(content=shown),)
            case BlockKind.THOUGHT:
                return (ModelDelta(reasoning=shown),)
            case BlockKind.CALL if block.is_answer:
                return (ModelDelta(content=shown),)
            case BlockKind.CALL:
                return (_call_fragment(block, shown),)
            case BlockKind.OPAQUE:
                return ()

    def result(
        self, peer: ChatPeer, first_token_latency_ms: float | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """The answer, or the failure if it is not one.

        Raises:
            MalformedAnswerError: A tool call has no name.
        """
        text, calls = self._text(), self._calls()
        if (failure := self._failure(peer, text, calls)) is not None:
            return Failure(failure)
        thoughts = [block.text.text for block in self._of(BlockKind.THOUGHT)]
        message = assistant(
            text or None,
            tool_calls=calls,
            reasoning=as_reasoning("\n\n".join(filter(None, thoughts))),
            provider_data=self._provider_data(text),
        )
        return Success(
            ModelCallResponse(
                message=message,
                usage=self.usage,
                finish_reason=self.finish_reason,
                model_name=self.model,
                provider=peer.provider,
                first_token_latency_ms=first_token_latency_ms,
            )
        )

    def _failure(
        self, peer: ChatPeer, text: str, calls: Sequence[ToolCallRequest]
    ) -> ModelFailure | None:
        if self.finish_reason == CUT_AT_LIMIT:
            return peer.truncated(self.usage, None if calls else text, calls=calls)
        if self.finish_reason == FILTERED:
            return peer.filtered(self.usage)
        if self.refusal is not None:
            return peer.refused(self.refusal or "it gave no reason", self.usage)
        if not text and not calls:
            return peer.empty(self.finish_reason, self.usage, others=tuple(self._others))
        return None

    def _text(self) -> str:
        """The text; empty where it is nothing but blanks."""
        answer = next((block for block in self._of(BlockKind.CALL) if block.is_answer), None)
        if answer is not None:
            return answer.text.text
        text = "".join(block.text.text for block in self._of(BlockKind.TEXT))
        return "" if text.isspace() else text

    def _calls(self) -> tuple[ToolCallRequest, ...]:
        blocks = [block for block in self._of(BlockKind.CALL) if not block.is_answer]
        used = {block.id for block in blocks}
        seen: set[str] = set()
        calls = []
        for position, block in enumerate(blocks):
            if not block.name:
                raise MalformedAnswerError(f"tool call {position} has no name")
            call_id = block.id if block.id not in seen else ""
            call_id = call_id or _free_id(position, used)
            used.add(call_id)
            seen.add(call_id)
            arguments = block.text.text
            calls.append(
                ToolCallRequest(
                    id=call_id, name=block.name, arguments=arguments if arguments.strip() else "{}"
                )
            )
        return tuple(calls)

    def _provider_data(self, text: str) -> ProviderData | None:
        if any(block.is_answer for block in self._blocks):
            return None  # its call was forced, and is no call of the conversation
        return provider_data(self.source, self._parts(has_text=bool(text)))

    def _parts(self, *, has_text: bool) -> Iterator[KeptPart]:
        index = 0
        for block in self._blocks:
            data = dict(block.data) or None
            if block.kind is BlockKind.CALL:
                yield KeptPart(call=index, data=data)
                index += 1
            elif block.kind is BlockKind.TEXT:
                if has_text and (length := len(block.text.text)):
                    yield KeptPart(text=length, data=data)
                elif data is not None:
                    yield KeptPart(data=data)
            elif data is not None:
                yield KeptPart(data=data)

    def _of(self, kind: BlockKind) -> Iterator[AnswerBlock]:
        return (block for block in self._blocks if block.kind is kind)


def _call_fragment(block: AnswerBlock, arguments: str, *, name: str | None = None) -> ModelDelta:
    function: dict[str, JsonValue] = {"name": name or None, "arguments": arguments}
    fragment: dict[str, JsonValue] = {"index": block.index, "function": function}
    if name and block.id:
        fragment["id"] = block.id
    return ModelDelta(tool_call=fragment)


def _free_id(position: int, used: set[str]) -> str:
    """`call_<position>`, or its first variant that is not in use."""
    wanted, number = f"call_{position}", 1
    while not wanted or wanted in used:
        number += 1
        wanted = f"call_{position}_{number}"
    return wanted
