"""Validates chat-completions answers, plain or streamed, and converts them to contract values.

Bytes come in, a `ModelCallResponse` or a `ModelFailure` comes out; nothing is fetched here. Nothing
that a server sends is trusted: every key may be missing or have another type.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, cast

from attrs import define, evolve, field
from returns.result import Failure, Result, Success

from minions.adapters.models.chat_failures import ChatPeer, error_failure
from minions.adapters.models.chat_shapes import (
    ChosenCall,
    Completion,
    Piece,
    read_completion,
    read_piece,
)
from minions.adapters.models.server_sent_events import EventParser
from minions.contracts.calls import ModelCallResponse, ModelDelta, ModelFailure
from minions.contracts.json_values import JsonValue, dumps, json_type
from minions.contracts.messages import TokenUsage, ToolCallRequest, assistant

__all__ = ["AnswerReader", "PlainAnswer", "StreamedAnswer", "read_usage"]


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
        if completion is not None and (response := _ordinary(completion, self._peer)) is not None:
            return Success(response)
        try:
            document: object = json.loads(body)
            if not isinstance(document, dict):
                raise _MalformedError(f"it is a JSON {json_type(document)}")
            if document.get("error"):
                return Failure(error_failure(self._peer, document["error"]))
            assembly = _Assembly()
            assembly.take_message(document)
            return assembly.result(self._peer)
        except _MalformedError as error:
            what = str(error)
        except (ValueError, RecursionError):
            what = "it is not JSON"
        return Failure(self._peer.malformed(what, body.decode("utf-8", errors="replace")))


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
        self._assembly = _Assembly()
        self._first_token_at: float | None = None
        self._failure: ModelFailure | None = None
        self._start = b""

    def feed(self, chunk: bytes) -> Sequence[ModelDelta]:
        if len(self._start) < _START_KEPT:
            self._start += chunk[:_START_KEPT]
        deltas: list[ModelDelta] = []
        for event in self._events.feed(chunk):
            deltas += self._take(event)
        if deltas and self._first_token_at is None:
            self._first_token_at = self._clock()
        return deltas

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
            return Failure(self._failure)
        if not self.is_complete:
            return Failure(self._incomplete(broken))
        try:
            return self._assembly.result(self._peer, self._latency_ms())
        except _MalformedError as error:
            return Failure(self._malformed(str(error)))

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
        except _MalformedError as error:
            self._stop(self._peer.malformed(str(error), event.decode("utf-8", errors="replace")))
        except (ValueError, RecursionError):
            text = event.decode("utf-8", errors="replace")
            self._stop(self._peer.malformed("a piece of the stream is not JSON", text))
        return ()

    def _take_document(self, document: object) -> Sequence[ModelDelta]:
        if not isinstance(document, dict):
            raise _MalformedError(f"a piece of the stream is a JSON {json_type(document)}")
        if document.get("error"):
            self._stop(error_failure(self._peer, document["error"]))
            return ()
        return self._assembly.take_piece(document)

    def _stop(self, failure: ModelFailure) -> None:
        self._failure = failure
        self.is_done = True

    def _incomplete(self, broken: str | None) -> ModelFailure:
        if self._events.has_events or broken is not None:
            what = broken or "the stream ended before the answer was finished"
            return evolve(self._peer.interrupted(what), usage=self._assembly.usage)
        return self._malformed("an event stream was expected")

    def _malformed(self, what: str) -> ModelFailure:
        return self._peer.malformed(what, self._start.decode("utf-8", errors="replace"))

    def _latency_ms(self) -> float | None:
        if self._first_token_at is None:
            return None
        return (self._first_token_at - self._started) * 1000


_START_KEPT: Final = 2_000
"""Bytes of the start that are kept, to be shown if they are not a stream."""


class _MalformedError(ValueError):
    """The document is not a chat completion; the message says why."""


# --- the ordinary answer -----------------------------------------------------------------------


def _ordinary(completion: Completion, peer: ChatPeer) -> ModelCallResponse | None:
    """The answer of a document in its usual form; None: the tolerant reader has to decide."""
    choice = completion.choices[0]
    message, reason = choice.message, choice.finish_reason or None
    if message.refusal or reason in ("length", "content_filter"):
        return None
    calls = message.tool_calls or ()
    if calls and not _are_whole(calls):
        return None
    text = message.content if message.content and not message.content.isspace() else None
    if text is None and not calls:
        return None
    requests = tuple(
        ToolCallRequest(id=call.id, name=call.function.name, arguments=call.function.arguments)
        for call in calls
    )
    return ModelCallResponse(
        message=assistant(text, tool_calls=requests),
        usage=read_usage(completion.usage) if completion.usage else TokenUsage(),
        finish_reason=reason,
        model_name=completion.model or None,
        provider=peer.provider,
    )


def _are_whole(calls: Sequence[ChosenCall]) -> bool:
    """Whether each call has a unique id, a name and arguments."""
    ids = {call.id for call in calls}
    return (
        len(calls) == len(ids) <= _MOST_CALLS
        and "" not in ids
        and all(call.function.name and call.function.arguments.strip() for call in calls)
    )


# --- the document ----------------------------------------------------------------------------

_MOST_CALLS: Final = 1_000
"""Tool calls of one answer; a server that sends more is out of control."""


@define
class _Slot:
    """One tool call while its fragments arrive."""

    index: int
    id: str = ""
    name: str = ""
    _parts: list[str] = field(factory=list)

    @property
    def arguments(self) -> str:
        """The JSON text so far; `{}` where there was none."""
        text = _joined(self._parts)
        return text if text.strip() else "{}"

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are complete JSON, which a prefix of an object never is."""
        if not self._parts or not self._parts[-1].rstrip().endswith("}"):
            return False
        try:
            json.loads(self.arguments)
        except (ValueError, RecursionError):
            return False
        return True

    def take(self, call_id: str, name: str, arguments: str) -> None:
        self.id = self.id or call_id
        self.name = self.name or name
        if arguments:
            self._parts.append(arguments)


