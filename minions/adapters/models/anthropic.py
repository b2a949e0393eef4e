"""`AnthropicModel`: a model of Anthropic, or of a server that implements its messages API."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import ClassVar, Final, Unpack

from minions.adapters.models.answer_assembly import TWO_ANSWERS, MalformedAnswerError
from minions.adapters.models.answer_blocks import AnswerBlock, AnswerBlocks, BlockKind
from minions.adapters.models.answer_fields import (
    count_in,
    json_text,
    mapping_in,
    mappings_in,
    text_in,
)
from minions.adapters.models.answer_reader import AnswerReader, WireForm
from minions.adapters.models.anthropic_schema import expressible_schema
from minions.adapters.models.block_answers import BlockAnswer, BlockForm, StreamedBlocks
from minions.adapters.models.chat_failures import ChatPeer
from minions.adapters.models.chat_request import encode_body
from minions.adapters.models.endpoints import claude_version, defers_tools, takes_schema
from minions.adapters.models.http_model import HttpModel, HttpModelOptions, peer_of
from minions.adapters.models.kept_parts import data_of, kept_parts
from minions.adapters.models.prompt_parts import (
    FunctionTools,
    OutputConstraint,
    arguments_of,
    constraint_of,
    conversation_of,
    merged,
    with_valid_ids,
)
from minions.adapters.models.server_route import provider_itself
from minions.adapters.models.strict_schema import is_strict_schema
from minions.contracts.calls import ModelCapabilities, ModelDelta, ModelOptions, Prompt
from minions.contracts.instructions import OutputMode
from minions.contracts.messages import (
    CUT_AT_LIMIT,
    Attachment,
    Message,
    MessageRole,
    TokenUsage,
    ToolCallRequest,
)
from minions.contracts.model_endpoints import ModelApi
from minions.contracts.tool_search import found_names, found_tools
from minions.data.json_values import JsonValue


class AnthropicModel(HttpModel):
    """One model behind Anthropic's messages API.

    Example:
        `AnthropicModel("claude-sonnet-4-5")`, with the key of ANTHROPIC_API_KEY
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str = "anthropic",
        **options: Unpack[HttpModelOptions],
    ) -> None:
        """Configure the model; nothing is opened yet.

        Args:
            model: The server's name of the model.
            base_url: Base URL of the server, with `/v1`; None: Anthropic's own, with the key of
                ANTHROPIC_API_KEY where none is given.
            api_key: None: with a `base_url`, no key is sent.
            provider: The server's name in names, messages and metrics.
            options: As `HttpModelOptions` lists them.
        """
        if base_url is None:
            base_url, api_key = provider_itself("anthropic", model, api_key)
        capabilities = options.get("capabilities") or ModelCapabilities(
            output_mode=OutputMode.JSON_SCHEMA if takes_schema(model) else OutputMode.TOOLS,
            tools_with_schema=True,
            defers_tools=defers_tools("anthropic", model, base_url, ModelApi.MESSAGES),
        )
        options["capabilities"] = capabilities
        wire = AnthropicWire(
            provider=provider,
            model=model,
            takes_strict=capabilities.takes_strict,
            defers_tools=capabilities.defers_tools,
        )
        super().__init__(wire, peer_of(provider, model, base_url, api_key), **options)


# --- `AnthropicWire` -----------------------------------------------------------------------------


_VERSION: Final = "2023-06-01"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CACHE_CONTROL: Final = "cache_control"
_CACHED: Final[Mapping[str, JsonValue]] = {_CACHE_CONTROL: {"type": "ephemeral"}}
_CACHED_LONG: Final[Mapping[str, JsonValue]] = {_CACHE_CONTROL: {"type": "ephemeral", "ttl": "1h"}}
_MOST_STRICT_TOOLS: Final = 20
_KEPT: Final = {
    "thinking": ("type", "thinking", "signature"),
    "redacted_thinking": ("type", "data"),
}
"""What goes back beside texts and calls."""


