"""`GeminiModel`: a model of Google's Gemini API."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import ClassVar, Final, Unpack
from urllib.parse import quote

from attrs import evolve

from minions.adapters.models.answer_assembly import TWO_ANSWERS, MalformedAnswerError
from minions.adapters.models.answer_blocks import FILTERED, AnswerBlock, AnswerBlocks, BlockKind
from minions.adapters.models.answer_fields import (
    count_in,
    json_text,
    mapping_in,
    mappings_in,
    text_in,
)
from minions.adapters.models.answer_reader import AnswerReader, WireForm
from minions.adapters.models.block_answers import BlockAnswer, BlockForm, StreamedBlocks
from minions.adapters.models.chat_failures import ChatPeer, status_failure
from minions.adapters.models.chat_request import encode_body
from minions.adapters.models.http_model import HttpModel, HttpModelOptions, peer_of
from minions.adapters.models.kept_parts import KeptPart, data_of, kept_parts
from minions.adapters.models.prompt_parts import (
    FunctionTools,
    OutputConstraint,
    arguments_of,
    constraint_of,
    conversation_of,
    merged,
    system_text,
    with_valid_ids,
)
from minions.adapters.models.server_route import provider_itself
from minions.contracts.calls import ModelDelta, ModelFailure, ModelOptions, Prompt
from minions.contracts.messages import (
    CUT_AT_LIMIT,
    Attachment,
    Message,
    MessageRole,
    TokenUsage,
    ToolCallRequest,
)
from minions.contracts.model_endpoints import ModelApi
from minions.contracts.stored_prefixes import PrefixStorage, PrefixStoreModel
from minions.data.json_values import JsonValue


class GeminiModel(HttpModel, PrefixStoreModel):
    """One model behind Gemini's generateContent.

    Example:
        `GeminiModel("gemini-2.5-flash")`, with the key of GEMINI_API_KEY
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str = "gemini",
        **options: Unpack[HttpModelOptions],
    ) -> None:
        """Configure the model; nothing is opened yet.

        Args:
            model: The server's name of the model.
            base_url: Base URL of the server, with `/v1beta`; None: Google's own, with the key of
                GEMINI_API_KEY where none is given.
            api_key: None: with a `base_url`, no key is sent.
            provider: The server's name in names, messages and metrics.
            options: As `HttpModelOptions` lists them.
        """
        if base_url is None:
            base_url, api_key = provider_itself("gemini", model, api_key)
        wire = GeminiWire(provider=provider, model=model)
        super().__init__(wire, peer_of(provider, model, base_url, api_key), **options)
        self._prefix_storage: PrefixStorage | None = None
        cache = self.prompt_cache
        if cache is not None and cache.storage_usd_per_mtok_hour is not None:
            from minions.adapters.models.gemini_prefixes import GeminiPrefixes

            self._prefix_storage = GeminiPrefixes(self, cache, wire.write_beginning)

    @property
    def prefix_storage(self) -> PrefixStorage | None:
        return self._prefix_storage


# --- `GeminiWire` --------------------------------------------------------------------------------


