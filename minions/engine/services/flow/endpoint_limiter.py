"""Whether a call to one server may begin, as a state machine without a clock of its own.

The configured limits of the server, its circuit, its window of rates and what was learned of each
of its models (`model_pace`) come together here, and the line of calls that wait for it. Who waits
how long is the task of `flow_control`.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Collection, Iterator
from enum import Enum
from typing import Final, TypeVar

from msgspec import Struct

from minions.contracts.calls import ModelCallResponse, ModelFailure
from minions.contracts.flow import CallAsk, CircuitState, Priority
from minions.contracts.model_endpoints import EndpointLimits, RateLimits
from minions.contracts.retry_config import CircuitPolicy
from minions.data.errors import UNREACHABLE
from minions.engine.services.flow.model_pace import ModelPace, PaceTicket

_GRAIN: Final = 600
"""Parts of the window in which what happens is added up: it bounds the memory of a window."""


class RateWindow:
    """At most so much in any window of time. The time is handed to each method; it never goes back.

    What happens within a 600th of the window counts as if it had happened at the end of that part:
    the limit holds exactly, and what is allowed comes a tenth of a second later at most.
    """

    def __init__(self, most: int, window_s: float = 60.0) -> None:
        """Start with nothing used.

        Args:
            most: How much in any window, at least 1.
        """
        self._most = most
        self._window_s = window_s
        self._grain_s = window_s / _GRAIN
        self._used: deque[list[float]] = deque()
        """Pairs of the end of a part and what was used in it, oldest first."""
        self._sum = 0.0

    def used(self, now: float) -> float:
        """How much was used in the window that ends now."""
        self._forget(now)
        return self._sum

    def free_at(self, now: float, amount: int) -> float:
        """When that amount may be used: `now`, or a later time.

        An amount above the limit is allowed once nothing else is in the window.
        """
        self._forget(now)
        needed = self._sum + min(amount, self._most) - self._most
        if needed <= 0:
            return now
        for end, used in self._used:
            needed -= used
            if needed <= 0:
                return end + self._window_s
        return now + self._window_s

    def use(self, now: float, amount: int) -> float:
        """Note that it is used; returns the part of the window, for `settle`."""
        end = self._end_of_part(now)
        if not self._used or self._used[-1][0] < end:
            self._used.append([end, 0.0])
        self._used[-1][1] += amount
        self._sum += amount
        return self._used[-1][0]

    def settle(self, part: float, correction: int) -> None:
        """Correct what was used in a part; a part that is forgotten stays so."""
        for each in reversed(self._used):
            if each[0] == part:
                correction = max(correction, -int(each[1]))
                each[1] += correction
                self._sum += correction
                return

    def _end_of_part(self, now: float) -> float:
        return (math.floor(now / self._grain_s) + 1) * self._grain_s

    def _forget(self, now: float) -> None:
        while self._used and self._used[0][0] + self._window_s <= now:
            self._sum -= self._used.popleft()[1]
        if not self._used:
            self._sum = 0.0


class CircuitConfig(Struct, frozen=True, kw_only=True):
    """When a circuit opens, and for how long. Times are in seconds."""

    failures: int = 10
    """Failures in a row that open it: no answer, a broken connection, a status of 500 or above."""
    first_s: float = 5.0
    """How long it stays open; twice as long after each probe that failed."""
    longest_s: float = 60.0


class CircuitBreaker:
    """Closed, open, or half open with a single probe. The time is handed to each method.

    Only failures of the server count. Refusals (4xx) and rate limits show that it answers: they
    close the circuit as a success does.
    """

    def __init__(self, config: CircuitConfig) -> None:
        """A closed circuit."""
        self._config = config
        self._failures = 0
        self._open_until: float | None = None
        """When a probe may be sent; None: the circuit is closed."""
        self._open_s = config.first_s
        self.is_probed = False
        """Whether a probe is on its way."""

    def state(self, now: float) -> CircuitState:
        """The state at that time."""
        if self._open_until is None:
            return CircuitState.CLOSED
        return CircuitState.OPEN if now < self._open_until else CircuitState.HALF_OPEN

    def open_for_s(self, now: float) -> float:
        """Seconds until a probe may be sent; 0: one may be, or none is needed."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - now)

    @property
    def failures(self) -> int:
        """Failures of the server since its last answer."""
        return self._failures

    def may_begin(self, now: float) -> bool:
        """Whether a call may be sent."""
        if self._open_until is None:
            return True
        return now >= self._open_until and not self.is_probed

    def begin(self) -> bool:
        """A call that may begin is sent; returns whether it is the probe."""
        if self._open_until is None:
            return False
        self.is_probed = True
        return True

    def answered(self) -> None:
        """The server answered a call, whatever it said: the circuit closes."""
        self._failures = 0
        self._open_until = None
        self._open_s = self._config.first_s
        self.is_probed = False

    def failed(self, now: float, *, is_probe: bool) -> None:
        """A call failed for a reason that is the server's."""
        self._failures += 1
        if is_probe:
            self._open_s = min(self._open_s * 2, self._config.longest_s)
            self._open(now)
        elif self._open_until is None and self._failures >= self._config.failures:
            self._open(now)

    def abandoned(self, *, is_probe: bool) -> None:
        """Nothing is known of the outcome of a call; another one may be the probe."""
        if is_probe:
            self.is_probed = False

    def _open(self, now: float) -> None:
        self._open_until = now + self._open_s
        self.is_probed = False


