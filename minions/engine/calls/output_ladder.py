"""From an answer to the declared output, rung by rung: read it, constrain one call, repair once;
where the server holds answers to nothing also single fields and groups of them. Or refuse.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.contracts.calls import OutputParser
from minions.contracts.instructions import (
    SENT_ITEMS,
    SENT_TEXT,
    OutputFailure,
    OutputInstructions,
    OutputMode,
    OutputRung,
)
from minions.contracts.messages import CUT_AT_LIMIT, Message, assistant, calls_length, user
from minions.contracts.output import checked_output
from minions.contracts.runtime import BlockingCalls
from minions.contracts.session_views import MemorySnapshot
from minions.data.errors import OUTPUT_TRUNCATED, FailureInfo
from minions.data.json_parts import is_large
from minions.data.json_values import JsonValue, as_object, dumps, is_unfinished_json
from minions.data.patterns import match_beside_loop
from minions.data.schema import SchemaValidator
from minions.engine.calls.model_tiers import ENDLESS_TOKENS, Answer, OutputModes
from minions.engine.services.event_loop import beside

if TYPE_CHECKING:
    from minions.engine.calls.output_parts import ObjectParts


class Ask(Protocol):
    """One more model call: from a phase, and what constrains it, to an answer."""

    async def __call__(
        self,
        phase: str,
        form: OutputInstructions[object] | None,
        *,
        is_last: bool = False,
        max_output_tokens: int | None = None,
    ) -> Result[Answer, FailureInfo]:
        """Make the call.

        Args:
            form: The output that the answer is constrained to; None: the answer is free.
            is_last: Whether it is made although a limit is reached.
            max_output_tokens: More room than the recipe says; None: as it says.
        """


class Say(Protocol):
    """Appends a message to the conversation and records it."""

    async def __call__(self, message: Message, *, is_of_session: bool = False) -> None:
        """Add it; words of the engine's own are no part of the session's conversation."""


TakeBack: TypeAlias = Callable[[MemorySnapshot], Awaitable[None]]
"""Forget the conversation since that mark."""
Warn: TypeAlias = Callable[[str], Awaitable[None]]
"""Records what was done with an answer that was cut off, and shows it in the result."""
Tell: TypeAlias = Callable[[str, Answer, OutputFailure | None], None]
"""Tells what a rung gave: its name, the answer, and why that is not the output."""

_LONG: Final = 16_384
"""Characters of an answer that is read at once."""
_RUNGS: dict[OutputMode | None, str] = {
    None: "answer",
    OutputMode.JSON_SCHEMA: "constrained",
    OutputMode.JSON: "json",
    OutputMode.TOOLS: "tools",
    OutputMode.MD_JSON: "prompt",
}


def rung_of(phase: str, mode: OutputMode | None) -> str:
    """The rung of a call: how it was constrained, or what it is to mend."""
    return phase if phase in ("repair", "fields", "split", "tier") else _RUNGS[mode]


class OutputLadder(Struct, frozen=True, kw_only=True):
    """Wrong output costs at most three requests: the answer, one constrained, one repair. A server
    that was seen not to hold answers to a form is asked for fields, and for groups of fields, too.
    """

    instructions: OutputInstructions[object]
    parser: OutputParser
    modes: OutputModes
    constrains: bool
    """Whether a request can be constrained at all."""
    has_own_room: bool
    """Whether the recipe says how long an answer may be."""
    ask: Ask
    say: Say
    take_back: TakeBack
    calls_left: Callable[[], int]
    tell: Tell
    warn: Warn
    threads: BlockingCalls
    """Read and check long answers beside the event loop."""

    async def climb(self, answer: Answer) -> Result[object, FailureInfo]:
        """The output, or why there is none. Each further call counts against the budget."""
        read = await self._taken(answer)
        if isinstance(read, Success):
            return Success(read.unwrap())
        takes_text = self.instructions.takes_text
        failure = _unfit(read)
        if failure is not None and answer.mode is None and self.constrains and not takes_text:
            if self.calls_left() < 1:
                return Failure(_refused(failure, "no model call is left to ask again"))
            # The free answer is forgotten: it would only teach the model its own mistake.
            await self.take_back(answer.mark)
            asked = await self.ask("final", self.instructions)
            if not is_successful(asked):
                return Failure(asked.failure())
            answer = asked.unwrap()
            read = await self._taken(answer)
        if _unfit(read) is not None and await self._is_cut(answer):
            asked = await self._asked_again(answer)
            if not is_successful(asked):
                return Failure(asked.failure())
            answer = asked.unwrap()
            read = await self._taken(answer)
            if _unfit(read) is not None and await self._is_cut(answer):
                return Failure(_truncated("it was asked for twice"))
        if takes_text and (failure := _unfit(read)) is not None:
            read = self._text_of(answer, failure)
        if is_successful(read):
            return Success(read.unwrap())
        failed = read.failure()
        if isinstance(failed, FailureInfo):
            return Failure(failed)
        return await self._mended(answer, failed)

    async def _taken(
        self, answer: Answer, form: OutputInstructions[object] | None = None
    ) -> _Mended:
        """The output in an answer; what is whole of it where it was cut off inside a list."""
        wanted = form or self.instructions
        if wanted.takes_text:  # a part of it would be another text
            return _as_mended(await self._read(answer, wanted))
        is_at_limit = answer.raw.finish_reason == CUT_AT_LIMIT
        read = None if is_at_limit else await self._read(answer, wanted)
        if isinstance(read, Success):
            return Success(read.unwrap())
        if read is not None and not await self._is_cut(answer):
            return _as_mended(read)
        closed = await self._closed(answer, wanted, is_told=read is not None)
        if closed is not None:
            return _as_mended(closed)
        return _as_mended(read if read is not None else await self._read(answer, wanted))

    def _text_of(self, answer: Answer, failure: OutputFailure) -> _Mended:
        """The text of the answer as the output; the failure where it has none."""
        calls = answer.raw.tool_calls
        text = calls[0].arguments if calls else answer.raw.text or ""
        if not text.strip():
            return Failure(failure)
        try:
            return Success(self.instructions.convert(text))
        except Exception as error:  # noqa: BLE001  # an application's converter may raise anything
            return Failure(replace(failure, message=f"{failure.message} As text: {error}"))

    async def _asked_again(self, answer: Answer) -> Result[Answer, FailureInfo]:
        """The whole answer in place of one that was cut off; what was cut is not repaired."""
        is_at_limit = answer.raw.finish_reason == CUT_AT_LIMIT
        has_room = self.has_own_room or answer.raw.usage.output_tokens >= ENDLESS_TOKENS
        if (is_at_limit and has_room) or self.calls_left() < 1:
            return Failure(_truncated("raise max_output_tokens, or ask for less"))
        await self.take_back(answer.mark)
        room = 4 * max(256, answer.raw.usage.output_tokens) if is_at_limit else None
        return await self.ask(answer.phase, self.instructions, max_output_tokens=room)

    async def _closed(
        self, answer: Answer, form: OutputInstructions[object], *, is_told: bool
    ) -> Result[object, FailureInfo] | None:
        """The output of an answer that was cut off inside a list: its whole items are kept, and
        only the required fields that are missing are asked for. None: it was not cut there, or what
        is whole of it can never be the output.

        Args:
            is_told: Whether it was told already that the answer is not the output.
        """
        from minions.engine.calls.cut_answers import closed_answer, merged_parts

        is_long = _is_long(answer)
        closed = await beside(self.threads, is_long, lambda: closed_answer(answer.raw))
        if closed is None:
            return None
        read = await beside(
            self.threads,
            is_long,
            lambda: self.parser.parse(form, closed.response, answer.mode),
            matches=True,
        )
        value = None if is_successful(read) else read.failure().value
        schema = await match_beside_loop(lambda: closed.missing(form, value))
        is_kept = isinstance(schema, Mapping) and isinstance(value, Mapping)
        if not is_successful(read) and not is_kept:
            return None
        if not is_told:
            cut = OutputFailure(message=f"The answer was cut off {closed.words}.")
            self.tell(rung_of(answer.phase, answer.mode), answer, cut)
        if self.calls_left() < 1 and not is_successful(read):
            return Failure(_truncated(f"no model call is left for the rest, {closed.words}"))
        await self.take_back(answer.mark)
        await self.say(assistant(closed.text), is_of_session=is_successful(read))
        if is_successful(read):
            await self.warn(closed.words)
            return Success(read.unwrap())
        assert isinstance(schema, Mapping) and isinstance(value, Mapping)  # noqa: S101, PT018  # as above
        missing = OutputInstructions[object](schema=schema, name=form.name)
        await self.say(user(_rest_words(missing)))
        asked = await self.ask("fields", missing)
        if not is_successful(asked):
            return Failure(asked.failure())
        rest = await self._read(asked.unwrap(), missing)
        if not is_successful(rest):
            why = rest.failure().message
            return Failure(_truncated(f"what was missing was asked for alone. {why}"))
        merged = merged_parts(value, as_object(rest.unwrap()))
        whole = await self._checked(form, merged)
        if not is_successful(whole):
            return Failure(_truncated(f"its whole items are kept. {whole.failure().message}"))
        fields = ", ".join(as_object(schema["properties"]))
        await self.warn(f"{closed.words}, and {fields} asked for alone")
        # Who continues the conversation reads one answer.
        await self.take_back(answer.mark)
        await self.say(assistant(dumps(merged)), is_of_session=True)
        return Success(whole.unwrap())

    async def _mended(self, answer: Answer, failure: OutputFailure) -> Result[object, FailureInfo]:
        """The output after repair, single fields, and groups of them, as far as these apply."""
        self._note(answer, failure)
        tried, last = "", failure
        begun = self.calls_left()
        for rung, mend in (
            (OutputRung.REPAIR, self._repaired),
            (OutputRung.FIELDS, self._with_fields),
            (OutputRung.SPLIT, self._by_groups),
        ):
            if not self._has(rung):
                continue
            if self._is_spent(rung, begun - self.calls_left(), answer):
                break
            if self.calls_left() < 1:
                return Failure(_refused(last, tried or "no model call is left to repair it"))
            mended = await mend(answer, last)
            if mended is None:
                continue
            if is_successful(mended):
                return Success(mended.unwrap())
            lost = mended.failure()
            if isinstance(lost, FailureInfo):
                return Failure(lost)
            tried, last = _TRIED[rung], lost
        return Failure(_refused(last, tried or "it is not to be repaired"))

    def _has(self, rung: OutputRung) -> bool:
        """Whether the rung is used: as declared, else more than a repair only where answers are
        held to nothing.
        """
        declared = self.modes.declared_rungs
        if declared is not None:
            return rung in declared
        return rung is OutputRung.REPAIR or self.modes.binds is False

    def _is_spent(self, rung: OutputRung, made: int, answer: Answer) -> bool:
        """Whether the rung would be more than three requests: more is for servers that are known
        to need it, and where it is declared.

        Args:
            made: Requests since the answer.
        """
        if self.modes.is_unbound or self.modes.declared_rungs is not None:
            return False
        before = 2 if answer.phase == "final" else 1
        return rung is OutputRung.SPLIT or before + made >= _MOST_REQUESTS

    async def _repaired(self, _: Answer, failure: OutputFailure) -> _Mended:
        await self.say(user(_repair_words(failure)))
        asked = await self.ask("repair", self.instructions)
        if not is_successful(asked):
            return Failure(asked.failure())
        answer = asked.unwrap()
        read = await self._taken(answer)
        if _unfit(read) is not None and await self._is_cut(answer):
            return Failure(_truncated("it was asked to be repaired"))
        return read

    async def _with_fields(self, _: Answer, failure: OutputFailure) -> _Mended | None:
        """What is right is kept, and only the other fields are asked for; None: it is all or
        nothing.
        """
        from minions.engine.calls.output_parts import ObjectParts

        parts = ObjectParts.of(self.instructions)
        value = failure.value
        if parts is None or not isinstance(value, Mapping):
            return None
        right, wrong = await match_beside_loop(
            lambda: (parts.right_fields(value), parts.wrong_fields(value))
        )
        if not right or not wrong:
            return None
        return await self._asked_for(parts, [wrong], "fields", right)

    async def _by_groups(self, answer: Answer, _: OutputFailure) -> _Mended | None:
        """A group of fields at a time, from the question on; None: there are too few of them."""
        from minions.engine.calls.output_parts import ObjectParts

        parts = ObjectParts.of(self.instructions)
        groups = parts.groups() if parts is not None else ()
        if parts is None or not groups or self.calls_left() < len(groups):
            return None
        await self.take_back(answer.mark)
        return await self._asked_for(parts, groups, "split", {})

    async def _asked_for(
        self,
        parts: ObjectParts,
        groups: Sequence[tuple[str, ...]],
        phase: str,
        known: Mapping[str, JsonValue],
    ) -> _Mended:
        found = dict(known)
        for names in groups:
            form = parts.only(names)
            await self.say(user(_field_words(form)))
            asked = await self.ask(phase, form)
            if not is_successful(asked):
                return Failure(asked.failure())
            read = await self._taken(asked.unwrap(), form)
            if not is_successful(read):
                return Failure(read.failure())
            found |= as_object(read.unwrap())
        whole = await self._checked(self.instructions, parts.merged(found))
        return Success(whole.unwrap()) if is_successful(whole) else Failure(whole.failure())

    async def _checked(
        self, form: OutputInstructions[object], merged: Mapping[str, JsonValue]
    ) -> Result[object, OutputFailure]:
        """The output that was put together of parts."""
        validator = SchemaValidator(form.json_schema())
        return await beside(
            self.threads,
            is_large(merged),
            lambda: checked_output(form, validator, merged),
            matches=True,
        )

    async def _read(
        self, answer: Answer, form: OutputInstructions[object] | None = None
    ) -> Result[object, OutputFailure]:
        from minions.engine.calls.cut_answers import is_at_bound

        wanted, is_long = form or self.instructions, _is_long(answer)
        read = await beside(
            self.threads,
            is_long,
            lambda: self.parser.parse(wanted, answer.raw, answer.mode),
            matches=True,
        )
        failure = None if isinstance(read, Success) else read.failure()
        if failure is None:
            self.modes.note_held(answer.mode, is_strict=answer.is_strict)
        if failure is None and answer.is_bounded and is_at_bound(answer.raw):
            await self.warn(
                f"at a bound that the request added: {SENT_ITEMS} items of a list, or {SENT_TEXT} "
                "characters of a text in one, where its schema sets none; declare `max_items` or "
                "`max_length`"
            )
        self.tell(rung_of(answer.phase, answer.mode), answer, failure)
        return read

    async def _is_cut(self, answer: Answer) -> bool:
        return await beside(self.threads, _is_long(answer), lambda: _is_cut(answer))

    def _note(self, answer: Answer, failure: OutputFailure) -> None:
        """Learn from an answer that no server gives that holds it to the form."""
        is_unformed = failure.value is None and not failure.errors
        has_called = bool(answer.raw.tool_calls)
        if answer.mode is OutputMode.TOOLS and has_called:
            return
        if is_unformed or (answer.is_strict and failure.errors):
            self.modes.note_ignored(answer.mode)


_Mended: TypeAlias = Result[object, FailureInfo | OutputFailure]
"""The output; why the step fails; or why the answer is not the output, and the next rung is due."""


def _is_long(answer: Answer) -> bool:
    """Whether reading the answer would hold the event loop."""
    message = answer.raw.message
    length = len(message.content or "")
    if message.tool_calls:
        length += calls_length(message)
    return length > _LONG


def _unfit(read: _Mended) -> OutputFailure | None:
    """Why the answer that came is not the output, so that more can be tried; None: it is, or no
    answer came.
    """
    failure = None if is_successful(read) else read.failure()
    return None if isinstance(failure, FailureInfo) else failure


def _as_mended(
    read: Result[object, OutputFailure] | Result[object, FailureInfo],
) -> _Mended:
    """The same, where either failure may come."""
    return Success(read.unwrap()) if is_successful(read) else Failure(read.failure())


_MOST_REQUESTS: Final = 3
"""Requests of one output, unless more are known to be needed."""

_TRIED = {
    OutputRung.REPAIR: "the model was asked to repair it once",
    OutputRung.FIELDS: "the model was asked for the wrong fields alone",
    OutputRung.SPLIT: "the model was asked for its fields in groups",
}


def _is_cut(answer: Answer) -> bool:
    """Whether the answer stops before its end: then its form is not what is wrong with it."""
    calls = answer.raw.tool_calls
    text = calls[0].arguments if calls else answer.raw.text or ""
    return answer.raw.finish_reason == CUT_AT_LIMIT or is_unfinished_json(text)


def _truncated(what: str) -> FailureInfo:
    return FailureInfo(
        code=OUTPUT_TRUNCATED,
        message=f"The answer was cut off before its JSON ended: {what}.",
        suggestions=("raise max_output_tokens",),
    )


def _repair_words(failure: OutputFailure) -> str:
    return f"{failure.message}\nAnswer again with the corrected JSON value only, no explanation."


def _rest_words(form: OutputInstructions[object]) -> str:
    return f"Your answer was cut off; what stands above is kept. {_field_words(form)}"


def _field_words(form: OutputInstructions[object]) -> str:
    from minions.data.schema_words import schema_words

    return (
        "Answer now with one JSON object of just these fields, no explanation:\n"
        f"{schema_words(form.json_schema())}"
    )


def _refused(failure: OutputFailure, what: str) -> FailureInfo:
    info = failure.info()
    return FailureInfo(code=info.code, message=f"{info.message} No valid output came: {what}.")
