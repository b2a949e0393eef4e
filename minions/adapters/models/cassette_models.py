"""Models that record their calls in a cassette, and models that answer from one.

The form of the file is in `cassette_file`, what is compared of a request in `cassette_request`.
"""

from __future__ import annotations

import asyncio
import difflib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.adapters.models.cassette_file import (
    MOST_BYTES,
    RECORD_BY,
    CassetteCall,
    CassetteContent,
    CassetteModel,
    CassetteWriter,
    read_cassette,
)
from minions.adapters.models.cassette_request import request_digest, request_form, request_lines
from minions.contracts.calls import (
    ChatModel,
    DeltaSink,
    ModelCallResponse,
    ModelCapabilities,
    ModelDelta,
    ModelFailure,
    OutputParser,
    Prompt,
)
from minions.contracts.model_endpoints import ModelEndpoint
from minions.data.errors import UsageError, did_you_mean
from minions.data.json_values import JsonValue

MISS: Final = "cassette-miss"
"""The code of the failure of a request that a cassette does not answer."""
_COMMANDS: Final = {RECORD_BY: f"minions run RECIPE {RECORD_BY} FILE"}
"""The commands of options that record."""
_MOST_CONSIDERED: Final = 2_000
"""Recorded calls among which the one is looked for that is most like a request."""


# --- recording ----------------------------------------------------------------------------------


class CassetteRecorder:
    """The recording of one process: gives calls their numbers, and writes each at its end."""

    def __init__(
        self, path: Path | str, *, warn: Callable[[str], None], replaces: bool = False
    ) -> None:
        """Open the cassette, or create it.

        Args:
            warn: Called once if the file cannot be written any more; no call is recorded then.
            replaces: Whether an older cassette is replaced, and not added to; it stays until a call
                was answered.
        Raises:
            UsageError, EnvironmentRefusedError: As for `CassetteWriter`.
        """
        self._writer = CassetteWriter(Path(path), replaces=replaces)
        self._warn = warn
        self._count = 0
        self.is_broken = False
        """Whether the file could not be written: it lacks calls."""

    def next_number(self) -> int:
        """The number of a call that begins now."""
        self._count += 1
        return self._count

    def write(self, model: CassetteModel, call: CassetteCall) -> None:
        """Add a call that has ended. An answer was paid for: a full disk does not lose it."""
        if self.is_broken:
            return
        try:
            self._writer.write(model, call)
        except OSError as error:
            self.is_broken = True
            self._warn(
                f"warning: the cassette {self._writer.path} cannot be written "
                f"({error.strerror or error}): it lacks this call and those that follow"
            )

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._count > 0

    @property
    def has_answers(self) -> bool:
        """Whether the cassette has a call of this process that was answered."""
        return self._writer.has_answers

    def close(self, *, move_to: Path | None = None) -> None:
        """Close the cassette.

        Args:
            move_to: The name that it gets then, in place of a file of that name; None: its own.
        Raises:
            OSError: It cannot be moved; it is closed, and is where it was.
        """
        self._writer.close(move_to=move_to)


class RecordingModel(ChatModel):
    """Answers as another model does, and records each call.

    Calls that are cancelled or raise are not recorded: there is nothing to answer from.
    """

    def __init__(
        self,
        model: ChatModel,
        recorder: CassetteRecorder,
        *,
        name: str | None = None,
        measured: Callable[[ChatModel], ModelCapabilities] | None = None,
    ) -> None:
        """Nothing is recorded yet.

        Args:
            name: Under which the model is asked for when the cassette is replayed; None: its own.
            measured: The model's capabilities with what was measured of its server; None: those
                that it declares.
        """
        self._model = model
        self._recorder = recorder
        self._label = name or model.name
        self._measured = measured or (lambda each: each.capabilities)
        self._told: CassetteModel | None = None

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def base_url(self) -> str | None:
        return self._model.base_url

    @property
    def endpoint(self) -> ModelEndpoint | None:
        return self._model.endpoint

    @property
    def capabilities(self) -> ModelCapabilities:
        return self._model.capabilities

    @property
    def output_parser(self) -> OutputParser | None:
        return self._model.output_parser

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """The model's own answer or failure, after it was recorded."""
        if self._told is None:  # before the first answer teaches what the server cannot do
            self._told = CassetteModel(
                name=self._label,
                base_url=self._model.base_url,
                capabilities=self._measured(self._model),
            )
        number, request = self._recorder.next_number(), request_form(prompt)
        pieces: list[ModelDelta] = []
        outcome = await self._model.complete(prompt, _both(pieces.append, on_delta))
        call = CassetteCall(
            recording=0,  # the file says it
            number=number,
            model=self._label,
            request=request,
            outcome=outcome.unwrap() if is_successful(outcome) else outcome.failure(),
            pieces=tuple(pieces),
        )
        self._recorder.write(self._told, call)
        return outcome

    def recall(self, prompt: Prompt) -> None:
        self._model.recall(prompt)

    async def warm_up(self) -> None:
        await self._model.warm_up()

    async def aclose(self) -> None:
        await self._model.aclose()


