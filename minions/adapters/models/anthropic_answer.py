"""Reads the documents of Anthropic's messages into blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from minions.adapters.models.answer_assembly import MalformedAnswerError
from minions.adapters.models.answer_blocks import AnswerBlock, AnswerBlocks, BlockKind
from minions.adapters.models.answer_fields import (
    count_in,
    json_text,
    mapping_in,
    mappings_in,
    text_in,
)
from minions.adapters.models.block_answers import BlockForm
from minions.contracts.calls import ModelDelta
from minions.contracts.messages import CUT_AT_LIMIT, TokenUsage

_REASONS: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": CUT_AT_LIMIT,
    "model_context_window_exceeded": CUT_AT_LIMIT,
}
_KINDS: Final = {
    "text": BlockKind.TEXT,
    "thinking": BlockKind.THOUGHT,
    "redacted_thinking": BlockKind.OPAQUE,
    "tool_use": BlockKind.CALL,
}
_COUNTS: Final = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


class AnthropicForm(BlockForm):
    """One answer of Anthropic's messages."""

    def __init__(self, blocks: AnswerBlocks) -> None:
        super().__init__(blocks)
        self._open: dict[object, AnswerBlock] = {}
        """Blocks of a stream by their index."""
        self._signatures: list[tuple[AnswerBlock, list[str]]] = []
        self._counts = dict.fromkeys(_COUNTS, 0)

    def error_in(self, document: Mapping[str, object]) -> object:
        return document.get("error") if document.get("type") == "error" else None

    def take_document(self, document: Mapping[str, object]) -> None:
        self._take_frame(document)
        if not isinstance(document.get("content"), list):
            raise MalformedAnswerError("`content` is not a list")
        for each in mappings_in(document, "content"):
            block = self._begin(each)
            if block is None:
                continue
            self.blocks.write(block, text_in(each, "text") or text_in(each, "thinking"))
            if block.kind is BlockKind.CALL:
                self.blocks.write(block, json_text(each.get("input") or {}))
            elif signature := text_in(each, "signature"):
                self._sign(block, signature)
        self._take_reason(document)

    def take_event(self, document: Mapping[str, object]) -> Sequence[ModelDelta]:
        match document.get("type"):
            case "message_start":
                self._take_frame(mapping_in(document, "message"))
            case "content_block_start":
                return self._start(document.get("index"), mapping_in(document, "content_block"))
            case "content_block_delta":
                return self._extend(document.get("index"), mapping_in(document, "delta"))
            case "message_delta":
                self._take_usage(mapping_in(document, "usage"))
                self._take_reason(mapping_in(document, "delta"))
            case "message_stop":
                self.is_ended = True
        return ()

    def close(self) -> None:
        """Keep each signed thought as the provider wants it back: whole."""
        for block, signature in self._signatures:
            block.data = {
                "type": "thinking",
                "thinking": block.text.text,
                "signature": "".join(signature),
            }

    def _sign(self, block: AnswerBlock, signature: str) -> None:
        if block.kind is not BlockKind.THOUGHT:
            return
        if not (self._signatures and self._signatures[-1][0] is block):
            self._signatures.append((block, []))
        self._signatures[-1][1].append(signature)

    def _start(self, index: object, content: Mapping[str, object]) -> Sequence[ModelDelta]:
        block = self._begin(content)
        if block is None or not isinstance(index, int):
            return ()
        self._open[index] = block
        deltas = [*self.blocks.begun(block)]
        first = text_in(content, "text") or text_in(content, "thinking")
        if block.kind is BlockKind.CALL and content.get("input"):
            first = json_text(content["input"])
        return [*deltas, *self.blocks.write(block, first)]

    def _begin(self, content: Mapping[str, object]) -> AnswerBlock | None:
        """The block of a part of the content; None: a part that means nothing here."""
        kind = _KINDS.get(text_in(content, "type"))
        if kind is None:
            self.blocks.skip(content)
            return None
        block = self.blocks.add(kind, call_id=text_in(content, "id"), name=text_in(content, "name"))
        if kind is BlockKind.OPAQUE:
            block.data = {"type": "redacted_thinking", "data": text_in(content, "data")}
        return block

    def _extend(self, index: object, delta: Mapping[str, object]) -> Sequence[ModelDelta]:
        block = self._open.get(index) if isinstance(index, int) else None
        if block is None:
            return ()
        match delta.get("type"):
            case "text_delta":
                return self.blocks.write(block, text_in(delta, "text"))
            case "input_json_delta":
                return self.blocks.write(block, text_in(delta, "partial_json"))
            case "thinking_delta":
                return self.blocks.write(block, text_in(delta, "thinking"))
            case "signature_delta":
                self._sign(block, text_in(delta, "signature"))
        return ()

    def _take_frame(self, document: Mapping[str, object]) -> None:
        self.blocks.model = text_in(document, "model") or self.blocks.model
        self._take_usage(mapping_in(document, "usage"))
        self._take_reason(document)

    def _take_usage(self, usage: Mapping[str, object]) -> None:
        """Counts are totals so far; a document names only those that it knows."""
        for name in _COUNTS:
            if name in usage:
                self._counts[name] = count_in(usage, name)
        read = self._counts["cache_read_input_tokens"]
        written = self._counts["cache_creation_input_tokens"]
        self.blocks.usage = TokenUsage(
            input_tokens=self._counts["input_tokens"] + read + written,
            output_tokens=self._counts["output_tokens"],
            cached_tokens=read,
            cache_write_tokens=written,
        )

    def _take_reason(self, document: Mapping[str, object]) -> None:
        reason = text_in(document, "stop_reason")
        if not reason:
            return
        if reason == "pause_turn":
            raise MalformedAnswerError(
                "it paused (`pause_turn`) for a tool that the provider runs itself; Minions does "
                "not continue such answers"
            )
        self.blocks.finish_reason = _REASONS.get(reason, reason)
        if reason == "refusal":
            self.blocks.refusal = text_in(mapping_in(document, "stop_details"), "explanation")
