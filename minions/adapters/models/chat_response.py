"""Readers of chat-completions answers, plain or streamed: bytes in, a response or a failure out.

Nothing is fetched here. The documents in an answer are validated in `answer_assembly`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from attrs import evolve
from returns.result import Failure, Result, Success

from minions.adapters.models.answer_assembly import (
    AnswerAssembly,
    MalformedAnswerError,
    usual_response,
)
from minions.adapters.models.answer_reader import AnswerReader, EventAnswer
from minions.adapters.models.chat_failures import ChatPeer, error_failure
from minions.adapters.models.chat_shapes import read_completion, read_piece
from minions.contracts.calls import ModelCallResponse, ModelDelta, ModelFailure
from minions.contracts.messages import CUT_AT_LIMIT, TokenUsage
from minions.data.json_values import json_type


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


class StreamedAnswer(EventAnswer):
    """Reads an answer of server-sent events, each a JSON document with a fragment."""

    def __init__(self, peer: ChatPeer, clock: Callable[[], float], started: float) -> None:
        super().__init__(peer, clock, started)
        self._assembly = AnswerAssembly()

    @property
    def usage(self) -> TokenUsage:
        return self._assembly.usage

    @property
    def finish_reason(self) -> str | None:
        return self._assembly.finish_reason

    def cut(self) -> None:
        self._assembly.finish_reason = CUT_AT_LIMIT

    def take_event(self, event: bytes) -> Sequence[ModelDelta]:
        if not self.is_done and (piece := read_piece(event)) is not None:
            return self._assembly.take_ordinary(piece)
        return super().take_event(event)

    def take_document(self, document: Mapping[str, object]) -> Sequence[ModelDelta]:
        if document.get("error"):
            self._assembly.take_frame(document)
            self.stop(error_failure(self._peer, document["error"]))
            return ()
        return self._assembly.take_piece(document)

    def assembled(
        self, first_token_latency_ms: float | None
    ) -> Result[ModelCallResponse, ModelFailure]:
        return self._assembly.result(self._peer, first_token_latency_ms)
