"""`ResponsesWire`: OpenAI's responses. Requests are written here; answers are read in
`responses_answer`.

Nothing is stored at the provider: the whole conversation goes with each request, the model's
encrypted thoughts included. Source: OpenAI, API reference "Create a model response".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final

from minions.adapters.models.answer_blocks import AnswerBlocks
from minions.adapters.models.answer_reader import AnswerReader
from minions.adapters.models.block_answers import BlockAnswer, StreamedBlocks
from minions.adapters.models.chat_failures import ChatPeer
from minions.adapters.models.chat_request import encode_body
from minions.adapters.models.kept_parts import data_of, kept_parts
from minions.adapters.models.prompt_parts import (
    FunctionTools,
    OutputConstraint,
    constraint_of,
    conversation_of,
    sendable_arguments,
    system_text,
    with_valid_ids,
)
from minions.adapters.models.responses_answer import ResponsesForm
from minions.adapters.models.strict_schema import is_strict_schema
from minions.adapters.models.wire_form import WireForm
from minions.contracts.calls import ModelOptions, Prompt
from minions.contracts.messages import Attachment, Message, MessageRole, ToolCallRequest
from minions.contracts.model_endpoints import ModelApi
from minions.data.json_values import JsonValue

__all__ = ["ResponsesWire"]

_KEPT: Final = {"reasoning": ("type", "id", "summary", "encrypted_content")}
"""What goes back beside texts and calls."""
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ResponsesWire(WireForm):
    """The form of OpenAI's responses."""

    api: ClassVar[ModelApi] = ModelApi.RESPONSES
    answer_words: ClassVar[str] = "a response"
    api_words: ClassVar[str] = "OpenAI's responses API (often ends in /v1)"

    def __init__(self, *, provider: str, model: str, takes_strict: bool = True) -> None:
        """Requests to one model.

        Args:
            takes_strict: Whether the server knows `strict` beside a schema.
        """
        self._model = model
        self._source = f"{self.api.value} {provider}/{model}"
        self._takes_strict = takes_strict
        self._has_thoughts = _WITHOUT_THOUGHTS.match(model) is None
        self._functions = FunctionTools()

    @property
    def path(self) -> str:
        return "/responses"

    def write(self, prompt: Prompt, *, stream: bool) -> bytes:
        messages, options = conversation_of(prompt), prompt.options
        constraint = constraint_of(prompt, self._functions)
        body: dict[str, JsonValue] = {
            **options.extra,
            "model": self._model,
            "store": False,
            **self._included(options.extra.get("include")),
            "input": list(self._items(messages)),
            **_options(options),
            **self._tools(constraint),
        }
        if instructions := system_text(messages):
            body["instructions"] = instructions
        if form := self._text(options.extra.get("text"), constraint):
            body["text"] = form
        if stream:
            body["stream"] = True
        return encode_body(body)

    def plain_reader(self, peer: ChatPeer, prompt: Prompt) -> AnswerReader:
        return BlockAnswer(peer, self._form())

    def stream_reader(
        self, peer: ChatPeer, prompt: Prompt, clock: Callable[[], float], started: float
    ) -> AnswerReader:
        return StreamedBlocks(peer, self._form(), clock, started)

    def _form(self) -> ResponsesForm:
        return ResponsesForm(AnswerBlocks(source=self._source))

    def _included(self, own: JsonValue) -> dict[str, JsonValue]:
        """`include` of the request, with the encrypted thoughts of models that think."""
        wanted = list(own) if isinstance(own, list | tuple) else []
        if self._has_thoughts and _THOUGHTS not in wanted:
            wanted.append(_THOUGHTS)
        return {"include": wanted} if wanted else {}

    # --- tools and output ------------------------------------------------------------------------

    def _tools(self, constraint: OutputConstraint) -> dict[str, JsonValue]:
        if not constraint.tools:
            return {}
        sent: dict[str, JsonValue] = {"tools": [self._tool(each) for each in constraint.tools]}
        if constraint.choice.startswith("name:"):
            name = constraint.choice.removeprefix("name:")
            sent["tool_choice"] = {"type": "function", "name": name}
        elif constraint.choice != "auto":
            sent["tool_choice"] = constraint.choice
        if not constraint.is_parallel:
            sent["parallel_tool_calls"] = False
        return sent

    def _tool(self, function: Mapping[str, JsonValue]) -> JsonValue:
        parameters = function.get("parameters")
        schema = dict(parameters) if isinstance(parameters, Mapping) else {}
        # Left out it would mean true here, which refuses most schemas.
        strict = self._takes_strict and is_strict_schema(schema)
        return {
            "type": "function",
            "name": function.get("name"),
            "description": function.get("description") or "",
            "parameters": schema,
            "strict": strict,
        }

    def _text(self, own: JsonValue, constraint: OutputConstraint) -> dict[str, JsonValue]:
        text: dict[str, JsonValue] = dict(own) if isinstance(own, Mapping) else {}
        if constraint.schema is not None:
            text["format"] = {
                "type": "json_schema",
                "name": constraint.name,
                "schema": dict(constraint.schema),
                "strict": constraint.is_strict and self._takes_strict,
            }
        elif constraint.is_json:
            text["format"] = {"type": "json_object"}
        return text

    # --- the conversation ------------------------------------------------------------------------

    def _items(self, messages: Sequence[Message]) -> Iterator[JsonValue]:
        for message in with_valid_ids(messages, lambda each: _ID.fullmatch(each) is not None):
            if message.role is MessageRole.ASSISTANT:
                yield from self._answer(message)
            elif message.role is MessageRole.TOOL:
                yield {
                    "type": "function_call_output",
                    "call_id": message.tool_call_id,
                    "output": message.content or "",
                }
            else:
                yield {"type": "message", "role": "user", "content": _content(message)}

    def _answer(self, message: Message) -> Iterator[JsonValue]:
        """An answer as it was given: thoughts, texts and calls in order."""
        text = message.content or ""
        parts = kept_parts(message, self._source, _KEPT)
        if parts is None:
            if text:
                yield _said(text)
            yield from map(_call, message.tool_calls)
            return
        at = 0
        for part in parts:
            if part.text is not None:
                yield _said(text[at : at + part.text])
                at += part.text
            elif part.call is not None:
                yield _call(message.tool_calls[part.call])
            else:
                yield dict(data_of(part))


