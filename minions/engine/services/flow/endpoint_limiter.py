"""Whether a call to one server may begin, as a state machine without a clock of its own.

Concurrency, rates, what the server said of its own limits, and its circuit come together here.
Who waits for whom is the task of `flow_control`.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Final

from msgspec import Struct

from minions.contracts.calls import ModelCallResponse, ModelFailure
from minions.contracts.errors import UNREACHABLE
from minions.contracts.model_endpoints import Allowance, EndpointLimits, RateLimits
from minions.engine.services.flow.circuit import CircuitBreaker, CircuitConfig
from minions.engine.services.flow.rate_window import RateWindow

__all__ = ["CallEnd", "EndpointLimiter", "Judgement", "Ticket", "end_of"]

_LONGEST_LEARNED_S: Final = 60.0
"""A header may speak of a day's limit; then the next refusal says how long to wait."""
_LONGEST_HOLD_S: Final = 86_400.0
_FIRST_BACKOFF_S: Final = 1.0
_LONGEST_BACKOFF_S: Final = 60.0


class Judgement(Enum):
    """What the end of a call says of its server."""

    ANSWERED = "answered"
    """It works: an answer, or a refusal of this one request."""
    FAILED = "failed"
    """It does not: no connection, a broken one, or a status of 500 or above."""
    LIMITED = "limited"
    """It had enough requests (429)."""
    UNKNOWN = "unknown"
    """Nothing: the call was cut off here, or took too long."""


class CallEnd(Struct, frozen=True, kw_only=True):
    """What the end of a call says."""

    judgement: Judgement
    retry_after_s: float | None = None
    """Seconds for which the server asked to be left alone; None: it did not."""
    rate_limits: RateLimits | None = None
    tokens: int | None = None
    """Tokens that it used; None: not known."""

    @property
    def asks_for_pause(self) -> bool:
        """Whether the server wants to be left alone for a while."""
        return self.judgement is Judgement.LIMITED or self.retry_after_s is not None


_UNKNOWN: Final = CallEnd(judgement=Judgement.UNKNOWN)
_SERVER_FAILURES: Final = frozenset((UNREACHABLE, "stream-interrupted"))
_UNDECIDED: Final = frozenset(("model-timeout", "model-raised"))


def end_of(outcome: ModelCallResponse | ModelFailure | None) -> CallEnd:
    """What that outcome says of the server; None: nothing."""
    if outcome is None:
        return _UNKNOWN
    tokens = outcome.usage.total_tokens or None
    if isinstance(outcome, ModelCallResponse):
        return CallEnd(judgement=Judgement.ANSWERED, rate_limits=outcome.rate_limits, tokens=tokens)
    return CallEnd(
        judgement=_judged(outcome),
        retry_after_s=outcome.retry_after_s,
        rate_limits=outcome.rate_limits,
        tokens=tokens,
    )


def _judged(failure: ModelFailure) -> Judgement:
    if failure.code == "rate-limited":
        return Judgement.LIMITED
    if failure.code in _SERVER_FAILURES:
        return Judgement.FAILED
    if failure.code == "model-unavailable":
        is_refusal = failure.status is not None and failure.status < 500
        return Judgement.ANSWERED if is_refusal else Judgement.FAILED
    return Judgement.UNKNOWN if failure.code in _UNDECIDED else Judgement.ANSWERED


class Ticket(Struct, eq=False):
    """A call that was let in."""

    begun_at: float
    is_probe: bool
    tokens: int
    """Tokens that are set aside for it."""
    token_part: float
    """The part of the window of tokens in which they are."""


class _Learned(Struct):
    """What is left of an allowance, and until when that counts."""

    left: float
    until: float


