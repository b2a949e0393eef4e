"""Loops at servers that limit their clients in each documented way, in virtual time."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter, deque
from datetime import UTC, datetime
from typing import Final

import pytest
from attrs import frozen
from returns.result import Failure, Result, Success

from minions.contracts.calls import (
    ChatModel,
    DeltaSink,
    ModelCallResponse,
    ModelFailure,
    Prompt,
)
from minions.contracts.executions import AgentResult, RunStatus
from minions.contracts.messages import TokenUsage, assistant
from minions.contracts.model_endpoints import Allowance, ModelEndpoint, RateLimits
from minions.contracts.run_events import RunEvent, ServerWait
from minions.data.errors import UNREACHABLE
from minions.data.json_values import JsonValue
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.flow.flow_control import SharedFlowControl
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import load_recipe_text
from virtual_time import VirtualTime

ITEMS: Final = 200


def refusal(retry_after_s: float | None = None, limits: RateLimits | None = None) -> ModelFailure:
    return ModelFailure(
        code="rate-limited",
        message="429",
        is_retryable=True,
        retry_after_s=retry_after_s,
        rate_limits=limits,
        status=429,
    )


DOWN: Final = ModelFailure(code=UNREACHABLE, message="no connection", is_retryable=True)


class Limits(ABC):
    """What a server takes. The time is handed to each method."""

    @abstractmethod
    def asked(self, now: float, said: str) -> ModelFailure | None:
        """Why it refuses a request; None: it takes it."""

    def ended(self) -> None:
        """A request that it took is answered."""

    @property
    @abstractmethod
    def best_s(self) -> float:
        """The least time that `ITEMS` requests take, whoever sends them."""


class LimitedServer(ChatModel):
    """A model with an address and limits; refuses within a hundredth of a second."""

    def __init__(
        self, time: VirtualTime, limits: Limits, latency_s: float, name: str = "m"
    ) -> None:
        self.time, self.limits, self.latency_s = time, limits, latency_s
        self._name = name
        self._random = random.Random(1).random
        self.asked: Counter[str] = Counter()
        self.refused = 0
        self.begun_at: list[float] = []
        self.answered_at: list[float] = []

    @property
    def name(self) -> str:
        return f"fake/{self._name}"

    @property
    def endpoint(self) -> ModelEndpoint:
        return ModelEndpoint(origin="http://server")

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        said = prompt.messages[-1].content or ""
        self.asked[said] += 1
        self.begun_at.append(self.time.monotonic())
        await self.time.sleep(0.002)
        failure = self.limits.asked(self.time.monotonic(), said)
        if failure is not None:
            self.refused += 1
            await self.time.sleep(0.008)
            return Failure(failure)
        try:
            await self.time.sleep(self.latency_s * (0.75 + self._random() / 2))
        finally:
            self.limits.ended()
        self.answered_at.append(self.time.monotonic())
        usage = TokenUsage(input_tokens=2, output_tokens=1)
        return Success(ModelCallResponse(message=assistant(said), usage=usage))


class FixedConcurrency(Limits):
    def __init__(self, most: int, latency_s: float, retry_after_s: float | None = None) -> None:
        self.most, self.latency_s, self.retry_after_s = most, latency_s, retry_after_s
        self.now = 0

    def asked(self, now: float, said: str) -> ModelFailure | None:
        if self.now >= self.most:
            return refusal(self.retry_after_s)
        self.now += 1
        return None

    def ended(self) -> None:
        self.now -= 1

    @property
    def best_s(self) -> float:
        return ITEMS * self.latency_s / self.most


class TokenBucket(Limits):
    """`says`: what it says of its limits: nothing, `retry` (whole seconds), or `headers`."""

    def __init__(self, per_s: float, most: int, says: str = "") -> None:
        self.per_s, self.most, self.says = per_s, most, says
        self.left, self.at = float(most), 0.0

    def asked(self, now: float, said: str) -> ModelFailure | None:
        self.left = min(self.most, self.left + (now - self.at) * self.per_s)
        self.at = now
        if self.left >= 1:
            self.left -= 1
            return None
        missing_s = (1 - self.left) / self.per_s
        full_s = (self.most - self.left) / self.per_s
        headers = RateLimits(requests=Allowance(0, full_s, self.per_s))
        if self.says == "retry":
            return refusal(max(1.0, round(missing_s + 0.5)), headers)
        return refusal(limits=headers if self.says == "headers" else None)

    @property
    def best_s(self) -> float:
        return (ITEMS - self.most) / self.per_s


class SlidingWindow(Limits):
    def __init__(self, most: int, window_s: float, *, says_when: bool = False) -> None:
        self.most, self.window_s, self.says_when = most, window_s, says_when
        self.taken: deque[float] = deque()

    def asked(self, now: float, said: str) -> ModelFailure | None:
        while self.taken and self.taken[0] + self.window_s <= now:
            self.taken.popleft()
        if len(self.taken) < self.most:
            self.taken.append(now)
            return None
        return refusal(self.taken[0] + self.window_s - now if self.says_when else None)

    @property
    def best_s(self) -> float:
        return (ITEMS - 1) // self.most * self.window_s


class Storm(FixedConcurrency):
    """Refuses everything between two times, and is fast otherwise."""

    def __init__(self, begin: float, end: float, latency_s: float, most: int) -> None:
        super().__init__(10_000, latency_s)
        self.begin, self.end, self.width = begin, end, most

    def asked(self, now: float, said: str) -> ModelFailure | None:
        return self.failure() if self.begin <= now < self.end else super().asked(now, said)

    def failure(self) -> ModelFailure:
        return refusal()

    @property
    def best_s(self) -> float:
        return self.end - self.begin + ITEMS * self.latency_s / self.width


class Outage(Storm):
    """Is down between two times."""

    def failure(self) -> ModelFailure:
        return DOWN


class Odd(FixedConcurrency):
    """Refuses some prompts, so often each, whatever else it is asked."""

    def __init__(self, times: int, *prompts: str, retry_after_s: float | None = None) -> None:
        super().__init__(10_000, 0.0)
        self.left = dict.fromkeys(prompts, times)
        self.after_s = retry_after_s

    def asked(self, now: float, said: str) -> ModelFailure | None:
        if self.left.get(said, 0):
            self.left[said] -= 1
            return refusal(self.after_s)
        return super().asked(now, said)


def services_of(time: VirtualTime) -> Services:
    return Services(
        clock=time,
        sleep=time.sleep,
        random=random.Random(7).random,
        journal=MemoryJournal(time),
        flow=SharedFlowControl(time, time.sleep, random.Random(3).random),
    )


def loop_of(width: int, *, items: int = ITEMS, more: str = "") -> AgentRecipe:
    return load_recipe_text(
        f"id: each\n{more}steps:\n"
        f"  - {{id: ask, goal: 'item {{{{ loop.item }}}}', loop: {list(range(items))}, "
        f"max_parallel: {width}, on_item_error: collect}}\n",
        "each.yaml",
        Catalog(),
    )


@frozen
class Ran:
    result: AgentResult[JsonValue]
    took_s: float
    server: LimitedServer


async def run(limits: Limits, latency_s: float, width: int, more: str = "") -> Ran:
    time = VirtualTime()
    server = LimitedServer(time, limits, latency_s)
    executor = AgentExecutor(server, services=services_of(time))
    result = await time.until_done(executor.execute(loop_of(width, more=more)))
    return Ran(result, max(server.answered_at, default=0.0), server)


CASES: Final = {
    "four at a time, 60 in parallel": (FixedConcurrency(4, 1.0), 1.0, 60),
    "four at a time, says a second": (FixedConcurrency(4, 1.0, 1.0), 1.0, 60),
    "one at a time": (FixedConcurrency(1, 0.5), 0.5, 8),
    "thirty at a time": (FixedConcurrency(30, 3.0), 3.0, 60),
    "fifty at a time": (FixedConcurrency(50, 1.0), 1.0, 60),
    "one at a time, says a second": (FixedConcurrency(1, 0.2, 1.0), 0.2, 8),
    "bucket of 1, slow answers": (TokenBucket(1, 1), 1.5, 8),
    "bucket of 1, slow answers, says whole seconds": (TokenBucket(1, 1, "retry"), 1.5, 8),
    "bucket of 1, very slow answers": (TokenBucket(2, 1), 5.0, 30),
    "bucket of 5, slow answers": (TokenBucket(10, 5), 2.0, 60),
    "five in a second, slow answers": (SlidingWindow(5, 1.0), 2.0, 30),
    "bucket of 10, 5 a second": (TokenBucket(5, 10), 0.4, 16),
    "bucket of 20, 2 a second": (TokenBucket(2, 20), 0.2, 8),
    "bucket of 20, says whole seconds": (TokenBucket(2, 20, "retry"), 0.2, 8),
    "bucket of 20, has headers": (TokenBucket(2, 20, "headers"), 0.2, 8),
    "60 in a minute": (SlidingWindow(60, 60.0), 0.5, 16),
    "60 in a minute, says when": (SlidingWindow(60, 60.0, says_when=True), 0.5, 16),
    "60 in a minute, slow answers": (SlidingWindow(60, 60.0), 10.0, 60),
    "20 in ten seconds, one after another": (SlidingWindow(20, 10.0), 0.2, 1),
    "storm of 30 s in the middle": (Storm(2.0, 32.0, 0.5, 16), 0.5, 16),
    "storm of 25 s from the start": (Storm(0.0, 25.0, 0.5, 16), 0.5, 16),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_loop_loses_nothing_and_is_nearly_as_fast_as_its_server(name: str) -> None:
    """Nothing lost, at 90 % of the server's rate (A-156)."""
    limits, latency_s, width = CASES[name]
    ran = await run(limits, latency_s, width)
    assert ran.result.status is RunStatus.COMPLETED
    assert len(ran.server.answered_at) == ITEMS
    assert (limits.best_s + latency_s) / ran.took_s >= 0.9
    assert ran.server.refused < 4 * ITEMS


