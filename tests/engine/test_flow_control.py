from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from returns.pipeline import is_successful
from returns.result import Result

from minions.contracts.calls import ModelCallResponse, ModelFailure
from minions.contracts.flow import (
    Admission,
    CallAsk,
    CallHistory,
    CircuitState,
    EndpointState,
    Priority,
)
from minions.contracts.messages import assistant
from minions.contracts.model_endpoints import EndpointLimits, ModelEndpoint
from minions.contracts.retry_config import CircuitPolicy
from minions.contracts.runtime import SystemClock
from minions.data.errors import UNREACHABLE
from minions.engine.services.flow.endpoint_limiter import CircuitConfig
from minions.engine.services.flow.flow_control import FlowConfig, SharedFlowControl
from virtual_time import VirtualTime

ANSWER: Final = ModelCallResponse(message=assistant("yes"))
GONE: Final = ModelFailure(code=UNREACHABLE, message="gone", is_retryable=True)
ONE_FAILURE: Final = FlowConfig(circuit=CircuitConfig(failures=1))
URGENT, USUAL, LATER = Priority.INTERACTIVE, Priority.NORMAL, Priority.BACKGROUND


def endpoint(
    concurrency: int | None = None,
    *,
    requests: int | None = None,
    account: str = "",
    origin: str = "http://h",
) -> ModelEndpoint:
    limits = EndpointLimits(max_concurrency=concurrency, requests_per_minute=requests)
    return ModelEndpoint(origin=origin, account=account, limits=limits)


def flow_of(
    time: VirtualTime,
    *,
    config: FlowConfig | None = None,
    warn: Callable[[str], None] | None = None,
) -> SharedFlowControl:
    return SharedFlowControl(time, time.sleep, lambda: 0.0, config, warn)


def ask(
    at: ModelEndpoint,
    priority: Priority = USUAL,
    *,
    history: CallHistory | None = None,
    model: str = "p/m",
    circuit: CircuitPolicy | None = None,
    time_left_s: float | None = None,
) -> CallAsk:
    return CallAsk(
        endpoint=at,
        model=model,
        priority=priority,
        history=history or CallHistory(),
        circuit=circuit,
        time_left_s=time_left_s,
    )


def admission_of(outcome: Result[Admission, ModelFailure]) -> Admission:
    assert is_successful(outcome), outcome
    return outcome.unwrap()


def failure_of(outcome: Result[Admission, ModelFailure]) -> ModelFailure:
    assert not is_successful(outcome), outcome
    return outcome.failure()


def limited(retry_after_s: float | None) -> ModelFailure:
    return ModelFailure(
        code="rate-limited", message="429", is_retryable=True, retry_after_s=retry_after_s
    )


class Calls:
    """Calls that take a second each; remembers who began when."""

    def __init__(self, time: VirtualTime, flow: SharedFlowControl, at: ModelEndpoint) -> None:
        self.time, self.flow, self.at = time, flow, at
        self.began: list[tuple[str, float]] = []
        self.together = self.most = 0

    async def call(
        self,
        name: str,
        priority: Priority = USUAL,
        *,
        outcome: ModelCallResponse | ModelFailure = ANSWER,
        history: CallHistory | None = None,
    ) -> Admission:
        asked = ask(self.at, priority, history=history)
        admission = admission_of(await self.flow.admit(asked))
        self.began.append((name, self.time.monotonic()))
        self.together += 1
        self.most = max(self.most, self.together)
        await self.time.sleep(1.0)
        self.together -= 1
        admission.end(outcome)
        return admission

    @property
    def order(self) -> list[str]:
        return [name for name, _ in self.began]


async def test_calls_of_one_priority_begin_in_the_order_of_asking_so_many_at_a_time() -> None:
    time = VirtualTime()
    calls = Calls(time, flow_of(time), endpoint(2))
    names = [str(number) for number in range(7)]
    await time.until_done(asyncio.gather(*map(calls.call, names)))
    assert calls.order == names
    assert [at for _, at in calls.began] == [0, 0, 1, 1, 2, 2, 3]
    assert calls.most == 2


async def test_a_person_goes_before_runs_and_runs_before_batches() -> None:
    time = VirtualTime()
    calls = Calls(time, flow_of(time), endpoint(1))
    waiting = [
        calls.call(name, priority)
        for name, priority in (
            ("first", LATER), ("batch", LATER), ("run", USUAL), ("turn", URGENT), ("turn2", URGENT),
        )
    ]  # fmt: skip
    await time.until_done(asyncio.gather(*waiting))
    assert calls.order == ["first", "turn", "turn2", "run", "batch"]


