"""Attributes of spans as the GenAI semantic conventions of OpenTelemetry name them.

The names are those of version 1.41 of the conventions; what they do not name begins with
`minions.`. Texts of prompts and answers are attributes of their own, for those who ask for them.
Each attribute of each span is paid for: what is usual, or stands in a span around, is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from minions.contracts.calls import (
    ChatModel,
    ModelCall,
    ModelCallResponse,
    ModelOptions,
    Prompt,
    ToolCall,
)
from minions.contracts.messages import Message, TokenUsage
from minions.contracts.tools import ToolSpec
from minions.contracts.tracing import RunSubject, StepSubject
from minions.data.json_values import JsonValue, dumps

Attributes = dict[str, str | bool | int | float | tuple[str, ...]]

_PROVIDERS: Final[Mapping[str, str]] = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex": "gcp.vertex_ai",
    "vertex_ai": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""Names of providers that the conventions call something else."""
_MOST_CHARACTERS: Final = 16_384
"""Characters of one text in a span."""
_MOST_MESSAGES: Final = 64
"""Messages of one prompt in a span: the newest."""
_USUAL_PHASE: Final = "model"
_LONGEST_NAME: Final = 200
_UNKNOWN: Final = "unknown"


def run_attributes(subject: RunSubject) -> Attributes:
    """What is known of a run when it begins."""
    attributes: Attributes = {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": subject.recipe,
        "gen_ai.agent.name": subject.recipe,
        "gen_ai.conversation.id": subject.session_id,
        "minions.run.id": subject.run_id,
    }
    if subject.is_resumed:
        attributes["minions.run.resumed"] = True
    return attributes


def step_attributes(subject: StepSubject) -> Attributes:
    """What is known of a step when it begins."""
    attributes: Attributes = {}
    if subject.is_agent:
        attributes["gen_ai.operation.name"] = "invoke_agent"
        attributes["gen_ai.agent.name"] = subject.step_id
        attributes["gen_ai.conversation.id"] = subject.session_id
    if subject.address != subject.step_id:
        attributes["minions.step.address"] = subject.address
    return attributes


def provider_name(provider: str) -> str:
    """A provider as the conventions call it."""
    return _PROVIDERS.get(provider, provider)


def model_parts(model: ChatModel | None) -> tuple[str, str]:
    """The provider as the conventions call it, and the model's name at its server."""
    if model is None:
        return _UNKNOWN, "own"
    provider, _, name = model.name.partition("/")
    return _PROVIDERS.get(provider, provider), name or provider


def request_attributes(
    call: ModelCall, model: ChatModel | None, subject: StepSubject, attempt: int
) -> Attributes:
    """What is known of a model request before it is sent."""
    provider, name = model_parts(model)
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": name,
        "gen_ai.conversation.id": subject.session_id,
    }
    if call.prompt.output_request is not None:
        attributes["gen_ai.output.type"] = "json"
    if call.phase != _USUAL_PHASE:
        attributes["minions.call.phase"] = call.phase
    if call.output_mode is not None:
        attributes["minions.output.mode"] = call.output_mode
    if attempt > 1:
        attributes["minions.call.attempt"] = attempt
    base_url = None if model is None else model.base_url
    if base_url is not None:
        attributes.update(_server(base_url))
    _add_options(attributes, call.prompt.options)
    return attributes


def _add_options(attributes: Attributes, options: ModelOptions) -> None:
    if options.temperature is not None:
        attributes["gen_ai.request.temperature"] = options.temperature
    if options.top_p is not None:
        attributes["gen_ai.request.top_p"] = options.top_p
    if options.max_output_tokens is not None:
        attributes["gen_ai.request.max_tokens"] = options.max_output_tokens
    if options.seed is not None:
        attributes["gen_ai.request.seed"] = options.seed
    if options.stop:
        attributes["gen_ai.request.stop_sequences"] = options.stop


def response_attributes(response: ModelCallResponse, usage: TokenUsage) -> Attributes:
    """What an answer says of itself."""
    attributes: Attributes = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    if usage.cached_tokens:
        attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if usage.cost_usd is not None:
        attributes["minions.usage.cost_usd"] = usage.cost_usd
    if response.model_name is not None:
        attributes["gen_ai.response.model"] = response.model_name
    if response.finish_reason is not None:
        attributes["gen_ai.response.finish_reasons"] = (response.finish_reason,)
    if response.first_token_latency_ms is not None:
        seconds = response.first_token_latency_ms / 1000
        attributes["gen_ai.response.time_to_first_chunk"] = seconds
    return attributes


def tool_name(spec: ToolSpec | None) -> str:
    """The tool's name in the name of a span: never one that only a model says."""
    return _UNKNOWN if spec is None else spec.name


def tool_attributes(call: ToolCall, subject: StepSubject) -> Attributes:
    """What is known of a tool call before it is made."""
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.name[:_LONGEST_NAME],
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": call.request.id[:_LONGEST_NAME],
        "gen_ai.conversation.id": subject.session_id,
    }


# --- texts, for those who ask for them -----------------------------------------------------------


def prompt_texts(prompt: Prompt) -> Attributes:
    """The newest 64 messages of a prompt, each text cut at 16,384 characters."""
    messages = [_message(each) for each in prompt.messages[-_MOST_MESSAGES:]]
    return {"gen_ai.input.messages": dumps(messages)}


def response_texts(response: ModelCallResponse) -> Attributes:
    """The answer's message."""
    message = {**_message(response.message), "finish_reason": response.finish_reason or "stop"}
    return {"gen_ai.output.messages": dumps([message])}


def shortened_text(text: str) -> str:
    """A text of at most 16,384 characters; a cut one ends with `…`."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def _message(message: Message) -> dict[str, JsonValue]:
    role = "user" if message.role == "goal" else message.role.value
    return {"role": role, "parts": list(_parts(message))}


def _parts(message: Message) -> Iterable[JsonValue]:
    content = message.content
    if message.tool_call_id is not None:
        response = shortened_text(content or "")
        yield {"type": "tool_call_response", "id": message.tool_call_id, "response": response}
        return
    if message.reasoning:
        yield {"type": "reasoning", "content": shortened_text(message.reasoning)}
    if content:
        yield {"type": "text", "content": shortened_text(content)}
    for attached in message.attachments:
        yield {"type": "blob", "mime_type": attached.media_type, "digest": attached.digest}
    for call in message.tool_calls:
        arguments = shortened_text(call.arguments)
        yield {"type": "tool_call", "id": call.id, "name": call.name, "arguments": arguments}


@lru_cache(maxsize=256)
def _server(base_url: str) -> Mapping[str, str | int]:
    place = urlsplit(base_url)
    port = place.port or (443 if place.scheme == "https" else 80)
    return {"server.address": place.hostname or "", "server.port": port}
