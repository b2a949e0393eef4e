"""`PeerModel`: what models have in common that ask a server.

The secrets that a model sends are masked in its answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from attrs import evolve
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.adapters.models.chat_failures import ChatPeer
from minions.contracts.calls import (
    ChatModel,
    DeltaSink,
    ModelCallResponse,
    ModelCapabilities,
    ModelDelta,
    ModelFailure,
    OutputParser,
    Prompt,
)
from minions.contracts.messages import ToolCallRequest, attachments_of
from minions.contracts.model_endpoints import ModelEndpoint
from minions.data.json_values import JsonValue, as_text, dumps

MASK: Final = "***"
_FEWEST: Final = 8
"""Characters: a shorter value is a word, such as the placeholder keys of local servers."""


class SentSecrets:
    """The values that were sent and that no answer may show."""

    def __init__(self, values: Iterable[str | None]) -> None:
        """Look for these values; None and short ones are left out."""
        found = {each for each in values if each and len(each) >= _FEWEST}
        # "Bearer KEY" says nothing that KEY does not: where this occurs, that is searched for.
        self.values = tuple(
            each for each in found if not any(other in each for other in found - {each})
        )
        self._starts = tuple({(each[:1], each[:2]) for each in self.values})

    def __bool__(self) -> bool:
        return bool(self.values)

    def are_in(self, text: str | None) -> bool:
        """Whether one of them stands in the text."""
        return text is not None and any(each in text for each in self.values)

    def masked(self, text: str) -> str:
        """The text with the values masked."""
        for each in self.values:
            text = text.replace(each, MASK)
        return text

    def outcome(
        self, outcome: Result[ModelCallResponse, ModelFailure]
    ) -> Result[ModelCallResponse, ModelFailure]:
        """The same with the values masked; the same object where there are none."""
        if not self.values:
            return outcome
        if is_successful(outcome):
            response = outcome.unwrap()
            masked = self._response(response)
            return outcome if masked is response else Success(masked)
        return Failure(self._failure(outcome.failure()))

    def may_begin_in(self, text: str) -> bool:
        """Whether a value may stand or begin in a fragment; almost always False, and quickly."""
        for one, two in self._starts:  # noqa: SIM110  # `any` of a generator takes three times as long
            if two in text or text.endswith(one):
                return True
        return False

    def held_back(self, text: str) -> int:
        """How many characters at the end of a text may be the beginning of a value."""
        return max((_overlap(text, each) for each in self.values), default=0)

    def _response(self, response: ModelCallResponse) -> ModelCallResponse:
        message, calls = response.message, tuple(map(self._call, response.tool_calls))
        if self.are_in(message.content):
            message = evolve(message, content=self.masked(as_text(message.content)))
        if self.are_in(message.reasoning):
            message = evolve(message, reasoning=self.masked(as_text(message.reasoning)))
        if (kept := message.provider_data) is not None and self.are_in(kept.content):
            message = evolve(message, provider_data=None)  # masked, it would be refused
        if any(new is not old for new, old in zip(calls, response.tool_calls, strict=True)):
            message = evolve(message, tool_calls=calls)
        if message is not response.message:
            response = evolve(response, message=message)
        if self.are_in(response.model_name) or self.are_in(response.finish_reason):
            response = evolve(
                response,
                model_name=self._maybe(response.model_name),
                finish_reason=self._maybe(response.finish_reason),
            )
        return response

    def _call(self, call: ToolCallRequest) -> ToolCallRequest:
        arguments = self._arguments(call.arguments)
        if arguments is call.arguments and not self.are_in(call.id) and not self.are_in(call.name):
            return call
        return ToolCallRequest(
            id=self.masked(call.id), name=self.masked(call.name), arguments=arguments
        )

    def _arguments(self, text: str) -> str:
        """JSON text without the values, also where they are escaped in it."""
        if self.are_in(text):
            text = self.masked(text)
        if "\\" not in text:
            return text
        try:
            value: JsonValue = json.loads(text)
            masked = self._value(value)
        except (ValueError, RecursionError):
            return text
        return text if masked == value else dumps(masked)

    def _value(self, value: JsonValue) -> JsonValue:
        if isinstance(value, str):
            return self.masked(value)
        if isinstance(value, Mapping):
            return {self.masked(name): self._value(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._value(each) for each in value]
        return value

    def _failure(self, failure: ModelFailure) -> ModelFailure:
        if not self.are_in(failure.message) and not self.are_in(failure.text):
            return failure
        return evolve(failure, message=self.masked(failure.message), text=self._maybe(failure.text))

    def _maybe(self, text: str | None) -> str | None:
        return None if text is None else self.masked(text)


def _overlap(text: str, value: str) -> int:
    """The length of the longest end of the text with which the value begins."""
    at = text.find(value[0], max(0, len(text) - len(value) + 1))
    while at >= 0:
        if value.startswith(text[at:]):
            return len(text) - at
        at = text.find(value[0], at + 1)
    return 0


class MaskedDeltas:
    """Passes the fragments of one answer on, without the values.

    The end of a fragment is held back as long as it may be the beginning of a value.
    """

    def __init__(self, secrets: SentSecrets, sink: DeltaSink) -> None:
        """Pass to `sink`."""
        self._secrets = secrets
        self._sink = sink
        self._held = ""
        self._held_reasoning = ""
        self._held_arguments: dict[JsonValue, str] = {}
        """By the index of the tool call."""

    def __call__(self, delta: ModelDelta) -> None:
        """Take one fragment."""
        if delta.tool_call is not None:
            self._sink(ModelDelta(content=delta.content, tool_call=self._fragment(delta.tool_call)))
            return
        if delta.reasoning is not None:
            shown, self._held_reasoning = self._split(self._held_reasoning, delta.reasoning)
            if shown:
                self._sink(ModelDelta(reasoning=shown))
            return
        text = delta.content or ""
        if not self._held and not self._secrets.may_begin_in(text):
            self._sink(delta)
            return
        shown, self._held = self._split(self._held, text)
        if shown:
            self._sink(ModelDelta(content=shown))

    def flush(self) -> None:
        """Pass on what was held back: nothing more comes."""
        if self._held_reasoning:
            self._sink(ModelDelta(reasoning=self._held_reasoning))
        if self._held:
            self._sink(ModelDelta(content=self._held))
        for index, text in self._held_arguments.items():
            if text:
                function: JsonValue = {"name": None, "arguments": text}
                self._sink(ModelDelta(tool_call={"index": index, "function": function}))
        self._held, self._held_reasoning, self._held_arguments = "", "", {}

    def _split(self, held: str, text: str) -> tuple[str, str]:
        """What can be shown, and what is held back."""
        whole = self._secrets.masked(held + text)
        kept = self._secrets.held_back(whole)
        return (whole[:-kept], whole[-kept:]) if kept else (whole, "")

    def _fragment(self, fragment: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        index, function = fragment.get("index"), fragment.get("function")
        changed = dict(fragment)
        if isinstance(call_id := fragment.get("id"), str):
            changed["id"] = self._secrets.masked(call_id)
        if isinstance(function, Mapping):
            held, text = self._held_arguments.get(index, ""), str(function.get("arguments") or "")
            shown, self._held_arguments[index] = self._split(held, text)
            name = function.get("name")
            masked = self._secrets.masked(name) if isinstance(name, str) else name
            changed["function"] = {**function, "name": masked, "arguments": shown}
        return changed


class PeerModel(ChatModel):
    """A model behind a server, whose name and secrets are those of its `ChatPeer`."""

    # Slots, as the contract has properties of these names, and each call reads them.
    __slots__ = ("capabilities", "endpoint", "name")
    name: str
    endpoint: ModelEndpoint
    capabilities: ModelCapabilities

    def __init__(
        self, peer: ChatPeer, endpoint: ModelEndpoint, capabilities: ModelCapabilities | None
    ) -> None:
        """Name the server.

        Args:
            endpoint: What counts its requests.
            capabilities: None: those of any model.
        """
        self._peer = peer
        self._sent = SentSecrets((peer.secret, *peer.other_secrets))
        self.name = peer.name
        self.endpoint = endpoint
        self.capabilities = capabilities or ModelCapabilities()

    @property
    def output_parser(self) -> OutputParser:
        """Loaded when it is asked for."""
        from minions.adapters.models.structured_output import InstructorParser

        return InstructorParser()


def refused_attachments(
    prompt: Prompt, capabilities: ModelCapabilities, peer: ChatPeer
) -> ModelFailure | None:
    """The failure of a prompt with images that the model does not take; None: it may go."""
    attached = attachments_of(prompt.messages)
    if not attached or (capabilities.takes_images and all(each.data for each in attached)):
        return None
    if capabilities.takes_images:
        what = f"An image for '{peer.name}' was not loaded, so nothing was sent."
        return ModelFailure(code="bad-request", message=what)
    return ModelFailure(
        code="images-not-taken",
        message=f"'{peer.name}' takes no images, and the prompt has {len(attached)}; "
        "nothing was sent. Use a model that takes them.",
        suggestions=(f"remove `images = false` from [providers.{peer.provider}]",),
    )
