"""Readers of answers that are lists of blocks, plain or streamed; a `BlockForm` knows the form."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from attrs import evolve
from returns.result import Failure, Result

from minions.adapters.models.answer_assembly import MalformedAnswerError
from minions.adapters.models.answer_blocks import AnswerBlocks
from minions.adapters.models.answer_reader import AnswerReader, EventAnswer
from minions.adapters.models.chat_failures import ChatPeer, error_failure
from minions.contracts.calls import ModelCallResponse, ModelDelta, ModelFailure
from minions.contracts.messages import CUT_AT_LIMIT, TokenUsage
from minions.data.json_values import json_type


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
        self._blocks = form.blocks
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
            return self._blocks.result(self._peer)
        except MalformedAnswerError as error:
            what = str(error)
        except (ValueError, RecursionError):
            what = "it is not JSON"
        failure = self._peer.malformed(what, body.decode("utf-8", errors="replace"))
        return Failure(evolve(failure, usage=self._blocks.usage))


class StreamedBlocks(EventAnswer):
    """Reads an answer of server-sent events, each a JSON document."""

    def __init__(
        self, peer: ChatPeer, form: BlockForm, clock: Callable[[], float], started: float
    ) -> None:
        """Read one answer of that form; the clock times its first fragment."""
        super().__init__(peer, clock, started)
        self._form = form
        self._blocks = form.blocks

    @property
    def usage(self) -> TokenUsage:
        return self._blocks.usage

    @property
    def finish_reason(self) -> str | None:
        return self._blocks.finish_reason

    def cut(self) -> None:
        self._blocks.finish_reason = CUT_AT_LIMIT

    def take_document(self, document: Mapping[str, object]) -> Sequence[ModelDelta]:
        if (error := self._form.error_in(document)) is not None:
            self.stop(error_failure(self._peer, error))
            return ()
        deltas = self._form.take_event(document)
        self.is_done = self._form.is_ended
        return deltas

    def assembled(
        self, first_token_latency_ms: float | None
    ) -> Result[ModelCallResponse, ModelFailure]:
        self._form.close()
        return self._blocks.result(self._peer, first_token_latency_ms)
