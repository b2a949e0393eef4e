"""OpenAI's chat completions and responses, checked as strictly as by the real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar, cast

from minions.adapters.models.openai import OpenAIModel
from minions.adapters.models.responses import ResponsesModel
from minions.adapters.models.strict_schema import is_strict_schema
from minions.contracts.tool_search import FIND_TOOLS
from minions.data.json_values import JsonValue
from minions.testing import endpoint as fake
from minions.testing.endpoint import RecordedRequest
from strict_servers.server import (
    KEY,
    Json,
    Planned,
    Refusal,
    StrictServer,
    allow,
    bearer,
    halves,
    signature_of,
)

_ERRORS = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


class StrictChat(StrictServer):
    name: ClassVar[str] = "chat"

    def model(self, base_url: str, model: str | None = None) -> OpenAIModel:
        return OpenAIModel(model or "gpt-5", base_url=base_url, api_key=KEY)

    def error(self, status: int, message: str) -> JsonValue:
        return {"error": {"message": message, "type": "error", "code": _ERRORS.get(status)}}

    def check(self, request: RecordedRequest) -> None:
        if request.path != "/v1/chat/completions":
            raise Refusal("Not found", 404)
        bearer(request)
        body = cast("Json", request.body)
        known = {
            *("model", "messages", "tools", "tool_choice", "response_format", "stream", "seed"),
            *(
                "max_tokens",
                "stream_options",
                "max_completion_tokens",
                "reasoning_effort",
                "stop",
                "temperature",
            ),
        }
        allow(body, known, "body")
        waiting: set[str] = set()
        for index, message in enumerate(body["messages"]):
            names = {"role", "content", "name", "tool_calls", "tool_call_id"}
            allow(message, names, f"messages[{index}]")
            if message["role"] == "tool":
                if message["tool_call_id"] not in waiting:
                    raise Refusal("messages with role 'tool' must follow their 'tool_calls'")
                waiting.discard(message["tool_call_id"])
            elif waiting:
                raise Refusal("'tool_calls' must be followed by tool messages")
            waiting |= {call["id"] for call in message.get("tool_calls", ())}

    def _document(self, planned: Planned) -> dict[str, JsonValue]:
        calls = [
            fake.call(name, arguments, call_id=f"call_{signature_of(planned)[:8]}{index}")
            for index, (name, arguments) in enumerate(planned.calls)
        ]
        reason = {"length": "length", "filtered": "content_filter"}.get(planned.finish)
        refusal: Json = {"refusal": planned.text} if planned.finish == "refusal" else {}
        text = None if refusal else planned.text
        if planned.thought is not None:
            refusal["reasoning_content"] = planned.thought
        return fake.completion(
            text, tool_calls=calls, finish_reason=reason, usage=_CHAT_USAGE, **refusal
        )

    def document(self, planned: Planned) -> JsonValue:
        return self._document(planned)

    def events(self, planned: Planned) -> Iterator[JsonValue | str]:
        if planned.thought is not None:
            for piece in halves(planned.thought):
                yield fake.chunk({"reasoning_content": piece})
        yield from fake.chunks(self._document(planned))
        yield "[DONE]"


_CHAT_USAGE: dict[str, JsonValue] = {
    "prompt_tokens": 11,
    "completion_tokens": 3,
    "total_tokens": 14,
    "prompt_tokens_details": {"cached_tokens": 4},
}
_RESPONSES_USAGE: JsonValue = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 14,
}
_TOP = {
    *("model", "input", "instructions", "store", "include", "tools", "tool_choice", "text"),
    *("reasoning", "max_output_tokens", "temperature", "top_p", "stream", "parallel_tool_calls"),
}
_ITEMS = {
    "message": {"type", "role", "content"},
    "function_call": {"type", "call_id", "name", "arguments"},
    "function_call_output": {"type", "call_id", "output"},
    "reasoning": {"type", "id", "summary", "encrypted_content"},
    "tool_search_call": {"type", "call_id", "execution", "status", "arguments"},
    "tool_search_output": {"type", "call_id", "execution", "status", "tools"},
}
_PARTS = {
    "user": {"input_text": {"type", "text"}, "input_image": {"type", "image_url", "detail"},
             "input_file": {"type", "filename", "file_data"}},
    "assistant": {"output_text": {"type", "text", "annotations"}},
}  # fmt: skip


class StrictResponses(StrictServer):
    name: ClassVar[str] = "responses"

    def model(self, base_url: str, model: str | None = None) -> ResponsesModel:
        return ResponsesModel(model or "gpt-5", base_url=base_url, api_key=KEY)

    def error(self, status: int, message: str) -> JsonValue:
        return {"error": {"message": message, "type": "error", "code": _ERRORS.get(status)}}

    # --- the request -----------------------------------------------------------------------------

    def check(self, request: RecordedRequest) -> None:
        if request.path != "/v1/responses":
            raise Refusal("Not found", 404)
        bearer(request)
        body = cast("Json", request.body)
        allow(body, _TOP, "body")
        if body.get("store") is not False:
            raise Refusal("store: this server keeps nothing")
        if "reasoning.encrypted_content" in body.get("include", ()) and "gpt-4" in body["model"]:
            raise Refusal("Encrypted content is not supported with this model.")
        self._check_output(body)
        self._check_items(body["input"])

    def _check_output(self, body: Json) -> None:
        for tool in body.get("tools", ()):
            if tool["type"] == "tool_search":
                allow(tool, {"type", "execution", "description", "parameters"}, "tools")
                continue
            allow(tool, {"type", "name", "description", "parameters", "strict"}, "tools")
            if tool["strict"] and not is_strict_schema(tool["parameters"]):
                raise Refusal("Invalid schema for function: not strict")
        text = body.get("text") or {}
        allow(text, {"format", "verbosity"}, "text")
        if form := text.get("format"):
            allow(form, {"type", "name", "schema", "strict"}, "text.format")
            if form.get("strict") and not is_strict_schema(form["schema"]):
                raise Refusal("Invalid schema for response_format: not strict")

    def _check_items(self, items: list[Json]) -> None:
        waiting: set[str] = set()
        for index, item in enumerate(items):
            allow(item, _ITEMS[item["type"]], f"input[{index}]")
            match item["type"]:
                case "message":
                    _check_parts(item, index)
                case "function_call" | "function_call_output":
                    _check_call(item, waiting)
                case "tool_search_call" | "tool_search_output":
                    _check_search(item, waiting)
                case "reasoning":
                    following = items[index + 1] if index + 1 < len(items) else {"type": ""}
                    _check_thought(item, following["type"])
        if waiting:
            raise Refusal(f"No tool output found for function call {min(waiting)}.")

    # --- the answer ------------------------------------------------------------------------------

    def _items(self, planned: Planned) -> Iterator[Json]:
        if planned.thought is not None:
            summary = [{"type": "summary_text", "text": planned.thought}]
            sealed = signature_of("rs_1", summary)
            yield {"type": "reasoning", "id": "rs_1", "summary": summary,
                   "encrypted_content": sealed}  # fmt: skip
        if planned.text is not None:
            part = {"type": "output_text", "text": planned.text, "annotations": []}
            if planned.finish == "refusal":
                part = {"type": "refusal", "refusal": planned.text}
            yield {"type": "message", "id": "msg_1", "role": "assistant", "content": [part]}
        for index, (name, arguments) in enumerate(planned.calls):
            call_id = f"call_{signature_of(planned)}{index}"
            if name == FIND_TOOLS:  # carried out by the client, in a form of its own
                yield {"type": "tool_search_call", "id": f"ts_{index}", "call_id": call_id,
                       "execution": "client", "status": "completed",
                       "arguments": dict(arguments)}  # fmt: skip
                continue
            yield {"type": "function_call", "id": f"fc_{index}", "call_id": call_id, "name": name,
                   "arguments": json.dumps(arguments)}  # fmt: skip

    def _response(self, planned: Planned, output: list[Json]) -> Json:
        reasons = {"length": "max_output_tokens", "filtered": "content_filter"}
        reason = reasons.get(planned.finish)
        return {
            "id": "resp_1",
            "object": "response",
            "model": "gpt-told",
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "error": None,
            "output": output,
            "usage": _RESPONSES_USAGE,
        }

    def document(self, planned: Planned) -> JsonValue:
        return cast("JsonValue", self._response(planned, list(self._items(planned))))

    def events(self, planned: Planned) -> Iterator[JsonValue | str]:
        started = {**self._response(planned, []), "status": "in_progress", "usage": None}
        yield {"type": "response.created", "response": cast("JsonValue", started)}
        items = list(self._items(planned))
        for index, item in enumerate(items):
            yield from _streamed(index, item)
        response = self._response(planned, items)
        yield {"type": f"response.{response['status']}", "response": cast("JsonValue", response)}


def _streamed(index: int, item: Json) -> Iterator[JsonValue]:
    bare = {name: value for name, value in item.items() if name != "encrypted_content"}
    added: Json = {**bare, **{name: [] for name in ("content", "summary") if name in item}}
    is_search = item["type"] == "tool_search_call"
    if "arguments" in item:
        added["arguments"] = {} if is_search else ""
    yield {"type": "response.output_item.added", "output_index": index, "item": added}
    kind = "response.function_call_arguments.delta"
    text = "" if is_search else item.get("arguments", "")
    for part in item.get("content") or item.get("summary") or ():
        text = part.get("text") or part.get("refusal")
        kind = {
            "output_text": "response.output_text.delta",
            "refusal": "response.refusal.delta",
            "summary_text": "response.reasoning_summary_text.delta",
        }[part["type"]]
        if part["type"] == "summary_text":
            yield {"type": "response.reasoning_summary_part.added", "output_index": index}
    for piece in halves(text):
        yield {"type": kind, "output_index": index, "delta": piece}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _check_call(item: Json, waiting: set[str]) -> None:
    if item["type"] == "function_call":
        json.loads(item["arguments"])
        if len(item["call_id"]) > 64:
            raise Refusal("call_id: string too long")
        waiting.add(item["call_id"])
    elif item["call_id"] in waiting:
        waiting.discard(item["call_id"])
    else:
        raise Refusal("No tool call found for function call output")


def _check_search(item: Json, waiting: set[str]) -> None:
    if item["execution"] != "client":
        raise Refusal("tool_search: execution differs")
    if item["type"] == "tool_search_call":
        if not isinstance(item["arguments"], dict):
            raise Refusal("tool_search_call.arguments: expected an object")
        waiting.add(item["call_id"])
        return
    if item["call_id"] not in waiting:
        raise Refusal("No tool call found for tool_search_output")
    waiting.discard(item["call_id"])
    for tool in item["tools"]:
        known = {"type", "name", "description", "parameters", "strict", "defer_loading"}
        allow(tool, known, "tool_search_output.tools")


def _check_thought(item: Json, following: str) -> None:
    if item["encrypted_content"] != signature_of(item["id"], item["summary"]):
        raise Refusal("The encrypted content could not be verified")
    if following not in ("message", "function_call", "tool_search_call"):
        raise Refusal("'reasoning' was provided without its required following item")


def _check_parts(item: Json, index: int) -> None:
    known = _PARTS.get(item["role"])
    if known is None:
        raise Refusal(f"input[{index}].role: unknown")
    for part in item["content"]:
        if part["type"] not in known:
            raise Refusal(f"Invalid value: '{part['type']}' for the role {item['role']}")
        allow(part, known[part["type"]], f"input[{index}].content")