async def test_a_batch_is_not_kept_waiting_for_ever_by_people_who_go_on_asking() -> None:
    time = VirtualTime()
    calls = Calls(time, flow_of(time), endpoint(1))
    tasks = [asyncio.ensure_future(calls.call("busy", URGENT))]
    await time.settle()
    tasks.append(asyncio.ensure_future(calls.call("batch", LATER)))
    for _ in range(200):
        tasks.append(asyncio.ensure_future(calls.call("turn", URGENT)))
        await time.go_on(1.0)
    await time.until_done(asyncio.gather(*tasks))
    assert (
        59
        <= dict(calls.began[:1] + [each for each in calls.began if each[0] == "batch"])["batch"]
        <= 62
    )


async def test_a_retry_goes_before_calls_that_came_after_its_first_attempt() -> None:
    time = VirtualTime()
    calls = Calls(time, flow_of(time), endpoint(1))
    history = CallHistory()
    first = asyncio.ensure_future(calls.call("first", history=history))
    await time.settle()
    others = [asyncio.ensure_future(calls.call(f"new{number}")) for number in range(3)]
    await time.go_on(1.0)  # the first attempt has ended, `new0` runs
    await first
    retry = asyncio.ensure_future(calls.call("retry", history=history))
    await time.until_done(asyncio.gather(*others, retry))
    assert calls.order == ["first", "new0", "retry", "new1", "new2"]


async def test_a_429_holds_back_all_calls_to_that_server_and_none_to_another() -> None:
    time = VirtualTime()
    flow = flow_of(time)
    here, there = Calls(time, flow, endpoint(8)), Calls(time, flow, endpoint(8, origin="http://i"))
    await time.until_done(here.call("limited", outcome=limited(30.0)))
    await time.until_done(
        asyncio.gather(*(here.call(str(n)) for n in range(3)), there.call("other"))
    )
    assert there.began == [("other", 1.0)]
    assert here.began[1] == ("0", 31.0)


async def test_after_a_429_the_calls_that_waited_do_not_all_come_at_once() -> None:
    time = VirtualTime()
    calls = Calls(time, flow_of(time), endpoint(64))
    await time.until_done(
        asyncio.gather(*(calls.call(str(n), outcome=limited(5.0)) for n in range(32)))
    )
    calls.began.clear()
    await time.until_done(asyncio.gather(*(calls.call(str(n)) for n in range(64))))
    first = calls.began[0][1]
    assert sum(at == first for _, at in calls.began) <= 16


async def test_where_a_server_asks_for_a_very_long_pause_calls_fail_instead_of_waiting() -> None:
    time = VirtualTime()
    flow, at = flow_of(time), endpoint()
    await time.until_done(Calls(time, flow, at).call("limited", outcome=limited(3_600.0)))
    failure = failure_of(await flow.admit(ask(at)))
    assert (failure.code, failure.retry_after_s) == ("rate-limited", 3_600.0)


async def test_a_server_that_fails_again_and_again_is_left_alone_and_says_until_when() -> None:
    time = VirtualTime()
    flow, at = flow_of(time), endpoint(1)
    calls = Calls(time, flow, at)
    for number in range(10):
        await time.until_done(calls.call(str(number), outcome=GONE))
    failure = failure_of(await flow.admit(ask(at, circuit=CircuitPolicy.FAIL)))
    assert failure.code == "circuit-open"
    assert failure.is_retryable
    assert failure.retry_after_s == pytest.approx(5.05)
    assert failure.usage.total_tokens == 0
    assert "It is tried again in 5" in failure.message


@pytest.mark.parametrize(
    ("first_s", "circuit", "time_left_s"),
    [
        (11.0, None, None),
        (5.0, None, 4.0),
        (5.0, CircuitPolicy.FAIL, None),
        (601.0, CircuitPolicy.WAIT, None),
        (5.0, CircuitPolicy.WAIT, 4.0),
    ],
)
async def test_calls_that_may_not_wait_so_long_fail_at_once_when_the_circuit_opens(
    first_s: float, circuit: CircuitPolicy | None, time_left_s: float | None
) -> None:
    """... as long as its step has time, else ten seconds, or as the recipe says (A-156)."""
    time = VirtualTime()
    config = FlowConfig(circuit=CircuitConfig(failures=1, first_s=first_s))
    calls = Calls(time, flow := flow_of(time, config=config), endpoint(1))
    failing = asyncio.ensure_future(calls.call("first", outcome=GONE))
    await time.settle()
    asked = [ask(calls.at, circuit=circuit, time_left_s=time_left_s) for _ in range(20)]
    waiting = asyncio.gather(*map(flow.admit, asked))
    await time.until_done(failing)
    assert {failure_of(each).code for each in await waiting} == {"circuit-open"}
    late = await flow.admit(ask(calls.at, circuit=circuit, time_left_s=time_left_s))
    assert failure_of(late).code == "circuit-open"


