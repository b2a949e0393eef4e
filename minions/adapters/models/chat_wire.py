"""`ChatWire`: OpenAI's chat completions, which most servers implement."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from minions.adapters.models.answer_reader import AnswerReader
from minions.adapters.models.chat_failures import ChatPeer
from minions.adapters.models.chat_request import RequestWriter
from minions.adapters.models.chat_response import PlainAnswer, StreamedAnswer
from minions.adapters.models.wire_form import WireForm
from minions.contracts.calls import Prompt
from minions.contracts.model_endpoints import ModelApi

__all__ = ["ChatWire"]


class ChatWire(WireForm):
    """The form of OpenAI's chat completions."""

    api: ClassVar[ModelApi] = ModelApi.CHAT

    def __init__(
        self, *, provider: str, model: str, takes_strict: bool, most_conversations: int
    ) -> None:
        """Requests to one model; the arguments are those of `RequestWriter`."""
        self._requests = RequestWriter(
            provider=provider,
            model=model,
            takes_strict=takes_strict,
            most_conversations=most_conversations,
        )

    @property
    def path(self) -> str:
        return "/chat/completions"

    def write(self, prompt: Prompt, *, stream: bool) -> bytes:
        return self._requests.write(prompt, stream=stream)

    def plain_reader(self, peer: ChatPeer, prompt: Prompt) -> AnswerReader:
        return PlainAnswer(peer)

    def stream_reader(
        self, peer: ChatPeer, prompt: Prompt, clock: Callable[[], float], started: float
    ) -> AnswerReader:
        return StreamedAnswer(peer, clock, started)

    def forget(self) -> None:
        self._requests.forget()
