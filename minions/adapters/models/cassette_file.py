"""Cassettes on disk: calls of models with their answers, one JSON object a line, only added to.

A cassette may come from anybody: what it holds is checked, and grants nothing. Its lines:

{"cassette": 1, "recording": 2}                      a process began to record
{"model": NAME, "base_url": …, "capabilities": {…}}  a model, before its first call
{"call": 3, "model": NAME, "request": {…}, "pieces": […], "response": {…}}   or "failure"
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, cast

from attrs import field, frozen
from msgspec import Meta, MsgspecError, Struct, structs
from msgspec.json import Decoder

from minions.adapters.models.cassette_request import request_digest
from minions.contracts.calls import (
    Confidence,
    ModelCallResponse,
    ModelCapabilities,
    ModelDelta,
    ModelFailure,
    StepCompletionInstruction,
)
from minions.contracts.messages import (
    Message,
    MessageRole,
    ProviderData,
    TokenUsage,
    ToolCallRequest,
    message_to_json,
)
from minions.data.bounded_files import read_regular
from minions.data.codec import decode, encode
from minions.data.errors import EnvironmentRefusedError, UsageError
from minions.data.json_values import JsonValue, as_object, dumps

_FORM: Final = 1
"""The version of the form of cassettes."""
RECORD_BY: Final = "--record"
"""What records a cassette, for messages."""
MOST_BYTES: Final = 67_108_864
"""Bytes of a cassette that is read."""
_BUSY: Final = "another process records into it"


@frozen(kw_only=True)
class CassetteModel:
    """A model of a recording."""

    name: str
    base_url: str | None
    capabilities: ModelCapabilities
    """What decided the form of its requests, with what was measured of its server."""


@frozen(kw_only=True)
class CassetteCall:
    """One recorded call."""

    recording: int
    """The number of the recording, from 1; a later one is newer."""
    number: int
    """The place in the order in which the calls of its recording were asked."""
    model: str
    request: Mapping[str, JsonValue]
    outcome: ModelCallResponse | ModelFailure
    pieces: tuple[ModelDelta, ...] = ()
    """The fragments of a streamed answer, in order; empty: it was not streamed."""
    digest: str = field(default="", eq=False)


@frozen(kw_only=True)
class CassetteContent:
    """All that a cassette holds."""

    models: Mapping[str, CassetteModel]
    """The newest of each name."""
    calls: Sequence[CassetteCall]
    recordings: int
    size: int
    """Bytes of its whole lines."""
    is_cut: bool
    """Whether the last line is incomplete: the recording process was killed while it wrote."""


def _bad(path: Path, line: int | None, what: str, record_by: str = RECORD_BY) -> UsageError:
    place = str(path) if line is None else f"{path}:{line}"
    return UsageError(
        f"The cassette {place} cannot be used: {what}. Record it again with `{record_by}`.",
        code="bad-cassette",
        where=place,
    )


# --- reading ------------------------------------------------------------------------------------


def read_cassette(
    path: Path, *, most_bytes: int = MOST_BYTES, record_by: str = RECORD_BY
) -> CassetteContent:
    """The content of a cassette; an incomplete last line is left out.

    Args:
        record_by: What records it, for messages.
    Raises:
        UsageError: `bad-cassette`; the file cannot be read, is too large, or a line is no part of a
            cassette.
    """
    try:
        data = read_regular(path, most_bytes)
    except OSError as error:
        raise _bad(
            path, None, f"it cannot be read ({error.strerror or error})", record_by
        ) from error
    if len(data) > most_bytes:
        raise _bad(path, None, f"it is larger than {most_bytes} bytes", record_by)
    whole, _, rest = data.rpartition(b"\n")
    lines = whole.split(b"\n") if whole else []
    reader = _Reader(path, record_by)
    for number, line in enumerate(lines, start=1):
        reader.read(number, line)
    if not reader.recordings:
        raise _bad(path, 1, 'its first line is not {"cassette": 1, "recording": 1}', record_by)
    return CassetteContent(
        models=reader.models,
        calls=tuple(reader.calls),
        recordings=reader.recordings,
        size=len(data) - len(rest),
        is_cut=bool(rest),
    )


class _Reader:
    """Collects what the lines of a cassette say."""

    def __init__(self, path: Path, record_by: str) -> None:
        self._path = path
        self._record_by = record_by
        self.recordings = 0
        self.models: dict[str, CassetteModel] = {}
        self.calls: list[CassetteCall] = []

    def read(self, number: int, line: bytes) -> None:
        """Take one line.

        Raises:
            UsageError: `bad-cassette`; names the line.
        """
        try:
            self._take(decode_line(line))
        except (MsgspecError, ValueError, RecursionError) as error:
            what = " ".join(str(error).split()) or "it is nested too deep"
            raise _bad(self._path, number, what[:300], self._record_by) from error

    def _take(self, line: CassetteLine) -> None:
        if line.cassette is not None:
            if line.cassette != _FORM:
                raise ValueError(f"it is of form {line.cassette}, and only {_FORM} is known")
            self.recordings += 1
        elif not self.recordings:
            raise ValueError('its first line is not {"cassette": 1, "recording": 1}')
        elif line.model is None:
            raise ValueError("it names no `model`")
        elif line.call is None:
            self.models[line.model] = CassetteModel(
                name=line.model,
                base_url=line.base_url,
                capabilities=decode(cast("JsonValue", line.capabilities), ModelCapabilities),
            )
        else:
            self.calls.append(_call(line, line.model, line.call, self.recordings))


def _call(line: CassetteLine, model: str, number: int, recording: int) -> CassetteCall:
    request = as_object(line.request)
    if not isinstance(request.get("messages"), list):
        raise ValueError("`request` is no object with a list of `messages`")
    return CassetteCall(
        recording=recording,
        number=number,
        model=model,
        request=request,
        outcome=line.outcome(),
        pieces=line.deltas(),
        digest=request_digest(model, request),
    )


# --- writing ------------------------------------------------------------------------------------


class CassetteWriter:
    """Adds the calls of one process to a cassette; each line is written whole, at once.

    A process that is killed loses only calls that had not ended.
    """

    def __init__(self, path: Path, *, replaces: bool = False) -> None:
        """Open the file, or create it for its owner alone.

        Args:
            replaces: Whether an older cassette is replaced, by the first call that was answered;
                without one the file is left as it was, or is none.
        Raises:
            UsageError: `bad-cassette`; the file is there and is no cassette.
            EnvironmentRefusedError: `cassette-refused`; it cannot be written, its folder is not
                there, or another process records into it.
        """
        self.path = path
        self.has_answers = False
        """Whether a call was written that was answered."""
        self._told: dict[str, CassetteModel] = {}
        if not path.parent.is_dir():
            raise _refusal(path, f"there is no folder {path.parent}")
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            raise _refusal(path, error.strerror or str(error)) from error
        self._replaces = replaces
        self._held: list[tuple[CassetteModel, CassetteCall]] = []
        """Calls that failed before any was answered."""
        try:
            self._begin()
        except OSError as error:
            os.close(self._file)
            raise _refusal(path, error.strerror or str(error)) from error
        except BaseException:
            os.close(self._file)
            raise

    def _begin(self) -> None:
        found = os.fstat(self._file)
        if not stat.S_ISREG(found.st_mode):
            raise _refusal(self.path, "it is no regular file")
        self._lock(found)
        if self._replaces:
            return
        known = read_cassette(self.path) if found.st_size else None
        if known is not None and known.is_cut:
            os.ftruncate(self._file, known.size)
        recordings = known.recordings if known is not None else 0
        self._write({"cassette": _FORM, "recording": recordings + 1})

    def _lock(self, opened: os.stat_result) -> None:
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_moved = not os.path.samestat(opened, self.path.stat())
        except (BlockingIOError, FileNotFoundError) as error:
            raise _refusal(self.path, _BUSY) from error
        if is_moved:  # it was opened here before another process gave it its final name
            raise _refusal(self.path, _BUSY)

    def write(self, model: CassetteModel, call: CassetteCall) -> None:
        """Add a call, and before it its model if the file does not tell it yet.

        Where an older cassette is replaced, failures wait for the first answer.

        Raises:
            OSError: The file cannot be written.
        """
        is_answer = not isinstance(call.outcome, ModelFailure)
        if self._replaces:
            self._held.append((model, call))
            if is_answer:
                self._replace()
        else:
            self._add(model, call)
        self.has_answers = self.has_answers or is_answer

    def _replace(self) -> None:
        os.ftruncate(self._file, 0)
        self._write({"cassette": _FORM, "recording": 1})
        self._replaces = False
        held, self._held = self._held, []
        for model, call in held:
            self._add(model, call)

    def _add(self, model: CassetteModel, call: CassetteCall) -> None:
        if self._told.get(model.name) != model:
            self._told[model.name] = model
            self._write(_model_line(model))
        self._write(_call_line(call))

    def _write(self, line: Mapping[str, JsonValue]) -> None:
        data = dumps(line).encode("utf-8", "replace") + b"\n"
        while data:
            data = data[os.write(self._file, data) :]

    def close(self, *, move_to: Path | None = None) -> None:
        """Close the file; others may record into it again, and calls that end later are lost.

        Args:
            move_to: Takes the place of this file, at once; None: the file keeps its name.
        Raises:
            OSError: It cannot be moved; it is closed, and is where it was.
        """
        descriptor, self._file = self._file, -1  # the number may soon be that of another file
        try:
            with contextlib.suppress(OSError):
                if self._replaces and not os.fstat(descriptor).st_size:
                    self.path.unlink()  # it was created here, and nothing was written
            if move_to is not None:
                self.path.replace(move_to)  # while it is locked: nobody else writes into it
        finally:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _refusal(path: Path, reason: str) -> EnvironmentRefusedError:
    return EnvironmentRefusedError(
        f"The cassette {path} cannot be recorded: {reason}. Nothing was asked of a model. Name "
        "another file.",
        code="cassette-refused",
    )


def _model_line(model: CassetteModel) -> dict[str, JsonValue]:
    capabilities = encode(model.capabilities)
    return {"model": model.name, "base_url": model.base_url, "capabilities": capabilities}


def _call_line(call: CassetteCall) -> dict[str, JsonValue]:
    line: dict[str, JsonValue] = {
        "call": call.number,
        "model": call.model,
        "request": call.request,
    }
    if call.pieces:
        line["pieces"] = [_piece_form(each) for each in call.pieces]
    if isinstance(call.outcome, ModelFailure):
        return {**line, "failure": _failure_form(call.outcome)}
    return {**line, "response": _answer_form(call.outcome)}


def _piece_form(piece: ModelDelta) -> JsonValue:
    if piece.reasoning is not None:
        return {"reasoning": piece.reasoning}
    return piece.content if piece.content is not None else {"tool_call": piece.tool_call}


def _answer_form(response: ModelCallResponse) -> dict[str, JsonValue]:
    instruction, sure = response.completion_instruction, response.confidence
    return _without_defaults(
        {
            "message": message_to_json(response.message),
            "usage": _usage_form(response.usage),
            "finish_reason": response.finish_reason,
            "model_name": response.model_name,
            "completion_instruction": encode(instruction) if instruction else None,
            "confidence": None if sure is None else [sure.probability, sure.at],
        }
    )


def _failure_form(failure: ModelFailure) -> dict[str, JsonValue]:
    return _without_defaults(
        {
            "code": failure.code,
            "message": failure.message,
            "is_retryable": failure.is_retryable,
            "usage": _usage_form(failure.usage),
            "suggestions": list(failure.suggestions),
            "text": failure.text,
            "has_begun_call": failure.has_begun_call,
            "begun_call": encode(failure.begun_call) if failure.begun_call else None,
            "status": failure.status,
        }
    )


def _usage_form(usage: TokenUsage) -> dict[str, JsonValue]:
    counts = encode(usage)
    assert isinstance(counts, Mapping)  # noqa: S101  # of an attrs class
    return {name: count for name, count in counts.items() if count}


def _without_defaults(form: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The members that say something."""
    return {name: value for name, value in form.items() if value not in (None, False, [], {})}