@define
class _Assembly:
    """The state of one answer after the documents received so far."""

    finish_reason: str | None = None
    usage: TokenUsage = field(factory=TokenUsage)
    _model: str | None = None
    _texts: list[str] = field(factory=list)
    _refusals: list[str] = field(factory=list)
    _slots: list[_Slot] = field(factory=list)
    _by_index: dict[int, _Slot] = field(factory=dict)
    _half: str = ""
    """The first half of a surrogate pair whose second half may come with the next fragment."""

    def take_message(self, document: Mapping[str, object]) -> None:
        """Take the one document of a plain answer."""
        self._take_frame(document)
        choices = document.get("choices")
        if not isinstance(choices, list) or not choices:
            raise _MalformedError(f"`choices` is {_shown(choices)}, not a list with an answer")
        choice = _mapping(choices[0], "choices[0]")
        message = _mapping(choice.get("message"), "choices[0].message")
        self._take_choice(choice, message)
        for call in _calls_of(message):
            self._new_slot(*_pieces_of(call))

    def take_ordinary(self, piece: Piece) -> Sequence[ModelDelta]:
        """Take a streamed document without tool calls and refusal; faster than `take_piece`."""
        self._model = piece.model or self._model
        if piece.usage is not None:
            self.usage = read_usage(piece.usage)
        if not piece.choices:
            return ()
        choice = piece.choices[0]
        self.finish_reason = choice.finish_reason or self.finish_reason
        text = choice.delta.content
        if not text:
            return ()
        self._texts.append(text)
        return (ModelDelta(content=self._shown(text) if self._half else text),)

    def take_piece(self, document: Mapping[str, object]) -> Sequence[ModelDelta]:
        """Take one document of a stream; returns the fragments that it adds."""
        self._take_frame(document)
        choices = document.get("choices")
        if not choices:
            return ()  # the usage comes in a piece of its own
        if not isinstance(choices, list):
            raise _MalformedError(f"`choices` is {_shown(choices)}, not a list")
        choice = _mapping(choices[0], "choices[0]")
        piece = _mapping(choice.get("delta") or choice.get("message") or {}, "choices[0].delta")
        text = self._shown(self._take_choice(choice, piece))
        deltas = [ModelDelta(content=text)] if text else []
        return [*deltas, *(self._take_fragment(call) for call in _calls_of(piece))]

    def result(
        self, peer: ChatPeer, first_token_latency_ms: float | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """The answer, or the failure if it is not one."""
        if (failure := self._failure(peer)) is not None:
            return Failure(failure)
        text = _joined(self._texts)
        message = assistant(text if text.strip() else None, tool_calls=self._tool_calls())
        return Success(
            ModelCallResponse(
                message=message,
                usage=self.usage,
                finish_reason=self.finish_reason,
                model_name=self._model,
                provider=peer.provider,
                first_token_latency_ms=first_token_latency_ms,
            )
        )

    def _failure(self, peer: ChatPeer) -> ModelFailure | None:
        if self.finish_reason == "length":
            return peer.truncated(self.usage)
        if self.finish_reason == "content_filter":
            return peer.filtered(self.usage)
        if refusal := _joined(self._refusals).strip():
            return peer.refused(refusal, self.usage)
        if not self._slots and not "".join(self._texts).strip():
            return peer.empty(self.finish_reason, self.usage)
        return None

    def _take_frame(self, document: Mapping[str, object]) -> None:
        if isinstance(model := document.get("model"), str) and model:
            self._model = model
        if isinstance(usage := document.get("usage"), dict):
            self.usage = read_usage(usage)

    def _take_choice(self, choice: Mapping[str, object], message: Mapping[str, object]) -> str:
        """Take one choice; returns the text that it adds."""
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self.finish_reason = reason
        if isinstance(refusal := message.get("refusal"), str):
            self._refusals.append(refusal)
        text = _text_of(message.get("content"))
        self._texts.append(text)
        return text

    def _shown(self, text: str) -> str:
        """The part of the text that can be shown already: without an
        unpaired surrogate at its end.
        """
        text = self._half + text
        self._half = text[-1] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return _joined((text.removesuffix(self._half),))

    def _take_fragment(self, call: Mapping[str, object]) -> ModelDelta:
        call_id, name, arguments = _pieces_of(call)
        slot = self._slot_for(call.get("index"), call_id, name)
        if slot is None:
            index = call.get("index")
            slot = self._new_slot(call_id, name, arguments, index if _is_index(index) else None)
        else:
            slot.take(call_id, name, arguments)
        function: dict[str, JsonValue] = {"name": name or None, "arguments": arguments}
        fragment: dict[str, JsonValue] = {"index": slot.index, "function": function}
        if call_id:
            fragment["id"] = call_id
        return ModelDelta(tool_call=fragment)

    def _slot_for(self, index: object, call_id: str, name: str) -> _Slot | None:
        """The call that a fragment continues; None: it starts a new one.

        Some servers send whole calls and give all of them index 0, or none.
        """
        if _is_index(index):
            slot = self._by_index.get(cast("int", index))
        elif call_id:
            slot = next((slot for slot in self._slots if slot.id == call_id), None)
        else:
            slot = self._slots[-1] if self._slots else None
        if slot is None or not name:
            return slot
        is_other = slot.id != call_id if slot.id and call_id else not call_id and slot.is_whole
        return None if is_other else slot

    def _new_slot(self, call_id: str, name: str, arguments: str, index: object = None) -> _Slot:
        if len(self._slots) >= _MOST_CALLS:
            raise _MalformedError(f"it requests more than {_MOST_CALLS} tool calls")
        taken = {slot.index for slot in self._slots}
        own = index if _is_index(index) and index not in taken else max(taken, default=-1) + 1
        slot = _Slot(index=cast("int", own))
        slot.take(call_id, name, arguments)
        self._slots.append(slot)
        self._by_index[cast("int", index) if _is_index(index) else slot.index] = slot
        return slot

    def _tool_calls(self) -> tuple[ToolCallRequest, ...]:
        calls: list[ToolCallRequest] = []
        used: set[str] = {slot.id for slot in self._slots}
        seen: set[str] = set()
        for position, slot in enumerate(sorted(self._slots, key=lambda slot: slot.index)):
            if not slot.name:
                raise _MalformedError(f"tool call {position} has no name")
            call_id = slot.id
            if not call_id or call_id in seen:
                call_id = _free_id(position, used)
            used.add(call_id)
            seen.add(call_id)
            calls.append(ToolCallRequest(id=call_id, name=slot.name, arguments=slot.arguments))
        return tuple(calls)


_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def _joined(texts: Iterable[str]) -> str:
    """The texts joined; surrogate pairs that were split between fragments become one character."""
    text = "".join(texts)
    try:
        text.encode()
    except UnicodeEncodeError:
        return _PAIR.sub(
            lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text
        )
    return text


def _free_id(position: int, used: set[str]) -> str:
    """`call_<position>`, or its first variant that is not in use."""
    wanted, number = f"call_{position}", 1
    while wanted in used:
        number += 1
        wanted = f"call_{position}_{number}"
    return wanted


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: object) -> str:
    return "missing" if value is None else json.dumps(value, default=str)[:80]


