"""Who may call which server now: the calls of all runs of a process, side by side."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from returns.result import Failure, Result, Success

from minions.contracts.calls import ModelCallResponse, ModelFailure
from minions.contracts.flow import (
    Admission,
    CallAsk,
    CircuitState,
    EndpointState,
    FlowControl,
    Priority,
)
from minions.contracts.model_endpoints import ModelEndpoint
from minions.contracts.runtime import Clock, Random, Sleep
from minions.data.errors import CIRCUIT_OPEN
from minions.engine.services.flow.endpoint_limiter import (
    CircuitConfig,
    EndpointLimiter,
    Judgement,
    Ticket,
    Waiter,
    WaitingLine,
    circuit_patience_s,
    end_of,
    wake,
)
from minions.engine.services.flow.model_pace import ModelPace

_MOST_ENDPOINTS: Final = 256
"""Servers that are remembered while nothing happens there."""
_TOLD_FROM_S: Final = 1.0
"""A shorter wait is told to nobody."""
_BEYOND_S: Final = 0.05
"""Beyond the moment at which a circuit is tried again: timers may be early by a little."""


class FlowConfig(Struct, frozen=True, kw_only=True):
    """How flow control behaves at every server."""

    circuit: CircuitConfig = CircuitConfig()
    congested_at: int = 256
    """Calls that wait for one server when loops, parallel steps and batches start nothing new."""
    max_waiting: int = 10_000
    """Calls that may wait for one server; a further one fails with `queue-full`."""
    longest_hold_s: float = 600.0
    """A server that asks for a longer pause has refused: calls fail instead of waiting."""


class SharedFlowControl(FlowControl):
    """One object for all runs of a process, also for those on other threads and event loops."""

    def __init__(
        self,
        clock: Clock,
        sleep: Sleep,
        random: Random,
        config: FlowConfig | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """No server is known yet.

        Args:
            random: Spreads the times at which processes call a server again.
            warn: Called once for each server whose calls have to wait for one another; None:
                nobody is told.
        """
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._config = config or FlowConfig()
        self._warn = warn
        self._lock = threading.Lock()
        """Held for a few steps of computation, never while anything is awaited."""
        self._endpoints: dict[ModelEndpoint, _Endpoint] = {}
        self._floor = 0.0
        """The least that the time can be by now: what was slept is over, whatever a clock says."""
        self._lined_up: deque[tuple[Priority, asyncio.Future[None]]] = deque()
        """Who waits for room before anything of it is started."""

    async def admit(self, ask: CallAsk) -> Result[Admission, ModelFailure]:
        """Wait until the call may begin; a call that may begin at once is not suspended."""
        history = ask.history
        with self._lock:
            now = self._now()
            endpoint = self._endpoint(ask.endpoint, now)
            is_new = history.asked_at is None
            if is_new:
                history.asked_at = now
            pace = endpoint.limiter.pace(ask.model, now)
            outcome = self._decided_at_once(endpoint, pace, ask, now)
            waiter = None
            if outcome is None:
                tokens = endpoint.tokens_of(ask, pace)
                waiter = Waiter(ask, pace, now, tokens, is_new=is_new)
                endpoint.line.add(waiter)
                self._serve(endpoint, now)
                if waiter.outcome is None:
                    self._tell_wait(endpoint, waiter, now)
        if waiter is not None:
            if waiter.outcome is None:
                self._tell(endpoint, now)
            outcome = await self._turn(endpoint, waiter)
        if isinstance(outcome, ModelFailure):
            return Failure(outcome)
        assert outcome is not None  # noqa: S101  # whoever is woken has an outcome
        waited_s = outcome.place.begun_at - now if waiter is not None else 0.0
        waited_s = waited_s if waited_s > 0 else 0.0
        return Success(_Place(self, endpoint, outcome, waited_s))

    def _decided_at_once(
        self, endpoint: _Endpoint, pace: ModelPace, ask: CallAsk, now: float
    ) -> Ticket | ModelFailure | None:
        """A place, a refusal, or None: the call has to wait."""
        limiter = endpoint.limiter
        if (refusal := self._refusal(limiter, pace, ask, now)) is not None:
            return refusal
        if not endpoint.line:
            tokens = endpoint.tokens_of(ask, pace)
            if limiter.free_at(now, tokens) <= now and pace.free_at(now, tokens) <= now:
                return limiter.begin(now, pace, ask, tokens)
        if len(endpoint.line) >= self._config.max_waiting:
            return _queue_full(ask, len(endpoint.line))
        return None

    async def _turn(self, endpoint: _Endpoint, waiter: Waiter) -> Ticket | ModelFailure:
        try:
            await waiter.signal
        except BaseException:
            with self._lock:
                now = self._now()
                endpoint.line.leave(waiter)
                if isinstance(waiter.outcome, Ticket):
                    endpoint.limiter.end(waiter.outcome, now, end_of(None), 0.0)
                self._serve(endpoint, now)
            raise
        finally:
            if waiter.timer is not None:
                waiter.timer.cancel()
        assert waiter.outcome is not None  # noqa: S101  # it was decided before it was woken
        return waiter.outcome

    def end(
        self, endpoint: _Endpoint, ticket: Ticket, outcome: ModelCallResponse | ModelFailure | None
    ) -> float | None:
        """Note how a call ended, and let in whoever may begin now; returns as `Admission.end`."""
        with self._lock:
            now, end = self._now(), end_of(outcome)
            # Only where it matters: a seeded run draws the same numbers with and without a server.
            random = self._random() if end.asks_for_pause else 0.0
            again_s = endpoint.limiter.end(ticket, now, end, random)
            if not endpoint.line:
                return again_s
            has_failed = end.judgement in (Judgement.FAILED, Judgement.LIMITED)
            if has_failed:
                self._give_up(endpoint, now)
            self._serve(endpoint, now)
            for waiter in endpoint.line if has_failed else ():
                self._tell_wait(endpoint, waiter, now)
        return again_s

    # --- room for new work -----------------------------------------------------------------------

    def is_congested(self, priority: Priority) -> bool:
        """Whether `congested_at` calls of that priority, or of higher ones, wait somewhere."""
        most = self._config.congested_at
        return any(
            len(each.line) >= most and each.line.up_to(priority) >= most
            for each in tuple(self._endpoints.values())
        )

    async def room(self, priority: Priority) -> None:
        """Wait, in the order of asking."""
        while self.is_congested(priority):
            signal = asyncio.get_running_loop().create_future()
            entry = (priority, signal)
            self._lined_up.append(entry)
            try:
                await signal
            finally:
                if entry in self._lined_up:
                    self._lined_up.remove(entry)
        self._let_one_in()  # one after another: what each starts has time to join the line

    def _let_one_in(self) -> None:
        while self._lined_up:
            priority, signal = self._lined_up[0]
            if self.is_congested(priority):
                return
            self._lined_up.popleft()
            if not signal.done() and not signal.get_loop().is_closed():
                wake(signal)
                return

    # --- what follows is called with the lock ----------------------------------------------------

    def _now(self) -> float:
        now = self._clock.monotonic()
        if now > self._floor:
            self._floor = now
        return self._floor

    def _endpoint(self, wanted: ModelEndpoint, now: float) -> _Endpoint:
        found = self._endpoints.get(wanted)
        if found is None:
            if len(self._endpoints) >= _MOST_ENDPOINTS:
                self._forget_idle(now)
            found = self._endpoints[wanted] = _Endpoint(wanted, self._config.circuit)
        elif wanted.limits is not found.limits:
            found.limiter.tighten(wanted.limits)
            found.limits = wanted.limits
        return found

    def _forget_idle(self, now: float) -> None:
        idle = [
            key
            for key, each in self._endpoints.items()
            if not each.line and each.limiter.is_idle(now)
        ]
        for key in idle[: _MOST_ENDPOINTS // 2]:
            del self._endpoints[key]

    def _refusal(
        self,
        limiter: EndpointLimiter,
        pace: ModelPace,
        ask: CallAsk,
        now: float,
        waiter: Waiter | None = None,
    ) -> ModelFailure | None:
        """Why the call fails instead of waiting on; None: it need not."""
        circuit = limiter.circuit
        out_of_time = math.inf
        if ask.time_left_s is not None:
            out_of_time = ask.time_left_s + (now if waiter is None else waiter.joined_at)
        if circuit.state(now) is not CircuitState.CLOSED:
            open_s = circuit.open_for_s(now)
            is_bounded = ask.longest_hold_s is not None and open_s > ask.longest_hold_s
            since = now if waiter is None else waiter.down_since or now
            if ask.history.first_failed_at is not None and ask.time_left_s is None:
                since = min(since, ask.history.first_failed_at)
            until = min(since + circuit_patience_s(ask), out_of_time)
            if (open_s or circuit.is_probed) and (now + open_s > until or is_bounded):
                wait_s = open_s * (1 + self._random() / 10) + _BEYOND_S
                return _circuit_open(ask, circuit.failures, wait_s)
        held_s = limiter.held_s(now, pace)
        if not held_s:
            return None
        longest_s = self._config.longest_hold_s
        if ask.longest_hold_s is not None:
            longest_s = min(longest_s, ask.longest_hold_s)
        return _hold_failure(ask, held_s) if held_s > min(longest_s, out_of_time - now) else None

    def _give_up(self, endpoint: _Endpoint, now: float) -> None:
        """Refuse those for whom it makes no sense any more to wait."""
        limiter = endpoint.limiter
        is_down = limiter.circuit.state(now) is not CircuitState.CLOSED
        for waiter in tuple(endpoint.line):
            if not is_down:
                waiter.down_since = None
            elif waiter.down_since is None:
                waiter.down_since = now
            refusal = self._refusal(limiter, waiter.pace, waiter.ask, now, waiter)
            if refusal is not None and not waiter.loop.is_closed():
                endpoint.line.leave(waiter)
                waiter.decide(refusal)

    def _serve(self, endpoint: _Endpoint, now: float) -> None:
        """Let in whoever is first, as long as that can be decided now."""
        line, limiter, has_moved = endpoint.line, endpoint.limiter, False
        full: set[ModelPace] = set()
        while (waiter := line.head(full)) is not None:
            if waiter.loop.is_closed():
                line.leave(waiter)
                continue
            if limiter.circuit.state(now) is not CircuitState.CLOSED and waiter.down_since is None:
                waiter.down_since = now
            free_at = limiter.free_at(now, waiter.tokens)
            if free_at > now:
                self._set_timer(endpoint, waiter, free_at, now)
                break
            free_at = waiter.pace.free_at(now, waiter.tokens)
            if free_at > now:
                self._set_timer(endpoint, waiter, free_at, now)
                full.add(waiter.pace)
                continue
            line.leave(waiter)
            waiter.decide(limiter.begin(now, waiter.pace, waiter.ask, waiter.tokens))
            has_moved = True
        if has_moved and self._lined_up:
            self._let_one_in()

    def _set_timer(self, endpoint: _Endpoint, waiter: Waiter, at: float, now: float) -> None:
        """Look again at that time; infinity: only when a call has ended."""
        if at == math.inf and waiter.down_since is not None:  # a probe may take long
            until = waiter.down_since + circuit_patience_s(waiter.ask)
            if waiter.ask.time_left_s is not None:
                until = min(until, waiter.joined_at + waiter.ask.time_left_s)
            at = max(now, until) + _BEYOND_S
        if waiter.timer is not None:
            if waiter.timer_at == at:
                return
            waiter.timer.cancel()
            waiter.timer = None
        if at == math.inf:
            return
        waiter.timer_at = at
        if waiter.loop is asyncio._get_running_loop():  # noqa: SLF001  # public by its documentation
            waiter.timer = waiter.loop.create_task(self._later(endpoint, waiter, at - now))
        else:
            waiter.loop.call_soon_threadsafe(self._serve_on_its_loop, endpoint)

    def _serve_on_its_loop(self, endpoint: _Endpoint) -> None:
        with self._lock:
            self._serve(endpoint, self._now())

    async def _later(self, endpoint: _Endpoint, waiter: Waiter, delay_s: float) -> None:
        with self._lock:
            until = self._now() + delay_s
        await self._sleep(delay_s)
        with self._lock:
            self._floor = max(self._floor, until)
            waiter.timer = None
            now = self._now()
            if endpoint.circuit.state(now) is not CircuitState.CLOSED:
                self._give_up(endpoint, now)
            self._serve(endpoint, now)

    # --- what is shown ---------------------------------------------------------------------------

    def states(self) -> Sequence[EndpointState]:
        """By origin; of several accounts the worst circuit and the longest pause count."""
        with self._lock:
            now = self._now()
            found: dict[str, EndpointState] = {}
            for key, each in self._endpoints.items():
                state = each.state(key.origin, now)
                other = found.get(key.origin)
                found[key.origin] = state if other is None else _together(state, other)
        return tuple(found.values())

    def _tell_wait(self, endpoint: _Endpoint, waiter: Waiter, now: float) -> None:
        """Tell who waits until when the server is not asked at least."""
        if waiter.ask.on_wait is None:
            return
        limiter = endpoint.limiter
        wait_s = max(limiter.held_s(now, waiter.pace), limiter.circuit.open_for_s(now))
        if wait_s >= _TOLD_FROM_S and now + wait_s > waiter.told_until + _TOLD_FROM_S / 2:
            waiter.told_until = now + wait_s
            waiter.loop.call_soon_threadsafe(waiter.ask.on_wait, wait_s)

    def _tell(self, endpoint: _Endpoint, now: float) -> None:
        if not endpoint.is_told and self._warn is not None:
            endpoint.is_told = True
            self._warn(endpoint.limiter.words_about_waiting(endpoint.origin, now))


class _Endpoint:
    """One server: its limiter, and who waits before it."""

    __slots__ = ("circuit", "is_told", "limiter", "limits", "line", "origin")

    def __init__(self, endpoint: ModelEndpoint, circuit: CircuitConfig) -> None:
        self.limiter = EndpointLimiter(endpoint.limits, circuit)
        self.circuit = self.limiter.circuit
        self.limits = endpoint.limits
        """Those that were applied last."""
        self.line = WaitingLine()
        self.origin = endpoint.origin
        self.is_told = False
        """Whether somebody was told that calls wait here."""

    def tokens_of(self, ask: CallAsk, pace: ModelPace) -> int:
        """An estimate; 0 where tokens do not matter."""
        return ask.tokens() if self.limiter.counts_tokens(pace) else 0

    def state(self, origin: str, now: float) -> EndpointState:
        """What happens here now."""
        return EndpointState(
            origin=origin,
            in_flight=self.limiter.in_flight,
            waiting=len(self.line),
            circuit=self.circuit.state(now),
            held_s=self.limiter.held_s(now),
        )


class _Place(Admission):
    """A place at a server, until the call has ended."""

    __slots__ = ("_endpoint", "_flow", "_ticket", "waited_s")

    def __init__(
        self,
        flow: SharedFlowControl,
        endpoint: _Endpoint,
        ticket: Ticket,
        waited_s: float,
    ) -> None:
        self._flow = flow
        self._endpoint = endpoint
        self._ticket = ticket
        self.waited_s = waited_s

    def end(self, outcome: ModelCallResponse | ModelFailure | None) -> float | None:
        """Give the place to whoever is next."""
        return self._flow.end(self._endpoint, self._ticket, outcome)


_WORST: Final = (CircuitState.OPEN, CircuitState.HALF_OPEN, CircuitState.CLOSED)


def _together(one: EndpointState, other: EndpointState) -> EndpointState:
    circuits = (one.circuit, other.circuit)
    return EndpointState(
        origin=one.origin,
        in_flight=one.in_flight + other.in_flight,
        waiting=one.waiting + other.waiting,
        circuit=min(circuits, key=_WORST.index),
        held_s=max(one.held_s, other.held_s),
    )


def _circuit_open(ask: CallAsk, failures: int, wait_s: float) -> ModelFailure:
    return ModelFailure(
        code=CIRCUIT_OPEN,
        message=f"{ask.endpoint.origin} failed {failures} times in a row, so '{ask.model}' was not "
        f"called. It is tried again in {wait_s:.1f} s.",
        is_retryable=True,
        retry_after_s=wait_s,
        suggestions=("check that the server is running and base_url is right",),
    )


def _hold_failure(ask: CallAsk, held_s: float) -> ModelFailure:
    return ModelFailure(
        code="rate-limited",
        message=f"{ask.endpoint.origin} asked to be left alone for another {held_s:.0f} s, so "
        f"'{ask.model}' was not called.",
        is_retryable=True,
        retry_after_s=held_s,
    )


def _queue_full(ask: CallAsk, count: int) -> ModelFailure:
    return ModelFailure(
        code="queue-full",
        message=f"{count} calls wait for {ask.endpoint.origin} already, so '{ask.model}' was not "
        "called. Start fewer runs at a time.",
        is_retryable=True,
        suggestions=("lower the number of runs, or of steps, at a time",),
    )