# --- the lines of a cassette as values: their members and types, checked while they are decoded ---


_MOST_TOKENS: Final = 10**9


class _Usage(Struct, forbid_unknown_fields=True, frozen=True):
    """Tokens of a call, as a line holds them."""

    input_tokens: Annotated[int, Meta(ge=0, le=_MOST_TOKENS)] = 0
    output_tokens: Annotated[int, Meta(ge=0, le=_MOST_TOKENS)] = 0
    cached_tokens: Annotated[int, Meta(ge=0, le=_MOST_TOKENS)] = 0
    cost_usd: float | None = None
    """What the call cost when it was recorded; a replay costs nothing."""

    def value(self) -> TokenUsage:
        """The tokens, at no cost."""
        return TokenUsage(
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            cached_tokens=self.cached_tokens,
            cost_usd=0.0,
        )


class _ToolCall(Struct, forbid_unknown_fields=True, frozen=True):
    """A tool call, as a line holds it."""

    id: str
    name: str
    arguments: str = "{}"


class _ProviderData(Struct, forbid_unknown_fields=True, frozen=True):
    """What goes back to a provider, as a line holds it."""

    source: str
    content: str


class _Message(Struct, forbid_unknown_fields=True, frozen=True):
    """An answer of a model, as a line holds it: no other role can be replayed."""

    role: Literal["assistant"]
    content: str | None = None
    tool_calls: list[_ToolCall] = []
    name: str | None = None
    reasoning: str | None = None
    provider_data: _ProviderData | None = None

    def value(self) -> Message:
        """The message."""
        kept = self.provider_data
        return Message(
            role=MessageRole.ASSISTANT,
            content=self.content,
            tool_calls=tuple(
                ToolCallRequest(id=call.id, name=call.name, arguments=call.arguments)
                for call in self.tool_calls
            ),
            name=self.name,
            reasoning=self.reasoning,
            provider_data=ProviderData(source=kept.source, content=kept.content) if kept else None,
        )