@pytest.mark.parametrize("width", [1, 8])
async def test_a_loop_that_may_wait_loses_nothing_to_an_outage(width: int) -> None:
    ran = await run(Outage(2.0, 42.0, 0.5, width), 0.5, width, "retry: {circuit: wait}\n")
    assert ran.result.status is RunStatus.COMPLETED
    assert len(ran.server.answered_at) == ITEMS


async def test_a_loop_whose_server_is_down_for_long_stops_soon_unless_it_may_wait() -> None:
    for more, longest_s in (("", 20.0), ("retry: {circuit: fail}\n", 8.0)):
        ran = await run(Outage(2.0, 4_000.0, 0.5, 8), 0.5, 8, more)
        assert ran.result.status is RunStatus.FAILED
        assert ran.server.time.monotonic() < longest_s


async def test_a_second_that_a_fast_server_asks_for_is_not_asked_for_again_and_again() -> None:
    limits = FixedConcurrency(4, 0.1, 1.0)
    ran = await run(limits, 0.1, 60)
    assert len(ran.server.answered_at) == ITEMS
    assert ran.took_s < limits.best_s + 2.0
    assert ran.server.refused < 65


async def test_a_few_429s_that_come_once_take_little_time() -> None:
    """Others go on while a refused call waits (A-156)."""
    usual = await run(Odd(0), 0.04, 8)
    once = await run(Odd(1, *(f"item {n}" for n in range(10, 200, 40))), 0.04, 8)
    assert len(once.server.answered_at) == ITEMS
    assert once.took_s <= 1.3 * usual.took_s


