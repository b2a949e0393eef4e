"""Validates the JSON documents of an answer and assembles the response from them.

Nothing that a server sends is trusted: every key may be missing or have another type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, cast

from attrs import define, field
from returns.result import Failure, Result, Success

from minions.adapters.models.chat_failures import ChatPeer
from minions.adapters.models.chat_shapes import (
    MOST_TOKENS,
    ChosenCall,
    Completion,
    Piece,
    PromptTimings,
    as_reasoning,
)
from minions.adapters.models.chat_shapes import joined_texts as _joined
from minions.contracts.calls import ModelCallResponse, ModelDelta, ModelFailure
from minions.contracts.messages import TokenUsage, ToolCallRequest, assistant
from minions.data.json_values import JsonValue, as_count, dumps


class MalformedAnswerError(ValueError):
    """The document is not a chat completion; the message says why."""


TWO_ANSWERS: Final = "the stream holds the beginning of a second answer"
"""Of a gateway that asked again in the midst of an answer, and sent both as one."""


# --- the ordinary answer -----------------------------------------------------------------------


def usual_response(completion: Completion, peer: ChatPeer) -> ModelCallResponse | None:
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
    reasoning = message.reasoning_content or message.reasoning
    requests = [
        ToolCallRequest(id=call.id, name=call.function.name, arguments=call.function.arguments)
        for call in calls
    ]
    usage = completion.usage
    return ModelCallResponse(
        message=assistant(text, tool_calls=tuple(requests), reasoning=as_reasoning(reasoning)),
        usage=TokenUsage() if usage is None else usage.as_usage(completion.timings),
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
        and all(len(call_id) <= _LONGEST_ID for call_id in ids)
        and all(call.function.name and call.function.arguments.strip() for call in calls)
    )


# --- the document ----------------------------------------------------------------------------

_MOST_CALLS: Final = 1_000
"""Tool calls of one answer; a server that sends more is out of control."""
_LONGEST_ID: Final = 4_096
"""Characters of a call's id. Some servers put a signature into it, which they want back; a longer
one is replaced like one that is missing."""
_MOST_LOOKS: Final = 100
"""How often it is looked whether a call's arguments are whole: each look reads all of them."""
_MOST_READ: Final = 8_388_608
"""Characters that these looks read in total."""


@define(eq=False, repr=False)
class _Slot:
    """One tool call while its fragments arrive."""

    index: int
    id: str = ""
    name: str = ""
    _parts: list[str] = field(factory=list)
    _looks: int = 0
    _read: int = 0

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
        self._looks += 1
        if self._looks > _MOST_LOOKS or self._read > _MOST_READ:
            return False
        text = self.arguments
        self._read += len(text)
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return False
        return True

    def take(self, call_id: str, name: str, arguments: str) -> None:
        self.id = self.id or call_id
        self.name = self.name or name
        if arguments:
            self._parts.append(arguments)


_STEADY: Final = 3
"""Pieces with the same id, after which a server is one that gives all pieces of an answer one id.
Two come by chance, of one event that a gateway made two pieces of."""


