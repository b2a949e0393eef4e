"""ServerFault plans: what a server does wrong at each request, drawn from a seed. Pure data.

    plan = FaultPlan.from_seed(7)
    str(plan)                          # "- 429 cut-stream - no-answer", one word for each request
    FaultPlan.parse("- 429 - hang")    # the same back, and what a person writes

`minions.testing.ChaosEndpoint` plays a plan. Nothing here knows how.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, Self

from attrs import field, frozen

from minions.data.errors import UsageError, did_you_mean

__all__ = ["NO_FAULT", "FaultPlan", "ServerFault"]


class ServerFault(StrEnum):
    """One way in which a server fails a request. The value is its word in a plan."""

    # --- statuses
    RATE_LIMITED = "429"
    RATE_LIMITED_SECONDS = "429-seconds"
    """With `Retry-After` in seconds."""
    RATE_LIMITED_DATE = "429-date"
    """With `Retry-After` as an HTTP date."""
    RATE_LIMITED_LONG = "429-long"
    """It asks for a wait of hours."""
    RATE_LIMITED_NONSENSE = "429-nonsense"
    """With a `Retry-After` that nobody can read."""
    QUOTA = "429-quota"
    """The account is used up; more attempts do not help."""
    REQUEST_TIMEOUT = "408"
    CONFLICT = "409"
    SERVER_ERROR = "500"
    UNAVAILABLE = "503"
    UNAVAILABLE_SECONDS = "503-seconds"
    UNAVAILABLE_DATE = "503-date"
    OVERLOADED = "529"
    BAD_REQUEST = "400"
    UNAUTHORIZED = "401"
    NOT_FOUND = "404"
    REDIRECT = "307"
    TOO_LONG = "400-context"
    """The prompt is said to be longer than the model takes."""
    HUGE_ERROR = "500-huge"
    """The body of the error has a megabyte."""
    BROKEN_ERROR = "500-broken"
    """The body of the error is cut."""

    # --- the connection
    NO_ANSWER = "no-answer"
    """Not a byte, for ever."""
    SLOW_START = "slow-start"
    """A correct answer whose first byte takes 20 s."""
    SLOW_BODY = "slow-body"
    """A correct answer with pauses of 20 s."""
    CLOSED = "closed"
    """The connection is closed instead of an answer."""
    RESET = "reset"
    """The connection is reset instead of an answer."""
    RESET_AFTER_HEAD = "reset-after-head"
    HALF_HEAD = "half-head"
    """The connection is closed in the middle of the headers."""
    CUT = "cut"
    """The connection is closed in the middle of the answer."""
    STALLED = "stalled"
    """Nothing more is sent from the middle of the answer on."""
    CUT_AT_END = "cut-at-end"
    """The whole answer with its usage, and not the end of the body."""
    STALLED_AT_END = "stalled-at-end"
    BROKEN_CHUNKS = "broken-chunks"
    """The chunked encoding is broken in the middle of the answer."""
    ONE_BYTE_CHUNKS = "one-byte-chunks"
    """A correct answer, one byte at a time."""
    GARBAGE = "garbage"
    """Bytes that are not HTTP."""
    NOT_REUSABLE = "bytes-after-end"
    """A correct answer with bytes behind it that nobody asked for."""

    # --- the document
    EMPTY_BODY = "empty-body"
    EMPTY_DOCUMENT = "empty-document"
    """A 200 with `{}`."""
    NO_CHOICES = "no-choices"
    """`choices: []`, with a usage."""
    NULL_MESSAGE = "null-message"
    OTHER_DOCUMENT = "other-document"
    LIST = "list"
    """A JSON list where an object is expected."""
    HTML = "html"
    NOT_JSON = "not-json"
    CUT_JSON = "cut-json"
    """JSON that ends in its middle, in a body that ends in order."""
    NOT_UTF8 = "not-utf8"
    DEEP_JSON = "deep-json"
    HUGE = "huge"
    """A body larger than is taken."""
    WRONG_TYPE = "wrong-content-type"
    """A correct answer that is said to be plain text."""
    ERROR_IN_200 = "error-in-200"
    RATE_LIMIT_IN_200 = "rate-limit-in-200"
    ERROR_AFTER_USAGE = "error-after-usage"
    """A document, or the end of a stream, with a usage and an error."""

    # --- the answer
    CONTENT_NULL = "content-null"
    """Neither text nor tool calls."""
    CUT_AT_LIMIT = "length"
    """`finish_reason: length`."""
    FILTERED = "filtered"
    REFUSED = "refused"
    UNKNOWN_TOOL = "unknown-tool"
    CUT_ARGUMENTS = "cut-arguments"
    WRONG_ARGUMENTS = "wrong-arguments"
    DUPLICATE_IDS = "duplicate-ids"
    CALLS_WITH_STOP = "calls-with-stop"
    """Tool calls with `finish_reason: stop`."""
    STOP_WITHOUT_CALLS = "tool-calls-without-calls"
    """`finish_reason: tool_calls` and only text."""
    NAMELESS_CALL = "nameless-call"
    MANY_CALLS = "many-calls"
    """More tool calls than are taken."""
    WRONG_SCHEMA = "wrong-schema"
    """JSON that fits no schema."""
    PROSE = "prose"
    """Text where JSON is expected."""
    ODD_TEXT = "odd-text"
    """Half a surrogate pair, NUL, and what looks like a template."""

    # --- the usage
    NO_USAGE = "no-usage"
    NEGATIVE_USAGE = "negative-usage"
    TEXT_USAGE = "text-usage"
    NULL_USAGE = "null-usage"
    FRACTIONAL_USAGE = "fractional-usage"
    ABSURD_USAGE = "absurd-usage"
    """Counts with thirty digits."""
    CACHED_ABOVE_INPUT = "cached-above-input"
    """More tokens from the cache than there were."""


NO_FAULT: Final = "-"
"""The word of a request that is answered as it should be."""

_LONGEST: Final = 60

_OUTAGE: Final = (
    ServerFault.CLOSED,
    ServerFault.RESET,
    ServerFault.SERVER_ERROR,
    ServerFault.UNAVAILABLE,
)
"""How a server fails that is down: each counts for a circuit breaker."""


def _faults_of(words: Iterable[str | None]) -> tuple[ServerFault | None, ...]:
    return tuple(map(_fault_of, words))


@frozen
class FaultPlan:
    """What happens to each request, in order of arrival; after the plan nothing fails."""

    faults: tuple[ServerFault | None, ...] = field(default=(), converter=_faults_of)
    """None: answered as it should be."""

    @classmethod
    def from_seed(
        cls,
        seed: int,
        *,
        faults: Iterable[ServerFault] = tuple(ServerFault),
        share: float | None = None,
        length: int = _LONGEST,
        outage: int = 0,
    ) -> Self:
        """Draw a plan; the same seed always gives the same one.

        Args:
            faults: Those to draw from.
            share: How many of the requests fail, from 0 to 1; None: drawn, too. Many plans are
                mild, and some have phases in which one fault comes again and again.
            length: Requests of the plan.
            outage: Requests in a row that find the server down, from one of the first three on:
                enough of them open a circuit breaker. The others are those of the plan without an
                outage.
        Raises:
            UsageError: One of the faults is none, or `share` is not from 0 to 1.
        """
        if share is not None and not 0 <= share <= 1:
            raise UsageError(f"share={share} is not from 0 to 1.", code="bad-value")
        rng = random.Random(f"fault plan {seed}")  # noqa: S311  # a test
        known = tuple(faults)
        if share is None:
            share = rng.choice((0.05, 0.15, 0.15, 0.3, 0.3, 0.5, 0.8))
        drawn: list[ServerFault | None] = []
        while len(drawn) < length:
            fault = rng.choice(known) if known and rng.random() < share else None
            drawn += [fault] * (rng.choice((2, 3, 4)) if fault and rng.random() < 0.15 else 1)
        begin = rng.randrange(3)
        drawn[begin : begin + outage] = [rng.choice(_OUTAGE) for _ in range(outage)]
        return cls(tuple(drawn[:length]))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The plan of such a text as `str(plan)` gives.

        Raises:
            UsageError: A word is not that of a fault.
        """
        return cls(_faults_of(text.split()))

    def __str__(self) -> str:
        return " ".join(fault.value if fault else NO_FAULT for fault in self.trimmed.faults)

    @property
    def trimmed(self) -> Self:
        """The same without requests at its end that do not fail."""
        most = max((n for n, fault in enumerate(self.faults, 1) if fault), default=0)
        return type(self)(self.faults[:most])

    def fault(self, index: int) -> ServerFault | None:
        """What happens to the request with that index, from 0."""
        return self.faults[index] if index < len(self.faults) else None

    def smaller(self) -> Iterator[Self]:
        """Plans with fewer faults, the smallest first: halves, then all but one."""
        places = [n for n, fault in enumerate(self.faults) if fault]
        size = len(places)
        while size > 0:
            for begin in range(0, len(places), size):
                yield self._without(places[begin : begin + size])
            size //= 2

    def shrunk(self, fails: Callable[[Self], bool]) -> Self:
        """A smaller plan that still fails; the plan itself where none of the smaller ones does.

        Args:
            fails: Whether the fault that is looked for shows under a plan. Called many times.
        """
        found, is_new = self.trimmed, True
        while is_new:
            smaller = next((plan for plan in found.smaller() if fails(plan)), None)
            is_new, found = smaller is not None, (smaller or found).trimmed
        return found

    def _without(self, places: Sequence[int]) -> Self:
        dropped = set(places)
        kept = (None if n in dropped else fault for n, fault in enumerate(self.faults))
        return type(self)(tuple(kept))


def _fault_of(word: str | None) -> ServerFault | None:
    if word is None or word == NO_FAULT:
        return None
    try:
        return ServerFault(word)
    except ValueError:
        known = [fault.value for fault in ServerFault]
        raise UsageError(
            f"'{word}' is no fault of a plan.{did_you_mean(word, known)}", code="bad-value"
        ) from None
