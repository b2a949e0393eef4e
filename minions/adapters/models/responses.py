"""`ResponsesModel`: a model of OpenAI, or of a server that implements its responses API."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, Unpack

from minions.adapters.models.answer_assembly import TWO_ANSWERS, MalformedAnswerError, read_usage
from minions.adapters.models.answer_blocks import FILTERED, AnswerBlock, AnswerBlocks, BlockKind
from minions.adapters.models.answer_fields import json_text, mapping_in, mappings_in, text_in
from minions.adapters.models.answer_reader import AnswerReader, WireForm
from minions.adapters.models.block_answers import BlockAnswer, BlockForm, StreamedBlocks
from minions.adapters.models.cache_rules import cache_key_of
from minions.adapters.models.chat_failures import ChatPeer
from minions.adapters.models.chat_request import encode_body
from minions.adapters.models.endpoints import defers_tools
from minions.adapters.models.http_model import HttpModel, HttpModelOptions, peer_of
from minions.adapters.models.kept_parts import data_of, kept_parts
from minions.adapters.models.prompt_parts import (
    FunctionTools,
    OutputConstraint,
    arguments_of,
    constraint_of,
    conversation_of,
    sendable_arguments,
    system_text,
    with_valid_ids,
)
from minions.adapters.models.server_route import openai_itself
from minions.adapters.models.strict_schema import is_strict_schema
from minions.contracts.calls import ModelCapabilities, ModelDelta, ModelOptions, Prompt
from minions.contracts.messages import (
    CUT_AT_LIMIT,
    Attachment,
    Message,
    MessageRole,
    ToolCallRequest,
)
from minions.contracts.model_endpoints import ModelApi
from minions.contracts.tool_search import FIND_TOOLS, found_names, found_tools
from minions.data.json_values import JsonValue, parse_json


class ResponsesModel(HttpModel):
    """One model behind OpenAI's responses API. Nothing is stored there.

    Example:
        `ResponsesModel("gpt-5-mini")`, with the key of OPENAI_API_KEY
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str = "openai",
        **options: Unpack[HttpModelOptions],
    ) -> None:
        """Configure the model; nothing is opened yet.

        Args:
            model: The server's name of the model.
            base_url: Base URL of the server; None: OpenAI's, or that of OPENAI_BASE_URL, with the
                key of OPENAI_API_KEY where none is given.
            api_key: None: with a `base_url`, no key is sent.
            provider: The server's name in names, messages and metrics.
            options: As `HttpModelOptions` lists them.
        """
        if base_url is None:
            base_url, api_key = openai_itself(model, api_key)
        capabilities = options.get("capabilities") or ModelCapabilities(
            tools_with_schema=True,
            defers_tools=defers_tools("openai", model, base_url, ModelApi.RESPONSES),
        )
        options["capabilities"] = capabilities
        wire = ResponsesWire(
            provider=provider,
            model=model,
            takes_strict=capabilities.takes_strict,
            defers_tools=capabilities.defers_tools,
        )
        super().__init__(wire, peer_of(provider, model, base_url, api_key), **options)


# --- `ResponsesWire` -----------------------------------------------------------------------------