class GeminiWire(WireForm):
    """The form of Gemini's generateContent."""

    api: ClassVar[ModelApi] = ModelApi.GEMINI
    answer_words: ClassVar[str] = "candidates"
    api_words: ClassVar[str] = "the Gemini API (often ends in /v1beta)"

    def __init__(self, *, provider: str, model: str) -> None:
        """Requests to one model; `tunedModels/…` is one, too."""
        self._source = f"{self.api.value} {provider}/{model}"
        kind, slash, name = model.rpartition("/")
        kind = kind if slash and kind in ("models", "tunedModels") else "models"
        # Quoted: a name must not lead to another path of the server, to which the key goes.
        self._path = f"/{kind}/{quote(name if slash else model, safe='')}"
        found = re.search(r"gemini-(\d+)", model)
        self._is_leveled = found is None or int(found[1]) >= 3
        """Whether it takes a level of thinking; else it wants a number of tokens."""
        self._functions = FunctionTools()

    @property
    def path(self) -> str:
        return f"{self._path}:generateContent"

    @property
    def stream_path(self) -> str:
        return f"{self._path}:streamGenerateContent?alt=sse"

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        return {} if api_key is None else {"x-goog-api-key": api_key}

    def write(self, prompt: Prompt, *, stream: bool) -> bytes:
        messages, options = conversation_of(prompt), prompt.options
        constraint = constraint_of(prompt, self._functions)
        system = system_text(messages)
        if prompt.stored_prefix is not None:
            messages = messages[len(_stored_messages(messages)) :]
        contents = merged(self._parts_by_role(messages))
        if not contents:  # the API wants a message of the user; there is only what the system says
            contents, system = [("user", [{"text": system or _NOTHING}])], ""
        body: dict[str, JsonValue] = {
            **options.extra,
            "contents": [{"role": role, "parts": parts} for role, parts in contents],
        }
        if prompt.stored_prefix is not None:
            body["cachedContent"] = prompt.stored_prefix
        else:
            body.update(_tools(constraint))
            if system:
                body["systemInstruction"] = {"parts": [{"text": system}]}
        if config := self._config(options, constraint):
            body["generationConfig"] = config
        return encode_body(body)

    def write_beginning(self, prompt: Prompt) -> bytes | None:
        """The part of a request that an explicit cache can hold, as that of a cache: tools, the
        system's texts, and what several steps read; None: there is nothing behind it, or `extra`
        names a cache.
        """
        messages = conversation_of(prompt)
        stored = _stored_messages(messages)
        said = sum(each.role is not MessageRole.SYSTEM for each in messages[len(stored) :])
        if not said or "cachedContent" in prompt.options.extra:
            return None
        body: dict[str, JsonValue] = {
            "model": self._path.removeprefix("/"),
            **_tools(constraint_of(prompt, self._functions)),
        }
        if system := system_text(messages):
            body["systemInstruction"] = {"parts": [{"text": system}]}
        if contents := merged(self._parts_by_role(stored)):
            body["contents"] = [{"role": role, "parts": parts} for role, parts in contents]
        return encode_body(body)

    def plain_reader(self, peer: ChatPeer, prompt: Prompt) -> AnswerReader:
        return BlockAnswer(peer, self._form())

    def stream_reader(
        self, peer: ChatPeer, prompt: Prompt, clock: Callable[[], float], started: float
    ) -> AnswerReader:
        return StreamedBlocks(peer, self._form(), clock, started)

    def failure(
        self,
        peer: ChatPeer,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        now: datetime,
    ) -> ModelFailure:
        """A wrong key is told as 400, and how long to wait within the body."""
        if status == 400 and b"API_KEY_INVALID" in body:
            return evolve(status_failure(peer, 401, headers, body, now), status=status)
        wait = _RETRY_DELAY.search(body) if status == 429 else None
        if wait is not None and "retry-after" not in headers:
            headers = {**headers, "retry-after": wait[1].decode("ascii")}
        return status_failure(peer, status, headers, body, now)

    def _form(self) -> GeminiForm:
        return GeminiForm(AnswerBlocks(source=self._source))

    # --- options ---------------------------------------------------------------------------------

    def _config(self, options: ModelOptions, constraint: OutputConstraint) -> dict[str, JsonValue]:
        own = options.extra.get("generationConfig")
        config: dict[str, JsonValue] = dict(own) if isinstance(own, Mapping) else {}
        given: dict[str, JsonValue] = {
            "temperature": options.temperature,
            "topP": options.top_p,
            "maxOutputTokens": options.max_output_tokens,
            "seed": options.seed,
            "stopSequences": list(options.stop) or None,
            "thinkingConfig": self._thinking(options.reasoning_effort),
        }
        config |= {name: value for name, value in given.items() if value is not None}
        if constraint.schema is not None or constraint.is_json:
            config["responseMimeType"] = "application/json"
        if constraint.schema is not None:
            config["responseJsonSchema"] = dict(constraint.schema)
        return config

    def _thinking(self, effort: str | None) -> dict[str, JsonValue] | None:
        if effort is None:
            return None
        if self._is_leveled:
            return {"thinkingLevel": effort, "includeThoughts": True}
        budget = _BUDGETS.get(effort, -1)
        return {"thinkingBudget": budget, "includeThoughts": budget != 0}

    # --- the conversation ------------------------------------------------------------------------

    def _parts_by_role(self, messages: Sequence[Message]) -> Iterator[tuple[str, list[JsonValue]]]:
        valid = list(with_valid_ids(messages, bool))
        names = {call.id: call for each in valid for call in each.tool_calls}
        current = _last_question(valid)
        for index, message in enumerate(valid):
            if message.role is MessageRole.ASSISTANT:
                yield "model", self._answer(message, is_current=index > current)
            elif message.role is MessageRole.TOOL:
                yield "user", [_result(message, names.get(message.tool_call_id or ""))]
            else:
                yield "user", _user_parts(message)

    def _answer(self, message: Message, *, is_current: bool) -> list[JsonValue]:
        """An answer as it was given: its signatures stand where they stood."""
        text = message.content or ""
        parts = kept_parts(message, self._source, _KEPT)
        if parts is None:
            texts: list[JsonValue] = [{"text": text}] if text else []
            calls = [_call(each) for each in message.tool_calls]
            if calls and is_current and self._is_leveled:
                # Calls of another model have no signature, and are refused without one.
                calls[0] = {**calls[0], "thoughtSignature": _UNSIGNED}
            return [*texts, *calls] or [{"text": _NOTHING}]
        sent: list[JsonValue] = []
        at = 0
        for part in parts:
            piece, at = _piece(text, at, part)
            if part.call is not None:
                piece = _call(message.tool_calls[part.call])
            sent.append({**piece, **data_of(part)})
        return sent


