"""Anthropic's messages, checked as strictly as by the real server."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import ClassVar, cast

from minions.adapters.models.anthropic import AnthropicModel
from minions.data.json_values import JsonValue
from minions.testing.endpoint import RecordedRequest
from strict_servers.server import (
    KEY,
    Json,
    Planned,
    Refusal,
    StrictServer,
    allow,
    halves,
    signature_of,
)

_TOP = {
    *("model", "max_tokens", "messages", "system", "tools", "tool_choice", "thinking", "stream"),
    *("temperature", "top_p", "top_k", "stop_sequences", "output_config", "metadata"),
}
_BLOCKS = {
    "text": {"type", "text", "cache_control"},
    "image": {"type", "source", "cache_control"},
    "document": {"type", "source", "cache_control"},
    "tool_use": {"type", "id", "name", "input", "cache_control"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
}
_REASONS = {"length": "max_tokens", "refusal": "refusal", "filtered": "refusal"}
_USAGE: JsonValue = {
    "input_tokens": 5,
    "cache_creation_input_tokens": 2,
    "cache_read_input_tokens": 4,
    "output_tokens": 3,
}
_UNBOUND = {"minimum", "maximum", "minLength", "maxLength", "maxItems", "pattern", "multipleOf"}


class StrictAnthropic(StrictServer):
    name: ClassVar[str] = "messages"
    cache_write_tokens: ClassVar[int] = 2

    def model(self, base_url: str, model: str | None = None) -> AnthropicModel:
        return AnthropicModel(model or "claude-sonnet-4-5", base_url=base_url, api_key=KEY)

    def error(self, status: int, message: str) -> JsonValue:
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        error: JsonValue = {"type": kinds.get(status, "invalid_request_error"), "message": message}
        return {"type": "error", "error": error, "request_id": "req_1"}

    # --- the request -----------------------------------------------------------------------------

    def check(self, request: RecordedRequest) -> None:
        if request.path != "/v1/messages":
            raise Refusal("Not found", 404)
        if request.headers.get("x-api-key") != KEY or "authorization" in request.headers:
            raise Refusal("invalid x-api-key", 401)
        if request.headers.get("anthropic-version") != "2023-06-01":
            raise Refusal("anthropic-version: header is required")
        body = cast("Json", request.body)
        allow(body, _TOP, "body")
        for name in ("model", "max_tokens", "messages"):
            if not body.get(name):
                raise Refusal(f"{name}: Field required")
        self._check_thinking(body)
        self._check_tools(body)
        self._check_output(body)
        self._check_messages(body)
        if json.dumps(body).count('"cache_control"') > 4:
            raise Refusal("A maximum of 4 blocks with cache_control may be provided")

    def _check_thinking(self, body: Json) -> None:
        thinking = body.get("thinking") or {"type": "disabled"}
        if thinking["type"] == "disabled":
            return
        allow(thinking, {"type", "budget_tokens", "display"}, "thinking")
        is_new = "4-7" in body["model"]
        if is_new != (thinking["type"] == "adaptive"):
            raise Refusal(f"thinking.type: '{thinking['type']}' is not supported on this model")
        if thinking["type"] == "enabled" and not (
            1024 <= thinking["budget_tokens"] < body["max_tokens"]
        ):
            raise Refusal("`max_tokens` must be greater than `thinking.budget_tokens`")
        if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
            raise Refusal("Thinking may not be enabled when tool_choice forces tool use")

    def _check_tools(self, body: Json) -> None:
        known = {"name", "description", "input_schema", "strict", "cache_control", "defer_loading"}
        if body.get("tools") and all(each.get("defer_loading") for each in body["tools"]):
            raise Refusal("At least one tool must have defer_loading=false")
        for index, tool in enumerate(body.get("tools", ())):
            allow(tool, known, f"tools.{index}")
            if tool.get("defer_loading") and "cache_control" in tool:
                raise Refusal(f"tools.{index}: defer_loading and cache_control exclude each other")
            if tool["input_schema"].get("type") != "object":
                raise Refusal(f"tools.{index}.input_schema.type: Input should be 'object'")
            if tool.get("strict"):
                _check_schema(tool["input_schema"])
        choice = body.get("tool_choice")
        if choice is not None:
            allow(choice, {"type", "name", "disable_parallel_tool_use"}, "tool_choice")
            if not body.get("tools"):
                raise Refusal("tool_choice: may only be specified while providing tools")

    def _check_output(self, body: Json) -> None:
        config = body.get("output_config") or {}
        allow(config, {"effort", "format"}, "output_config")
        if form := config.get("format"):
            allow(form, {"type", "schema"}, "output_config.format")
            _check_schema(form["schema"])

    def _check_messages(self, body: Json) -> None:
        open_calls: list[str] = []
        known: set[str] = set()
        role = "assistant"
        for index, message in enumerate(body["messages"]):
            allow(message, {"role", "content"}, f"messages.{index}")
            if message["role"] == role:
                raise Refusal("messages: roles must alternate, first user")
            role = message["role"]
            blocks = message["content"]
            _check_blocks(blocks, f"messages.{index}")
            _check_references(blocks, body)
            results = [each["tool_use_id"] for each in blocks if each["type"] == "tool_result"]
            if results != [each.get("tool_use_id") for each in blocks[: len(results)]]:
                raise Refusal("tool_result blocks must come first in the content")
            if sorted(results) != sorted(open_calls):
                raise Refusal("each `tool_use` must have a `tool_result` in the next message")
            open_calls = [each["id"] for each in blocks if each["type"] == "tool_use"]
            if known & set(open_calls) or len(open_calls) != len(set(open_calls)):
                raise Refusal("`tool_use` ids must be unique")
            known |= set(open_calls)
        if role != "user" or open_calls:
            raise Refusal("the last message must be the user's")
        self._check_loop(body)

    def _check_loop(self, body: Json) -> None:
        thinking = body.get("thinking") or {}
        last = body["messages"][-1]["content"]
        if thinking.get("type") == "enabled" and last[0]["type"] == "tool_result":
            first = body["messages"][-2]["content"][0]["type"]
            if first not in ("thinking", "redacted_thinking"):
                raise Refusal(f"Expected `thinking` or `redacted_thinking`, but found `{first}`")

    # --- the answer ------------------------------------------------------------------------------

    def _content(self, planned: Planned) -> Iterator[Json]:
        if planned.thought is not None:
            signature = signature_of(planned.thought)
            yield {"type": "thinking", "thinking": planned.thought, "signature": signature}
            yield {"type": "redacted_thinking", "data": signature_of("redacted")}
        if planned.text is not None:
            yield {"type": "text", "text": planned.text}
        for index, (name, arguments) in enumerate(planned.calls):
            call_id = f"toolu_{signature_of(planned)}{index}"
            yield {"type": "tool_use", "id": call_id, "name": name, "input": dict(arguments)}

    def _reason(self, planned: Planned) -> str:
        usual = "tool_use" if planned.calls else "end_turn"
        return _REASONS.get(planned.finish, usual)

    def document(self, planned: Planned) -> JsonValue:
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-told",
            "content": list(self._content(planned)),
            "stop_reason": self._reason(planned),
            "stop_sequence": None,
            "usage": _USAGE,
        }

    def events(self, planned: Planned) -> Iterator[JsonValue | str]:
        usage: JsonValue = {**cast("Json", _USAGE), "output_tokens": 1}
        message: JsonValue = {"model": "claude-told", "content": [], "usage": usage}
        yield {"type": "message_start", "message": message}
        yield {"type": "ping"}
        for index, block in enumerate(self._content(planned)):
            yield from _streamed(index, block)
        reason: JsonValue = {"stop_reason": self._reason(planned), "stop_sequence": None}
        yield {"type": "message_delta", "delta": reason, "usage": {"output_tokens": 3}}
        yield {"type": "message_stop"}


def _streamed(index: int, block: Json) -> Iterator[JsonValue]:
    fields = {
        "text": ("text", "text_delta", "text"),
        "thinking": ("thinking", "thinking_delta", "thinking"),
        "tool_use": ("input", "input_json_delta", "partial_json"),
    }
    name, kind, member = fields.get(block["type"], ("", "", ""))
    whole = (
        json.dumps(block[name], separators=(",", ":")) if name == "input" else block.get(name, "")
    )
    empty = {**block, name: {} if name == "input" else ""} if name else block
    empty.pop("signature", None)
    yield {"type": "content_block_start", "index": index, "content_block": empty}
    for piece in halves(whole):
        yield {
            "type": "content_block_delta",
            "index": index,
            "delta": {"type": kind, member: piece},
        }
    if "signature" in block:
        delta: JsonValue = {"type": "signature_delta", "signature": block["signature"]}
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def _check_blocks(blocks: list[Json], place: str) -> None:
    if not blocks:
        raise Refusal(f"{place}: content must not be empty")
    for block in blocks:
        if block["type"] not in _BLOCKS:
            raise Refusal(f"{place}: unknown block {block['type']}")
        allow(block, _BLOCKS[block["type"]], place)
        match block["type"]:
            case "text" if not block["text"].strip():
                raise Refusal(f"{place}: text content blocks must contain non-whitespace text")
            case "tool_use" if not re.fullmatch("[a-zA-Z0-9_-]+", block["id"]):
                raise Refusal(f"{place}: tool_use.id: String should match pattern")
            case "thinking" if block["signature"] != signature_of(block["thinking"]):
                raise Refusal(f"{place}: Invalid `signature` in `thinking` block")
            case "redacted_thinking" if block["data"] != signature_of("redacted"):
                raise Refusal(f"{place}: Invalid `data` in `redacted_thinking` block")
            case "image" | "document":
                allow(block["source"], {"type", "media_type", "data"}, place)
                base64.b64decode(block["source"]["data"], validate=True)


def _check_references(blocks: list[Json], body: Json) -> None:
    deferred = {each["name"] for each in body.get("tools", ()) if each.get("defer_loading")}
    for block in blocks:
        if block["type"] != "tool_result" or not isinstance(block.get("content"), list):
            continue
        for part in block["content"]:
            allow(part, {"type", "tool_name"}, "tool_result.content")
            if part["type"] != "tool_reference" or part["tool_name"] not in deferred:
                raise Refusal(f"Tool reference '{part['tool_name']}' has no deferred definition")


def _check_schema(schema: object) -> None:
    if isinstance(schema, dict):
        if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
            raise Refusal("For 'object' type, 'additionalProperties' must be false")
        if _UNBOUND & set(schema) and "properties" not in schema:
            raise Refusal(f"properties {_UNBOUND & set(schema)} are not supported")
        for each in schema.values():
            _check_schema(each)
    elif isinstance(schema, list):
        for each in schema:
            _check_schema(each)