def _both(one: DeltaSink, other: DeltaSink | None) -> DeltaSink | None:
    if other is None:
        return None

    def take(delta: ModelDelta) -> None:
        one(delta)
        other(delta)

    return take


# --- replaying ----------------------------------------------------------------------------------


class Cassette:
    """The recorded calls of one file, each of which answers once.

    Equal requests get what the newest recording has in which one was answered, in recorded order,
    and then what older ones have: a recording in which they only failed comes last. In what order
    different requests come does not matter.
    """

    def __init__(
        self, path: Path | str, content: CassetteContent, *, record_by: str = RECORD_BY
    ) -> None:
        """Nothing is answered yet.

        Args:
            record_by: What records it, for messages.
        """
        self.path = Path(path)
        self.models = content.models
        """What is recorded of each model, by the name under which it was asked."""
        self.is_cut = content.is_cut
        """Whether the last line is incomplete, and was left out."""
        self._content = content
        self._record_by = record_by
        self._waiting: dict[str, deque[CassetteCall]] = {}
        for call in _in_order(content.calls):
            self._waiting.setdefault(call.digest, deque()).append(call)
        self._recorded = {digest: len(calls) for digest, calls in self._waiting.items()}
        self.misses: list[str] = []
        """What is said of each request that was not answered, in order."""

    @classmethod
    def read(
        cls, path: Path | str, *, most_bytes: int | None = None, record_by: str = RECORD_BY
    ) -> Self:
        """Read a cassette.

        Args:
            most_bytes: Of the file; None: 64 MiB.
            record_by: What records it, for messages.
        Raises:
            UsageError: `bad-cassette`.
        """
        place = Path(path)
        most = MOST_BYTES if most_bytes is None else most_bytes
        content = read_cassette(place, most_bytes=most, record_by=record_by)
        return cls(place, content, record_by=record_by)

    def restarted(self) -> Cassette:
        """The same cassette, of which nothing was answered."""
        return Cassette(self.path, self._content, record_by=self._record_by)

    @property
    def calls_left(self) -> int:
        """Number of recorded calls that nobody asked for."""
        return sum(map(len, self._waiting.values()))

    @property
    def first_left(self) -> str | None:
        """What the first recorded call asked that nobody asked for; None: there is none."""
        left = [call for calls in self._waiting.values() for call in calls]
        call = min(left, key=lambda each: (each.recording, each.number), default=None)
        if call is None:
            return None
        return f"call {call.number}, of '{call.model}'. {_start_of(call.request)}"

    def model(self, name: str | None = None) -> ReplayModel:
        """The model that answers in place of the one of that name.

        Args:
            name: As it was asked for in the recording; None: the only one.
        Raises:
            UsageError: `bad-cassette`; there is none of that name, or are several.
        """
        if name is None and len(self.models) == 1:
            (name,) = self.models
        known = ", ".join(self.models) or "none"
        if name is None:
            raise UsageError(
                f"The cassette {self.path} has calls of several models ({known}), so one of them "
                "has to be named. Replay it with `--replay`, which asks by the recipe's names.",
                code="bad-cassette",
            )
        if name not in self.models:
            raise UsageError(self._no_call_of(name), code="bad-cassette")
        return ReplayModel(self, self.models[name])

    def _no_call_of(self, name: str) -> str:
        again = f"Record it again with `{self._record_by}`"
        if not self.models:
            return f"The cassette {self.path} has no call: nothing was recorded. {again}."
        named = ", or name one of these with `-m`" if self._record_by == RECORD_BY else ""
        return (
            f"The cassette {self.path} has no call of '{name}'.{did_you_mean(name, self.models)} "
            f"It has calls of: {', '.join(self.models)}. {again}{named}."
        )

    def take(self, digest: str) -> CassetteCall | None:
        """The next answer to that request, which is used up then; None: there is none left."""
        calls = self._waiting.get(digest)
        return calls.popleft() if calls else None

    async def miss(self, model: str, request: Mapping[str, JsonValue]) -> ModelFailure:
        """The failure of a request without an answer, with what differs."""
        times = self._recorded.get(request_digest(model, request))
        if times is not None:
            count = "once" if times == 1 else f"{times} times"
            why = f"it is there {count}, and was used up. {_start_of(request)}"
        else:
            # Comparing takes time, and the list is made here: calls are used up meanwhile.
            why = await asyncio.to_thread(_nearest, model, request, self._likely(model))
        message = f"The cassette {self.path} has no answer to this request: {why}"
        self.misses.append(message)
        return ModelFailure(
            code=MISS,
            message=message,
            suggestions=(f"record it again: {_COMMANDS.get(self._record_by, self._record_by)}",),
        )

    def _likely(self, model: str) -> Sequence[CassetteCall]:
        """Recorded calls to compare with: those that were not asked for yet, if there are any."""
        left = [call for calls in self._waiting.values() for call in calls]
        known = left or self._content.calls
        own = [call for call in known if call.model == model]
        return (own or known)[:_MOST_CONSIDERED]