@define(eq=False, repr=False)
class _OneAnswer:
    """Whether the pieces of a stream belong to one answer, or a gateway joined two.

    OpenAI gives all pieces one id, says the role in the first and a finish reason in the last.
    Known servers and gateways depart from it, and are not refused for that:

    - another id for each piece (Foundry Local, older llama.cpp and LiteLLM), none at all or an
      empty one (TGI), one of their own for pieces that add nothing: an opening with the role, the
      end, the usage, a filter's report (Azure);
    - the role in every piece (OpenRouter, Ollama), again where text follows a tool call, or empty
      (MiniMax);
    - the finish reason twice (OpenRouter), in every piece, or text that was held back behind it
      (Dynamo);
    - usage in every piece (vLLM, SGLang), which counts up. It is no sign of anything.

    So it is a second answer where pieces add to it that have another id than steady ones before or
    behind, or the id of the first again; where the role is said again although the piece before
    went without it and was of the same kind; and where text follows the end with another id or
    none. Not noticed: a second answer with the same id, as many roles, and no role at its start;
    and one whose pieces are fewer than three, as those of the first are.
    """

    _id: str = ""
    _first_id: str = ""
    _pieces: int = 0
    """Pieces in a row with this id."""
    _has_changed: bool = False
    _kind: str = ""
    """What the newest piece added; empty: there was none that added anything."""
    _is_silent: bool = False
    """Whether that piece said no role, although one before it did."""
    _has_role: bool = False
    _always_finishes: bool = False
    """Whether the first words came with a finish reason, as then all do."""
    _is_finished: bool = False

    def take(self, own_id: str | None, role: object, kind: str, finish: object) -> None:
        """Take the next piece.

        Args:
            own_id: The answer's, as the piece says.
            role: As the piece says; None or empty: it says none.
            kind: `text`, `thought` or `call`; empty: it adds nothing.
            finish: The finish reason; None or empty: there is none.
        Raises:
            MalformedAnswerError: It is of a second answer.
        """
        if role and self._is_silent and not finish and kind in ("", self._kind):
            raise MalformedAnswerError(TWO_ANSWERS)
        if kind and self._is_finished and (not own_id or own_id != self._id):
            raise MalformedAnswerError(TWO_ANSWERS)
        if own_id and own_id == self._id:
            self._pieces += 1
            if self._has_changed and self._pieces >= _STEADY:
                raise MalformedAnswerError(TWO_ANSWERS)
        elif own_id and kind:
            self._change_id(own_id)
        if kind and not self._kind:
            self._always_finishes = bool(finish)
        if finish and self._kind and not self._always_finishes:
            self._is_finished = True
        if role:
            self._has_role = True
        if kind:
            self._kind, self._is_silent = kind, self._has_role and not role

    def _change_id(self, own_id: str) -> None:
        if self._id:
            if self._pieces >= _STEADY or own_id == self._first_id:
                raise MalformedAnswerError(TWO_ANSWERS)
            self._has_changed = True
        self._first_id = self._first_id or own_id
        self._id, self._pieces = own_id, 1