class EndpointLimiter:
    """The limits of one server and what is known of it. The time is handed to each method."""

    def __init__(self, limits: EndpointLimits, circuit: CircuitConfig) -> None:
        """Nothing is in flight, nothing was learned."""
        self.limits = EndpointLimits()
        self.circuit = CircuitBreaker(circuit)
        self.in_flight = 0
        self._requests: RateWindow | None = None
        self._tokens: RateWindow | None = None
        self._tokens_in_flight = 0
        self._held_until = -math.inf
        self._limited_at = -math.inf
        """When the server last said that it has enough."""
        self._times_limited = 0
        """How often it said so in a row, requests that were under way together counted once."""
        self._width: int | None = None
        """Requests that it takes at a time for now, after it was limited; None: all."""
        self._full_width = 0
        self._learned_requests: _Learned | None = None
        self._learned_tokens: _Learned | None = None
        self.tighten(limits)

    def tighten(self, limits: EndpointLimits) -> None:
        """Apply further limits: of two, the stricter one counts."""
        before, self.limits = self.limits, self.limits.tightened(limits)
        now = self.limits
        if now.requests_per_minute not in (None, before.requests_per_minute):
            self._requests = RateWindow(now.requests_per_minute or 1)
        if now.tokens_per_minute not in (None, before.tokens_per_minute):
            self._tokens = RateWindow(now.tokens_per_minute or 1)

    @property
    def counts_tokens(self) -> bool:
        """Whether the tokens of a call matter."""
        return self._tokens is not None or self._learned_tokens is not None

    def held_s(self, now: float) -> float:
        """Seconds for which the server is left alone, from now on."""
        return self._held_until - now if self._held_until > now else 0.0

    def is_idle(self, now: float) -> bool:
        """Whether nothing would be lost if it were forgotten."""
        return self.in_flight == 0 and not self.circuit.failures and now >= self._held_until

    def free_at(self, now: float, tokens: int) -> float:
        """When a call may begin: `now`, a later time, or infinity: when another one has ended.

        Args:
            tokens: What it will use; 0 where tokens do not matter.
        """
        if not self.circuit.may_begin(now):
            return now + self.circuit.open_for_s(now) if self.circuit.open_for_s(now) else math.inf
        if self.in_flight >= self._most_in_flight():
            return math.inf
        free = max(now, self._held_until)
        if self._requests is not None:
            free = max(free, self._requests.free_at(now, 1))
        if self._tokens is not None:
            free = max(free, self._tokens.free_at(now, tokens))
        for learned, amount in ((self._learned_requests, 1), (self._learned_tokens, tokens)):
            if learned is not None:
                free = max(free, _reset_of(learned, now, amount))
        return free

    def _most_in_flight(self) -> float:
        most = self.limits.max_concurrency
        narrow = math.inf if self._width is None else self._width
        return narrow if most is None else min(most, narrow)

    def begin(self, now: float, tokens: int) -> Ticket:
        """Let in a call that may begin."""
        self.in_flight += 1
        part = 0.0
        if self._requests is not None:
            self._requests.use(now, 1)
        if self._tokens is not None:
            part = self._tokens.use(now, tokens)
        self._tokens_in_flight += tokens
        if self._learned_requests is not None:
            self._learned_requests.left -= 1
        if self._learned_tokens is not None:
            self._learned_tokens.left -= tokens
        return Ticket(now, self.circuit.begin(), tokens, part)

    def end(self, ticket: Ticket, now: float, end: CallEnd, random: float) -> None:
        """Note how a call ended.

        Args:
            random: In [0, 1); spreads the times at which processes call again.
        """
        self.in_flight -= 1
        self._tokens_in_flight -= ticket.tokens
        if self._tokens is not None and end.tokens is not None:
            self._tokens.settle(ticket.token_part, end.tokens - ticket.tokens)
        self._judge(ticket, now, end)
        if end.judgement is Judgement.LIMITED:
            self._limit(ticket, now, end.retry_after_s, random)
        elif end.retry_after_s is not None:
            self._hold(now, end.retry_after_s * (1 + random / 10))
        if end.rate_limits is not None:
            self._learn(now, end.rate_limits)

    def _judge(self, ticket: Ticket, now: float, end: CallEnd) -> None:
        if end.judgement is Judgement.FAILED:
            self.circuit.failed(now, is_probe=ticket.is_probe)
        elif end.judgement is Judgement.UNKNOWN:
            self.circuit.abandoned(is_probe=ticket.is_probe)
        else:
            self.circuit.answered()
        if end.judgement is Judgement.ANSWERED and ticket.begun_at > self._limited_at:
            self._times_limited = 0
            self._widen()

    def _widen(self) -> None:
        """Take one request more at a time: twice as many with each round of answers."""
        if self._width is not None:
            self._width += 1
            if self._width >= self._full_width:
                self._width = None

    # --- when the server has enough --------------------------------------------------------------

    def _limit(
        self, ticket: Ticket, now: float, retry_after_s: float | None, random: float
    ) -> None:
        if ticket.begun_at > self._limited_at:  # else it was under way with one that was refused
            self._limited_at = now
            self._times_limited += 1
            together = self.in_flight + 1
            self._full_width = max(together, self._full_width if self._width is not None else 0)
            self._width = max(1, together // 2)
        if retry_after_s is not None:
            self._hold(now, retry_after_s * (1 + random / 10))
            return
        backoff_s = _FIRST_BACKOFF_S * 2 ** min(self._times_limited - 1, 10)
        self._hold(now, min(backoff_s, _LONGEST_BACKOFF_S) * (0.5 + random))

    def _hold(self, now: float, seconds: float) -> None:
        self._held_until = max(self._held_until, now + min(seconds, _LONGEST_HOLD_S))

    def _learn(self, now: float, said: RateLimits) -> None:
        """What the server still takes, less what is under way: it may not have counted that yet."""
        if said.requests is not None:
            self._learned_requests = _learned(now, said.requests, self.in_flight)
        if said.tokens is not None:
            self._learned_tokens = _learned(now, said.tokens, self._tokens_in_flight)


def _learned(now: float, allowance: Allowance, under_way: int) -> _Learned:
    reset_s = min(allowance.reset_s, _LONGEST_LEARNED_S)
    return _Learned(left=allowance.left - under_way, until=now + reset_s)


def _reset_of(learned: _Learned, now: float, amount: int) -> float:
    """When that amount is allowed, as far as was learned; 0: nothing speaks against it."""
    if now >= learned.until or learned.left >= max(1, amount):
        return 0.0
    return learned.until