def _in_order(calls: Sequence[CassetteCall]) -> Sequence[CassetteCall]:
    """The calls in the order in which equal ones answer."""
    answered = {
        (call.digest, call.recording)
        for call in calls
        if not isinstance(call.outcome, ModelFailure)
    }

    def place(call: CassetteCall) -> tuple[bool, int, int]:
        only_failed = (call.digest, call.recording) not in answered
        return only_failed, -call.recording, call.number

    return sorted(calls, key=place)


def _start_of(request: Mapping[str, JsonValue]) -> str:
    """The beginning of the last message, to recognise a request by."""
    messages = request.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, Mapping) else None
    return f"Its last message begins: {' '.join(str(content)[:400].split()):.80}"


def _nearest(model: str, request: Mapping[str, JsonValue], calls: Sequence[CassetteCall]) -> str:
    """What differs from the call that is most like the request."""
    lines = list(request_lines(model, request))
    call = most_like(lines, calls)
    if call is None:
        return "it has no call"
    recorded = list(request_lines(call.model, call.request))
    return f"most like it is call {call.number}:\n{difference(recorded, lines)}"


class ReplayModel(ChatModel):
    """Answers from a cassette. It makes no request, needs no key and costs nothing.

    A request that was not recorded fails with `cassette-miss` and a diff.
    """

    def __init__(self, cassette: Cassette, model: CassetteModel) -> None:
        """Answer for one recorded model; use `Cassette.model`."""
        self.cassette = cassette
        self._model = model

    @property
    def name(self) -> str:
        """`replay/` and the name of the model that was recorded."""
        return f"replay/{self._model.name}"

    @property
    def base_url(self) -> str | None:
        """No address: it only lets what runs learn of the server be known to later steps."""
        return None if self._model.base_url is None else "replay:"

    @property
    def capabilities(self) -> ModelCapabilities:
        """As when the recording began: they decide the form of requests."""
        return self._model.capabilities

    def restarted(self) -> ReplayModel:
        """The same model with a cassette of which nothing was answered."""
        return ReplayModel(self.cassette.restarted(), self._model)

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        """The recorded answer or failure, with its fragments if `on_delta` is given."""
        request = request_form(prompt)
        call = self.cassette.take(request_digest(self._model.name, request))
        if call is None:
            return Failure(await self.cassette.miss(self._model.name, request))
        if on_delta is not None:
            for piece in call.pieces or _pieces_of(call.outcome):
                on_delta(piece)
        if isinstance(call.outcome, ModelFailure):
            return Failure(call.outcome)
        return Success(call.outcome)

    def recall(self, prompt: Prompt) -> None:
        """Use up the recorded answer, since the journal replays it in place of the call."""
        self.cassette.take(request_digest(self._model.name, request_form(prompt)))


def _pieces_of(outcome: ModelCallResponse | ModelFailure) -> Iterator[ModelDelta]:
    """The whole text as one fragment, where the recorded call was not streamed."""
    if isinstance(outcome, ModelCallResponse) and outcome.text:
        yield ModelDelta(content=outcome.text)


# --- the difference between a request and the recorded one that is most like it ------------------


_MOST_COMPARED: Final = 400
"""Lines of each side, behind those that are equal: comparing takes their square at worst."""
_MOST_SHOWN: Final = 60
"""Lines of a diff."""
_LONGEST_SHOWN: Final = 400
"""Characters of a line."""


def most_like(lines: Sequence[str], calls: Iterable[CassetteCall]) -> CassetteCall | None:
    """The call whose request has most lines in common with these; None: there is no call.

    Of several the first.
    """
    asked = Counter(lines)
    best, best_share = None, -1.0
    for call in calls:
        own = Counter(request_lines(call.model, call.request))
        share = 2 * (asked & own).total() / max(1, asked.total() + own.total())
        if share > best_share:
            best, best_share = call, share
    return best


def difference(recorded: Sequence[str], asked: Sequence[str]) -> str:
    """A unified diff of requests as lines; of a long one the beginning."""
    begin = _common(recorded, asked)
    first = max(0, begin - 2)
    before = [_shorten_line(line) for line in recorded[first : begin + _MOST_COMPARED]]
    after = [_shorten_line(line) for line in asked[first : begin + _MOST_COMPARED]]
    lines = list(difflib.unified_diff(before, after, "recorded", "asked", lineterm="", n=2))
    left = len(lines) - _MOST_SHOWN
    return "\n".join([*lines[:_MOST_SHOWN], *([f"… ({left} more lines)"] if left > 0 else [])])


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The number of lines with which both begin."""
    pairs = zip(one, other, strict=False)
    return next(
        (at for at, (left, right) in enumerate(pairs) if left != right), min(len(one), len(other))
    )


def _shorten_line(line: str) -> str:
    return line if len(line) <= _LONGEST_SHOWN else f"{line[:_LONGEST_SHOWN]}…"
