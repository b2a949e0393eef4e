"""The usual forms of chat completions, decoded in one pass for speed. No error handling.

A document of another form gives None; the caller then reads it step by step and words the error.
Also here: texts that come in fragments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final, TypeAlias

from attrs import define, field
from msgspec import UNSET, Meta, MsgspecError, Raw, Struct, UnsetType
from msgspec.json import Decoder

from minions.contracts.messages import TokenUsage


class _Function(Struct, gc=False):
    name: str
    arguments: str


class ChosenCall(Struct, gc=False):
    """One tool call of a plain answer."""

    id: str
    function: _Function


class _Message(Struct, gc=False):
    content: str | None = None
    tool_calls: list[ChosenCall] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(Struct, gc=False):
    message: _Message
    finish_reason: str | None = None


MOST_TOKENS: Final = 10**9
"""A count above this is none: no model reads or writes as much, and one such number would use up
any budget."""
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_TOKENS)] | None


class _CountDetails(Struct, gc=False):
    cached_tokens: _Count = None
    cache_write_tokens: _Count = None


class PromptTimings(Struct, gc=False):
    """What llama.cpp's server says of how it read a prompt."""

    cache_n: _Count = None
    """Tokens that its slot had; older servers do not say."""
    prompt_n: _Count = None
    """Tokens that it read."""

    def cached_of(self, asked: int) -> int:
        """The tokens of a prompt of that many that were not read again."""
        if self.cache_n is not None:
            return self.cache_n
        return max(0, asked - self.prompt_n) if self.prompt_n else 0


class UsageCounts(Struct, gc=False):
    """The tokens of an answer, under either provider's names."""

    prompt_tokens: _Count = None
    input_tokens: _Count = None
    completion_tokens: _Count = None
    output_tokens: _Count = None
    prompt_tokens_details: _CountDetails | None = None
    input_tokens_details: _CountDetails | None = None
    prompt_cache_hit_tokens: _Count = None
    cache_read_input_tokens: _Count = None

    def as_usage(self, timings: PromptTimings | None = None) -> TokenUsage:
        """The counts under our names.

        Args:
            timings: What llama.cpp says beside the usage.
        """
        asked = self.input_tokens if self.prompt_tokens is None else self.prompt_tokens
        wrote = self.output_tokens if self.completion_tokens is None else self.completion_tokens
        hits, cached, written = self.prompt_cache_hit_tokens, None, None
        for details in (self.prompt_tokens_details, self.input_tokens_details):
            if details is not None:
                cached = cached or details.cached_tokens
                written = written or details.cache_write_tokens
        cached = cached or (self.cache_read_input_tokens if hits is None else hits)
        asked, cached = asked or 0, cached or 0
        if timings is not None and not cached:
            cached = timings.cached_of(asked)
        cached = min(asked, cached)
        return TokenUsage(
            input_tokens=asked,
            output_tokens=wrote or 0,
            cached_tokens=cached,
            cache_write_tokens=min(asked - cached, written or 0),
        )


class Completion(Struct, gc=False):
    """A plain answer."""

    choices: list[_Choice]
    model: str | None = None
    usage: UsageCounts | None = None
    timings: PromptTimings | None = None
    error: object = None


class _Delta(Struct, gc=False):
    role: str | None = None
    content: str | None = None
    refusal: str | None = None
    tool_calls: Raw | UnsetType = UNSET
    reasoning_content: str | None = None
    reasoning: str | None = None


class _PieceChoice(Struct, gc=False):
    delta: _Delta
    finish_reason: str | None = None
    message: Raw | UnsetType = UNSET


class Piece(Struct, gc=False):
    """One document of a stream."""

    id: str | None = None
    choices: list[_PieceChoice] | None = None
    model: str | None = None
    usage: dict[str, object] | None = None
    timings: dict[str, object] | None = None
    error: object = None


_COMPLETIONS: Final = Decoder(Completion)
_PIECES: Final = Decoder(Piece)


def read_completion(body: bytes) -> Completion | None:
    """The answer; None: the document has another form, or is an error."""
    try:
        completion = _COMPLETIONS.decode(body)
    except (MsgspecError, ValueError, RecursionError):
        return None
    return None if completion.error or not completion.choices else completion


def read_piece(event: bytes) -> Piece | None:
    """A fragment that adds text, a finish reason, usage or nothing; None:
    the document has another form.
    """
    try:
        piece = _PIECES.decode(event)
    except (MsgspecError, ValueError, RecursionError):
        return None
    if piece.error:
        return None
    if piece.choices:
        choice = piece.choices[0]
        delta = choice.delta
        if delta.refusal or delta.tool_calls is not UNSET or choice.message is not UNSET:
            return None
    return piece


_PAIR: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def joined_texts(texts: Iterable[str]) -> str:
    """The texts joined; surrogate pairs that were split between fragments become one character."""
    text = "".join(texts)
    try:
        text.encode()
    except UnicodeEncodeError:
        return _PAIR.sub(
            lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text
        )
    return text


def as_reasoning(text: str | None) -> str | None:
    """Reasoning as a message holds it: None where there is nothing but blanks."""
    return text if text and not text.isspace() else None


@define(eq=False, repr=False)
class FragmentedText:
    """One text while its fragments arrive."""

    _parts: list[str] = field(factory=list)
    _half: str = ""
    """The first half of a surrogate pair whose second half may come with the next fragment."""

    @property
    def text(self) -> str:
        """The text so far."""
        return joined_texts(self._parts)

    def add(self, fragment: str) -> str:
        """Append a fragment; returns what can be shown already."""
        self._parts.append(fragment)
        shown = self._half + fragment
        self._half = shown[-1] if "\ud800" <= shown[-1:] <= "\udbff" else ""
        return joined_texts((shown.removesuffix(self._half),))
