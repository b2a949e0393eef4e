"""Reads the documents of OpenAI's responses into blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from minions.adapters.models.answer_assembly import MalformedAnswerError, read_usage
from minions.adapters.models.answer_blocks import FILTERED, AnswerBlock, AnswerBlocks, BlockKind
from minions.adapters.models.answer_fields import mapping_in, mappings_in, text_in
from minions.adapters.models.block_answers import BlockForm
from minions.contracts.calls import ModelDelta
from minions.contracts.messages import CUT_AT_LIMIT

__all__ = ["ResponsesForm"]

_KINDS: Final = {
    "message": BlockKind.TEXT,
    "function_call": BlockKind.CALL,
    "reasoning": BlockKind.THOUGHT,
}
_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
_NO_REASON: Final = "it gave no reason"


class ResponsesForm(BlockForm):
    """One answer of OpenAI's responses."""

    def __init__(self, blocks: AnswerBlocks) -> None:
        super().__init__(blocks)
        self._open: dict[object, AnswerBlock] = {}
        """Blocks of a stream by the index of their item."""
        self._refusals: list[str] = []

    def error_in(self, document: Mapping[str, object]) -> object:
        kind = document.get("type")
        if kind == "error":
            return document.get("error") or document
        if kind == "response.failed":
            document = mapping_in(document, "response")
        return document.get("error") or None

    def take_document(self, document: Mapping[str, object]) -> None:
        if not isinstance(document.get("output"), list):
            raise MalformedAnswerError("`output` is not a list")
        for item in mappings_in(document, "output"):
            self._take_whole(item)
        self._take_end(document)

    def take_event(self, document: Mapping[str, object]) -> Sequence[ModelDelta]:
        kind, index = text_in(document, "type"), document.get("output_index")
        match kind:
            case "response.output_item.added":
                return self._begin(index, mapping_in(document, "item"))
            case (
                "response.output_text.delta"
                | "response.function_call_arguments.delta"
                | "response.reasoning_summary_text.delta"
                | "response.reasoning_text.delta"
            ):
                return self._extend(index, text_in(document, "delta"))
            case "response.reasoning_summary_part.added":
                return self._extend_thought(index)
            case "response.refusal.delta":
                self._refusals.append(text_in(document, "delta"))
            case "response.output_item.done":
                return self._finish(index, mapping_in(document, "item"))
            case _ if kind in _ENDS:
                self._take_end(mapping_in(document, "response"))
                self.is_ended = True
        return ()

    def close(self) -> None:
        if self._refusals:
            self.blocks.refusal = "".join(self._refusals).strip() or _NO_REASON

    # --- items -----------------------------------------------------------------------------------

    def _take_whole(self, item: Mapping[str, object]) -> Sequence[ModelDelta]:
        block = self._new(item)
        if block is None:
            return ()
        self._complete(block, item)
        return self.blocks.write(block, self._text_of(block, item))

    def _begin(self, index: object, item: Mapping[str, object]) -> Sequence[ModelDelta]:
        block = self._new(item)
        if block is None or not isinstance(index, int):
            return ()
        self._open[index] = block
        return self.blocks.begun(block)

    def _new(self, item: Mapping[str, object]) -> AnswerBlock | None:
        """The block of an item; None: an item that means nothing here."""
        kind = _KINDS.get(text_in(item, "type"))
        if kind is None:
            self.blocks.skip(item)
            return None
        return self.blocks.add(kind, call_id=text_in(item, "call_id"), name=text_in(item, "name"))

    def _extend(self, index: object, fragment: str) -> Sequence[ModelDelta]:
        block = self._open.get(index) if isinstance(index, int) else None
        return self.blocks.write(block, fragment) if block is not None else ()

    def _extend_thought(self, index: object) -> Sequence[ModelDelta]:
        """A further part of a summary begins behind a blank line."""
        block = self._open.get(index) if isinstance(index, int) else None
        if block is None or not block.has_text:
            return ()
        return self.blocks.write(block, "\n\n")

    def _finish(self, index: object, item: Mapping[str, object]) -> Sequence[ModelDelta]:
        """The item as a whole: what it holds that no fragment said, its encrypted thoughts too."""
        block = self._open.pop(index, None) if isinstance(index, int) else None
        if block is None:
            return self._take_whole(item)
        self._complete(block, item)
        return () if block.has_text else self.blocks.write(block, self._text_of(block, item))

    def _complete(self, block: AnswerBlock, item: Mapping[str, object]) -> None:
        if block.kind is BlockKind.THOUGHT and item.get("encrypted_content"):
            names = ("type", "id", "summary", "encrypted_content")
            block.data = {name: item[name] for name in names if name in item}
        elif block.kind is BlockKind.TEXT and not self._refusals:
            self._refusals += list(_texts(item, "content", "refusal"))

    def _text_of(self, block: AnswerBlock, item: Mapping[str, object]) -> str:
        if block.kind is BlockKind.CALL:
            return text_in(item, "arguments")
        if block.kind is BlockKind.TEXT:
            return "".join(_texts(item, "content", "text"))
        summary = "\n\n".join(_texts(item, "summary", "text"))
        return summary or "\n\n".join(_texts(item, "content", "text"))

    # --- the end ---------------------------------------------------------------------------------

    def _take_end(self, response: Mapping[str, object]) -> None:
        blocks = self.blocks
        blocks.model = text_in(response, "model") or blocks.model
        if usage := mapping_in(response, "usage"):
            blocks.usage = read_usage(usage)
        if text_in(response, "status") == "incomplete":
            reason = text_in(mapping_in(response, "incomplete_details"), "reason")
            blocks.finish_reason = FILTERED if reason == FILTERED else CUT_AT_LIMIT
        else:
            blocks.finish_reason = "tool_calls" if blocks.has_calls else "stop"


def _texts(item: Mapping[str, object], parts: str, name: str) -> Iterator[str]:
    return (text for part in mappings_in(item, parts) if (text := text_in(part, name)))