_LONGEST_HOLD_S: Final = 86_400.0
_LONGEST_PATIENCE_S: Final = 600.0
_CIRCUIT_PATIENCE_S: Final = 10.0
"""Seconds that a call waits for a server that is down, where its step has no limit of time."""
_AGAIN_S: Final = (1.0, 30.0)
"""Bounds of the pauses of a call that waits for a server whose circuit is not open yet."""
_MOST_MODELS: Final = 64
"""Models of a server that are remembered while nothing is in flight there."""


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
    may_pass: bool = True
    """Whether the same call may succeed later."""

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
    tokens = outcome.usage.input_tokens + outcome.usage.output_tokens or None
    if isinstance(outcome, ModelCallResponse):
        return CallEnd(judgement=Judgement.ANSWERED, rate_limits=outcome.rate_limits, tokens=tokens)
    return CallEnd(
        judgement=_judge_failure(outcome),
        retry_after_s=outcome.retry_after_s,
        rate_limits=outcome.rate_limits,
        tokens=tokens,
        may_pass=outcome.is_retryable and tokens is None,
    )


def _judge_failure(failure: ModelFailure) -> Judgement:
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

    ask: CallAsk
    pace: ModelPace
    place: PaceTicket
    is_probe: bool
    token_part: float
    """The part of the window of tokens in which its tokens are set aside."""