@pytest.mark.parametrize("retry_after_s", [None, 1.0])
async def test_prompts_that_are_always_refused_fail_soon_and_hold_back_nobody(
    retry_after_s: float | None,
) -> None:
    odd = [f"item {n}" for n in range(10, 200, 40)]
    ran = await run(Odd(1_000, *odd, retry_after_s=retry_after_s), 0.04, 8)
    assert len(ran.server.answered_at) == ITEMS - 5
    assert ran.took_s < 3.0
    assert ran.server.time.monotonic() < 10.0
    assert max(ran.server.asked.values()) <= 8


async def test_a_lone_call_that_is_refused_makes_as_many_requests_as_it_has_attempts() -> None:
    time = VirtualTime()
    server = LimitedServer(time, Odd(1_000, "one"), 0.1)
    one = load_recipe_text("id: one\nsteps: [{id: ask, goal: one}]\n", "one.yaml", Catalog())
    result = await time.until_done(AgentExecutor(server, services=services_of(time)).execute(one))
    assert result.error is not None
    assert result.error.code == "rate-limited"
    assert server.asked["one"] == 3


async def test_a_lone_call_says_until_when_its_server_asked_to_be_left_alone() -> None:
    time, seen = VirtualTime(), list[ServerWait]()
    server = LimitedServer(time, Odd(1, "one", retry_after_s=20.0), 0.1)
    one = load_recipe_text("id: one\nsteps: [{id: ask, goal: one}]\n", "one.yaml", Catalog())
    run = AgentExecutor(server, services=services_of(time)).prepare(one)
    run.listen(lambda event: seen.append(event) if isinstance(event, ServerWait) else None)
    await time.until_done(run.execute())
    assert [round((each.until - each.timestamp).total_seconds()) for each in seen][:1] == [20]


async def test_twenty_parallel_steps_with_little_time_do_not_all_run_out_of_it() -> None:
    time = VirtualTime()
    server = LimitedServer(time, FixedConcurrency(2, 0.5), 0.5)
    steps = "".join(f"  - {{id: s{n}, goal: 'do {n}', timeout_s: 30}}\n" for n in range(20))
    recipe = load_recipe_text(
        f"id: wide\nexecution_mode: parallel\nmax_parallel: 20\nsteps:\n{steps}",
        "wide.yaml",
        Catalog(),
    )
    result = await time.until_done(
        AgentExecutor(server, services=services_of(time)).execute(recipe)
    )
    assert result.status is RunStatus.COMPLETED
    assert time.monotonic() < 7.0


async def test_whoever_watches_a_run_sees_until_when_its_server_is_not_asked() -> None:
    time = VirtualTime()
    server = LimitedServer(time, SlidingWindow(1, 20.0, says_when=True), 0.1)
    seen: list[ServerWait] = []

    def look(event: RunEvent) -> None:
        if isinstance(event, ServerWait):
            seen.append(event)

    run = AgentExecutor(server, services=services_of(time)).prepare(loop_of(2, items=2))
    run.listen(look)
    await time.until_done(run.execute())
    assert seen
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    assert {(each.server, each.model) for each in seen} == {("http://server", "fake/m")}
    assert all(20 <= (each.until - begin).total_seconds() <= 21.1 for each in seen)