@pytest.mark.parametrize(
    ("first_s", "circuit", "time_left_s"),
    [(9.0, None, None), (50.0, None, 60.0), (50.0, CircuitPolicy.WAIT, None)],
)
async def test_calls_that_may_wait_until_the_server_is_tried_again_do(
    first_s: float, circuit: CircuitPolicy | None, time_left_s: float | None
) -> None:
    time = VirtualTime()
    config = FlowConfig(circuit=CircuitConfig(failures=1, first_s=first_s))
    calls = Calls(time, flow := flow_of(time, config=config), endpoint(1))
    await time.until_done(calls.call("first", outcome=GONE))
    asked = ask(calls.at, circuit=circuit, time_left_s=time_left_s)
    admitted = admission_of(await time.until_done(flow.admit(asked)))
    assert time.monotonic() == pytest.approx(first_s + 1)
    admitted.end(ANSWER)


async def test_who_waits_for_the_outcome_of_a_probe_waits_no_longer_than_it_may() -> None:
    time = VirtualTime()
    calls = Calls(time, flow := flow_of(time, config=ONE_FAILURE), endpoint(8))
    await time.until_done(calls.call("first", outcome=GONE))
    await time.go_on(5.0)
    probe = admission_of(await flow.admit(ask(calls.at)))
    failure = failure_of(await time.until_done(flow.admit(ask(calls.at))))
    assert (failure.code, round(time.monotonic())) == ("circuit-open", 16)
    probe.end(ANSWER)


async def test_a_429_to_one_model_holds_back_no_other_model_of_the_server() -> None:
    time = VirtualTime()
    flow, at = flow_of(time), endpoint()
    admission_of(await flow.admit(ask(at, model="p/small"))).end(limited(30.0))
    admission_of(await flow.admit(ask(at, model="p/large"))).end(ANSWER)
    waiting = asyncio.ensure_future(flow.admit(ask(at, model="p/small")))
    await time.settle()
    admission_of(await flow.admit(ask(at, model="p/large"))).end(ANSWER)
    admission_of(await time.until_done(waiting)).end(ANSWER)
    assert time.monotonic() == 30.0


async def test_while_a_server_refuses_everything_not_always_the_same_call_is_refused() -> None:
    time = VirtualTime()
    flow, at, bad, began = flow_of(time), endpoint(), CallHistory(), list[str]()

    async def call(name: str, history: CallHistory) -> None:
        admission = admission_of(await flow.admit(ask(at, history=history)))
        began.append(name)
        admission.end(limited(None) if history is bad else ANSWER)

    await call("bad", bad)
    await time.until_done(asyncio.gather(call("bad again", bad), call("good", CallHistory())))
    assert began == ["bad", "good", "bad again"]


async def test_who_waits_is_told_until_when_the_server_is_not_asked() -> None:
    time, told = VirtualTime(), [0.0]
    flow, at = flow_of(time), endpoint(1)
    first = admission_of(await flow.admit(ask(at)))
    waiting = asyncio.ensure_future(
        flow.admit(CallAsk(endpoint=at, model="p/m", history=CallHistory(), on_wait=told.append))
    )
    await time.settle()
    assert told == [0.0]  # for another call, not for a time
    first.end(limited(30.0))
    await time.settle()
    assert told == [0.0, 30.0]
    admission_of(await time.until_done(waiting)).end(ANSWER)


async def test_a_pause_longer_than_what_is_left_of_the_step_is_a_failure_at_once() -> None:
    time = VirtualTime()
    flow, at = flow_of(time), endpoint()
    admission_of(await flow.admit(ask(at))).end(limited(30.0))
    failure = failure_of(await flow.admit(ask(at, time_left_s=20.0)))
    assert (failure.code, failure.retry_after_s) == ("rate-limited", 30.0)


async def test_one_call_finds_out_whether_the_server_works_again_and_the_others_wait_for_it() -> (
    None
):
    time = VirtualTime()
    flow = flow_of(time, config=FlowConfig(circuit=CircuitConfig(failures=1)))
    calls = Calls(time, flow, endpoint(8))
    await time.until_done(calls.call("first", outcome=GONE))
    await time.go_on(5.0)
    assert flow.states()[0].circuit is CircuitState.HALF_OPEN
    await time.until_done(asyncio.gather(*(calls.call(str(n)) for n in range(4))))
    assert [at for _, at in calls.began] == [0.0, 6.0, 7.0, 7.0, 7.0]
    assert flow.states()[0].circuit is CircuitState.CLOSED


