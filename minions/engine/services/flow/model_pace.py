"""How many calls of one model a server takes now, as its answers teach; a state machine without a
clock of its own.

More calls at a time by one after each round of answers, fewer by a tenth after a refusal; and where
a server refuses a call although nothing else is in flight, one call now and then that finds out
when it takes more.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from minions.contracts.flow import CallHistory
from minions.contracts.model_endpoints import Allowance, RateLimits

if TYPE_CHECKING:
    from minions.engine.services.flow.call_interval import CallInterval

_LONGEST_LEARNED_S: Final = 60.0
"""A header may speak of a day's limit; then the next refusal says how long to wait."""
_LONGEST_HOLD_S: Final = 86_400.0
_KEPT: Final = 0.9
"""The part of the calls in flight that remains after a refusal."""
_LONGEST_DOUBT: Final = 3
"""How often the rounds double after which one more than a known limit is tried."""
_ROUNDS_OF_HOLD: Final = 4
"""How many times as long as a refusal closes the server it is left before one more is tried."""
_GAPS_S: Final = (0.05, 0.5)
"""Bounds of the first pause between two calls that find out whether the server takes more; within
them it is as long as an answer takes."""
_GAP_PART: Final = 1 / 16
"""Later pauses, as a part of the time since the server was last known to take calls: what a pause
is too long is little beside what was waited for."""
_LONGEST_GAP_S: Final = 30.0
_LONGEST_OWN_GAP_S: Final = 2.0
_EARLY: Final = 0.03
"""How much earlier than expected a server is asked whose periods are known, as a part of them."""
_GAP_GROWTH: Final = 1.5
"""By what the time grows after which one more than a known limit is tried, where the server did
not say when."""
_ALIKE: Final = 1.3
"""Two periods are alike where one is at most so many times as long."""
_OUTNUMBERED: Final = 2
"""Answers for each refusal that speak against what a refusal said."""
_ENOUGH_ANSWERS: Final = 4
"""Answers to other calls without which a refusal says nothing of the call."""
_HARDLY: Final = 0.003
"""A smaller chance that a call was refused so often, as others fare, is none."""
_COMPANY_S: Final = 90.0
"""Seconds for which a server may still count calls: a minute's window, and some more."""
_PATIENCE_S: Final = (75.0, 30.0)
"""Seconds for which refusals of everything cost no call an attempt, of a server that answered a
short time before and of another one."""
_SURELY: Final = 3
"""How many times as long as a refusal takes a call is on its way that is not refused."""
_LONGEST_SPREAD_S: Final = 1.0
"""By how much a server is asked later than it said, at most: not all clients come at once."""
_PHASE: Final = 0.618
"""Spreads the moments, between two answers, at which one more call is tried."""


class PaceTicket(Struct, eq=False):
    """A call of a model in flight."""

    history: CallHistory
    begun_at: float
    number: int
    tokens: int
    beside: int
    """Calls in flight when it began."""
    answers: int
    """Calls that were answered until then."""
    is_beyond: bool
    """Whether it is one more than the server was known to take."""
    is_trial: bool
    """Whether it finds out if others may follow."""


class _AllowanceLeft(Struct):
    """What is left of an allowance, and until when that counts."""

    left: float
    at: float
    until: float
    per_s: float | None

    def free_at(self, now: float, amount: int) -> float:
        """When that amount is allowed, as far as was learned."""
        missing = max(1, amount) - self.left
        if now >= self.until or missing <= 0:
            return now
        return self.until if not self.per_s else min(self.until, self.at + missing / self.per_s)


