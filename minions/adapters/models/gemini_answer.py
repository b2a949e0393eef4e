"""Reads the documents of Gemini's generateContent into blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from minions.adapters.models.answer_assembly import MalformedAnswerError
from minions.adapters.models.answer_blocks import FILTERED, AnswerBlock, BlockKind
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

__all__ = ["GeminiForm"]

_FILTERS: Final = frozenset(
    {
        *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"),
        *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "MODEL_ARMOR"),
    }
)
_SIGNATURE: Final = "thoughtSignature"


class GeminiForm(BlockForm):
    """One answer of Gemini's generateContent; a stream is a list of such documents."""

    def take_document(self, document: Mapping[str, object]) -> None:
        self.take_event(document)
        if self.blocks.finish_reason is None:
            raise MalformedAnswerError("it has no candidate that was finished")

    def take_event(self, document: Mapping[str, object]) -> Sequence[ModelDelta]:
        self.blocks.model = text_in(document, "modelVersion") or self.blocks.model
        if usage := mapping_in(document, "usageMetadata"):
            self.blocks.usage = _usage(usage)
        if text_in(mapping_in(document, "promptFeedback"), "blockReason"):
            self.blocks.finish_reason = FILTERED
        deltas: list[ModelDelta] = []
        for candidate in list(mappings_in(document, "candidates"))[:1]:
            for part in mappings_in(mapping_in(candidate, "content"), "parts"):
                deltas += self._take_part(part)
            self._take_reason(candidate)
        return deltas

    def _take_part(self, part: Mapping[str, object]) -> Sequence[ModelDelta]:
        signature = text_in(part, _SIGNATURE)
        if call := mapping_in(part, "functionCall"):
            return self._take_call(call, signature)
        text = text_in(part, "text")
        if part.get("thought") is True:
            return self.blocks.write(self._block(BlockKind.THOUGHT), text)
        if not text and not signature:
            if part and "text" not in part:
                self.blocks.skip(part)
            return ()
        block = self._block(BlockKind.TEXT)
        deltas = self.blocks.write(block, text)
        if signature:
            block.data = {_SIGNATURE: signature}
        return deltas

    def _take_call(self, call: Mapping[str, object], signature: str) -> Sequence[ModelDelta]:
        block = self.blocks.add(
            BlockKind.CALL, call_id=text_in(call, "id"), name=text_in(call, "name")
        )
        if signature:
            block.data = {_SIGNATURE: signature}
        return [
            *self.blocks.begun(block),
            *self.blocks.write(block, json_text(call.get("args") or {})),
        ]

    def _block(self, kind: BlockKind) -> AnswerBlock:
        """The block that a fragment continues: one that is signed is complete."""
        last = self.blocks.last
        if last is not None and last.kind is kind and not last.data:
            return last
        return self.blocks.add(kind)

    def _take_reason(self, candidate: Mapping[str, object]) -> None:
        reason = text_in(candidate, "finishReason")
        if not reason or reason == "FINISH_REASON_UNSPECIFIED":
            return
        if reason in _FILTERS:
            self.blocks.finish_reason = FILTERED
        elif reason == "MAX_TOKENS":
            self.blocks.finish_reason = CUT_AT_LIMIT
        elif reason == "STOP":
            self.blocks.finish_reason = "tool_calls" if self.blocks.has_calls else "stop"
        else:  # MALFORMED_FUNCTION_CALL and the like: what was said is no answer
            why = text_in(candidate, "finishMessage")
            raise MalformedAnswerError(f"it ended with {reason}{f': {why}' if why else ''}")


def _usage(usage: Mapping[str, object]) -> TokenUsage:
    asked = count_in(usage, "promptTokenCount") + count_in(usage, "toolUsePromptTokenCount")
    return TokenUsage(
        input_tokens=asked,
        output_tokens=count_in(usage, "candidatesTokenCount")
        + count_in(usage, "thoughtsTokenCount"),
        cached_tokens=min(asked, count_in(usage, "cachedContentTokenCount")),
    )
