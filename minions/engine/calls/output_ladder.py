"""From an answer to the declared output: read it, constrain one call, repair once, or refuse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from attrs import frozen
from returns.pipeline import is_successful
from returns.result import Failure, Result, Success

from minions.contracts.calls import (
    ModelCallResponse,
    OutputFailure,
    OutputInstructions,
    OutputMode,
    OutputParser,
    OutputRequest,
)
from minions.contracts.errors import FailureInfo
from minions.contracts.memory import MemorySnapshot
from minions.contracts.messages import Message, user

__all__ = ["Answer", "OutputLadder"]


@frozen(kw_only=True)
class Answer:
    """An answer, and the snapshot that removes it from the conversation."""

    raw: ModelCallResponse
    """As the model sent it: the parser reads this."""
    response: ModelCallResponse
    """As it stands in the conversation."""
    mark: MemorySnapshot
    """The conversation before the answer."""
    mode: OutputMode | None = None
    """How it was constrained; None: it was not."""


Ask: TypeAlias = Callable[[str, OutputRequest | None], Awaitable[Result[Answer, FailureInfo]]]
"""One more model call: phase and constraint to an answer."""
Say: TypeAlias = Callable[[Message], Awaitable[None]]
"""Appends a message to the conversation and records it."""
TakeBack: TypeAlias = Callable[[MemorySnapshot], Awaitable[None]]
"""Forget the conversation since that mark."""


@frozen(kw_only=True)
class OutputLadder:
    """Wrong output costs at most three requests: the answer, one constrained, one repair."""

    instructions: OutputInstructions[object]
    parser: OutputParser
    constraint: OutputRequest | None
    """None where the model's server takes none."""
    ask: Ask
    say: Say
    take_back: TakeBack
    calls_left: Callable[[], int]

    async def climb(self, answer: Answer) -> Result[object, FailureInfo]:
        """The output, or why there is none. Each further call counts against the budget."""
        read = self._read(answer)
        if not is_successful(read) and answer.mode is None and self.constraint is not None:
            if self.calls_left() < 1:
                return Failure(_refused(read.failure(), "no model call is left to ask again"))
            # The free answer is forgotten: it would only teach the model its own mistake.
            await self.take_back(answer.mark)
            asked = await self.ask("final", self.constraint)
            if not is_successful(asked):
                return Failure(asked.failure())
            answer = asked.unwrap()
            read = self._read(answer)
        if is_successful(read):
            return Success(read.unwrap())
        return await self._repair(read.failure())

    async def _repair(self, failure: OutputFailure) -> Result[object, FailureInfo]:
        if self.calls_left() < 1:
            return Failure(_refused(failure, "no model call is left to repair it"))
        await self.say(user(_repair_words(failure)))
        asked = await self.ask("repair", self.constraint)
        if not is_successful(asked):
            return Failure(asked.failure())
        read = self._read(asked.unwrap())
        if is_successful(read):
            return Success(read.unwrap())
        return Failure(_refused(read.failure(), "the model was asked to repair it once"))

    def _read(self, answer: Answer) -> Result[object, OutputFailure]:
        return self.parser.parse(self.instructions, answer.raw, answer.mode)


def _repair_words(failure: OutputFailure) -> str:
    return f"{failure.message}\nAnswer again with the corrected JSON value only, no explanation."


def _refused(failure: OutputFailure, what: str) -> FailureInfo:
    info = failure.info()
    return FailureInfo(code=info.code, message=f"{info.message} No valid output came: {what}.")