class _Instruction(Struct, forbid_unknown_fields=True, frozen=True):
    """What a model said of completion, as a line holds it."""

    is_complete: bool = False
    is_more_calls_needed: bool = False
    next_step_id: str | None = None
    failure_reason: str | None = None
    is_non_recoverable: bool = False

    def value(self) -> StepCompletionInstruction:
        """The instruction."""
        return StepCompletionInstruction(**structs.asdict(self))


class _Response(Struct, forbid_unknown_fields=True, frozen=True):
    """An answer, as a line holds it."""

    message: _Message
    usage: _Usage = _Usage()
    finish_reason: str | None = None
    model_name: str | None = None
    completion_instruction: _Instruction | None = None
    confidence: tuple[float, str] | None = None

    def value(self) -> ModelCallResponse:
        """The answer as the engine takes it."""
        said = self.completion_instruction
        return ModelCallResponse(
            message=self.message.value(),
            usage=self.usage.value(),
            finish_reason=self.finish_reason,
            model_name=self.model_name,
            provider="replay",
            completion_instruction=said.value() if said is not None else None,
            confidence=None if self.confidence is None else Confidence(*self.confidence),
        )


class _BegunCall(Struct, forbid_unknown_fields=True, frozen=True):
    """A tool call that was cut off, as a line holds it."""

    id: str
    name: str
    arguments: str

    def value(self) -> ToolCallRequest:
        """The call as a failure holds it."""
        return ToolCallRequest(id=self.id, name=self.name, arguments=self.arguments)