async def test_who_waits_is_cancelled_at_once_and_its_place_goes_to_the_next() -> None:
    time = VirtualTime()
    calls = Calls(time, flow_of(time), endpoint(1))
    running, waiting, last = (asyncio.ensure_future(calls.call(name)) for name in "abc")
    await time.settle()
    waiting.cancel()
    await time.settle()
    assert waiting.cancelled()
    await time.until_done(asyncio.gather(running, last))
    assert calls.began == [("a", 0.0), ("c", 1.0)]


async def test_who_is_cancelled_in_the_moment_of_its_turn_gives_the_place_back() -> None:
    time = VirtualTime()
    flow, at = flow_of(time), endpoint(1)
    first = admission_of(await flow.admit(ask(at)))
    waiting = asyncio.ensure_future(flow.admit(ask(at)))
    await time.settle()
    first.end(ANSWER)
    waiting.cancel()  # it has its place already, and does not know it yet
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert flow.states()[0].in_flight == 0


async def test_more_calls_than_may_wait_are_refused() -> None:
    time = VirtualTime()
    flow, at = flow_of(time, config=FlowConfig(max_waiting=2)), endpoint(1)
    first = admission_of(await flow.admit(ask(at)))
    waiting = [asyncio.ensure_future(flow.admit(ask(at))) for _ in range(2)]
    await time.settle()
    failure = failure_of(await flow.admit(ask(at)))
    assert (failure.code, failure.is_retryable) == ("queue-full", True)
    first.end(ANSWER)
    for each in waiting:
        admission_of(await each).end(ANSWER)


async def test_requests_per_minute_are_kept_by_all_models_of_a_server_and_key_together() -> None:
    time = VirtualTime()
    flow = flow_of(time)
    one = Calls(time, flow, endpoint(requests=6))
    same, other = Calls(time, flow, endpoint()), Calls(time, flow, endpoint(account="other key"))
    work = [each.call("x") for each in (one, same) * 5]
    await time.until_done(asyncio.gather(*work, *(other.call("y") for _ in range(10))))
    begins = sorted(at for each in (one, same) for _, at in each.began)
    assert begins == pytest.approx([0.0] * 6 + [60.1] * 4)
    assert {at for _, at in other.began} == {0.0}


async def test_the_time_that_was_waited_is_told() -> None:
    time = VirtualTime()
    calls = Calls(time, flow_of(time), endpoint(1))
    ended = await time.until_done(asyncio.gather(*(calls.call(name) for name in "abc")))
    assert [each.waited_s for each in ended] == [0.0, 1.0, 2.0]


async def test_that_calls_wait_is_told_once_for_each_server() -> None:
    time = VirtualTime()
    told: list[str] = []
    calls = Calls(time, flow_of(time, warn=told.append), endpoint(2))
    for _ in range(2):
        await time.until_done(asyncio.gather(*(calls.call(name) for name in "abcd")))
    (words,) = told
    assert words.startswith("2 requests to http://h are in flight; further ones wait")


async def test_why_calls_wait_is_told_as_it_is_where_the_server_fails() -> None:
    time = VirtualTime()
    told: list[str] = []
    flow = flow_of(time, config=FlowConfig(circuit=CircuitConfig(failures=1)), warn=told.append)
    calls = Calls(time, flow, endpoint(2))
    await time.until_done(calls.call("first", outcome=GONE))
    await time.until_done(calls.call("second"))
    (words,) = told
    assert words.startswith("Requests to http://h wait: it failed 1 times in a row")


async def test_a_clock_that_stands_still_keeps_nobody_waiting() -> None:
    class Still(VirtualTime):
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(0)

    time = Still()
    flow, at = flow_of(time), endpoint()
    admission_of(await flow.admit(ask(at))).end(limited(30.0))
    admission_of(await flow.admit(ask(at))).end(ANSWER)


async def test_nothing_is_left_behind_where_everybody_who_waited_was_cancelled() -> None:
    time = VirtualTime()
    flow, at = flow_of(time), endpoint()
    admission_of(await flow.admit(ask(at))).end(limited(30.0))
    waiting = [asyncio.ensure_future(flow.admit(ask(at))) for _ in range(5)]
    await time.settle()
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await time.settle()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert flow.states() == (
        EndpointState(
            origin="http://h", in_flight=0, waiting=0, circuit=CircuitState.CLOSED, held_s=30.0
        ),
    )