_KEPT: Final = {"reasoning": ("type", "id", "summary", "encrypted_content")}
"""What goes back beside texts and calls."""
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ResponsesWire(WireForm):
    """The form of OpenAI's responses."""

    api: ClassVar[ModelApi] = ModelApi.RESPONSES
    answer_words: ClassVar[str] = "a response"
    api_words: ClassVar[str] = "OpenAI's responses API (often ends in /v1)"

    def __init__(
        self, *, provider: str, model: str, takes_strict: bool = True, defers_tools: bool = False
    ) -> None:
        """Requests to one model.

        Args:
            takes_strict: Whether the server knows `strict` beside a schema.
            defers_tools: Whether tools that were found are loaded where they were found.
        """
        self._defers_tools = defers_tools
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
        found: Mapping[str, JsonValue] | None = None
        if self._defers_tools and prompt.searches_tools:
            names = found_tools(prompt)
            found = {
                str(each["name"]): each for each in constraint.tools if each.get("name") in names
            }
        body: dict[str, JsonValue] = {
            **options.extra,
            "model": self._model,
            "store": False,
            **self._include_thoughts(options.extra.get("include")),
            "input": list(self._items(messages, found)),
            **_options(options),
            **self._tools(constraint, found),
        }
        if self.sends_cache_key and "prompt_cache_key" not in options.extra:
            body["prompt_cache_key"] = cache_key_of(prompt)
        if self.keeps_long:
            body.setdefault("prompt_cache_retention", "24h")
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

    def _include_thoughts(self, own: JsonValue) -> dict[str, JsonValue]:
        """`include` of the request, with the encrypted thoughts of models that think."""
        wanted = list(own) if isinstance(own, list | tuple) else []
        if self._has_thoughts and _THOUGHTS not in wanted:
            wanted.append(_THOUGHTS)
        return {"include": wanted} if wanted else {}

    # --- tools and output ------------------------------------------------------------------------

    def _tools(
        self, constraint: OutputConstraint, found: Mapping[str, JsonValue] | None
    ) -> dict[str, JsonValue]:
        if not constraint.tools:
            return {}
        tools = [self._tool(each) for each in constraint.tools]
        if found is not None:  # the others stand behind the search that found them
            tools = [
                _search_tool(each) if each["name"] == FIND_TOOLS else each
                for each in tools
                if each["name"] not in found
            ]
        sent: dict[str, JsonValue] = {"tools": [*tools]}
        if constraint.choice.startswith("name:"):
            name = constraint.choice.removeprefix("name:")
            sent["tool_choice"] = {"type": "function", "name": name}
        elif constraint.choice != "auto":
            sent["tool_choice"] = constraint.choice
        if not constraint.is_parallel:
            sent["parallel_tool_calls"] = False
        return sent

    def _tool(self, function: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
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

    def _items(
        self, messages: Sequence[Message], found: Mapping[str, JsonValue] | None
    ) -> Iterator[JsonValue]:
        """The conversation.

        Args:
            found: The tools that were found, by name; None: the server loads no tools later.
        """
        call = _call if found is None else _call_or_search
        for message in with_valid_ids(messages, lambda each: _ID.fullmatch(each) is not None):
            if message.role is MessageRole.ASSISTANT:
                yield from self._answer(message, call)
            elif message.role is MessageRole.TOOL:
                if found is not None and message.name == FIND_TOOLS:
                    functions = [found[name] for name in found_names(message) if name in found]
                    yield self._search_output(message, functions)
                    continue
                yield {
                    "type": "function_call_output",
                    "call_id": message.tool_call_id,
                    "output": message.content or "",
                }
            else:
                yield {"type": "message", "role": "user", "content": _content(message)}

    def _search_output(self, message: Message, functions: Sequence[JsonValue]) -> JsonValue:
        """The result of a search, which loads these tools."""
        return {
            "type": "tool_search_output",
            "call_id": message.tool_call_id,
            "execution": "client",
            "status": "completed",
            "tools": [
                {**self._tool(each), "defer_loading": True}
                for each in functions
                if isinstance(each, Mapping)
            ],
        }

    def _answer(
        self, message: Message, call: Callable[[ToolCallRequest], JsonValue]
    ) -> Iterator[JsonValue]:
        """An answer as it was given: thoughts, texts and calls in order."""
        text = message.content or ""
        parts = kept_parts(message, self._source, _KEPT)
        if parts is None:
            if text:
                yield _answer_item(text)
            yield from map(call, message.tool_calls)
            return
        at = 0
        for part in parts:
            if part.text is not None:
                yield _answer_item(text[at : at + part.text])
                at += part.text
            elif part.call is not None:
                yield call(message.tool_calls[part.call])
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


def _answer_item(text: str) -> JsonValue:
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


def _call_or_search(call: ToolCallRequest) -> JsonValue:
    """A call; that of the tool that finds tools in the server's own form."""
    if call.name != FIND_TOOLS:
        return _call(call)
    return {
        "type": _SEARCH_CALL,
        "call_id": call.id,
        "execution": "client",
        "status": "completed",
        "arguments": arguments_of(call),
    }


def _search_tool(tool: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The tool that finds tools as the server knows it: carried out by the client."""
    told = {name: tool[name] for name in ("description", "parameters")}
    return {"type": "tool_search", "execution": "client", **told}


_SEARCH_CALL: Final = "tool_search_call"


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


# --- reads the documents of OpenAI's responses into blocks ---------------------------------------


_KINDS: Final = {
    "message": BlockKind.TEXT,
    "function_call": BlockKind.CALL,
    _SEARCH_CALL: BlockKind.CALL,
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
        self._is_begun = False
        self._number = -1
        """Of the newest document of a stream."""
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
        number = document.get("sequence_number")
        if isinstance(number, int):
            if number < self._number:
                raise MalformedAnswerError(TWO_ANSWERS)
            self._number = number
        match kind:
            case "response.created":
                if self._is_begun:
                    raise MalformedAnswerError(TWO_ANSWERS)
                self._is_begun = True
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
        type_ = text_in(item, "type")
        kind = _KINDS.get(type_)
        is_search = type_ == _SEARCH_CALL
        if kind is None or (is_search and text_in(item, "execution") != "client"):
            self.blocks.skip(item)
            return None
        name = FIND_TOOLS if is_search else text_in(item, "name")
        return self.blocks.add(kind, call_id=text_in(item, "call_id"), name=name)

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
        whole = self._text_of(block, item)
        if not block.has_text:
            return self.blocks.write(block, whole)
        if block.kind is not BlockKind.THOUGHT and not _is_same(block.text.text, whole):
            raise MalformedAnswerError("the fragments of a part are not what it is as a whole")
        return ()

    def _complete(self, block: AnswerBlock, item: Mapping[str, object]) -> None:
        if block.kind is BlockKind.THOUGHT and item.get("encrypted_content"):
            names = ("type", "id", "summary", "encrypted_content")
            block.data = {name: item[name] for name in names if name in item}
        elif block.kind is BlockKind.TEXT and not self._refusals:
            self._refusals += list(_texts(item, "content", "refusal"))

    def _text_of(self, block: AnswerBlock, item: Mapping[str, object]) -> str:
        if block.kind is BlockKind.CALL:
            arguments = item.get("arguments")
            is_search = isinstance(arguments, dict)
            return json_text(arguments) if is_search else text_in(item, "arguments")
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


def _is_same(fragments: str, whole: str) -> bool:
    """Whether fragments are the part as a whole, if that came; JSON may be spaced otherwise."""
    if not whole.strip() or fragments.strip() == whole.strip():
        return True
    try:
        return parse_json(fragments) == parse_json(whole)
    except ValueError:
        return False


def _texts(item: Mapping[str, object], parts: str, name: str) -> Iterator[str]:
    return (text for part in mappings_in(item, parts) if (text := text_in(part, name)))
