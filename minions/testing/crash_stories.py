"""Stories of crashes: what goes wrong in one run, and when. Pure data, drawn from a seed.

    story = CrashStory.parse("kill@7 lost-answer@2 429-seconds@1")
    str(story)                       # the same back

`crash_world` plays them; nothing here knows how.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, Self

from attrs import evolve, field, frozen

from minions.data.errors import UsageError, did_you_mean
from minions.testing.fault_plans import ServerFault

__all__ = ["CrashEvent", "CrashStory", "Mishap", "StorySize", "draw_stories"]


class Mishap(StrEnum):
    """What can go wrong beside the model's server. The value is its word in a story."""

    # --- at the n-th fact that any process writes
    KILL = "kill"
    """The process dies as soon as the fact is stored."""
    KILL_BEFORE = "kill-before"
    """It dies before the fact is stored."""
    STALL = "stall"
    """It stops once the fact is stored, loses its lease to another process, and continues when that
    one has come to its end: two workers at once."""
    JUMP = "clock-jump"
    """The clock jumps an hour ahead."""

    # --- at the n-th call that reaches a tool
    DOWN = "tool-down"
    """The call fails before it has an effect."""
    LOST_ANSWER = "lost-answer"
    """The connection breaks after the effect."""
    NO_ANSWER = "no-tool-answer"
    """It has its effect and never answers."""

    # --- at the n-th end of the run
    RETRY = "retry"
    """The run has failed, and a person retries it."""


AT_FACTS: Final = (Mishap.KILL, Mishap.KILL_BEFORE, Mishap.STALL, Mishap.JUMP)
AT_TOOLS: Final = (Mishap.DOWN, Mishap.LOST_ANSWER, Mishap.NO_ANSWER)
AT_MODEL: Final = (
    ServerFault.RATE_LIMITED_SECONDS,
    ServerFault.UNAVAILABLE,
    ServerFault.NO_ANSWER,
    ServerFault.CUT,
    ServerFault.EMPTY_DOCUMENT,
    ServerFault.REFUSED,
    ServerFault.PROSE,
)
"""What a server does wrong that the engine sees in different ways."""
_WORDS: Final = {str(each.value): each for each in (*Mishap, *AT_MODEL)}


@frozen(order=True)
class CrashEvent:
    """One thing that goes wrong."""

    at: int
    """From 1: the fact, the call of a tool, the request to a model, or the failed end."""
    what: Mishap | ServerFault

    def __str__(self) -> str:
        return f"{self.what.value}@{self.at}"


def _sorted(events: Iterator[CrashEvent] | tuple[CrashEvent, ...]) -> tuple[CrashEvent, ...]:
    return tuple(sorted(set(events), key=lambda event: (event.at, event.what.value)))


@frozen
class CrashStory:
    """All that goes wrong in one run; empty: nothing does."""

    events: tuple[CrashEvent, ...] = field(default=(), converter=_sorted)

    @classmethod
    def parse(cls, text: str) -> Self:
        """The story of such a text as `str(story)` gives.

        Raises:
            UsageError: `bad-story`; a word is no event.
        """
        return cls(tuple(map(_event, text.split())))

    def __str__(self) -> str:
        return " ".join(map(str, self.events))

    def happens(self, what: Mishap, at: int) -> bool:
        """Whether that goes wrong there."""
        return CrashEvent(at, what) in self.events

    def server_fault(self, at: int) -> ServerFault | None:
        """What the model's server does wrong at that request."""
        return next(
            (x.what for x in self.events if x.at == at and isinstance(x.what, ServerFault)), None
        )

    @property
    def kinds(self) -> frozenset[Mishap | ServerFault]:
        """What goes wrong, wherever."""
        return frozenset(event.what for event in self.events)

    def smaller(self) -> Iterator[Self]:
        """Stories in which one thing less goes wrong, or one goes wrong earlier."""
        fewer = [
            type(self)(tuple(other for other in self.events if other != event))
            for event in self.events
        ]
        yield from fewer
        # What is left out may have caused calls and facts, after which others were counted.
        for story in (self, *fewer):
            for index, event in enumerate(story.events):
                for at in range(1, event.at):
                    moved = evolve(event, at=at)
                    yield type(self)((*story.events[:index], moved, *story.events[index + 1 :]))

    def shrunk(self, shows: Callable[[CrashStory], bool]) -> CrashStory:
        """The shortest story found that still shows it: nothing can be left out, also where another
        thing then comes earlier, and nothing can come earlier.

        Args:
            shows: Whether a story shows what is looked for. Called many times.
        """
        found: CrashStory = self
        while (smaller := next(filter(shows, found.smaller()), None)) is not None:
            found = smaller
        return found


def _event(word: str) -> CrashEvent:
    name, sign, at = word.partition("@")
    if name not in _WORDS:
        hint = did_you_mean(name, list(_WORDS))
        raise UsageError(f"'{word}' is no event of a story.{hint}", code="bad-story")
    if not sign or not at.isdecimal() or int(at) < 1:
        raise UsageError(
            f"'{word}' does not say when: write {name}@N with N from 1.", code="bad-story"
        )
    return CrashEvent(int(at), _WORDS[name])


@frozen(kw_only=True)
class StorySize:
    """In how many places something can go wrong: what a run did without a fault."""

    facts: int
    tool_calls: int
    model_calls: int


def draw_stories(seed: int, count: int, size: StorySize) -> Iterator[CrashStory]:
    """So many stories. Those in which one thing goes wrong come first, all of them where `count`
    allows; others have two to five things.
    """
    singles = [
        CrashStory((CrashEvent(at, what),))
        for kinds, most in _ranges(size)
        for what in kinds
        for at in range(1, most + 1)
    ]
    rng = random.Random(f"crash stories {seed}")  # noqa: S311  # a test
    if len(singles) > count:
        singles = rng.sample(singles, count)
    yield from singles
    ranges = [(kinds, most) for kinds, most in _ranges(size) if most]
    for _ in range(count - len(singles)):
        yield CrashStory(tuple(_draw_event(rng, ranges) for _ in range(rng.randint(2, 5))))


def _ranges(size: StorySize) -> list[tuple[tuple[Mishap | ServerFault, ...], int]]:
    """What happens most often comes first: where several stories show the same, it is told."""
    return [
        (AT_TOOLS, size.tool_calls),
        (AT_FACTS, size.facts),
        (AT_MODEL, size.model_calls),
        ((Mishap.RETRY,), 1),
    ]


def _draw_event(
    rng: random.Random, ranges: list[tuple[tuple[Mishap | ServerFault, ...], int]]
) -> CrashEvent:
    """After a fault there is more to do than without: places go a little beyond the end."""
    kinds, most = rng.choice(ranges)
    return CrashEvent(rng.randint(1, most + most // 4), rng.choice(kinds))
