"""The beginnings of prompts that servers have seen: what a call can expect from a server's cache,
where its prompt departs from earlier ones and why, and who waits for whom to write a beginning.

All runs with the same services share them. Kept are the texts of first prompts of steps, in a tree
for each model; what follows in a step's conversation continues the prompt before it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct, field

from minions.contracts.messages import TokenUsage
from minions.contracts.prompt_caches import PromptCache
from minions.contracts.runtime import Clock, Sleep
from minions.data.json_values import JsonValue
from minions.engine.services.flow.endpoint_limiter import wake

CHARACTERS_PER_TOKEN: Final = 4
"""The estimate of tokens where no server counted them."""
_MOST_CHARACTERS: Final = 16_000_000
"""Characters of prompts that are kept; then all is forgotten, and learned again."""
TOOL_PART: Final = "tools"
"""The name of the parts that are tools."""


class PromptSegment(Struct, frozen=True):
    """A part of a prompt, in the order in which servers read it."""

    name: str
    """What it is: `tools`, `system text`, `context`, `goal`."""
    text: str
    of: str = ""
    """The name of a tool."""


class _Part(Struct, eq=False):
    """A part of prompts, after all that comes before it."""

    segment: PromptSegment
    reached: int
    """Characters up to its end."""
    address: str
    """The step that sent it first."""
    used_at: float
    """When it was last sent, on the clock's monotonic time."""
    parts: dict[PromptSegment, _Part] = field(default_factory=dict)
    """What came after it."""
    writer: _Writer | None = None
    """The call that is the first to send it, as long as it has no answer; None: none is."""
    is_written: bool = False
    """Whether a call that sent it was answered."""


class _Writer(Struct, eq=False):
    """A call whose answer shows that the server has its prompt."""

    waiting: list[asyncio.Future[None]] = field(default_factory=list)


