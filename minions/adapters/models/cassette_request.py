"""What a cassette keeps of a request: all that decides the answer, the same in every run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.json import encode as encode_json

from minions.contracts.calls import Prompt
from minions.contracts.messages import Message, message_to_json, without_border_names
from minions.data.codec import encode
from minions.data.json_values import JsonValue, dumps

_NOT_SENT: Final = ("cache", "context_tokens", "idle_timeout_s", "timeout_s")
"""Options that the server does not see."""
_ANSWERS_OWN: Final = ("reasoning", "provider_data")
"""Parts of a message that follow from an earlier answer, and are not shown to a reader."""


def request_form(prompt: Prompt) -> dict[str, JsonValue]:
    """The request as a JSON object; members that say nothing are left out.

    `messages` oldest first, `tools`, `output` (how the answer is constrained), `schema`, `options`.
    """
    asked = prompt.output_request
    more = asked.messages if asked is not None else ()
    said = without_border_names([*prompt.messages, *more], is_folded=prompt.folds_system)
    form: dict[str, JsonValue] = {
        "messages": [_message(each) for each in said],
        "tools": [encode(tool.to_message_dict()["function"]) for tool in prompt.tools],
        "output": {"mode": asked.mode.value, "body": encode(asked.body)} if asked else None,
        "schema": encode(prompt.instructions.json_schema()) if prompt.instructions else None,
        "options": _options(prompt),
    }
    return {name: value for name, value in form.items() if value or name == "messages"}


def _message(message: Message) -> dict[str, JsonValue]:
    kept = message_to_json(message)
    return {name: value for name, value in kept.items() if name not in _ANSWERS_OWN}


def _options(prompt: Prompt) -> dict[str, JsonValue]:
    """The options that are sent and were set."""
    options = encode(prompt.options)
    assert isinstance(options, Mapping)  # noqa: S101  # of an attrs class
    return {
        name: value
        for name, value in options.items()
        if name not in _NOT_SENT and value is not None and value not in ([], {})
    }


def request_digest(model: str, request: Mapping[str, JsonValue]) -> str:
    """The same for equal requests to one model, in whatever order their members stand."""
    try:
        text = encode_json([model, request], order="deterministic")
    except UnicodeEncodeError:  # half a character, which a file cannot hold
        held = json.dumps([model, request], ensure_ascii=False).encode("utf-8", "replace")
        text = encode_json(json.loads(held), order="deterministic")
    return hashlib.sha256(text).hexdigest()


def request_lines(model: str, request: Mapping[str, JsonValue]) -> Iterator[str]:
    """The request as lines to compare and to read."""
    yield f"model: {model}"
    messages = request.get("messages")
    for message in messages if isinstance(messages, list) else ():
        yield from _message_lines(message)
    tools = request.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        yield f"tool: {dumps(tool)}"
    for name in ("output", "schema", "options"):
        if name in request:
            yield from (
                f"{name}: {line}" for line in json.dumps(request[name], indent=1).splitlines()
            )


def _message_lines(message: JsonValue) -> Iterator[str]:
    if not isinstance(message, Mapping):
        yield f"message: {dumps(message)}"
        return
    yield f"[{message.get('role')}]"
    content = message.get("content")
    if isinstance(content, str):
        yield from content.split("\n")
    for name, value in message.items():
        if name not in ("role", "content"):
            yield f"{name}: {dumps(value)}"
