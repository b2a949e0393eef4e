"""Wire forms: how a provider's requests are written, its answers read. Nothing is fetched here."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import ClassVar, Final

from attrs import define, evolve
from returns.result import Failure, Result

from minions.adapters.http.http_response import EventParser
from minions.adapters.models.answer_assembly import MalformedAnswerError
from minions.adapters.models.chat_failures import ChatPeer, status_failure
from minions.contracts.calls import ModelCallResponse, ModelDelta, ModelFailure, Prompt
from minions.contracts.messages import TokenUsage
from minions.contracts.model_endpoints import ModelApi
from minions.data.json_values import json_type


class AnswerReader(ABC):
    """Reads one answer from the bytes of its body."""

    is_done = False
    """Whether the end of the answer was reached; bytes after it do not matter."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing of the answer can be missing, although the
        connection may still be open.
        """
        return self.is_done

    @property
    def usage(self) -> TokenUsage:
        """What the server has reported so far; it was paid for, also if the answer is lost."""
        return TokenUsage()

    @abstractmethod
    def feed(self, chunk: bytes) -> Sequence[ModelDelta]:
        """Take the next bytes; returns the fragments that can be shown."""

    @abstractmethod
    def result(self, broken: str | None = None) -> Result[ModelCallResponse, ModelFailure]:
        """The whole answer, after the last bytes.

        Args:
            broken: How the connection was lost; None: it ended in order.
        """

    def longest_silence(self, idle_timeout_s: float) -> float:
        """Seconds to wait for the next bytes."""
        return idle_timeout_s


_AFTER_FINISH_S: Final = 2.0
"""Seconds to wait after the finish reason: what follows comes at once, or never."""
_AFTER_END_S: Final = 0.1
"""Seconds to wait after the end of the answer: enough to see that of the body, so that the
connection can be reused."""
_START_KEPT: Final = 2_000
"""Bytes of the start that are kept, to be shown if they are not a stream."""


_LOOKS_EVERY: Final = 512
"""Characters of an answer after which it is looked whether its end repeats itself."""
_LONGEST_REPEAT: Final = 512
_REPEATS: Final = 12
"""How often the end has to repeat itself, before no more of it is wanted."""
_REPEATED_TEXT: Final = 2_048
"""Characters that have to be repeated: a list of equal words may be right."""
_MATCHED: Final = 48
"""Characters by which the last occurrence of the end is found."""


@define(eq=False, repr=False)
class _Repetition:
    """The end of an answer in JSON: does it say the same items again and again?"""

    _tail: str = ""
    _new: int = 0

    def is_in(self, text: str) -> bool:
        """Take the next piece; whether the model does not come to an end by itself.

        Items in a row that are numbers may well be equal; what repeats has to hold a text.
        """
        self._tail += text
        self._new += len(text)
        if self._new < _LOOKS_EVERY:
            return False
        self._new = 0
        tail = self._tail = self._tail[-_LONGEST_REPEAT * _REPEATS :]
        at = tail.rfind(tail[-_MATCHED:], 0, -1)
        period = len(tail) - _MATCHED - at
        if at < 0 or period > _LONGEST_REPEAT:
            return False
        times = max(_REPEATS, _REPEATED_TEXT // period)
        cycle = tail[-period:]
        return tail.endswith(cycle * times) and '"' in cycle and "," in cycle


class EventAnswer(AnswerReader):
    """Reads an answer of server-sent events, each a JSON document."""

    def __init__(self, peer: ChatPeer, clock: Callable[[], float], started: float) -> None:
        """Read one answer; the clock times its first fragment."""
        self._peer = peer
        self._clock = clock
        self._started = started
        self._events = EventParser()
        self._first_token_at: float | None = None
        self._failure: ModelFailure | None = None
        self._start = b""
        self._repetition: _Repetition | None = None

    def end_repetition(self) -> None:
        """End the answer where a list in it only repeats itself, as if its room were used up."""
        self._repetition = _Repetition()

    @abstractmethod
    def cut(self) -> None:
        """Take the answer for one that was cut off at its limit."""

    @property
    @abstractmethod
    def finish_reason(self) -> str | None:
        """Why the model stopped; None: nobody has said so yet."""

    @abstractmethod
    def take_document(self, document: Mapping[str, object]) -> Sequence[ModelDelta]:
        """Take one document; returns the fragments that can be shown.

        Raises:
            MalformedAnswerError: It is none of an answer.
        """

    @abstractmethod
    def assembled(
        self, first_token_latency_ms: float | None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """The answer that the documents make.

        Raises:
            MalformedAnswerError: They make none.
        """

    @property
    def is_complete(self) -> bool:
        """True also without the last event, once a finish reason was sent."""
        return self.is_done or self.finish_reason is not None

    def longest_silence(self, idle_timeout_s: float) -> float:
        """Short once the answer itself is complete."""
        if self.is_done:
            return _AFTER_END_S
        return min(idle_timeout_s, _AFTER_FINISH_S) if self.is_complete else idle_timeout_s

    def feed(self, chunk: bytes) -> Sequence[ModelDelta]:
        if len(self._start) < _START_KEPT:
            self._start += chunk[: _START_KEPT - len(self._start)]
        deltas: list[ModelDelta] = []
        for event in self._events.feed(chunk):
            deltas += self.take_event(event)
        if deltas and self._first_token_at is None:
            self._first_token_at = self._clock()
        if self._repetition is not None and not self.is_complete:
            text = "".join(_json_in(delta) for delta in deltas)
            if text and self._repetition.is_in(text):
                self.cut()
                self.is_done = True
        return deltas

    def result(self, broken: str | None = None) -> Result[ModelCallResponse, ModelFailure]:
        if broken is None and not self.is_done:
            for event in self._events.rest():
                self.take_event(event)
        if self._failure is not None:
            return Failure(evolve(self._failure, usage=self.usage))
        if not self.is_complete:
            return Failure(evolve(self._incomplete(broken), usage=self.usage))
        try:
            return self.assembled(self._latency_ms())
        except MalformedAnswerError as error:
            return Failure(evolve(self._malformed_answer(str(error)), usage=self.usage))

    def stop(self, failure: ModelFailure) -> None:
        """End the answer with a failure."""
        self._failure = failure
        self.is_done = True

    def take_event(self, event: bytes) -> Sequence[ModelDelta]:
        """Take the data of one event; returns the fragments that can be shown."""
        if self.is_done:
            return ()
        if event.strip() == b"[DONE]":
            self.is_done = True
            return ()
        try:
            document: object = json.loads(event)
            if not isinstance(document, dict):
                raise MalformedAnswerError(f"a piece of the stream is a JSON {json_type(document)}")
            return self.take_document(document)
        except MalformedAnswerError as error:
            self.stop(self._peer.malformed(str(error), event.decode("utf-8", errors="replace")))
        except (ValueError, RecursionError):
            text = event.decode("utf-8", errors="replace")
            self.stop(self._peer.malformed("a piece of the stream is not JSON", text))
        return ()

    def _incomplete(self, broken: str | None) -> ModelFailure:
        if self._events.has_events or broken is not None:
            what = broken or "the stream ended before the answer was finished"
            return self._peer.interrupted(what)
        return self._malformed_answer("an event stream was expected")

    def _malformed_answer(self, what: str) -> ModelFailure:
        return self._peer.malformed(what, self._start.decode("utf-8", errors="replace"))

    def _latency_ms(self) -> float | None:
        if self._first_token_at is None:
            return None
        return (self._first_token_at - self._started) * 1000


def _json_in(delta: ModelDelta) -> str:
    """The part of an answer in JSON that a fragment holds."""
    if delta.tool_call is None:
        return delta.content or ""
    function = delta.tool_call.get("function")
    text = function.get("arguments") if isinstance(function, Mapping) else None
    return text if isinstance(text, str) else ""


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
    sends_cache_key: bool = False
    """Whether requests say which of them begin alike, by `prompt_cache_key`."""
    keeps_long: bool = False
    """Whether requests ask the server to keep their beginning for as long as it can."""

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