@define(eq=False, repr=False)
class AnswerAssembly:
    """The state of one answer after the documents received so far."""

    finish_reason: str | None = None
    usage: TokenUsage = field(factory=TokenUsage)
    _model: str | None = None
    _texts: list[str] = field(factory=list)
    _refusals: list[str] = field(factory=list)
    _thoughts: list[str] = field(factory=list)
    _slots: list[_Slot] = field(factory=list)
    _by_index: dict[int, _Slot] = field(factory=dict)
    _half: str = ""
    """The first half of a surrogate pair whose second half may come with the next fragment."""
    _one: _OneAnswer = field(factory=_OneAnswer)

    def take_frame(self, document: Mapping[str, object]) -> None:
        """Take what stands beside the choices: the model's name and the usage."""
        if isinstance(model := document.get("model"), str) and model:
            self._model = model
        if isinstance(usage := document.get("usage"), dict):
            self.usage = read_usage(usage, document.get("timings"))

    def take_message(self, document: Mapping[str, object]) -> None:
        """Take the choices of the one document of a plain answer."""
        choices = document.get("choices")
        if not isinstance(choices, list) or not choices:
            raise MalformedAnswerError(
                f"`choices` is {_show_text(choices)}, not a list with an answer"
            )
        choice = _mapping(choices[0], "choices[0]")
        message = _mapping(choice.get("message"), "choices[0].message")
        self._take_choice(choice, message)
        for call in _calls_of(message):
            self._new_slot(*_pieces_of(call))

    def take_ordinary(self, piece: Piece) -> Sequence[ModelDelta]:
        """Take a streamed document without tool calls and refusal; faster than `take_piece`.

        Raises:
            MalformedAnswerError: It is of a second answer.
        """
        self._model = piece.model or self._model
        if piece.usage is not None:
            self.usage = read_usage(piece.usage, piece.timings)
        if not piece.choices:
            return ()
        choice = piece.choices[0]
        text = choice.delta.content
        thought = choice.delta.reasoning_content or choice.delta.reasoning
        self._one.take(
            piece.id,
            choice.delta.role,
            "text" if text else "thought" if thought else "",
            choice.finish_reason,
        )
        self.finish_reason = choice.finish_reason or self.finish_reason
        if thought:
            return self._take_thought(thought, text)
        if not text:
            return ()
        self._texts.append(text)
        return (ModelDelta(content=self._show_text(text) if self._half else text),)

    def _take_thought(self, thought: str, text: str | None) -> Sequence[ModelDelta]:
        self._thoughts.append(thought)
        thinking = ModelDelta(reasoning=_joined((thought,)))
        if not text:
            return (thinking,)
        self._texts.append(text)
        return (thinking, ModelDelta(content=self._show_text(text)))

    def take_piece(self, document: Mapping[str, object]) -> Sequence[ModelDelta]:
        """Take one document of a stream; returns the fragments that it adds."""
        self.take_frame(document)
        choices = document.get("choices")
        if not choices:
            return ()  # the usage comes in a document of its own, without choices
        if not isinstance(choices, list):
            raise MalformedAnswerError(f"`choices` is {_show_text(choices)}, not a list")
        choice = _mapping(choices[0], "choices[0]")
        piece = _mapping(choice.get("delta") or choice.get("message") or {}, "choices[0].delta")
        taken, thought, calls = _text_of(piece.get("content")), _thought_of(piece), _calls_of(piece)
        has_text, own_id = taken or piece.get("refusal"), document.get("id")
        self._one.take(
            own_id if isinstance(own_id, str) else None,
            piece.get("role"),
            "call" if calls else "text" if has_text else "thought" if thought else "",
            choice.get("finish_reason"),
        )
        text = self._show_text(self._take_choice(choice, piece))
        deltas = [ModelDelta(reasoning=_joined((thought,)))] if thought else []
        deltas += [ModelDelta(content=text)] if text else []
        return [*deltas, *(self._take_fragment(call) for call in calls)]

    def result(
        self, peer: ChatPeer, first_token_latency_ms: float | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """The answer, or the failure if it is not one."""
        if (failure := self._failure(peer)) is not None:
            return Failure(failure)
        text = _joined(self._texts)
        message = assistant(
            text if text.strip() else None,
            tool_calls=self._tool_calls(),
            reasoning=as_reasoning(_joined(self._thoughts)),
        )
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
            text = None if self._slots else _joined(self._texts)
            calls = [
                ToolCallRequest(id=slot.id or "call_0", name=slot.name, arguments=slot.arguments)
                for slot in self._slots
            ]
            return peer.truncated(self.usage, text, calls=calls)
        if self.finish_reason == "content_filter":
            return peer.filtered(self.usage)
        if refusal := _joined(self._refusals).strip():
            return peer.refused(refusal, self.usage)
        if not self._slots and not "".join(self._texts).strip():
            return peer.empty(self.finish_reason, self.usage)
        return None

    def _take_choice(self, choice: Mapping[str, object], message: Mapping[str, object]) -> str:
        """Take one choice; returns the text that it adds."""
        if isinstance(reason := choice.get("finish_reason"), str) and reason:
            self.finish_reason = reason
        if isinstance(refusal := message.get("refusal"), str):
            self._refusals.append(refusal)
        if thought := _thought_of(message):
            self._thoughts.append(thought)
        text = _text_of(message.get("content"))
        self._texts.append(text)
        return text

    def _show_text(self, text: str) -> str:
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
            slot = self._by_index.get(as_count(index))
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
            raise MalformedAnswerError(f"it requests more than {_MOST_CALLS} tool calls")
        taken = {slot.index for slot in self._slots}
        own = index if _is_index(index) and index not in taken else max(taken, default=-1) + 1
        slot = _Slot(index=as_count(own))
        slot.take(call_id, name, arguments)
        self._slots.append(slot)
        self._by_index[as_count(index) if _is_index(index) else slot.index] = slot
        return slot

    def _tool_calls(self) -> tuple[ToolCallRequest, ...]:
        calls: list[ToolCallRequest] = []
        used: set[str] = {slot.id for slot in self._slots}
        seen: set[str] = set()
        for position, slot in enumerate(sorted(self._slots, key=lambda slot: slot.index)):
            if not slot.name:
                raise MalformedAnswerError(f"tool call {position} has no name")
            call_id = slot.id
            if not call_id or call_id in seen:
                call_id = _free_id(position, used)
            used.add(call_id)
            seen.add(call_id)
            calls.append(ToolCallRequest(id=call_id, name=slot.name, arguments=slot.arguments))
        return tuple(calls)


def _free_id(position: int, used: set[str]) -> str:
    """`call_<position>`, or its first variant that is not in use."""
    wanted, number = f"call_{position}", 1
    while wanted in used:
        number += 1
        wanted = f"call_{position}_{number}"
    return wanted


_MOST_QUOTED: Final = 2_000
"""Characters of a value that an error quotes, before it is cut: more than any key has."""


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _show_text(value: object) -> str:
    """The value as a text that `ChatPeer.malformed` cuts: first it masks what may not be shown."""
    return "missing" if value is None else json.dumps(value, default=str)[:_MOST_QUOTED]


def _mapping(value: object, place: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise MalformedAnswerError(f"`{place}` is {_show_text(value)}, not an object")
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
    raise MalformedAnswerError(f"`content` is {_show_text(content)}, not text")


def _thought_of(message: Mapping[str, object]) -> str:
    """What the model thought aloud; empty where the message holds none."""
    for name in ("reasoning_content", "reasoning"):
        if isinstance(thought := message.get(name), str) and thought:
            return thought
    return ""


def _calls_of(message: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    calls = message.get("tool_calls")
    if not calls:
        return ()
    if not isinstance(calls, list):
        raise MalformedAnswerError(f"`tool_calls` is {_show_text(calls)}, not a list")
    return [_mapping(call, f"tool_calls[{index}]") for index, call in enumerate(calls)]


def _pieces_of(call: Mapping[str, object]) -> tuple[str, str, str]:
    """Id, name and arguments; an empty string where one is missing."""
    kind = call.get("type")
    if kind not in (None, "", "function") and not call.get("function"):
        raise MalformedAnswerError(
            "it calls a tool of the provider's own, of the type "
            f"{_show_text(kind)}, and no function"
        )
    function = _mapping(call.get("function") or {}, "tool_calls.function")
    call_id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        arguments = dumps(cast("JsonValue", arguments))  # parsed from JSON before
    return (
        call_id if isinstance(call_id, str) and len(call_id) <= _LONGEST_ID else "",
        name if isinstance(name, str) else "",
        arguments,
    )


# --- usage -------------------------------------------------------------------------------------


def read_usage(usage: Mapping[str, object], timings: object = None) -> TokenUsage:
    """Token counts under either provider's names; missing or invalid counts are 0.

    Args:
        timings: What llama.cpp says beside the usage; None: nothing.
    """
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    nested = details if isinstance(details, dict) else {}
    asked = _count(usage, "prompt_tokens", "input_tokens")
    cached = _count(nested, "cached_tokens") if nested else 0
    cached = cached or _count(usage, "prompt_cache_hit_tokens", "cache_read_input_tokens")
    if not cached and isinstance(timings, dict):
        cached = PromptTimings(
            cache_n=_count(timings, "cache_n") if "cache_n" in timings else None,
            prompt_n=_count(timings, "prompt_n"),
        ).cached_of(asked)
    cached = min(cached, asked)
    written = _count(nested, "cache_write_tokens") if nested else 0
    return TokenUsage(
        input_tokens=asked,
        output_tokens=_count(usage, "completion_tokens", "output_tokens"),
        cached_tokens=cached,
        cache_write_tokens=min(written, asked - cached),
    )


def _count(usage: Mapping[str, object], *names: str) -> int:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and value is not True and 0 <= value <= MOST_TOKENS:
            return int(value)
    return 0
