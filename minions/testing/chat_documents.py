"""What a chat-completions server sends: documents, the chunks of a stream, and error bodies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from minions.data.json_values import JsonValue

__all__ = [
    "USAGE",
    "call",
    "chunk",
    "chunks",
    "completion",
    "error_body",
    "event",
]


def call(
    name: str, arguments: Mapping[str, JsonValue] | str = "{}", *, call_id: str = "c1"
) -> dict[str, JsonValue]:
    """A tool call in the provider's form."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


USAGE: Mapping[str, JsonValue] = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
"""The tokens that an answer says it used where it is given no others."""


def completion(
    text: str | None = None,
    *,
    tool_calls: Sequence[Mapping[str, JsonValue]] = (),
    finish_reason: str | None = None,
    usage: Mapping[str, JsonValue] | None = USAGE,
    model: str = "fake-1",
    **message: JsonValue,
) -> dict[str, JsonValue]:
    """The document of a plain answer.

    Args:
        message: Further keys of the message.
    """
    said: dict[str, JsonValue] = {"role": "assistant", "content": text, **message}
    if tool_calls:
        said["tool_calls"] = list(tool_calls)
    reason = finish_reason or ("tool_calls" if tool_calls else "stop")
    choice: dict[str, JsonValue] = {"index": 0, "message": said, "finish_reason": reason}
    document: dict[str, JsonValue] = {"id": "x", "object": "chat.completion", "model": model}
    document["choices"] = [choice]
    if usage is not None:
        document["usage"] = usage
    return document


def chunks(document: Mapping[str, JsonValue]) -> list[JsonValue]:
    """The same answer as documents of a stream: text word by word, arguments in two halves."""
    choices = cast("list[dict[str, Any]]", document["choices"])  # Any: as `completion` made it
    message = choices[0]["message"]
    deltas: list[JsonValue] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in _words(message.get("content") or "")]
    deltas += [{"refusal": piece} for piece in _words(message.get("refusal") or "")]
    for index, item in enumerate(message.get("tool_calls", ())):
        deltas += [{"tool_calls": [fragment]} for fragment in _fragments(index, item)]
    pieces: list[JsonValue] = [chunk(delta, model=document["model"]) for delta in deltas]
    pieces.append(chunk({}, finish_reason=choices[0]["finish_reason"], model=document["model"]))
    if "usage" in document:
        pieces.append({"model": document["model"], "choices": [], "usage": document["usage"]})
    return pieces


def chunk(
    delta: JsonValue, *, finish_reason: JsonValue = None, model: JsonValue = "fake-1"
) -> dict[str, JsonValue]:
    """One document of a stream."""
    choice: dict[str, JsonValue] = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"object": "chat.completion.chunk", "model": model, "choices": [choice]}


def _words(text: str) -> list[str]:
    return [word for part in text.split(" ") for word in (part, " ")][:-1] if text else []


def _fragments(index: int, item: Mapping[str, JsonValue]) -> list[JsonValue]:
    function = cast("dict[str, str]", item["function"])
    text = function["arguments"]
    half = len(text) // 2
    first = {**item, "index": index, "function": {**function, "arguments": text[:half]}}
    return [first, {"index": index, "function": {"arguments": text[half:]}}]


def event(data: JsonValue | str) -> bytes:
    """One server-sent event; text is sent as it is."""
    text = data if isinstance(data, str) else json.dumps(data)
    return f"data: {text}\n\n".encode()


def error_body(message: str, **more: JsonValue) -> bytes:
    """An error body in OpenAI's form."""
    return json.dumps({"error": {"message": message, **more}}).encode()
