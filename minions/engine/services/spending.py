"""What model calls use under one set of limits: reserved before a call, settled after it.

Several runs may share one `Spending`: the items of a loop, recipes within a run, the runs of a
batch, a session or a day. A call starts only if what it may use is left beside what the calls in
flight may still use; otherwise it waits until one of them has ended. With no call in flight one may
start as long as anything is left, so that a limit is exceeded by one call at most.

What a call may use is its prompt, and `max_output_tokens`; without these the longest answer so far,
and before the first answer `ASSUMED_OUTPUT_TOKENS`. How many tokens a character makes is learned
from the answers; before the first one, a character counts as a token.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from minions.contracts.context import Limits
from minions.contracts.messages import NO_USAGE, TokenUsage
from minions.engine.services.event_loop import LoopLock, Waiter

ASSUMED_OUTPUT_TOKENS: Final = 16_384
"""Tokens that an answer may have, as long as nothing is known about the answers."""
_ASSUMED_INPUT_TOKENS: Final = 1000
"""Tokens that a prompt has at least, as long as nothing is known about the prompts."""
_OVERHEAD_TOKENS: Final = 64
"""Tokens of a prompt beside its text, such as the marks of messages."""
_MARGIN: Final = 1.25
"""By which a call may be larger than the largest one so far."""
_ROUNDING: Final = 1e-12
"""US dollars by which sums of costs may differ."""


class CallEstimate(Struct, frozen=True, kw_only=True):
    """What one model call may use at most, as far as it is known before the call."""

    characters: int
    """Characters of the prompt."""
    max_output_tokens: int | None
    """What the request allows; None: the server decides."""
    cost_usd: Callable[[TokenUsage], float | None]
    """The price of a usage in US dollars; None: not known."""
    run_id: str = ""
    """The run that makes the call."""


class CallHold:
    """A call in flight, with what is held for it."""

    __slots__ = ("amount", "estimate")

    def __init__(self, estimate: CallEstimate) -> None:
        self.estimate = estimate
        self.amount: Held | None = None
        """None: nobody needed to know it yet."""


class Held(NamedTuple):
    """What calls in flight may still use: tokens, and US dollars."""

    tokens: int
    cost_usd: float

    def plus(self, other: Held, sign: int = 1) -> Held:
        """Both together; with `sign=-1` what this one has more."""
        return Held(self.tokens + sign * other.tokens, self.cost_usd + sign * other.cost_usd)


NOTHING_HELD: Final = Held(0, 0.0)


class EarlierUsage:
    """What earlier executions of a run used, as far as it was not replayed yet.

    It counts against the limits from the beginning: a resumed run keeps what it spent.
    """

    def __init__(self, calls: Iterable[tuple[str, TokenUsage]] = ()) -> None:
        """Take the recorded calls: the key and the usage of each."""
        self.tokens = 0
        self.cost_usd = 0.0
        self.unpriced = 0
        """Calls that used tokens and whose cost is not known."""
        self._output_tokens = self._cached_tokens = 0
        self._keys: set[str] = set()
        for key, usage in calls:
            self._keys.add(key)
            self._count(usage, 1)

    @property
    def calls(self) -> int:
        """How many calls were not replayed yet."""
        return len(self._keys)

    @property
    def usage(self) -> TokenUsage:
        """What they used in all; nothing where they used no tokens."""
        if not self.tokens:
            return NO_USAGE
        return TokenUsage(
            input_tokens=self.tokens - self._output_tokens,
            output_tokens=self._output_tokens,
            cached_tokens=self._cached_tokens,
            cost_usd=None if self.unpriced else self.cost_usd,
        )

    def replayed(self, key: str, usage: TokenUsage) -> None:
        """Leave that call out: from now on it counts with the others."""
        if key in self._keys:
            self._keys.remove(key)
            self._count(usage, -1)

    def _count(self, usage: TokenUsage, sign: int) -> None:
        self.tokens += sign * usage.total_tokens
        self._output_tokens += sign * usage.output_tokens
        self._cached_tokens += sign * usage.cached_tokens
        self.cost_usd += sign * (usage.cost_usd or 0.0)
        self.unpriced += sign * (usage.cost_usd is None and usage.total_tokens > 0)


_OWN_NAMES: Final = {name: name for name in ("max_model_calls", "max_tokens", "max_cost_usd")}
_ADVICE: Final = "raise the limit to resume the run. (It is set under `limits:` or by a flag.)"


_NOTHING_EARLIER: Final = EarlierUsage()
"""Without calls it never changes."""


class Spending:
    """What was spent and what is reserved under one set of limits."""

    is_published: bool = False
    """Whether other processes are told of what is reserved."""
    calls_elsewhere: int = 0
    """Calls in flight of other processes."""
    held_elsewhere: Held = NOTHING_HELD
    """What they may still use."""

    def __init__(
        self,
        limits: Callable[[], Limits],
        *,
        whose: str = "run's",
        earlier: EarlierUsage | None = None,
        names: Mapping[str, str] | None = None,
        advice: str = _ADVICE,
    ) -> None:
        """Start with nothing spent.

        Args:
            limits: Called at each check: an application may change the limits meanwhile.
            whose: Whose limits these are, for messages: `run's`, `recipe's`, `batch's` …
            earlier: What earlier executions used; None: nothing.
            names: What the limits are called where they are set; None: as in `Limits`.
            advice: What a person can do at the limit.
        """
        self.limits = limits
        self.whose = whose
        self.names: Mapping[str, str] = _OWN_NAMES if names is None else {**_OWN_NAMES, **names}
        self.advice = advice
        self.usage = NO_USAGE
        self.calls = 0
        """Model calls that have begun or were replayed, each once whatever its attempts."""
        self.earlier = earlier or _NOTHING_EARLIER
        self.reached: str | None = None
        """The limit that was reached, by its name; it stays so."""
        self._in_flight = 0
        self._held = NOTHING_HELD
        """What the calls in flight may still use, without the one that is not sized."""
        self._unsized: CallHold | None = None
        """The call that began alone; it is sized when another one wants to begin beside it."""
        self._longest_output = 0
        self._tokens_per_character: float | None = None
        self._dollars_per_token = 0.0
        """The most that an answer cost: a server may take more than the listed price."""
        # Runs of several threads may share it, each thread with an event loop of its own.
        self.guard = threading.RLock()
        """Of all numbers here; never held while something is waited for."""
        self._turn = LoopLock()
        self._waits_for_room: Waiter | None = None
        """The call whose turn it is, while others hold too much."""

    @property
    def is_asking(self) -> bool:
        """Whether the limit is a threshold at which a person is asked: nothing is refused."""
        return False

    @property
    def warning(self) -> str | None:
        """For a run, that a threshold is reached; None: it is not."""
        return None

    @property
    def is_limited(self) -> bool:
        """Whether any limit on model calls is set."""
        limits = self.limits()
        return not (
            limits.max_model_calls is None
            and limits.max_tokens is None
            and limits.max_cost_usd is None
        )

    def add(self, usage: TokenUsage, characters: int = 0) -> None:
        """Count what a call used.

        Args:
            characters: Of its prompt; 0: not known.
        """
        with self.guard:
            self._count(usage, characters)
            if self.reached is None:
                self.reached = self.used_up()

    def add_children(self, usage: TokenUsage) -> None:
        """Count what child runs used: their calls say nothing about the next one here."""
        with self.guard:
            self.usage += usage
            if self.reached is None:
                self.reached = self.used_up()

    def has_room_for(self, usage: TokenUsage) -> bool:
        """Whether so much is left beside what calls in flight may use."""
        with self.guard:
            held = self._held.plus(self.held_elsewhere)
            return self._fits(held.plus(Held(usage.total_tokens, usage.cost_usd or 0.0)))

    def _count(self, usage: TokenUsage, characters: int = 0) -> None:
        self.usage += usage
        self._longest_output = max(self._longest_output, usage.output_tokens)
        if characters and usage.input_tokens:
            ratio = (usage.input_tokens - _OVERHEAD_TOKENS) / characters
            self._tokens_per_character = max(self._tokens_per_character or 0.0, ratio)
        if usage.cost_usd and usage.total_tokens:
            each = usage.cost_usd / usage.total_tokens
            self._dollars_per_token = max(self._dollars_per_token, each)

    def replay(self, key: str, usage: TokenUsage) -> None:
        """Count a recorded call that is replayed now.

        What is still to be replayed reaches no limit here: else the steps whose answers are
        recorded would not start, and the answers would be lost.
        """
        with self.guard:
            self.calls += 1
            self.earlier.replayed(key, usage)
            self._count(usage)
            if self.reached is None:
                cost = _known_cost(self.usage)
                self.reached = _reached_by(self.limits(), self.usage.total_tokens, cost)

    def used_up(self) -> str | None:
        """The limit that is used up; None: none is. An unknown cost uses up any limit on cost."""
        limits = self.limits()
        if limits.max_tokens is None and limits.max_cost_usd is None:
            return None
        cost = 0.0 if limits.max_cost_usd is None else self.cost_usd
        return _reached_by(limits, self.tokens, cost)

    @property
    def tokens(self) -> int:
        """Tokens that were used, with those of calls that are still to be replayed."""
        return self.usage.total_tokens + self.earlier.tokens

    @property
    def cost_usd(self) -> float | None:
        """US dollars that were spent, with those of calls that are still to be replayed.

        None: the cost of a call is not known.
        """
        cost = _known_cost(self.usage)
        if cost is None or self.earlier.unpriced:
            return None
        return cost + self.earlier.cost_usd

    @property
    def overrun(self) -> str | None:
        """How far a limit was exceeded, for a person; None: none was."""
        limits = self.limits()
        if limits.max_tokens is not None and self.tokens > limits.max_tokens:
            name = self.names["max_tokens"]
            return f"{self.tokens} tokens were used, and {name}={limits.max_tokens}"
        most = limits.max_cost_usd
        cost = None if most is None else self.cost_usd
        if most is None or cost is None or cost <= most + _ROUNDING:
            return None
        return f"${cost:.6g} was spent, and {self.names['max_cost_usd']}={most:g}"

    async def reserve(self, estimate: CallEstimate) -> CallHold | None:
        """Hold what the call may use, as soon as there is room for it.

        Returns:
            What is held; the caller adds what the call used, and then releases it. None: a limit is
            reached, and no call may begin.
        """
        async with self._turn:  # in the order of arrival, so that none is overtaken for ever
            while True:
                with self.guard:
                    self._waits_for_room = None
                    if not self._may_begin():
                        return None
                    hold = CallHold(estimate)
                    if self._has_room(hold):
                        self._begin(hold)
                        return hold
                    self._waits_for_room = waiter = Waiter()
                await self._wait_for_room(waiter)

    async def publish(self) -> None:
        """Tell other processes what is spent and reserved, where `is_published`."""

    async def _wait_for_room(self, waiter: Waiter) -> None:
        """Wait until calls in flight may use less than before."""
        await waiter.wait()

    def release(self, hold: CallHold) -> None:
        """Give back what was held for a call that has ended; who waits looks again."""
        with self.guard:
            self._in_flight -= 1
            if hold.amount is None:
                self._unsized = None
            else:
                self._held = self._held.plus(hold.amount, -1)
            if self._waits_for_room is not None:
                self._waits_for_room.wake()

    def _begin(self, hold: CallHold) -> None:
        self.calls += 1
        self._in_flight += 1
        if hold.amount is None:
            self._unsized = hold
        else:
            self._held = self._held.plus(hold.amount)

    def _may_begin(self) -> bool:
        """Whether no limit is reached; the limit on calls is reached by the next one."""
        most = self.limits().max_model_calls
        begun = self.calls + self.earlier.calls
        if self.reached is None:
            self.reached = self.used_up()
        if self.reached is None and most is not None and begun >= most:
            self.reached = "max_model_calls"
        return self.reached is None

    def _at_most(self, estimate: CallEstimate) -> Held:
        """What the call may use, as far as it is known now."""
        output = estimate.max_output_tokens
        if output is None and self._longest_output:
            output = int(self._longest_output * _MARGIN)
        usage = TokenUsage(
            input_tokens=self._input_tokens(estimate.characters),
            output_tokens=ASSUMED_OUTPUT_TOKENS if output is None else output,
        )
        is_priced = self.limits().max_cost_usd is not None
        listed = (estimate.cost_usd(usage) if is_priced else None) or 0.0
        cost = max(listed, usage.total_tokens * self._dollars_per_token)
        return Held(usage.total_tokens, cost)

    def _input_tokens(self, characters: int) -> int:
        """Tokens that a prompt may have."""
        ratio = self._tokens_per_character
        if ratio is None:
            return max(characters, _ASSUMED_INPUT_TOKENS)
        return _OVERHEAD_TOKENS + int(characters * ratio * _MARGIN)

    def _has_room(self, hold: CallHold) -> bool:
        """Whether there is room beside the calls in flight. One that is alone is not sized."""
        if not self._in_flight and not self.calls_elsewhere:
            return True
        if (first := self._unsized) is not None:
            self._unsized = None
            first.amount = self._at_most(first.estimate)
            self._held = self._held.plus(first.amount)
        hold.amount = self._at_most(hold.estimate)
        held = self._held.plus(hold.amount)
        return self._fits(held.plus(self.held_elsewhere) if self.calls_elsewhere else held)

    def _fits(self, held: Held) -> bool:
        """Whether that is left."""
        limits = self.limits()
        if limits.max_tokens is not None and self.tokens + held.tokens > limits.max_tokens:
            return False
        most = limits.max_cost_usd
        return most is None or (self.cost_usd or 0.0) + held.cost_usd <= most + _ROUNDING


def _reached_by(limits: Limits, tokens: int, cost: float | None) -> str | None:
    """The limit that is used up by so much; None: none is."""
    if limits.max_tokens is not None and tokens >= limits.max_tokens:
        return "max_tokens"
    if limits.max_cost_usd is not None:
        return "max_cost_usd" if cost is None or cost >= limits.max_cost_usd else None
    return None


def _known_cost(usage: TokenUsage) -> float | None:
    """US dollars; of no tokens 0, though their price is not known. None: not known."""
    return usage.cost_usd if usage.cost_usd is not None or usage.total_tokens else 0.0