_THOUGHTS: Final = "reasoning.encrypted_content"
_WITHOUT_THOUGHTS: Final = re.compile(r"(gpt-[34]|chatgpt|.*-chat)", re.IGNORECASE)
"""Models of OpenAI that refuse to be asked for their thoughts: they have none."""


def _options(options: ModelOptions) -> dict[str, JsonValue]:
    given: dict[str, JsonValue] = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        "max_output_tokens": options.max_output_tokens,
    }
    sent: dict[str, JsonValue] = {name: value for name, value in given.items() if value is not None}
    if options.reasoning_effort is not None:
        own = options.extra.get("reasoning")
        usual: dict[str, JsonValue] = {"effort": options.reasoning_effort, "summary": "auto"}
        sent["reasoning"] = {**usual, **own} if isinstance(own, Mapping) else usual
    return sent


def _said(text: str) -> JsonValue:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def _call(call: ToolCallRequest) -> JsonValue:
    return {
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": sendable_arguments(call),
    }


def _content(message: Message) -> JsonValue:
    parts = [_attachment(each) for each in message.attachments]
    text = message.content or ""
    return [*parts, {"type": "input_text", "text": text}] if text or not parts else parts


def _attachment(attachment: Attachment) -> JsonValue:
    encoded = base64.b64encode(attachment.data or b"").decode("ascii")
    url = f"data:{attachment.media_type};base64,{encoded}"
    if attachment.is_image:
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    return {"type": "input_file", "filename": attachment.name or "file", "file_data": url}