class PrefixUse(Struct, frozen=True, kw_only=True):
    """What the prompt of a call has in common with earlier ones."""

    shared: int = 0
    """Characters of the beginning that the server has seen within its time."""
    characters: int
    """Characters of the whole prompt."""
    after: str | None = None
    """The step whose prompt began so; None: no prompt did."""
    differs: str | None = None
    """Where the prompts part, in words; None: one is the beginning of the other."""
    lost: int = 0
    """Characters behind that place that both have, and that are paid again."""

    def facts(self, cache: PromptCache, input_tokens: int, written: int) -> dict[str, JsonValue]:
        """What is recorded with the call; empty: nothing was to be expected.

        Args:
            input_tokens: As the server counted them.
        """
        characters = max(1, self.characters)
        expected = cache.kept_of(self.shared * input_tokens // characters)
        lost = self.lost * input_tokens // characters
        found: dict[str, JsonValue] = {}
        if expected:
            found["expected_tokens"] = expected
        if written:
            found["written_tokens"] = written
        if self.after is not None and (expected or lost >= max(1, cache.minimum_tokens)):
            found["after"] = self.after
            if self.differs is not None:
                found["differs"] = self.differs
            if lost >= max(1, cache.minimum_tokens):
                found["lost_tokens"] = lost
        return found


class PromptPrefixes:
    """The beginnings of prompts that were sent to one model."""

    def __init__(self, clock: Clock, sleep: Sleep) -> None:
        """Nothing was sent yet."""
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._root = _new_root()
        self._characters = 0

    async def enter(
        self,
        segments: Sequence[PromptSegment],
        cache: PromptCache,
        address: str,
        *,
        longest_wait_s: float,
    ) -> EnteredPrompt:
        """Note the first prompt of a step, and wait for another call that is about to write what
        both begin with, if the server keeps so much.

        Args:
            segments: The parts of the prompt, in the order in which the server reads them.
            address: The step, for messages.
            longest_wait_s: Then it is made nevertheless; 0: it does not wait at all.
        """
        until: float | None = self._clock.monotonic() + longest_wait_s
        while True:
            left_s = 0.0 if until is None else until - self._clock.monotonic()
            with self._lock:
                path = self._find_path(segments)
                writer = _find_writer(path, cache) if left_s > 0 else None
                if writer is None:
                    use = self._use_of(path, segments, cache)
                    return EnteredPrompt(self, use, *self._note(path, segments, cache, address))
                answered = asyncio.get_running_loop().create_future()
                writer.waiting.append(answered)
            if not await self._wait_for(answered, left_s):
                until = None

    async def _wait_for(self, answered: asyncio.Future[None], most_s: float) -> bool:
        """Whether it was done before that time was over."""
        limit = asyncio.ensure_future(self._sleep(most_s))
        try:
            await asyncio.wait((answered, limit), return_when=asyncio.FIRST_COMPLETED)
            return answered.done()
        finally:
            limit.cancel()
            answered.cancel()

    def _find_path(self, segments: Sequence[PromptSegment]) -> list[_Part]:
        """The parts that were sent before, from the root."""
        if self._characters > _MOST_CHARACTERS:
            self._root, self._characters = _new_root(), 0
        path = [self._root]
        for segment in segments:
            part = path[-1].parts.get(segment)
            if part is None:
                break
            path.append(part)
        return path

    def _use_of(
        self, path: Sequence[_Part], segments: Sequence[PromptSegment], cache: PromptCache
    ) -> PrefixUse:
        """What the prompt has in common with the one that was sent last on that way."""
        whole = sum([len(each.text) for each in segments])
        if len(path) == 1 and not path[0].parts:
            return PrefixUse(characters=whole)
        since = self._clock.monotonic() - cache.lifetime_s
        known = [each for each in path[1:] if each.is_written and each.used_at >= since]
        shared = known[-1].reached if known else 0
        last = path[-1]
        if len(path) > len(segments) or not last.parts:
            return PrefixUse(shared=shared, characters=whole, after=last.address)
        other, rest = next(reversed(last.parts.values())), segments[len(path) - 1 :]
        is_same = rest[0].name == other.segment.name
        same = _equal_start(rest[0].text, other.segment.text) if is_same else 0
        if shared == last.reached and other.is_written and other.used_at >= since:
            shared += same
        return PrefixUse(
            shared=shared,
            characters=whole,
            after=other.address,
            differs=_difference(rest[0], other.segment, same),
            lost=_lost(rest, other, same),
        )

    def _note(
        self,
        path: list[_Part],
        segments: Sequence[PromptSegment],
        cache: PromptCache,
        address: str,
    ) -> tuple[Sequence[_Part], _Writer]:
        """The parts of the prompt, with new ones for what was not sent before."""
        now, writer = self._clock.monotonic(), _Writer()
        for segment in segments[len(path) - 1 :]:
            size = len(segment.text)
            part = _Part(segment, path[-1].reached + size, address, now)
            self._characters += size
            path[-1].parts[segment] = part
            path.append(part)
        for part in path[1:]:
            is_kept = part.is_written and now - part.used_at <= cache.lifetime_s
            part.used_at = now
            if not is_kept and part.writer is None:
                part.writer = writer
        return path, writer

    def end(self, path: Sequence[_Part], writer: _Writer, *, is_answered: bool) -> None:
        """Note that a call ended, and let calls begin that wait for it."""
        with self._lock:
            for part in path[1:]:
                part.is_written |= is_answered
                if part.writer is writer:
                    part.writer = None
            waiting, writer.waiting = writer.waiting, []
        for each in waiting:
            if not each.get_loop().is_closed():
                wake(each)


class EnteredPrompt(Struct, frozen=True, eq=False):
    """A call whose prompt is known to those that come after it."""

    prefixes: PromptPrefixes
    use: PrefixUse
    path: Sequence[_Part]
    writer: _Writer

    def facts(self, cache: PromptCache, usage: TokenUsage) -> dict[str, JsonValue]:
        """What is recorded with the call after its answer; empty: nothing was to be expected."""
        return self.use.facts(cache, usage.input_tokens, usage.cache_write_tokens)

    def end(self, *, is_answered: bool) -> None:
        """Let calls begin that wait for it."""
        self.prefixes.end(self.path, self.writer, is_answered=is_answered)


def _new_root() -> _Part:
    return _Part(PromptSegment("", ""), 0, "", 0.0)


def _find_writer(path: Sequence[_Part], cache: PromptCache) -> _Writer | None:
    """The call that is about to write the longest beginning that the server keeps; None: none."""
    for part in reversed(path):
        if not cache.kept_of(part.reached // CHARACTERS_PER_TOKEN):
            return None
        if part.writer is not None:
            return part.writer
    return None


def _equal_start(one: str, other: str) -> int:
    """How many characters both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one.startswith(other[low:middle], low):
            low = middle
        else:
            high = middle - 1
    return low


def _equal_end(one: str, other: str, start: int) -> int:
    """How many characters both end with, behind an equal start."""
    low, high = 0, min(len(one), len(other)) - start
    while low < high:
        middle = (low + high + 1) // 2
        if one.endswith(other[len(other) - middle :]):
            low = middle
        else:
            high = middle - 1
    return low


def _difference(segment: PromptSegment, other: PromptSegment, same: int) -> str:
    """Where a prompt departs from another one, in words."""
    if TOOL_PART in (segment.name, other.name):
        named = [
            each.of if each.name == TOOL_PART else "no more tools" for each in (segment, other)
        ]
        return f"tools: {named[0]}, not {named[1]}"
    if segment.name != other.name:
        return f"{segment.name}, not {other.name}"
    return f"{segment.name} after {same} characters"


def _lost(rest: Sequence[PromptSegment], other: _Part, same: int) -> int:
    """Characters behind the first difference that the other prompt has, too."""
    lost = 0
    if rest[0].name == other.segment.name:
        lost = _equal_end(rest[0].text, other.segment.text, same)
    known = {*_follow(other)}
    return lost + sum([len(each.text) for each in rest if each in known])


def _follow(part: _Part) -> Iterator[PromptSegment]:
    """The parts behind that one, as they were sent last."""
    while part.parts:
        part = next(reversed(part.parts.values()))
        yield part.segment