class EndpointLimiter:
    """The limits of one server and what is known of it. The time is handed to each method."""

    def __init__(self, limits: EndpointLimits, circuit: CircuitConfig) -> None:
        """Nothing is in flight, nothing was learned."""
        self.limits = EndpointLimits()
        self.circuit = CircuitBreaker(circuit)
        self.in_flight = 0
        self._requests: RateWindow | None = None
        self._tokens: RateWindow | None = None
        self._held_until = -math.inf
        self._paces: dict[str, ModelPace] = {}
        self.tighten(limits)

    def tighten(self, limits: EndpointLimits) -> None:
        """Apply further limits: of two, the stricter one counts."""
        before, self.limits = self.limits, self.limits.tightened(limits)
        now = self.limits
        if now.requests_per_minute not in (None, before.requests_per_minute):
            self._requests = RateWindow(now.requests_per_minute or 1)
        if now.tokens_per_minute not in (None, before.tokens_per_minute):
            self._tokens = RateWindow(now.tokens_per_minute or 1)

    def pace(self, model: str, now: float) -> ModelPace:
        """What is known of that model."""
        found = self._paces.get(model)
        if found is None:
            if len(self._paces) >= _MOST_MODELS:
                self._paces = {
                    name: each for name, each in self._paces.items() if not each.is_idle(now)
                }
            found = self._paces[model] = ModelPace()
        return found

    def counts_tokens(self, pace: ModelPace) -> bool:
        """Whether the tokens of a call matter."""
        return self._tokens is not None or pace.counts_tokens

    def held_s(self, now: float, pace: ModelPace | None = None) -> float:
        """Seconds for which nothing is sent to that model, from now on; None: to one of them."""
        own = self._held_until - now if self._held_until > now else 0.0
        if pace is not None:
            held = pace.held_s(now)
            return max(own, held)
        return max((own, *(each.held_s(now) for each in self._paces.values())))

    def is_idle(self, now: float) -> bool:
        """Whether nothing would be lost if it were forgotten."""
        return self.in_flight == 0 and not self.circuit.failures and not self.held_s(now)

    def words_about_waiting(self, origin: str, now: float) -> str:
        """Why calls wait before it, for a person."""
        if self.circuit.state(now) is not CircuitState.CLOSED:
            failures = self.circuit.failures
            return (
                f"Requests to {origin} wait: it failed {failures} times in a row, and is "
                "asked now and then until it answers."
            )
        most = self.limits.max_concurrency
        if most is not None and self.in_flight >= most:
            return (
                f"{most} requests to {origin} are in flight; further ones wait for their "
                "turn. Raise max_model_requests, or max_concurrency of its [providers.NAME], if "
                "the server takes more (of OpenAIModel: max_requests)."
            )
        return f"Requests to {origin} wait: its limit of requests or tokens is reached."

    def free_at(self, now: float, tokens: int) -> float:
        """When a call may begin, as far as the server is concerned, its models aside: `now`, a
        later time, or infinity: when another one has ended.

        Args:
            tokens: What it will use; 0 where tokens do not matter.
        """
        if not self.circuit.may_begin(now):
            return now + self.circuit.open_for_s(now) if self.circuit.open_for_s(now) else math.inf
        most = self.limits.max_concurrency
        if most is not None and self.in_flight >= most:
            return math.inf
        free = max(self._held_until, now)
        if self._requests is not None:
            free = max(free, self._requests.free_at(now, 1))
        if self._tokens is not None:
            free = max(free, self._tokens.free_at(now, tokens))
        return free

    def begin(self, now: float, pace: ModelPace, ask: CallAsk, tokens: int) -> Ticket:
        """Let in a call that may begin."""
        self.in_flight += 1
        part = 0.0
        if self._requests is not None:
            self._requests.use(now, 1)
        if self._tokens is not None:
            part = self._tokens.use(now, tokens)
        place = pace.begin(now, tokens, ask.history)
        return Ticket(ask, pace, place, self.circuit.begin(), part)

    def end(self, ticket: Ticket, now: float, end: CallEnd, random: float) -> float | None:
        """Note how a call ended.

        Args:
            random: In [0, 1); spreads the times at which processes call again.
        Returns:
            As `Admission.end`.
        """
        self.in_flight -= 1
        pace, place = ticket.pace, ticket.place
        pace.leave(place, now)
        if self._tokens is not None and end.tokens is not None:
            self._tokens.settle(ticket.token_part, end.tokens - place.tokens)
        if end.judgement is Judgement.UNKNOWN:
            self.circuit.abandoned(is_probe=ticket.is_probe)
            return None
        if end.judgement is Judgement.FAILED:
            self.circuit.failed(now, is_probe=ticket.is_probe)
            pace.judge(ticket.ask.history)
            if end.retry_after_s is not None:
                wait_s = min(end.retry_after_s * (1 + random / 10), _LONGEST_HOLD_S)
                self._held_until = max(self._held_until, now + wait_s)
            return self._again(ticket, now, end, random)
        self.circuit.answered()
        if end.judgement is Judgement.LIMITED:
            return self._limit_ticket(ticket, now, end, random)
        pace.answered(place, now)
        if end.retry_after_s is not None:
            pace.hold_said(now, end.retry_after_s, random)
        if end.rate_limits is not None:
            pace.learn(now, end.rate_limits)
        return None

    def _limit_ticket(
        self, ticket: Ticket, now: float, end: CallEnd, random: float
    ) -> float | None:
        pace = ticket.pace
        if pace.judge(ticket.ask.history):
            pace.leave_out(ticket.place)
            return None  # others go on, it waits by itself
        if end.retry_after_s is not None:
            pace.forget_headers()
        elif end.rate_limits is not None:
            pace.learn(now, end.rate_limits)
        pace.refused(ticket.place, now, end.retry_after_s, random)
        return self._again(ticket, now, end, random)

    # --- what is no attempt ----------------------------------------------------------------------

    def _again(self, ticket: Ticket, now: float, end: CallEnd, random: float) -> float | None:
        """As `Admission.end`, of a call that failed for a reason of the server's."""
        history, pace, ask = ticket.ask.history, ticket.pace, ticket.ask
        if history.first_failed_at is None:
            history.first_failed_at = now
        if history.is_alone or not end.may_pass:
            return None
        longest_s = _LONGEST_PATIENCE_S
        if end.judgement is Judgement.LIMITED:
            if not pace.is_own_doing(ticket.place, now):
                return None
            again_s = end.retry_after_s
            if again_s is None:
                again_s = pace.gap_s(history.failures, random) if pace.in_flight else 0.0
        elif ask.circuit is CircuitPolicy.WAIT:
            longest_s -= now - history.first_failed_at
            first_s, most_s = _AGAIN_S
            grown_s = min(most_s, first_s * 2 ** min(history.failures - 1, 20)) * (0.5 + random)
            again_s = 0.0 if self.circuit.state(now) is CircuitState.OPEN else grown_s
        elif self.circuit.state(now) is CircuitState.OPEN:
            longest_s, again_s = circuit_patience_s(ask) - (now - history.first_failed_at), 0.0
        else:
            return None
        for each_s in (ask.time_left_s, ask.longest_hold_s):
            longest_s = longest_s if each_s is None else min(longest_s, each_s)
        needed_s = max(again_s, self.held_s(now, pace), self.circuit.open_for_s(now))
        return again_s if needed_s <= longest_s else None


