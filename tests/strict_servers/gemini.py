"""Gemini's generateContent, checked as strictly as by the real server."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from typing import ClassVar, cast

from minions.adapters.models.gemini import GeminiModel
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

_CONFIG = {
    *("temperature", "topP", "topK", "maxOutputTokens", "seed", "stopSequences"),
    *("responseMimeType", "responseJsonSchema", "thinkingConfig"),
}
_PART = {"text", "thought", "thoughtSignature", "functionCall", "functionResponse", "inlineData"}
_REASONS = {"length": "MAX_TOKENS", "filtered": "SAFETY", "refusal": "PROHIBITED_CONTENT"}
_UNSIGNED = "skip_thought_signature_validator"


class StrictGemini(StrictServer):
    name: ClassVar[str] = "gemini"

    def model(self, base_url: str, model: str | None = None) -> GeminiModel:
        return GeminiModel(model or "gemini-3-flash", base_url=base_url, api_key=KEY)

    def error(self, status: int, message: str) -> JsonValue:
        if status == 401:
            detail: JsonValue = [{"reason": "API_KEY_INVALID"}]
            return {"error": {"code": 400, "message": "API key not valid.", "details": detail}}
        return {"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}}

    def wants_stream(self, request: RecordedRequest) -> bool:
        return ":streamGenerateContent" in request.path

    # --- the request -----------------------------------------------------------------------------

    def check(self, request: RecordedRequest) -> None:
        model, _, method = request.path.removeprefix("/v1/models/").partition(":")
        if method not in ("generateContent", "streamGenerateContent?alt=sse"):
            raise Refusal("Not found", 404)
        if request.headers.get("x-goog-api-key") != KEY or "authorization" in request.headers:
            raise Refusal("API key not valid", 400)
        body = cast("Json", request.body)
        known = {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig"}
        allow(body, known, "body")
        config = body.get("generationConfig", {})
        allow(config, _CONFIG, "generationConfig")
        is_three = model.startswith("gemini-3")
        thinking = config.get("thinkingConfig", {})
        if ("thinkingLevel" if not is_three else "thinkingBudget") in thinking:
            raise Refusal("thinkingConfig is not that of this model")
        if "responseJsonSchema" in config:
            if config.get("responseMimeType") != "application/json":
                raise Refusal("responseJsonSchema needs responseMimeType")
            if "tools" in body and not is_three:
                raise Refusal("Function calling with a response mime type is unsupported")
        for tool in body.get("tools", ()):
            for each in tool["functionDeclarations"]:
                allow(each, {"name", "description", "parametersJsonSchema"}, "tools")
        self._check_contents(body["contents"], is_three=is_three)

    def _check_contents(self, contents: list[Json], *, is_three: bool) -> None:
        role, waiting = "model", list[str]()
        current = max(
            index
            for index, each in enumerate(contents)
            if each["role"] == "user" and any("functionResponse" not in p for p in each["parts"])
        )
        for index, content in enumerate(contents):
            allow(content, {"role", "parts"}, "contents")
            if content["role"] == role or not content["parts"]:
                raise Refusal("Please ensure that roles alternate and parts are not empty")
            role = content["role"]
            answered = [p["functionResponse"]["name"] for p in content["parts"]
                        if "functionResponse" in p]  # fmt: skip
            if answered != waiting:
                raise Refusal("the number of function response parts must equal the call parts")
            waiting = [p["functionCall"]["name"] for p in content["parts"] if "functionCall" in p]
            for part in content["parts"]:
                _check_part(part)
            first: Json = next((p for p in content["parts"] if "functionCall" in p), {})
            is_signed = "thoughtSignature" in first or not waiting
            if is_three and index > current and not is_signed:
                raise Refusal("Function call is missing a thought_signature in functionCall parts")
        if role != "user" or waiting:
            raise Refusal("the last content must be the user's")

    # --- the answer ------------------------------------------------------------------------------

    def _parts(self, planned: Planned) -> Iterator[Json]:
        if planned.thought is not None:
            yield {"text": planned.thought, "thought": True}
        if planned.text is not None:
            part: Json = {"text": planned.text}
            if planned.thought is not None and not planned.calls:
                part["thoughtSignature"] = signature_of(part["text"])
            yield part
        for index, (name, arguments) in enumerate(planned.calls):
            call = {"id": f"{signature_of(planned)}{index}", "name": name, "args": dict(arguments)}
            part = {"functionCall": call}
            if index == 0:
                part["thoughtSignature"] = signature_of(name, json.dumps(call["args"]))
            yield part

    def _candidate(self, parts: list[Json], reason: str | None) -> Json:
        candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
        return candidate if reason is None else {**candidate, "finishReason": reason}

    def _document(self, parts: list[Json], reason: str | None) -> Json:
        usage = {
            "promptTokenCount": 11,
            "cachedContentTokenCount": 4,
            "candidatesTokenCount": 2,
            "thoughtsTokenCount": 1,
            "totalTokenCount": 14,
        }
        candidate = self._candidate(parts, reason)
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-told"}

    def document(self, planned: Planned) -> JsonValue:
        reason = _REASONS.get(planned.finish, "STOP")
        return cast("JsonValue", self._document(list(self._parts(planned)), reason))

    def events(self, planned: Planned) -> Iterator[JsonValue | str]:
        for part in self._parts(planned):
            pieces = halves(part["text"]) if "text" in part else [""]
            for number, piece in enumerate(pieces):
                sent = {**part, "text": piece} if "text" in part else dict(part)
                if number < len(pieces) - 1:
                    sent.pop("thoughtSignature", None)
                yield cast("JsonValue", self._document([sent], None))
        reason = _REASONS.get(planned.finish, "STOP")
        yield cast("JsonValue", self._document([], reason))


def _check_part(part: Mapping[str, Json]) -> None:
    allow(part, _PART, "parts")
    given = cast("Json", part)
    if "inlineData" in given:
        allow(given["inlineData"], {"mimeType", "data"}, "inlineData")
        base64.b64decode(given["inlineData"]["data"], validate=True)
    signature = given.get("thoughtSignature")
    if signature in (None, _UNSIGNED):
        return
    if "functionCall" in given:
        call = given["functionCall"]
        expected = signature_of(call["name"], json.dumps(call["args"]))
    else:
        expected = signature_of(given["text"])
    if signature != expected:
        raise Refusal("Thought signature is not valid")