class _Failure(Struct, forbid_unknown_fields=True, frozen=True):
    """A failure, as a line holds it."""

    code: str
    message: str
    is_retryable: bool = False
    usage: _Usage = _Usage()
    suggestions: tuple[str, ...] = ()
    text: str | None = None
    has_begun_call: bool = False
    begun_call: _BegunCall | None = None
    status: int | None = None

    def value(self) -> ModelFailure:
        """The failure as the engine takes it: a retry waits no time, since no server is asked."""
        return ModelFailure(
            code=self.code,
            message=self.message,
            is_retryable=self.is_retryable,
            retry_after_s=0.0 if self.is_retryable else None,
            usage=self.usage.value(),
            suggestions=self.suggestions,
            text=self.text,
            has_begun_call=self.has_begun_call,
            begun_call=self.begun_call.value() if self.begun_call is not None else None,
            status=self.status,
        )


class _Piece(Struct, forbid_unknown_fields=True, frozen=True):
    """A fragment of a streamed answer that is no text, as a line holds it."""

    reasoning: str | None = None
    tool_call: dict[str, object] | None = None


class CassetteLine(Struct, forbid_unknown_fields=True, frozen=True):
    """Any line of a cassette."""

    cassette: int | None = None
    recording: int | None = None
    call: int | None = None
    model: str | None = None
    base_url: str | None = None
    capabilities: dict[str, object] = {}
    request: dict[str, object] = {}
    pieces: list[str | _Piece] = []
    response: _Response | None = None
    failure: _Failure | None = None

    def outcome(self) -> ModelCallResponse | ModelFailure:
        """The answer or failure of a call.

        Raises:
            ValueError: It has neither, or both.
        """
        if self.response is not None and self.failure is None:
            return self.response.value()
        if self.failure is not None and self.response is None:
            return self.failure.value()
        raise ValueError("a call has either `response` or `failure`")

    def deltas(self) -> tuple[ModelDelta, ...]:
        """The fragments of a streamed answer."""
        return tuple(_delta(each) for each in self.pieces)


def _delta(piece: str | _Piece) -> ModelDelta:
    if isinstance(piece, str):
        return ModelDelta(content=piece)
    call = cast("Mapping[str, JsonValue] | None", piece.tool_call)
    return ModelDelta(reasoning=piece.reasoning, tool_call=call)


_LINES: Final = Decoder(CassetteLine)


def decode_line(data: bytes) -> CassetteLine:
    """The line.

    Raises:
        MsgspecError, RecursionError: It is no line of a cassette.
    """
    return _LINES.decode(data)