def _mapping(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _MalformedError(f"`{place}` is {_shown(value)}, not an object")
    return value


def _text_of(content: object) -> str:
    """The text of a message, from a string or a list of parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    raise _MalformedError(f"`content` is {_shown(content)}, not text")


def _calls_of(message: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    calls = message.get("tool_calls")
    if not calls:
        return ()
    if not isinstance(calls, list):
        raise _MalformedError(f"`tool_calls` is {_shown(calls)}, not a list")
    return [_mapping(call, f"tool_calls[{index}]") for index, call in enumerate(calls)]


def _pieces_of(call: Mapping[str, object]) -> tuple[str, str, str]:
    """Id, name and arguments; an empty string where one is missing."""
    function = _mapping(call.get("function") or {}, "tool_calls.function")
    call_id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        arguments = dumps(cast("JsonValue", arguments))  # it came from JSON
    return (
        call_id if isinstance(call_id, str) else "",
        name if isinstance(name, str) else "",
        arguments,
    )


# --- usage -------------------------------------------------------------------------------------


def read_usage(usage: Mapping[str, object]) -> TokenUsage:
    """Token counts under either provider's names; missing or invalid counts are 0."""
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    nested = details if isinstance(details, dict) else {}
    return TokenUsage(
        input_tokens=_count(usage, "prompt_tokens", "input_tokens"),
        output_tokens=_count(usage, "completion_tokens", "output_tokens"),
        cached_tokens=_count(nested, "cached_tokens")
        or _count(usage, "prompt_cache_hit_tokens", "cache_read_input_tokens"),
    )


def _count(usage: Mapping[str, object], *names: str) -> int:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return 0