class AnthropicWire(WireForm):
    """The form of Anthropic's messages."""

    api: ClassVar[ModelApi] = ModelApi.MESSAGES
    answer_words: ClassVar[str] = "a message"
    api_words: ClassVar[str] = "Anthropic's messages API (often ends in /v1)"

    def __init__(
        self, *, provider: str, model: str, takes_strict: bool = True, defers_tools: bool = False
    ) -> None:
        """Requests to one model.

        Args:
            takes_strict: Whether `strict` is set on tools whose schemas allow it.
            defers_tools: Whether tools that were found are loaded where they were found.
        """
        self._defers_tools = defers_tools
        self._model = model
        self._source = f"{self.api.value} {provider}/{model}"
        self._takes_strict = takes_strict
        self._version = claude_version(model)
        self._functions = FunctionTools()

    @property
    def path(self) -> str:
        return "/messages"

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        version = {"anthropic-version": _VERSION}
        return version if api_key is None else {**version, "x-api-key": api_key}

    def write(self, prompt: Prompt, *, stream: bool) -> bytes:
        constraint, messages = constraint_of(prompt, self._functions), conversation_of(prompt)
        thinking = self._thinking(prompt.options, messages)
        found = found_tools(prompt) if self._defers_tools else _NO_NAMES
        body: dict[str, JsonValue] = {
            **prompt.options.extra,
            "model": self._model,
            **thinking,
            **self._sampling(prompt.options, thinking),
            **self._conversation(messages, found),
            **self._tools(constraint, found, is_thinking=self._thinks(prompt.options, thinking)),
        }
        if _CACHE_CONTROL not in prompt.options.extra:
            _mark_stable(body, prompt, _CACHED_LONG if self.keeps_long else _CACHED)
        elif body[_CACHE_CONTROL] is None:
            del body[_CACHE_CONTROL]
        if config := _output_config(prompt.options, thinking, constraint):
            body["output_config"] = config
        if stream:
            body["stream"] = True
        return encode_body(body)

    def plain_reader(self, peer: ChatPeer, prompt: Prompt) -> AnswerReader:
        return BlockAnswer(peer, self._form(prompt))

    def stream_reader(
        self, peer: ChatPeer, prompt: Prompt, clock: Callable[[], float], started: float
    ) -> AnswerReader:
        return StreamedBlocks(peer, self._form(prompt), clock, started)

    def _form(self, prompt: Prompt) -> AnthropicForm:
        constraint = constraint_of(prompt, self._functions)
        is_called = constraint.schema is not None and _bound_schema(constraint) is None
        answer_tool = constraint.name if is_called else None
        blocks = AnswerBlocks(source=self._source, answer_tool=answer_tool)
        return AnthropicForm(blocks, keeps_long=self.keeps_long)

    # --- options ---------------------------------------------------------------------------------

    def _thinking(self, options: ModelOptions, messages: Sequence[Message]) -> dict[str, JsonValue]:
        """The `thinking` of the request; empty: as the model does by itself, or as `extra` says."""
        effort = options.reasoning_effort
        if effort is None or "thinking" in options.extra:
            return {}
        if effort in ("none", "minimal"):
            return {"thinking": {"type": "disabled"}}
        if self._version >= (4, 6):
            return {"thinking": {"type": "adaptive", "display": "summarized"}}
        budget = _BUDGETS.get(effort, _BUDGETS["medium"])
        if options.max_output_tokens is not None:
            budget = min(budget, options.max_output_tokens // 2)
        if budget < _LEAST_BUDGET or self._is_without_thought(messages):
            return {}
        return {"thinking": {"type": "enabled", "budget_tokens": budget}}

    def _thinks(self, options: ModelOptions, thinking: Mapping[str, JsonValue]) -> bool:
        """Whether the model thinks; from Claude 5 on it does unless it is told not to."""
        setting = {**options.extra, **thinking}.get("thinking")
        if isinstance(setting, Mapping):
            return setting.get("type") != "disabled"
        return "claude" in self._model and self._version >= (5, 0)

    def _is_without_thought(self, messages: Sequence[Message]) -> bool:
        """Whether the calls whose results come next were made without a thought of this model:
        such a loop is not taken with thinking switched on.
        """
        last = next(
            (each for each in reversed(messages) if each.role is not MessageRole.TOOL), None
        )
        if last is None or not last.tool_calls:
            return False
        parts = kept_parts(last, self._source, _KEPT)
        return not parts or parts[0].text is not None or parts[0].call is not None

    def _sampling(
        self, options: ModelOptions, thinking: Mapping[str, JsonValue]
    ) -> dict[str, JsonValue]:
        given: dict[str, JsonValue] = {
            "max_tokens": options.max_output_tokens or self._most_tokens(options, thinking),
            "temperature": options.temperature,
            "top_p": options.top_p,
            "stop_sequences": list(options.stop) or None,
        }
        return {name: value for name, value in given.items() if value is not None}

    def _most_tokens(self, options: ModelOptions, thinking: Mapping[str, JsonValue]) -> JsonValue:
        """`max_tokens`, which the API requires, where the recipe says nothing."""
        if "max_tokens" in options.extra:
            return options.extra["max_tokens"]
        usual = 16_384 if self._version >= (4, 0) else 4_096
        setting = thinking.get("thinking")
        budget = setting.get("budget_tokens") if isinstance(setting, Mapping) else None
        return usual + budget if isinstance(budget, int) else usual

    # --- tools and output ------------------------------------------------------------------------

    def _tools(
        self, constraint: OutputConstraint, found: Collection[str], *, is_thinking: bool
    ) -> dict[str, JsonValue]:
        tools: list[JsonValue] = []
        strict = 0
        for function in constraint.tools:
            tool = self._tool(function, may_be_strict=strict < _MOST_STRICT_TOOLS)
            strict += "strict" in tool
            # It is no part of the cached start: the reference to it loads it.
            tools.append({**tool, _DEFERRED: True} if tool["name"] in found else tool)
        choice = _CHOICES.get(constraint.choice, constraint.choice)
        if constraint.schema is not None and _bound_schema(constraint) is None:
            # A schema that the server cannot bind is asked for as the arguments of a tool.
            tools.append({**_answer_tool(constraint)})
            choice = "any" if constraint.tools else f"name:{constraint.name}"
        if not tools:
            return {}
        if is_thinking and choice not in ("auto", "none"):
            choice = "auto"  # a model that thinks cannot be forced to call
        form: dict[str, JsonValue] = {"type": choice}
        if choice.startswith("name:"):
            form = {"type": "tool", "name": choice.removeprefix("name:")}
        if not constraint.is_parallel and choice != "none":
            form["disable_parallel_tool_use"] = True
        return (
            {"tools": tools} if form == {"type": "auto"} else {"tools": tools, "tool_choice": form}
        )

    def _tool(
        self, function: Mapping[str, JsonValue], *, may_be_strict: bool
    ) -> dict[str, JsonValue]:
        parameters = function.get("parameters")
        schema = parameters if isinstance(parameters, Mapping) else {}
        tool: dict[str, JsonValue] = {"name": function.get("name"), "input_schema": dict(schema)}
        if function.get("description"):
            tool["description"] = function["description"]
        if not (may_be_strict and self._takes_strict and is_strict_schema(schema)):
            return tool
        bound = expressible_schema(schema)
        return tool if bound is None else {**tool, "input_schema": bound, "strict": True}

    # --- messages --------------------------------------------------------------------------------

    def _conversation(
        self, messages: Sequence[Message], found: Collection[str]
    ) -> dict[str, JsonValue]:
        system = [each.content for each in messages if each.role is MessageRole.SYSTEM]
        texts = list(filter(None, system))
        sent_by = merged(self._parts_by_role(messages, found))
        if not sent_by:  # the API wants a message of the user; there is only what the system says
            text = "\n\n".join(texts) or _NOTHING
            sent_by, texts = [("user", [{"type": "text", "text": text}])], []
        if sent_by[0][0] != "user":
            sent_by.insert(0, ("user", [{"type": "text", "text": _NOTHING}]))
        sent: list[JsonValue] = [
            {"role": role, "content": _results_first(parts)} for role, parts in sent_by
        ]
        if not texts:
            return {"messages": sent}
        # Several blocks, so that steps can share the first; they are read as one text.
        first, *others = texts
        blocks: list[JsonValue] = [{"type": "text", "text": first}]
        if others:
            blocks.append({"type": "text", "text": "\n\n" + "\n\n".join(others)})
        return {"system": blocks, "messages": sent}

    def _parts_by_role(
        self, messages: Sequence[Message], found: Collection[str]
    ) -> Iterator[tuple[str, list[JsonValue]]]:
        for message in with_valid_ids(messages, lambda each: _ID.fullmatch(each) is not None):
            if message.role is MessageRole.ASSISTANT:
                yield "assistant", self._answer(message) or [{"type": "text", "text": _NOTHING}]
            elif message.role is MessageRole.TOOL:
                result: dict[str, JsonValue] = {
                    "type": "tool_result",
                    "tool_use_id": message.tool_call_id,
                }
                names = [name for name in found_names(message) if name in found] if found else ()
                if names:
                    result["content"] = [
                        {"type": "tool_reference", "tool_name": name} for name in names
                    ]
                elif message.content:
                    result["content"] = message.content
                yield "user", [result]
            else:
                parts = [_attachment(each) for each in message.attachments]
                text = message.content or ""
                if text.strip() or not parts:
                    parts.append({"type": "text", "text": text if text.strip() else _NOTHING})
                yield "user", parts

    def _answer(self, message: Message) -> list[JsonValue]:
        """An answer as it was given: thoughts with their signatures, texts and calls in order."""
        text, calls = message.content or "", [_call(each) for each in message.tool_calls]
        parts = kept_parts(message, self._source, _KEPT)
        if parts is None:
            texts: list[JsonValue] = [{"type": "text", "text": text}] if text.strip() else []
            return [*texts, *calls]
        sent: list[JsonValue] = []
        at = 0
        for part in parts:
            if part.text is not None:
                piece, at = text[at : at + part.text], at + part.text
                sent += [{"type": "text", "text": piece}] if piece.strip() else []
            elif part.call is not None:
                sent.append(calls[part.call])
            else:
                sent.append(dict(data_of(part)))
        return sent


_NO_NAMES: Final[frozenset[str]] = frozenset()
_DEFERRED: Final = "defer_loading"
_NOTHING: Final = "(empty)"
"""Stands where the API wants a text and there is none."""
_CHOICES: Final = {"required": "any"}
_LEAST_BUDGET: Final = 1_024
_BUDGETS: Final = {"low": 2_048, "medium": 8_192, "high": 16_384, "xhigh": 24_576, "max": 31_999}
"""Tokens of thought of models that want a number."""


def _bound_schema(constraint: OutputConstraint) -> dict[str, JsonValue] | None:
    """The schema as the server binds it; None: there is none, or it cannot."""
    return expressible_schema(constraint.schema) if constraint.schema is not None else None


def _answer_tool(constraint: OutputConstraint) -> dict[str, JsonValue]:
    return {
        "name": constraint.name,
        "description": "Give the answer.",
        "input_schema": dict(constraint.schema or {}),
    }


def _output_config(
    options: ModelOptions, thinking: Mapping[str, JsonValue], constraint: OutputConstraint
) -> dict[str, JsonValue]:
    own = options.extra.get("output_config")
    config: dict[str, JsonValue] = dict(own) if isinstance(own, Mapping) else {}
    setting = thinking.get("thinking")
    if isinstance(setting, Mapping) and setting.get("type") == "adaptive":
        config["effort"] = options.reasoning_effort
    if (schema := _bound_schema(constraint)) is not None:
        config["format"] = {"type": "json_schema", "schema": schema}
    return config


def _results_first(parts: list[JsonValue]) -> list[JsonValue]:
    """The parts of a message of the user: results of tools stand before all else."""
    results = [part for part in parts if _is_result(part)]
    return [*results, *(part for part in parts if not _is_result(part))] if results else parts


def _is_result(part: JsonValue) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "tool_result"


def _mark_stable(
    body: Mapping[str, JsonValue], prompt: Prompt, marker: Mapping[str, JsonValue]
) -> None:
    """Place markers for the provider's cache, four at the most: each stands behind what further
    prompts are expected to begin with.

    Behind the first system text, which the steps of a recipe share; behind the others, or behind
    what several steps read and behind the examples, which items and runs share; and behind the last
    message, where the next request of a conversation or a loop of tool calls begins with it.

    Behind results of tools the next request comes at once: there the usual time is enough, also
    where `marker` asks for more. A longer one may not stand behind a shorter one; that is the last.
    """
    system, messages = body.get("system"), body["messages"]
    for at in sorted({0, len(system) - 1}) if isinstance(system, list) else ():
        _mark(system, at, marker)
    if not system:
        _mark(body.get("tools"), -1, marker)
    if not isinstance(messages, list):
        return
    said = [each for each in prompt.messages if each.role is not MessageRole.SYSTEM]
    first = messages[0].get("content") if isinstance(messages[0], Mapping) else None
    if shared := sum(each.is_context for each in said):
        _mark(first, shared - 1, marker)
    examples = sum(each.is_fixed_example for each in said)
    if examples and isinstance(messages[examples - 1], Mapping):
        _mark(messages[examples - 1].get("content"), -1, marker)
    answers = (each for each in said if each.role is MessageRole.ASSISTANT)
    grows = bool(prompt.tools) or not all(each.is_example for each in answers)
    if grows and isinstance(messages[-1], Mapping):
        is_result = said[-1].role is MessageRole.TOOL
        _mark(messages[-1].get("content"), -1, _CACHED if is_result else marker)


def _mark(parts: JsonValue, at: int, marker: Mapping[str, JsonValue]) -> None:
    """Mark that part, or the last one before it that may be: tools that are loaded later are no
    part of the start.
    """
    if not isinstance(parts, list):
        return
    for place in range(at % len(parts), -1, -1):
        part = parts[place]
        if isinstance(part, Mapping) and _DEFERRED not in part:
            parts[place] = {**part, **marker}
            return


def _attachment(attachment: Attachment) -> JsonValue:
    encoded = base64.b64encode(attachment.data or b"").decode("ascii")
    kind = "image" if attachment.is_image else "document"
    source = {"type": "base64", "media_type": attachment.media_type, "data": encoded}
    return {"type": kind, "source": source}


def _call(call: ToolCallRequest) -> JsonValue:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_of(call)}