def circuit_patience_s(ask: CallAsk) -> float:
    """Seconds that the call waits for a server whose circuit is open, from its first look on."""
    if ask.circuit is CircuitPolicy.FAIL:
        return 0.0
    if ask.time_left_s is not None:
        return ask.time_left_s
    is_patient = ask.circuit is CircuitPolicy.WAIT
    return _LONGEST_PATIENCE_S if is_patient else _CIRCUIT_PATIENCE_S


T = TypeVar("T")

_HEAD_START_S: Final = {
    Priority.INTERACTIVE: 60.0,
    Priority.NORMAL: 50.0,
    Priority.BACKGROUND: 0.0,
}
"""How much later a call may come and still go before one of the lowest priority. So that one waits
at most that long for calls of others, however many there are."""


class Waiter:
    """A call that waits."""

    __slots__ = (
        "ask",
        "down_since",
        "is_gone",
        "is_new",
        "joined_at",
        "outcome",
        "pace",
        "signal",
        "timer",
        "timer_at",
        "tokens",
        "told_until",
    )  # fmt: skip

    def __init__(
        self, ask: CallAsk, pace: ModelPace, joined_at: float, tokens: int, *, is_new: bool
    ) -> None:
        self.ask = ask
        self.pace = pace
        self.joined_at = joined_at
        self.is_new = is_new
        """Whether no attempt at the call was made yet."""
        self.tokens = tokens
        self.told_until = 0.0
        """Until when it was told that it waits at least."""
        self.down_since: float | None = None
        """Since when it waits because the circuit is open; None: it does not."""
        self.signal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.outcome: Ticket | ModelFailure | None = None
        """What it gets; None: it still waits."""
        self.is_gone = False
        self.timer_at = 0.0
        self.timer: asyncio.Task[None] | None = None
        """Wakes the line when its head may begin; None: that is no matter of time."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that it waits on."""
        return self.signal.get_loop()

    def decide(self, outcome: Ticket | ModelFailure) -> None:
        """Give it that outcome, and wake it."""
        self.outcome = outcome
        wake(self.signal)


