"""`WireForm`: how the API of one provider writes requests and answers. Nothing is sent here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import ClassVar

from attrs import evolve

from minions.adapters.models.answer_reader import AnswerReader
from minions.adapters.models.chat_failures import ChatPeer, status_failure
from minions.contracts.calls import ModelFailure, Prompt
from minions.contracts.model_endpoints import ModelApi


class WireForm(ABC):
    """The form of the requests to one model and of its answers. It holds no connection.

    The exchange itself (connections, time limits, masking of keys) is the same for all forms and
    is in `http_model`.
    """

    api: ClassVar[ModelApi]
    """The form's name in configurations."""
    answer_words: ClassVar[str] = "a chat completion"
    """What an answer in order is called in messages."""
    api_words: ClassVar[str] = "an OpenAI-compatible API (often ends in /v1)"
    """What `base_url` has to lead to, in messages."""

    @property
    @abstractmethod
    def path(self) -> str:
        """The path of plain requests, behind the base URL."""

    @property
    def stream_path(self) -> str:
        """The path, with its query, of requests whose answer is streamed."""
        return self.path

    def headers(self, api_key: str | None) -> Mapping[str, str]:
        """The headers of every request besides those of the transport; with a key also its own."""
        return {} if api_key is None else {"Authorization": f"Bearer {api_key}"}

    def peer(self, peer: ChatPeer) -> ChatPeer:
        """The peer with this form's words for messages."""
        return evolve(peer, answer_words=self.answer_words, api_words=self.api_words)

    @abstractmethod
    def write(self, prompt: Prompt, *, stream: bool) -> bytes:
        """The body of one request as UTF-8 JSON.

        Raises:
            TypeError: A part of the prompt is not representable in JSON.
            ValueError: It holds NaN, an infinity, or a reference cycle.
        """

    @abstractmethod
    def plain_reader(self, peer: ChatPeer, prompt: Prompt) -> AnswerReader:
        """The reader of an answer that is one JSON document."""

    @abstractmethod
    def stream_reader(
        self, peer: ChatPeer, prompt: Prompt, clock: Callable[[], float], started: float
    ) -> AnswerReader:
        """The reader of an answer of server-sent events.

        Args:
            clock: Seconds, to time the first fragment.
            started: When the request was sent, by that clock.
        """

    def failure(
        self,
        peer: ChatPeer,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        now: datetime,
    ) -> ModelFailure:
        """The failure behind an HTTP status other than 2xx."""
        return status_failure(peer, status, headers, body, now)

    def forget(self) -> None:
        """Clear what was kept to write requests faster."""
