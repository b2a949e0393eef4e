"""Runs whose model calls wait for the same server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from attrs import evolve
from returns.result import Failure, Result, Success

from minions.contracts.calls import (
    ChatModel,
    DeltaSink,
    ModelCallResponse,
    ModelFailure,
    Prompt,
)
from minions.contracts.executions import RunStatus
from minions.contracts.flow import Priority
from minions.contracts.messages import TokenUsage, assistant
from minions.contracts.model_endpoints import EndpointLimits, ModelEndpoint
from minions.contracts.session_views import StepMetrics
from minions.data.errors import UNREACHABLE
from minions.data.json_values import JsonValue
from minions.engine.run.agent_executor import AgentExecutor
from minions.engine.services.flow.endpoint_limiter import CircuitConfig
from minions.engine.services.flow.flow_control import FlowConfig, SharedFlowControl
from minions.engine.services.memory_journal import MemoryJournal
from minions.engine.services.run_services import Services
from minions.recipe.catalog import Catalog
from minions.recipe.model import AgentRecipe
from minions.recipe.reading.load import load_recipe_text
from patience import leap
from virtual_time import VirtualTime

GONE: Final = ModelFailure(code=UNREACHABLE, message="gone", is_retryable=True)
Answerer = Callable[[str], ModelCallResponse | ModelFailure]


def say(text: str) -> ModelCallResponse:
    usage = TokenUsage(input_tokens=2, output_tokens=1)
    return ModelCallResponse(message=assistant(text), usage=usage)


class Server(ChatModel):
    """A model with an address, which takes a second for an answer."""

    def __init__(
        self,
        time: VirtualTime,
        *,
        at_once: int | None = None,
        answers: Answerer = say,
        seconds: float = 1.0,
    ) -> None:
        self.time, self.answers, self.seconds = time, answers, seconds
        limits = EndpointLimits(max_concurrency=at_once)
        self._endpoint = ModelEndpoint(origin="http://server", limits=limits)
        self.asked: list[str] = []
        self.began_at: list[float] = []
        self.together = self.most = 0

    @property
    def name(self) -> str:
        return "fake/server"

    @property
    def endpoint(self) -> ModelEndpoint:
        return self._endpoint

    async def complete(
        self, prompt: Prompt, on_delta: DeltaSink | None = None
    ) -> Result[ModelCallResponse, ModelFailure]:
        said = prompt.messages[-1].content or ""
        self.asked.append(said)
        self.began_at.append(self.time.monotonic())
        self.together += 1
        self.most = max(self.most, self.together)
        try:
            await self.time.sleep(self.seconds)
        finally:
            self.together -= 1
        outcome = self.answers(said)
        return Success(outcome) if isinstance(outcome, ModelCallResponse) else Failure(outcome)


def services_of(time: VirtualTime, config: FlowConfig | None = None) -> Services:
    return Services(
        clock=time,
        sleep=time.sleep,
        random=lambda: 0.0,
        journal=MemoryJournal(time),
        flow=SharedFlowControl(time, time.sleep, lambda: 0.0, config),
    )


def recipe(text: str) -> AgentRecipe:
    return load_recipe_text(text, "flow.yaml", Catalog())


def wide(width: int, name: str = "wide") -> AgentRecipe:
    steps = "".join(f"  - {{id: s{number}, goal: '{name} {number}'}}\n" for number in range(width))
    return recipe(f"id: {name}\nexecution_mode: parallel\nmax_parallel: {width}\nsteps:\n{steps}")


ONE: Final = recipe("id: one\nsteps: [{id: ask, goal: one}]\n")


def loop(width: int, items: int, *, more: str = "") -> AgentRecipe:
    numbers = list(range(items))
    return recipe(
        "id: each\nsteps:\n"
        f"  - {{id: ask, goal: 'item {{{{ loop.item }}}}', loop: {numbers}, "
        f"max_parallel: {width}{more}}}\n"
    )


async def test_the_runs_of_a_process_share_the_limit_of_a_server() -> None:
    time = VirtualTime()
    services = services_of(time)
    one, other = Server(time, at_once=3), Server(time, at_once=3)
    runs = [
        AgentExecutor(one, services=services).execute(wide(8)),
        AgentExecutor(other, services=services).execute(wide(8)),
    ]
    results = await time.until_done(asyncio.gather(*runs))
    assert [each.status for each in results] == [RunStatus.COMPLETED] * 2
    begins = sorted(one.began_at + other.began_at)
    assert begins == [float(number // 3) for number in range(16)]


async def test_the_time_that_a_call_waits_is_told_and_is_no_time_of_the_models() -> None:
    time = VirtualTime()
    services = services_of(time)
    result = await time.until_done(
        AgentExecutor(Server(time, at_once=1), services=services).execute(wide(3))
    )
    rows = await services.journal.entries(result.session_id, kinds={"model_call"})
    metrics = [StepMetrics.of(cast("dict[str, JsonValue]", row.body["metrics"])) for row in rows]
    assert [(each.duration_ms, each.waited_ms) for each in metrics] == [
        (1_000.0, None),
        (1_000.0, 1_000.0),
        (1_000.0, 2_000.0),
    ]


async def test_a_call_that_waits_ends_with_its_step_and_counts_as_never_sent() -> None:
    time = VirtualTime()
    services = services_of(time)
    server = Server(time, at_once=1, seconds=1_000.0)
    executor = AgentExecutor(server, services=services)
    busy = asyncio.ensure_future(executor.execute(ONE))
    await time.settle()
    brief = recipe("id: brief\nsteps: [{id: ask, goal: brief, timeout_s: 5}]\n")
    waiting = asyncio.ensure_future(executor.execute(brief))
    await time.settle()
    leap(6.0)
    result = await waiting
    assert result.error is not None
    assert result.error.code == "step-timeout"
    assert server.asked == ["one"]
    rows = await services.journal.entries(result.session_id, kinds={"model_call"})
    assert list(rows) == []
    await time.until_done(busy)


async def test_a_run_that_waits_is_cancelled_at_once() -> None:
    time = VirtualTime()
    services = services_of(time)
    server = Server(time, at_once=1)
    executor = AgentExecutor(server, services=services)
    busy = asyncio.ensure_future(executor.execute(ONE))
    await time.settle()
    run = executor.prepare(wide(2))
    waiting = asyncio.ensure_future(run.execute())
    await time.settle()
    run.cancel()
    await time.settle()
    assert waiting.done()
    assert (await waiting).status is RunStatus.CANCELLED
    await time.until_done(busy)
    assert server.asked == ["one"]


async def test_runs_in_the_background_let_others_go_first() -> None:
    time = VirtualTime()
    services = services_of(time)
    server = Server(time, at_once=1)
    background = evolve(services, priority=Priority.BACKGROUND)
    batch = [
        asyncio.ensure_future(AgentExecutor(server, services=background).execute(wide(3, "batch")))
    ]
    await time.settle()
    one = asyncio.ensure_future(AgentExecutor(server, services=services).execute(ONE))
    await time.until_done(asyncio.gather(*batch, one))
    assert server.asked == ["batch 0", "one", "batch 1", "batch 2"]


async def test_a_turn_of_a_conversation_goes_before_other_runs() -> None:
    time = VirtualTime()
    services = services_of(time)
    server = Server(time, at_once=1)
    executor = AgentExecutor(server, services=services)
    chat = recipe(
        "id: chat\ninputs: {message: string}\n"
        "steps: [{id: answer, goal: Answer., memory: conversation}]\n"
    )
    others = asyncio.ensure_future(executor.execute(wide(3)))
    await time.settle()
    turn = asyncio.ensure_future(executor.execute(chat, {"message": "hello"}))
    await time.until_done(asyncio.gather(others, turn))
    assert [("hello" in each) for each in server.asked] == [False, True, False, False]


async def test_a_dead_server_is_not_asked_by_every_call_and_the_failure_says_so() -> None:
    time = VirtualTime()
    server = Server(time, answers=lambda _: GONE)
    result = await time.until_done(
        AgentExecutor(server, services=services_of(time)).execute(wide(40))
    )
    assert result.status is RunStatus.FAILED
    assert len(server.asked) < 60  # 40 at once; 120 without a circuit breaker
    codes = {each.error.code for each in result.executions if each.error is not None}
    assert "circuit-open" in codes
    assert result.usage.total_tokens == 0


async def test_a_call_that_may_not_wait_for_a_server_fails_at_once_and_is_not_tried_again() -> None:
    """`circuit: fail` (A-156)."""
    time = VirtualTime()
    services = services_of(time, FlowConfig(circuit=CircuitConfig(failures=1)))
    server = Server(time, answers=lambda _: GONE)
    text = "id: one\nretry: {circuit: fail}\nsteps: [{id: ask, goal: one}]\n"
    for _ in range(2):
        begin = time.monotonic()
        result = await time.until_done(
            AgentExecutor(server, services=services).execute(recipe(text))
        )
    assert result.error is not None
    assert result.error.code == "circuit-open"
    assert (time.monotonic(), len(server.asked)) == (begin, 1)


async def test_a_server_that_comes_back_is_asked_again_and_the_runs_complete() -> None:
    time = VirtualTime()
    server = Server(time, answers=lambda said: say("yes") if time.monotonic() > 4 else GONE)
    result = await time.until_done(
        AgentExecutor(server, services=services_of(time)).execute(wide(20))
    )
    assert result.status is RunStatus.COMPLETED


async def test_a_429_to_one_call_holds_back_the_calls_of_all_runs() -> None:
    time = VirtualTime()
    services = services_of(time)
    busy = ModelFailure(code="rate-limited", message="", is_retryable=True, retry_after_s=20.0)
    server = Server(time, answers=lambda said: busy if time.monotonic() == 1.0 else say("ok"))
    first = asyncio.ensure_future(AgentExecutor(server, services=services).execute(ONE))
    await time.go_on(1.0)
    second = asyncio.ensure_future(AgentExecutor(server, services=services).execute(ONE))
    results = await time.until_done(asyncio.gather(first, second))
    assert [each.status for each in results] == [RunStatus.COMPLETED] * 2
    assert server.began_at == [0.0, 21.0, 22.0]


async def test_without_flow_control_no_call_waits() -> None:
    time = VirtualTime()
    server = Server(time, at_once=1)
    services = evolve(services_of(time), flow=None)
    await time.until_done(AgentExecutor(server, services=services).execute(wide(8)))
    assert server.most == 8


async def test_a_loop_begins_only_as_many_items_as_can_wait_in_a_short_line() -> None:
    time = VirtualTime()
    flow = SharedFlowControl(time, time.sleep, lambda: 0.0, FlowConfig(congested_at=20))
    services = evolve(services_of(time), flow=flow)
    server = Server(time, at_once=4)
    lengths: list[int] = []

    def answer(said: str) -> ModelCallResponse:
        lengths.append(flow.states()[0].waiting)
        return say(said)

    server.answers = answer
    result = await time.until_done(AgentExecutor(server, services=services).execute(loop(400, 400)))
    assert result.status is RunStatus.COMPLETED
    assert len(server.asked) == 400
    assert max(lengths) < 200
    assert sum(lengths) / len(lengths) < 60


async def test_a_loop_stops_where_its_server_is_left_alone() -> None:
    time = VirtualTime()
    server = Server(time, answers=lambda _: GONE)
    result = await time.until_done(
        AgentExecutor(server, services=services_of(time)).execute(
            loop(4, 100, more=", on_item_error: collect")
        )
    )
    assert result.status is RunStatus.FAILED
    assert len(server.asked) < 40
