"""A prompt as the body of an OpenAI-compatible chat-completions request. Pure; nothing is sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from minions.contracts.calls import ModelOptions, Prompt
from minions.contracts.json_values import JsonValue
from minions.contracts.messages import Message, MessageRole, ToolCallRequest

__all__ = ["encode_body", "request_body"]


def request_body(
    prompt: Prompt, *, provider: str, model: str, stream: bool
) -> dict[str, JsonValue]:
    """The body for one request.

    All system messages become one leading message and neighbouring user messages one:
    the chat templates of small local models fail otherwise.
    """
    request = prompt.output_request
    extra = request.messages if request is not None else ()
    body: dict[str, JsonValue] = {
        "model": model,
        "messages": _message_dicts((*prompt.messages, *extra)),
        **_option_dict(prompt.options, provider),
    }
    if prompt.tools:
        body["tools"] = [tool.to_message_dict() for tool in prompt.tools]
    if stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    if request is not None:
        body.update(request.body)
    return body


def encode_body(body: Mapping[str, JsonValue]) -> bytes:
    """The body as UTF-8 JSON; half characters, which UTF-8 cannot say, become `?`.

    Raises:
        TypeError: Something in it is no JSON.
        ValueError: NaN, an infinity, or a circle.
    """
    text = json.dumps(
        body, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain
    )
    return text.encode("utf-8", errors="replace")


def _plain(value: object) -> object:
    """Mappings and sequences that are no dict and no list."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} is not JSON")


def _option_dict(options: ModelOptions, provider: str) -> dict[str, JsonValue]:
    # OpenAI's reasoning models refuse `max_tokens`; most other servers know only that.
    most_tokens = "max_completion_tokens" if provider == "openai" else "max_tokens"
    given: dict[str, JsonValue] = {
        "temperature": options.temperature,
        "top_p": options.top_p,
        most_tokens: options.max_output_tokens,
    }
    return {key: value for key, value in given.items() if value is not None}


def _message_dicts(messages: Iterable[Message]) -> list[JsonValue]:
    systems: list[str] = []
    others: list[dict[str, JsonValue]] = []
    for message in messages:
        if message.role is MessageRole.SYSTEM:
            systems += [message.content] if message.content else []
        else:
            _append(others, _message_dict(message))
    leading: list[JsonValue] = [{"role": "system", "content": "\n\n".join(systems)}]
    return [*(leading if systems else []), *others]


def _append(messages: list[dict[str, JsonValue]], message: dict[str, JsonValue]) -> None:
    """Add a message, or its text to the last one where the same user goes on speaking."""
    last = messages[-1] if messages else {}
    if (
        message["role"] == last.get("role") == MessageRole.USER.value
        and message.get("name") == last.get("name")
    ):  # fmt: skip
        last["content"] = f"{last['content']}\n\n{message['content']}"
    else:
        messages.append(message)


def _message_dict(message: Message) -> dict[str, JsonValue]:
    result = message.to_message_dict()
    if message.tool_calls:
        result["tool_calls"] = [_sendable(call).to_message_dict() for call in message.tool_calls]
    else:
        result.setdefault("content", "")
    return result


def _sendable(call: ToolCallRequest) -> ToolCallRequest:
    """The call with arguments that are a JSON object.

    Local servers read them back from the history and answer 400 to anything else, which would
    end a conversation in which the model was about to mend its call.
    """
    try:
        is_object = isinstance(cast("object", json.loads(call.arguments)), dict)
    except (ValueError, RecursionError):
        is_object = False
    return call if is_object else ToolCallRequest(id=call.id, name=call.name, arguments="{}")