def wake(signal: asyncio.Future[None]) -> None:
    """Wake whoever awaits it, on its own event loop. The loop must not be closed."""
    loop = signal.get_loop()
    if loop is asyncio._get_running_loop():  # noqa: SLF001  # public by its documentation; None instead of an error
        _set(signal)
    else:
        loop.call_soon_threadsafe(_set, signal)


def _set(signal: asyncio.Future[None]) -> None:
    if not signal.done():
        signal.set_result(None)


def _by_refusals(entry: tuple[float, bool, int, Waiter]) -> tuple[bool, int, float, int]:
    """Where a server refuses calls, not always the same ones find out whether it still does: the
    reason may be their own.
    """
    rank, _, number, waiter = entry
    return waiter.is_gone, waiter.pace.refused_in_row(waiter.ask.history), rank, number


class WaitingLine:
    """By priority, then in the order of asking; who waits long enough goes before all others.

    Calls of each model have an order of their own: where one model's wait, those of others begin.
    """

    def __init__(self) -> None:
        self._heaps: dict[ModelPace, list[tuple[float, bool, int, Waiter]]] = {}
        self._count = 0
        self._added = 0
        self._by_priority = dict.fromkeys(Priority, 0)

    def __len__(self) -> int:
        """How many wait."""
        return self._count

    def __iter__(self) -> Iterator[Waiter]:
        """Those who wait, in no particular order."""
        for heap in self._heaps.values():
            for _, _, _, waiter in heap:
                if not waiter.is_gone:
                    yield waiter

    def up_to(self, priority: Priority) -> int:
        """How many of that priority or a higher one wait."""
        return sum(count for each, count in self._by_priority.items() if each <= priority)

    def add(self, waiter: Waiter) -> None:
        """Join the line."""
        asked_at = waiter.ask.history.asked_at
        rank = (waiter.joined_at if asked_at is None else asked_at) - _HEAD_START_S[
            waiter.ask.priority
        ]
        self._added += 1
        self._count += 1
        self._by_priority[waiter.ask.priority] += 1
        # A retry goes before what asked at the same time.
        entry = (rank, waiter.is_new, self._added, waiter)
        heapq.heappush(self._heaps.setdefault(waiter.pace, []), entry)

    def head(self, without: Collection[ModelPace] = ()) -> Waiter | None:
        """Who is served next, of other models than these; None: nobody waits."""
        first: tuple[float, bool, int, Waiter] | None = None
        for pace in tuple(self._heaps):
            heap = self._heaps[pace]
            while heap and heap[0][3].is_gone:
                heapq.heappop(heap)
            if not heap:
                del self._heaps[pace]
            elif pace not in without and (first is None or heap[0] < first):
                first = heap[0] if not pace.is_refusing else min(heap, key=_by_refusals)
        return None if first is None else first[3]

    def leave(self, waiter: Waiter) -> None:
        """Leave the line, from any place."""
        if waiter.is_gone:
            return
        waiter.is_gone = True
        self._count -= 1
        self._by_priority[waiter.ask.priority] -= 1
        heap = self._heaps[waiter.pace]
        if len(heap) > 2 * self._count + 16:  # most of them are gone
            heap[:] = [entry for entry in heap if not entry[3].is_gone]
            heapq.heapify(heap)