async def test_servers_at_which_nothing_happens_are_forgotten_when_there_are_very_many() -> None:
    time = VirtualTime()
    flow = flow_of(time)
    for number in range(2_000):
        admission_of(await flow.admit(ask(endpoint(origin=f"http://h{number}")))).end(ANSWER)
    assert len(flow.states()) <= 256


async def test_new_work_begins_only_while_few_calls_wait_and_in_the_end_all_of_it_does() -> None:
    time = VirtualTime()
    flow = flow_of(time, config=FlowConfig(congested_at=10))
    calls, longest = Calls(time, flow, endpoint(4)), 0

    async def work(name: str) -> None:
        nonlocal longest
        await flow.room(USUAL)
        call = asyncio.ensure_future(calls.call(name))
        await time.settle()
        longest = max(longest, flow.states()[0].waiting)
        await call

    first = [asyncio.ensure_future(work(str(number))) for number in range(20)]
    await time.settle()
    later = [asyncio.ensure_future(work(str(number))) for number in range(100)]
    await time.until_done(asyncio.gather(*first, *later))
    assert len(calls.began) == 120
    assert longest <= 20


async def test_work_that_calls_nobody_lets_the_next_begin_all_the_same() -> None:
    time = VirtualTime()
    flow, at = flow_of(time, config=FlowConfig(congested_at=1)), endpoint(1)
    first = admission_of(await flow.admit(ask(at)))
    second = asyncio.ensure_future(flow.admit(ask(at)))
    await time.settle()
    idle = [asyncio.ensure_future(flow.room(USUAL)) for _ in range(50)]
    await time.settle()
    assert not any(each.done() for each in idle)
    first.end(ANSWER)
    await time.settle()
    await asyncio.gather(*idle)
    admission_of(await second).end(ANSWER)


async def test_a_waiting_batch_does_not_keep_people_from_beginning_something() -> None:
    time = VirtualTime()
    flow, at = flow_of(time, config=FlowConfig(congested_at=2)), endpoint(1)
    first = admission_of(await flow.admit(ask(at)))
    waiting = [asyncio.ensure_future(flow.admit(ask(at, LATER))) for _ in range(2)]
    await time.settle()
    assert flow.is_congested(LATER)
    assert not flow.is_congested(URGENT)
    first.end(ANSWER)
    for each in waiting:
        admission_of(await each).end(ANSWER)


def test_threads_with_event_loops_of_their_own_share_the_limits() -> None:
    flow = SharedFlowControl(SystemClock(), asyncio.sleep, lambda: 0.0)
    at, lock, together, peaks = endpoint(3), threading.Lock(), 0, []

    async def one() -> None:
        nonlocal together
        admission = admission_of(await flow.admit(ask(at)))
        with lock:
            together += 1
            peaks.append(together)
        await asyncio.sleep(0)
        with lock:
            together -= 1
        admission.end(ANSWER)

    async def many() -> None:
        await asyncio.gather(*(one() for _ in range(100)))

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(peaks) == 400
    assert max(peaks) <= 3
    assert flow.states()[0].in_flight == flow.states()[0].waiting == 0


STORY: Final = st.lists(
    st.tuples(
        st.sampled_from(Priority),
        st.floats(0, 3),
        st.sampled_from((ANSWER, GONE, limited(2.0), limited(None), None)),
        st.booleans(),
    ),
    max_size=60,
)


@given(story=STORY, most=st.integers(1, 4))
def test_in_every_story_each_call_ends_and_nobody_is_left(
    story: list[tuple[Priority, float, ModelCallResponse | ModelFailure | None, bool]],
    most: int,
) -> None:
    async def run() -> EndpointState:
        time = VirtualTime()
        flow = flow_of(time, config=FlowConfig(circuit=CircuitConfig(failures=3)))
        at = endpoint(most, requests=20)

        async def call(priority: Priority, end: ModelCallResponse | ModelFailure | None) -> None:
            outcome = await flow.admit(ask(at, priority))
            if is_successful(outcome):
                try:
                    await time.sleep(0.7)
                finally:
                    outcome.unwrap().end(end)

        tasks = []
        for priority, gap, end, is_cut in story:
            tasks.append(asyncio.ensure_future(call(priority, end)))
            await time.go_on(gap)
            if is_cut:
                tasks[len(tasks) // 2].cancel()
        await time.until_done(asyncio.gather(*tasks, return_exceptions=True))
        states = flow.states()
        idle = EndpointState(
            origin="", in_flight=0, waiting=0, circuit=CircuitState.CLOSED, held_s=0
        )
        return states[0] if states else idle

    state = asyncio.run(run())
    assert (state.in_flight, state.waiting) == (0, 0)