class ModelPace:
    """What is known of one model at one server. The time is handed to each method."""

    def __init__(self) -> None:
        """Nothing is in flight, nothing was learned: every call may begin."""
        self.in_flight = 0
        self.answered_at = -math.inf
        """When a call was last answered."""
        self.answers = 0
        """Calls that were answered so far."""
        self.refusals = 0
        """Refusals so far of calls that were not known to be refused for a reason of their own."""
        self._number = 0
        self._width: int | None = None
        """Calls that may be in flight; None: any number."""
        self._full_width = 0
        """The most that were in flight when it refused one: with more the width is forgotten."""
        self._ceiling: int | None = None
        """The most that it was seen to take at a time; None: not known."""
        self._doubt = 0
        """How often in a row one more than that was refused."""
        self._proven = 0
        """The most that were in flight when an answer came."""
        self._latency_s: float | None = None
        self._refused_s: float | None = None
        """How long a refusal takes; None: not known."""
        self._probe: PaceTicket | None = None
        """The call that finds out, in a pause, whether the server takes calls again."""
        self._phase = 0.0
        self._beyond_at = -math.inf
        """When one call more than the server was known to take may begin."""
        self._beyond_after_s = 0.0
        """Seconds for which it is not tried after another call began."""
        self._beyond_latest = -math.inf
        """When it is tried though others began just before."""
        self._beyond: PaceTicket | None = None
        """That call, while it is in flight."""
        self._in_row = 0
        """How often one such call was refused since one was taken."""
        self._interval: CallInterval | None = None
        """How far apart it takes calls; None: it is not known to limit them over time."""
        self._held_until = -math.inf
        self._is_said = False
        """Whether the server said for how long."""
        self._refused_number = 0
        """The newest call when one was refused last: those up to it were sent without knowing."""
        self._refusals = 0
        """Refusals since it last took a call that was sent afterwards."""
        self._spoken_against = 0
        """Answers since then to calls that were under way."""
        self._has_trial = False
        """Whether a call is on its way that finds out if the server takes calls after all."""
        self._silent_since: float | None = None
        """When it refused a call first since its last answer; None: it did not."""
        self._refused_at = -math.inf
        self._in_vain = 0
        """Calls for which patience with this server was in vain."""
        self._paused_since: float | None = None
        """Since when nothing is taken, with nothing in flight; None: it takes calls."""
        self._period_begun = -math.inf
        self._period_s: float | None = None
        """How long two periods in a row were, from one pause to the next; None: not known."""
        self._last_period_s: float | None = None
        self._all_taken = 0
        """Calls that began, without those that were refused."""
        self._taken = self._last_taken = 0
        """Calls that were taken in this period, and in the one before."""
        self._newest: CallHistory | None = None
        """The call that began last."""
        self._newest_at = self._other_at = -math.inf
        """When it began last, and when another one did."""
        self._requests: _AllowanceLeft | None = None
        self._tokens: _AllowanceLeft | None = None
        self._tokens_in_flight = 0

    @property
    def counts_tokens(self) -> bool:
        """Whether the tokens of a call matter."""
        return self._tokens is not None

    def held_s(self, now: float) -> float:
        """Seconds for which nothing is sent, from now on."""
        return max(0.0, self._held_until - now)

    def is_idle(self, now: float) -> bool:
        """Whether little would be lost if it were forgotten."""
        return self.in_flight == 0 and now >= self._held_until

    def free_at(self, now: float, tokens: int) -> float:
        """When a call may begin: `now`, a later time, or infinity: when another one has ended."""
        if self._width is not None and self.in_flight >= self._width:
            free = self._free_without_answer(now)
            if free > now:
                return free
        if now < self._held_until:
            return now if self._may_try() else self._held_until
        free = now
        if self._requests is not None:
            free = max(free, self._requests.free_at(now, 1))
        if self._tokens is not None:
            free = max(free, self._tokens.free_at(now, tokens))
        return free

    @property
    def _sure_s(self) -> float:
        return _SURELY * (self._refused_s or 0.0)

    def _free_without_answer(self, now: float) -> float:
        """When one call more may begin, though as many are in flight as may be; infinity: never."""
        if self._interval is not None:
            return self._interval.free_at(now, self._sure_s)
        if self._paused_since is None:
            if self._beyond is not None:
                return self._free_beyond(self._beyond, now)
            is_at_ceiling = self._width == self._ceiling == self.in_flight
            return max(now, self._beyond_at) if is_at_ceiling else math.inf
        if self._probe is None or self._refused_s is None:
            return math.inf
        sure_at = self._probe.begun_at + self._sure_s
        if now < sure_at:
            return sure_at
        self._take_again(self._probe)  # it was not refused, so it is taken
        assert self._width is not None  # noqa: S101  # it is narrow in a pause
        return now if self.in_flight < self._width else math.inf

    def _free_beyond(self, ticket: PaceTicket, now: float) -> float:
        """When another call may follow one that is one more than the server was known to take."""
        from minions.engine.services.flow.call_interval import CallInterval

        sure_at = ticket.begun_at + self._sure_s
        if now < sure_at:
            return sure_at
        if self.answered_at >= ticket.begun_at:
            self._beyond = None  # it may have the place of the one that was answered
            self._try_beyond(now)
            return self._beyond_at
        # It is taken although as many are in flight as were refused: time is what was missing.
        taken = self._number - self._refused_number
        self._interval = CallInterval(self._refused_at, taken, ticket.begun_at)
        self._take_again(ticket)
        self._beyond, self._in_row = None, 0
        return now

    def _may_try(self) -> bool:
        """Whether so many answers came since the refusal that one call may find out."""
        if self._has_trial or not self._refusals:
            return False
        # One more than is known to be taken was refused: that is the reason.
        needed = 1 if self._doubt else _OUTNUMBERED * self._refusals
        return self._spoken_against >= needed

    def begin(self, now: float, tokens: int, history: CallHistory) -> PaceTicket:
        """Let in a call that may begin."""
        if now - self._newest_at > _COMPANY_S:
            self._interval = None
        if history is not self._newest:
            self._newest, self._other_at = history, self._newest_at
        self._newest_at = now
        self.in_flight += 1
        self._number += 1
        self._taken += 1
        self._all_taken += 1
        self._tokens_in_flight += tokens
        if self._requests is not None:
            self._requests.left -= 1
        if self._tokens is not None:
            self._tokens.left -= tokens
        is_trial = now < self._held_until
        self._has_trial = self._has_trial or is_trial
        is_beyond = self._ceiling is not None and self.in_flight > self._ceiling
        if self._interval is not None:
            self._interval.begin(now)
            is_beyond = False
        if self._period_begun == -math.inf:
            self._period_begun = now
        ticket = PaceTicket(
            history,
            now,
            self._number,
            tokens,
            self.in_flight - 1,
            self.answers,
            is_beyond,
            is_trial,
        )
        if is_beyond:  # one at a time
            self._beyond, self._beyond_at = ticket, math.inf
        else:  # which has taken what there was
            after = min(now + self._beyond_after_s, self._beyond_latest)
            self._beyond_at = max(self._beyond_at, after)
        if self._paused_since is not None:
            self._probe = ticket
        return ticket

    @property
    def is_refusing(self) -> bool:
        """Whether it is not known to take calls again since it refused one."""
        is_late = self._interval is not None and self._interval.is_late
        return is_late or self._paused_since is not None or (self._refusals > 0 and self._is_said)

    def is_own_doing(self, ticket: PaceTicket, now: float) -> bool:
        """Whether the refusal of a call may come from other calls of ours, which are in flight or
        began a short time ago, and not for too long already.
        """
        other = self._other_at if self._newest is ticket.history else self._newest_at
        if not self.in_flight and now - other > _COMPANY_S:
            return False
        since = now if self._silent_since is None else self._silent_since
        was_there = self.answered_at >= since - _COMPANY_S
        if now - since <= _PATIENCE_S[0 if was_there else 1] / 2**self._in_vain:
            return True
        self._in_vain = min(self._in_vain + (ticket.history.failures > 1), 10)
        return False

    def refused_in_row(self, history: CallHistory) -> int:
        """How often it refused the call since it answered any."""
        return history.in_row if history.answered == self.answers else 0

    def judge(self, history: CallHistory) -> bool:
        """Whether a call that was refused is refused for a reason of its own: others fared so much
        better since it was first that chance does not explain it.
        """
        history.failures += 1
        self._all_taken -= 1
        if history.failures == 1:
            history.refusals = self.refusals
            # Answers to calls that are under way say nothing: they were taken before.
            history.answers = self.answers + self.in_flight
        history.in_row = history.in_row + 1 if history.answered == self.answers else 1
        history.answered = self.answers
        if self._all_taken > history.taken:
            history.contrasts += 1
        history.taken = self._all_taken
        answers = self.answers - history.answers
        refusals = self.refusals - history.refusals  # its own are not among them
        chance = (refusals + 1) / (refusals + max(0, answers) + 2)
        is_known = answers >= _ENOUGH_ANSWERS
        history.is_alone = is_known and chance**history.contrasts < _HARDLY
        if not history.is_alone:
            self.refusals += 1
            history.refusals += 1
        return history.is_alone

    def leave_out(self, ticket: PaceTicket) -> None:
        """A call was refused for a reason of its own."""
        if self._interval is not None:
            self._interval.leave_out(ticket.begun_at)

    # --- how calls end ---------------------------------------------------------------------------

    def leave(self, ticket: PaceTicket, now: float) -> None:
        """A call is no longer in flight; to be called first, however it ended."""
        self.in_flight -= 1
        self._tokens_in_flight -= ticket.tokens
        if ticket.is_trial:
            self._has_trial = False
        if ticket is self._probe:
            self._probe = None
        if ticket is self._beyond:
            self._beyond = None
            self._try_beyond(now)

    def answered(self, ticket: PaceTicket, now: float) -> None:
        """It took the call."""
        self.answered_at = now
        self.answers += 1
        self._silent_since = None
        if ticket.history.failures:
            self._in_vain = 0
        took_s = now - ticket.begun_at
        self._latency_s = took_s if self._latency_s is None else self._latency_s * 0.8 + took_s / 5
        self._proven = max(self._proven, self.in_flight + 1)
        if ticket.number <= self._refused_number:
            self._spoken_against += 1
        else:
            self._take_again(ticket)
        if self._interval is not None:
            return
        if ticket.is_beyond:
            self._ceiling, self._doubt, self._in_row = None, 0, 0
        self._widen()

    def _take_again(self, ticket: PaceTicket) -> None:
        """It took a call that was sent after the newest refusal: what that said is over."""
        self._refusals = self._spoken_against = 0
        self._is_said = False
        if ticket.is_trial:
            self._held_until = -math.inf
        if self._paused_since is None:
            if self._ceiling is not None:
                self._proven = min(self._proven, self._ceiling)
            return
        self._paused_since = self._probe = None
        self._held_until = -math.inf
        length_s = ticket.begun_at - self._period_begun
        last_s = self._last_period_s
        is_alike = last_s is not None and length_s / _ALIKE <= last_s <= length_s * _ALIKE
        self._period_s = length_s if is_alike else None
        self._last_period_s = length_s
        self._last_taken, self._taken = self._taken - 1, 1
        self._period_begun = ticket.begun_at
        if self._width is not None:  # what was refused was not too much at a time
            self._width = self._ceiling = max(self._width, self._proven)
            self._try_beyond(ticket.begun_at)

    def _widen(self) -> None:
        """One more at a time with each answer, up to what it was known to take."""
        if self._width is None or (self._ceiling is not None and self._width >= self._ceiling):
            return
        self._width += 1
        if self._width > self._full_width:
            self._width = self._ceiling = None
            self._doubt = 0

    def _try_beyond(self, now: float) -> None:
        """Let one call more than it was known to take begin in a while: at another moment each
        time, and later each time that was in vain.
        """
        self._phase = (self._phase + _PHASE) % 1
        held_s = self._held_until - now
        if held_s > 0:
            round_s = max(self._latency_s or _GAPS_S[1], _ROUNDS_OF_HOLD * held_s)
            self._beyond_after_s = held_s / 2
        else:
            held_s, round_s = 0.0, self._latency_s or _GAPS_S[1]
            self._beyond_after_s = _GAPS_S[0] * _GAP_GROWTH ** min(self._in_row, 40)
        wait_s = round_s * (0.25 + self._phase) * 2**self._doubt
        if not self._in_row or not held_s:
            wait_s = min(wait_s, 0.0 if held_s else self._beyond_after_s)
        self._beyond_at = now + held_s + wait_s
        self._beyond_latest = self._beyond_at + round_s

    def refused(
        self, ticket: PaceTicket, now: float, retry_after_s: float | None, random: float
    ) -> None:
        """It had enough requests (429)."""
        self._taken -= 1
        if self._silent_since is None or now - self._refused_at > _COMPANY_S:
            self._silent_since = now
        self._refused_at = now
        took_s = now - ticket.begun_at
        self._refused_s = took_s if self._refused_s is None else max(self._refused_s * 0.8, took_s)
        self._refusals += 1
        is_first = ticket.number > self._refused_number  # else it was under way with one
        if self._interval is not None and self._interval.refused(
            ticket.begun_at, now, is_said=retry_after_s is not None
        ):
            self._refused_number = self._number
            assert self._width is not None  # noqa: S101  # an interval is known beside a width
            self._width = min(self._width, max(1, self._beside(ticket)))
            if retry_after_s is not None:
                self._is_said = True
                self.hold_said(now, retry_after_s, random)
            return
        self._interval = None
        self._in_row += ticket.is_beyond
        self._narrow(ticket, is_first=is_first)
        self._refused_number = self._number
        self._spoken_against = 0
        if not self.in_flight and self._paused_since is None:
            self._paused_since = ticket.begun_at
        if retry_after_s is not None:
            self._is_said = True
            self.hold_said(now, retry_after_s, random)
        elif not self.in_flight:
            self.hold(now, self._pause_s(now, random))
        self._try_beyond(now)

    def _beside(self, ticket: PaceTicket) -> int:
        """How many it took while it refused that one: those in flight now, and of those that were
        when it began also the ones that were answered meanwhile.
        """
        were = min(ticket.beside, self.in_flight + self.answers - ticket.answers)
        return max(self.in_flight, were)

    def _narrow(self, ticket: PaceTicket, *, is_first: bool) -> None:
        beside = self._beside(ticket)
        together = beside + 1
        if self._width is None:
            self._full_width = max(together, self._full_width)
        kept = max(1, min(beside, math.ceil(together * _KEPT)))
        width = kept if self._width is None else min(self._width, kept)
        if is_first:
            is_same = ticket.is_beyond and self._ceiling == beside
            self._doubt = min(self._doubt + 1, _LONGEST_DOUBT) if is_same else 0
            self._ceiling = None
        ceiling = max(1, beside)
        self._ceiling = ceiling if self._ceiling is None else min(self._ceiling, ceiling)
        self._width = width

    def _pause_s(self, now: float, random: float) -> float:
        """Until it is tried again whether the server takes calls."""
        assert self._paused_since is not None  # noqa: S101  # it pauses
        if self._period_s is not None and self._taken * 2 > self._last_taken:
            expected = self._period_begun + self._period_s * (1 - _EARLY)
            if expected > now:
                return expected - now
            late_s = now - expected
            return max(_GAPS_S[0], self._period_s * _EARLY, late_s * _GAP_PART)
        least, most = _GAPS_S
        first = min(most, max(least, self._latency_s or most))
        elapsed = now - self._paused_since
        longest_s = _LONGEST_OWN_GAP_S if self._in_vain else _LONGEST_GAP_S
        return min(longest_s, max(first, elapsed * _GAP_PART)) * (0.75 + random / 2)

    def gap_s(self, failures: int, random: float) -> float:
        """Seconds that a refused call lets others go first, while the server takes calls."""
        least, most = _GAPS_S
        first = min(most, max(least, self._latency_s or most))
        doubled: float = first * 2.0 ** min(failures - 1, 20)
        return min(_LONGEST_OWN_GAP_S, doubled) * (0.5 + random)

    def hold_said(self, now: float, seconds: float, random: float) -> None:
        """Send nothing for the time that the server asked for, and a little longer."""
        self.hold(now, seconds + random * min(seconds / 10, _LONGEST_SPREAD_S))

    def hold(self, now: float, seconds: float) -> None:
        """Send nothing for that time."""
        self._held_until = max(self._held_until, now + min(seconds, _LONGEST_HOLD_S))

    def learn(self, now: float, said: RateLimits) -> None:
        """What the server still takes, less what is under way: it may not have counted that yet."""
        if said.requests is not None:
            self._requests = _learn_allowance(now, said.requests, self.in_flight)
        if said.tokens is not None:
            self._tokens = _learn_allowance(now, said.tokens, self._tokens_in_flight)

    def forget_headers(self) -> None:
        """A `Retry-After` says more than what was left of an allowance."""
        self._requests = self._tokens = None


def _learn_allowance(now: float, allowance: Allowance, under_way: int) -> _AllowanceLeft:
    reset_s = min(allowance.reset_s, _LONGEST_LEARNED_S)
    return _AllowanceLeft(allowance.left - under_way, now, now + reset_s, allowance.per_s)