_RETRY_DELAY: Final = re.compile(rb'"retryDelay": ?"(\d{1,6}(?:\.\d{1,9})?)s"')
_NOTHING: Final = "(empty)"
"""Stands where the API wants a text and there is none."""
_KEPT: Final = {"": ("thoughtSignature",)}
"""What goes back with texts and calls."""
_UNSIGNED: Final = "skip_thought_signature_validator"
"""What Google documents for calls that another model made."""
_BUDGETS: Final = {"none": 0, "minimal": 512, "low": 1_024, "medium": 8_192, "high": 24_576}


def _stored_messages(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages at the beginning that a cache can hold."""
    return [*takewhile(lambda each: each.role is MessageRole.SYSTEM or each.is_context, messages)]


def _last_question(messages: Sequence[Message]) -> int:
    """The index of the last message that a user said; -1: nobody did."""
    users = (MessageRole.USER, MessageRole.GOAL)
    return max((index for index, each in enumerate(messages) if each.role in users), default=-1)


def _piece(text: str, at: int, part: KeptPart) -> tuple[dict[str, JsonValue], int]:
    if part.text is None:
        return ({"text": ""} if part.call is None else {}), at
    return {"text": text[at : at + part.text]}, at + part.text


def _user_parts(message: Message) -> list[JsonValue]:
    parts = [_attachment(each) for each in message.attachments]
    if message.content or not parts:
        parts.append({"text": message.content or _NOTHING})
    return parts


def _attachment(attachment: Attachment) -> JsonValue:
    encoded = base64.b64encode(attachment.data or b"").decode("ascii")
    return {"inlineData": {"mimeType": attachment.media_type, "data": encoded}}


def _call(call: ToolCallRequest) -> dict[str, JsonValue]:
    return {"functionCall": {"id": call.id, "name": call.name, "args": arguments_of(call)}}


def _result(message: Message, call: ToolCallRequest | None) -> JsonValue:
    name = call.name if call is not None else message.name or "tool"
    response: JsonValue = {"result": message.content or ""}
    return {"functionResponse": {"id": message.tool_call_id, "name": name, "response": response}}


def _tools(constraint: OutputConstraint) -> dict[str, JsonValue]:
    if not constraint.tools:
        return {}
    declared: list[JsonValue] = [
        {
            "name": each.get("name"),
            "description": each.get("description") or "",
            "parametersJsonSchema": each.get("parameters"),
        }
        for each in constraint.tools
    ]
    sent: dict[str, JsonValue] = {"tools": [{"functionDeclarations": declared}]}
    config: dict[str, JsonValue] = {}
    if constraint.choice.startswith("name:"):
        config = {"mode": "ANY", "allowedFunctionNames": [constraint.choice.removeprefix("name:")]}
    elif constraint.choice in _MODES:
        config = {"mode": _MODES[constraint.choice]}
    return {**sent, "toolConfig": {"functionCallingConfig": config}} if config else sent


_MODES: Final = {"required": "ANY", "none": "NONE"}


# --- reads the documents of Gemini's generateContent into blocks ---------------------------------


_FILTERS: Final = frozenset(
    {
        *("SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"),
        *("IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "MODEL_ARMOR"),
    }
)
_SIGNATURE: Final = "thoughtSignature"


class GeminiForm(BlockForm):
    """One answer of Gemini's generateContent; a stream is a list of such documents."""

    def __init__(self, blocks: AnswerBlocks) -> None:
        super().__init__(blocks)
        self._id = ""

    def take_document(self, document: Mapping[str, object]) -> None:
        self.take_event(document)
        if self.blocks.finish_reason is None:
            raise MalformedAnswerError("it has no candidate that was finished")

    def take_event(self, document: Mapping[str, object]) -> Sequence[ModelDelta]:
        answer_id = text_in(document, "responseId")
        if self._id and answer_id and answer_id != self._id:
            raise MalformedAnswerError(TWO_ANSWERS)
        self._id = self._id or answer_id
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