# --- reads the documents of Anthropic's messages into blocks -------------------------------------


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
_HOUR_TOKENS: Final = "ephemeral_1h_input_tokens"


class AnthropicForm(BlockForm):
    """One answer of Anthropic's messages."""

    def __init__(self, blocks: AnswerBlocks, *, keeps_long: bool = False) -> None:
        """Read one answer.

        Args:
            keeps_long: Whether what is stored for it is kept for an hour, where the answer does not
                say how much of it is.
        """
        super().__init__(blocks)
        self._keeps_long = keeps_long
        self._kept_long: int | None = None
        """Tokens that are stored for an hour; None: the server has not said so."""
        self._open: dict[object, AnswerBlock] = {}
        """Blocks of a stream by their index."""
        self._skipped: set[int] = set()
        """Indices of parts that mean nothing here."""
        self._is_begun = False
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
                if self._is_begun:
                    raise MalformedAnswerError(TWO_ANSWERS)
                self._is_begun = True
                self._take_frame(mapping_in(document, "message"))
            case "content_block_start":
                return self._start(document.get("index"), mapping_in(document, "content_block"))
            case "content_block_delta":
                return self._extend(document.get("index"), mapping_in(document, "delta"))
            case "content_block_stop":
                self._check_begun(document.get("index"))
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
        if not isinstance(index, int):
            raise MalformedAnswerError(f"a part begins with the index {index!r:.40}")
        if index in self._open or index in self._skipped:
            raise MalformedAnswerError(f"part {index} begins twice")
        block = self._begin(content)
        if block is None:
            self._skipped.add(index)
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
            self._check_begun(index)
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

    def _check_begun(self, index: object) -> None:
        is_known = isinstance(index, int) and (index in self._open or index in self._skipped)
        if not is_known:
            raise MalformedAnswerError(f"it speaks of part {index!r:.40}, which has not begun")

    def _take_frame(self, document: Mapping[str, object]) -> None:
        self.blocks.model = text_in(document, "model") or self.blocks.model
        self._take_usage(mapping_in(document, "usage"))
        self._take_reason(document)

    def _take_usage(self, usage: Mapping[str, object]) -> None:
        """Counts are totals so far; a document names only those that it knows."""
        for name in _COUNTS:
            if name in usage:
                self._counts[name] = count_in(usage, name)
        by_time = mapping_in(usage, "cache_creation")
        if _HOUR_TOKENS in by_time:
            self._kept_long = count_in(by_time, _HOUR_TOKENS)
        read = self._counts["cache_read_input_tokens"]
        written = self._counts["cache_creation_input_tokens"]
        kept_long = self._kept_long
        if kept_long is None:
            kept_long = written if self._keeps_long else 0
        self.blocks.usage = TokenUsage(
            input_tokens=self._counts["input_tokens"] + read + written,
            output_tokens=self._counts["output_tokens"],
            cached_tokens=read,
            cache_write_tokens=written,
            long_cache_write_tokens=min(written, kept_long),
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
