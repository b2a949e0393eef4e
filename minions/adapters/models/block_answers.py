"""Readers of answers that are lists of blocks, plain or streamed; a `BlockForm` knows the form."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import evolve
from returns.result import Failure, Result

from minions.adapters.models.answer_assembly import MalformedAnswerError
from minions.adapters.models.answer_blocks import AnswerBlocks
from minions.adapters.models.chat_failures import ChatPeer, error_failure
from minions.adapters.models.chat_response import AnswerReader
from minions.adapters.models.server_sent_events import EventParser
from minions.contracts.calls import ModelCallResponse, ModelDelta, ModelFailure
from minions.contracts.json_values import json_type
from minions.contracts.messages import TokenUsage

__all__ = ["BlockAnswer", "BlockForm", "StreamedBlocks"]


class BlockForm(ABC):
    """Reads the documents of one provider's answers into blocks."""

    is_ended = False
    """Whether the last document of the stream has come."""

    def __init__(self, blocks: AnswerBlocks) -> None:
        """Read into these."""
        self.blocks = blocks

    @abstractmethod
    def take_document(self, document: Mapping[str, object]) -> None:
        """Take the one document of a plain answer.

        Raises:
            MalformedAnswerError: It is no answer.
        """

    @abstractmethod
    def take_event(self, document: Mapping[str, object]) -> Sequence[ModelDelta]:
        """Take one document of a stream; returns the fragments that can be shown.

        Raises:
            MalformedAnswerError: It is none of an answer.
        """

    def close(self) -> None:
        """Complete the blocks after the last document."""

    def error_in(self, document: Mapping[str, object]) -> object:
        """The error that a document with status 200 holds; None: it holds none."""
        return document.get("error") or None


class BlockAnswer(AnswerReader):
    """Reads an answer that is one JSON document."""

    def __init__(self, peer: ChatPeer, form: BlockForm) -> None:
        """Read one answer of that form."""
        self._peer = peer
        self._form = form
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> Sequence[ModelDelta]:
        """Buffers the bytes; there is nothing to show before the end."""
        self._chunks.append(chunk)
        return ()

    def result(self, broken: str | None = None) -> Result[ModelCallResponse, ModelFailure]:
        if broken is not None:
            return Failure(self._peer.interrupted(broken))
        body = b"".join(self._chunks)
        try:
            document: object = json.loads(body)
            if not isinstance(document, dict):
                raise MalformedAnswerError(f"it is a JSON {json_type(document)}")
            if (error := self._form.error_in(document)) is not None:
                return Failure(error_failure(self._peer, error))
            self._form.take_document(document)
            self._form.close()
            return self._form.blocks.result(self._peer)
        except MalformedAnswerError as error:
            what = str(error)
        except (ValueError, RecursionError):
            what = "it is not JSON"
        failure = self._peer.malformed(what, body.decode("utf-8", errors="replace"))
        return Failure(evolve(failure, usage=self._form.blocks.usage))


_AFTER_FINISH_S: Final = 2.0
"""Seconds to wait after the finish reason: what follows comes at once, or never."""
_AFTER_END_S: Final = 0.1
"""Seconds to wait after the last document: enough to see the end of the body, so that the
connection can be reused."""
_START_KEPT: Final = 2_000
"""Bytes of the start that are kept, to be shown if they are not a stream."""


class StreamedBlocks(AnswerReader):
    """Reads an answer of server-sent events, each a JSON document."""

    def __init__(
        self, peer: ChatPeer, form: BlockForm, clock: Callable[[], float], started: float
    ) -> None:
        """Read one answer of that form; the clock times its first fragment."""
        self._peer = peer
        self._form = form
        self._clock = clock
        self._started = started
        self._events = EventParser()
        self._first_token_at: float | None = None
        self._failure: ModelFailure | None = None
        self._start = b""

    @property
    def usage(self) -> TokenUsage:
        return self._form.blocks.usage

    @property
    def is_complete(self) -> bool:
        """True also without the last event, once a finish reason was sent."""
        return self.is_done or self._form.blocks.finish_reason is not None

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
            deltas += self._take(event)
        if deltas and self._first_token_at is None:
            self._first_token_at = self._clock()
        return deltas

    def result(self, broken: str | None = None) -> Result[ModelCallResponse, ModelFailure]:
        if broken is None and not self.is_done:
            for event in self._events.rest():
                self._take(event)
        if self._failure is not None:
            return Failure(evolve(self._failure, usage=self.usage))
        if not self.is_complete:
            return Failure(evolve(self._incomplete(broken), usage=self.usage))
        try:
            self._form.close()
            return self._form.blocks.result(self._peer, self._latency_ms())
        except MalformedAnswerError as error:
            return Failure(evolve(self._malformed(str(error)), usage=self.usage))

    def _take(self, event: bytes) -> Sequence[ModelDelta]:
        if self.is_done:
            return ()
        if event.strip() == b"[DONE]":
            self.is_done = True
            return ()
        try:
            document: object = json.loads(event)
            if not isinstance(document, dict):
                raise MalformedAnswerError(f"a piece of the stream is a JSON {json_type(document)}")
            return self._take_document(document)
        except MalformedAnswerError as error:
            self._stop(self._peer.malformed(str(error), event.decode("utf-8", errors="replace")))
        except (ValueError, RecursionError):
            text = event.decode("utf-8", errors="replace")
            self._stop(self._peer.malformed("a piece of the stream is not JSON", text))
        return ()

    def _take_document(self, document: Mapping[str, object]) -> Sequence[ModelDelta]:
        if (error := self._form.error_in(document)) is not None:
            self._stop(error_failure(self._peer, error))
            return ()
        deltas = self._form.take_event(document)
        self.is_done = self._form.is_ended
        return deltas

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
