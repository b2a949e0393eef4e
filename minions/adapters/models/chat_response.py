"""Readers of chat-completions answers, plain or streamed: bytes in, a response or a failure out.

Nothing is fetched here. The documents in an answer are validated in `answer_assembly`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from attrs import evolve
from returns.result import Failure, Result, Success

from minions.adapters.models.answer_assembly import (
    AnswerAssembly,
    MalformedAnswerError,
    usual_response,
)
from minions.adapters.models.chat_failures import ChatPeer, error_failure
from minions.adapters.models.chat_shapes import read_completion, read_piece
from minions.adapters.models.server_sent_events import EventParser
from minions.contracts.calls import ModelCallResponse, ModelDelta, ModelFailure
from minions.contracts.json_values import json_type
from minions.contracts.messages import TokenUsage

__all__ = ["AnswerReader", "PlainAnswer", "StreamedAnswer"]


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


class PlainAnswer(AnswerReader):
    """Reads an answer that is one JSON document."""

    def __init__(self, peer: ChatPeer) -> None:
        self._peer = peer
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> Sequence[ModelDelta]:
        """Buffers the bytes; there is nothing to show before the end."""
        self._chunks.append(chunk)
        return ()

    def result(self, broken: str | None = None) -> Result[ModelCallResponse, ModelFailure]:
        if broken is not None:
            return Failure(self._peer.interrupted(broken))
        body = b"".join(self._chunks)
        completion = read_completion(body)
        if (
            completion is not None
            and (response := usual_response(completion, self._peer)) is not None
        ):
            return Success(response)
        assembly = AnswerAssembly()
        try:
            document: object = json.loads(body)
            if not isinstance(document, dict):
                raise MalformedAnswerError(f"it is a JSON {json_type(document)}")
            assembly.take_frame(document)
            if document.get("error"):
                failure = error_failure(self._peer, document["error"])
                return Failure(evolve(failure, usage=assembly.usage))
            assembly.take_message(document)
            return assembly.result(self._peer)
        except MalformedAnswerError as error:
            what = str(error)
        except (ValueError, RecursionError):
            what = "it is not JSON"
        failure = self._peer.malformed(what, body.decode("utf-8", errors="replace"))
        return Failure(evolve(failure, usage=assembly.usage))


_AFTER_FINISH_S: Final = 2.0
"""Seconds to wait after the last fragment: the usage follows at once, or never."""

_AFTER_DONE_S: Final = 0.1
"""Seconds to wait after the answer: enough to see the end of the body,
so that the connection can be reused.
"""


class StreamedAnswer(AnswerReader):
    """Reads an answer of server-sent events, each a JSON document with a fragment."""

    def __init__(self, peer: ChatPeer, clock: Callable[[], float], started: float) -> None:
        self._peer = peer
        self._clock = clock
        self._started = started
        self._events = EventParser()
        self._assembly = AnswerAssembly()
        self._first_token_at: float | None = None
        self._failure: ModelFailure | None = None
        self._start = b""

    def feed(self, chunk: bytes) -> Sequence[ModelDelta]:
        if len(self._start) < _START_KEPT:
            self._start += chunk[: _START_KEPT - len(self._start)]
        deltas: list[ModelDelta] = []
        for event in self._events.feed(chunk):
            deltas += self._take(event)
        if deltas and self._first_token_at is None:
            self._first_token_at = self._clock()
        return deltas

    @property
    def usage(self) -> TokenUsage:
        return self._assembly.usage

    @property
    def is_complete(self) -> bool:
        """True also without `[DONE]`, once a finish reason was sent."""
        return self.is_done or self._assembly.finish_reason is not None

    def longest_silence(self, idle_timeout_s: float) -> float:
        """Short once the answer itself is complete."""
        if self.is_done:
            return _AFTER_DONE_S
        if self.is_complete:
            return min(idle_timeout_s, _AFTER_FINISH_S)
        return idle_timeout_s

    def result(self, broken: str | None = None) -> Result[ModelCallResponse, ModelFailure]:
        if broken is None and not self.is_done:
            for event in self._events.rest():
                self._take(event)
        if self._failure is not None:
            return Failure(evolve(self._failure, usage=self.usage))
        if not self.is_complete:
            return Failure(evolve(self._incomplete(broken), usage=self.usage))
        try:
            return self._assembly.result(self._peer, self._latency_ms())
        except MalformedAnswerError as error:
            return Failure(evolve(self._malformed(str(error)), usage=self.usage))

    def _take(self, event: bytes) -> Sequence[ModelDelta]:
        if self.is_done:
            return ()
        if (piece := read_piece(event)) is not None:
            return self._assembly.take_ordinary(piece)
        if event.strip() == b"[DONE]":
            self.is_done = True
            return ()
        try:
            return self._take_document(json.loads(event))
        except MalformedAnswerError as error:
            self._stop(self._peer.malformed(str(error), event.decode("utf-8", errors="replace")))
        except (ValueError, RecursionError):
            text = event.decode("utf-8", errors="replace")
            self._stop(self._peer.malformed("a piece of the stream is not JSON", text))
        return ()

    def _take_document(self, document: object) -> Sequence[ModelDelta]:
        if not isinstance(document, dict):
            raise MalformedAnswerError(f"a piece of the stream is a JSON {json_type(document)}")
        if document.get("error"):
            self._assembly.take_frame(document)
            self._stop(error_failure(self._peer, document["error"]))
            return ()
        return self._assembly.take_piece(document)

    def _stop(self, failure: ModelFailure) -> None:
        self._failure = failure
        self.is_done = True

    def _incomplete(self, broken: str | None) -> ModelFailure:
        if self._events.has_events or broken is not None:
            what = broken or "the stream ended before the answer was finished"
            return self._peer.interrupted(what)
        return self._malformed("an event stream was expected")

    def _malformed(self, what: str) -> ModelFailure:
        return self._peer.malformed(what, self._start.decode("utf-8", errors="replace"))

    def _latency_ms(self) -> float | None:
        if self._first_token_at is None:
            return None
        return (self._first_token_at - self._started) * 1000


_START_KEPT: Final = 2_000
"""Bytes of the start that are kept, to be shown if they are not a stream."""
